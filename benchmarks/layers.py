"""How far layer-wise training of a network is from one pass of BLAS over the same Gram matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve

import fedsolve as fs
from fedsolve.families import layered as nets
from fedsolve.families.layered import layers

from .timing import ratios

SAMPLES, CLASSES, NETWORK = 60_000, 10, "mlp:128,64"


def measure() -> list[dict[str, Any]]:
    """FedACnnL mlp:128,64 on 60,000 images of 28 x 28, over syrk, gemm and Cholesky on each layer's inputs."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(SAMPLES, 28, 28), dtype=np.uint8)
    x[rng.random(x.shape) < 0.8] = 0
    y = rng.integers(CLASSES, size=SAMPLES)
    one_hot = np.eye(CLASSES)[y]
    method = fs.FedACnnL(network=NETWORK)

    def federation(clients: int) -> fs.Federation:
        parts = zip(np.array_split(x, clients), np.array_split(y, clients), strict=True)
        return fs.Federation.from_arrays(
            {f"c{i:03d}": {"train": part} for i, part in enumerate(parts)}, classes=CLASSES
        )

    # The inputs of each layer, ready made: the floor pays for no forward pass and no conversion.
    state = fs.run(method, federation(1)).state
    reader = layers.Reader(nets.parse(NETWORK), "auto", 4096)
    stages = reader.network.stages((28, 28), CLASSES)
    source, inputs = layers.Source(x), []
    for depth, stage in enumerate(stages):
        blocks = layers.blocks(reader, stages, method.message(state, "", "update"), source, depth)
        inputs.append(np.concatenate([nets.mean_rows(stage, values) for _, values in blocks]))

    def floor() -> None:
        for rows in inputs:
            gram = blas.dsyrk(1.0, rows.T, lower=1)
            gram[np.diag_indices_from(gram)] += 10.0
            cho_solve(cho_factor(gram, lower=True), rows.T @ one_hot)

    runs = {f"fedacnnl, {clients} clients": partial(fs.run, method, federation(clients)) for clients in (1, 20, 100)}
    found = ratios(floor, runs, repeats=5)
    title = {"base": "floor: syrk + gemm + Cholesky for each layer"}
    return [
        {
            "what": title.get(name, name),
            "seconds": row["seconds"],
            "ratio": row["ratio"],
            "bar": "" if name == "base" else 3.0,
        }
        for name, row in found.items()
    ]
