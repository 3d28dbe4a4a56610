"""Networks of gradient methods as named arrays: first weights, names of their parts, features, scores, class means.

Networks are values: arrays go in and come out, and a network is only there while it trains or predicts. Tensors have
their names in the state dict. Running statistics (of batch norm) are floating-point buffers: they travel and are
averaged like the parameters beside them. Counters are integers: they never travel and start at zero in every round.

Everything runs in one torch thread, so that a result has the same bits wherever and beside whatever it is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import cast

import numpy as np

from fedsolve.arrays import Array, Arrays, Float, finite
from fedsolve.data.samples import Samples
from fedsolve.data.target import Numbers
from fedsolve.data.task import Task
from fedsolve.errors import DataError, ParameterError, brief

try:
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call
    from torch.nn.functional import cross_entropy
except ModuleNotFoundError as missing:
    raise ParameterError("gradient methods need torch: pip install 'fedsolve[torch]'") from missing

from fedsolve.families.gradient import prototypes, tensors, zoo
from fedsolve.families.gradient.tensors import array_of, here, tensor_of

PREDICT_ROWS = 512  # samples scored at once
Tensors = list[Tensor]


# --- networks and arrays ---


def initial(model: str, task: Task, rng: np.random.Generator) -> dict[str, Array]:
    """A network's first weights, drawn from the generator."""
    with seeded(rng), torch.device("cpu"):  # the same weights, whatever the device
        return as_arrays(zoo.build(model, sample_shape(task.shape), task.outputs))


def body(model: str, task: Task) -> frozenset[str]:
    """The names of the tensors of a network's body: all but its head's."""
    return _names(model, sample_shape(task.shape), task.outputs)[0]


def check_body(model: str, task: Task, owner: str) -> None:
    """Refuse a network whose body has nothing to train."""
    if not body(model, task) & parameter_names(model, task):
        raise ParameterError(
            f"parameter 'model' of {owner}: {model} is a head without a body; use a network with one, as mlp:64"
        )


def parameter_names(model: str, task: Task) -> frozenset[str]:
    """The names of what is trained, without buffers."""
    return _names(model, sample_shape(task.shape), task.outputs)[1]


def head(model: str, task: Task) -> frozenset[str]:
    """The names of the tensors of a network's head."""
    shape = sample_shape(task.shape)
    return frozenset(_tensors(_pristine(model, shape, task.outputs))) - _names(model, shape, task.outputs)[0]


def top_layers(model: str, task: Task, count: int) -> frozenset[str]:
    """The names of the parameters of the last `count` layers."""
    module = _pristine(model, sample_shape(task.shape), task.outputs)
    top = tuple(f"{layer}." for layer in zoo.layers(module)[-count:])
    return frozenset(name for name in parameter_names(model, task) if name.startswith(top))


def feature_size(model: str, task: Task) -> int:
    """How many numbers the head sees of a sample."""
    return _feature_size(model, sample_shape(task.shape), task.outputs)


@lru_cache(maxsize=8)
def _feature_size(model: str, shape: tuple[int, ...], classes: int) -> int:
    with torch.inference_mode():
        both = zoo.apart(copy.deepcopy(_pristine(model, shape, classes)).eval())
        seen, _ = both(torch.zeros(2, *shape, device=here()))
    return int(seen.shape[1])


@lru_cache(maxsize=8)
def _names(model: str, shape: tuple[int, ...], classes: int) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the tensors of the body, and those of all parameters."""
    module = _pristine(model, shape, classes)
    trained = frozenset(name for name, _ in module.named_parameters())
    return frozenset(_tensors(module)) - zoo.head_names(module), trained


@lru_cache(maxsize=8)
def _shapes(model: str, shape: tuple[int, ...], classes: int, most: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a network's tensors, by name; of one in `zoo` without any of its memory, as a file may name it.

    `most` is how many tensors it can have: one with more layers is refused before they are made.
    """
    if not zoo.named(model):
        module = _pristine(model, shape, classes)
    else:
        if zoo.depth(model) > most:
            raise DataError(f"model {model[:80]}: it has {zoo.depth(model)} layers, and its arrays are {most}")
        try:
            with torch.device("meta"):
                module = zoo.build(model, shape, classes)
        except (RuntimeError, TypeError, OverflowError) as error:
            raise DataError(f"model {model[:80]} is larger than a network can be") from error
    return {name: tuple(tensor.shape) for name, tensor in _tensors(module).items()}


