"""FedPCL against its loss written out class by class, and the nearest of one's own prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import parameters
from fedsolve.arrays import take, under
from fedsolve.checks import sample_federation
from fedsolve.families.gradient import prototypes
from fedsolve.families.gradient.table import names_of
from fedsolve.methods.fedpcl import FedPCL
from fedsolve.rng import derive
from tests.contexts import server, site

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import networks  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
CLIENT = FEDERATION.clients["site-0"].train
ONE = FEDERATION.clients["site-1"].train  # of a single class
FEW: dict[str, Any] = {"model": "mlp:8", "rounds": 3, "epochs": 2, "batch": 16, "lr": 0.01}
KNOWN = np.array([[True, True, False], [True, False, False], [True, True, False]])  # nobody has class 2


def units(model: Any, inputs: np.ndarray) -> np.ndarray:
    """What the projection of an mlp:8 gives, rectified and at unit length."""
    z = np.maximum(inputs @ model["body.1.weight"].T.astype(float) + model["body.1.bias"], 0.0)
    return np.asarray(z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12))


def sets(known: np.ndarray = KNOWN) -> np.ndarray:
    """Prototypes of as many clients as `known` has rows, zeros where they lack a class."""
    found = np.random.default_rng(8).random((*known.shape, 8)) * known[:, :, None]
    return np.asarray(found / 2, np.float32)


def message(known: np.ndarray = KNOWN, means: np.ndarray | None = None) -> dict[str, np.ndarray]:
    given = sets(known) if means is None else means
    return {"seed": np.array(5), "means": given.reshape(len(known), -1), "known": known}


def written_out(model: Any, train: fs.Samples, known: np.ndarray, means: np.ndarray, tau: float) -> float:
    """The loss, sample by sample and client by client, over classes that somebody has."""
    there = [c for c in range(3) if known[:, c].any()]
    average = {c: np.mean([means[j, c] for j in range(len(known)) if known[j, c]], axis=0) for c in there}

    def cost(u: np.ndarray, y: int, own: dict[int, np.ndarray]) -> float:
        scores = {c: float(u @ own[c]) / tau for c in there}
        return float(np.log(sum(np.exp(score) for score in scores.values()))) - scores[y]

    total = 0.0
    for u, y in zip(units(model, train.inputs), train.labels, strict=True):
        if y not in there:
            continue
        others = [cost(u, y, {c: means[j, c] if known[j, c] else average[c] for c in there}) for j in range(len(known))]
        total += cost(u, y, average) + float(np.mean(others))
    return total / len(train)


# --- the loss ---


def check_loss() -> None:
    """Before the first step of a full batch, from a projection of the client's own."""
    own, method = networks.initial("mlp:8", TASK, derive(1)), FedPCL(**{**FEW, "batch": 100, "epochs": 1}, tau=0.2)
    assert set(CLIENT.labels.tolist()) == {0, 1, 2}
    _, reply = method.update(own, message(), site(TASK, CLIENT))
    wanted = written_out(own, CLIENT, KNOWN, sets(), 0.2)
    assert float(reply["loss"]) / len(CLIENT) == pytest.approx(wanted, rel=1e-4)


def test_the_loss_is_cross_entropy_by_the_mean_prototypes_and_by_each_clients() -> None:
    check_loss()


def in_order_of_arrival(means: Any, known: Any) -> Any:
    """Prototypes without gaps, in the order in which a client met its classes; here the last came first."""
    padded = np.where(known[:, :, None], means, 0)
    for own, has in zip(padded, known, strict=True):
        own[: has.sum()] = own[has][::-1].copy()
    return np.concatenate([padded.mean(0, keepdims=True), padded]).astype(np.float32)


def not_filled(means: Any, known: Any) -> Any:
    """Zeros where a client lacks a class."""
    return np.concatenate([means.sum(0, keepdims=True) / np.maximum(known.sum(0), 1)[:, None], means]).astype(
        np.float32
    )


@pytest.mark.parametrize("defect", [in_order_of_arrival, not_filled])
def test_classes_that_are_mixed_up_or_not_filled_are_caught(defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prototypes, "filled", defect)
    with pytest.raises(AssertionError):
        check_loss()


def test_the_projection_descends_on_it_and_the_head_stays() -> None:
    """Adam's first step goes by the learning rate against the sign of the slope, which is found by differences."""
    own, method = networks.initial("mlp:8", TASK, derive(1)), FedPCL(**{**FEW, "batch": 100, "epochs": 1}, decay=0.0)
    after, _ = method.update(own, message(), site(TASK, CLIENT))
    moved = 0
    for name in ("body.1.weight", "body.1.bias"):
        for place in np.ndindex(own[name].shape):
            ends = []
            for step in (1e-4, -1e-4):
                near = {key: array.astype(float) for key, array in own.items()}
                near[name][place] += step
                ends.append(written_out(near, CLIENT, KNOWN, sets(), 0.07))
            slope = (ends[0] - ends[1]) / 2e-4
            if abs(slope) > 1e-3:
                moved += 1
                assert float(after[name][place] - own[name][place]) == pytest.approx(-0.01 * np.sign(slope), rel=1e-2)
    assert moved > 20
    assert all(after[name].tobytes() == own[name].tobytes() for name in ("head.weight", "head.bias"))


