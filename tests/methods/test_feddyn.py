"""FedDyn against its definition, and on quadratics, where the optimum is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take, under
from fedsolve.checks import sample_federation
from fedsolve.methods.feddyn import FedDyn
from fedsolve.rng import derive
from fedsolve.runtime.drive import drive
from fedsolve.runtime.inprocess import InProcess
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import hooks, training  # noqa: E402

FEDERATION = sample_federation()


# --- quadratics: local problems are solved exactly, everything else is the methods' own ---

TASK = fs.Task(fs.Classes(2), (3,))
SIZES = (4, 1, 7)
CURVES, CENTRES = np.random.default_rng(0).uniform(0.3, 2.0, (3, 8)), np.random.default_rng(1).normal(size=(3, 8))


def solved(settings: Any, start: Any, here: Any, *, hook: Any = None, **_: Any) -> tuple[dict[str, Any], float]:
    """The minimum of sum_i a_i (v_i - c_i)^2 / 2 plus what the hook adds, whose gradient is linear in v."""
    k = SIZES.index(len(here.train))
    ends = []
    for at in (0.0, 1.0):
        gradients = [torch.zeros(2, 3), torch.zeros(2)]
        if hook:
            hook([torch.full((2, 3), at), torch.full((2,), at)], gradients)
        ends.append(np.concatenate([part.numpy().ravel() for part in gradients]).astype(float))
    slope, offset = ends[1] - ends[0], ends[0]
    v = (CURVES[k] * CENTRES[k] - offset) / (CURVES[k] + slope)
    return {"head.weight": v[:6].reshape(2, 3).astype(np.float32), "head.bias": v[6:].astype(np.float32)}, 1.0


def arrive(method: fs.Method, rounds: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Where the server's model arrives."""
    monkeypatch.setattr(training, "train", solved)
    samples = [fs.Samples(np.zeros((size, 3)), np.zeros(size, int)) for size in SIZES]
    state, private = method.init_server(server(TASK)), list[Any]([{} for _ in SIZES])
    for number in range(rounds):
        replies: dict[str, Any] = {}
        for k, train in enumerate(samples):
            here = site(TASK, train, counted=number > 0, number=number + 1)
            private[k], reply = method.update(private[k], method.message(state, f"{k}", "update"), here)
            replies = {name: replies.get(name, 0) + array for name, array in reply.items()}
        state = method.aggregate(state, replies, server(TASK))
    model = take("model", state)
    return np.concatenate([model["head.weight"].ravel(), model["head.bias"]])


@pytest.mark.parametrize("alpha", [1.0, 0.1])
@pytest.mark.parametrize("by_samples", [True, False])
def test_on_quadratics_it_reaches_the_minimum_of_the_mean_loss(
    alpha: float, by_samples: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.array(SIZES if by_samples else (1, 1, 1), float)[:, None]
    optimum = (weights * CURVES * CENTRES).sum(0) / (weights * CURVES).sum(0)
    found = arrive(FedDyn(model="lr", alpha=alpha, by_samples=by_samples, clip=0), 150, monkeypatch)
    np.testing.assert_allclose(found, optimum, atol=2e-4)


def test_on_quadratics_fedavg_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.array(SIZES, float)[:, None]
    optimum = (sizes * CURVES * CENTRES).sum(0) / (sizes * CURVES).sum(0)
    found = arrive(fs.FedAvg(model="lr"), 20, monkeypatch)
    np.testing.assert_allclose(found, (sizes * CENTRES).sum(0) / sizes.sum(), atol=1e-5)
    assert np.abs(found - optimum).max() > 0.05


# --- what a client does, and what the server knows ---


def check_step(method: FedDyn) -> None:
    """Two full-batch steps from a drift that is there, with the loss as it is printed and autograd for all of it."""
    train = FEDERATION.clients["site-0"].train
    state = method.init_server(server(FEDERATION.task))
    shared, rng = take("model", state), np.random.default_rng(3)
    drift = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in shared.items()}
    message = {**under("model", shared), "size": np.array(2.0 * len(train))}
    after, reply = method.update(drift, message, site(FEDERATION.task, train, counted=True))
    alpha = 2.0 * method.alpha  # half of the mean size
    x, y = torch.tensor(train.inputs, dtype=torch.float32), torch.tensor(train.labels)
    start = {name: torch.tensor(array) for name, array in shared.items()}
    g = {name: -alpha * torch.tensor(array) for name, array in drift.items()}
    v = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    for _ in range(2):
        scores = x @ v["head.weight"].t() + v["head.bias"]
        loss = -torch.log_softmax(scores, 1)[torch.arange(len(y)), y].mean()
        loss = loss - sum((g[name] * v[name]).sum() for name in v)
        loss = loss + alpha / 2 * sum(((v[name] - start[name]) ** 2).sum() for name in v)
        slopes = torch.autograd.grad(loss, list(v.values()))
        with torch.no_grad():
            for tensor, slope in zip(v.values(), slopes, strict=True):
                tensor -= method.lr * slope
    for name, tensor in v.items():
        np.testing.assert_allclose(reply[f"model/{name}"], tensor.detach(), rtol=1e-3, atol=1e-5)
        change = tensor.detach() - start[name]
        np.testing.assert_allclose(after[name], drift[name] + change.numpy(), rtol=1e-3, atol=1e-5)
    assert int(reply["new_clients"]) == int(reply["new_samples"]) == 0


