"""Networks on the server that make what clients are sent: dense layers, from a vector that stands for the client.

pFedHN's is one for all, and makes weights. pFedLA's are one per client, stacked, and make shares of everybody's layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedsolve.arrays import Array, Arrays, under
from fedsolve.families.gradient.descent import Objective, Tensors, dense, in_turn
from fedsolve.families.gradient.networks import one_thread
from fedsolve.families.gradient.tensors import array_of, tensor_of

# isort: split
# Behind descent, which says how to install torch where it is missing.
import torch
from torch import Tensor
from torch.nn.functional import linear, relu, softmax

BELOW = 3  # layers of a network that makes shares, below its maps


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
        tensors = {name: tensor_of(np.array(array)) for name, array in layers.items()}
        return np.array(array_of(through(tensors, tensor_of(np.array(vector)))))


def half_square(vector: str, wanted: Array) -> Objective:
    """|h(v) - wanted|^2 / 2, with h the layers below "hyper/" and v the tensor called `vector`."""
    goal = tensor_of(np.array(wanted))

    def objective(tensors: Tensors) -> Tensor:
        layers = below("hyper", tensors)
        return (through(layers, tensors[vector]) - goal).square().sum() / 2

    return objective


def below(prefix: str, tensors: Tensors) -> Tensors:
    """Tensors below a prefix, as `arrays.take`."""
    return {name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")}


# --- shares of layers: one network per client, in the first dimension of every array ---


def widened(
    stacked: Arrays, newcomers: Sequence[np.random.Generator], layers: int, embed: int, hidden: int
) -> dict[str, Array]:
    """With networks for newcomers, drawn each from its generator, and maps to all clients' shares of each layer.

    Maps that are new are zero: they add nothing to the shares that a client begins with.
    """
    drawn: list[dict[str, Array]] = []
    for rng in newcomers:
        vector = rng.standard_normal(embed, dtype=np.float32)
        drawn.append({"vector": vector, **first([embed, *[hidden] * BELOW], rng)})
    before = len(stacked["vector"]) if stacked else 0
    count = before + len(drawn)
    old = {name: array for name, array in stacked.items() if not name.startswith("map/")}
    made = {
        name: np.concatenate([*([old[name]] if old else []), *([one[name]] for one in drawn)])
        for name in (old or drawn[0])
    }
    for name, shape in (("weight", (count, layers, count, hidden)), ("bias", (count, layers, count))):
        wide = np.zeros(shape, np.float32)
        if stacked:
            wide[:before, :, :before] = stacked[f"map/{name}"]
        made[f"map/{name}"] = wide
    return made


def shared_out(stacked: Tensors, begin: Tensor) -> Tensor:
    """The shares of everybody's layers, by client, layer and owner: softmax(maps + log begin), `begin` by client."""
    values = stacked["vector"]
    for number in range(BELOW):
        weight, bias = stacked[f"{number}/weight"], stacked[f"{number}/bias"]
        values = relu(torch.einsum("nij,nj->ni", weight, values) + bias)
    maps = torch.einsum("nlmh,nh->nlm", stacked["map/weight"], values) + stacked["map/bias"]
    return softmax(maps + torch.log(begin)[:, None], dim=2)


def shares(stacked: Arrays, begin: Array) -> Array:
    """As `shared_out`, of arrays."""
    with one_thread(), torch.inference_mode():
        tensors = {name: tensor_of(np.array(array)) for name, array in stacked.items()}
        return np.array(array_of(shared_out(tensors, tensor_of(begin.astype(np.float32)))))


def against(stacked: Arrays, begin: Array, slopes: Array, lr: float) -> dict[str, Array]:
    """The networks after a step of descent, given the gradient of what is minimised by their shares.

    Networks whose slopes are zero stay.
    """
    start, fixed = (tensor_of(array.astype(np.float32)) for array in (begin, slopes))
    return in_turn(stacked, [lambda t: (shared_out(t, start) * fixed).sum()], lr=lr, momentum=0.0, memory={})[0]
