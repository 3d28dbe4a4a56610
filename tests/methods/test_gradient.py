"""Gradient methods against plain torch loops and against their definitions, on federations of a few small clients."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.families.gradient.settings import EXAMPLES, MODELS, Training
from fedsolve.families.gradient.table import shaped
from fedsolve.methods import create
from fedsolve.rng import derive

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from safetensors.numpy import load_file  # noqa: E402
from torch import nn  # noqa: E402

from fedsolve.families.gradient import hooks, listening, networks, optimisers, parts, training, zoo  # noqa: E402
from fedsolve.families.gradient.blend import learn_blend  # noqa: E402
from tests.contexts import server, site  # noqa: E402

SMALL: dict[str, Any] = {"model": "mlp:8", "rounds": 2, "epochs": 2, "batch": 16, "lr": 0.05}


def images(count: int = 48, side: int = 16, channels: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bytes: a bright block in one of three places."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=count)
    x = rng.integers(60, size=(count, side, side, channels), dtype=np.uint8)
    for i, label in enumerate(y):
        x[i, 5 * label : 5 * label + 5] += 150
    return (x[..., 0] if channels == 1 else x), y


# --- the torch side ---


def plain_sgd(
    network: nn.Module, x: Any, y: Any, orders: list[Any], batch: int, lr: float, momentum: float, pull: Any = None
) -> None:
    """A second, slower derivation: torch's own optimiser, the loss written out, autograd for the pull as well."""
    optimiser = torch.optim.SGD(network.parameters(), lr=lr, momentum=momentum)
    for order in orders:
        starts = [s for s in range(0, len(order), batch) if s == 0 or len(order) - s > 1]
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            rows = order[start:end]
            scores = network(x[rows])
            loss = -torch.log_softmax(scores, 1)[torch.arange(len(rows)), y[rows]].mean()
            if pull is not None:
                strength, anchor = pull
                loss = loss + strength / 2 * sum(((p - anchor[n]) ** 2).sum() for n, p in network.named_parameters())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


@pytest.mark.parametrize("count", [40, 33, 1])
@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_training_is_sgd_with_momentum(count: int, strength: float) -> None:
    x, y = images(count)
    task = fs.Task(fs.Classes(3), (16, 16))
    settings = Training(model="lenet5", epochs=2, batch=16, lr=0.05, sgd_momentum=0.5)
    start = networks.initial("lenet5", task, derive(0, "start"))
    anchor = networks.initial("lenet5", task, derive(1, "start"))
    found, loss = training.train(
        settings,
        start,
        site(task, fs.Samples(x, y), derive(0, "x")),
        hook=hooks.towards(anchor, strength, "lenet5", task),
    )
    rng = derive(0, "x")
    rng.integers(2**63)  # the seed of torch's own generator
    orders = [rng.permutation(count) for _ in range(2)]

    class Plain(nn.Module):  # type: ignore[misc]  # the usual order, ReLU before pooling, in the usual memory layout
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
            self.three, self.four, self.five = nn.Linear(16, 120), nn.Linear(120, 84), nn.Linear(84, 3)

        def forward(self, inputs: Any) -> Any:
            inputs = torch.max_pool2d(torch.relu(self.one(inputs)), 2)
            inputs = torch.max_pool2d(torch.relu(self.two(inputs)), 2).flatten(1)
            return self.five(torch.relu(self.four(torch.relu(self.three(inputs)))))

    names = {"one": "body.0.0", "two": "body.1.0", "three": "body.3", "four": "body.5", "five": "head"}

    def as_plain(arrays: Any) -> dict[str, Any]:
        return {f"{a}.{k}": torch.tensor(arrays[f"{b}.{k}"]) for a, b in names.items() for k in ("weight", "bias")}

    network = Plain()
    network.load_state_dict(as_plain(start))
    inputs = torch.tensor(x.astype(np.float32) / 127.5 - 1)[:, None]
    pull = (strength, as_plain(anchor)) if strength else None
    plain_sgd(network, inputs, torch.tensor(y), orders, 16, 0.05, 0.5, pull)
    for name, tensor in as_plain(found).items():
        np.testing.assert_allclose(tensor, network.state_dict()[name], rtol=2e-3, atol=2e-4)
    assert np.isfinite(loss)


