"""FedDBE against its definition, written out batch by batch, and against FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import parameters
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.methods.feddbe import BIAS, FedDBE
from fedsolve.rng import derive
from fedsolve.runtime.client import Memory, Request, handle
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, check_not_switched_off, distance, shared

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import losses, networks  # noqa: E402

FEDERATION = sample_federation()
TASK, TRAIN = FEDERATION.task, FEDERATION.clients["site-0"].train
SETTINGS: dict[str, Any] = {"model": "mlp:8", "epochs": 2, "batch": 10, "lr": 0.05, "sgd_momentum": 0.0}
CENTRE, FIRST = (np.random.default_rng(seed).normal(size=8).astype(np.float32) for seed in (0, 1))


NEAR_MEAN = losses.near_mean


def hidden(weights: Any, x: Any) -> Any:
    return torch.relu(x @ weights["body.1.weight"].t() + weights["body.1.bias"])


def scored(weights: Any, z: Any) -> Any:
    return z @ weights["head.weight"].t() + weights["head.bias"]


def written_out(state: Any, kappa: float, mu: float) -> dict[str, Any]:
    """A client's round: network and bias after two passes in batches of ten."""
    rng, x, y = derive(2), torch.tensor(TRAIN.inputs, dtype=torch.float32), torch.tensor(TRAIN.labels)
    rng.integers(2**63)  # the seed of dropout
    here = {name: torch.tensor(array) for name, array in {**take("model", state), "b": FIRST}.items()}
    mean = torch.zeros(8)
    for _ in range(2):
        order = torch.tensor(rng.permutation(40))
        for rows in order.reshape(4, 10):
            here = {name: tensor.detach().requires_grad_() for name, tensor in here.items()}
            z = hidden(here, x[rows])
            chosen = torch.log_softmax(scored(here, z + here["b"]), 1)[torch.arange(10), y[rows]]
            mean = (1 - mu) * mean.detach() + mu * z.mean(0)
            loss = -chosen.mean() + kappa * (0.5 * (mean - torch.tensor(CENTRE)) ** 2).mean()
            slopes = torch.autograd.grad(loss, list(here.values()))
            here = {name: tensor - 0.05 * g for (name, tensor), g in zip(here.items(), slopes, strict=True)}
    return {name: tensor.detach().numpy() for name, tensor in here.items()}


def check_round(method: FedDBE) -> None:
    state = {**method.init_server(server(TASK)), "centre": CENTRE}
    private, reply = method.update({BIAS: FIRST}, method.message(state, "", "update"), site(TASK, TRAIN, derive(2)))
    wanted = written_out(state, method.kappa, method.mu)
    np.testing.assert_allclose(private[BIAS], wanted.pop("b"), atol=2e-5)
    for name, array in take("model", reply).items():
        np.testing.assert_allclose(array / len(TRAIN), wanted[name], atol=2e-5)
    assert BIAS not in reply
    assert "features" not in reply  # they were collected


@pytest.mark.parametrize(("kappa", "mu"), [(50.0, 1.0), (5.0, 0.3)])
def test_a_client_does_what_the_paper_says(kappa: float, mu: float) -> None:
    check_round(FedDBE(**SETTINGS, kappa=kappa, mu=mu))


def forgetful(centre: Any, share: float) -> Any:
    """The running mean starts anew in every batch."""
    return lambda batch: NEAR_MEAN(centre, share)(batch)


def unshared(centre: Any, share: float) -> Any:
    """A sum over features in the place of their mean."""
    term = NEAR_MEAN(centre, share)
    return lambda batch: term(batch) * len(centre)


@pytest.mark.parametrize("defect", [forgetful, unshared])
def test_other_pulls_are_caught(defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "near_mean", defect)
    with pytest.raises(AssertionError):
        check_round(FedDBE(**SETTINGS, kappa=5.0, mu=0.3))


# --- the mean feature ---


