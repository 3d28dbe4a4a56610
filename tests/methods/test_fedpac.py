"""FedPAC: its weights against a search and the conditions of an optimum, its training against autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take, under
from fedsolve.checks import sample_federation
from fedsolve.families.gradient import mixture, prototypes
from fedsolve.families.gradient.table import names_of
from fedsolve.methods.fedpac import FedPAC
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import networks  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
CLIENT = FEDERATION.clients["site-0"].train
HEAD = ("head.bias", "head.weight")


# --- weights ---


def quadratic(spread: np.ndarray, shapes: np.ndarray, i: int) -> np.ndarray:
    """diag(V) + D_i, entry by entry as it is printed."""
    count = len(spread)
    found = np.diag(spread)
    for j in range(count):
        for k in range(count):
            found[j, k] += (shapes[i] - shapes[j]) @ (shapes[i] - shapes[k])
    return found


def told(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 2.0, count), rng.normal(size=(count, 6)) * 0.6


def test_the_weights_of_three_are_those_of_a_search() -> None:
    grid = [(a, b, 200 - a - b) for a in range(201) for b in range(201 - a)]
    points = np.array(grid) / 200
    for seed in range(5):
        spread, shapes = told(3, seed)
        found = mixture.weights(spread, shapes)
        for i in range(3):
            square = quadratic(spread, shapes, i)
            values = np.einsum("ij,jk,ik->i", points, square, points)
            np.testing.assert_allclose(found[i], points[values.argmin()], atol=0.006)
            assert found[i] @ square @ found[i] <= values.min() + 1e-9


@pytest.mark.parametrize("count", [2, 9, 30])
def test_the_weights_of_many_fulfil_the_conditions_of_a_minimum(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the simplex a is the minimum of a'Pa if and only if P a is a'Pa where a is positive, and no less elsewhere."""
    monkeypatch.setattr(mixture, "LEAST", 0.0)
    spread, shapes = told(count)
    found = mixture.weights(spread, shapes)
    np.testing.assert_allclose(found.sum(1), 1.0)
    for i in range(count):
        square = quadratic(spread, shapes, i)
        slopes, least = square @ found[i], found[i] @ square @ found[i]
        np.testing.assert_allclose(slopes[found[i] > 1e-9], least, rtol=1e-5)
        assert slopes.min() >= least * (1 - 1e-5)
    assert (found > 1e-9).sum() > count  # and they are mixtures


def test_those_that_are_alike_weigh_alike_and_one_alone_is_all() -> None:
    for spread in (0.7, 0.0):  # a single sample has no spread
        np.testing.assert_allclose(mixture.weights(np.full(4, spread), np.ones((4, 5))), 0.25, atol=1e-6)
    np.testing.assert_array_equal(mixture.weights(np.array([0.3]), np.ones((1, 5))), [[1.0]])
    np.testing.assert_allclose(mixture.weights(np.zeros(3), np.zeros((3, 5))), 1 / 3)
    far = mixture.weights(np.ones(2), np.array([[0.0], [1e6]]))
    np.testing.assert_array_equal(far, np.eye(2))


def test_where_all_weights_are_small_none_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "LEAST", 0.3)
    np.testing.assert_allclose(mixture.weights(np.ones(4), np.ones((4, 5))), 0.25)


def check_small_weights() -> None:
    """One client is much surer than the others: weights below a thousandth are dropped, and the rest is one in all."""
    spread = np.array([1.0, 1.0, 1.0, 2000.0, 3000.0])
    found = mixture.weights(spread, np.zeros((5, 2)))
    np.testing.assert_allclose(found, np.tile([1 / 3, 1 / 3, 1 / 3, 0.0, 0.0], (5, 1)), atol=1e-8)


def test_small_weights_are_dropped_and_the_rest_sums_to_one() -> None:
    check_small_weights()


