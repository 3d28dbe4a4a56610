"""FedGH against its definition in NumPy: what the server's head learns, and what a client puts it on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take, under
from fedsolve.checks import sample_federation
from fedsolve.families.gradient import prototypes
from fedsolve.methods.fedgh import FedGH
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import descent, networks, training  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
CLIENT = FEDERATION.clients["site-0"].train
HEAD = ("head.bias", "head.weight")


def replies() -> dict[str, np.ndarray]:
    """Class means of three clients, of which two lack a class."""
    rng, made = np.random.default_rng(2), dict[str, np.ndarray]()
    for client, known in {"a": (True, True, False), "b": (True, True, True), "c": (False, False, True)}.items():
        means = rng.normal(size=(3, 8)).astype(np.float32) * np.array(known)[:, None]
        told = {
            "means": means.astype(np.float32),
            "known": np.array(known),
            "loss": np.array(8.0),
            "count": np.array(4),
        }
        made |= under(client, told)
    return made


def pairs(given: Any) -> tuple[np.ndarray, np.ndarray]:
    """All class means that are there, and their classes."""
    rows = [(given[f"{client}/means"][c], c) for client in "abc" for c in range(3) if given[f"{client}/known"][c]]
    return np.array([row for row, _ in rows], float), np.array([c for _, c in rows])


def entropy(head: Any, points: np.ndarray, labels: np.ndarray) -> float:
    scores = points @ head["head.weight"].T.astype(float) + head["head.bias"]
    return float(np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]))


# --- the server ---


def check_head() -> None:
    """Three full-batch steps, against the slope of the cross-entropy by differences; every mean weighs the same."""
    method = FedGH(**SMALL, server_lr=0.5, server_passes=3)
    state = method.init_server(server(TASK))
    points, labels = pairs(replies())
    assert len(points) == 6
    head = {name: array.astype(float) for name, array in take("head", state).items()}
    for _ in range(3):
        slopes = {name: np.zeros_like(array) for name, array in head.items()}
        for name, array in head.items():
            for place in np.ndindex(array.shape):
                ends = []
                for step in (1e-5, -1e-5):
                    moved = {key: values.copy() for key, values in head.items()}
                    moved[name][place] += step
                    ends.append(entropy(moved, points, labels))
                slopes[name][place] = (ends[0] - ends[1]) / 2e-5
        head = {name: array - 0.5 * slopes[name] for name, array in head.items()}
    found = method.aggregate(state, replies(), server(TASK, derive(1)))
    for name in HEAD:
        np.testing.assert_allclose(found[f"head/{name}"], head[name], atol=1e-5)
    assert float(found["loss"]) == 2.0


def test_the_server_descends_on_the_cross_entropy_of_its_head_on_class_means() -> None:
    check_head()


def check_learns() -> None:
    """A run must leave a head that knows the means of those that trained under it."""
    method = FedGH(**SMALL, server_passes=10)
    first = take("head", method.init_server(server(TASK, derive(0, "server"))))
    run = fs.run(method, FEDERATION, workers=1, evaluate_every=100)
    told = [networks.class_means("mlp:8", model.arrays, FEDERATION.clients[name].train, TASK)
            for name, model in run.models.items()]  # fmt: skip
    points = np.concatenate([means[counts > 0] for means, counts in told])
    labels = np.concatenate([np.flatnonzero(counts) for _, counts in told])
    assert entropy(take("head", run.state), points, labels) < 0.8 * entropy(first, points, labels)


def test_the_head_learns() -> None:
    check_learns()


def never_trained(head: Any, *_: Any, **__: Any) -> Any:
    """The authors' code: the optimiser has the parameters of another network."""
    return dict(head)


def test_a_head_that_never_learns_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "taught", never_trained)
    for check in (check_head, check_learns):
        with pytest.raises(AssertionError):
            check()


def test_a_class_that_a_client_lacks_is_no_sample() -> None:
    method, given = FedGH(**SMALL), replies()
    state = method.init_server(server(TASK))
    noise = {**given, "a/means": given["a/means"] + np.array([[0], [0], [9]], np.float32)}
    one, two = (method.aggregate(state, each, server(TASK, derive(1))) for each in (given, noise))
    assert all(one[f"head/{name}"].tobytes() == two[f"head/{name}"].tobytes() for name in HEAD)


