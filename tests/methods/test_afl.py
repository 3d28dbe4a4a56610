from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data.partition import Partition
from fedsolve.families.ridge import choice
from tests.conftest import numbers, pooled, relative
from tests.methods.oracles import afl_pairwise, stacked

PARTITIONS: list[Partition] = [fs.iid(), fs.dirichlet(0.01), fs.classes(2), fs.shards(2)]


def table(count: int = 2400, features: int = 40, classes: int = 10, seed: int = 0) -> fs.Table:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features))
    y, yt = rng.integers(classes, size=count), rng.integers(classes, size=500)
    x, xt = (centres[labels] + 1.5 * rng.normal(size=(len(labels), features)) for labels in (y, yt))
    return fs.Table.make("gauss", x, y, test=(xt, yt))


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
@pytest.mark.parametrize("clients", [1, 2, 7, 100, pytest.param(1000, marks=pytest.mark.long)])
def test_equals_least_squares_on_the_pooled_data(partition: Partition, clients: int) -> None:
    federation = table().split(partition, clients=clients, test="global", min_samples=1, seed=clients)
    result = fs.run(fs.AFL(ridge=0.0, intercept=False), federation)
    x, y = pooled(federation)
    wanted = np.linalg.lstsq(x, y, rcond=None)[0]
    assert result.shared is not None
    assert relative(result.shared.arrays["weight"], wanted) < 1e-8
    test = next(iter(federation.clients.values())).test
    np.testing.assert_array_equal(result.shared.predict(test.inputs), np.argmax(test.inputs @ wanted, axis=1))


def test_same_accuracy_to_the_last_digit_for_every_partition() -> None:
    figures = {
        fs.run(
            fs.AFL(ridge=0.0, intercept=False), table().split(p, clients=k, test="global", min_samples=1)
        ).accuracy.mean
        for p in PARTITIONS
        for k in (1, 30, 500)
    }
    assert len(figures) == 1


@pytest.mark.parametrize("clients", [1, 20, 600])
@pytest.mark.parametrize("intercept", [False, True])
def test_minimum_norm_where_features_are_redundant(clients: int, intercept: bool) -> None:
    """Digits have pixels that are always zero; F'F is singular, and so is every client's."""
    federation = fs.load("digits").split(fs.dirichlet(0.1), clients=clients, min_samples=1, seed=1)
    result = fs.run(fs.AFL(intercept=intercept, ridge=0.0), federation)
    x, y = pooled(federation)
    mean_x, mean_y = (x.mean(0), y.mean(0)) if intercept else (0.0, 0.0)
    wanted = np.linalg.lstsq(x - mean_x, y - mean_y, rcond=None)[0]
    assert result.shared is not None
    assert relative(result.shared.arrays["weight"], wanted) < 1e-8
    assert bool(result.state["minimum_norm"])
    if intercept:
        np.testing.assert_allclose(result.shared.arrays["intercept"], mean_y - mean_x @ wanted, atol=1e-9)


@pytest.mark.parametrize(("ridge", "intercept"), [(0.0, True), (3.0, False), (3.0, True)])
def test_ridge_and_intercept_against_stacked_rows(ridge: float, intercept: bool) -> None:
    federation = table(count=300).split(fs.dirichlet(0.3), clients=9)
    model = fs.run(fs.AFL(ridge=ridge, intercept=intercept), federation).shared
    assert model is not None
    wanted = stacked([(1.0, *pooled(federation))], ridge, intercept)
    found = model.arrays["weight"]
    if intercept:
        found = np.vstack([found, model.arrays["intercept"]])
    assert relative(found, wanted) < 1e-9


def test_against_the_papers_recursion() -> None:
    federation = table(count=600).split(fs.iid(), clients=6, test=0)
    clients = [(c.train.inputs, np.eye(10)[c.train.labels]) for c in federation.clients.values()]
    found = fs.run(fs.AFL(ridge=0.0, intercept=False), federation).state["weight"]
    assert relative(found, afl_pairwise(clients, gamma=1.0)) < 1e-9
    assert relative(afl_pairwise(clients, gamma=0.0), stacked([(1.0, *pooled(federation))], 0.0)) < 1e-9


def test_float32_inputs_lose_nothing_but_their_own_rounding() -> None:
    double = table(count=800)
    single = fs.Table.make("single", numbers(double).astype(np.float32), double.labels)
    same = fs.Table.make("same", numbers(single).astype(np.float64), double.labels)
    one, two = (
        fs.run(fs.AFL(ridge=0.0, intercept=False), t.split(fs.iid(), clients=5)).state["weight"] for t in (single, same)
    )
    np.testing.assert_array_equal(one, two)


def test_upload_is_a_packed_triangle() -> None:
    """m = 768, d = 100, float64: at most 0.57 of what m^2 + m d numbers take."""
    m, d = 768, 100
    x = np.random.default_rng(0).normal(size=(10, m))
    federation = fs.Federation.from_arrays({"a": {"train": (x, np.arange(10))}}, classes=d)
    assert fs.run(fs.AFL(ridge=1.0, intercept=False), federation).bytes_up <= 0.57 * 8 * (m * m + m * d)


def test_a_client_is_taken_out_again_by_subtraction() -> None:
    federation = table(count=500).split(fs.dirichlet(0.5), clients=8)
    everybody, without = (
        fs.run(fs.AFL(ridge=0.0, intercept=False), federation),
        fs.run(fs.AFL(ridge=0.0, intercept=False), federation, absent=["client-03"]),
    )
    own = federation.clients["client-03"].train
    rest = fs.Moments.from_arrays(everybody.state) - fs.Moments.of(own.inputs, own.labels, classes=10)
    assert rest.count == int(without.state["count"])
    assert relative(fs.solve(rest).weights, without.state["weight"]) < 1e-9


@pytest.mark.parametrize("intercept", [False, True])
def test_auto_ridge_is_the_cross_validated_one_whatever_the_split(intercept: bool) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(3, size=80)
    x = rng.normal(size=(80, 30)) + rng.normal(size=(3, 30))[y] * 0.3
    targets, chosen = np.eye(3)[y], []
    for count in (1, 4, 40):
        rows = np.array_split(rng.permutation(80), count)
        clients = {f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(rows)}
        result = fs.run(fs.AFL(ridge="auto", intercept=intercept), fs.Federation.from_arrays(clients, classes=3))
        assert result.json()["server"]["ridge"] == float(result.state["ridge"])
        chosen.append(float(result.state["ridge"]))
    assert chosen[1:] == pytest.approx([chosen[0]] * 2, rel=1e-9)
    centred, wanted = (x - x.mean(0), targets - targets.mean(0)) if intercept else (x, targets)

    def error(ridge: float) -> float:
        hat = centred @ np.linalg.solve(centred.T @ centred + ridge * np.eye(30), centred.T)
        return float(np.square(wanted - hat @ wanted).sum() / (80 - intercept - np.trace(hat)) ** 2)

    unit = np.square(centred).sum() / 30
    assert chosen[0] == pytest.approx(min(choice.SHARED_RIDGES, key=lambda factor: error(factor * unit)) * unit)
    weights = stacked([(1.0, centred, wanted)], chosen[0])
    assert relative(result.state["weight"], weights) < 1e-8


def test_the_papers_ridge_is_the_default() -> None:
    assert fs.AFL(ridge=0.0, intercept=False).ridge == 0
