"""Gradients without backpropagation: estimates against gradients, and FedZO against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.methods.fedzo import FedZO
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import networks, training, zeroth  # noqa: E402
from tests.methods.test_gradient import OWN  # noqa: E402

FEDERATION = sample_federation()


def row(tensors: Any) -> np.ndarray:
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors])


def quadratic(parameters: Any) -> Any:
    weights = torch.linspace(0.5, 2.0, 11, dtype=torch.float64)
    return (weights * torch.cat([part.reshape(-1) for part in parameters]) ** 2).sum()


def parameters() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, generator=generator, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]


# --- estimates ---


def test_along_every_axis_it_is_the_gradient() -> None:
    here = parameters()
    exact = 2 * np.linspace(0.5, 2.0, 11) * row(here)
    for centred in (True, False):
        value, found = zeroth._estimate(
            lambda: quadratic(here), here, [], lambda i, size: np.eye(size)[i], 11, 1e-5, centred, 11 / 1e-5
        )
        assert float(value) == float(quadratic(here))
        np.testing.assert_allclose(row(found), exact, atol=1e-4)
        error = np.abs(row(found) - exact).max()
        assert (error < 1e-9) == centred  # centred differences of a square are exact, forward ones not


@pytest.mark.parametrize(
    "estimate",
    [
        zeroth.on_sphere(4000, 1e-3, derive(0)),
        zeroth.gaussian(4000, 1e-3, False, derive(0)),
        zeroth.gaussian(4000, 1e-3, True, derive(0)),
    ],
)
def test_the_mean_over_directions_is_the_gradient_and_the_noise_what_theory_says(estimate: Any) -> None:
    here, slope = parameters(), torch.linspace(-1, 2, 11, dtype=torch.float64)
    _, found = estimate(lambda: slope @ torch.cat([part.reshape(-1) for part in here]), here, [])
    error = np.linalg.norm(row(found) - slope.numpy()) / np.linalg.norm(slope.numpy())
    assert 0.3 < error / np.sqrt(11 / 4000) < 2.0


def test_directions_of_the_sphere_have_unit_length_and_no_preferred_way() -> None:
    draw = zeroth.sphere(derive(0))
    drawn = np.stack([draw(i, 6) for i in range(3000)])
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(drawn.T @ drawn / 3000, np.eye(6) / 6, atol=0.02)


def in_place(value: Any, here: Any, buffers: Any) -> Any:
    """A public implementation's way: add and subtract, batch norm and dropout as they come."""
    rng, total = derive(0), [torch.zeros_like(tensor) for tensor in here]
    with torch.no_grad():
        start = value()
        for _ in range(20):
            parts = [torch.tensor(rng.standard_normal(tuple(t.shape), dtype=np.float32)) for t in here]
            torch._foreach_add_(here, parts, alpha=1e-3)
            torch._foreach_add_(total, parts, alpha=float(value() - start) / 20e-3)
            torch._foreach_sub_(here, parts, alpha=1e-3)
    return start, total


def check_leaves_no_trace(estimate: Any, model: str = OWN) -> None:
    """A pass without a step is a pass: of what was drawn and tried, nothing is left but the batches' statistics."""
    train = FEDERATION.clients["site-0"].train
    start = networks.initial(model, FEDERATION.task, derive(0))
    settings = FedZO(**{**SMALL, "model": model, "lr": 0.0, "sgd_momentum": 0.0})
    (found, loss), (plain, other) = (
        training.train(settings, start, site(FEDERATION.task, train, derive(1)), estimate=how)
        for how in (estimate, None)
    )
    for name in start:
        assert found[name].tobytes() == plain[name].tobytes(), name
    assert loss == other


@pytest.mark.parametrize(
    "estimate", [zeroth.on_sphere(20, 1e-3, derive(0)), zeroth.gaussian(20, 1e-3, True, derive(0))]
)
@pytest.mark.parametrize("model", [OWN, "mlp:8"])
def test_estimates_leave_no_trace(estimate: Any, model: str) -> None:
    check_leaves_no_trace(estimate, model)


def test_adding_and_subtracting_in_place_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_leaves_no_trace(in_place)


def check_same_dropout() -> None:
    """Along no direction at all, nothing changes; with dropout drawn anew it would."""
    start = networks.initial(OWN, FEDERATION.task, derive(0))
    seen: list[float] = []

    def still(value: Any, here: Any, buffers: Any) -> Any:
        found = zeroth._estimate(value, here, buffers, lambda _, size: np.ones(size), 5, 0.0, False, 1.0)
        seen.extend(float(part.abs().sum()) for part in found[1])
        with torch.no_grad():
            seen.append(-abs(float(value() - value())))  # what dropout alone would do
        return found

    settings = FedZO(**{**SMALL, "model": OWN})
    training.train(settings, start, site(FEDERATION.task, FEDERATION.clients["site-0"].train), estimate=still)
    assert max(seen) == 0
    assert min(seen) < -1e-3


def test_values_along_a_direction_have_the_same_dropout() -> None:
    check_same_dropout()


def test_another_dropout_for_every_direction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeroth, "redraw", lambda states: None)
    with pytest.raises(AssertionError):
        check_same_dropout()


# --- the method ---


def test_a_client_takes_the_steps_of_the_paper() -> None:
    """Two full-batch steps of softmax regression in NumPy, with the same directions."""
    train = FEDERATION.clients["site-0"].train
    method = FedZO(model="lr", batch=100, epochs=2, lr=0.01, directions=7, distance=0.01)
    state = method.init_server(server(FEDERATION.task))
    _, reply = method.update({}, method.message(state, "", "update"), site(FEDERATION.task, train, derive(1)))
    start = take("model", state)
    w = np.concatenate([start["head.weight"].ravel(), start["head.bias"]]).astype(float)

    def loss(w: np.ndarray) -> float:
        scores = train.inputs @ w[:18].reshape(3, 6).T + w[18:]
        return float((np.log(np.exp(scores).sum(1)) - scores[np.arange(len(train)), train.labels]).mean())

    aside = derive(1).spawn(1)[0]
    for _ in range(2):
        g = np.zeros(21)
        for _ in range(7):
            v = aside.standard_normal(21, dtype=np.float32).astype(float)
            v /= np.linalg.norm(v)
            g += 21 / (7 * 0.01) * (loss(w + 0.01 * v) - loss(w)) * v
        w -= 0.01 * g
    found = np.concatenate([reply["model/head.weight"].ravel(), reply["model/head.bias"]]) / len(train)
    np.testing.assert_allclose(found, w, atol=2e-4)
    assert np.abs(w - np.concatenate([start["head.weight"].ravel(), start["head.bias"]])).max() > 0.05


def test_it_learns_without_backpropagation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("no gradient is to be asked for")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    result = fs.run(FedZO(model="lr", rounds=10, batch=20, lr=0.02), FEDERATION, workers=1, evaluate_every=10)
    assert (result.accuracy.mean or 0) > 0.9
