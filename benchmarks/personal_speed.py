"""What personal closed-form models cost in CPU seconds, over the bare BLAS calls that no implementation can avoid.

One BLAS thread, both sides in turn, and the median of the quotients. CPU seconds, which a busy machine changes little.
`python -m benchmarks.personal_speed --turns 1 --only fedhip` is quick.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve
from threadpoolctl import threadpool_limits

import fedsolve as fs
from fedsolve.threads import cores

CLASSES, TURNS = 100, 5


class Case(NamedTuple):
    """A method on clients of equal size, and how many floors it may take."""

    name: str
    method: fs.Method
    clients: int
    samples: int
    features: int
    bar: float

    @property
    def title(self) -> str:
        return f"{self.name}, {self.clients} clients of {self.samples}, m = {self.features}"


def cases() -> list[Case]:
    """The table of the bars."""
    fixed, auto = fs.FedHiP(alpha=20.0, beta=1.0, intercept=False), fs.FedHiP(beta=1.0, intercept=False)
    of_768 = {
        "afl": (fs.AFL(ridge=0.0, intercept=False), None, 1.7),
        "fedhip alpha=20": (fixed, 2.7, 5.0),
        "fedhip auto": (auto, 9.0, 6.5),
        "local": (fs.Local(intercept=False), 5.5, 1.2),
        "apfl, 1024 random features": (fs.APFL(), 11.0, 20.0),
        "fedprior": (fs.FedPrior(), 14.0, 16.0),
    }  # type: dict[str, tuple[fs.Method, float | None, float]]
    found = []
    for name, (method, few, many) in of_768.items():
        found += [Case(name, method, 100, 500, 768, few)] if few else []
        found.append(Case(name, method, 1000, 50, 768, many))
    return [*found, Case("fedhip alpha=20", fixed, 20, 200, 4096, 3.0), Case("fedhip auto", auto, 20, 200, 4096, 3.0)]


def cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def quotient(case: Case, turns: int) -> dict[str, Any]:
    """Median CPU seconds of a run, and the median of their quotients with the floor's in the same turn."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.clients * case.samples, case.features))
    y = rng.integers(CLASSES, size=len(x))
    one_hot = np.eye(CLASSES)[y]
    parts = zip(np.array_split(x, case.clients), np.array_split(y, case.clients), strict=True)
    named = {f"client-{i:04d}": {"train": part} for i, part in enumerate(parts)}
    federation = fs.Federation.from_arrays(named, classes=CLASSES)

    def floor() -> object:
        gram = blas.dsyrk(1.0, x.T, lower=1)
        if case.samples * case.clients < case.features:
            gram[np.diag_indices_from(gram)] += 1.0
        return cho_solve(cho_factor(gram, lower=True), x.T @ one_hot)

    run = partial(fs.run, case.method, federation)
    with threadpool_limits(1):
        floor()
        run()
        both = [(cpu_seconds(floor), cpu_seconds(run)) for _ in range(turns)]
    return {
        "what": case.title,
        "CPU seconds": statistics.median(taken for _, taken in both),
        "floors": statistics.median(taken / least for least, taken in both),
        "bar": case.bar,
    }


ALONE = """
import json, sys, time
import numpy as np
import fedsolve as fs

def peak():  # ru_maxrss would count the parent's memory, too
    status = open("/proc/self/status").read().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024

clients, samples, features, classes = map(int, sys.argv[1:5])
rng = np.random.default_rng(0)
x = rng.standard_normal((clients * samples, features), dtype=np.float32)
y = rng.integers(classes, size=len(x))
parts = zip(np.split(x, clients), np.split(y, clients), strict=True)
named = {f"c{i:06d}": {"train": part} for i, part in enumerate(parts)}
federation = fs.Federation.from_arrays(named, classes=classes)
del named
before, started = peak(), time.process_time()
settings = {"default": {}, "fixed": {"alpha": 20.0, "beta": 1.0, "intercept": False}}
result = fs.run(fs.FedHiP(**settings[sys.argv[5]]), federation)
print(json.dumps({"CPU seconds": time.process_time() - started, "peak": peak(), "before": before}))
"""


DIGITS = """
import time
import fedsolve as fs
federation = fs.load("digits").split(fs.dirichlet(0.1), clients=20, seed=0)
started = time.perf_counter()
fs.run(fs.APFL(), federation)
print(time.perf_counter() - started)
"""


def busy(turns: int) -> dict[str, Any]:
    """Wall seconds with a thread for each core over those with one, while other processes take all cores."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores())]
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    free = {name: value for name, value in os.environ.items() if name not in names}

    def wall(environment: dict[str, str]) -> float:
        command = [sys.executable, "-c", DIGITS]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    try:
        found = [wall(free) / wall(free | dict.fromkeys(names, "1")) for _ in range(turns)]
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    what = "apfl on digits, all cores taken: wall with all threads over one"
    return {"what": what, "measured": statistics.median(found), "bar": 1.5}


def in_a_process(*arguments: object) -> dict[str, float]:
    """What a run takes in a process of its own: CPU seconds, and peak memory in bytes, also before the run."""
    command = [sys.executable, "-c", ALONE, *map(str, arguments)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def crowd() -> list[dict[str, Any]]:
    """100,000 clients of 20 rows, m = 64, ten classes: CPU seconds and peak memory."""
    found, what = in_a_process(100_000, 20, 64, 10, "default"), "fedhip, 100000 clients of 20, m = 64"
    return [
        {"what": f"{what}: CPU seconds", "measured": found["CPU seconds"], "bar": 45.0},
        {"what": f"{what}: GB", "measured": found["peak"] / 1e9, "bar": 1.6},
    ]


def memory() -> dict[str, Any]:
    """Memory beside the data and what is there before a run, in square matrices F'F."""
    found = in_a_process(20, 200, 4096, CLASSES, "fixed")
    what = "fedhip alpha=20, 20 clients of 200, m = 4096: matrices F'F in memory"
    return {"what": what, "measured": (found["peak"] - found["before"]) / (8 * 4096**2), "bar": 3.0}


def measure(turns: int = TURNS, only: str = "") -> list[dict[str, Any]]:
    """CPU seconds of whole runs over the floor: syrk + gemm + Cholesky on the pooled matrix, one BLAS thread."""
    rows = []
    for case in cases():
        if only in case.title:
            rows.append(quotient(case, turns))
            print(f"{case.title}: {rows[-1]['floors']:.3g} floors, bar {case.bar:g}", flush=True)
    rows += crowd() if only in "crowd" else []
    rows += [memory()] if only in "memory" else []
    rows += [busy(turns)] if only in "busy" else []
    return [{**row, "met": "yes" if row.get("floors", row.get("measured")) <= row["bar"] else "no"} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="turns, of which the median counts")
    parser.add_argument(
        "--only", default="", help="only cases with this text in their title, as 'local, 1000'; or crowd, memory, busy"
    )
    given = parser.parse_args()
    for row in measure(given.turns, given.only):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
