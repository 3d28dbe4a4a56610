"""The one loop of local training that all gradient methods share: mini-batch descent on any loss.

A loss sees a `Batch`; a hook changes the gradients of a step; an estimate finds gradients without backpropagation; an
optimiser moves the parameters, by SGD with momentum unless another is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fedsolve.arrays import Array, Arrays, finite, under
from fedsolve.data.samples import Samples
from fedsolve.errors import DataError, ParameterError
from fedsolve.families.gradient import stacked, zoo
from fedsolve.families.gradient.hooks import Hook
from fedsolve.families.gradient.networks import (
    Tensors,
    as_arrays,
    as_tensor,
    check_inputs,
    misfit,
    one_thread,
    rebuild,
    sample_shape,
    seeded,
    trained_on,
)
from fedsolve.families.gradient.optimisers import Optimiser, sgd
from fedsolve.families.gradient.settings import Training
from fedsolve.families.gradient.tensors import array_of, here, tensor_of
from fedsolve.method import Site

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

Forward = Callable[[Tensor], tuple[Tensor, Tensor]]  # features and scores of inputs
Value = Callable[[], Tensor]  # the loss at the parameters as they are
Estimate = Callable[[Value, Tensors, Tensors], tuple[Tensor, Tensors]]
"""The loss and its gradient, of a loss, parameters and buffers, which it leaves as one evaluation of the loss does."""


class Batch:
    """A mini-batch as a loss sees it. What the network makes of it is computed when it is first asked for.

    `labels` and `inputs` are those of its samples, `beside` their rows of what was given beside them; `head` is the
    network's head, a function of features; `extra` is what is trained with the network.
    """

    __slots__ = ("_forward", "_outputs", "beside", "extra", "head", "inputs", "labels")

    def __init__(
        self,
        forward: Forward,
        head: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        beside: dict[str, Tensor],
        extra: dict[str, Tensor],
    ) -> None:
        self._forward, self.head, self.inputs, self.labels, self.beside = forward, head, inputs, labels, beside
        self.extra = extra
        self._outputs: tuple[Tensor, Tensor] | None = None

    def _both(self) -> tuple[Tensor, Tensor]:
        if self._outputs is None:
            self._outputs = self._forward(self.inputs)
        return self._outputs

    @property
    def features(self) -> Tensor:
        """What the head sees, one row per sample."""
        return self._both()[0]

    @property
    def scores(self) -> Tensor:
        """The network's scores, one row per sample."""
        return self._both()[1]

    @property
    def misfit(self) -> Tensor:
        """The cross-entropy of the scores, or the squared error of numbers: what is minimised if no loss is given."""
        return misfit(self.scores, self.labels)


Loss = Callable[[Batch], Tensor]


