"""The one loop of local training that all gradient methods share: mini-batch SGD with momentum.

A hook changes the gradients of a step; `towards` makes the one that pulls parameters towards an anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedsolve.arrays import Array, Arrays, finite
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient.networks import as_arrays, as_tensor, one_thread, rebuild, sample_shape, seeded
from fedsolve.families.gradient.settings import Training
from fedsolve.method import Site

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]  # of scores and labels
Tensors = list[Tensor]
Hook = Callable[[Tensors, Tensors], None]  # changes gradients, given the parameters


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
    check_inputs(samples)
    with one_thread(), seeded(rng):
        module = rebuild(settings.model, start, sample_shape(task.shape), task.classes)
        module.train(len(samples) > 1)  # a single sample has no statistics: those of the start hold
        parameters = [tensor for name, tensor in module.named_parameters() if name not in frozen]
        for name, tensor in module.named_parameters():
            tensor.requires_grad_(name not in frozen)
        step = _sgd_step(parameters, settings.lr, settings.sgd_momentum)
        total = torch.zeros(())
        for _ in range(settings.epochs if epochs is None else epochs):
            total, seen = torch.zeros(()), 0
            for inputs, labels in batches(samples, settings.batch, rng):
                value = loss(module(inputs), labels)
                gradients = list(torch.autograd.grad(value, parameters))
                with torch.no_grad():
                    total += value.detach() * len(labels)
                    seen += len(labels)
                    if hook is not None:
                        hook(parameters, gradients)
                    step(gradients)
            total /= seen
        trained = as_arrays(module)
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
        alike = [g if g.stride() == p.stride() else like(p, g) for p, g in zip(parameters, gradients, strict=True)]
        torch._fused_sgd_(
            parameters, alike, velocity, weight_decay=0.0, momentum=momentum, lr=lr, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False,
        )  # fmt: skip

    return step


def towards(anchor: Arrays, strength: float, model: str, task: Task) -> Hook | None:
    """The gradient of strength/2 |w - anchor|^2, added to the loss's. Parameters only: buffers are not descended on."""
    if strength == 0:
        return None
    module = rebuild(model, anchor, sample_shape(task.shape), task.classes)
    fixed = [tensor.detach() for tensor in module.parameters()]

    def hook(parameters: Tensors, gradients: Tensors) -> None:
        torch._foreach_add_(gradients, parameters, alpha=strength)
        torch._foreach_add_(gradients, fixed, alpha=-strength)

    return hook


def batches(train: Samples, size: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass over the samples in random order. A last sample on its own joins the batch before it.

    Batch norm cannot do with one sample, and a step on a single sample is mostly noise.
    """
    order = rng.permutation(len(train))
    inputs, labels = as_tensor(train.inputs[order]), torch.from_numpy(train.labels[order])
    starts = list(range(0, max(1, len(order) - 1), size))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield inputs[start:end], labels[start:end]


def like(tensor: Tensor, values: Array | Tensor) -> Tensor:
    """The values in memory of their own that is laid out as the tensor's."""
    source = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    return torch.empty_like(tensor, requires_grad=False).copy_(source)


def check_inputs(samples: Samples) -> None:
    """Refuse samples that would make every weight NaN."""
    if samples.inputs.dtype.kind == "f" and not finite(samples.inputs):
        raise DataError("its inputs must be finite; clean them first")