def test_weights_that_are_not_renormalised_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a public implementation has them."""
    monkeypatch.setattr(mixture, "LEAST", 0.0)
    everything = mixture.weights
    monkeypatch.setattr(mixture, "weights", lambda v, h: np.where(everything(v, h) < 1e-3, 0.0, everything(v, h)))
    with pytest.raises(AssertionError):
        check_small_weights()


def test_what_cannot_be_is_refused() -> None:
    for spread in (np.array([1.0, np.nan]), np.array([1.0, -0.1])):
        with pytest.raises(fs.DataError, match="spread"):
            mixture.weights(spread, np.ones((2, 3)))


# --- a client ---


def hidden(model: Any, inputs: np.ndarray) -> np.ndarray:
    """What the head of an mlp:8 sees."""
    return np.asarray(np.maximum(inputs @ model["body.1.weight"].T.astype(float) + model["body.1.bias"], 0.0))


def message(known: tuple[bool, ...] = (True, True, False)) -> dict[str, np.ndarray]:
    start = networks.initial("mlp:8", TASK, derive(1))
    means = np.random.default_rng(3).normal(size=(3, 8)).astype(np.float32)
    return {
        **under("model", {name: array for name, array in start.items() if name not in HEAD}),
        **under("head", {name: start[name] for name in HEAD}),
        "means": means, "known": np.array(known),
    }  # fmt: skip


def check_about(kind: type[FedPAC]) -> None:
    """V and h under the body that was sent, by sums over classes."""
    given = message()
    _, reply = kind(**SMALL).update({}, given, site(TASK, CLIENT))
    z, n = hidden(take("model", given), CLIENT.inputs), len(CLIENT)
    shares = [float(np.mean(CLIENT.labels == c)) for c in range(3)]
    means = [z[CLIENT.labels == c].mean(0) for c in range(3)]
    squares = [float((z[CLIENT.labels == c] ** 2).sum(1).mean()) for c in range(3)]
    shape = np.array([share * mean for share, mean in zip(shares, means, strict=True)])
    spread = (sum(p * s for p, s in zip(shares, squares, strict=True)) - float((shape**2).sum())) / n
    np.testing.assert_allclose(reply["about/shape"], shape, rtol=1e-3, atol=1e-5)
    assert float(reply["about/spread"]) == pytest.approx(spread, rel=1e-4)


class After(FedPAC):
    """Looks at its features after training."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        trained, reply = super().update(private, message, site)
        means, counts = networks.class_means(self.model, trained, site.train, site.task)
        seen = networks.features(self.model, trained, site.train.inputs, site.task)
        return trained, {**reply, **under("about", mixture.statistics(seen, means, counts))}


def test_a_client_looks_at_its_features_before_it_trains() -> None:
    check_about(FedPAC)
    with pytest.raises(AssertionError):
        check_about(After)


def test_one_sample_leaves_no_spread() -> None:
    single = fs.Samples(CLIENT.inputs[:1], CLIENT.labels[:1])
    _, reply = FedPAC(**SMALL).update({}, message(), site(TASK, single))
    assert float(reply["about/spread"]) == pytest.approx(0.0, abs=1e-6)


def test_the_head_trains_alone_and_then_the_body_towards_the_means() -> None:
    """Full batches: two steps of the head with momentum 0.5, then one of the body, by autograd written out."""
    given = message()
    method = FedPAC(**{**SMALL, "batch": 100, "epochs": 1}, lam=3.0, head_epochs=2, head_lr=0.2)
    after, reply = method.update({}, given, site(TASK, CLIENT))
    start = {**take("model", given), **take("head", given)}
    x, y = torch.tensor(CLIENT.inputs, dtype=torch.float32), torch.tensor(CLIENT.labels)
    model = {name: torch.tensor(array).requires_grad_() for name, array in start.items()}
    own = hidden(start, CLIENT.inputs)[CLIENT.labels == 2].mean(0)  # which has no global mean
    aims = torch.tensor(np.vstack([given["means"][:2], own]), dtype=torch.float32)[y]

    def losses() -> tuple[Any, Any]:
        z = torch.relu(x @ model["body.1.weight"].t() + model["body.1.bias"])
        scores = torch.log_softmax(z @ model["head.weight"].t() + model["head.bias"], 1)
        return -scores[torch.arange(len(y)), y].mean(), ((z - aims) ** 2).mean()

    speed = {name: torch.zeros_like(model[name]) for name in HEAD}
    for _ in range(2):
        slopes = torch.autograd.grad(losses()[0], [model[name] for name in HEAD])
        with torch.no_grad():
            for name, slope in zip(HEAD, slopes, strict=True):
                speed[name] = 0.5 * speed[name] + slope
                model[name] -= 0.2 * speed[name]
    body = ("body.1.bias", "body.1.weight")
    entropy, apart = losses()
    slopes = torch.autograd.grad(entropy + 3.0 * apart, [model[name] for name in body])
    with torch.no_grad():
        for name, slope in zip(body, slopes, strict=True):
            model[name] -= 0.05 * slope
    for name, tensor in model.items():
        np.testing.assert_allclose(after[name], tensor.detach(), rtol=1e-3, atol=1e-5)
    assert float(reply["loss"]) / len(y) == pytest.approx(float((entropy + 3.0 * apart).detach()), rel=1e-4)


def test_without_means_nothing_is_aligned() -> None:
    none = message((False, False, False))
    one, two = (FedPAC(**SMALL, lam=lam).update({}, none, site(TASK, CLIENT, derive(4)))[0] for lam in (1.0, 0.0))
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    some = FedPAC(**SMALL).update({}, message(), site(TASK, CLIENT, derive(4)))[0]
    assert np.abs(some["body.1.weight"] - one["body.1.weight"]).max() > 1e-4  # and with them the default is felt


