"""Many networks in one pass against one after the other: losses, estimates, changes, and what goes which way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.checks import sample_federation
from fedsolve.methods.baffle import BAFFLE
from fedsolve.methods.fedzo import FedZO
from fedsolve.rng import derive
from tests.contexts import site
from tests.methods.beside_fedavg import SMALL

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import networks, stacked, training, zeroth  # noqa: E402
from tests.methods.test_gradient import OWN  # noqa: E402

FEDERATION = sample_federation()
TASK, TRAIN = FEDERATION.task, FEDERATION.clients["site-0"].train
MODELS = ["lr", "mlp:8", "mlp:7,5,4"]


def network(spec: str, shape: tuple[int, ...] = (6,)) -> Any:
    """In double precision, so that rounding is far from what is looked for."""
    task = fs.Task(fs.Classes(3), shape)
    model = networks.rebuild(spec, networks.initial(spec, task, derive(0)), networks.sample_shape(shape), 3)
    return model.double().requires_grad_(False)


def batch(kind: str, shape: tuple[int, ...] = (6,), count: int = 9) -> tuple[Any, Any]:
    rng = derive(1)
    inputs = networks.as_tensor(rng.standard_normal((count, *shape))).double()
    labels = rng.integers(3, size=count) if kind == "classes" else rng.standard_normal((count, 3))
    return inputs, torch.tensor(labels)


def both_ways(spec: str, kind: str, shape: tuple[int, ...] = (6,)) -> tuple[Any, Any, Any]:
    """The parameters of a network, and its loss as a function without arguments, and along stacks too."""
    module, (inputs, labels) = network(spec, shape), batch(kind, shape)

    def plain() -> Any:
        return networks.misfit(module(inputs), labels)

    through = stacked.layers(spec, module)
    assert through is not None
    return list(module.parameters()), plain, stacked.stackable(plain, through, inputs, labels)


def room(at_once: int, parameters: Any, value: Any) -> int:
    """The size of a stack that holds so many networks."""
    total: int = at_once * (sum(tensor.numel() for tensor in parameters) + value.numbers)
    return total


# --- against one after the other ---


@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("spec", MODELS)
def test_losses_are_those_of_each_network_alone(spec: str, kind: str) -> None:
    parameters, plain, value = both_ways(spec, kind)
    places = [tensor + torch.tensor(derive(2).standard_normal((4, *tensor.shape))) for tensor in parameters]
    found = value.along(places)
    assert found.shape == (4,)
    for number in range(4):
        for tensor, place in zip(parameters, places, strict=True):
            tensor.copy_(place[number])
        assert float(found[number]) == pytest.approx(float(plain()), rel=1e-12)


def check_estimates(
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    centred: bool,
    spec: str = "mlp:8",
    kind: str = "classes",
    **shape: Any,
) -> None:
    """The same estimate from the same directions, whether they are tried in blocks or one after the other."""
    parameters, plain, value = both_ways(spec, kind, **shape)
    monkeypatch.setattr(zeroth, "STACK", room(at_once, parameters, value))
    scale = sum(tensor.numel() for tensor in parameters) / 0.01  # FedZO's
    found, one = (
        zeroth._estimate(way, parameters, [], zeroth.sphere(derive(3)), 8, 0.01, centred, scale)
        for way in (value, plain)
    )
    assert float(found[0]) == float(one[0])
    for ours, theirs in zip(found[1], one[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    assert max(float(part.abs().max()) for part in found[1]) > 0.1


@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_blocks_of_any_size_give_the_same_estimate(
    monkeypatch: pytest.MonkeyPatch, at_once: int, centred: bool, kind: str
) -> None:
    check_estimates(monkeypatch, at_once, centred, kind=kind)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3)])
def test_pictures_are_read_in_the_order_of_the_network(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    check_estimates(monkeypatch, 3, False, "lr", shape=shape)


def test_losses_in_another_order_than_directions_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stacked.misfits
    monkeypatch.setattr(stacked, "misfits", lambda *given: right(*given).flip(0))
    with pytest.raises(AssertionError):
        check_estimates(monkeypatch, 3, True)


@pytest.mark.parametrize("spec", MODELS)
def test_training_in_blocks_is_training_one_after_the_other(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    """In single precision, where rounding is all that may differ."""
    method, start = FedZO(**{**SMALL, "model": spec}), networks.initial(spec, TASK, derive(0))
    ways = []
    for stack in (zeroth.STACK, 0):
        monkeypatch.setattr(zeroth, "STACK", stack)
        estimate = zeroth.on_sphere(20, 0.05, derive(4))
        ways.append(training.train(method, start, site(TASK, TRAIN, derive(1)), estimate=estimate))
    assert ways[0][1] == pytest.approx(ways[1][1], rel=1e-4)
    for name, array in ways[0][0].items():
        np.testing.assert_allclose(array, ways[1][0][name], rtol=1e-4, atol=1e-4)
    assert max(float(np.abs(ways[0][0][name] - start[name]).max()) for name in start) > 0.02


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("spec", MODELS)
def test_changes_are_those_of_one_direction_after_the_other(
    monkeypatch: pytest.MonkeyPatch, spec: str, centred: bool
) -> None:
    method, model = BAFFLE(model=spec, exchange="losses", batch=7), networks.initial(spec, TASK, derive(0))
    ways = []
    for stack in (zeroth.STACK, 700, 0):
        monkeypatch.setattr(zeroth, "STACK", stack)
        ways.append(zeroth.changes(method, model, site(TASK, TRAIN), zeroth.agreed(5), 12, 1e-4, centred))
    for loss, found in ways[:2]:
        assert loss == ways[2][0]
        np.testing.assert_allclose(found, ways[2][1], rtol=1e-9)


# --- what goes which way ---


@pytest.mark.parametrize("spec", ["cnn:4", "lenet5", "resnet18", "dcnn:4,4,4,4"])
def test_networks_with_other_layers_go_one_after_the_other(spec: str) -> None:
    task = fs.Task(fs.Classes(3), (28, 28))
    module = networks.rebuild(spec, networks.initial(spec, task, derive(0)), (1, 28, 28), 3)
    assert stacked.layers(spec, module) is None


def kind_of_value(model: str, **given: Any) -> type:
    seen: list[Any] = []

    def estimate(value: Any, parameters: Any, buffers: Any) -> Any:
        seen.append(value)
        return value().detach(), [torch.zeros_like(tensor) for tensor in parameters]

    start = networks.initial(model, TASK, derive(0))
    training.train(FedZO(**{**SMALL, "model": model}), start, site(TASK, TRAIN), estimate=estimate, **given)
    return type(seen[0])


def test_only_the_misfit_of_all_of_a_networks_own_parameters_is_stacked() -> None:
    """An own network of the layers that are known, but with a hook, is not what its layers say."""
    assert kind_of_value("mlp:8") is stacked.Stackable
    assert kind_of_value(OWN) is partial
    assert kind_of_value(f"{__name__}:doubling") is partial
    assert kind_of_value("mlp:8", loss=lambda batch: 2 * batch.misfit) is partial
    assert kind_of_value("mlp:8", frozen=frozenset({"head.weight"})) is partial
    assert kind_of_value("mlp:8", extra={"bias": np.zeros(3, np.float32)}) is partial


def doubling(shape: tuple[int, ...], classes: int) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(shape[0], classes))
    module.register_forward_hook(lambda *seen: 2 * seen[2])
    return module


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_a_stack_has_no_more_numbers_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    parameters, plain, value = both_ways("mlp:8", "classes")
    monkeypatch.setattr(zeroth, "STACK", room(at_once + 1, parameters, value) - 1)
    sizes: list[int] = []
    drawn: list[int] = []

    def along(places: Any) -> Any:
        sizes.append(len(places[0]))
        return value.along(places)

    def draw(number: int, size: int) -> Any:
        drawn.append(number)
        return np.ones(size)

    zeroth._estimate(stacked.Stackable(plain, along, value.numbers), parameters, [], draw, 7, 0.1, False, 1.0)
    assert sizes == {1: [], 2: [2, 2, 2, 1], 5: [5, 2]}[at_once]  # one at a time: the plain way
    assert drawn == list(range(7))
