"""ResNet-18 and VGG-11: as many numbers as the papers have, training that learns, norms whose statistics travel."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import methods
from fedsolve.arrays import Arrays, take
from fedsolve.families.gradient.settings import Training
from fedsolve.methods import create
from fedsolve.rng import derive

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from torch import nn  # noqa: E402

from fedsolve.families.gradient import networks, training, zoo  # noqa: E402
from tests.contexts import server, site  # noqa: E402
from tests.methods.test_gradient import images  # noqa: E402

NAMES = ["resnet18", "resnet18-gn", "vgg11"]
SIDE = 16
TASK = fs.Task(fs.Classes(3), (SIDE, SIDE))


def parameters(name: str, shape: tuple[int, ...], classes: int) -> int:
    """How many numbers are trained, counted without any memory."""
    with torch.device("meta"):
        return sum(tensor.numel() for tensor in zoo.build(name, shape, classes).parameters())


# --- sizes ---


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 11_689_512), ("resnet18-gn", 11_689_512), ("vgg11", 132_863_336)]
)
def test_for_large_pictures_networks_are_those_of_the_papers(name: str, count: int) -> None:
    assert parameters(name, (3, 224, 224), 1000) == count
    assert parameters(name, (3, 65, 65), 1000) == count


def resnet_count(channels: int, classes: int) -> int:
    """A 3 x 3 stem; of each stage the four 3 x 3 convolutions, from the second on a 1 x 1 past them; two per norm."""
    count = 9 * channels * 64 + 2 * 64 + 4 * (9 * 64 * 64 + 2 * 64)
    for before, after in pairwise((64, 128, 256, 512)):
        count += 9 * before * after + 3 * 9 * after * after + before * after + 5 * 2 * after
    return count + 513 * classes


def vgg_count(channels: int, classes: int) -> int:
    widths = (channels, 64, 128, 256, 256, 512, 512, 512, 512)
    return sum((9 * before + 1) * after for before, after in pairwise(widths)) + 513 * classes


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (4, 64, 33)])
@pytest.mark.parametrize("classes", [10, 100])
def test_for_small_pictures_networks_have_another_beginning_or_end(shape: tuple[int, ...], classes: int) -> None:
    assert parameters("resnet18", shape, classes) == resnet_count(shape[0], classes)
    assert parameters("resnet18-gn", shape, classes) == resnet_count(shape[0], classes)
    assert parameters("vgg11", shape, classes) == vgg_count(shape[0], classes)
    assert resnet_count(3, 10) == 11_173_962


def test_which_form_is_a_matter_of_the_longest_side() -> None:
    for name in NAMES:
        assert (
            parameters(name, (3, 64, 64), 10) != parameters(name, (3, 64, 65), 10) == parameters(name, (3, 65, 8), 10)
        )


def strides(name: str, shape: tuple[int, ...]) -> list[int]:
    """The sides of what each module before the head is given, where they change."""
    module, sides = zoo.build(name, shape, 2).eval(), []
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.MaxPool2d | nn.AdaptiveAvgPool2d):
            part.register_forward_hook(lambda _, __, made: sides.append(made.shape[2]))
    with torch.inference_mode():
        module(torch.zeros(1, *shape))
    return [side for before, side in pairwise([shape[1], *sides]) if side != before]


def test_small_pictures_are_not_made_smaller_at_the_beginning() -> None:
    # A way past a block and the block itself both arrive at the new sides; the first of them is what changes.
    assert strides("resnet18", (3, 32, 32)) == [16, 8, 4, 1]
    assert strides("resnet18", (3, 96, 96)) == [48, 24, 12, 6, 3, 1]
    assert strides("vgg11", (1, 28, 28)) == [14, 7, 4, 2, 1]


SHAPES = [(5, 9), (1, 1), (28, 28), (12, 16, 5)]


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, shape) for name in NAMES for shape in SHAPES), ("resnet18", (70, 66, 3))]
)
def test_any_size_and_any_number_of_channels(name: str, shape: tuple[int, ...]) -> None:
    task = fs.Task(fs.Classes(4), shape)
    made = networks.initial(name, task, derive(0))
    assert made.keys() - networks.body(name, task) == {"head.weight", "head.bias"} == networks.head(name, task)
    x = np.random.default_rng(0).integers(256, size=(3, *shape), dtype=np.uint8)
    scores, seen = networks.scores(name, made, x, task), networks.features(name, made, x, task)
    assert scores.shape == (3, 4)
    assert seen.shape == (3, networks.feature_size(name, task)) == (3, 512)
    np.testing.assert_allclose(seen @ made["head.weight"].T + made["head.bias"], scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_refused(name: str) -> None:
    with pytest.raises(fs.ParameterError, match=f"{name} takes images"):
        networks.initial(name, fs.Task(fs.Classes(2), (6,)), derive(0))


# --- training ---


def entropy(name: str, model: Arrays, x: Any, y: Any) -> float:
    scores = networks.scores(name, model, x, TASK).astype(float)
    return float((np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y]).mean())


@pytest.mark.parametrize(
    ("name", "lr", "momentum"),
    [
        ("resnet18", 0.01, 0.5),
        pytest.param("resnet18-gn", 0.01, 0.5, marks=pytest.mark.long),
        pytest.param("vgg11", 0.02, 0.9, marks=pytest.mark.long),
    ],
)
def test_training_learns_and_signals_neither_vanish_nor_explode(name: str, lr: float, momentum: float) -> None:
    x, y = images(24, SIDE)
    start = networks.initial(name, TASK, derive(0))
    assert 0.01 < networks.features(name, start, x, TASK).std() < 100
    settings = Training(model=name, epochs=5, batch=12, lr=lr, sgd_momentum=momentum)
    model, loss = training.train(settings, start, site(TASK, fs.Samples(x, y), derive(1)))
    assert loss < 0.7 * min(np.log(3), entropy(name, start, x, y))
    assert (networks.scores(name, model, x, TASK).argmax(1) == y).mean() > 0.8


def test_a_network_in_training_shares_no_memory_with_another() -> None:
    """Running statistics are buffers: a copy that shared them would leave one client's at the next."""
    x, y = images(24, SIDE)
    start = networks.initial("resnet18", TASK, derive(0))
    settings = Training(model="resnet18", epochs=1, batch=12)
    first, again = (training.train(settings, start, site(TASK, fs.Samples(x, y), derive(1)))[0] for _ in range(2))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    one, two = (networks.rebuild("resnet18", start, (1, SIDE, SIDE), 3) for _ in range(2))
    places = [{tensor.data_ptr() for tensor in module.state_dict().values()} for module in (one, two)]
    assert not places[0] & places[1]


