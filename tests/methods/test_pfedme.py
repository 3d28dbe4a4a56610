"""pFedMe and pFedZO against the algorithm written out, against FedProx, and against each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays as named
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.methods.pfedme import PFedMe
from fedsolve.methods.pfedzo import PFedZO
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, distance, shared

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import envelope, training, zeroth  # noqa: E402

FEDERATION = sample_federation()
TASK, TRAIN = FEDERATION.task, FEDERATION.clients["site-0"].train
METHODS = (PFedMe, PFedZO)


def flat(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(model["head.weight"]), np.ravel(model["head.bias"])]).astype(float)


def loss(w: np.ndarray) -> float:
    scores = TRAIN.inputs @ w[:18].reshape(3, 6).T + w[18:]
    return float((np.log(np.exp(scores).sum(1)) - scores[np.arange(len(TRAIN)), TRAIN.labels]).mean())


def slope(w: np.ndarray) -> np.ndarray:
    scores = TRAIN.inputs @ w[:18].reshape(3, 6).T + w[18:]
    rest = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(3)[TRAIN.labels]
    return np.concatenate([(rest.T @ TRAIN.inputs).ravel(), rest.sum(0)]) / len(TRAIN)


def estimated(rng: np.random.Generator, directions: int, mu: float) -> Any:
    """FedZO's estimate of the slope of F alone."""

    def at(w: np.ndarray) -> np.ndarray:
        g = np.zeros(21)
        for _ in range(directions):
            v = rng.standard_normal(21, dtype=np.float32).astype(float)
            v /= np.linalg.norm(v)
            g += 21 / (directions * mu) * (loss(w + mu * v) - loss(w)) * v
        return g

    return at


def check_round(method: PFedMe | PFedZO) -> None:
    """Algorithm 1 in NumPy, full batches: theta is kept, and evaluated; w_k is sent."""
    state = method.init_server(server(TASK))
    message = method.message(state, "", "update")
    private, reply = method.update({}, message, site(TASK, TRAIN, derive(1)))
    gradient: Any = slope
    if isinstance(method, PFedZO):
        gradient = estimated(derive(1).spawn(1)[0], method.directions, method.distance)
    theta = w = flat(take("model", state))
    for _ in range(method.epochs):  # one batch each
        for _ in range(method.inner):
            theta = theta - method.lr * (gradient(theta) + method.lam * (theta - w))
        w = w - method.eta * method.lam * (w - theta)
    np.testing.assert_allclose(flat(take("model", reply)) / len(TRAIN), w, atol=3e-4)
    personal = method.personalize(private, method.message(state, "", "personalize"), site(TASK, TRAIN)).model
    np.testing.assert_allclose(flat(personal), theta, atol=3e-4)
    assert np.abs(theta - w).max() > 3e-3  # the two can be told apart


FULL: dict[str, Any] = {"model": "lr", "batch": 100, "epochs": 3, "lam": 4.0, "eta": 0.05, "inner": 4, "lr": 0.05}
ROUNDS = [PFedMe(**FULL), PFedZO(**FULL, directions=5, distance=0.01)]


@pytest.mark.parametrize("method", ROUNDS, ids=lambda method: method.name)
def test_a_client_does_what_the_algorithm_says(method: PFedMe | PFedZO) -> None:
    check_round(method)


class EvaluatesTheCopy(PFedMe):
    """The authors' code, and a public one: what they keep as personal are the tensors that w_k is written to."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        _, reply = super().update(private, message, site)
        count = len(site.train)
        return {name: array / np.float32(count) for name, array in take("model", reply).items()}, reply


class EstimatesThePull(PFedZO):
    """The whole local loss is looked at along directions, the pull included."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        exact = zeroth.on_sphere(self.directions, self.distance, site.rng.spawn(1)[0])
        anchor = flat(take("model", message))

        def estimate(value: Any, parameters: Any, buffers: Any) -> Any:
            def whole() -> Any:
                away = torch.cat([part.reshape(-1) for part in parameters]) - torch.tensor(anchor)
                return value() + self.lam / 2 * (away**2).sum()

            return exact(whole, parameters, buffers)

        return envelope.follow(replace(self, lam=0.0), message, site, estimate)


@pytest.mark.parametrize("defect", [EvaluatesTheCopy(**FULL), EstimatesThePull(**FULL, directions=5, distance=0.01)])
def test_known_defects_are_caught(defect: PFedMe | PFedZO) -> None:
    with pytest.raises(AssertionError):
        check_round(defect)


def by_autograd(directions: int, distance: float, rng: np.random.Generator) -> Any:
    """An estimate that is exact."""

    def estimate(value: Any, parameters: Any, buffers: Any) -> Any:
        for tensor in parameters:
            tensor.requires_grad_(True)
        found = value()
        gradients = list(torch.autograd.grad(found, parameters))
        for tensor in parameters:
            tensor.requires_grad_(False)
        return found.detach(), gradients

    return estimate


def test_pfedzo_with_exact_gradients_is_pfedme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeroth, "on_sphere", by_autograd)
    one, two = (fs.run(kind(**SMALL), FEDERATION, workers=1, evaluate_every=100) for kind in METHODS)
    assert named.same(one.state, two.state)
    for name, model in one.models.items():
        assert named.same(model.arrays, two.models[name].arrays)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_copy_that_follows_all_the_way_after_one_batch_is_fedprox(momentum: float) -> None:
    """With eta lam = 1 and one batch per round, w_k is theta: FedProx(mu = lam) with `inner` full-batch epochs."""
    common: dict[str, Any] = {"model": "mlp:8", "rounds": 3, "batch": 1000, "lr": 0.05, "sgd_momentum": momentum}
    me = shared(PFedMe(**common, epochs=1, inner=4, lam=2.0, eta=0.5))
    prox = shared(fs.FedProx(**common, epochs=4, mu=2.0))
    assert distance(me, prox) < 1e-5
    assert distance(me, shared(fs.FedAvg(**common, epochs=4))) > 1e-3


def test_without_a_pull_the_personal_model_is_plain_sgd() -> None:
    method = PFedMe(**{**SMALL, "inner": 1}, lam=0.0)
    state = method.init_server(server(TASK))
    private, _ = method.update({}, method.message(state, "", "update"), site(TASK, TRAIN, derive(2)))
    plain, _ = training.train(method, take("model", state), site(TASK, TRAIN, derive(2)))
    assert named.same(private, plain)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_server_goes_beta_of_the_way_to_the_mean(beta: float) -> None:
    one = {**SMALL, "rounds": 1}
    first = take("model", PFedMe(**one).init_server(server(TASK, derive(0, "server"))))
    mean, found = shared(PFedMe(**one)), shared(PFedMe(**one, beta=beta))
    for name, array in first.items():
        np.testing.assert_allclose(found[name], array + beta * (mean[name] - array), atol=1e-6)


@pytest.mark.parametrize("kind", METHODS)
def test_a_global_model_that_would_overshoot_is_refused(kind: Any) -> None:
    with pytest.raises(fs.ParameterError, match=r"'eta' and 'lam' of PFed.. must .* got 0.1 \* 15; lower eta"):
        kind(eta=0.1)
    kind(eta=0.1, lam=10.0)
