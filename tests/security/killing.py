"""Processes that are killed at work: each is forked from one that has everything loaded, so that many can be tried.

Run as `python -m tests.security.killing WHAT FOLDER ...`; whatever is not as it must be ends it with a traceback.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve import disk, report
from fedsolve.checks import sample_federation
from fedsolve.reproduce import reproduce
from fedsolve.reproduce.recipe import Cell, Recipe
from fedsolve.result import CHECKPOINT, Result
from fedsolve.study.settings import Settings

KILLED, STOPPED = 9, 130
CHANGING = (
    "openat", "mkdir", "rename", "renameat2", "unlink", "unlinkat", "rmdir", "write", "flock", "fsync", "syncfs",
    "close",
)  # fmt: skip


def results() -> tuple[Result, Result]:
    """An earlier result and a later one, told apart by their method."""
    federation = sample_federation()
    return fs.run(fs.Local(intercept=False), federation), fs.run(fs.AFL(ridge=0.0, intercept=False), federation)


def forked(work: Callable[[], object]) -> int:
    """Start a process that does this and ends."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code, words = 1, io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(words):
            work()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except KeyboardInterrupt:
        code = STOPPED
    except Exception:  # noqa: BLE001  (whatever it is, the one that forked is told)
        traceback.print_exc(file=words)
    finally:
        if code not in (0, STOPPED):
            os.write(2, words.getvalue().encode())
        os._exit(code)  # whatever happens, this process is not the one that was forked


