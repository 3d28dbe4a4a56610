"""The mutation score of the kernel: how many small changes to its code the tests notice.

    python -m tools.mutants                      every mutant of every module
    python -m tools.mutants solver.py codec.py   of these modules
    python -m tools.mutants --sample 100         a hundred, drawn with --seed

For each module, its tests run once under coverage; then each mutant runs in a process of its own, forked from one that
has the libraries loaded, against the tests that reach its lines, quickest first, until one fails. Results are kept in
.mutants/results.json, and a mutant is tried again only if its module changed, or if it survived and the tests changed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: processes with threads must not fork

from tools import trial
from tools.mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedsolve"
RESULTS = ROOT / ".mutants" / "results.json"
REASONS = ROOT / "tests" / "mutants" / "survivors.toml"
BAR = 0.85
MEMORY = 6 * 2**30  # bytes of address space for one mutant
SLOW = 1.0  # seconds of computing: slower tests are left out, since they are seldom the only ones to notice

_RIDGE = tuple(f"tests/methods/test_{name}.py" for name in ("ridge_family", "local", "afl", "fedhip", "fedprior"))
_LOOP = (
    *(f"tests/runtime/test_{name}.py" for name in ("kernel_loop", "inbox", "loop", "targets")),
    "tests/core/test_model_and_result.py",
)
KERNEL: Mapping[str, tuple[str, ...]] = {
    "arrays.py": ("tests/core/test_arrays.py", "tests/core/test_kernel_arrays.py"),
    "moments.py": ("tests/core/test_moments.py", "tests/core/test_kernel_moments.py", "tests/core/test_digits.py"),
    "solver.py": ("tests/core/test_solve.py", "tests/core/test_kernel_solver.py", "tests/core/test_digits.py"),
    "codec.py": (
        *(f"tests/core/test_{name}.py" for name in ("codec", "kernel_codec")),
        *(f"tests/security/test_{name}.py" for name in ("hostile_headers", "flipped_results")),
    ),
    "parameters.py": ("tests/core/test_parameters.py", "tests/core/test_kernel_parameters.py"),
    "runtime/drive.py": _LOOP,
    "runtime/client.py": _LOOP,
    "runtime/inbox.py": (*_LOOP, "tests/security/test_hostile_site.py"),
    "runtime/pace.py": _LOOP,
    "families/ridge/calibration.py": _RIDGE,
    "families/ridge/choice.py": _RIDGE,
    "families/ridge/linear.py": _RIDGE,
}


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the tests of a module do when nothing is changed."""

    reach: Mapping[int, frozenset[str]]  # tests by line; "" where it ran when the module was imported
    seconds: Mapping[str, float]  # of computing, by test
    libraries: tuple[str, ...]  # modules that were imported, without the project's own

    def tests(self, mutation: Mutation) -> list[str]:
        """Tests that reach the lines of a mutation, quickest first; all, if it is run when the module is imported."""
        reaching = {test for line in range(mutation.first, mutation.last + 1) for test in self.reach.get(line, ())}
        quick = [test for test in (self.seconds if "" in reaching else reaching) if self.seconds[test] < SLOW]
        return sorted(quick, key=lambda test: (self.seconds[test], test))


