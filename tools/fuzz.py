"""A million damaged inputs over every reader of strangers' bytes, in worker processes: `make fuzz`.

A reader may refuse an input by one of the library's own errors, within a second, and with 64 MB above the input. What
breaks that rule is kept in a file and printed with the command that shows it again; a worker that dies has its last
input in such a file, too.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import multiprocessing
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from tests.security.targets import Target, every

from fedsolve.errors import FedsolveError

MEGABYTE = 2**20
MOST_MEMORY = 64 * MEGABYTE  # above the input
SLOWEST = 1.0  # second
PARTS = 4  # of a reader's inputs: each has a seed of its own and runs in a fresh process
KEPT = Path("build/fuzz")  # where inputs that break the rule are kept


@dataclass(frozen=True)
class Outcome:
    """What came of some inputs of a reader."""

    target: str
    inputs: int = 0
    refused: int = 0
    slowest: float = 0.0
    memory: int = 0  # bytes above the input, at most
    faults: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.target,
            self.inputs + other.inputs,
            self.refused + other.refused,
            max(self.slowest, other.slowest),
            max(self.memory, other.memory),
            self.faults + other.faults,
        )


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def attempt(target: Target, data: bytes) -> tuple[bool, float, str]:
    """Whether an input was refused, how long that took, and what broke the rule, if anything."""
    started, refused, fault = time.process_time(), False, ""
    try:
        refused = bool(target.read(data)) and target.silent
    except FedsolveError as error:
        refused = True
        if target.silent:
            fault = f"raises {type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  (whatever it is, it must not be)
        fault = f"raises {type(error).__name__}: {error}"
    seconds = time.process_time() - started
    return refused, seconds, fault or (f"takes {seconds:.2f} s" if seconds > SLOWEST else "")


def work(name: str, seed: int, count: int) -> Outcome:
    """So many inputs of a reader, decided by the seed."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        target = every(Path(folder))[name]
        last = KEPT / f"{name}-{seed}.last"  # survives the process, if the reader ends it
        for data in itertools.islice(target.inputs(-1), 200):
            attempt(target, data)  # what is loaded once and kept is no input's fault
        outcome, base = Outcome(name), peak()
        with last.open("w+b") as file:
            for data in itertools.islice(target.inputs(seed), count):
                file.seek(0)
                file.write(len(data).to_bytes(8, "little") + data)
                file.flush()
                refused, seconds, fault = attempt(target, data)
                memory = max(0, peak() - base - len(data))
                if not fault and memory > MOST_MEMORY:
                    fault = f"takes {memory // MEGABYTE} MB"
                    base = peak()  # the next is measured from here
                faults = (keep(name, data, fault),) if fault and len(outcome.faults) < 5 else ()
                outcome += Outcome(name, 1, int(refused), seconds, memory, faults)
        last.unlink()
    return outcome


def keep(name: str, data: bytes, fault: str) -> str:
    """Write an input that breaks the rule to a file; the line that says how to see it again."""
    path = KEPT / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return f"{name}: {fault[:300]}\n    python -m tools.fuzz --target {name} --input {path}"


def died(name: str, seed: int) -> Outcome:
    """The outcome of a process that is gone, with the input that it was reading."""
    content = (KEPT / f"{name}-{seed}.last").read_bytes()
    data = content[8 : 8 + int.from_bytes(content[:8], "little")]
    return Outcome(name, faults=(keep(name, data, "ends the process"),))


def jobs(targets: Sequence[Target], total: int) -> list[tuple[str, int, int]]:
    """Reader, seed and number of inputs, so that all together are `total` and slow readers have fewer."""
    shares = sum(target.share for target in targets)
    counts = {target.name: -int(-(total * target.share / shares / PARTS) // 1) for target in targets}
    return [(name, seed, count) for seed in range(1, PARTS + 1) for name, count in counts.items()]


def fuzz(total: int, workers: int, only: Sequence[str]) -> dict[str, Outcome]:
    """All inputs, side by side; what came of each reader."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        targets = [target for target in every(Path(folder)).values() if not only or target.name in only]
    outcomes = {target.name: Outcome(target.name) for target in targets}
    processes = multiprocessing.get_context("forkserver")  # each starts with the readers loaded, and nothing read
    processes.set_forkserver_preload(["tests.security.targets"])
    waiting = jobs(targets, total)
    while waiting:
        with ProcessPoolExecutor(workers, mp_context=processes, max_tasks_per_child=1) as pool:
            running = {pool.submit(work, *job): job for job in waiting}
            try:
                for future, job in running.items():
                    outcomes[job[0]] += future.result()
                    waiting.remove(job)
            except BrokenProcessPool:
                gone = [job for job in waiting if (KEPT / f"{job[0]}-{job[1]}.last").exists()]
                for job in gone:
                    outcomes[job[0]] += died(*job[:2])
                    waiting.remove(job)
                    (KEPT / f"{job[0]}-{job[1]}.last").unlink()
    return outcomes


def show(outcomes: dict[str, Outcome], seconds: float) -> None:
    """The table of readers, and what broke the rule."""
    print(f"{'reader':<14}{'inputs':>10}{'refused':>10}{'accepted':>10}{'slowest':>10}{'memory':>10}")
    for each in outcomes.values():
        figures = f"{each.inputs:>10,}{each.refused:>10,}{each.inputs - each.refused:>10,}"
        print(f"{each.target:<14}{figures}{1000 * each.slowest:>7.0f} ms{each.memory / MEGABYTE:>7.1f} MB")
    total = sum(each.inputs for each in outcomes.values())
    faults = [fault for each in outcomes.values() for fault in each.faults]
    verdict = f"{len(faults)} break the rule" if faults else "none breaks the rule"
    print(f"{total:,} inputs in {seconds:.0f} s: {verdict}")
    for fault in faults:
        print(fault)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total", type=int, default=1_000_000, help="inputs over all readers")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument("--target", action="append", default=[], help="only this reader; repeat for more")
    parser.add_argument("--input", type=Path, help="one input for one reader, with what it raises")
    options = parser.parse_args()
    if options.input:
        with tempfile.TemporaryDirectory() as folder:
            every(Path(folder))[options.target[0]].read(options.input.read_bytes())
        print("accepted")
        return 0
    started = time.monotonic()
    outcomes = fuzz(options.total, options.workers, options.target)
    show(outcomes, time.monotonic() - started)
    return int(any(each.faults for each in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