def test_a_step_does_not_depend_on_how_gradients_lie_in_memory() -> None:
    start, gradient = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    moved = start.clone(memory_format=torch.channels_last)
    step = optimisers.sgd(0.1, 0.5)([moved])
    for _ in range(2):
        step([gradient])
    np.testing.assert_allclose(moved, start - 0.1 * gradient * (1 + 1.5), rtol=1e-5, atol=1e-6)


def test_frozen_tensors_stay_and_the_others_move() -> None:
    x, y = images()
    task = fs.Task(fs.Classes(3), (16, 16))
    start = networks.initial("cnn", task, derive(0))
    body = networks.body("cnn", task)
    found, _ = training.train(Training(model="cnn"), start, site(task, fs.Samples(x, y), derive(1)), frozen=body)
    for name in start:
        assert (found[name].tobytes() == start[name].tobytes()) == (name in body)


def test_another_loss_is_minimised() -> None:
    """Squares instead of cross-entropy: a linear network arrives at the least-squares solution."""
    samples = sample_federation(sizes=(60,)).clients["site-0"].train
    task = fs.Task(fs.Classes(3), samples.inputs.shape[1:])

    def squares(batch: training.Batch) -> Any:
        return ((batch.scores - nn.functional.one_hot(batch.labels, 3)) ** 2).sum(1).mean()

    settings = Training(model="lr", epochs=1500, batch=len(samples), lr=0.02)
    start = networks.initial("lr", task, derive(0))
    model, loss = training.train(settings, start, site(task, samples, derive(1)), loss=squares)
    rows, targets = np.column_stack([samples.inputs, np.ones(len(samples))]), np.eye(3)[samples.labels]
    fitted = rows @ np.linalg.lstsq(rows, targets, rcond=None)[0]
    np.testing.assert_allclose(networks.scores("lr", model, samples.inputs, task), fitted, atol=1e-4)
    assert loss == pytest.approx(((targets - fitted) ** 2).sum(1).mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("model", "shape", "count"),
    [
        ("lr", (28, 28), 7850),
        ("mlp:128,64", (28, 28), 784 * 128 + 128 + 128 * 64 + 64 + 650),
        ("lenet5", (28, 28), 44426),  # 1/256/10 of the paper
        ("lenet5", (32, 32, 3), 62006),  # FedAPA, table 2: 484 KB there and back
        ("cnn", (32, 32, 3), 448 + 4640 + 32 * 36 * 64 + 64 + 650),
        ("cnn:4", (8, 8), 40 + 4 * 9 * 64 + 64 + 650),
        ("dcnn:8,6,4,5", (32, 32, 3), 608 + 438 + 220 + 185 + 210),
    ],
)
def test_models_have_the_widths_they_say(model: str, shape: tuple[int, ...], count: int) -> None:
    task = fs.Task(fs.Classes(10), shape)
    made = networks.initial(model, task, derive(0))
    assert sum(array.size for name, array in made.items() if name != "classes") == count
    head = made.keys() - networks.body(model, task)
    assert head == {"head.weight", "head.bias"}
    assert networks.scores(model, made, np.zeros((3, *shape), np.uint8), task).shape == (3, 10)


def test_pooling_first_gives_the_same_values() -> None:
    x = torch.randn(4, 6, 10, 10)
    first, second = torch.relu(torch.max_pool2d(x, 2)), torch.max_pool2d(torch.relu(x), 2)
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.float32, np.int64])
def test_inputs_keep_their_meaning(dtype: Any) -> None:
    x, _ = images(5, channels=3)
    given = x if dtype == np.uint8 else (x / 255).astype(dtype) if dtype != np.int64 else x.astype(dtype)
    found = networks.as_tensor(given).numpy()
    assert found.shape == (5, 3, 16, 16)
    wanted = given / 127.5 - 1 if dtype == np.uint8 else given
    np.testing.assert_allclose(found, np.moveaxis(wanted, -1, 1).astype(np.float32), rtol=1e-6, atol=1e-6)


