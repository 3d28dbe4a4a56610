"""The grids behind the accuracy tables: one decomposition for a grid gives what whole runs give."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import deep, personal

import fedsolve as fs
from fedsolve.features.maps import RandomProjection
from fedsolve.rng import derive
from tests.contexts import server


@pytest.fixture(scope="module")
def table() -> fs.Table:
    rng = np.random.default_rng(0)
    y = rng.integers(5, size=400)
    return fs.Table.make("five classes", rng.normal(size=(400, 20)) + rng.normal(size=(5, 20))[y], y)


def test_fedhip(table: fs.Table) -> None:
    federation = table.split(fs.dirichlet(0.5), clients=6, seed=2)
    grid = personal.fedhip_grid(federation, alphas=(0.0, 5.0, 60.0))
    for alpha in (0.0, 5.0, 60.0):
        assert grid[f"alpha={alpha:g}"] == pytest.approx(
            fs.run(fs.FedHiP(alpha=alpha, beta=1.0, intercept=False), federation).accuracy.mean
        )


def test_streams(table: fs.Table) -> None:
    x, y = np.asarray(table.inputs), np.asarray(table.labels)
    ranges = {"d_primary": (8, 16), "gamma": (1.0,), "d_refine": (12, 80, 1024), "beta": (10.0,), "lam": (0.5,)}
    wanted = {((6, 0.5), name) for name in personal.STREAMS}
    found = {name: figures for _, name, figures in personal.streams(x, y, wanted, 2, ranges, wide=16)}
    federation = table.split(fs.dirichlet(0.5), clients=6, seed=2)
    for width in (12, 80):
        method = fs.APFL(d_primary=16, d_refine=width, gamma=1.0, beta=10.0, lam=0.5)
        point = f"d_primary=16 gamma=1 d_refine={width} beta=10 lam=0.5"
        assert found["apfl grid"][point] == pytest.approx(fs.run(method, federation, seed=2).accuracy.mean)
    whole = fs.run(fs.APFL(d_primary=16), federation, seed=2)
    assert found["apfl wide"]["auto"] == pytest.approx(whole.accuracy.mean)
    same = RandomProjection(
        16, "relu", int(fs.APFL().init_server(server(federation.task, derive(2, "server")))["seeds"][0])
    )
    whole = fs.run(fs.FedPrior(), federation.with_features(same), seed=2)
    assert found["fedprior wide"]["auto"] == pytest.approx(whole.accuracy.mean)


@pytest.mark.parametrize("width", [None, 30])
def test_one_layer(table: fs.Table, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "ROWS", 64)
    x, y = np.asarray(table.inputs), np.asarray(table.labels)
    federation = fs.Federation.from_arrays({"a": {"train": (x[:90], y[:90])}, "b": {"train": (x[90:], y[90:])}})
    if width is not None:
        federation = federation.with_features(RandomProjection(width, "relu", 0))
    result = fs.run(fs.AFL(ridge="auto", intercept=True), federation)
    assert result.shared is not None
    ridge = float(result.state["ridge"])
    less = fs.run(fs.AFL(ridge=deep.LESS * ridge, intercept=True), federation).shared
    assert less is not None
    for found, wanted in zip(deep.one_layer(x, y, width), (result.shared, less), strict=True):
        np.testing.assert_allclose(found.scores(x), wanted.scores(x), rtol=1e-7, atol=1e-9)
    if width is not None:
        assert (
            0 < result.bytes_up / 2 - 8 * deep.sends(width, 5) < 2000
        )  # beside the numbers, what a message says of them
        assert deep.wide_enough(deep.sends(width, 5), 5) == width == deep.wide_enough(deep.sends(width - 1, 5) + 1, 5)


def test_heads_on_the_way_are_those_of_fewer_blocks(table: fs.Table) -> None:
    federation = table.split(fs.dirichlet(0.5), clients=4, seed=2)
    method = fs.DeepAFL(width=9, blocks=3, alpha=0.0, block_ridge=0.1)
    for blocks, numbers, model in deep.heads(method, federation, (1, 3)):
        whole = fs.run(fs.DeepAFL(width=9, blocks=blocks, alpha=0.0, block_ridge=0.1), federation)
        assert whole.shared is not None
        np.testing.assert_allclose(model.scores(table.inputs), whole.shared.scores(table.inputs), rtol=1e-8, atol=1e-10)
        assert 0 < whole.bytes_up / 4 - 8 * numbers < 2000 * whole.rounds
