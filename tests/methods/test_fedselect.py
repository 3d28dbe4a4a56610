"""FedSelect against the algorithm written out, with the server's and all clients' networks in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.checks.laws import hold
from fedsolve.checks.probes import CheckError
from fedsolve.methods.fedselect import COUNTS, FedSelect
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, check_not_switched_off, distance, shared

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import hooks, networks, training  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
CLIENTS = ("site-0", "site-2", "site-5")
SETTINGS: dict[str, Any] = {"model": "mlp:5", "epochs": 2, "batch": 100, "lr": 0.2, "sgd_momentum": 0.0, "every": 2}
WEIGHTS = ("body.1.weight", "head.weight")


def rounds(method: FedSelect, count: int) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    """The server's state, what clients keep, and the replies of each round."""
    state, seen = method.init_server(server(TASK)), list[dict[str, Any]]()
    private: dict[str, Any] = {client: {} for client in CLIENTS}
    for number in range(count):
        replies: dict[str, Any] = {}
        seen.append({})
        for name in CLIENTS:
            here = site(TASK, FEDERATION.clients[name].train, derive(number, name), number=number + 1)
            kept, reply = method.update(private[name], method.message(state, name, "update"), here)
            private[name], seen[-1][name] = dict(kept), reply
            replies = {key: replies.get(key, 0) + array for key, array in reply.items()}
        state = method.aggregate(state, replies, server(TASK))
    return state, private, seen


# --- the algorithm, with full batches, so that no order of samples matters ---


def descended(model: dict[str, Any], mask: dict[str, Any], train: fs.Samples, lr: float, epochs: int) -> Any:
    x, y = torch.tensor(train.inputs, dtype=torch.float32), torch.tensor(train.labels)
    for _ in range(epochs):
        for personal in (1.0, 0.0):
            here = {name: torch.tensor(array, dtype=torch.float32).requires_grad_() for name, array in model.items()}
            z = torch.relu(x @ here["body.1.weight"].t() + here["body.1.bias"])
            scores = z @ here["head.weight"].t() + here["head.bias"]
            loss = -torch.log_softmax(scores, 1)[torch.arange(len(y)), y].mean()
            slopes = torch.autograd.grad(loss, list(here.values()))
            model = {
                name: (tensor - lr * slope * torch.tensor(mask[name] == personal)).detach().numpy()
                for (name, tensor), slope in zip(here.items(), slopes, strict=True)
            }
    return model


def written_out(method: FedSelect, count: int) -> tuple[Any, Any, Any]:
    """The server's network, and each client's network before it is overwritten and mask, after so many rounds."""
    first = take("model", method.init_server(server(TASK)))
    centre = dict(first)
    models, before = ({client: dict(first) for client in CLIENTS} for _ in range(2))
    masks = {client: {name: np.zeros(array.shape) for name, array in first.items()} for client in CLIENTS}
    trained: dict[str, Any] = {}
    for number in range(count):
        sent = {client: {name: mask.copy() for name, mask in masks[client].items()} for client in CLIENTS}
        for client in CLIENTS:
            train = FEDERATION.clients[client].train
            trained[client] = descended(models[client], sent[client], train, method.lr, method.epochs)
            if number % method.every == 0 and number > 0:
                for name in WEIGHTS:
                    mask = masks[client][name]
                    if mask.mean() > method.limit:
                        continue
                    moved = np.where(mask == 1, -1.0, np.abs(trained[client][name] - before[client][name]))
                    for place in np.argsort(moved.ravel())[::-1][: round(method.rate * int((mask == 0).sum()))]:
                        mask.ravel()[place] = 1.0
                before[client] = dict(trained[client])
        for name in first:
            shares = [1 - sent[client][name] for client in CLIENTS]
            total = sum(share * trained[client][name] for share, client in zip(shares, CLIENTS, strict=True))
            there = np.sum(shares, axis=0)
            centre[name] = np.where(there > 0, total / np.maximum(there, 1), centre[name])
        for client in CLIENTS:
            models[client] = {n: np.where(sent[client][n] == 1, trained[client][n], centre[n]) for n in first}
    return centre, trained, sent


def check_rounds(method: FedSelect, count: int = 7) -> None:
    state, private, _ = rounds(method, count)
    centre, trained, masks = written_out(method, count)
    for name, array in centre.items():
        np.testing.assert_allclose(state[f"model/{name}"], array, atol=1e-4)
    for client in CLIENTS:
        found = method.personalize(private[client], {}, site(TASK, FEDERATION.clients[client].train)).model
        for name, array in trained[client].items():
            np.testing.assert_allclose(found[name], array, atol=1e-4)
            np.testing.assert_array_equal(private[client][f"mask/{name}"], masks[client][name] == 1)


@pytest.mark.parametrize(("rate", "limit"), [(0.25, 0.8), (0.5, 0.3), (1.0, 0.8)])
def test_all_do_what_the_algorithm_says(rate: float, limit: float) -> None:
    check_rounds(FedSelect(**SETTINGS, rate=rate, limit=limit))


class KeepsTheirOwn(FedSelect):
    """New personal numbers begin from the client's own, by the new mask, not from the mean."""

    def _begun(self, private: Any, message: Any) -> Any:
        done = int(private["done"]) if private else 0
        if done > 1 and (done - 1) % self.every == 0:
            last, since = take("model", private), take("since", private)
            wider = {n: self.wider(m, np.abs(last[n] - since[n])) for n, m in take("mask", private).items()}
            private = {**private, **{f"mask/{name}": mask for name, mask in wider.items()}}
        return super()._begun(private, message)


