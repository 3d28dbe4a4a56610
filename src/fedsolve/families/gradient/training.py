"""The torch side of gradient methods: networks as named arrays, and the one loop of local training.

Networks are values: arrays go in and come out, and a network is only there while it trains or predicts. Tensors have
their names in the state dict. Running statistics (of batch norm) are floating-point buffers: they travel and are
averaged like the parameters beside them. Counters are integers: they never travel and start at zero in every round.

Everything runs in one torch thread, so that a result has the same bits wherever and beside whatever it is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from fedsolve.arrays import Array, Arrays, finite
from fedsolve.data.federation import Samples, Task
from fedsolve.errors import DataError, ParameterError
from fedsolve.families.gradient.settings import Training
from fedsolve.method import Site

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy
except ModuleNotFoundError as missing:
    raise ParameterError("gradient methods need torch: pip install 'fedsolve[torch]'") from missing

from fedsolve.families.gradient import zoo as _models

PREDICT_ROWS = 512  # samples scored at once
Loss = Callable[[Tensor, Tensor], Tensor]  # of scores and labels
Tensors = list[Tensor]
Hook = Callable[[Tensors, Tensors], None]  # changes gradients, given the parameters


# --- networks and arrays ---


def initial(model: str, task: Task, rng: np.random.Generator) -> dict[str, Array]:
    """A network's first weights, drawn from the generator."""
    with _seeded(rng):
        return _arrays(_models.build(model, _sample_shape(task.shape), task.classes))


def body(model: str, task: Task) -> frozenset[str]:
    """The names of the tensors of a network's body: all but its head's."""
    return _names(model, _sample_shape(task.shape), task.classes)[0]


def parameter_names(model: str, task: Task) -> frozenset[str]:
    """The names of what is trained, without buffers."""
    return _names(model, _sample_shape(task.shape), task.classes)[1]


def top_layers(model: str, task: Task, count: int) -> frozenset[str]:
    """The names of the parameters of the last `count` layers."""
    module = _pristine(model, _sample_shape(task.shape), task.classes)
    top = tuple(f"{layer}." for layer in _models.layers(module)[-count:])
    return frozenset(name for name in parameter_names(model, task) if name.startswith(top))


@lru_cache(maxsize=8)
def _names(model: str, shape: tuple[int, ...], classes: int) -> tuple[frozenset[str], frozenset[str]]:
    """Of the tensors of the body, and of all parameters."""
    module = _pristine(model, shape, classes)
    trained = frozenset(name for name, _ in module.named_parameters())
    return frozenset(_tensors(module)) - _models.head_names(module), trained


