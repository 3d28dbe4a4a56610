"""Forked workers: order, errors, and that nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.codec import Bytes
from fedsolve.errors import DataError
from fedsolve.runtime import processes
from fedsolve.runtime.processes import Crew, Task
from fedsolve.runtime.recalled import pack, unpack

FORK = multiprocessing.get_context("fork" if processes.can_fork() else None)
PATIENCE = 60.0  # seconds after which a worker that nobody meets gives up

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="no fork here")


def tasks(count: int) -> Iterator[Task]:
    for number in range(count):
        yield f"t{number}", [bytes([number])]


def test_results_come_in_the_order_of_the_tasks_and_large_ones_begin_first() -> None:
    everybody, others = FORK.Barrier(3, timeout=PATIENCE), FORK.Event()
    count = FORK.Value("i", 0)

    def work(name: str, parts: list[Bytes]) -> list[Bytes]:
        with count.get_lock():
            count.value += 1
            turn = count.value
        if turn <= 3:
            everybody.wait()  # nobody is done before all three have begun
        if name == "t12":
            others.set()
        if name == "t7":
            assert others.wait(PATIENCE)  # later ones are done before
        return [bytes(parts[0]) * 2, str(turn).encode()]

    def weigh(name: str) -> int:
        return 10 if name == "t7" else 1

    with Crew(work, 3) as crew:
        rows = list(crew.in_order(tasks(20), weigh))
    assert [name for name, _, _ in rows] == [f"t{number}" for number in range(20)]
    assert [parts[0] for _, _, parts in rows] == [bytes([number] * 2) for number in range(20)]
    turns = [int(bytes(parts[1])) for _, _, parts in rows]
    assert turns[7] <= 3
    assert not multiprocessing.active_children()


def test_more_tasks_than_are_drawn_ahead() -> None:
    drawn = 0

    def counted() -> Iterator[Task]:
        nonlocal drawn
        for task in tasks(200):
            drawn += 1
            yield task

    ahead = []
    with Crew(lambda name, parts: [bytes(parts[0])], 2) as crew:
        for number, (name, _, parts) in enumerate(crew.in_order(counted(), lambda name: 1)):
            assert (name, parts) == (f"t{number}", [bytes([number])])
            ahead.append(drawn - number)
    assert len(ahead) == 200
    assert max(ahead) <= processes.WINDOW + 1


def test_errors_come_back_as_themselves() -> None:
    def work(name: str, parts: list[Bytes]) -> list[Bytes]:
        raise {"t0": DataError("bad data"), "t1": ValueError("no"), "t2": UnicodeDecodeError("a", b"", 0, 1, "b")}[name]

    for start, kind, words in ((0, DataError, "bad data"), (1, ValueError, "no"), (2, RuntimeError, "UnicodeDecode")):
        one = (task for task in tasks(3) if task[0] == f"t{start}")
        with pytest.raises(kind, match=words):
            list(Crew(work, 2).in_order(one, lambda name: 1))
        assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_is_noticed() -> None:
    def work(name: str, parts: list[Bytes]) -> list[Bytes]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    with pytest.raises(DataError, match="ended unexpectedly"):
        list(Crew(work, 2).in_order(tasks(3), lambda name: 1))
    assert not multiprocessing.active_children()


def pair() -> Crew:
    """Two workers that say who they are; neither goes on before the other has begun."""
    both = FORK.Barrier(2, timeout=PATIENCE)

    def pid(name: str, parts: list[Bytes]) -> list[Bytes]:
        both.wait()
        return [str(os.getpid()).encode()]

    return Crew(pid, 2)


def workers_of(crew: Crew) -> set[int]:
    return {int(bytes(parts[0])) for _, _, parts in crew.in_order(tasks(4), lambda name: 1)}


def test_workers_stay_from_one_series_to_the_next() -> None:
    with pair() as crew:
        first, second = workers_of(crew), workers_of(crew)
        assert first == second
        assert len(first) == 2
    assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_between_two_series_is_noticed_and_the_next_has_new_ones() -> None:
    with pair() as crew:
        gone = workers_of(crew)
        for each in gone:
            os.kill(each, signal.SIGKILL)
        with pytest.raises(DataError, match="ended unexpectedly"):
            workers_of(crew)
        assert not multiprocessing.active_children()
        assert not workers_of(crew) & gone
    assert not multiprocessing.active_children()


def test_what_is_sent_again_arrives_as_it_was_sent() -> None:
    """Parts that a worker still has are not sent again; it must never take an old one for a new one."""
    shared, other = b"shared", b"other"
    given: list[Task] = [
        ("a", [shared, b"1"]), ("b", [shared, b"2", b"more"]), ("c", [other, b"3"]), ("d", [shared]), ("e", []),
        ("f", [b"6", shared]), ("g", [bytes(bytearray(shared)), shared]),
    ]  # fmt: skip
    with Crew(lambda name, parts: [name.encode(), *parts], 1) as crew:
        for _ in range(2):
            found = list(crew.in_order(iter(given), lambda name: 1))
            assert [(name, [name.encode(), *parts]) for name, parts in given] == [(n, got) for n, _, got in found]


def test_a_series_that_is_given_up_leaves_nobody() -> None:
    def work(name: str, parts: list[Bytes]) -> list[Bytes]:
        if name != "t0":
            signal.pause()
        return []

    with closing(Crew(work, 2).in_order(tasks(3), lambda name: -int(name[1:]))) as found:
        assert next(found)[0] == "t0"
    assert not multiprocessing.active_children()


def test_memory_is_the_same_on_the_other_side_and_arrays_are_shared_again() -> None:
    known = {"message/w": np.arange(3.0), "before/pending/u": np.zeros(2)}
    own = np.ones((2, 2), np.float32)
    memory = {"model/w": known["message/w"], "private/v": own, "model/v": own, "updated": np.array(True)}
    memory["private/u"] = known["before/pending/u"]
    found = unpack(pack(memory, known), known)
    assert found["model/w"] is known["message/w"]
    assert found["private/u"] is known["before/pending/u"]
    assert found["model/v"] is found["private/v"]
    assert found.keys() == memory.keys()
    assert all(found[name].tobytes() == memory[name].tobytes() for name in memory)


SCRIPT = """
import os, sys
import fedsolve as fs
federation = fs.load("digits").split("iid", clients=8)
print(os.getpid(), flush=True)
method = fs.FedAvg(model="mlp:64", rounds=100000)
fs.run(method, federation, workers=2, on_round=lambda line, n: print(line.round, flush=True))
"""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_no_processes(how: signal.Signals) -> None:
    pytest.importorskip("torch")
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells let background jobs ignore it
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()  # a round is over
        below: list[int] = []
        while not below:
            below = children(process.pid)
        process.send_signal(how)
        process.wait(timeout=60)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/stat").exists() and "Z" not in state(pid) for pid in below):
        assert time.monotonic() < deadline, "a worker outlived the run"
        time.sleep(0.05)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_methods_that_fork_give_the_same_bits_with_any_number_of_workers() -> None:
    pytest.importorskip("torch")
    federation = fs.load("digits").split("dirichlet:0.3", clients=6)
    method = fs.FedAPA(model="mlp:16", rounds=3, epochs=1)
    results = [fs.run(method, federation, workers=workers, participation=0.7) for workers in (1, 2, 5)]
    for other in results[1:]:
        assert other.state.keys() == results[0].state.keys()
        assert all(other.state[name].tobytes() == array.tobytes() for name, array in results[0].state.items())
        assert other.clients == results[0].clients


CREW = """
import torch
from fedsolve.runtime.processes import Crew
torch.set_num_threads(2)
pictures = torch.randn(64, 32, 32, 32)
norm = torch.nn.BatchNorm2d(32)
norm(pictures)  # in two threads
def work(name, parts):
    norm(pictures)
    return [name.encode()]
with Crew(work, 2) as crew:
    print([bytes(parts[0]) for _, _, parts in crew.in_order(iter([("a", []), ("b", [])]), len)])
"""

# Who takes part in a run asks a network how wide its features are, outside the loop that trains in one thread.
RUN = """
import torch
import fedsolve as fs
torch.set_num_threads(2)
torch.nn.Linear(3000, 3000)(torch.randn(512, 3000))
federation = fs.load("digits").split("iid", clients=4)
print(len(fs.run(fs.FedPHP(model="mlp:4096", rounds=1, epochs=1), federation, workers=2).clients))
"""


@pytest.mark.parametrize(("code", "said"), [(CREW, "[b'a', b'b']"), (RUN, "4")])
def test_threads_of_the_parent_are_not_waited_for(code: str, said: str, tmp_path: Path) -> None:
    """A library that ran in parallel before the fork must not do so behind it: its threads are not there."""
    pytest.importorskip("torch")
    several = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, env=several
    )
    assert done.stdout == f"{said}\n", done.stderr
