"""FedProto against its definition written out, and training alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import parameters
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.families.gradient import prototypes
from fedsolve.methods.fedproto import FedProto
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import losses, networks  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
CLIENT = FEDERATION.clients["site-0"].train


def features(model: Any, inputs: np.ndarray) -> np.ndarray:
    """What the head of an mlp:8 sees."""
    return np.asarray(np.maximum(inputs @ model["body.1.weight"].T.astype(float) + model["body.1.bias"], 0.0))


def sent(known: tuple[bool, ...] = (True, True, True)) -> dict[str, np.ndarray]:
    """A message with means that are there, zeros where they are not."""
    means = np.random.default_rng(4).normal(size=(3, 8)).astype(np.float32) * np.array(known)[:, None]
    return {"seed": np.array(7), "means": means.astype(np.float32), "known": np.array(known)}


# --- what a client minimises, and tells ---


def check_step() -> None:
    """One full batch, by autograd through the network written out; class 1 has no mean, and its samples no pull."""
    method = FedProto(**{**SMALL, "batch": 100, "epochs": 1}, lam=3.0)
    message, own = sent((True, False, True)), networks.initial("mlp:8", TASK, derive(1))
    after, reply = method.update(own, message, site(TASK, CLIENT, derive(2)))
    x, y = torch.tensor(CLIENT.inputs, dtype=torch.float32), torch.tensor(CLIENT.labels)
    moving = {name: torch.tensor(array).requires_grad_() for name, array in own.items()}
    z = torch.relu(x @ moving["body.1.weight"].t() + moving["body.1.bias"])
    scores = z @ moving["head.weight"].t() + moving["head.bias"]
    entropy = -torch.log_softmax(scores, 1)[torch.arange(len(y)), y].mean()
    apart = sum(((z[i] - torch.tensor(message["means"][c])) ** 2).sum() for i, c in enumerate(CLIENT.labels) if c != 1)
    loss = entropy + 3.0 * apart / (len(y) * 8)
    slopes = torch.autograd.grad(loss, list(moving.values()))
    for (name, array), slope in zip(own.items(), slopes, strict=True):
        np.testing.assert_allclose(after[name], array - 0.05 * slope.numpy(), rtol=1e-3, atol=1e-5)
    assert float(reply["loss"]) / len(y) == pytest.approx(float(loss.detach()), rel=1e-5)


def test_a_client_descends_on_cross_entropy_and_the_distance_to_the_means() -> None:
    assert (CLIENT.labels == 1).any()
    check_step()


@pytest.mark.parametrize(
    "defect",
    [
        lambda here, aims, aimed: (here - aims).square().mean(),  # classes that nobody has told of pull to zero
        lambda here, aims, aimed: (here - aims)[aimed].square().mean(),  # the mean is over fewer samples
        lambda here, aims, aimed: (here - aims).mul(aimed[:, None]).square().sum(1).mean(),  # d times as strong
        lambda here, aims, aimed: torch.zeros(()),
    ],
)
def test_another_pull_is_caught(defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "off", defect)
    with pytest.raises(AssertionError):
        check_step()


def check_means(by_samples: bool) -> None:
    """What the server makes of replies, from the features of each client's trained network, sample by sample."""
    method = FedProto(**SMALL, by_samples=by_samples)
    clients = [FEDERATION.clients[f"site-{number}"].train for number in (0, 1, 5)]
    state = {**prototypes.unknown("mlp:8", TASK), "seed": np.array(7)}
    total: dict[str, Any] = {}
    rows: dict[int, list[np.ndarray]] = {1: [], 2: []}
    for train in clients:
        few = fs.Samples(train.inputs[train.labels != 0], train.labels[train.labels != 0])
        after, reply = method.update({}, method.message(state, "", "update"), site(TASK, few))
        total = {name: total.get(name, 0) + array for name, array in reply.items()}
        z = features(after, few.inputs)
        for c in (1, 2):
            own = z[few.labels == c]
            rows[c] += list(own) if by_samples or not len(own) else [own.mean(0)]
    before = {**state, "means": np.full((3, 8), 5.0, np.float32), "known": np.array([True, False, False])}
    found = method.aggregate(before, total, server(TASK))
    for c in (1, 2):
        np.testing.assert_allclose(found["means"][c], np.mean(rows[c], axis=0), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found["means"][0], 5.0)  # nobody has it this time
    assert found["known"].tolist() == [True, True, True]


@pytest.mark.parametrize("by_samples", [True, False])
def test_global_means_are_those_of_the_trained_networks(by_samples: bool) -> None:
    check_means(by_samples)