STEP = FedDyn(model="lr", epochs=2, batch=1000, alpha=0.3, lr=0.1, clip=0)


def test_a_client_descends_on_the_loss_of_the_paper() -> None:
    check_step(STEP)


def unsquared(anchor: Any, strength: float, model: str, task: Any) -> Any:
    """The gradient of strength |v - anchor|, not of half its square: a public implementation's."""

    def hook(parameters: Any, gradients: Any) -> None:
        fixed = [torch.tensor(anchor[name]) for name in ("head.weight", "head.bias")]
        away = [p - f for p, f in zip(parameters, fixed, strict=True)]
        length = torch.sqrt(sum((part**2).sum() for part in away))
        for gradient, part in zip(gradients, away, strict=True):
            gradient.add_(part / length, alpha=strength)

    return hook


def test_a_norm_that_is_not_squared_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "towards", unsquared)
    with pytest.raises(AssertionError):
        check_step(STEP)


def test_the_first_step_is_twice_as_long_as_the_means_whatever_alpha_is() -> None:
    method = FedDyn(**{**SMALL, "rounds": 1})
    first = take("model", method.init_server(server(FEDERATION.task, derive(0, "server"))))
    state = fs.run(method, FEDERATION, workers=1).state
    for name, array in first.items():
        np.testing.assert_allclose(state[f"model/{name}"], 2 * state[f"mean/{name}"] - array, atol=1e-6)
    means = [
        take("model", method.update({}, {**under("model", first), "size": np.array(0.0)},
                                    site(FEDERATION.task, client.train, derive(0, "update", name, 1)))[1])
        for name, client in FEDERATION.clients.items()
    ]  # fmt: skip
    for name in first:  # every client has one vote, however many samples it has
        np.testing.assert_allclose(state[f"mean/{name}"], np.mean([m[name] for m in means], axis=0), atol=1e-6)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_servers_drift_is_the_sum_of_the_private_ones(participation: float) -> None:
    method = FedDyn(**{**SMALL, "rounds": 4})
    transport = InProcess(method, FEDERATION, workers=1)
    state = drive(method, FEDERATION.task, transport, participation=participation, evaluate_every=100).state
    drifts = [memory.settled(True).private for memory in transport.memory.values()]
    known = [drift for drift in drifts if drift]
    for name, total in take("drift", state).items():
        np.testing.assert_allclose(total, np.sum([drift[name] for drift in known], axis=0), atol=2e-5)
        rest = state[f"model/{name}"] - state[f"mean/{name}"]
        np.testing.assert_allclose(rest, total / len(known), atol=1e-6)
    asked = [
        FEDERATION.clients[name].train for name, memory in transport.memory.items() if memory.settled(True).private
    ]
    assert int(state["clients"]) == len(known)
    assert int(state["samples"]) == sum(len(train) for train in asked)


def test_either_model_can_be_evaluated() -> None:
    for evaluate, part in (("mean", "mean"), ("sent", "model")):
        result = fs.run(FedDyn(**SMALL, evaluate=evaluate), FEDERATION, workers=1, evaluate_every=100)
        assert result.shared is not None
        for name, array in result.shared.arrays.items():
            assert array.tobytes() == result.state[f"{part}/{name}"].tobytes()