def test_first_weights_come_from_the_given_generator_alone() -> None:
    task = fs.Task(fs.Classes(3), (6,))
    before = torch.random.get_rng_state()
    one, two, three = (networks.initial("mlp:8", task, derive(seed)) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert one["head.weight"].tobytes() == two["head.weight"].tobytes() != three["head.weight"].tobytes()


# --- own models ---


class Dropping(nn.Module):  # type: ignore[misc]
    """Has dropout, batch norm and no submodule called head."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Linear(8, classes)

    def forward(self, inputs: Any) -> Any:
        return self.last(torch.dropout(torch.relu(self.norm(self.first(inputs))), 0.3, self.training))


def dropping(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Dropping(shape[0], classes)


def not_a_module(shape: tuple[int, ...], classes: int) -> str:
    return "nothing"


def too_narrow(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes - 1)


OWN = f"{__name__}:dropping"


@pytest.mark.parametrize("name", ["fedavg", "fedapa", "ditto", "fedala", "local"])
def test_own_models_with_dropout_and_batch_norm(name: str) -> None:
    method = create(name, {**SMALL, "model": OWN})
    one, two = (fs.run(method, sample_federation(), seed=1, workers=workers) for workers in (1, 2))
    for client, model in one.models.items():
        for tensor, array in model.arrays.items():
            assert array.tobytes() == two.models[client].arrays[tensor].tobytes()
    assert {"norm.running_mean", "norm.running_var"} <= one.models["site-0"].arrays.keys()
    assert "norm.num_batches_tracked" not in one.models["site-0"].arrays


def test_running_statistics_are_averaged_and_the_head_is_found() -> None:
    federation = sample_federation(sizes=(40, 30))
    task = federation.task
    assert networks.body(OWN, task) == {
        "first.weight", "first.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
    }  # fmt: skip
    method = fs.FedAvg(**{**SMALL, "model": OWN, "rounds": 1})
    start = take("model", method.init_server(server(task, derive(0, "server"))))
    means, sizes = [], []
    for client in federation.clients.values():
        trained, _ = training.train(method, start, site(task, client.train, derive(0, "update", client.name, 1)))
        means.append(trained["norm.running_mean"])
        sizes.append(len(client.train))
    wanted = np.average(means, axis=0, weights=sizes)
    found = fs.run(method, federation).shared
    assert found is not None
    np.testing.assert_allclose(found.arrays["norm.running_mean"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("lenet", "must be one of lr"),
        ("lenet5 ,", "must be one of lr"),
        ("mlp", r"parameter 'model' of FedAvg: character 4 of network 'mlp': .* as in mlp:128,64"),
        ("mlp:0", "'0' at character 5 of network 'mlp:0': .* as in mlp:128,64"),
        ("mlp:8,,8", "character 7 of network"),
        ("mlp:8,factory", "'factory' at character 7"),
        ("mlp:factory", "'factory' at character 5"),
        ("mlp:10000000", "'10000000' at character 5 .* from 1 to 9999999"),
        ("cnn:4,-1", "'-1' at character 7 .* as in cnn:16,32"),
        ("lenet5:6", "'6' at character 8 of network 'lenet5:6': 'lenet5' takes no argument"),
        ("no.such.module:factory", "cannot find 'no.such.module:factory': there is no module 'no', neither installed"),
        ("fedsolve.no_such:factory", "there is no module 'fedsolve.no_such'"),
        (f"{__name__}:missing", r"cannot find .* has no 'missing'"),
        (f"{__name__}:OWN", r"cannot find .* has a str, not a function, 'OWN'"),
        (f"{__name__}:not_a_module", "must return a torch.nn.Module"),
        (f"{__name__}:too_narrow", r"scores of shape \(samples, 3\)"),
        ("lenet5", "takes images"),
        ("dcnn:8,6", "dcnn has four convolutions"),
        ("dcnn:8,6,4,5", "takes images of at least 28 x 28"),
    ],
)
def test_models_that_cannot_be_are_refused(model: str, words: str) -> None:
    with pytest.raises(fs.ParameterError, match=words):
        fs.run(fs.FedAvg(**{**SMALL, "model": model}), sample_federation())


MYNET = """
from torch import nn

def net(shape, classes):
    from mywidths import WIDTH  # when it is called, not when it is imported
    return nn.Sequential(nn.Linear(shape[0], WIDTH), nn.Tanh(), nn.Linear(WIDTH, classes))
"""


def own_network(folder: Path) -> None:
    (folder / "mynet.py").write_text(MYNET)
    (folder / "mywidths.py").write_text("WIDTH = 5\n")
    (folder / "broken.py").write_text("import no_such_package\n")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as it is installed: -P keeps Python from adding the current folder to its path."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "fedsolve", *words],
        cwd=folder, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_own_models_are_found_in_the_folder_where_the_command_runs(tmp_path: Path) -> None:
    own_network(tmp_path)
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "data.npz", x=x, y=y)
    run = ("run", "--method", "fedavg", "--data", "data.npz", "--clients", "2", "--set", "rounds=2")
    done = command(tmp_path, *run, "--set", "model=mynet:net", "--out", "result")
    assert done.returncode == 0, done.stderr
    models = sorted((tmp_path / "result" / "models").iterdir())
    assert load_file(models[0])["0.weight"].shape == (5, 4)
    done = command(tmp_path, "predict", str(models[0]), "--data", "data.npz", "--model", "mynet:net")
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "result"
    done = command(elsewhere, *run, "--data", "../data.npz", "--set", "model=mynet:net")
    assert done.returncode == 2
    assert "there is no module 'mynet', neither installed nor in the current folder" in " ".join(done.stderr.split())


def test_the_search_for_own_models_leaves_no_trace_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_network(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ([p for p in sys.path if p not in ("", str(tmp_path))], ["", *sys.path], [*sys.path, ""]):
        monkeypatch.setattr(sys, "path", list(path))
        assert zoo.layers(zoo.build("mynet:net", (4,), 3)) == ["0", "2"]
        with pytest.raises(fs.ParameterError, match=r"cannot import 'broken' .* No module named 'no_such_package'"):
            zoo.build("broken:net", (4,), 3)
        with pytest.raises(fs.ParameterError, match=r"mynet\.py has no 'other'"):
            zoo.build("mynet:other", (4,), 3)
        assert sys.path == path
        for name in ("mynet", "mywidths"):  # so that they are looked for again, and by no other test
            del sys.modules[name]


# --- methods ---


def test_fedavg_is_the_weighted_mean_of_local_training() -> None:
    federation = sample_federation()
    method = fs.FedAvg(**SMALL)
    state = method.init_server(server(federation.task, derive(4, "server")))
    for number in (1, 2):
        start = take("model", state)
        trained = {
            name: training.train(method, start, site(federation.task, c.train, derive(4, "update", name, number)))[0]
            for name, c in federation.clients.items()
        }
        sizes = [len(c.train) for c in federation.clients.values()]
        mean = {
            tensor: np.average([model[tensor] for model in trained.values()], axis=0, weights=sizes) for tensor in start
        }
        state = {f"model/{tensor}": a.astype(np.float32) for tensor, a in mean.items()}
    found = fs.run(method, federation, seed=4).state
    for name in state:
        np.testing.assert_allclose(found[name], state[name], rtol=1e-3, atol=1e-5)


def test_fine_tuning_is_more_training_from_the_global_model() -> None:
    federation = sample_federation()
    result = fs.run(fs.FedAvgFT(**SMALL, finetune=3), federation)
    assert result.shared is not None
    client = federation.clients["site-2"]
    rng = derive(0, "personalize", "site-2", SMALL["rounds"])
    wanted, _ = training.train(
        fs.FedAvg(**SMALL), result.shared.arrays, site(federation.task, client.train, rng), epochs=3
    )
    for name, array in wanted.items():
        assert result.models["site-2"].arrays[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("method", [fs.FedAvgFT(**SMALL, finetune=0), fs.FedProxFT(**SMALL, finetune=0)])
def test_without_fine_tuning_everybody_has_the_global_model(method: fs.Method) -> None:
    result = fs.run(method, sample_federation())
    assert result.shared is not None
    for model in result.models.values():
        for name, array in result.shared.arrays.items():
            assert model.arrays[name].tobytes() == array.tobytes()


def test_a_stronger_pull_keeps_ditto_nearer_to_the_global_model() -> None:
    def distance(lam: float) -> float:
        result = fs.run(fs.Ditto(**SMALL, lam=lam), sample_federation())
        assert result.shared is not None
        shared = result.shared.arrays
        return sum(
            float(np.square(model.arrays[name] - shared[name]).sum())
            for model in result.models.values()
            for name in shared
        )

    assert distance(5.0) < distance(0.5) < distance(0.0)


def test_fedala_blends_by_descent_between_zero_and_one() -> None:
    """One step of the blend against its definition, with the gradient by differences."""
    federation = sample_federation(sizes=(30,))
    task, samples = federation.task, federation.clients["site-0"].train
    old, new = (networks.initial("lr", task, derive(seed)) for seed in (0, 1))
    ones = {name: np.ones_like(old[name]) for name in ("head.weight", "head.bias")}
    settings = Training(model="lr", batch=30)
    eta = 0.3
    weights, model = learn_blend(settings, old, new, ones, task, samples, derive(2), eta=eta, passes=1, settled=0.0)

    def loss(w: np.ndarray) -> float:
        v = old["head.weight"] + (new["head.weight"] - old["head.weight"]) * w
        scores = samples.inputs @ v.T.astype(np.float64) + new["head.bias"]
        scores -= scores.max(1, keepdims=True)
        return float((np.log(np.exp(scores).sum(1)) - scores[np.arange(30), samples.labels]).mean())

    step = 1e-4
    for place in [(0, 0), (1, 3), (2, 4)]:
        up, down = np.ones((3, 6)), np.ones((3, 6))
        up[place] += step
        down[place] -= step
        slope = (loss(up) - loss(down)) / (2 * step)
        assert weights["head.weight"][place] == pytest.approx(min(1.0, max(0.0, 1 - eta * slope)), abs=2e-3)
    blended = old["head.weight"] + (new["head.weight"] - old["head.weight"]) * weights["head.weight"]
    np.testing.assert_allclose(model["head.weight"], blended, atol=1e-5)
    assert (weights["head.weight"] < 1).any()


def test_what_the_head_sees_is_computed_once_while_fedala_blends_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as there are passes it would be the same; the blend is that of the whole network, to rounding."""
    task, samples = fs.Task(fs.Classes(3), (6, 6)), fs.Samples(derive(1).normal(size=(50, 6, 6)), np.arange(50) % 3)
    settings = fs.FedALA(model="mlp:7,5", batch=8)
    old, new = (networks.initial(settings.model, task, derive(seed)) for seed in (3, 4))
    ones = {name: np.ones_like(new[name]) for name in ("head.weight", "head.bias")}
    forwards = []
    body = torch.nn.Flatten.forward

    def counted(self: Any, rows: Any) -> Any:
        forwards.append(len(rows))
        return body(self, rows)

    monkeypatch.setattr(torch.nn.Flatten, "forward", counted)

    def learnt() -> Any:
        forwards.clear()
        return learn_blend(settings, old, new, ones, task, samples, derive(2), eta=0.5, passes=4, settled=0.0)

    weights, model = learnt()
    assert forwards.count(50) == 1 and sum(forwards) < 2 * 50  # beside two rows that tell how many features there are
    monkeypatch.setattr(zoo, "named", lambda spec: False)
    other, whole = learnt()
    assert sum(forwards) == 4 * 50
    for found, wanted in ((weights, other), (model, whole)):
        assert found.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-5)
    assert any((weight < 1).any() for weight in weights.values())  # something was learnt


