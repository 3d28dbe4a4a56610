"""APPLE against autograd through its mixture, and training alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import Arrays, same, take, under
from fedsolve.checks import sample_federation
from fedsolve.method import Site
from fedsolve.methods.apple import APPLE
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, distance
from tests.methods.test_gradient import OWN, images

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import networks, training  # noqa: E402
from fedsolve.families.gradient.cores import learn_mixture  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
STEP: dict[str, Any] = {"model": "lr", "epochs": 3, "batch": 1000, "lr": 0.2, "share_lr": 0.05, "mu": 0.4, "rounds": 20}


def collected(method: APPLE, counts: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Replies of clients with random cores."""
    rng, first = np.random.default_rng(seed), take("first", method.init_server(server(TASK)))
    replies: dict[str, np.ndarray] = {}
    for client, count in counts.items():
        core = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in first.items()}
        replies |= under(client, {**under("core", core), "loss": np.array(1.0), "count": np.array(count)})
    return replies


def known(method: APPLE, counts: dict[str, int]) -> Arrays:
    """The state of a server that has cores of these clients."""
    return method.aggregate(method.init_server(server(TASK)), collected(method, counts), server(TASK))


def entropy(v: dict[str, Any], train: fs.Samples) -> Any:
    x, y = torch.tensor(train.inputs, dtype=torch.float64), torch.tensor(train.labels)
    scores = x @ v["head.weight"].t() + v["head.bias"]
    return -torch.log_softmax(scores, 1)[torch.arange(len(y)), y].mean()


