"""Gradients from values of the loss alone, along random directions: no backpropagation.

All values of a step see the same batch, the same dropout and the same running statistics, so that they differ by the
direction alone. Parameters are put back from a copy: in float32 w + d - d is not w. Small networks are evaluated along
many directions in one pass (`stacked.py`); most of what is left is drawing the directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.task import Task
from fedsolve.families.gradient.networks import (
    Tensors,
    as_tensor,
    check_inputs,
    laid_out,
    misfit,
    one_thread,
    rebuild,
    sample_shape,
    seeded,
    trained_on,
    unlaid,
)
from fedsolve.families.gradient.settings import Training
from fedsolve.families.gradient.stacked import Layers, Stackable, layers, made, misfits
from fedsolve.families.gradient.tensors import array_of, check_doubles, draws, here, redraw, tensor_of
from fedsolve.families.gradient.training import Estimate, Value
from fedsolve.method import Site
from fedsolve.rng import derive

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch
from torch import Tensor

STACK = 2**18  # numbers that networks evaluated in one pass have together: a megabyte, which stays in a core's cache
Draw = Callable[[int, int], Array]  # of a number and a size: the direction with that number


# --- directions ---


def sphere(rng: np.random.Generator) -> Draw:
    """Directions evenly over the unit sphere, drawn one after the other."""

    def draw(_: int, size: int) -> Array:
        drawn = rng.standard_normal(size, dtype=np.float32)
        return drawn / np.linalg.norm(drawn)

    return draw


def normal(rng: np.random.Generator) -> Draw:
    """Standard normal directions, drawn one after the other."""
    return lambda _, size: rng.standard_normal(size, dtype=np.float32)


def agreed(seed: int) -> Draw:
    """Standard normal directions that everybody who knows the seed draws alike, in any order."""
    return lambda number, size: derive(seed, "direction", number).standard_normal(size, dtype=np.float32)


# --- estimates ---


def on_sphere(directions: int, distance: float, rng: np.random.Generator) -> Estimate:
    """FedZO: D/(b mu) sum_i [F(w + mu v_i) - F(w)] v_i, with b directions v_i on the unit sphere of D numbers."""

    def estimate(value: Value, parameters: Tensors, buffers: Tensors) -> tuple[Tensor, Tensors]:
        draw, size = sphere(rng), _size(parameters)
        return _estimate(value, parameters, buffers, draw, directions, distance, False, size / distance)

    return estimate


def gaussian(directions: int, sigma: float, centred: bool, rng: np.random.Generator) -> Estimate:
    """BAFFLE: (1/K) sum_k (dL_k/sigma) u_k, with u_k standard normal, dL_k = L(w + sigma u_k) - L(w), or centred."""

    def estimate(value: Value, parameters: Tensors, buffers: Tensors) -> tuple[Tensor, Tensors]:
        return _estimate(value, parameters, buffers, normal(rng), directions, sigma, centred, 1.0 / sigma)

    return estimate


def _estimate(
    value: Value,
    parameters: Tensors,
    buffers: Tensors,
    draw: Draw,
    directions: int,
    distance: float,
    centred: bool,
    scale: float,
) -> tuple[Tensor, Tensors]:
    """The value where the parameters are, and scale times the mean over directions of its difference times them."""
    total = [torch.zeros_like(tensor) for tensor in parameters]
    with torch.no_grad():
        around = _Around(value, parameters, buffers)
        for block in around.blocks(directions):
            rows = _drawn(draw, block, parameters)
            found = around.changes(rows, distance, centred)
            _add(total, rows, [change * scale / directions for change in found])
        around.leave()
    return around.here, total


class _Around:
    """The loss around the parameters as they are; `leave` puts everything to where one evaluation leaves it.

    Directions are taken in blocks, stacked by parameter. A network that `stacked` knows is evaluated at all places of a
    block in one pass, others at one place after the other.
    """

    def __init__(self, value: Value, parameters: Tensors, buffers: Tensors) -> None:
        self._value, self._parameters, self._buffers = value, parameters, buffers
        self._draws = draws()  # of dropout
        self.here = value()
        self._after = draws()
        self._origin = [tensor.detach().clone() for tensor in parameters]
        self._statistics = [tensor.detach().clone() for tensor in buffers]
        self._base, self._at_once = float(self.here), 1
        self._along: Callable[[Tensors], Tensor] | None = None
        if isinstance(value, Stackable) and (most := STACK // (_size(parameters) + value.numbers)) > 1:
            self._along, self._at_once = value.along, most

    def blocks(self, directions: int) -> list[range]:
        """The numbers of directions that are taken together."""
        starts = range(0, directions, self._at_once)
        return [range(start, min(start + self._at_once, directions)) for start in starts]

    def changes(self, rows: Tensors, distance: float, centred: bool) -> list[float]:
        """Of each direction u: F(w + distance u) - F(w), or half of F(w + distance u) - F(w - distance u)."""
        ahead = self._at(rows, distance)
        if not centred:
            return [there - self._base for there in ahead]
        return [(there - back) / 2 for there, back in zip(ahead, self._at(rows, -distance), strict=True)]

    def _at(self, rows: Tensors, distance: float) -> list[float]:
        places = [torch.add(here, row, alpha=distance) for here, row in zip(self._origin, rows, strict=True)]
        if self._along is not None:
            found: list[float] = array_of(self._along(places)).tolist()
            return found
        return [self._one([place[number] for place in places]) for number in range(len(places[0]))]

    def _one(self, place: Tensors) -> float:
        torch._foreach_copy_(self._parameters, place)
        redraw(self._draws)
        return float(self._value())

    def leave(self) -> None:
        """Parameters as they were; buffers and torch's generator as after one evaluation."""
        for tensors, values in ((self._parameters, self._origin), (self._buffers, self._statistics)):
            for tensor, before in zip(tensors, values, strict=True):
                tensor.copy_(before)
        redraw(self._after)


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _drawn(draw: Draw, numbers: range, like: Tensors) -> Tensors:
    """The directions with these numbers: tensors of these shapes and this precision, with a row for each in front."""
    rows = np.stack([draw(number, _size(like)) for number in numbers])
    parts = tensor_of(rows).to(like[0].dtype).split([tensor.numel() for tensor in like], dim=1)
    return [part.view(len(numbers), *tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _add(total: Tensors, rows: Tensors, factors: Sequence[float]) -> None:
    """Add the sum of the directions, each times its factor."""
    if len(factors) == 1:
        torch._foreach_add_(total, [part[0] for part in rows], alpha=factors[0])
        return
    for tensor, part in zip(total, rows, strict=True):
        tensor += torch.tensordot(part.new_tensor(factors), part, 1)


# --- estimates whose values come from many places ---


def changes(
    settings: Training, model: Arrays, site: Site, draw: Draw, directions: int, sigma: float, centred: bool
) -> tuple[float, Float]:
    """The mean loss of all of a client's samples, and its change along each direction.

    In float64, since a change is a small difference of large numbers; and as at prediction, so that the numbers of
    several clients add up to those of all their samples together.
    """
    task, samples = site.task, trained_on(site.train, site.task)
    check_inputs(samples)
    check_doubles("the change of a loss")
    with one_thread(), seeded(site.rng), torch.no_grad():
        module = rebuild(settings.model, model, sample_shape(task.shape), task.outputs).eval().double()
        labels = tensor_of(np.array(samples.labels))
        pieces = [slice(first, first + settings.batch) for first in range(0, len(samples), settings.batch)]

        def value() -> Tensor:
            total = torch.zeros((), dtype=torch.float64, device=here())
            for rows in pieces:
                found = module(as_tensor(samples.inputs[rows]).double())
                total += misfit(found, labels[rows], reduction="sum")
            return total / len(samples)

        def along(through: Layers, stacks: Tensors) -> Tensor:
            """As `value`, of many networks."""
            total = torch.zeros(len(stacks[0]), dtype=torch.float64, device=here())
            for rows in pieces:
                total += misfits(through, stacks, as_tensor(samples.inputs[rows]).double(), labels[rows]).sum(1)
            return total / len(samples)

        through, parameters = layers(settings.model, module), list(module.parameters())
        most = min(settings.batch, len(samples))
        many = None if through is None else Stackable(value, partial(along, through), made(through, most))
        around = _Around(many or value, parameters, [])
        found: list[float] = []
        for block in around.blocks(directions):
            found += around.changes(_drawn(draw, block, parameters), sigma, centred)
        return float(around.here), np.array(found)


def combined(
    found: Sequence[float] | Float, sigma: float, draw: Draw, model: Arrays, spec: str, task: Task
) -> dict[str, Array]:
    """BAFFLE's estimate from the changes alone, by parameter: linear in them, and the directions are drawn anew."""
    like = laid_out(model, spec, task)
    total = [torch.zeros_like(tensor) for tensor in like]
    for number, change in enumerate(found):
        _add(total, _drawn(draw, range(number, number + 1), like), [float(change) / (sigma * len(found))])
    return unlaid(total, spec, task)