def test_fedala_keeps_its_blend_between_rounds_and_to_itself() -> None:
    federation = sample_federation()
    method = fs.FedALA(**SMALL)
    task, client = federation.task, federation.clients["site-0"]
    state = method.init_server(server(task, derive(0, "server")))
    first, reply = method.update({}, method.message(state, "", "update"), site(task, client.train, derive(1)))
    assert not any(name.startswith("blend/") for name in first)  # nothing to blend yet
    assert not any("blend" in name for name in reply)
    moved = {name: array + np.float32(0.1) if name.startswith("model/") else array for name, array in state.items()}
    second, _ = method.update(first, method.message(moved, "", "update"), site(task, client.train, derive(2)))
    assert {name for name in second if name.startswith("blend/")} == {"blend/head.weight", "blend/head.bias"}


# --- FedAPA ---


def apa(**settings: Any) -> fs.FedAPA:
    return fs.FedAPA(**{**SMALL, "rounds": 4, **settings})


def slow_aggregate(method: fs.FedAPA, weights: np.ndarray, bodies: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """FedAPA (5) to (7), corrected, by differences of the proxy loss through what is descended on."""
    count = len(weights)
    step = 1e-5

    def mixture(i: int, row: np.ndarray) -> np.ndarray:
        if not method.centred:
            return np.asarray(row @ bodies)
        if method.normalise == "exact" and method.own:
            others = np.where(np.arange(count) == i, 0.0, row)
            return np.asarray(others @ bodies / others.sum())
        return np.asarray(row @ bodies / row.sum())

    new = weights.copy()
    for i in range(count):
        fixed = trained[i] - weights[i] @ bodies  # D_i, which the gradient of the mixture meets
        for j in range(count):
            up, down = weights[i].copy(), weights[i].copy()
            up[j] += step
            down[j] -= step
            slope = (mixture(i, up) - mixture(i, down)) / (2 * step)
            if method.centred:
                slope *= (weights[i].sum() - weights[i, i]) if method.normalise == "exact" and method.own else 1.0
            if method.centred and method.normalise == "exact" and method.own and i == j:
                slope = np.zeros_like(fixed)  # the own weight is set, not learnt
            scale = fixed @ fixed if method.scaled else 1.0
            new[i, j] += method.eta * (slope @ fixed) / scale
    if method.clip:
        new = np.clip(new, 0, 1)
    for i in range(count):
        if method.own:
            new[i, i] = method.mu
        if method.normalise == "paper":
            new[i] /= new[i].sum()
        elif method.normalise == "exact":
            others = new[i].sum() - new[i, i]
            new[i] *= (1 - method.mu) / others if others else 0.0
            new[i, i] = method.mu if others else 1.0
    return new


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("normalise", ["exact", "paper", "none"])
def test_fedapa_descends_on_the_clients_changes(centred: bool, scaled: bool, normalise: str) -> None:
    method = apa(centred=centred, scaled=scaled, normalise=normalise, eta=0.02, mu=0.4)
    rng = np.random.default_rng(0)
    count, task = 4, fs.Task(fs.Classes(3), (6,))
    state = dict(method.init_server(server(task, derive(0, "server"))))
    names = [f"c{i}" for i in range(count)]
    size = sum(array.size for name, array in state.items() if name.startswith("start/model/"))
    bodies, trained = (rng.normal(size=(count, size)).astype(np.float32) for _ in range(2))
    weights = rng.uniform(0.2, 0.4, size=(count, count))
    np.fill_diagonal(weights, 0.4)
    weights /= weights.sum(1, keepdims=True)
    start = {name.removeprefix("start/"): array for name, array in state.items() if name.startswith("start/")}
    state |= {
        "clients": np.frombuffer("\n".join(names).encode(), np.uint8), "weights": weights,
        "bodies": bodies, "mixed": (weights @ bodies).astype(np.float32),
    }  # fmt: skip
    replies: dict[str, np.ndarray] = {}
    for name, row in zip(names, trained, strict=True):
        sent = {**shaped(row, start, parts.order(start)), "loss": np.array(1.0), "count": np.array(5)}
        replies |= {f"{name}/{part}": array for part, array in sent.items()}
    found = method.aggregate(state, replies, server(task))
    wanted = slow_aggregate(method, weights, bodies.astype(float), trained.astype(float))
    np.testing.assert_allclose(found["weights"], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["mixed"], wanted @ trained, rtol=1e-3, atol=1e-4)


def test_fedapa_recovers_a_mixture_that_is_there() -> None:
    """The change of client 0 points at a mixture of two others: its row goes there, as (7) with a plus says."""
    eta, mu = 0.2, 0.5
    rng = np.random.default_rng(1)
    bodies = rng.normal(size=(5, 400)) / 20.0
    weights = listening.first_weights(5, mu, even=True)
    target = 0.5 * bodies[0] + 0.3 * bodies[1] + 0.2 * bodies[2]
    own = np.array([0])
    for _ in range(300):
        mixed = weights[:1] @ bodies
        slope = listening.gradient(
            weights[:1], own, bodies, mixed, target[None], centred=True, fixed=True, scaled=False
        )
        weights[:1] = listening.settled(weights[:1] - eta * slope, own, mu, clip=True, normalise="exact")
    np.testing.assert_allclose(weights[0], [0.5, 0.3, 0.2, 0, 0], atol=1e-2)


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0])
def test_fedapa_normalisation_gives_the_own_weight_that_was_asked_for(mu: float) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(0.3, 0.5, size=(6, 6))
    settled = listening.settled(rows, np.arange(6), mu, clip=True, normalise="exact")
    np.testing.assert_allclose(settled.sum(1), 1.0)
    np.testing.assert_allclose(np.diag(settled), mu)
    assert (settled >= 0).all()
    paper = listening.settled(np.array([[0.5, 1.0, 0.9]]), np.array([0]), 0.5, clip=True, normalise="paper")
    np.testing.assert_allclose(paper, [[0.5 / 2.4, 1 / 2.4, 0.9 / 2.4]])  # not 0.5: what the paper's text claims
    nobody = listening.settled(np.array([[0.2, -1.0, 0.0]]), np.array([0]), 0.5, clip=True, normalise="exact")
    np.testing.assert_array_equal(nobody, [[1.0, 0.0, 0.0]])