# --- the server ---


def check_means(kind: type[FedPAC]) -> None:
    """Bodies and class means over all samples of those that answered."""
    method = kind(**SMALL)
    state = method.init_server(server(TASK))
    total: dict[str, Any] = {}
    bodies, rows, labels = [], [], []
    for name in ("site-0", "site-1", "site-4"):
        train = FEDERATION.clients[name].train
        after, reply = method.update({}, method.message(state, name, "update"), site(TASK, train))
        for key, array in reply.items():
            apart = key.startswith(("head/", "about/"))
            total[f"{name}/{key}" if apart else key] = array if apart else total.get(key, 0) + array
        bodies += [after["body.1.weight"]] * len(train)
        rows.append(hidden(after, train.inputs))
        labels.append(train.labels)
    found = method.aggregate(state, total, server(TASK))
    z, y = np.concatenate(rows), np.concatenate(labels)
    for c in range(3):
        np.testing.assert_allclose(found["means"][c], z[y == c].mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["model/body.1.weight"], np.mean(bodies, axis=0), atol=1e-5)


class OneVote(FedPAC):
    """A client's class means weigh the same whatever they are of, as in a public implementation."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        trained, reply = super().update(private, message, site)
        means = reply["sums"] / np.maximum(reply["counts"], 1)[:, None]
        return trained, {**reply, "sums": means.astype(np.float32), "counts": np.sign(reply["counts"])}


def test_bodies_and_class_means_are_averaged_over_samples() -> None:
    check_means(FedPAC)
    with pytest.raises(AssertionError):
        check_means(OneVote)


def check_heads(kind: type[FedPAC]) -> None:
    """Of three that answered, first all and then two: each head is the client's own mixture, whatever its place."""
    method = kind(**SMALL)
    state = method.init_server(server(TASK))
    for round_of, seed in ((("a", "b", "d"), 0), (("d", "b"), 1)):
        rng, replies = np.random.default_rng(seed), dict[str, np.ndarray]()
        spread, shapes = rng.uniform(0.5, 2.0, 3), rng.normal(size=(3, 3, 8)).astype(np.float32) * 0.4
        heads = rng.normal(size=(3, 3, 8)).astype(np.float32)
        for at, name in enumerate(round_of):
            own = {"head.weight": heads[at], "head.bias": heads[at, :, 0]}
            about = {"spread": np.array(spread[at]), "shape": shapes[at]}
            replies |= {**under(f"{name}/head", own), **under(f"{name}/about", about)}
        body = {name: array * np.float32(5) for name, array in state.items() if name.startswith("model/")}
        sums = {"sums": np.zeros((3, 8), np.float32), "counts": np.zeros(3, int)}
        before = state
        state = method.aggregate(
            state, {**replies, **body, **sums, "loss": np.array(1.0), "count": np.array(5)}, server(TASK)
        )
        count = len(round_of)
        weights = mixture.weights(spread[:count], shapes[:count].reshape(count, -1).astype(float))
        for at, name in enumerate(round_of):
            wanted = np.tensordot(weights[at], heads[:count], 1)
            np.testing.assert_allclose(method.message(state, name, "update")["head/head.weight"], wanted, atol=1e-5)
    assert names_of(state["clients"]) == ("a", "b", "d")
    for which in (before, state):  # who did not answer keeps its head; who never did has the first one
        found = method.message(which, "a", "personalize")["head/head.weight"]
        np.testing.assert_array_equal(found, method.message(before, "a", "update")["head/head.weight"])
        assert (
            method.message(which, "new", "update")["head/head.weight"].tobytes() == state["head/head.weight"].tobytes()
        )


class ByNumber(FedPAC):
    """Puts the first mixture in the first place, whoever answered, as a public implementation does."""

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        found = super().aggregate(state, replies, server)
        names = names_of(found["clients"])
        here = [place for place, name in enumerate(names) if f"{name}/about/spread" in replies]
        rows = np.array(state.get("heads", found["heads"]))
        rows[: len(here)] = found["heads"][here]
        return {**found, "heads": rows}


def test_heads_belong_to_clients_by_name() -> None:
    check_heads(FedPAC)
    with pytest.raises(AssertionError):
        check_heads(ByNumber)


def test_heads_differ_and_the_body_is_one() -> None:
    result = fs.run(FedPAC(**SMALL), FEDERATION, workers=1, evaluate_every=100)
    assert len({row.tobytes() for row in result.state["heads"]}) > 1
    assert result.state["known"].all()
    assert prototypes.unknown("mlp:8", TASK)["means"].shape == result.state["means"].shape


def test_a_network_without_a_body_is_refused() -> None:
    with pytest.raises(fs.ParameterError, match="head without a body"):
        FedPAC(model="lr").init_server(server(TASK))
