"""Arrays: everything that is stored, sent or merged is a mapping from names to NumPy arrays.

Names may contain slashes, as in "layer/0/weight"; `under` and `take` move a mapping below a prefix and back.
Arrays are values: nobody writes to a mapping or an array that was handed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.errors import DataError, brief

Array: TypeAlias = NDArray[Any]
Float: TypeAlias = NDArray[np.float64]
Arrays: TypeAlias = Mapping[str, Array]
Layout: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
LARGEST_SIDE = 2**63 - 1  # that NumPy can count
MOST_SIDES = 64  # that NumPy takes
FEW = 2**13  # values that one thread of BLAS multiplies, however many there are
LARGEST_EMPTY = 2**22  # numbers that the other sides of an array without values may stand for: no bytes pay for them


def accumulate(total: dict[str, Array] | None, addend: Arrays) -> dict[str, Array]:
    """`total + addend`, written into `total`, which the caller owns; a copy of `addend` if there is no total yet."""
    if total is None:
        return {name: np.array(array) for name, array in addend.items()}
    _matching(total, addend)
    for name, array in total.items():
        np.add(array, addend[name], out=array)
    return total


def layout(arrays: Arrays) -> Layout:
    """Names, types and shapes: arrays with the same layout can be added."""
    return tuple((name, arrays[name].dtype.str, arrays[name].shape) for name in sorted(arrays))


def words(shapes: Layout) -> str:
    """A layout as it stands in errors."""
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in shapes) or "nothing"


def sides(values: object, whose: str) -> tuple[int, ...]:
    """The shape that a stranger's list or tuple is, checked before it is calculated with.

    >>> sides([2, 3], "w")
    (2, 3)
    >>> sides(["a", 3_000_000_000], "w")
    Traceback (most recent call last):
    fedsolve.errors.DataError: the shape of w must be at most 64 whole numbers from 0 on; got ['a', 3000000000]
    """
    if not isinstance(values, (list, tuple)) or len(values) > MOST_SIDES or not all(map(is_count, values)):
        wanted = f"at most {MOST_SIDES} whole numbers from 0 on"
        raise DataError(f"the shape of {whose} must be {wanted}; got {brief(values)}")
    if 0 in values and math.prod(side for side in values if side) > LARGEST_EMPTY:
        raise DataError(f"{whose} holds no values and has the shape {brief(values)}")
    return tuple(values)


def is_count(value: object) -> bool:
    """Whether a stranger's value is a whole number that NumPy can count up to, and neither true nor false."""
    return type(value) is int and 0 <= value <= LARGEST_SIDE


def flat(inputs: Array) -> Array:
    """One row of numbers per sample."""
    return inputs if inputs.ndim == 2 else inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))


def under(prefix: str, arrays: Arrays) -> dict[str, Array]:
    """The same arrays with `prefix/` before each name."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def take(prefix: str, arrays: Arrays) -> dict[str, Array]:
    """The arrays below `prefix/`, with that prefix taken off: the inverse of `under`."""
    start = prefix + "/"
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def same(left: Arrays, right: Arrays) -> bool:
    """Whether names, types, shapes and bits agree. NaN equals NaN of the same bits; 0.0 differs from -0.0."""
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and left[n].shape == right[n].shape and left[n].tobytes() == right[n].tobytes()
        for n in left
    )


def check(arrays: Arrays, source: str) -> None:
    """Refuse anything but named numeric arrays of finite values; `source` says whose they are."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise DataError(f"{source}: {name!r} must be a numeric array; got {_kind(array)}")
        if array.dtype.kind == "f" and not finite(array):
            raise DataError(f"{source}: {name!r} has values that are not finite")


def finite(array: Array) -> bool:
    """Whether all values are finite, in one fast pass: a sum is finite unless a value is not, or it overflows.

    The sum of squares of a few values takes a third of the call; that of many, BLAS would share out over threads.
    """
    if array.size <= FEW:
        return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(array.sum()) or bool(np.isfinite(array).all())


def softmax(scores: Array, axis: int = 1) -> Float:
    """Scores as probabilities, one row per sample, in float64. Written here since scipy.special is slow to load."""
    powers: Float = np.exp(scores - scores.max(axis=axis, keepdims=True), dtype=np.float64)
    powers /= powers.sum(axis=axis, keepdims=True)
    return powers


def log_softmax(scores: Array, axis: int = 1) -> Float:
    """The logarithms of `softmax`, which are finite where a probability is too small to be told from zero."""
    shifted: Float = np.subtract(scores, scores.max(axis=axis, keepdims=True), dtype=np.float64)
    shifted -= np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return shifted


def _matching(left: Arrays, right: Arrays) -> None:
    if left.keys() != right.keys():
        raise DataError(f"cannot add: {sorted(left.keys() ^ right.keys())} are on one side only")
    for name in left:
        if left[name].shape != right[name].shape or left[name].dtype != right[name].dtype:
            raise DataError(f"cannot add {name!r}: {_kind(left[name])} and {_kind(right[name])}")


def _kind(value: object) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