def test_with_one_client_both_terms_are_the_same() -> None:
    own, known = networks.initial("mlp:8", TASK, derive(1)), np.ones((1, 3), bool)
    method = FedPCL(**{**FEW, "batch": 100, "epochs": 1}, tau=0.2)
    losses = []
    for copies in (1, 4):  # four that are alike say what one does
        given = np.repeat(sets(known), copies, axis=0)
        reply = method.update(own, message(np.repeat(known, copies, 0), given), site(TASK, CLIENT))[1]
        losses.append(float(reply["loss"]) / len(CLIENT))
    u = units(own, CLIENT.inputs)
    scores = u @ sets(known)[0].T / 0.2
    entropy = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(u)), CLIENT.labels]
    np.testing.assert_allclose(losses, 2 * entropy.mean(), rtol=1e-4)


def test_the_length_of_what_a_projection_gives_is_of_no_matter() -> None:
    own, method = networks.initial("mlp:8", TASK, derive(1)), FedPCL(**{**FEW, "batch": 100, "epochs": 1})
    longer = {name: array * np.float32(3.0 if name.startswith("body") else 1.0) for name, array in own.items()}
    told, scores = [], []
    for each in (own, longer):
        told.append(method.update(each, message(), site(TASK, CLIENT))[1]["loss"])
        scores.append(
            method.predict(method.personalize(each, message(), site(TASK, CLIENT)).model, CLIENT.inputs, TASK)
        )
    assert float(told[0]) == pytest.approx(float(told[1]), rel=1e-5)
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4, atol=1e-4)


# --- rounds ---


def test_in_the_first_round_nothing_trains_and_everybody_has_the_same_projection() -> None:
    method = FedPCL(**{**FEW, "rounds": 1})
    result = fs.run(method, FEDERATION, workers=1)
    first = prototypes.first("mlp:8", result.state, TASK)
    for model in result.models.values():
        assert all(model.arrays[name].tobytes() == array.tobytes() for name, array in first.items())
    assert method.figures(result.state) == {}
    assert list(method.figures(fs.run(FedPCL(**FEW), FEDERATION, workers=1).state)) == ["loss"]


def test_the_server_keeps_the_last_prototypes_of_everybody() -> None:
    method = FedPCL(**FEW)
    state = method.init_server(server(TASK))
    last: dict[str, np.ndarray] = {}
    for number, clients in enumerate(("db", "a", "d")):
        replies: dict[str, np.ndarray] = {}
        for name in clients:
            last[name] = sets(KNOWN[:1])[0] + np.float32(number + ord(name))
            replies |= under(name, {"means": last[name], "known": KNOWN[0]})
        state = method.aggregate(state, replies, server(TASK))
    assert names_of(state["clients"]) == ("a", "b", "d")
    for row, name in zip(method.message(state, "a", "update")["means"], "abd", strict=True):
        np.testing.assert_array_equal(row.reshape(3, 8), last[name])
    assert set(method.message(state, "a", "personalize")) == {"seed"}


# --- what is evaluated ---


def check_own(kind: type[FedPCL]) -> None:
    """The nearest of the client's own prototypes, which are means of its own samples, and of no other class."""
    method, own = kind(**FEW), networks.initial("mlp:8", TASK, derive(1))
    for train in (CLIENT, ONE):
        private, reply = method.update(own, message(), site(TASK, train))
        model = method.personalize(private, message(), site(TASK, train)).model
        u, seen = units(private, train.inputs), units(private, CLIENT.inputs)
        classes = np.unique(train.labels)
        means = np.array([u[train.labels == c].mean(0) for c in classes])
        np.testing.assert_allclose(reply["means"][classes], means, rtol=1e-3, atol=1e-5)
        assert np.flatnonzero(reply["known"]).tolist() == classes.tolist()
        apart = ((seen[:, None] - means[None]) ** 2).sum(2)
        np.testing.assert_array_equal(method.predict(model, CLIENT.inputs, TASK).argmax(1), classes[apart.argmin(1)])


class Padded(FedPCL):
    """Writes what others have into the client's own prototypes where it lacks a class, as a public implementation."""

    def personalize(self, private: Any, message: Any, site: Any) -> Any:
        model = dict(super().personalize(private, message, site).model)
        near, average = take("nearest", model), sets(np.ones((1, 3), bool))[0]
        means = np.where(near["known"][:, None], near["means"], average)
        return fs.Personal({**model, "nearest/means": means, "nearest/known": np.ones(3, bool)})


def test_the_nearest_of_the_clients_own_prototypes_decides() -> None:
    check_own(FedPCL)
    with pytest.raises(AssertionError):
        check_own(Padded)


def check_not_switched_off(kind: type[FedPCL]) -> None:
    own = networks.initial("mlp:8", TASK, derive(1))
    after, _ = kind(model="mlp:8").update(own, message(), site(TASK, CLIENT))
    assert np.abs(after["body.1.weight"] - own["body.1.weight"]).max() > 1e-4


@dataclass(frozen=True)
class SwitchedOff(FedPCL):
    """Nothing moves."""

    lr: float = parameters.number(0.0, "learning rate", low=0)


def test_no_default_switches_it_off() -> None:
    check_not_switched_off(FedPCL)
    with pytest.raises(AssertionError):
        check_not_switched_off(SwitchedOff)


def test_a_network_without_a_body_is_refused() -> None:
    with pytest.raises(fs.ParameterError, match="head without a body"):
        FedPCL(model="lr").init_server(server(TASK))