def ended(child: int) -> int:
    """How a process ended: its exit code, or minus the number of the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_whole(place: Path) -> Result:
    """A result of which every part can be read; its models predict what its state says they do."""
    result = Result.load(place)
    names = {path.stem for path in (place / "models").iterdir()}
    assert names == {*result.models, *(["global"] if result.shared else [])}, names
    for model in [*result.models.values(), *([result.shared] if result.shared else [])]:
        width = int(np.prod(model.task.inputs))
        assert np.isfinite(model.scores(np.zeros((2, *model.task.inputs)))).all(), width
    return result


def in_sight(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


# --- at each event of a save, as Python tells of it ---


def at_event(number: int, act: Callable[[], None]) -> None:
    """Do something right before the event of this number: an open, a rename, a new folder, a removal, a lock."""
    events = 0

    def hook(event: str, _: Any) -> None:
        nonlocal events
        events += event == "open" or event.startswith(("os.", "shutil.", "fcntl.", "ctypes."))
        if events == number:
            events += 1
            act()

    sys.addaudithook(hook)


def each_event(home: Path, earlier: bool, can_swap: bool, how: str) -> None:
    """Stop a save before each of its events. What was there or what was to be there must be in its place, whole."""
    old, new = results()
    if not can_swap:
        disk._swap = lambda *_: False  # as on a file system that cannot
    template, number, seen = old.save(home / "template"), 0, Counter[str]()
    while True:
        number += 1
        folder = home / str(number)
        folder.mkdir()
        place = folder / "out"
        if earlier:
            shutil.copytree(template, place)

        def act() -> None:
            if how == "kill":
                os._exit(KILLED)
            raise KeyboardInterrupt

        def save(place: Path = place, number: int = number) -> None:
            at_event(number, act)
            new.save(place)

        code = ended(forked(save))
        assert code in (0, KILLED if how == "kill" else STOPPED), code
        if earlier or place.exists():
            seen[check_whole(place).method] += 1
            assert len(report.entries([folder])) == 1
        else:
            seen["nothing"] += 1
            assert in_sight(folder) == []
        new.save(place)
        assert os.listdir(folder) == ["out"], os.listdir(folder)  # what was left is swept
        assert check_whole(place).method == "afl"
        shutil.rmtree(folder)
        if code == 0:
            break
    assert seen["local" if earlier else "nothing"] >= 10 and seen["afl"] >= 1, seen
    print(number - 1, "events:", dict(seen))


# --- at each system call of a save ---


def traced(work: Callable[[], object], options: Sequence[str]) -> int:
    """Work under a tracer, which is there before it begins and may kill it."""
    ready, go = os.pipe()

    def wait_and_work() -> None:
        os.read(ready, 1)
        work()

    child = forked(wait_and_work)
    os.close(ready)
    tracer = subprocess.Popen(
        ["strace", "-q", *options, "-p", str(child)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    while not _is_traced(child):
        assert tracer.poll() is None, "the tracer could not attach"
        time.sleep(0.002)
    os.write(go, b"!")
    os.close(go)
    code = ended(child)
    tracer.wait()
    return code


def _is_traced(process: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{process}/status").read_text()


def in_order(home: Path) -> None:
    """What replaces something is on the disk before it does, and the new name is before anybody is told."""
    old, new = results()
    log, options = home / "calls.txt", ["-e", "trace=openat,write,rename,renameat2,fsync,syncfs", "-o"]
    old.save(home / "out")
    assert traced(lambda: new.save(home / "out"), [*options, str(log)]) == 0
    calls = [line.split("(")[0] for line in log.read_text().splitlines() if "(" in line]
    exchange = calls.index("renameat2")
    assert "write" not in calls[calls.index("syncfs") :] and calls.index("syncfs") < exchange, calls
    assert "fsync" in calls[exchange:], calls
    assert traced(lambda: disk.write_bytes(home / "file", b"abc"), [*options, str(log)]) == 0
    calls = [line.split("(")[0] for line in log.read_text().splitlines() if "(" in line]
    assert [call for call in calls if call != "openat"] == ["write", "fsync", "rename", "fsync"], calls


def each_call(home: Path, calls: Sequence[str]) -> None:
    """Kill a save as it enters each of its system calls of these names."""
    old, new = results()
    place, log = home / "runs" / "out", home / "calls.txt"
    old.save(place)
    assert traced(lambda: new.save(place), ["-e", f"trace={','.join(calls)}", "-o", str(log)]) == 0
    counts = Counter(line.split("(")[0] for line in log.read_text().splitlines() if "(" in line)
    seen = Counter[str]()
    for call, count in sorted(counts.items()):
        for number in range(1, count + 1):
            old.save(place)
            inject = f"inject={call}:signal=KILL:when={number}"
            code = traced(lambda: new.save(place), ["-e", f"trace={call}", "-e", inject, "-o", os.devnull])
            assert code in (0, -signal.SIGKILL), code  # 0: this time there were fewer
            seen[f"{check_whole(place).method} {code}"] += 1
            assert len(report.entries([place.parent])) == 1
    new.save(place)
    assert os.listdir(place.parent) == ["out"]
    killed = seen[f"local {-signal.SIGKILL}"] + seen[f"afl {-signal.SIGKILL}"]
    assert killed >= 0.9 * sum(counts.values()) and seen[f"local {-signal.SIGKILL}"], (seen, counts)
    print(dict(counts), dict(seen))


# --- at random moments of commands ---


def command(*words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # typer imports names that its own click calls deprecated
        from fedsolve import cli

    sys.argv = ["fedsolve", *words]
    cli.main()


def small_recipe(data: Path) -> Recipe:
    settings = Settings(data=str(data), clients=3, partition="iid", alone=False)
    cells = [Cell(name, "iid", 50.0, replace(settings, method=name)) for name in ("afl", "fedhip", "local")]
    return Recipe("small", "A small table", "On few samples.", tuple(cells))


def random_kills(home: Path, kills: int, seed: int) -> None:
    """Kill commands at random moments; whatever is in sight is whole, and every command goes on."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=90)
    data = home / "d.npz"
    np.savez(data, x=rng.normal(size=(3, 5))[labels] + rng.normal(size=(90, 5)), y=labels)
    split = ("--data", str(data), "--clients", "3", "--partition", "iid")
    run = ("run", *split, "--no-alone", "--quiet", "--out", str(home / "run"))
    layered = ("--method", "fedacnnl", "--set", "network=mlp:8,8,8", "--checkpoint", "1")
    resumed = home / "resumed"
    recipe = small_recipe(data)

    def go_on() -> None:
        if (resumed / CHECKPOINT).is_file():
            command("run", "--resume", "--data", str(data), "--out", str(resumed), "--quiet")
        else:
            command("run", *split, *layered, "--no-alone", "--quiet", "--out", str(resumed))

    def recipes() -> None:
        reproduce(recipe, home / "table", lambda *_: None)

    compared = ("compare", "--methods", "afl,fedhip", *split, "--quiet", "--out", str(home / "compared"))
    works: list[Callable[[], None]] = [lambda: command(*run), go_on, lambda: command(*compared), recipes]
    places = ["run", "resumed", "compared", "table"]
    lengths = []
    for work, name in zip(works, places, strict=True):
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            work()  # once here, so that everything is loaded before processes are forked
        shutil.rmtree(home / name)
        started = time.monotonic()
        assert ended(forked(work)) == 0
        lengths.append(time.monotonic() - started)  # unkilled
    fates = Counter[str]()
    for number in itertools.count():
        if fates["killed"] == kills:
            break
        kind = number % len(works)
        if kind and rng.random() < 0.7:  # from the start; else from wherever the last one was killed
            shutil.rmtree(home / places[kind], ignore_errors=True)
        child = forked(works[kind])
        time.sleep(float(rng.random()) * lengths[kind])
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        assert code in (0, -signal.SIGKILL), (kind, code)
        fates["killed" if code else "done"] += 1
        marks = [path for path in home.rglob("result.json") if not _is_hidden(home, path)]
        for path in marks:
            check_whole(path.parent)
        if marks:
            assert len(report.entries([home])) == len(marks)
        assert (home / "run" / "result.json").is_file()  # once there, always there
    for work in works:
        assert ended(forked(work)) == 0
    assert list(home.rglob(".*")) == []  # what was left is swept
    print(dict(fates))


def _is_hidden(home: Path, path: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(home).parts)


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    if what == "events":
        each_event(Path(folder), rest[0] == "earlier", rest[1] == "swap", rest[2])
    elif what == "order":
        in_order(Path(folder))
    elif what == "calls":
        each_call(Path(folder), rest or CHANGING)
    else:
        random_kills(Path(folder), int(rest[0]), int(rest[1]))
