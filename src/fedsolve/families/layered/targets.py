"""What hidden layers are fitted to: the labels in a random code, which everybody draws from one seed.

With y the row of a label and Q a random matrix, the targets of a hidden layer are y Q, FedACnnL (1).

- `shared`: one Q (classes x width) for all places of a convolution. Sums and solves are linear in the targets, so such
  a layer is held as class scores, whose product with Q is the layer: its rank is at most the number of classes.
- `place`: the paper's text wants targets of the shape of the layer's output, so Q is classes x (places x channels), a
  code of its own at each place p: X'Z = sum over p of X_p' Y Q_p. Dense layers have one place and are as with `shared`.
- `projection`: sign(x P) + sign(y Q), with P a random matrix for the layer's inputs ("Forward Projection").

A layer whose targets are not y Q for one Q is `coded`: its clients send X'Z, one column per channel.

Where targets are numbers, the last layer is fitted to them, and hidden layers see tenths in place of classes: y says
which of ten intervals a number falls into, equally likely ones for a normal number about its origin and over its scale,
so that nothing more has to be agreed on. One line for each interval, in random codes, is cut off by an activation at
many places. Several numbers have their tenths side by side: y has a one for each number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedsolve.arrays import Array, Float
from fedsolve.data.target import STRATA, Numbers, Target
from fedsolve.families.layered.stages import Stage
from fedsolve.rng import derive

TARGETS = ("place", "shared", "projection")
_CUTS = ndtri(np.arange(1, STRATA) / STRATA)  # where a normal number is cut into intervals that are equally likely
_HEIGHTS = np.concatenate([[0.0], np.exp(-0.5 * np.square(_CUTS)) / np.sqrt(2 * np.pi), [0.0]])
_MEANS = -STRATA * np.diff(_HEIGHTS)  # of a normal number in each interval


def columns(target: Target) -> int:
    """How many classes hidden layers see: those there are, or the tenths of each number."""
    return target.width * STRATA if isinstance(target, Numbers) else target.width


def seen(target: Target, labels: NDArray[Any], *, hidden: bool = True) -> NDArray[Any]:
    """Labels as a layer is fitted to them: class numbers; or rows, of tenths for hidden layers, else of numbers.

    Numbers are about their origin, so that a network without constants has their mean, and sums keep their digits.

    >>> seen(Numbers("age", origin=[40], scale=[10]), np.array([[12.0], [41.0]])).astype(int).tolist()
    [[1, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]]
    """
    if not isinstance(target, Numbers):
        return labels
    if not hidden:
        return np.asarray(target.rows(labels) - np.array(target.origin))
    places = np.searchsorted(_CUTS, target.standard(labels), side="right")
    rows = np.zeros((*places.shape, STRATA))
    np.put_along_axis(rows, places[:, :, None], 1.0, axis=2)
    return rows.reshape(len(rows), -1)


def answers(target: Target, scores: Float, *, hidden: bool = True) -> Float:
    """What a layer says: scores of classes as they are; numbers, from tenths by the means of those."""
    if not isinstance(target, Numbers):
        return scores
    if not hidden:
        return np.asarray(scores + np.array(target.origin))
    return target.of_standard(scores.reshape(len(scores), target.count, STRATA) @ _MEANS)


def counts(labels: NDArray[Any], classes: int) -> NDArray[Any]:
    """How many samples each class has, or each tenth."""
    return np.bincount(labels, minlength=classes) if labels.ndim == 1 else labels.sum(0)


def members(labels: NDArray[Any], number: int) -> NDArray[np.bool_]:
    """Which samples are of a class, or in a tenth."""
    return np.asarray(labels == number if labels.ndim == 1 else labels[:, number] > 0)


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


def projected(seed: int, number: int, rows: Float, labels: NDArray[Any], classes: int, width: int) -> Float:
    """The targets sign(x P) + sign(y Q) of rows with these labels; a constant among the rows is a feature like any."""
    ours = np.sign(rows @ projection(seed, number, rows.shape[1], width))
    matrix = encoding(seed, number, classes, width)
    ours += np.sign(matrix[labels] if labels.ndim == 1 else labels @ matrix)
    return ours


def decoded(target: str, seed: int, number: int, stage: Stage, values: Array, classes: int) -> Float:
    """Scores of the classes from what a coded layer gives (samples x places x width): products with their codes."""
    if target == "place":
        every = codes(seed, number, classes, stage.positions, stage.width)
        return np.asarray(np.einsum("npw,cpw->nc", values, every, optimize=True) / every[0].size)
    signs = np.sign(encoding(seed, number, classes, stage.width))
    return np.asarray(values.mean(axis=1) @ signs.T / stage.width)
