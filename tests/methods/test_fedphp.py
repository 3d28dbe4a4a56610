"""FedPHP against its definition, written out, and against FedAvg."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays as named
from fedsolve import parameters
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.methods.fedphp import FedPHP
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, check_not_switched_off, distance

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import losses  # noqa: E402

FEDERATION = sample_federation()
TASK, TRAIN = FEDERATION.task, FEDERATION.clients["site-0"].train
FULL: dict[str, Any] = {"model": "mlp:8", "rounds": 10, "epochs": 1, "batch": 40, "lr": 0.1, "sgd_momentum": 0.0}


# --- what the inherited model teaches ---


def printed(here: Any, fixed: Any) -> float:
    """The discrepancy, pair by pair."""
    rows = np.concatenate([here, fixed])
    pairs = [(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    scale = np.mean([np.sum((a - b) ** 2) for a, b in pairs])

    def kernel(left: Any, right: Any) -> float:
        found = [
            sum(math.exp(-np.sum((a - b) ** 2) / (2.0**i * scale)) for i in (-2, -1, 0, 1, 2))
            for a in left
            for b in right
        ]
        return float(np.mean(found))

    return kernel(here, here) + kernel(fixed, fixed) - 2 * kernel(here, fixed)


def test_the_discrepancy_is_the_mean_of_kernels_over_pairs() -> None:
    rng = np.random.default_rng(0)
    for far in (0.0, 50.0):
        one, two = rng.normal(size=(7, 4)) + far, rng.normal(size=(7, 4)) + far + 0.5
        found = losses.discrepancy(torch.tensor(one), torch.tensor(two))
        assert float(found) == pytest.approx(printed(one, two), rel=1e-10)
    for rows in (torch.tensor(one), torch.ones(1, 4), torch.zeros(5, 4)):  # also without any distance
        here = rows.clone().requires_grad_()
        same = losses.discrepancy(here, rows)
        assert float(same.detach()) == pytest.approx(0.0, abs=1e-6)
        assert float(torch.autograd.grad(same, here)[0].abs().max()) < 1e-6


def outputs(weights: Any) -> tuple[Any, Any]:
    z = torch.relu(torch.tensor(TRAIN.inputs).float() @ weights["body.1.weight"].t() + weights["body.1.bias"])
    return z, z @ weights["head.weight"].t() + weights["head.bias"]


def pairwise(here: Any, fixed: Any) -> Any:
    """The discrepancy with distances as they are defined, for autograd."""
    rows = torch.cat([here, fixed])
    apart = (rows[:, None] - rows[None]).square().sum(2)
    scale = float(apart.detach().sum()) / (len(rows) * (len(rows) - 1))
    kernel = sum(torch.exp(-apart / (scale * width)) for width in (0.25, 0.5, 1.0, 2.0, 4.0))
    sign = torch.cat([torch.ones(len(here)), -torch.ones(len(fixed))]) / len(here)
    return sign @ kernel @ sign


def check_step(method: FedPHP) -> None:
    """One full-batch step on (1 - lam) CE + lam R, in which the inherited model is fixed."""
    state, other = (method.init_server(server(TASK, derive(seed))) for seed in (0, 1))
    before = take("model", other)
    message = method.message(state, "", "update")
    private, reply = method.update(before, message, site(TASK, TRAIN, derive(2), number=4))
    start = {name: torch.tensor(array) for name, array in take("model", state).items()}
    moving = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    z, scores = outputs(moving)
    own_z, own_scores = outputs({name: torch.tensor(array) for name, array in before.items()})
    logs = torch.log_softmax(scores, 1)
    entropy = -logs[torch.arange(40), torch.tensor(TRAIN.labels)].mean()
    taught = pairwise(z, own_z)
    if method.match == "scores":
        shares = torch.softmax(own_scores / 4, 1)
        taught = (shares * (torch.log(shares) - logs)).sum(1).mean()
    loss = (1 - method.lam) * entropy + method.lam * taught
    slopes = torch.autograd.grad(loss, list(moving.values()))
    assert float(reply["loss"]) / 40 == pytest.approx(float(loss.detach()), rel=1e-4)
    for (name, tensor), slope in zip(start.items(), slopes, strict=True):
        wanted = (tensor - method.lr * slope).numpy()
        np.testing.assert_allclose(reply[f"model/{name}"] / 40, wanted, atol=1e-5)
        # Three of ten rounds are over.
        np.testing.assert_allclose(private[name], 0.27 * before[name] + 0.73 * wanted, atol=1e-5)


@pytest.mark.parametrize("match", ["features", "scores"])
def test_a_client_does_what_the_paper_says(match: str) -> None:
    check_step(FedPHP(**FULL, lam=0.4, match=match))


def fixed_widths(here: Any, fixed: Any) -> Any:
    """A public implementation: kernels of widths 10 to 50 whatever the features are."""
    rows = torch.cat([here, fixed])
    apart = (rows[:, None] - rows[None]).square().sum(2)
    kernel = sum(torch.exp(-0.5 * apart / width) for width in (10.0, 20.0, 30.0, 40.0, 50.0))
    sign = torch.cat([torch.ones(len(here)), -torch.ones(len(fixed))]) / len(here)
    return sign @ kernel @ sign


def test_fixed_widths_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "discrepancy", fixed_widths)
    with pytest.raises(AssertionError):
        check_step(FedPHP(**FULL, lam=0.4))


def test_no_setting_takes_the_labels_away() -> None:
    """A public implementation has lam = 1 by default, which leaves nothing of the cross-entropy."""
    with pytest.raises(fs.ParameterError, match="'lam'"):
        FedPHP(lam=1.0)
    assert FedPHP().lam < 0.5


# --- the inherited model ---


def check_inherits(method: FedPHP) -> None:
    """Everybody takes part: a client's model after each round, from what it replied."""
    state = method.init_server(server(TASK))
    private: Any = {}
    wanted: dict[str, Any] = {}
    for number in range(1, method.rounds + 1):
        here = site(TASK, TRAIN, derive(number), number=number)
        private, reply = method.update(private, method.message(state, "", "update"), here)
        trained = {name: array / np.float32(len(TRAIN)) for name, array in take("model", reply).items()}
        m = 0.9 * (number - 1) / method.rounds
        wanted = {name: m * wanted.get(name, 0.0) + (1 - m) * array for name, array in trained.items()}
        state = method.aggregate(state, reply, server(TASK))
    found = method.personalize(private, method.message(state, "", "personalize"), site(TASK, TRAIN)).model
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)
    assert max(float(np.abs(wanted[name] - array).max()) for name, array in trained.items()) > 1e-3