class DividesByAll(FedSelect):
    """The mean over everybody, also of those who kept a number to themselves."""

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        everybody = {n: np.full_like(a, replies["here"]) for n, a in replies.items() if n.startswith("sharing/")}
        return super().aggregate(state, {**replies, **everybody}, server)


class TakesBiases(FedSelect):
    """Whatever moves may become personal, biases too."""

    def wider(self, mask: Any, moved: Any) -> Any:
        return super().wider(mask[None], moved[None])[0]


@pytest.mark.parametrize("defect", [KeepsTheirOwn, DividesByAll, TakesBiases])
def test_defects_are_caught(defect: type[FedSelect]) -> None:
    with pytest.raises(AssertionError):
        check_rounds(defect(**SETTINGS))


# --- passes ---


def test_a_pass_leaves_alone_what_is_not_its_turn_with_momentum_too() -> None:
    train, model = FEDERATION.clients["site-0"].train, "mlp:5"
    start = networks.initial(model, TASK, derive(0))
    mask = {name: derive(1, name).random(start[name].shape) < 0.5 for name in start}
    method = FedSelect(model=model, batch=8, lr=0.1, sgd_momentum=0.9)
    moved, _ = training.train(method, start, site(TASK, train), hook=hooks.only(mask, model, TASK))
    for name, array in start.items():
        np.testing.assert_array_equal(moved[name][~mask[name]], array[~mask[name]])
    assert any((moved[name] != start[name])[mask[name]].any() for name in start)


# --- masks ---


def test_exactly_the_asked_for_share_becomes_personal_also_among_equals() -> None:
    """The authors' threshold takes all that are equal: of weights that never moved, every one."""
    method = FedSelect(rate=0.25)
    mask = np.zeros((4, 10), bool)
    for moved in (np.zeros((4, 10)), np.arange(40.0).reshape(4, 10)):
        assert method.wider(mask, moved).sum() == 10
    assert method.wider(mask, np.arange(40.0).reshape(4, 10))[3].all()  # the largest
    again = method.wider(method.wider(mask, np.zeros((4, 10))), np.zeros((4, 10)))
    assert again.sum() == 10 + round(0.25 * 30)
    assert not mask.any()  # what was given is not written to


def test_the_personal_share_never_falls_and_stays_above_the_limit() -> None:
    _, _, seen = rounds(FedSelect(**SETTINGS, limit=0.5), 10)
    last: dict[str, Any] = {}
    for replies in seen:
        for client, reply in replies.items():
            for name in WEIGHTS:
                shares = reply[f"sharing/{name}"]
                assert shares.dtype == COUNTS  # half of what a number takes
                assert not reply[f"model/{name}"][shares == 0].any()  # what is personal does not leave
                before = last.get(client + name, shares)
                assert (shares <= before).all()
                if (before == 0).mean() > 0.5:
                    np.testing.assert_array_equal(shares, before)
                last[client + name] = shares
    assert all(0.5 < float((shares == 0).mean()) < 0.8 for shares in last.values())


def test_when_all_weights_are_personal_the_global_ones_stay() -> None:
    method = FedSelect(**SETTINGS, rate=1.0)
    states = [rounds(method, count)[0] for count in (3, 5)]
    for name in WEIGHTS:
        assert states[0][f"model/{name}"].tobytes() == states[1][f"model/{name}"].tobytes()
    assert states[0]["model/head.bias"].tobytes() != states[1]["model/head.bias"].tobytes()


# --- beside FedAvg ---


def test_without_a_rate_means_are_plain() -> None:
    """Of clients alike in size they are FedAvg's, as the declared law says; of others they are not."""
    settings = {**SMALL, "epochs": 1, "rounds": 1}
    state, _, seen = rounds(FedSelect(**settings, rate=0.0), 1)
    for name, array in take("model", state).items():
        mean = np.mean([reply[f"model/{name}"] for reply in seen[0].values()], axis=0, dtype=np.float64)
        np.testing.assert_allclose(array, mean, atol=1e-6)
    assert distance(shared(FedSelect(**settings, rate=0.0)), shared(fs.FedAvg(**settings))) > 1e-3


class SelectsAnyway(FedSelect):
    """Also at rate 0 the number that moved most is taken."""

    def wider(self, mask: Any, moved: Any) -> Any:
        return mask | (moved >= moved[~mask].max(initial=0.0)) if mask.ndim > 1 else mask


class AddsUp(FedSelect):
    """The head's bias is a sum over clients, not their mean."""

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        return super().aggregate(state, {**replies, "sharing/head.bias": np.ones(3, COUNTS)}, server)


@pytest.mark.parametrize("defect", [SelectsAnyway, AddsUp])
def test_the_declared_law_catches_defects(defect: type[FedSelect]) -> None:
    settings: dict[str, Any] = {**SMALL, "rounds": 5, "every": 1}
    (law,) = FedSelect.laws
    hold(law, FedSelect(**settings))
    with pytest.raises(CheckError):
        hold(law, defect(**settings))


def test_no_default_switches_it_off() -> None:
    defaults = {"rounds": 6, "epochs": 1}
    check_not_switched_off(FedSelect, **defaults)
    settings = {**SMALL, **defaults}
    assert distance(shared(FedSelect(**settings)), shared(FedSelect(**settings, rate=0.0))) > 1e-4


def test_more_clients_than_can_be_counted_are_refused() -> None:
    method = FedSelect(**SETTINGS)
    _, _, seen = rounds(method, 1)
    reply = {**seen[0]["site-0"], "here": np.array(70_000)}
    with pytest.raises(fs.DataError, match="from 1 to 65535 clients; got 70000"):
        method.aggregate(method.init_server(server(TASK)), reply, server(TASK))
