"""Descent on the server: small networks and heads as named arrays, and an optimiser's memory as arrays beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedsolve.arrays import Array, Arrays, finite, under
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient import hooks, networks
from fedsolve.families.gradient.networks import one_thread
from fedsolve.families.gradient.optimisers import Adam, sgd
from fedsolve.families.gradient.tensors import array_of, tensor_of
from fedsolve.families.gradient.training import batches

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

HALVINGS = 20  # of a rate at most

Tensors = dict[str, Tensor]
Objective = Callable[[Tensors], Tensor]


def descend(
    start: Arrays,
    objective: Objective,
    steps: int,
    *,
    lr: float,
    memory: Arrays,
    betas: tuple[float, float] = (0.9, 0.999),
    decay: float = 0.0,
    buffers: frozenset[str] = frozenset(),
) -> tuple[dict[str, Array], dict[str, Array]]:
    """`steps` steps of Adam from `start`: where they lead, and Adam's memory, which the next call is given.

    Several calls that hand the memory on are one descent. `buffers` are not descended on; the objective may write to
    them. An empty memory is that of a start.
    """
    with one_thread():
        tensors = {name: tensor_of(np.array(array)) for name, array in start.items()}
        free = {name: tensors[name].requires_grad_() for name in sorted(tensors) if name not in buffers}
        adam = _remembering(free, lr, betas, decay, memory)
        for _ in range(steps):
            found = torch.autograd.grad(objective(tensors), list(free.values()))
            with torch.no_grad():
                adam(list(found))
        return _kept(tensors, free, adam, lr)


def along(
    start: Arrays,
    gradient: Arrays,
    *,
    lr: float,
    memory: Arrays,
    betas: tuple[float, float] = (0.9, 0.999),
    decay: float = 0.0,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """One step of Adam against a gradient that is given, and Adam's memory after it."""
    with one_thread():
        tensors = {name: tensor_of(np.array(start[name])) for name in sorted(start)}
        adam = _remembering(tensors, lr, betas, decay, memory)
        adam([tensor_of(np.array(gradient[name])) for name in tensors])
        return _kept(tensors, tensors, adam, lr)


def taught(
    head: Arrays,
    points: Array,
    labels: Array,
    model: str,
    task: Task,
    rng: np.random.Generator,
    *,
    lr: float,
    passes: int,
    batch: int,
) -> dict[str, Array]:
    """A network's head after plain SGD on its cross-entropy on points, in batches whose order is drawn."""
    apply, trained = networks.head_function(model, task), networks.parameter_names(model, task)
    with one_thread():
        tensors = {name: tensor_of(np.array(array)) for name, array in head.items()}
        free = [tensors[name].requires_grad_() for name in sorted(tensors) if name in trained]
        step = sgd(lr, momentum=0.0)(free)
        for _ in range(passes):
            for inputs, wanted, _ in batches(Samples(points, labels), batch, rng):
                found = torch.autograd.grad(cross_entropy(apply(tensors, inputs), wanted), free)
                with torch.no_grad():
                    step(list(found))
        reached = {name: array_of(tensor) for name, tensor in tensors.items()}
    _check(reached.values(), lr)
    return reached


def _check(arrays: Iterable[Array], lr: float) -> None:
    if not all(finite(array) for array in arrays):
        raise DataError(f"the server's own training diverged; lower its learning rate, which is {lr:.3g}")


def in_turn(
    start: Arrays,
    objectives: Sequence[Objective],
    *,
    lr: float,
    momentum: float,
    decay: float = 0.0,
    clip: float = 0.0,
    falling: bool = False,
    memory: Arrays,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """One step of SGD on each objective, from where the one before led; and velocities, which the next call is given.

    A tensor that an objective does not depend on rests during its step, with its velocity and without decay. `clip` is
    the largest norm of a gradient, 0 for any; decay is added to what was clipped. Velocities that are not in the memory
    are zero. With `falling`, the rate of a step is halved until the gradient alone, without what was gathered before,
    goes no further than to the least along it: beyond that, velocities on squares swing, and may grow without end.
    """
    limit = hooks.clipped(clip)
    with one_thread():
        tensors = {name: tensor_of(np.array(array)).requires_grad_() for name, array in start.items()}
        kept = {n: tensor_of(np.array(memory[n] if n in memory else np.zeros_like(start[n]))) for n in start}
        for objective in objectives:
            value = objective(tensors)
            found = torch.autograd.grad(value, list(tensors.values()), allow_unused=True)
            slopes = {name: slope for name, slope in zip(tensors, found, strict=True) if slope is not None}
            moved, speeds = ([group[name] for name in slopes] for group in (tensors, kept))
            with torch.no_grad():
                if limit is not None:
                    limit(moved, list(slopes.values()))
                rate = _falling(objective, tensors, slopes, float(value), lr) if falling else lr
                torch._foreach_mul_(speeds, momentum)
                torch._foreach_add_(speeds, list(slopes.values()))
                torch._foreach_add_(speeds, moved, alpha=decay)
                torch._foreach_add_(moved, speeds, alpha=-rate)
        reached = {name: array_of(tensor) for name, tensor in tensors.items()}
        velocities = {name: array_of(tensor) for name, tensor in kept.items()}
    _check((*reached.values(), *velocities.values()), lr)
    return reached, velocities


def _falling(objective: Objective, tensors: Tensors, slopes: Tensors, value: float, lr: float) -> float:
    """The rate, or the first half, quarter and so on of it, with which a step does not go beyond the least along it.

    Of a square, which falls by rate |g|^2 - rate^2 |J g|^2 / 2, half of rate |g|^2 is left where that is so.
    """
    squared = sum(float(slope.square().sum()) for slope in slopes.values())
    for _ in range(HALVINGS):
        ahead = {name: tensor - lr * slopes[name] if name in slopes else tensor for name, tensor in tensors.items()}
        if float(objective(ahead)) <= value - lr * squared / 2:
            return lr
        lr /= 2
    return lr


def _remembering(free: Tensors, lr: float, betas: tuple[float, float], decay: float, memory: Arrays) -> Adam:
    """Adam on these tensors, with what it remembers of them."""
    adam = Adam(list(free.values()), lr, betas, decay)
    if memory:
        adam.count = int(memory["count"])
        adam.first, adam.second = (
            [tensor_of(np.array(memory[f"{part}/{name}"])) for name in free] for part in ("first", "second")
        )
    return adam


def _kept(tensors: Tensors, free: Tensors, adam: Adam, lr: float) -> tuple[dict[str, Array], dict[str, Array]]:
    """All tensors and Adam's memory as arrays."""
    reached = {name: array_of(tensor) for name, tensor in tensors.items()}
    kept = {"count": np.array(adam.count)}
    for part, held in (("first", adam.first), ("second", adam.second)):
        kept |= under(part, {name: array_of(tensor) for name, tensor in zip(free, held, strict=True)})
    _check((*reached.values(), *kept.values()), lr)
    return reached, kept


def dense(inputs: int, outputs: int, rng: np.random.Generator) -> dict[str, Array]:
    """First weights of a dense layer, as torch draws them: uniform between -1 and 1, over the root of the inputs."""
    shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
    return {
        name: (rng.uniform(-1.0, 1.0, shape) / np.sqrt(inputs)).astype(np.float32) for name, shape in shapes.items()
    }