# --- batch norm in a federation ---


def federation() -> fs.Federation:
    """Two clients, one of them with pictures that are far brighter."""
    x, y = images(36, SIDE)
    parts = {"dim": slice(0, 20), "bright": slice(20, 36)}
    brighter = {"dim": x, "bright": x // 2 + 120}
    return fs.Federation.from_arrays(
        {name: {"train": (brighter[name][rows], y[rows])} for name, rows in parts.items()}, classes=3
    )


def statistics(arrays: Arrays) -> set[str]:
    return {name for name in arrays if name.rpartition(".")[2] in ("running_mean", "running_var")}


def test_fedavg_averages_running_statistics_and_evaluates_with_their_mean() -> None:
    method = fs.FedAvg(model="resnet18", rounds=1, epochs=1, batch=8, lr=0.01)
    clients, task = federation(), federation().task
    result = fs.run(method, clients, workers=1)
    assert result.shared is not None
    shared = result.shared.arrays
    assert len(statistics(shared)) == 2 * 20  # of 17 convolutions of 3 x 3 and three of 1 x 1
    assert not any("num_batches_tracked" in name for name in shared)
    start = take("model", method.init_server(server(task, derive(0, "server"))))
    trained, sizes = [], []
    for name, client in clients.clients.items():
        here = site(task, client.train, derive(0, "update", name, 1))
        trained.append(training.train(method, start, here)[0])
        sizes.append(len(client.train))
    assert not np.allclose(trained[0]["body.1.running_mean"], trained[1]["body.1.running_mean"], rtol=0.1)
    for name in shared:
        wanted = np.average([each[name] for each in trained], axis=0, weights=sizes)
        np.testing.assert_allclose(shared[name], wanted, rtol=1e-4, atol=1e-5)
    # A second derivation of the evaluation: torch's own module in eval mode, loaded with the averaged state.
    module = zoo.build("resnet18", (1, SIDE, SIDE), 3).eval()
    loaded = module.load_state_dict({n: torch.tensor(a) for n, a in shared.items()}, strict=False)
    assert all(name.endswith("num_batches_tracked") for name in loaded.missing_keys)
    assert not loaded.unexpected_keys
    x = clients.clients["bright"].train.inputs
    with torch.inference_mode():
        wanted = module(torch.tensor(x.astype(np.float32) / 127.5 - 1)[:, None]).numpy()
    np.testing.assert_allclose(method.predict(shared, x, task), wanted, rtol=1e-3, atol=1e-4)
    # One picture's scores do not depend on those beside it, as they would with statistics of the batch.
    np.testing.assert_allclose(method.predict(shared, x[:1], task), wanted[:1], rtol=1e-3, atol=1e-4)


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network with batch norm in its body."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes)
    )  # fmt: skip