def _fork(work: Callable[[], int], log: Path) -> int:
    """Start a process that does the work, leads a group of its own, and ends with what the work returns."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = work()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
        traceback.print_exc()
    os._exit(code)


def _watched(running: dict[int, tuple[str, float]]) -> Iterator[tuple[str, int]]:
    """The processes that are over, or have run too long, by what they stand for, with their exit codes."""
    for pid, (key, deadline) in list(running.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        late = not done and time.monotonic() > deadline
        if late:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if done or late:
            del running[pid]
            yield key, 124 if late else os.waitstatus_to_exitcode(status)


def _succeed(pid: int, log: Path) -> None:
    """Wait for a process in which nothing is changed, so that no test may fail."""
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit(f"the tests fail without any mutant (exit code {code}):\n{log.read_text()[-3000:]}")


def _measure(module: str, tests: list[str], folder: Path) -> Baseline:
    out, log = folder / "baseline.json", folder / "baseline.log"
    _succeed(_fork(lambda: trial.baseline(PACKAGE / module, tests, out), log), log)
    record = json.loads(out.read_text())
    reach = {int(line): frozenset(names) for line, names in record["reach"].items()}
    return Baseline(reach, record["seconds"], tuple(record["libraries"]))


def _run(module: str, wanted: list[Mutation], tests: list[str], jobs: int) -> Iterator[tuple[str, str]]:
    """The outcome of each mutation: killed, late, survived or unreached."""
    name, path = "fedsolve." + module.removesuffix(".py").replace("/", "."), PACKAGE / module
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        baseline = _measure(module, tests, Path(folder))
        for library in baseline.libraries:
            try:
                importlib.import_module(library)
            except Exception:  # noqa: BLE001 - what cannot be loaded before is loaded by each mutant
                continue
        unchanged = compile(path.read_text(), str(path), "exec")
        _succeed(_fork(lambda: trial.trial(name, path, unchanged, sorted(baseline.seconds)), log), log)
        running: dict[int, tuple[str, float]] = {}
        waiting = list(reversed(wanted))
        while waiting or running:
            while waiting and len(running) < jobs:
                mutation = waiting.pop()
                chosen = baseline.tests(mutation)
                if not chosen:
                    yield mutation.key, "unreached"
                    continue
                # Others may keep the machine busy, so the limit is generous.
                limit = 60.0 + 10.0 * sum(baseline.seconds[test] for test in chosen)
                pid = _fork(partial(trial.trial, name, path, mutation.compiled(str(path)), chosen), Path(os.devnull))
                running[pid] = mutation.key, time.monotonic() + limit
            for key, code in _watched(running):
                yield key, {0: "survived", 5: "unreached", 124: "late"}.get(code, "killed")
            time.sleep(0.01)


def _digest(*texts: bytes) -> str:
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def _drawn(counts: Mapping[str, int], sample: int | None, seed: int) -> dict[str, set[int]]:
    """Which mutations of each module to run: all, or a sample, the same for the same seed."""
    every = [(module, index) for module, count in counts.items() for index in range(count)]
    if sample is not None:
        every = sorted(every, key=lambda pair: _digest(f"{seed} {pair}".encode()))[:sample]
    return {module: {index for other, index in every if other == module} for module in counts}


def main() -> int:
    """Run the mutants that were asked for, and print the score of each module and who survived."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description="the mutation score of the kernel")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(KERNEL)}; default: all")
    parser.add_argument("--sample", type=int, help="how many mutants, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    for module in options.modules:
        if module not in KERNEL:
            parser.error(f"{module!r} is not one of {', '.join(KERNEL)}")
    sys.path.insert(0, str(PACKAGE.parent))
    os.chdir(ROOT)
    modules = options.modules or list(KERNEL)
    changes = {module: mutations((PACKAGE / module).read_text()) for module in modules}
    drawn = _drawn({module: len(found) for module, found in changes.items()}, options.sample, options.seed)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.fresh else {}
    outcomes: dict[str, dict[str, str]] = {}
    for module in modules:
        wanted = [mutation for index, mutation in enumerate(changes[module]) if index in drawn[module]]
        if wanted:
            outcomes[module] = _module(module, wanted, kept, options.jobs)
    return _report(outcomes, reasons_on_file())


def _module(module: str, wanted: list[Mutation], kept: dict[str, Any], jobs: int) -> dict[str, str]:
    tests = [test for test in KERNEL[module] if (ROOT / test).exists()]
    source = _digest((PACKAGE / module).read_bytes())
    checks = _digest(*((ROOT / test).read_bytes() for test in tests))
    before = kept.get(module, {})
    same = before.get("outcomes", {}) if before.get("source") == source else {}
    stale = before.get("tests") != checks
    results = {key: result for key, result in same.items() if result in ("killed", "late") or not stale}
    kept[module] = {"source": source, "tests": checks, "outcomes": results}
    todo = [mutation for mutation in wanted if mutation.key not in results]
    started = time.monotonic()
    for done, (key, result) in enumerate(_run(module, todo, tests, jobs) if todo else (), 1):
        results[key] = result
        print(f"\r{module}: {done} of {len(todo)}", end="", flush=True)
        if done % 20 == 0 or done == len(todo):
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(kept, indent=1))
    print(f"\r{module}: {len(todo)} of {len(wanted)} tried in {time.monotonic() - started:.0f} s")
    return {mutation.key: results[mutation.key] for mutation in wanted}


def reasons_on_file() -> dict[str, dict[str, str]]:
    """Why mutants survive, by module and mutant; in the file, mutants stand under their reason."""
    groups = tomllib.loads(REASONS.read_text()) if REASONS.exists() else {}
    return {
        module: {key: reason for reason, keys in reasons.items() for key in keys} for module, reasons in groups.items()
    }


def _report(outcomes: Mapping[str, Mapping[str, str]], reasons: Mapping[str, Mapping[str, str]]) -> int:
    """Print survivors with the reasons that are on file, and the scores; fails below the bar."""
    lines, total, dead = [], 0, 0
    for module, results in outcomes.items():
        alive = [key for key, result in results.items() if result in ("survived", "unreached")]
        for key in alive:
            reason = reasons.get(module, {}).get(key, "no reason is on file")
            print(f"{module}: {results[key]}: {key}\n    {reason}")
        total, dead = total + len(results), dead + len(results) - len(alive)
        open_ = sum(key not in reasons.get(module, {}) for key in alive)
        share = 1 - len(alive) / len(results)
        lines.append(f"{module:32} {len(results):5} mutants  {share:6.1%} killed  {len(alive):3} alive, {open_} open")
    share = dead / max(1, total)
    print("\n".join(lines), f"{'all':32} {total:5} mutants  {share:6.1%} killed  (the bar is {BAR:.0%})", sep="\n")
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
