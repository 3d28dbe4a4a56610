"""The grids behind the accuracy tables: one decomposition for a grid gives what whole runs give."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import personal

import fedsolve as fs


@pytest.fixture(scope="module")
def table() -> fs.Table:
    rng = np.random.default_rng(0)
    y = rng.integers(5, size=400)
    return fs.Table.make("five classes", rng.normal(size=(400, 20)) + rng.normal(size=(5, 20))[y], y)


def test_fedhip(table: fs.Table) -> None:
    federation = table.split(fs.dirichlet(0.5), clients=6, seed=2)
    grid = personal.fedhip_grid(federation, alphas=(0.0, 5.0, 60.0))
    for alpha in (0.0, 5.0, 60.0):
        assert grid[f"alpha={alpha:g}"] == pytest.approx(fs.run(fs.FedHiP(alpha=alpha), federation).accuracy.mean)


def test_apfl(table: fs.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal, "WIDTHS_PRIMARY", (16,))
    monkeypatch.setattr(personal, "WIDTHS_REFINE", (12, 80))
    x, y = np.asarray(table.inputs), np.asarray(table.labels)
    ((setting, grid),) = personal.apfl_grids(x, y, [(6, 0.5)], seed=2)
    assert setting == (6, 0.5)
    federation = table.split(fs.dirichlet(0.5), clients=6, seed=2)
    for width in (12, 80):
        method = fs.APFL(d_primary=16, d_refine=width, gamma=1.0, beta=10.0, lam=0.5)
        found = grid[f"d_primary=16 gamma=1 d_refine={width} beta=10 lam=0.5"]
        assert found == pytest.approx(fs.run(method, federation, seed=2).accuracy.mean)
