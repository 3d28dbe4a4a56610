"""MOON against its definition, a plain torch loop, and FedAvg."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import parameters
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.methods.moon import MOON
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, check_not_switched_off, distance, shared

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import losses  # noqa: E402


def printed(here: Any, near: Any, far: Any, tau: float) -> float:
    """(3) as it is printed, sample by sample."""

    def cos(a: Any, b: Any) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    found = []
    for z, g, p in zip(here, near, far, strict=True):
        one, two = math.exp(cos(z, g) / tau), math.exp(cos(z, p) / tau)
        found.append(-math.log(one / (one + two)))
    return float(np.mean(found))


def test_the_contrast_is_that_of_the_paper() -> None:
    z, g, p = np.random.default_rng(0).normal(size=(3, 7, 5))
    for tau in (0.5, 2.0):
        found = losses.contrast(torch.tensor(z), torch.tensor(g), torch.tensor(p), tau)
        assert float(found) == pytest.approx(printed(z, g, p, tau), rel=1e-12)
    same = losses.contrast(torch.tensor(z), torch.tensor(g), torch.tensor(g), 0.5)
    assert float(same) == pytest.approx(math.log(2))


def test_a_round_descends_on_cross_entropy_and_the_contrast() -> None:
    """One full-batch step, with the gradient by autograd through networks written out."""
    federation = sample_federation(sizes=(30,))
    train = federation.clients["site-0"].train
    settings = {**SMALL, "batch": 30, "epochs": 1, "mu": 3.0}
    method = MOON(**settings)
    state, last = (method.init_server(server(federation.task, derive(seed))) for seed in (0, 1))
    private, message = take("model", last), method.message(state, "site-0", "update")
    _, reply = method.update(private, message, site(federation.task, train, derive(2)))

    x, y = torch.tensor(train.inputs, dtype=torch.float32), torch.tensor(train.labels)
    start = {name: torch.tensor(array) for name, array in take("model", state).items()}

    def hidden(weights: Any) -> Any:
        return torch.relu(x @ weights["body.1.weight"].t() + weights["body.1.bias"])

    moving = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    z = hidden(moving)
    g, p = hidden(start), hidden({name: torch.tensor(array) for name, array in private.items()})
    near, far = (torch.exp(torch.cosine_similarity(z, other) / 0.5) for other in (g, p))
    scores = z @ moving["head.weight"].t() + moving["head.bias"]
    entropy = -torch.log_softmax(scores, 1)[torch.arange(30), y].mean()
    loss = entropy - 3.0 * torch.log(near / (near + far)).mean()
    slopes = torch.autograd.grad(loss, list(moving.values()))
    for (name, tensor), slope in zip(start.items(), slopes, strict=True):
        trained = reply[f"model/{name}"] / 30
        np.testing.assert_allclose(trained, tensor - settings["lr"] * slope, rtol=1e-3, atol=1e-5)
    assert float(reply["loss"]) / 30 == pytest.approx(float(loss.detach()), rel=1e-5)


def test_a_first_round_has_no_last_model_and_is_fedavg() -> None:
    one, two = ({**SMALL, "rounds": rounds} for rounds in (1, 2))
    assert distance(shared(MOON(**one)), shared(fs.FedAvg(**one))) == 0
    assert distance(shared(MOON(**two)), shared(fs.FedAvg(**two))) > 1e-4


def test_without_a_body_the_contrast_is_a_constant() -> None:
    settings = {**SMALL, "model": "lr"}
    assert distance(shared(MOON(**settings)), shared(fs.FedAvg(**settings))) < 1e-6


@dataclass(frozen=True)
class SwitchedOff(MOON):
    """The default of a public implementation."""

    mu: float = parameters.number(0.0, "strength of the contrast", low=0)


def test_no_default_switches_it_off() -> None:
    check_not_switched_off(MOON)
    with pytest.raises(AssertionError):
        check_not_switched_off(SwitchedOff)
