"""How far a whole closed-form run is from the bare BLAS calls that no implementation can avoid."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve

import fedsolve as fs

from .timing import ratios

SAMPLES, FEATURES, CLASSES = 50_000, 768, 100


def measure() -> list[dict[str, Any]]:
    """`fs.run` on features in memory, over syrk + gemm + one Cholesky solve on the pooled matrix, same cores."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((SAMPLES, FEATURES)), rng.integers(CLASSES, size=SAMPLES)
    one_hot = np.eye(CLASSES)[y]

    def floor() -> object:
        gram = blas.dsyrk(1.0, x.T, lower=1)
        return cho_solve(cho_factor(gram, lower=True), x.T @ one_hot)

    def federation(clients: int) -> fs.Federation:
        parts = zip(np.array_split(x, clients), np.array_split(y, clients), strict=True)
        named = {f"client-{i:04d}": {"train": part} for i, part in enumerate(parts)}
        return fs.Federation.from_arrays(named, classes=CLASSES)

    methods: dict[str, fs.Method] = {
        "afl": fs.AFL(ridge=0.0, intercept=False),
        "fedhip alpha=20": fs.FedHiP(alpha=20.0, beta=1.0, intercept=False),
        "fedhip auto": fs.FedHiP(beta=1.0, intercept=False),
        "apfl auto, as many random features": fs.APFL(d_primary=FEATURES, d_refine=FEATURES),
        "fedprior": fs.FedPrior(),
    }
    federations = {clients: federation(clients) for clients in (1, 100, 1000)}
    runs = {
        f"{name}, {clients} clients": partial(fs.run, method, federations[clients])
        for clients in federations
        for name, method in methods.items()
        if name == "afl" or clients == 100  # a thousand Cholesky factors of their own would take minutes
    }
    found = ratios(floor, runs, repeats=5)
    bars = {"afl, 100 clients": 1.4, "afl, 1000 clients": 3.0}
    title = {"base": "floor: syrk + gemm + Cholesky"}
    return [
        {"what": title.get(name, name), "seconds": row["seconds"], "ratio": row["ratio"], "bar": bars.get(name, "")}
        for name, row in found.items()
    ]