def test_the_personal_model_is_an_average_that_grows_slower() -> None:
    check_inherits(FedPHP(**{**SMALL, "rounds": 5}))


class EvaluatesTheTrainedModel(FedPHP):
    """A public implementation: the inherited model teaches, and another one is tested."""

    def inherited(self, before: Any, trained: Any, number: int) -> Any:
        return trained


def test_evaluating_the_trained_model_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_inherits(EvaluatesTheTrainedModel(**{**SMALL, "rounds": 5}))


def test_a_client_that_begins_late_inherits_its_first_trained_model() -> None:
    method = FedPHP(**SMALL)
    message = method.message(method.init_server(server(TASK)), "", "update")
    for number, kind in ((1, method), (3, method), (3, FedPHP(**SMALL, mu=0.0))):
        private, reply = kind.update({}, message, site(TASK, TRAIN, number=number))
        for name, array in take("model", reply).items():
            np.testing.assert_allclose(private[name], array / len(TRAIN), atol=1e-6)


def test_without_a_share_the_last_trained_model_is_inherited() -> None:
    """Then a client that is alone has the global model, which is its last trained one."""
    alone = sample_federation(sizes=(40,))
    result = fs.run(FedPHP(**SMALL, mu=0.0), alone, workers=1)
    assert result.shared is not None
    assert distance(dict(result.models["site-0"].arrays), dict(result.shared.arrays)) < 1e-6
    other = fs.run(FedPHP(**SMALL), alone, workers=1)
    assert not named.same(other.models["site-0"].arrays, result.models["site-0"].arrays)


# --- beside FedAvg ---


@dataclass(frozen=True)
class SwitchedOff(FedPHP):
    """Nothing is taught."""

    lam: float = parameters.number(0.0, "share of the teaching", low=0, high=0.99)


@dataclass(frozen=True)
class InheritsNothing(FedPHP):
    """The default of a public implementation."""

    mu: float = parameters.number(0.0, "share of the inherited model", low=0, high=1)


def test_no_default_switches_it_off() -> None:
    check_not_switched_off(FedPHP)
    with pytest.raises(AssertionError):
        check_not_switched_off(SwitchedOff)
    with pytest.raises(AssertionError):
        check_inherits(InheritsNothing(**{**SMALL, "rounds": 5}))