def train(
    settings: Training,
    start: Arrays,
    site: Site,
    *,
    epochs: int | None = None,
    loss: Loss | None = None,
    beside: Arrays | None = None,
    extra: Arrays | None = None,
    hook: Hook | None = None,
    frozen: frozenset[str] = frozenset(),
    estimate: Estimate | None = None,
    optimiser: Optimiser | None = None,
    repeat: int = 1,
    after: Callable[[Tensors], None] | None = None,
) -> tuple[dict[str, Array], float]:
    """Mini-batch descent on a client's samples: the trained model, and the mean loss over the batches of the last pass.

    `loss` of a batch is minimised, its misfit unless given; `beside` are arrays with one row per sample, of which a
    batch has its samples' rows; `extra` are arrays that are trained with the network, behind its parameters, and are
    returned below "extra/". `hook` may change the gradients of a step; `frozen` tensors stay, and norms whose running
    statistics do go by them. `estimate` finds gradients without backpropagation. Each batch is used for `repeat` steps;
    then `after` is given the parameters.
    """
    task, samples, rng = site.task, trained_on(site.train, site.task), site.rng
    check_inputs(samples)
    with one_thread(), seeded(rng):
        module = rebuild(settings.model, start, sample_shape(task.shape), task.outputs)
        module.train(len(samples) > 1)  # a single sample has no statistics: those of the start are used
        _hold_norms(module, frozen, settings.batch)
        parameters = [tensor for name, tensor in module.named_parameters() if name not in frozen]
        for name, tensor in module.named_parameters():
            tensor.requires_grad_(estimate is None and name not in frozen)
        further = {name: tensor_of(np.array(array)) for name, array in (extra or {}).items()}
        parameters += [tensor.requires_grad_(estimate is None) for tensor in further.values()]
        value_of = _value(module, loss, further)
        # Of values at many parameters in one pass: the misfit of nothing but all of the network's own.
        own = estimate is not None and loss is None and not frozen and not further
        through = stacked.layers(settings.model, module) if own else None
        step = (optimiser or sgd(settings.lr, settings.sgd_momentum))(parameters)
        total = torch.zeros((), device=here())
        for _ in range(settings.epochs if epochs is None else epochs):
            total, count = torch.zeros((), device=here()), 0
            for inputs, labels, rows in batches(samples, settings.batch, rng, beside):
                for left in range(repeat - 1, -1, -1):
                    if estimate is None:
                        value = value_of(inputs, labels, rows)
                        gradients = _gradients(value, parameters)
                    else:
                        at: Value = partial(value_of, inputs, labels, rows)
                        if through is not None:
                            at = stacked.stackable(at, through, inputs, labels)
                        value, gradients = estimate(at, parameters, list(module.buffers()))
                    with torch.no_grad():
                        if hook is not None:
                            hook(parameters, gradients)
                        step(gradients)
                        if left == 0:
                            total += value.detach() * len(labels)
                            count += len(labels)
                            if after is not None:
                                after(parameters)
            total /= count
        trained = {**as_arrays(module), **under("extra", {name: array_of(t) for name, t in further.items()})}
    mean = float(total)
    if not (np.isfinite(mean) and all(finite(array) for array in trained.values())):
        raise DataError(f"training diverged: the loss is {mean:.3g}; lower lr={settings.lr}, or scale the inputs")
    return trained, mean


def _hold_norms(module: nn.Module, frozen: frozenset[str], batch: int) -> None:
    """Let batch norms whose running statistics are frozen do as at prediction; refuse others on batches of one."""
    for name, part in module.named_modules():
        if not (isinstance(part, BatchNorm) and part.training):
            continue
        if f"{name}.running_mean" in frozen:
            part.eval()
        elif batch == 1:
            raise ParameterError(
                "parameter 'batch' must be at least 2 for a network with batch norm, which takes the mean over a "
                "batch; got 1; or use a network without, as resnet18-gn"
            )


def squared_slopes(settings: Training, model: Arrays, site: Site) -> float:
    """The sum over the batches of a pass of the squared length of the misfit's gradient, as at prediction."""
    task, total = site.task, 0.0
    with one_thread():
        module = rebuild(settings.model, model, sample_shape(task.shape), task.outputs).eval()
        parameters = [tensor.requires_grad_() for tensor in module.parameters()]
        for inputs, labels, _ in batches(trained_on(site.train, task), settings.batch, site.rng):
            slopes = _gradients(misfit(module(inputs), labels), parameters)
            total += sum(float(length) ** 2 for length in torch._foreach_norm(slopes))
    return total


def _value(
    module: nn.Module, loss: Loss | None, extra: dict[str, Tensor]
) -> Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]:
    """The loss of inputs, labels and what is beside them, at the network's parameters as they are."""
    if loss is None:
        return lambda inputs, labels, _: misfit(module(inputs), labels)
    forward, head = zoo.apart(module), zoo.head(module)
    return lambda inputs, labels, beside: loss(Batch(forward, head, inputs, labels, beside, extra))


def _gradients(value: Tensor, parameters: Tensors) -> Tensors:
    """The gradient of each parameter; zeros for those that the value does not depend on."""
    found = list(torch.autograd.grad(value, parameters, allow_unused=True))
    for place, gradient in enumerate(found):
        if gradient is None:
            found[place] = torch.zeros_like(parameters[place])
    return found


def batches(
    train: Samples, size: int, rng: np.random.Generator, beside: Arrays | None = None
) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """One pass over the samples in random order, with their rows of `beside`. A last one alone joins the batch before.

    Batch norm cannot do with one sample, and a step on a single sample is mostly noise.
    """
    order = rng.permutation(len(train))
    inputs, labels = as_tensor(train.inputs[order]), tensor_of(train.labels[order])
    others = {name: tensor_of(array[order]) for name, array in (beside or {}).items()}
    starts = list(range(0, max(1, len(order) - 1), size))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        some = {name: rows[start:end] for name, rows in others.items()} if others else others
        yield inputs[start:end], labels[start:end], some