def test_fedapa_keeps_heads_at_home_and_rows_at_one() -> None:
    federation = sample_federation()
    method = apa()
    task, client = federation.task, federation.clients["site-0"]
    state = method.init_server(server(task, derive(0, "server")))
    private, reply = method.update({}, method.message(state, "site-0", "update"), site(task, client.train, derive(1)))
    assert {"head.weight", "head.bias"} <= private.keys()
    assert not any("head" in name for name in reply)
    result = fs.run(method, federation)
    assert not any("head" in name for name in method.message(result.state, "site-0", "update"))
    np.testing.assert_allclose(result.state["weights"].sum(1), 1.0)
    assert result.state["weights"].shape == (6, 6)


def test_fedapa_with_partial_participation_learns_rows_of_those_that_answered() -> None:
    federation = sample_federation()
    result = fs.run(apa(rounds=5), federation, participation=0.6, seed=2)
    seen = result.state["clients"].tobytes().decode().split("\n")
    assert seen == sorted(seen)
    assert result.state["weights"].shape == (len(seen), len(seen))
    np.testing.assert_allclose(result.state["weights"].sum(1), 1.0)
    assert len(result.models) == 6


def test_fedapa_newcomers_take_their_share_from_all_alike() -> None:
    known = np.array([[0.4, 0.5, 0.1], [0.3, 0.4, 0.3], [0.6, 0.0, 0.4]])
    old = np.array([0, 2, 4])
    found = listening.widened(listening.first_weights(5, 0.4, even=True), known, old, even=True)
    np.testing.assert_allclose(found.sum(1), 1.0)
    np.testing.assert_allclose(np.diag(found), 0.4)
    np.testing.assert_allclose(found[0], [0.4, 0.15, 0.25, 0.15, 0.05])
    found = listening.widened(listening.first_weights(5, 0.4, even=False), known, old, even=False)
    np.testing.assert_allclose(found[np.ix_(old, old)], known)
    np.testing.assert_allclose(found[[1, 3]], np.eye(5)[[1, 3]])


