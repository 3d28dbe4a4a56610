"""pFedHN against its definition: a network written out in NumPy, and gradients by a Jacobian."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import Arrays, same, take, under
from fedsolve.checks import sample_federation
from fedsolve.methods.pfedhn import PFedHN
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, distance
from tests.methods.test_gradient import OWN

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import hyper, networks  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
FEW: dict[str, Any] = {**SMALL, "hidden": 12, "embed": 5}
PLAIN: dict[str, Any] = {**FEW, "server_momentum": 0.0, "decay": 0.0, "clip": 0.0, "server_lr": 0.02}


def weights(layers: Any, vector: Any) -> Any:
    """h(v): a layer, three times a rectifier and a layer, and a linear map; of arrays or of tensors."""
    values = layers["0/weight"] @ vector + layers["0/bias"]
    for number in (1, 2, 3):
        values = layers[f"{number}/weight"] @ (values * (values > 0)) + layers[f"{number}/bias"]
    return layers["4/weight"] @ values + layers["4/bias"]


def wide(arrays: Arrays) -> dict[str, Any]:
    return {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}


def row(model: Arrays) -> np.ndarray:
    """All that is made, by sorted names."""
    return np.concatenate([model[name].ravel() for name in sorted(model)])


def collected(state: Arrays, clients: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Replies of clients with random bodies."""
    rng, replies = np.random.default_rng(seed), dict[str, np.ndarray]()
    for client in clients:
        body = {n: rng.normal(size=a.shape).astype(np.float32) for n, a in take("made", state).items()}
        replies |= under(client, {**under("model", body), "loss": np.array(1.0), "count": np.array(3)})
    return replies


@pytest.mark.parametrize("share", ["body", "all"])
def test_what_is_sent_is_what_the_network_makes(share: str) -> None:
    method = PFedHN(**FEW, share=share)
    state = method.init_server(server(TASK))
    assert state["hyper/0/weight"].shape == (12, 5)
    sent = take("model", method.message(state, "a", "update"))
    wanted = networks.parameter_names("mlp:8", TASK)
    assert sent.keys() == (wanted if share == "all" else wanted & networks.body("mlp:8", TASK))
    vector = derive(int(state["seed"][0]), "vector", "a").standard_normal(5, dtype=np.float32)
    np.testing.assert_allclose(row(sent), weights(take("hyper", state), vector), rtol=1e-4, atol=1e-5)