@lru_cache(maxsize=8)
def _pristine(model: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network that nobody trains: copies of it do. Its own weights are never looked at."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _models.build(model, shape, classes).to(memory_format=torch.channels_last)


def _network(model: str, arrays: Arrays, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A new network with these weights. A copy each time, so that nothing is left over from an earlier one."""
    pristine = _pristine(model, shape, classes)
    module = _twin(pristine) if _models.named(model) else copy.deepcopy(pristine)
    tensors = _tensors(module)
    if tensors.keys() != arrays.keys():
        raise DataError(f"model {model}: tensors {sorted(tensors.keys() ^ arrays.keys())} are on one side only")
    with torch.no_grad():
        for name, tensor in tensors.items():
            array = arrays[name]
            if array.shape != tuple(tensor.shape):
                raise DataError(f"model {model}: {name!r} must have shape {tuple(tensor.shape)}; got {array.shape}")
            tensor.copy_(torch.from_numpy(np.array(array)))
    return module


def _twin(module: nn.Module) -> nn.Module:
    """A network of the same structure with parameters of its own, not filled yet.

    For networks that hold nothing but parameters. A deep copy would also copy the many empty tables of every module,
    which takes as long as a few steps of a small network.
    """
    twin = copy.copy(module)
    own = {
        "_parameters": {
            name: p if p is None else nn.Parameter(torch.empty_like(p)) for name, p in module._parameters.items()
        },
        "_modules": {name: _twin(child) for name, child in module.named_children()},
    }
    twin.__dict__.update(own)
    return twin


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """What makes up a network: parameters and floating-point buffers."""
    return {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if tensor.is_floating_point()}


def _arrays(module: nn.Module) -> dict[str, Array]:
    return {name: np.array(tensor.detach().numpy(), order="C") for name, tensor in _tensors(module).items()}


# --- inputs ---


def _sample_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sample as networks take it: images with their channels in front."""
    if len(shape) == 2:
        return (1, *shape)
    return (shape[2], *shape[:2]) if len(shape) == 3 else (int(np.prod(shape)),)


def _inputs(rows: Array) -> Tensor:
    """Samples as a float32 tensor; images keep their channels last in memory. Bytes are brought to -1 ... 1."""
    tensor = torch.empty(rows.shape, dtype=torch.float32)  # torch's own memory: aligned alike everywhere
    tensor.copy_(torch.from_numpy(np.array(rows) if not rows.flags.writeable else rows))
    if rows.dtype == np.uint8:
        tensor.mul_(1 / 127.5).sub_(1.0)
    if rows.ndim == 3:
        # Not unsqueeze(1): its strides read as channels-first too, and convolution and pooling would take that way.
        return tensor.unsqueeze(3).permute(0, 3, 1, 2)
    return tensor.permute(0, 3, 1, 2) if rows.ndim == 4 else tensor.flatten(1)


def _batches(train: Samples, size: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass over the samples in random order. A last sample on its own joins the batch before it.

    Batch norm cannot do with one sample, and a step on a single sample is mostly noise.
    """
    order = rng.permutation(len(train))
    inputs, labels = _inputs(train.inputs[order]), torch.from_numpy(train.labels[order])
    starts = list(range(0, max(1, len(order) - 1), size))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield inputs[start:end], labels[start:end]


# --- the one loop of local training ---


def train(
    settings: Training,
    start: Arrays,
    site: Site,
    *,
    epochs: int | None = None,
    loss: Loss = cross_entropy,
    hook: Hook | None = None,
    frozen: frozenset[str] = frozenset(),
) -> tuple[dict[str, Array], float]:
    """Mini-batch SGD on a client's samples: the trained model, and the mean loss over the batches of the last pass.

    `loss` of scores and labels is minimised; `hook` may change the gradients of a step; `frozen` tensors stay.
    """
    task, samples, rng = site.task, site.train, site.rng
    _check(samples)
    with _one_thread(), _seeded(rng):
        module = _network(settings.model, start, _sample_shape(task.shape), task.classes)
        module.train(len(samples) > 1)  # a single sample has no statistics: those of the start hold
        parameters = [tensor for name, tensor in module.named_parameters() if name not in frozen]
        for name, tensor in module.named_parameters():
            tensor.requires_grad_(name not in frozen)
        step = _sgd_step(parameters, settings.lr, settings.sgd_momentum)
        total = torch.zeros(())
        for _ in range(settings.epochs if epochs is None else epochs):
            total, seen = torch.zeros(()), 0
            for inputs, labels in _batches(samples, settings.batch, rng):
                value = loss(module(inputs), labels)
                gradients = list(torch.autograd.grad(value, parameters))
                with torch.no_grad():
                    total += value.detach() * len(labels)
                    seen += len(labels)
                    if hook is not None:
                        hook(parameters, gradients)
                    step(gradients)
            total /= seen
        trained = _arrays(module)
    mean = float(total)
    if not (np.isfinite(mean) and all(finite(array) for array in trained.values())):
        raise DataError(f"training diverged: the loss is {mean:.3g}; lower lr={settings.lr}, or scale the inputs")
    return trained, mean


def _sgd_step(parameters: Tensors, lr: float, momentum: float) -> Callable[[Tensors], None]:
    """V <- momentum v + g; w <- w - lr v, for all tensors at once."""
    if momentum == 0:
        return lambda gradients: torch._foreach_add_(parameters, gradients, alpha=-lr)
    velocity = [torch.zeros_like(tensor) for tensor in parameters]

    def step(gradients: Tensors) -> None:
        # The fused kernel reads memory as it lies, so a gradient must lie as its parameter does.
        alike = [g if g.stride() == p.stride() else _like(p, g) for p, g in zip(parameters, gradients, strict=True)]
        torch._fused_sgd_(
            parameters, alike, velocity, weight_decay=0.0, momentum=momentum, lr=lr, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False,
        )  # fmt: skip

    return step


def towards(anchor: Arrays, strength: float, model: str, task: Task) -> Hook | None:
    """The gradient of strength/2 |w - anchor|^2, added to the loss's. Parameters only: buffers are not descended on."""
    if strength == 0:
        return None
    module = _network(model, anchor, _sample_shape(task.shape), task.classes)
    fixed = [tensor.detach() for tensor in module.parameters()]

    def hook(parameters: Tensors, gradients: Tensors) -> None:
        torch._foreach_add_(gradients, parameters, alpha=strength)
        torch._foreach_add_(gradients, fixed, alpha=-strength)

    return hook


def learn_blend(
    settings: Training,
    old: Arrays,
    new: Arrays,
    weights: Arrays,
    task: Task,
    samples: Samples,
    rng: np.random.Generator,
    *,
    eta: float,
    passes: int,
    settled: float,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """FedALA (5), (6): v = old + (new - old) W elementwise on the tensors W names, and W by descent on the loss at v.

    Everything else of v is that of `new`. W stays between 0 and 1. It learns for at most `passes` passes, and stops
    once the losses of the last ten vary by less than `settled`. Returns W and v.
    """
    _check(samples)
    with _one_thread(), _seeded(rng):
        module = _network(settings.model, new, _sample_shape(task.shape), task.classes).eval()
        tensors = dict(module.named_parameters())
        for name, tensor in tensors.items():
            tensor.requires_grad_(name in weights)
        names = sorted(weights)
        blended = [tensors[name] for name in names]
        before, after = ([_like(tensors[n], arrays[n]) for n in names] for arrays in (old, new))
        share = [_like(tensors[name], weights[name]) for name in names]
        change = torch._foreach_sub(after, before)
        losses: list[float] = []

        def place() -> None:
            for tensor, low, high, weight in zip(blended, before, after, share, strict=True):
                tensor.copy_(torch.lerp(low, high, weight))  # at weight 1 exactly the new one

        with torch.no_grad():
            place()
        for _ in range(passes if eta else 0):
            total = torch.zeros(())
            for inputs, labels in _batches(samples, settings.batch, rng):
                value = cross_entropy(module(inputs), labels)
                gradients = torch.autograd.grad(value, blended)
                with torch.no_grad():
                    torch._foreach_addcmul_(share, gradients, change, value=-eta)
                    torch._foreach_clamp_min_(share, 0.0)
                    torch._foreach_clamp_max_(share, 1.0)
                    place()
                    total += value.detach() * len(labels)
            losses.append(float(total) / len(samples))
            if len(losses) >= 10 and np.std(losses[-10:]) < settled:
                break
        learnt = {name: np.array(weight.numpy(), order="C") for name, weight in zip(names, share, strict=True)}
        model = _arrays(module)
    if not all(finite(array) for array in (*learnt.values(), *model.values())):
        raise DataError(f"learning the blend diverged; lower eta={eta}, or scale the inputs")
    return learnt, model


def _like(tensor: Tensor, values: Array | Tensor) -> Tensor:
    """The values in memory of their own that is laid out as the tensor's."""
    source = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    return torch.empty_like(tensor, requires_grad=False).copy_(source)


# --- prediction ---


def scores(model: str, arrays: Arrays, inputs: Array, task: Task) -> Array:
    """The network's scores, one row per sample."""
    classes = task.classes
    result = np.empty((len(inputs), classes), dtype=np.float32)
    with _one_thread(), torch.inference_mode():
        module = _network(model, arrays, _sample_shape(inputs.shape[1:]), classes).eval()
        for first in range(0, len(inputs), PREDICT_ROWS):
            rows = slice(first, first + PREDICT_ROWS)
            result[rows] = module(_inputs(inputs[rows])).numpy()
    return result


# --- surroundings ---


def _check(samples: Samples) -> None:
    if samples.inputs.dtype.kind == "f" and not finite(samples.inputs):
        raise DataError("its inputs must be finite; clean them first")


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _seeded(rng: np.random.Generator) -> Iterator[None]:
    """Torch's own generator, which dropout and first weights draw from, seeded from ours and put back after."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which asks for every kind of accelerator, and takes longer than a small client's epoch.
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        yield
