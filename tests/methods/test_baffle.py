"""BAFFLE against Stein's identity written out, in both ways of federating it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.methods.baffle import BAFFLE
from fedsolve.rng import derive
from tests.contexts import server, site

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import networks, zeroth  # noqa: E402
from tests.methods.test_gradient import OWN, images  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
LOSSES = BAFFLE(model="lr", exchange="losses", directions=12, clip=0, decay=0)


def flat(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(model["head.weight"]), np.ravel(model["head.bias"])]).astype(float)


def loss(w: np.ndarray, train: fs.Samples) -> float:
    """Of softmax regression, in NumPy."""
    scores = train.inputs.astype(np.float32) @ w[:18].reshape(3, 6).T + w[18:]
    return float((np.log(np.exp(scores).sum(1)) - scores[np.arange(len(train)), train.labels]).mean())


def slope(w: np.ndarray, train: fs.Samples) -> np.ndarray:
    """Its gradient."""
    x = train.inputs.astype(np.float32)
    scores = x @ w[:18].reshape(3, 6).T + w[18:]
    rest = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(3)[train.labels]
    return np.concatenate([(rest.T @ x).ravel(), rest.sum(0)]) / len(train)


def replies(method: BAFFLE, state: Any, clients: dict[str, fs.Samples]) -> dict[str, Any]:
    """The replies of all clients, by name."""
    message = method.message(state, "", "update")
    return {name: method.update({}, message, site(TASK, train))[1] for name, train in clients.items()}


CLIENTS = {name: client.train for name, client in FEDERATION.clients.items()}
SAMPLES = sum(len(train) for train in CLIENTS.values())


@pytest.mark.parametrize("centred", [True, False])
def test_a_client_sends_the_changes_of_its_loss(centred: bool) -> None:
    method = BAFFLE(model="lr", exchange="losses", directions=5, sigma=1e-3, centred=centred, batch=7)
    state = method.init_server(server(TASK))
    w, train = flat(take("model", state)), CLIENTS["site-0"]
    reply = replies(method, state, {"site-0": train})["site-0"]
    assert reply.keys() == {"changes", "loss", "count"}
    assert reply["changes"].shape == (5,)
    for number, change in enumerate(reply["changes"] / len(train)):
        u = derive(int(state["seed"]), "direction", number).standard_normal(21, dtype=np.float32).astype(float)
        back = loss(w - 1e-3 * u, train)
        wanted = (loss(w + 1e-3 * u, train) - back) / 2 if centred else loss(w + 1e-3 * u, train) - loss(w, train)
        assert change == pytest.approx(wanted, rel=1e-5, abs=1e-9)
    assert float(reply["loss"]) / len(train) == pytest.approx(loss(w, train), rel=1e-6)


def check_estimate(method: BAFFLE) -> None:
    """What the server makes of the sums is the weighted mean of what the clients' own numbers give.

    And both are the gradient seen through the directions that the seed gives, (1/K) sum u u' g, as sigma tends to zero.
    """
    state = method.init_server(server(TASK))
    model, seed = take("model", state), int(state["seed"])
    answers = replies(method, state, CLIENTS)

    def combined(found: Any) -> np.ndarray:
        return flat(zeroth.combined(found, method.sigma, zeroth.agreed(seed), model, "lr", TASK))

    total = sum(answer["changes"] for answer in answers.values()) / SAMPLES
    each = [combined(answer["changes"] / int(answer["count"])) for answer in answers.values()]
    mean = np.average(each, axis=0, weights=[int(answer["count"]) for answer in answers.values()])
    np.testing.assert_allclose(combined(total), mean, rtol=1e-3, atol=1e-5)
    g = np.average(
        [slope(flat(model), t) for t in CLIENTS.values()], axis=0, weights=[len(t) for t in CLIENTS.values()]
    )
    u = np.stack([derive(seed, "direction", k).standard_normal(21, dtype=np.float32) for k in range(method.directions)])
    np.testing.assert_allclose(mean, u.T @ (u @ g) / method.directions, rtol=1e-2, atol=1e-3)


def test_the_servers_estimate_is_the_mean_of_the_clients() -> None:
    check_estimate(LOSSES)


def test_directions_of_each_clients_own_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authors' code draws them from a stream that nobody else has: nothing can be rebuilt from the numbers."""
    streams = iter(range(100))
    monkeypatch.setattr(zeroth, "agreed", lambda seed: zeroth.normal(derive(next(streams), "own")))
    with pytest.raises(AssertionError):
        check_estimate(LOSSES)


