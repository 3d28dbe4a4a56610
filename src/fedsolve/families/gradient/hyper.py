"""Networks on the server that make what clients are sent: dense layers, from a vector that stands for the client."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedsolve.arrays import Array, Arrays, under
from fedsolve.families.gradient.descent import Objective, Tensors, dense
from fedsolve.families.gradient.networks import one_thread

# isort: split
# Behind descent, which says how to install torch where it is missing.
import torch
from torch import Tensor
from torch.nn.functional import linear, relu


def first(sizes: Sequence[int], rng: np.random.Generator) -> dict[str, Array]:
    """Dense layers between these sizes, as torch starts them, by number."""
    made: dict[str, Array] = {}
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        made |= under(f"{number}", dense(inputs, outputs, rng))
    return made


def through(layers: Tensors, vector: Tensor) -> Tensor:
    """What the layers make of a vector. There are rectifiers between them, but none before the last, which is a map."""
    last = len(layers) // 2 - 1
    for number in range(last + 1):
        vector = linear(vector, layers[f"{number}/weight"], layers[f"{number}/bias"])
        if number < last - 1:
            vector = relu(vector)
    return vector


def made(layers: Arrays, vector: Array) -> Array:
    """As `through`, of arrays."""
    with one_thread(), torch.inference_mode():
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in layers.items()}
        return np.array(through(tensors, torch.from_numpy(np.array(vector))).numpy())


def half_square(vector: str, wanted: Array) -> Objective:
    """|h(v) - wanted|^2 / 2, with h the layers below "hyper/" and v the tensor called `vector`."""
    goal = torch.from_numpy(np.array(wanted))

    def objective(tensors: Tensors) -> Tensor:
        layers = take_tensors("hyper", tensors)
        return (through(layers, tensors[vector]) - goal).square().sum() / 2

    return objective


def take_tensors(prefix: str, tensors: Tensors) -> Tensors:
    """As `arrays.take`."""
    return {name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")}