OWN = f"{__name__}:normed"
GRADIENT = sorted(
    name
    for name in methods.CATALOGUE
    if any(not cls.closed_form and hasattr(cls, "lr") for cls in methods.classes(name))
)


@pytest.mark.parametrize("name", GRADIENT)
def test_every_method_serves_batch_norm(name: str) -> None:
    """Each client's model has statistics of its own or of all, finite, and moved by training."""
    small: dict[str, Any] = {"model": OWN, "rounds": 2, "epochs": 1, "batch": 8}
    result = fs.run(create(name, small), federation(), workers=1)
    start = networks.initial(OWN, TASK, derive(0))
    for model in result.models.values():
        found = [model.arrays[each] for each in model.arrays if each.endswith("2.running_var")]
        assert len(found) == 1
        assert np.isfinite(found[0]).all()
        assert (found[0] > 0).all()
        assert not np.allclose(found[0], start["2.running_var"], rtol=1e-3)


def test_changes_of_the_loss_alone_leave_statistics_as_they_were() -> None:
    result = fs.run(fs.BAFFLE(model=OWN, rounds=1, exchange="losses", directions=3), federation(), workers=1)
    assert result.shared is not None
    assert (result.shared.arrays["2.running_var"] == 1).all()


def test_frozen_statistics_stay_and_norms_go_by_them() -> None:
    x, y = images(24, SIDE)
    start = networks.initial(OWN, TASK, derive(0))
    start = {**start, "2.running_mean": start["2.running_mean"] + 0.3}
    body = networks.body(OWN, TASK)
    settings = Training(model=OWN, epochs=1, batch=24, lr=0.5, sgd_momentum=0.0)
    found, loss = training.train(settings, start, site(TASK, fs.Samples(x, y), derive(1)), frozen=body)
    for name in start:
        assert (found[name].tobytes() == start[name].tobytes()) == (name in body)
    assert loss == pytest.approx(
        entropy(OWN, start, x, y), rel=1e-4
    )  # the loss of what is predicted, not of the batch's statistics


def test_batches_of_one_are_refused_with_batch_norm_and_taken_without() -> None:
    with pytest.raises(fs.ParameterError, match="'batch' must be at least 2 for a network with batch norm"):
        fs.run(fs.FedAvg(model=OWN, rounds=1, batch=1), federation(), workers=1)
    x, y = images(3, SIDE)
    start = networks.initial("resnet18-gn", TASK, derive(0))
    settings = Training(model="resnet18-gn", epochs=1, batch=1)
    training.train(settings, start, site(TASK, fs.Samples(x, y), derive(1)))


def test_a_client_of_one_sample_takes_part() -> None:
    x, y = images(9, SIDE)
    start = networks.initial("resnet18", TASK, derive(0))
    found, _ = training.train(
        Training(model="resnet18", epochs=1), start, site(TASK, fs.Samples(x[:1], y[:1]), derive(1))
    )
    for name in statistics(start):
        assert found[name].tobytes() == start[name].tobytes()