def test_the_sum_of_changes_does_not_depend_on_the_split() -> None:
    state = LOSSES.init_server(server(TASK))
    x, y = (np.concatenate([getattr(t, part) for t in CLIENTS.values()]) for part in ("inputs", "labels"))
    order = np.random.default_rng(0).permutation(len(y))
    others = {f"c{i}": fs.Samples(x[rows], y[rows]) for i, rows in enumerate(np.array_split(order, 3))}
    one, two = (
        sum(answer["changes"] for answer in replies(LOSSES, state, clients).values()) for clients in (CLIENTS, others)
    )
    np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-12)


def test_forward_and_centred_agree_where_the_loss_is_linear() -> None:
    slopes, here = torch.linspace(-1, 1, 6, dtype=torch.float64), [torch.zeros(6, dtype=torch.float64)]
    found = [zeroth.gaussian(9, 0.1, c, derive(0))(lambda: slopes @ here[0], here, [])[1][0] for c in (True, False)]
    torch.testing.assert_close(found[0], found[1])


def test_the_server_takes_a_step_of_adam_and_remembers() -> None:
    """Against torch's own, over three rounds, with the estimate written out."""
    method = BAFFLE(model="lr", exchange="losses", directions=12, clip=0.05, decay=0.1, lr=0.02)
    state = method.init_server(server(TASK))
    w = torch.tensor(flat(take("model", state)), dtype=torch.float32, requires_grad=True)
    optimiser = torch.optim.Adam([w], lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)
    seeds = set()
    for number in (1, 2, 3):
        answers = replies(method, state, CLIENTS)
        total = {name: sum(answer[name] for answer in answers.values()) for name in ("changes", "loss", "count")}
        found = total["changes"] / SAMPLES
        seed = int(state["seed"])
        u = np.stack([derive(seed, "direction", k).standard_normal(21, dtype=np.float32) for k in range(12)])
        g = u.T @ found / (12 * method.sigma)
        w.grad = torch.tensor(g * min(1.0, 0.05 / np.abs(g).max()), dtype=torch.float32)
        optimiser.step()
        state = method.aggregate(state, total, server(TASK, derive(number), number))
        seeds.add(seed)
        np.testing.assert_allclose(flat(take("model", state)), w.detach(), atol=1e-4)
    assert len(seeds) == 3  # new directions in every round


def test_it_learns_in_both_ways_without_backpropagation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.autograd, "grad")
    several: Any = ({"rounds": 6, "batch": 16}, {"rounds": 30, "exchange": "losses", "lr": 0.1})
    for settings in several:
        method = BAFFLE(model="lr", directions=20, **settings)
        result = fs.run(method, FEDERATION, workers=1, evaluate_every=100)
        assert (result.accuracy.mean or 0) > 0.9, settings


def test_a_reply_of_losses_is_small_and_a_network_of_ones_own_keeps_its_statistics() -> None:
    method = BAFFLE(model=OWN, exchange="losses", directions=4, rounds=2)
    first = take("model", method.init_server(server(TASK, derive(0, "server"))))
    result = fs.run(method, FEDERATION, workers=1)
    assert result.bytes_up < 6 * 2 * 400
    assert result.shared is not None
    for name in ("norm.running_mean", "norm.running_var"):
        assert result.shared.arrays[name].tobytes() == first[name].tobytes()
    assert result.shared.arrays["last.weight"].tobytes() != first["last.weight"].tobytes()


def test_pictures_through_convolutions_in_double_precision() -> None:
    x, y = images(20)
    task = fs.Task(fs.Classes(3), (16, 16))
    method = BAFFLE(model="lenet5", exchange="losses", directions=2)
    model = networks.initial("lenet5", task, derive(0))
    found, _ = zeroth.changes(method, model, site(task, fs.Samples(x, y)), zeroth.agreed(1), 2, 1e-4, True)
    scores = networks.scores("lenet5", model, x, task).astype(float)
    assert found == pytest.approx(float((np.log(np.exp(scores).sum(1)) - scores[np.arange(20), y]).mean()), rel=1e-5)