def check_round(clients: str) -> None:
    """A round from its definition: J'(h(v_i; phi) - theta'_i) at phi as it is, client by client, by a Jacobian."""
    method = PFedHN(**PLAIN)
    state = method.init_server(server(TASK))
    replies = collected(state, clients)
    after = method.aggregate(state, replies, server(TASK, derive(7), 1))
    layers, learnt = wide(take("hyper", state)), {}
    for place in derive(7).permutation(len(clients)):
        client = clients[place]
        drawn = derive(int(state["seed"][0]), "vector", client).standard_normal(5, dtype=np.float32)
        vector = torch.tensor(drawn, dtype=torch.float64)
        trained = torch.tensor(row(take(f"{client}/model", replies)), dtype=torch.float64)
        names, values = list(layers), (*layers.values(), vector)

        def made(*given: Any, names: Any = names) -> Any:
            return weights(dict(zip(names, given[:-1], strict=True)), given[-1])

        difference = made(*values) - trained
        slopes = [
            torch.tensordot(difference, jacobian, dims=1)
            for jacobian in torch.autograd.functional.jacobian(made, values)
        ]
        *moved, vector = (value - 0.02 * slope for value, slope in zip(values, slopes, strict=True))
        layers, learnt[client] = dict(zip(names, moved, strict=True)), vector
    for name, tensor in layers.items():
        np.testing.assert_allclose(after[f"hyper/{name}"], tensor, rtol=1e-3, atol=2e-5)
    for number, client in enumerate(sorted(clients)):
        np.testing.assert_allclose(after["vectors"][number], learnt[client], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("clients", ["a", "abc"])
def test_a_round_descends_along_the_jacobian_times_the_change(clients: str) -> None:
    """Of one client that is the paper's step, the gradient of half the squared distance at what was sent."""
    check_round(clients)


def test_rectifiers_before_the_last_map_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def rectified(layers: Any, vector: Any) -> Any:
        for number in range(5):
            values = layers[f"{number}/weight"] @ vector + layers[f"{number}/bias"]
            vector = torch.relu(values) if number < 4 else values
        return vector

    monkeypatch.setattr(hyper, "through", rectified)
    with pytest.raises(AssertionError):
        check_round("a")


def ahead(vector: str, wanted: np.ndarray) -> Any:
    """Ascent: the change with its sign turned."""
    descent = HALF_SQUARE(vector, wanted)
    return lambda tensors: -descent(tensors)


HALF_SQUARE = hyper.half_square


class Stale:
    """Differences from before the first step of the round."""

    def __init__(self) -> None:
        self.sent: Any = None

    def __call__(self, vector: str, wanted: np.ndarray) -> Any:
        goal = torch.tensor(wanted)

        def objective(tensors: Any) -> Any:
            layers = hyper.below("hyper", tensors)
            self.sent = {n: t.detach().clone() for n, t in layers.items()} if self.sent is None else self.sent
            before = hyper.through(self.sent, tensors[vector].detach())
            return hyper.through(layers, tensors[vector]) @ (before - goal)

        return objective


@pytest.mark.parametrize(("defect", "clients"), [(ahead, "a"), (Stale(), "abc")])
def test_ascent_and_stale_differences_are_caught(defect: Any, clients: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper, "half_square", defect)
    with pytest.raises(AssertionError):
        check_round(clients)


def test_stale_differences_are_right_for_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is caught above is that they are stale, and nothing else."""
    monkeypatch.setattr(hyper, "half_square", Stale())
    check_round("a")


def test_a_server_that_does_not_learn_sends_the_same_in_every_round() -> None:
    method = PFedHN(**FEW, server_lr=0.0)
    first = method.init_server(server(TASK, derive(0, "server")))
    last = fs.run(method, FEDERATION, workers=1, evaluate_every=100).state
    for client in (*FEDERATION.clients, "new"):
        one, two = (take("model", method.message(state, client, "update")) for state in (first, last))
        assert same(one, two)


def test_what_a_client_is_sent_depends_on_its_name_and_not_on_how_many_others_there_are() -> None:
    method = PFedHN(**FEW)
    first = method.init_server(server(TASK))
    few, many = (method.aggregate(first, collected(first, clients), server(TASK)) for clients in ("b", "bcde"))
    before = take("model", method.message(first, "x", "update"))
    assert distance(before, take("model", method.message(first, "y", "update"))) > 1e-3
    for state in (few, many):
        alike = {**state, **under("hyper", take("hyper", first))}
        assert same(take("model", method.message(alike, "x", "update")), before)


def test_who_does_not_answer_keeps_vector_and_velocity() -> None:
    method = PFedHN(**FEW)
    first = method.init_server(server(TASK))
    one = method.aggregate(first, collected(first, "ac"), server(TASK))
    two = method.aggregate(one, collected(first, "bc", seed=1), server(TASK))
    for part in ("vectors", "speeds"):
        assert one[part].any()
        np.testing.assert_array_equal(two[part][0], one[part][0])
        assert two[part].shape == (3, 5)
        assert (two[part][2] != one[part][1]).any()
    assert two["memory/hyper/4/weight"].any()


def test_what_is_evaluated_is_what_was_sent_under_the_clients_own_head() -> None:
    method = PFedHN(**FEW)
    state = fs.run(method, FEDERATION, workers=1, evaluate_every=100).state
    train = FEDERATION.clients["site-0"].train
    message = method.message(state, "site-0", "update")
    head = {name: np.full_like(array, 0.5) for name, array in take("kept", state).items()}
    assert message.keys() == {f"model/{name}" for name in networks.body("mlp:8", TASK)}
    model = method.personalize(head, message, site(TASK, train)).model
    assert distance(dict(model), {**head, **take("model", message)}) == 0
    private, reply = method.update(head, message, site(TASK, train))
    assert private.keys() == head.keys() == networks.head("mlp:8", TASK)
    assert distance(dict(private), head) > 0
    assert take("model", reply).keys() == take("model", message).keys()


def test_running_statistics_stay_with_the_client() -> None:
    method = PFedHN(**{**FEW, "model": OWN}, share="all")
    result = fs.run(method, FEDERATION, workers=1, evaluate_every=100)
    buffers = take("kept", result.state)
    assert buffers
    assert not buffers.keys() & take("made", result.state).keys()
    for name in buffers:
        assert result.models["site-0"].arrays[name].tobytes() != result.models["site-2"].arrays[name].tobytes()


def test_a_network_without_body_needs_share_all() -> None:
    with pytest.raises(fs.ParameterError, match="lr is a head without a body; use share=all"):
        PFedHN(model="lr").init_server(server(TASK))
    fs.run(PFedHN(**{**FEW, "model": "lr", "rounds": 1}, share="all"), FEDERATION, workers=1)


def test_no_default_switches_it_off() -> None:
    """With the authors' constants it learns: what is sent moves towards what clients make of it."""
    method = PFedHN(**{**SMALL, "rounds": 10})
    first = method.init_server(server(TASK, derive(0, "server")))
    last = fs.run(method, FEDERATION, workers=1, evaluate_every=100).state
    still = fs.run(PFedHN(**{**SMALL, "rounds": 10}, server_lr=0.0), FEDERATION, workers=1, evaluate_every=100).state
    one, two = (take("model", method.message(state, "site-0", "update")) for state in (first, last))
    assert distance(one, two) > 1e-2
    assert float(last["loss"]) < float(still["loss"])