def check_training(kind: type[APPLE], **settings: Any) -> None:
    """Full-batch steps with momentum, by autograd through sum_j p_j w_j, in double precision."""
    method = kind(**{**STEP, **settings})
    train = FEDERATION.clients["site-0"].train
    state = known(method, {"a": 10, "b": 20, "c": 50})
    message = method.message(state, "b", "update")
    shares = np.array([0.5, 0.4, -0.2], np.float32)
    private, reply = method.update({"shares": shares}, message, site(TASK, train, number=2))

    cores = {name: torch.tensor(array, dtype=torch.float64) for name, array in take("core", state).items()}
    w = {name: array[1].clone().requires_grad_() for name, array in cores.items()}
    p = torch.tensor(shares, dtype=torch.float64, requires_grad=True)
    first = torch.tensor([1 / 8, 2 / 8, 5 / 8], dtype=torch.float64)
    fade = 0.001 ** (1 / (0.1 * 20))  # the second of twenty rounds

    def mixed() -> dict[str, Any]:
        return {n: p[0] * cores[n][0] + p[1] * w[n] + p[2] * cores[n][2] for n in cores}

    moving = [*w.values(), p]
    speeds = [torch.zeros_like(tensor) for tensor in moving]
    for _ in range(3):
        loss = entropy(mixed(), train) + fade * method.mu / 2 * ((p - first) ** 2).sum()
        slopes = torch.autograd.grad(loss, moving)
        with torch.no_grad():
            for tensor, slope, speed in zip(moving, slopes, speeds, strict=True):
                scale = 1 / abs(float(p[1])) if method.full and tensor is not p else 1.0
                speed.mul_(method.sgd_momentum).add_(slope * scale)
            for tensor, speed in zip(moving, speeds, strict=True):
                tensor -= (method.share_lr if tensor is p else method.lr) * speed
    np.testing.assert_allclose(private["shares"], p.detach(), rtol=1e-4, atol=1e-5)
    for name, tensor in mixed().items():
        np.testing.assert_allclose(reply[f"core/{name}"], w[name].detach(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(private[f"model/{name}"], tensor.detach(), rtol=1e-3, atol=1e-5)
    assert reply.keys() == {*(f"core/{name}" for name in w), "loss", "count"}  # shares stay


@pytest.mark.parametrize("full", [False, True])
def test_a_step_is_autograd_through_the_mixture(full: bool) -> None:
    check_training(APPLE, full=full)


@dataclass(frozen=True)
class CoreThrownAway(APPLE):
    """The mixture is sent in the place of the core."""

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        after, reply = super().update(private, message, site)
        return after, {**reply, **{f"core/{n}": a for n, a in take("model", after).items()}}


@dataclass(frozen=True)
class TimesClients(APPLE):
    """The learning rate is multiplied by the number of clients."""

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        faster = APPLE(**{**STEP, "lr": self.lr * len(message["shares"])})
        return faster.update(private, message, site)


@dataclass(frozen=True)
class MeanOfElements(APPLE):
    """The inner product of a gradient and a core is divided by the number of their elements."""

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        size = sum(array[0].size for array in take("core", message).values())
        slower = APPLE(**{**STEP, "share_lr": self.share_lr / size, "mu": self.mu * size})  # the pull as it was
        return slower.update(private, message, site)


@pytest.mark.parametrize("defect", [CoreThrownAway, TimesClients, MeanOfElements])
def test_defects_of_a_public_implementation_are_caught(defect: type[APPLE]) -> None:
    with pytest.raises(AssertionError):
        check_training(defect)


def test_a_mixture_of_oneself_alone_trains_bit_for_bit_as_a_network_does() -> None:
    """Also where weights do not lie in memory in the order of their sides, as those of convolutions."""
    x, y = images(40)
    task = fs.Task(fs.Classes(3), x.shape[1:])
    start, other = (networks.initial("lenet5", task, derive(seed)) for seed in (0, 1))
    cores = {name: np.stack([other[name], start[name]]) for name in start}
    settings, here = APPLE(model="lenet5", batch=16), fs.Samples(x, y)
    alone, _ = training.train(settings, start, site(task, here, derive(2)))
    oneself = np.array([0.0, 1.0])
    learnt = learn_mixture(
        settings, cores, 1, oneself, oneself, {}, site(task, here, derive(2)), pull=0.0, share_lr=0.0, full=False
    )
    assert same(learnt.model, alone)
    assert same(learnt.core, alone)


def test_equal_cores_are_one_model_times_the_sum_of_shares() -> None:
    method = APPLE(**{**STEP, "lr": 0.0, "share_lr": 0.0})
    state = known(method, {"a": 1, "b": 2, "c": 3})
    one = {name: array[0] for name, array in take("core", state).items()}
    same = {**state, **under("core", {name: np.stack([array] * 3) for name, array in one.items()})}
    shares = np.array([0.9, -0.3, 0.7])
    here = site(TASK, FEDERATION.clients["site-0"].train, number=2)
    private, _ = method.update({"shares": shares}, method.message(same, "a", "update"), here)
    for name, array in one.items():
        np.testing.assert_allclose(private[f"model/{name}"], shares.sum() * array, rtol=1e-5, atol=1e-6)


def test_the_pull_fades_and_ends() -> None:
    method = APPLE(rounds=40, until=0.5)
    assert [method.fade(number) for number in (0, 20, 39)] == [1.0, 0.0, 0.0]
    assert method.fade(10) == pytest.approx(math.sqrt(0.001))
    assert APPLE(until=0.0).fade(0) == 0.0


def test_the_first_round_is_training_alone_and_the_second_begins_with_the_mean() -> None:
    first = APPLE(**{**SMALL, "rounds": 1})
    one = fs.run(first, FEDERATION, workers=1, evaluate_every=100)
    for number, model in enumerate(one.models.values()):
        core = {name: array[number] for name, array in take("core", one.state).items()}
        assert distance(dict(model.arrays), core) == 0
    still = APPLE(**{**SMALL, "lr": 0.0, "share_lr": 0.0})
    message = still.message(one.state, "site-2", "update")
    assert int(message["own"]) == 2
    private, _ = still.update({}, message, site(TASK, FEDERATION.clients["site-2"].train, number=2))
    sizes = [len(client.train) for client in FEDERATION.clients.values()]
    for name, array in take("core", one.state).items():
        np.testing.assert_allclose(private[f"model/{name}"], np.average(array, 0, sizes), atol=1e-6)


def test_who_comes_later_gets_the_share_of_its_samples_and_keeps_its_number() -> None:
    """Shares that learn nothing are n_j / n, whoever came when."""
    method = APPLE(**{**STEP, "share_lr": 0.0})
    early = known(method, {"b": 10, "d": 30})
    train = FEDERATION.clients["site-0"].train
    private, _ = method.update({}, method.message(early, "d", "update"), site(TASK, train, number=2))
    np.testing.assert_allclose(private["shares"], [0.25, 0.75])
    late = method.aggregate(early, collected(method, {"a": 40, "d": 20}, seed=1), server(TASK))
    message = method.message(late, "d", "update")
    assert [int(method.message(late, c, "update")["own"]) for c in "bda"] == [0, 1, 2]
    private, _ = method.update(private, message, site(TASK, train, number=3))
    # The first shares are 10/70, 20/70, 40/70 now; the learnt ones make room for 40/70.
    np.testing.assert_allclose(private["shares"], [0.25 * 3 / 7, 0.75 * 3 / 7, 4 / 7], rtol=1e-6)
    for name, array in take("core", early).items():
        assert late[f"core/{name}"][0].tobytes() == array[0].tobytes()
        assert late[f"core/{name}"][1].tobytes() != array[1].tobytes()


def test_newcomers_get_the_mean_of_the_cores_and_nobody_gets_names() -> None:
    method = APPLE(**STEP)
    state = known(method, {"a": 10, "b": 30})
    for purpose in ("update", "personalize"):
        message = method.message(state, "new", purpose)
        for name, array in take("core", state).items():
            np.testing.assert_allclose(message[f"model/{name}"], array[0] / 4 + 3 * array[1] / 4, rtol=1e-5, atol=1e-6)
    sent = method.message(state, "a", "update")
    assert sent.keys() == {"core/head.weight", "core/head.bias", "shares", "own"}


def test_running_statistics_stay_with_the_client() -> None:
    method = APPLE(**{**SMALL, "model": OWN})
    first = method.init_server(server(TASK))
    buffers = take("buffer", first)
    assert buffers
    result = fs.run(method, FEDERATION, workers=1, evaluate_every=100)
    for name, array in buffers.items():
        assert result.state[f"buffer/{name}"].tobytes() == array.tobytes()
        assert f"core/{name}" not in result.state
        assert result.models["site-0"].arrays[name].tobytes() != result.models["site-2"].arrays[name].tobytes()


def test_no_default_switches_it_off() -> None:
    """What shares learn makes a difference to models."""
    kept, learnt = (
        fs.run(method, FEDERATION, workers=1, evaluate_every=100).models["site-0"].arrays
        for method in (APPLE(**SMALL, share_lr=0.0), APPLE(**SMALL))
    )
    assert distance(dict(kept), dict(learnt)) > 1e-3