def check_centre(method: FedDBE) -> None:
    """Two clients: the mean over all their samples, under the network that each has trained, and it stays."""
    state, total, count = method.init_server(server(TASK)), np.zeros(8), 0
    replies: dict[str, Any] = {}
    for name in ("site-0", "site-2"):
        train = FEDERATION.clients[name].train
        _, reply = method.update({}, method.message(state, name, "update"), site(TASK, train, derive(3)))
        model = {key: torch.tensor(array / len(train)) for key, array in take("model", reply).items()}
        total += hidden(model, torch.tensor(train.inputs, dtype=torch.float32)).double().sum(0).numpy()
        count += len(train)
        replies = {key: replies.get(key, 0) + array for key, array in reply.items()}
    state = method.aggregate(state, replies, server(TASK))
    np.testing.assert_allclose(state["centre"], total / count, rtol=1e-5)
    message = method.message(state, "", "update")
    assert message["centre"] is state["centre"]
    _, reply = method.update({}, message, site(TASK, TRAIN))
    assert method.aggregate(state, reply, server(TASK))["centre"] is state["centre"]


def test_the_mean_feature_is_that_of_all_samples_and_is_collected_once() -> None:
    check_centre(FedDBE(**SETTINGS))


class OfTheLastBatch(FedDBE):
    """The authors' code at mu = 1: a client's mean is that of whichever samples came last."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        own, reply = super().update(private, message, site)
        model = {name: array / len(site.train) for name, array in take("model", reply).items()}
        seen = networks.features(self.model, model, site.train.inputs[-self.batch :], site.task)
        return own, {**reply, "features": seen.mean(0, dtype=np.float64) * len(site.train)}


def test_the_mean_of_a_last_batch_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_centre(OfTheLastBatch(**SETTINGS))


# --- what is evaluated ---


def test_the_head_sees_the_bias() -> None:
    method = FedDBE(**SETTINGS)
    state = method.init_server(server(TASK))
    personal = method.personalize({BIAS: FIRST}, method.message(state, "", "personalize"), site(TASK, TRAIN)).model
    weights = {name: torch.tensor(array) for name, array in take("model", state).items()}
    z = hidden(weights, torch.tensor(TRAIN.inputs, dtype=torch.float32))
    np.testing.assert_allclose(
        method.predict(personal, TRAIN.inputs, TASK), scored(weights, z + torch.tensor(FIRST)), atol=1e-5
    )
    plain = method.predict(take("model", state), TRAIN.inputs, TASK)
    np.testing.assert_allclose(plain, scored(weights, z), atol=1e-5)
    with pytest.raises(fs.DataError, match=r"bias must have shape \(8,\), one number per feature; got \(1,\)"):
        method.predict({**personal, BIAS: FIRST[:1]}, TRAIN.inputs, TASK)


def test_the_global_network_is_evaluated_without_the_bias() -> None:
    """Both models have the same arrays but for the bias, and figures of their own."""
    method, client = FedDBE(**SETTINGS), FEDERATION.clients["site-0"]
    message = method.message(method.init_server(server(TASK)), "", "personalize")
    bias = 30.0 * FIRST
    request = Request("evaluate", 1, 0, TASK.described, message)
    seen: list[bool] = []

    def assess(method: Any, model: Any, test: Any, task: Any) -> Any:
        seen.append(BIAS in model)
        return {"right": np.array(0)}

    handle(method, TASK, client, Memory({BIAS: bias}), request, assess)
    assert seen == [True, False]


# --- beside FedAvg ---


def test_without_a_bias_a_first_round_is_fedavg() -> None:
    one, two = ({**SMALL, "rounds": rounds} for rounds in (1, 2))
    assert distance(shared(FedDBE(**one, bias=False)), shared(fs.FedAvg(**one))) == 0
    assert distance(shared(FedDBE(**two, bias=False)), shared(fs.FedAvg(**two))) > 1e-4


@dataclass(frozen=True)
class SwitchedOff(FedDBE):
    """The default of a public implementation."""

    kappa: float = parameters.number(0.0, "strength of the pull", low=0)


def check_pulls(kind: type[FedDBE]) -> None:
    """The pull of the defaults is no decoration: it makes a difference without the bias, too."""
    check_not_switched_off(kind)
    assert distance(shared(kind(**SMALL, bias=False)), shared(fs.FedAvg(**SMALL))) > 1e-4


def test_no_default_switches_it_off() -> None:
    check_pulls(FedDBE)
    with pytest.raises(AssertionError):
        check_pulls(SwitchedOff)
