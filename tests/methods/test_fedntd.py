"""FedNTD against its definition and FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import parameters
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.methods.fedntd import FedNTD
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, check_not_switched_off, distance, shared

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import losses  # noqa: E402


def printed(scores: Any, fixed: Any, labels: Any, tau: float) -> Any:
    """(3) with the other columns gathered, not masked."""
    rest = torch.tensor([[c for c in range(scores.shape[1]) if c != int(label)] for label in labels])
    ours, theirs = (torch.softmax(rows.gather(1, rest) / tau, 1) for rows in (scores, fixed))
    return tau**2 * (theirs * (torch.log(theirs) - torch.log(ours))).sum(1).mean()


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_the_term_is_that_of_the_paper_and_leaves_the_true_class_alone(tau: float) -> None:
    rng = np.random.default_rng(0)
    scores, fixed = torch.tensor(rng.normal(size=(2, 9, 4)) * 3)
    labels = torch.tensor(rng.integers(4, size=9))
    scores.requires_grad_()
    found, wanted = (term(scores, fixed, labels, tau) for term in (losses.not_true, printed))
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-10)
    slope, other = (torch.autograd.grad(value, scores)[0] for value in (found, wanted))
    torch.testing.assert_close(slope, other)
    assert not slope.gather(1, labels[:, None]).any()  # exactly: it says nothing of the true class
    assert float(losses.not_true(fixed, fixed, labels, tau)) == pytest.approx(0.0, abs=1e-12)


def test_with_two_classes_there_is_nothing_to_keep() -> None:
    scores, fixed = torch.randn(2, 5, 2)
    assert float(losses.not_true(scores, fixed, torch.tensor([0, 1, 1, 0, 1]), 1.0)) == 0.0


def test_a_round_descends_on_cross_entropy_and_the_term() -> None:
    """Two full-batch steps of softmax regression: in the first the term is at its minimum, and has no gradient."""
    federation = sample_federation(sizes=(30,))
    train = federation.clients["site-0"].train
    settings = {**SMALL, "model": "lr", "batch": 30, "epochs": 2, "sgd_momentum": 0.0, "lr": 0.1}
    method = FedNTD(**settings, beta=4.0, tau=2.0)
    state = method.init_server(server(federation.task))
    _, reply = method.update({}, method.message(state, "", "update"), site(federation.task, train, derive(2)))
    x, y = torch.tensor(train.inputs, dtype=torch.float32), torch.tensor(train.labels)
    start = {name: torch.tensor(array) for name, array in take("model", state).items()}
    moving = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    for _ in range(2):
        scores, fixed = (x @ weights["head.weight"].t() + weights["head.bias"] for weights in (moving, start))
        loss = -torch.log_softmax(scores, 1)[torch.arange(30), y].mean() + 4.0 * printed(scores, fixed, y, 2.0)
        slopes = torch.autograd.grad(loss, list(moving.values()))
        with torch.no_grad():
            for tensor, slope in zip(moving.values(), slopes, strict=True):
                tensor -= 0.1 * slope
    for name, tensor in moving.items():
        np.testing.assert_allclose(reply[f"model/{name}"] / 30, tensor.detach(), rtol=1e-3, atol=1e-5)
    plain = fs.FedAvg(**settings).update({}, state, site(federation.task, train, derive(2)))[1]
    assert distance(take("model", dict(plain)), take("model", dict(reply))) > 1e-2


@dataclass(frozen=True)
class SwitchedOff(FedNTD):
    """The default of a public implementation."""

    beta: float = parameters.number(0.0, "strength of the distillation", low=0)


def infinite(scores: Any, fixed: Any, labels: Any, tau: float) -> Any:
    """The true class filled with minus infinity: KL of it is NaN."""
    true = labels[:, None] == torch.arange(scores.shape[1])
    ours, theirs = (rows.masked_fill(true, -torch.inf) / tau for rows in (scores, fixed))
    return torch.nn.functional.kl_div(torch.log_softmax(ours, 1), torch.softmax(theirs, 1), reduction="batchmean")


def test_no_default_switches_it_off() -> None:
    check_not_switched_off(FedNTD)
    with pytest.raises(AssertionError):
        check_not_switched_off(SwitchedOff)


def test_minus_infinity_in_the_place_of_the_true_class_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "not_true", infinite)
    with pytest.raises(fs.DataError, match="diverged"):
        shared(FedNTD(**SMALL))