def _pristine(model: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network on the device that nobody trains: copies of it do. Its own weights are never looked at."""
    return _placed(model, shape, classes, here())


@lru_cache(maxsize=8)
def _placed(model: str, shape: tuple[int, ...], classes: int, device: torch.device) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(0)
        module = zoo.build(model, shape, classes)
    return module.to(device, memory_format=torch.channels_last)


def rebuild(model: str, arrays: Arrays, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A new network with these weights. A copy each time, so that nothing is left over from an earlier one."""
    shapes = _shapes(model, shape, classes, len(arrays))
    if shapes.keys() != arrays.keys():
        strange = sorted(shapes.keys() ^ arrays.keys())
        raise DataError(f"model {model[:100]}: tensors {brief(strange)} are on one side only")
    for name, sides in shapes.items():
        if arrays[name].shape != sides:
            raise DataError(f"model {model[:100]}: {name!r} must have shape {sides}; got {arrays[name].shape}")
    pristine = _pristine(model, shape, classes)
    module = _twin(pristine) if zoo.named(model) else copy.deepcopy(pristine)
    with torch.no_grad():
        for name, tensor in _tensors(module).items():
            tensor.copy_(tensor_of(np.array(arrays[name])))
    return module


def laid_out(arrays: Arrays, model: str, task: Task) -> Tensors:
    """Arrays with the names of a network's parameters, as tensors in their order that lie in memory as they do."""
    parameters = dict(_pristine(model, sample_shape(task.shape), task.outputs).named_parameters())
    for name, tensor in parameters.items():
        got = arrays[name].shape if name in arrays else None
        if got != tuple(tensor.shape):  # which copying would stretch
            raise DataError(f"model {model[:100]}: {name!r} must have shape {tuple(tensor.shape)}; got {got}")
    return [like(tensor, arrays[name]) for name, tensor in parameters.items()]


def unlaid(laid: Tensors, model: str, task: Task) -> dict[str, Array]:
    """The inverse of `laid_out`: tensors in the order of a network's parameters as arrays with their names."""
    module = _pristine(model, sample_shape(task.shape), task.outputs)
    names = [name for name, _ in module.named_parameters()]
    return {n: np.array(array_of(tensor), order="C") for n, tensor in zip(names, laid, strict=True)}


def like(tensor: Tensor, values: Array | Tensor) -> Tensor:
    """The values in memory of their own that is laid out as the tensor's."""
    source = values if isinstance(values, Tensor) else tensor_of(np.array(values))
    return torch.empty_like(tensor, requires_grad=False).copy_(source)


def _twin(module: nn.Module) -> nn.Module:
    """A network of the same structure with parameters of its own, not filled yet, and its own copies of buffers.

    For networks that hold nothing else. A deep copy would also copy the many empty tables of every module, which takes
    as long as a few steps of a small network.
    """
    twin = copy.copy(module)
    contents = {
        "_parameters": {
            name: p if p is None else nn.Parameter(torch.empty_like(p)) for name, p in module._parameters.items()
        },
        "_buffers": {name: b if b is None else b.clone() for name, b in module._buffers.items()},
        "_modules": {name: _twin(child) for name, child in module.named_children()},
    }
    twin.__dict__.update(contents)
    return twin


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """What makes up a network: parameters and floating-point buffers."""
    return {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if tensor.is_floating_point()}


def as_arrays(module: nn.Module) -> dict[str, Array]:
    """The weights and running statistics of a network, copied out of it."""
    return {name: np.array(array_of(tensor), order="C") for name, tensor in _tensors(module).items()}


def as_function(model: str, head: Arrays, task: Task) -> Callable[[Tensor], Tensor]:
    """What a head with these weights makes of features, as at prediction."""
    apply = head_function(model, task)
    weights = {name: tensor_of(np.array(array)) for name, array in head.items()}
    return lambda features: apply(weights, features)


def head_function(model: str, task: Task) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """What a network's head makes of features, as at prediction: a function of the head's tensors, by name, too."""
    module = _pristine(model, sample_shape(task.shape), task.outputs)
    prefix = zoo.head_prefix(module)
    fixed = copy.deepcopy(zoo.head(module)).eval()

    def apply(named: Mapping[str, Tensor], features: Tensor) -> Tensor:
        weights = {name.removeprefix(prefix): tensor for name, tensor in named.items()}
        return cast(Tensor, functional_call(fixed, weights, (features,)))

    return apply


def head_scores(model: str, head: Arrays, seen: Array, task: Task) -> Array:
    """The scores that a head with these weights gives for features, one row per sample."""
    with one_thread(), torch.inference_mode():
        return array_of(as_function(model, head, task)(tensor_of(np.array(seen))))


# --- inputs ---


def sample_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sample as networks take it: images with their channels in front."""
    if len(shape) == 2:
        return (1, *shape)
    return (shape[2], *shape[:2]) if len(shape) == 3 else (int(np.prod(shape)),)


def as_tensor(rows: Array) -> Tensor:
    """Samples as a float32 tensor; images keep their channels last in memory. Bytes are brought to -1 ... 1."""
    tensor = torch.empty(rows.shape, dtype=torch.float32, device=here())  # torch's own memory: aligned alike everywhere
    tensor.copy_(tensor_of(np.array(rows) if not rows.flags.writeable else rows))
    if rows.dtype == np.uint8:
        tensor.mul_(1 / 127.5).sub_(1.0)
    if rows.ndim == 3:
        # Not unsqueeze(1): its strides read as channels-first too, and convolution and pooling would take that way.
        return tensor.unsqueeze(3).permute(0, 3, 1, 2)
    return tensor.permute(0, 3, 1, 2) if rows.ndim == 4 else tensor.flatten(1)


def check_inputs(samples: Samples) -> None:
    """Refuse samples that would make every weight NaN."""
    if samples.inputs.dtype.kind == "f" and not finite(samples.inputs):
        raise DataError("its inputs must be finite; clean them first")


# --- what a network makes of samples ---


def scores(model: str, arrays: Arrays, inputs: Array, task: Task) -> Array:
    """The network's scores, one row per sample; for numbers, these about their origin and over their scale."""
    return _outputs(model, arrays, inputs, task, task.outputs, lambda module: module)


def predictions(model: str, arrays: Arrays, inputs: Array, task: Task) -> Array:
    """What the network says of samples: scores of classes, or numbers in the target's own units."""
    return in_units(scores(model, arrays, inputs, task), task)


def in_units(outputs: Array, task: Task) -> Array:
    """What a network gives in the units of the target: scores as they are, numbers from those it is trained on."""
    return task.target.of_standard(outputs) if isinstance(task.target, Numbers) else outputs


def trained_on(samples: Samples, task: Task) -> Samples:
    """Samples with labels as a network is trained on them: numbers about their origin, over their scale."""
    if not isinstance(task.target, Numbers):
        return samples
    return Samples(samples.inputs, task.target.standard(samples.labels).astype(np.float32))


def misfit(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of scores, or the squared error of numbers, which is the mean over several."""
    if not labels.is_floating_point():
        return cross_entropy(outputs, labels, reduction=reduction)
    squares = (outputs - labels).square().mean(1)
    return squares.mean() if reduction == "mean" else squares.sum()


def features(model: str, arrays: Arrays, inputs: Array, task: Task) -> Array:
    """What the network's head sees, one row per sample."""

    def seen(module: nn.Module) -> Callable[[Tensor], Tensor]:
        both = zoo.apart(module)
        return lambda rows: both(rows)[0]

    return _outputs(model, arrays, inputs, task, feature_size(model, task), seen)


def _outputs(
    model: str,
    arrays: Arrays,
    inputs: Array,
    task: Task,
    width: int,
    function: Callable[[nn.Module], Callable[[Tensor], Tensor]],
) -> Array:
    with one_thread(), torch.inference_mode():
        forward = function(rebuild(model, arrays, sample_shape(inputs.shape[1:]), task.outputs).eval())
        result = np.empty((len(inputs), width), dtype=np.float32)
        for first in range(0, len(inputs), PREDICT_ROWS):
            rows = slice(first, first + PREDICT_ROWS)
            result[rows] = array_of(forward(as_tensor(inputs[rows])))
    return result


def class_means(model: str, arrays: Arrays, samples: Samples, task: Task) -> tuple[Float, Array]:
    """The mean of each class's features, zeros where it has no sample, and the number of samples behind each."""
    check_inputs(samples)
    return prototypes.by_class(features(model, arrays, samples.inputs, task), samples.labels, task.classes)


def nearest(points: Array, means: Array, known: Array) -> Float:
    """Scores by distance: -|z - m_c|^2, and for a class that is not `known` less than for all that are.

    A row's scores depend on no other row.
    """
    there = np.asarray(known, dtype=bool)
    apart: Float = np.stack([np.square(np.subtract(points, mean, dtype=np.float64)).sum(1) for mean in means], axis=1)
    farthest = apart.max(1, keepdims=True, initial=0.0, where=there)
    return -np.where(there, apart, 2.0 * farthest + 1.0)


# --- surroundings ---


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes in a single thread; how many it had before is put back after."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[None]:
    """Torch's own generators, which dropout and first weights draw from, seeded from ours and put back after."""
    before = tensors.draws()
    tensors.seed_draws(int(rng.integers(2**63)))
    try:
        yield
    finally:
        tensors.redraw(before)