def test_who_is_who_changes_nothing_in_a_batch() -> None:
    method, given = FedGH(**SMALL, server_passes=1), replies()
    state = method.init_server(server(TASK))
    names = {"a": "c", "b": "a", "c": "b"}
    other = {f"{names[name[0]]}{name[1:]}": array for name, array in given.items()}
    one, two = (method.aggregate(state, each, server(TASK, derive(1))) for each in (given, other))
    for name in HEAD:
        np.testing.assert_allclose(one[f"head/{name}"], two[f"head/{name}"], atol=1e-6)


def test_small_batches_are_passes_in_an_order_that_is_drawn() -> None:
    method = FedGH(**SMALL, server_batch=2, server_passes=1, server_lr=0.5)
    state = method.init_server(server(TASK))
    heads = [method.aggregate(state, replies(), server(TASK, derive(seed)))["head/head.weight"] for seed in (1, 1, 2)]
    assert heads[0].tobytes() == heads[1].tobytes() != heads[2].tobytes()


def test_without_a_learning_rate_the_head_stays_the_first_one() -> None:
    state = fs.run(FedGH(**SMALL, server_lr=0.0), FEDERATION, workers=1, evaluate_every=100).state
    first = prototypes.first("mlp:8", state, TASK)
    assert all(state[f"head/{name}"].tobytes() == first[name].tobytes() for name in HEAD)


# --- a client ---


def check_client() -> None:
    """The own body under the head that was sent, trained as any network; means of all samples of a class."""
    method, own = FedGH(**SMALL), networks.initial("mlp:8", TASK, derive(5))
    sent = {name: np.random.default_rng(6).normal(size=own[name].shape).astype(np.float32) for name in HEAD}
    message = {"seed": np.array(3), **under("head", sent)}
    after, reply = method.update(own, message, site(TASK, CLIENT, derive(1)))
    wanted, loss = training.train(method, {**own, **sent}, site(TASK, CLIENT, derive(1)))
    assert all(after[name].tobytes() == wanted[name].tobytes() for name in wanted)
    assert float(reply["loss"]) == pytest.approx(loss * len(CLIENT))
    z = np.maximum(CLIENT.inputs @ wanted["body.1.weight"].T + wanted["body.1.bias"], 0.0)
    for c in range(3):
        np.testing.assert_allclose(reply["means"][c], z[CLIENT.labels == c].mean(0), rtol=1e-4, atol=1e-5)
    assert reply["known"].all()


def test_a_client_trains_its_body_under_the_head_that_was_sent() -> None:
    check_client()


def test_means_of_means_of_batches_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authors' code: a class's samples in a small batch weigh more than those in a large one."""
    found = networks.class_means

    def uneven(model: str, arrays: Any, samples: Any, task: Any) -> Any:
        parts = [
            found(model, arrays, fs.Samples(samples.inputs[at : at + 16], samples.labels[at : at + 16]), task)
            for at in range(0, len(samples), 16)
        ]
        there = np.stack([counts > 0 for _, counts in parts])
        means = (np.stack([means for means, _ in parts]) * there[:, :, None]).sum(0) / there.sum(0)[:, None]
        return means, np.sum([counts for _, counts in parts], axis=0)

    monkeypatch.setattr(networks, "class_means", uneven)
    with pytest.raises(AssertionError):
        check_client()


def test_what_is_evaluated_is_the_trained_network_or_its_body_under_the_servers_head() -> None:
    own, common = (
        fs.run(FedGH(**SMALL, evaluate=evaluate), FEDERATION, workers=1, evaluate_every=100)
        for evaluate in ("own", "global")
    )
    for name in FEDERATION.clients:
        one, two = own.models[name].arrays, common.models[name].arrays
        assert one["body.1.weight"].tobytes() == two["body.1.weight"].tobytes()
        assert two["head.weight"].tobytes() == common.state["head/head.weight"].tobytes()
        assert one["head.weight"].tobytes() != two["head.weight"].tobytes()
