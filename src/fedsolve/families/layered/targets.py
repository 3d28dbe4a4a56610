"""What hidden layers are fitted to: the labels in a random code, which everybody draws from one seed.

With y the row of a label and Q a random matrix, the targets of a hidden layer are y Q, FedACnnL (1).

- `shared`: one Q (classes x width) for all places of a convolution. Sums and solves are linear in the targets, so such
  a layer is held as class scores, whose product with Q is the layer: its rank is at most the number of classes.
- `place`: the paper's text wants targets of the shape of the layer's output, so Q is classes x (places x channels), a
  code of its own at each place p: X'Z = sum over p of X_p' Y Q_p. Dense layers have one place and are as with `shared`.
- `projection`: sign(x P) + sign(y Q), with P a random matrix for the layer's inputs ("Forward Projection").

A layer whose targets are not y Q for one Q is `coded`: its clients send X'Z, one column per channel.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float
from fedsolve.families.layered.stages import Stage
from fedsolve.rng import derive

TARGETS = ("place", "shared", "projection")


def coded(target: str, stage: Stage) -> bool:
    """Whether a layer's targets are anything but the labels times one matrix."""
    return not stage.last and (target == "projection" or (target == "place" and stage.layer.kind == "conv"))


@lru_cache(maxsize=32)
def encoding(seed: int, number: int, classes: int, width: int) -> Float:
    """Q of a hidden layer, classes x width, standard normal: drawn from the seed by everybody who needs it."""
    return _drawn(seed, "label encoding", number, classes, width)


@lru_cache(maxsize=8)
def codes(seed: int, number: int, classes: int, places: int, width: int) -> Float:
    """The codes of the labels at each place of a convolution, classes x places x width, standard normal."""
    return _drawn(seed, "codes of places", number, classes, places, width)


@lru_cache(maxsize=8)
def projection(seed: int, number: int, features: int, width: int) -> Float:
    """P of a hidden layer, features x width, standard normal."""
    return _drawn(seed, "input projection", number, features, width)


def _drawn(seed: int, name: str, number: int, *shape: int) -> Float:
    matrix = derive(seed, name, number, *shape).standard_normal(shape)
    matrix.flags.writeable = False
    return matrix


def projected(seed: int, number: int, rows: Float, labels: NDArray[np.int64], classes: int, width: int) -> Float:
    """The targets sign(x P) + sign(y Q) of rows with these labels; a constant among the rows is a feature like any."""
    ours = np.sign(rows @ projection(seed, number, rows.shape[1], width))
    ours += np.sign(encoding(seed, number, classes, width))[labels]
    return ours


def decoded(target: str, seed: int, number: int, stage: Stage, values: Array, classes: int) -> Float:
    """Scores of the classes from what a coded layer gives (samples x places x width): products with their codes."""
    if target == "place":
        every = codes(seed, number, classes, stage.positions, stage.width)
        return np.asarray(np.einsum("npw,cpw->nc", values, every, optimize=True) / every[0].size)
    signs = np.sign(encoding(seed, number, classes, stage.width))
    return np.asarray(values.mean(axis=1) @ signs.T / stage.width)
