"""FedACnnL and pFedACnnL of numbers: hidden layers see tenths, the last layer the numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.cluster import KMeans

import fedsolve as fs
from fedsolve.families import layered as nets
from fedsolve.families.layered import layers, targets
from fedsolve.families.ridge import choice
from fedsolve.rng import derive
from tests.conftest import relative
from tests.contexts import server, site

NAMES = ("height", "depth")
CONV = "conv:3x3x16,relu,avgpool:2,dense"


def federation(x: Any, y: Any, clients: int, names: tuple[str, ...] = NAMES) -> fs.Federation:
    """Every client has a part of the samples in turn, seven tenths of it for training."""
    parts = {}
    for number in range(clients):
        rows = np.arange(number, len(x), clients)
        train, test = np.split(rows, [max(1, int(0.7 * len(rows)))])
        parts[f"c{number}"] = {"train": (x[train], y[train]), "test": (x[test], y[test])}
    return fs.Federation.from_arrays(parts, target=fs.Numbers(names))


def waves(count: int = 1500, seed: int = 0) -> tuple[Any, Any]:
    """Two numbers that bend along two directions, in units that have nothing in common."""
    rng = np.random.default_rng(seed)
    x, along = rng.normal(size=(count, 6)), np.linalg.qr(rng.normal(size=(6, 2)))[0]
    y = np.column_stack([100 + 5 * np.sin(2 * x @ along[:, 0]), -3 + 0.1 * np.abs(x @ along[:, 1])])
    return x, y + rng.normal(size=y.shape) * [0.3, 0.01]


def pictures(count: int = 1200, seed: int = 0) -> tuple[Any, Any]:
    """A square that is brighter or darker than the rest; where it is, is wanted."""
    rng = np.random.default_rng(seed)
    x, places = 0.1 * rng.normal(size=(count, 10, 10)), rng.integers(8, size=(count, 2))
    for image, (row, column) in zip(x, places, strict=True):
        image[row : row + 3, column : column + 3] += rng.choice([-1, 1]) * rng.uniform(1, 2)
    return x, 20.0 + places


def tenths(y: Any) -> Any:
    """One row per sample: for each number, which of ten intervals it falls into, one by one."""
    units, edges = (y - y.mean(0)) / y.std(0), norm.ppf(np.linspace(0, 1, 11))
    rows = [[float(low <= u < high) for u in row for low, high in pairwise(edges)] for row in units]
    return np.array(rows)


def ridge(f: Any, z: Any, gamma: float) -> Any:
    return np.linalg.solve(f.T @ f + gamma * np.eye(f.shape[1]), f.T @ z)


def drawn(seed: int, name: str, *shape: int) -> Any:
    return derive(seed, name, 0, *shape).standard_normal(shape)


@pytest.mark.parametrize("target", ["place", "shared", "projection"])
@pytest.mark.parametrize("network", ["dense:12,relu,dense", "conv:3x2x5,relu,dense"])
@pytest.mark.parametrize(("clients", "block"), [(1, 4096), (7, 5)])
def test_layers_are_those_of_pooled_training(target: str, network: str, clients: int, block: int) -> None:
    """Hidden: the tenths in their code. Last: the numbers, by ridge about all means, whatever is split how."""
    conv, gamma = network.startswith("conv"), 0.5
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 5, 4) if conv else (60, 6))
    y = np.array([50.0, -2.0]) + x.reshape(60, -1)[:, :2] * [3.0, 0.1] + rng.normal(size=(60, 2)) * [1.0, 0.1]
    parts = {f"c{i}": {"train": (x[i::clients], y[i::clients])} for i in range(clients)}
    fed = fs.Federation.from_arrays(parts, target=fs.Numbers(NAMES))
    result = fs.run(fs.FedACnnL(network=network, target=target, gamma=gamma, scale="none", block=block), fed)
    seed, codes = int(result.state["seeds"][0]), tenths(y)
    places = [(i, j) for i in range(3) for j in range(3)] if conv else [(0, 0)]
    width = 5 if conv else 12
    inputs = [x[:, i : i + 3, j : j + 2].reshape(60, -1) if conv else x for i, j in places]
    f = np.concatenate([np.column_stack([rows, np.ones(60)]) for rows in inputs])  # place by place
    encoding = drawn(seed, "label encoding", 20, width)
    z = np.concatenate([codes @ encoding] * len(places))
    if target == "place" and conv:
        every = drawn(seed, "codes of places", 20, len(places), width)
        z = np.concatenate([codes @ every[:, place] for place in range(len(places))])
    if target == "projection":
        z = np.sign(z) + np.sign(f @ drawn(seed, "input projection", f.shape[1], width))
    hidden = f @ ridge(f, z, gamma)
    behind = np.maximum(np.concatenate(hidden.reshape(len(places), 60, width), axis=1), 0.0)
    weight = ridge(behind - behind.mean(0), y - y.mean(0), gamma)
    wanted = y.mean(0) + (behind - behind.mean(0)) @ weight
    assert result.shared is not None
    assert relative(result.shared.predict(x) - y.mean(0), wanted - y.mean(0)) < 1e-8


def test_tenths_are_equally_likely_and_have_no_units() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=(20_000, 2)) * [3.0, 1e-4] + [40.0, -7.0]
    target = fs.Numbers(NAMES).fitted([y])
    rows = targets.seen(target, y)
    np.testing.assert_array_equal(rows[:200], tenths(y)[:200])
    np.testing.assert_allclose(rows.mean(0), 0.1, atol=0.01)
    assert (rows.reshape(-1, 2, 10).sum(2) == 1).all()
    # A tenth answers with the mean of its members.
    said = targets.answers(target, rows)
    for place in range(10):
        inside = rows[:, place] > 0
        assert said[inside, 0] == pytest.approx(y[inside, 0].mean(), abs=0.1)
    assert targets.columns(fs.Classes(4)) == 4
    assert targets.seen(fs.Classes(4), np.array([1, 3])).tolist() == [1, 3]


@pytest.mark.parametrize(
    "method",
    [
        fs.FedACnnL(network="mlp:256", gamma="auto"),
        fs.FedACnnL(gamma="auto", target="projection"),
        fs.FedACnnL(gamma="auto", constant=False),
        fs.PFedACnnL(groups=2),
        fs.PFedACnnL(groups=1, gamma="auto"),
    ],
)
def test_networks_learn_what_bends(method: fs.Method) -> None:
    fed = federation(*waves(), clients=4)
    found = fs.run(method, fed, workers=1)
    straight = fs.run(fs.AFL(ridge="auto", intercept=True), fed).metrics["r2"].mean
    assert found.metrics["r2"].mean is not None
    assert straight is not None
    assert found.metrics["r2"].mean > straight + 0.15
    assert found.baseline["rmse"] * 0.95 > (found.metrics["rmse"].pooled or np.inf)


def test_convolutions_find_places() -> None:
    fed = federation(*pictures(), clients=4)
    straight = fs.run(fs.AFL(ridge="auto", intercept=True), fed).metrics["rmse"].pooled
    assert straight is not None
    for method in (
        fs.FedACnnL(network=CONV, gamma="auto"),
        fs.FedACnnL(network=CONV, gamma="auto", target="shared"),
        fs.PFedACnnL(network=CONV, gamma="auto", groups=2),
        fs.FedACnnL(network="patches:3x3x32,dense", gamma="auto"),
    ):
        assert (fs.run(method, fed, workers=1).metrics["rmse"].pooled or np.inf) < 0.5 * straight


def test_ridges_are_chosen_by_squared_error_on_the_sums() -> None:
    x, y = waves(200)
    parts = {f"c{i}": {"train": (x[i::3], y[i::3])} for i in range(3)}
    state = fs.run(fs.FedACnnL(network="lr", gamma="auto"), fs.Federation.from_arrays(parts, target=fs.Numbers(NAMES)))
    centred, units = x - x.mean(0), (y - y.mean(0)) / y.std(0)
    gram = centred.T @ centred

    def error(gamma: float) -> float:
        hat = centred @ np.linalg.solve(gram + gamma * np.eye(6), centred.T)
        return float(np.square(units - hat @ units).sum() / (199 - np.trace(hat)) ** 2)

    wanted = min((factor * np.trace(gram) / 6 for factor in choice.SHARED_RIDGES), key=error)
    assert state.state["layer/0/ridge"] == pytest.approx(wanted)


@pytest.mark.parametrize("network", ["mlp:9,8", "lr"])
def test_groups_are_those_of_the_shares_of_tenths(network: str) -> None:
    """Three kinds of clients, with low, middling and high numbers."""
    rng = np.random.default_rng(1)
    y = {f"c{i}": 10.0 * (i % 3) + rng.normal(size=(40, 2)) for i in range(9)}
    parts = {name: {"train": (rng.normal(size=(40, 5)) + 0.1 * y[name][:, :1], y[name])} for name in y}
    fed = fs.Federation.from_arrays(parts, target=fs.Numbers(NAMES))
    result = fs.run(fs.PFedACnnL(network=network, groups=3), fed)
    every = tenths(np.concatenate([y[name] for name in sorted(y)])).reshape(9, 40, 20)
    shares, seed = every.mean(1), int(result.state["seeds"][0])
    points = shares if network == "lr" else shares @ nets.encoding(seed, 1, 20, 8)
    order = [int(result.state[f"member/c{i}"]) for i in range(9)]
    assert order == [0, 1, 2] * 3
    np.testing.assert_allclose(result.state["centres"], points.reshape(3, 3, -1).mean(0), atol=1e-9)
    assert len(set(zip(order, KMeans(3, n_init=3, random_state=0).fit_predict(points), strict=True))) == 3
    method = fs.PFedACnnL(network=network, groups=3)
    state = method.init_server(server(fed.task, derive(0, "server")))
    early = method.personalize({}, method.message(state, "c1", "personalize"), site(fed.task, fed.clients["c1"].train))
    np.testing.assert_allclose(method.predict(early.model, np.zeros((2, 5)), fed.task)[1], y["c1"].mean(0))


def test_auto_looks_at_exact_leave_one_out_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last layer; hidden layers, which tenths cannot judge, stay the group's."""
    seen: list[tuple[list[float], list[Any]]] = []

    def best(candidates: Any, predictions: Any, labels: Any) -> float:
        seen.append((list(candidates), list(predictions)))
        return float(candidates[8])

    fed = federation(*waves(120), clients=4)
    state = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=2, personal=False), fed).state
    monkeypatch.setattr(choice, "best", best)
    method, train = fs.PFedACnnL(network="mlp:9,8", groups=2), fed.clients["c2"].train
    message = method.message(state, "c2", "personalize")
    model = method.personalize({}, message, site(fed.task, train)).model
    group, own = layers.layers(message), layers.layers(model)
    assert all(np.array_equal(group[n]["weight"], own[n]["weight"]) for n in (0, 1))
    ((candidates, predictions),) = seen
    values = train.inputs
    for number, width in enumerate((9, 8)):
        encoding = nets.encoding(int(state["seeds"][0]), number, 20, width)
        values = np.maximum(np.column_stack([values, np.ones(len(values))]) @ nets.stacked(group[number]) @ encoding, 0)
    f, m = np.column_stack([values, np.ones(len(values))]), nets.stacked(group[2])
    y = train.labels - np.array(fed.task.target.origin)  # type: ignore[attr-defined]
    for epsilon, found in list(zip(candidates, predictions, strict=True))[::4]:
        for left in range(len(train)):
            rest = np.arange(len(train)) != left
            weights = m + ridge(f[rest], y[rest] - f[rest] @ m, epsilon)
            np.testing.assert_allclose(found[left], f[left] @ weights, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("target", ["place", "shared", "projection"])
def test_a_network_that_is_not_complete_answers_in_numbers(target: str) -> None:
    """From its last layer there is; from none, with the mean."""
    x, y = waves(400)
    y[:, 0] = 100 + 5 * x[:, 0]
    fed = federation(x, y, clients=2)
    method = fs.FedACnnL(network="mlp:64", target=target)
    state = method.init_server(server(fed.task))
    nothing = method.predict(layers.network_of(state), x[:3], fed.task)
    np.testing.assert_allclose(nothing, np.tile(fed.task.target.origin, (3, 1)))  # type: ignore[attr-defined]
    message = method.message(state, "c0", "update")
    reply = method.update({}, message, site(fed.task, fed.clients["c0"].train))[1]
    state = method.aggregate(state, reply, server(fed.task))
    said = method.predict(layers.network_of(state), x, fed.task)
    assert np.corrcoef(said[:, 0], y[:, 0])[0, 1] > 0.7
    assert abs(said[:, 0].mean() - y[:, 0].mean()) < 2.0
