"""What thin replies save where clients have few samples: bytes, and work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve

import fedsolve as fs
from fedsolve.threads import ONE_THREAD

CLIENTS, SAMPLES, FEATURES, CLASSES = 1000, 50, 768, 100
TURNS = 5


def measure() -> list[dict[str, Any]]:
    """AFL with 1000 clients of 50 samples, in CPU seconds over syrk + gemm + Cholesky on the pooled matrix."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((CLIENTS * SAMPLES, FEATURES)), rng.integers(CLASSES, size=CLIENTS * SAMPLES)
    one_hot = np.eye(CLASSES)[y]
    parts = zip(np.array_split(x, CLIENTS), np.array_split(y, CLIENTS), strict=True)
    named = {f"client-{i:04d}": {"train": part} for i, part in enumerate(parts)}
    federation = fs.Federation.from_arrays(named, classes=CLASSES)

    def floor() -> object:
        gram = blas.dsyrk(1.0, x.T, lower=1)
        return cho_solve(cho_factor(gram, lower=True), x.T @ one_hot)

    def run(thin: bool) -> fs.Result:
        return fs.run(fs.AFL(ridge=0.0, intercept=False, thin=thin), federation)

    turns, numbers = [], 8 * CLIENTS * (FEATURES**2 + FEATURES * CLASSES)
    with ONE_THREAD:  # for both sides: threads that wait for each other count as work
        for _ in range(TURNS):
            turns.append([_cpu(floor), _cpu(lambda: run(False)), _cpu(lambda: run(True))])
    base, plain, thin = (statistics.median(each) for each in zip(*turns, strict=True))
    rows: list[dict[str, Any]] = [
        {"what": "floor: syrk + gemm + Cholesky", "cpu seconds": base, "ratio": 1.0, "bar": ""},
        {"what": "sums", "cpu seconds": plain, "ratio": statistics.median(p / f for f, p, _ in turns), "bar": ""},
        {"what": "thin", "cpu seconds": thin, "ratio": statistics.median(t / f for f, _, t in turns), "bar": 1.45},
    ]
    for what, is_thin, bar in (("sums", False, ""), ("thin", True, 0.13)):
        rows.append({"what": f"{what}: bytes over m^2 + m d", "ratio": run(is_thin).bytes_up / numbers, "bar": bar})
    return rows


def _cpu(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started