def divided_once_more(state: Any, sums: Any, counts: Any) -> Any:
    """The weights of the paper as they are printed: a mean, over the number of clients."""
    return {"means": (sums / np.maximum(counts, 1)[:, None] / 3).astype(np.float32), "known": counts > 0}


def test_means_as_printed_or_of_the_network_before_training_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as planted, pytest.raises(AssertionError):
        planted.setattr(prototypes, "renewed", divided_once_more)
        check_means(True)
    found = networks.class_means

    def lagging(model: str, arrays: Any, samples: Any, task: Any) -> Any:
        return found(model, prototypes.first(model, {"seed": np.array(7)}, task), samples, task)

    with monkeypatch.context() as planted, pytest.raises(AssertionError):
        planted.setattr(networks, "class_means", lagging)
        check_means(True)


# --- what is evaluated ---


def shares(result: fs.Result) -> dict[str, float]:
    """How often the nearest global mean of a class that a client has is right, client by client."""
    found = {}
    for name, client in FEDERATION.clients.items():
        z, own = features(result.models[name].arrays, client.test.inputs), np.unique(client.train.labels)
        apart = ((z[:, None] - result.state["means"][None, own]) ** 2).sum(2)
        found[name] = float((own[apart.argmin(1)] == client.test.labels).mean())
    return found


def check_shares(accuracies: Mapping[str, float | None], result: fs.Result) -> None:
    assert accuracies == pytest.approx(shares(result))


def test_the_nearest_mean_of_the_clients_own_classes_decides_and_clients_are_counted_apart() -> None:
    result = fs.run(FedProto(**SMALL), FEDERATION, workers=1, evaluate_every=100)
    found = {name: client.accuracy for name, client in result.clients.items()}
    assert len(set(found.values())) > 1
    check_shares(found, result)
    # The authors' code goes on counting from one client to the next.
    rights = np.cumsum([share or 0.0 for share in found.values()]) / np.arange(1, len(found) + 1)
    with pytest.raises(AssertionError):
        check_shares(dict(zip(found, rights.tolist(), strict=True)), result)


def test_a_prediction_depends_on_no_other_row_and_never_is_a_class_that_the_client_lacks() -> None:
    method, one = FedProto(**SMALL), FEDERATION.clients["site-1"].train
    model = method.personalize({}, sent(), site(TASK, one)).model
    scores = method.predict(model, CLIENT.inputs, TASK)
    assert set(scores.argmax(1)) == set(one.labels.tolist()) == {int(one.labels[0])}
    for row in (0, 5):
        np.testing.assert_allclose(method.predict(model, CLIENT.inputs[row : row + 1], TASK)[0], scores[row], rtol=1e-5)


def test_before_any_means_the_head_decides() -> None:
    method = FedProto(**SMALL)
    state = method.init_server(server(TASK))
    models = [
        method.personalize({}, method.message(state, name, "personalize"), site(TASK, client.train)).model
        for name, client in FEDERATION.clients.items()
    ]
    for model in models:  # also a client that comes late starts from the network of all
        assert all(model[name].tobytes() == models[0][name].tobytes() for name in model if "nearest" not in name)
    own = {name: array for name, array in models[0].items() if "nearest" not in name}
    scores = method.predict(models[0], CLIENT.inputs, TASK)
    np.testing.assert_array_equal(scores, networks.scores("mlp:8", own, CLIENT.inputs, TASK))


# --- defaults, and what travels ---


def check_not_switched_off(kind: type[FedProto]) -> None:
    runs = [
        fs.run(each, FEDERATION, workers=1, evaluate_every=100) for each in (kind(**SMALL), FedProto(**SMALL, lam=0))
    ]
    for name in FEDERATION.clients:
        one, alone = (run.models[name].arrays["body.1.weight"] for run in runs)
        assert np.abs(one - alone).max() > 1e-4


@dataclass(frozen=True)
class SwitchedOff(FedProto):
    """Nothing pulls."""

    lam: float = parameters.number(0.0, "strength of the pull", low=0)


def test_no_default_switches_it_off() -> None:
    check_not_switched_off(FedProto)
    with pytest.raises(AssertionError):
        check_not_switched_off(SwitchedOff)


def test_class_means_travel_and_no_network() -> None:
    method = FedProto(**{**SMALL, "model": "mlp:64,8"})
    state = method.init_server(server(TASK))
    _, reply = method.update({}, method.message(state, "", "update"), site(TASK, CLIENT))
    assert {name: array.size for name, array in reply.items()} == {"means": 24, "votes": 3, "loss": 1, "count": 1}
    assert not take("model", method.message(state, "", "update"))