def test_fedapa_frozen_at_even_weights_mixes_evenly() -> None:
    state = fs.run(apa(eta=0.0, mu=0.4, start="even"), sample_federation(), evaluate_every=4).state
    others = (state["bodies"].sum(0) - state["bodies"]) / 5
    np.testing.assert_allclose(state["mixed"], 0.4 * state["bodies"] + 0.6 * others, rtol=1e-4, atol=1e-6)


def test_fedapa_needs_something_to_share() -> None:
    with pytest.raises(fs.ParameterError, match="share=all"):
        fs.run(apa(model="lr"), sample_federation())
    fs.run(apa(model="lr", share="all"), sample_federation())


def two_groups(clients: int = 6, size: int = 200) -> fs.Federation:
    """Half of the clients call the classes by other names."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 10)) * 1.5
    made = {}
    for number in range(clients):
        y = rng.integers(4, size=size + 100)
        x = centres[y] + rng.normal(size=(len(y), 10))
        named = (y + 2 * (number % 2)) % 4
        made[f"c{number}"] = {"train": (x[:size], named[:size]), "test": (x[size:], named[size:])}
    return fs.Federation.from_arrays(made, classes=4)


def test_fedapa_finds_two_groups_with_permuted_labels() -> None:
    federation = two_groups()
    common: dict[str, Any] = {"model": "mlp:32", "rounds": 12, "epochs": 2, "batch": 20, "lr": 0.02}
    result, plain = fs.run(fs.FedAPA(**common), federation), fs.run(fs.FedAvg(**common), federation)
    weights = result.state["weights"]
    for i, row in enumerate(weights):
        within = [row[j] for j in range(6) if j != i and j % 2 == i % 2]
        across = [row[j] for j in range(6) if j % 2 != i % 2]
        assert min(within) > max(across)
    assert (result.accuracy.mean or 0) > (plain.accuracy.mean or 0) + 0.15


# --- local ---


def test_local_takes_networks_and_refuses_settings_without_effect() -> None:
    assert fs.Local(intercept=False).rounds == 1
    network: Any = fs.Local(model="lr")  # type: ignore[call-arg]  # another class, by `model`
    assert network == fs.LocalNetwork(model="lr") == create("local", {"model": "lr"})
    assert create("local", {"model": "ridge", "ridge": "1"}) == fs.Local(ridge=1.0)
    assert fs.LocalNetwork(model="lr").rounds == 50
    assert replace(fs.LocalNetwork(model="lr", rounds=3)).rounds == 3
    for wrong, name in (
        ({"epochs": 3}, "epochs"), ({"model": "lr", "ridge": 1.0}, "ridge"),
        ({"rounds": 2}, "rounds"), ({"model": "lr", "intercept": True}, "intercept"),
    ):  # fmt: skip
        with pytest.raises(fs.FedsolveError, match=name):
            fs.Local(**wrong)
    federation = sample_federation()
    result = fs.run(fs.LocalNetwork(**SMALL), federation)
    assert result.bytes_up == result.bytes_down == 0
    rng = derive(0, "client", "site-0")
    start = networks.initial("mlp:8", federation.task, rng)
    for number in (1, 2):
        start, _ = training.train(
            fs.FedAvg(**SMALL),
            start,
            site(federation.task, federation.clients["site-0"].train, derive(0, "update", "site-0", number)),
        )
    assert start["head.weight"].tobytes() == result.models["site-0"].arrays["head.weight"].tobytes()


def test_divergence_is_an_error_that_names_the_client() -> None:
    with pytest.raises(fs.DataError, match=r"client 'site-\d': training diverged.*lower lr"):
        fs.run(fs.FedAvg(**{**SMALL, "lr": 1e30}), sample_federation())


def test_every_network_learns_images() -> None:
    for channels in (1, 3):
        x, y = images(120, channels=channels)
        parts = {f"c{i}": {"train": (x[i::3], y[i::3]), "test": (x[:30], y[:30])} for i in range(3)}
        federation = fs.Federation.from_arrays(parts, classes=3)
        for model in ("lenet5", "cnn:4,8", "mlp:16"):
            settings: dict[str, Any] = {"model": model, "rounds": 4, "epochs": 3, "batch": 8, "lr": 0.05}
            result = fs.run(fs.FedAvg(**settings), federation, evaluate_every=4)
            assert (result.accuracy.mean or 0) > 0.8, (model, channels)


def test_the_zoo_is_what_the_texts_promise() -> None:
    assert {example.partition(":")[0] for example in EXAMPLES} == zoo._ZOO.keys()
    for example in EXAMPLES:
        assert example in MODELS
        assert fs.FedAvg(model=example).model == example
