"""Samples, and the checks that inputs and labels pass once, before anything is computed from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve.arrays import Array, Float, finite
from fedsolve.errors import DataError
from fedsolve.features.cells import Cells
from fedsolve.features.images import ANY_SIZE, Inputs, Pictures

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Inputs (n, ...) and their labels, read-only: class numbers (n,), or the numbers that are predicted (n, d).

    Before a feature map made numbers of them, the inputs of a table are its `Cells`, which no method ever sees.

    >>> Samples(np.zeros((4, 3)), np.array([0, 1, 1, 0]))
    Samples(4 samples, inputs float64 (3,))
    """

    inputs: Array
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kind = "cells" if isinstance(self.inputs, Cells) else self.inputs.dtype
        return f"Samples({len(self)} samples, inputs {kind} {self.inputs.shape[1:]})"

    @property
    def in_memory(self) -> bool:
        """Whether all rows are here at once; those of a `Stream` are not."""
        return True

    def fold(self, tell: Callable[[Samples], _Found], add: Callable[[_Found, _Found], _Found]) -> _Found:
        """What `tell` makes of all samples, where that is a sum: of parts of them it is added up by `add`.

        Here all samples are one part; a `Stream` has many, which are never in memory at once.
        """
        return tell(self)


@dataclass(frozen=True, slots=True, eq=False)
class Unread:
    """Samples whose pictures are still in their files."""

    inputs: Pictures
    labels: NDArray[Any]

    def __repr__(self) -> str:
        return f"Unread({len(self.labels)} pictures)"


def read_only(inputs: Array | Cells, labels: NDArray[Any]) -> Samples:
    """Samples of views that cannot be written to, so that no method changes what it is given."""
    if isinstance(inputs, np.ndarray):
        inputs = inputs.view()
        inputs.flags.writeable = False
    labels = labels.view()
    labels.flags.writeable = False
    return Samples(cast(Array, inputs), labels)


def shape_of(inputs: Inputs | Cells) -> tuple[int, ...]:
    """The shape of one input; `ANY_SIZE` for pictures in their files."""
    return inputs.shape[1:] if isinstance(inputs, np.ndarray | Cells) else ANY_SIZE


def check_inputs(inputs: ArrayLike, whose: str) -> Array:
    """Inputs as an array of finite numbers, one row per sample."""
    try:
        x = np.asarray(inputs)
    except ValueError as error:
        raise DataError(f"{whose}: inputs must form one array; got rows of different lengths ({error})") from error
    if x.ndim < 2 or x.dtype.kind not in "biuf" or 0 in x.shape[1:]:
        raise DataError(
            f"{whose}: inputs must be an array of numbers, one row per sample; got {x.dtype}{list(x.shape)}"
        )
    if x.dtype.kind == "f" and not finite(x):
        bad = np.argwhere(~np.isfinite(x))[0]
        raise DataError(f"{whose}: inputs must be finite; got {x[tuple(bad)]} in row {bad[0]}, column {bad[1]}")
    if x.dtype == np.float16 or x.dtype.kind == "b":
        x = x.astype(np.float32)
    return x


def check_labels(labels: ArrayLike, whose: str) -> NDArray[np.int64]:
    """Labels as integers from 0 on; floats count where they are whole numbers."""
    try:
        y = np.asarray(labels)
    except ValueError as error:
        raise DataError(f"{whose}: labels must be one integer per sample ({error})") from error
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise DataError(f"{whose}: labels must be one integer per sample; got {y.dtype}{list(y.shape)}")
    if y.dtype.kind == "f":
        odd = np.flatnonzero(~(np.floor(y) == y) | ~np.isfinite(y))
        if len(odd):
            raise DataError(f"{whose}: labels must be integers; got {y[odd[0]]} in row {odd[0]}")
    if len(y) and not float(y.max()) < 2**53:
        row = int(np.argmax(y))
        raise DataError(f"{whose}: labels must be integers from 0 on; got {y[row]} in row {row}")
    if len(y) and y.min() < 0:
        row = int(np.argmin(y))
        raise DataError(f"{whose}: labels must be integers from 0 on; got {y[row]} in row {row}")
    return y.astype(np.int64)


def check_numbers(labels: ArrayLike, whose: str) -> Float:
    """Labels that are numbers, one row per sample and one column per number that is predicted.

    >>> check_numbers([1.5, 2.0], "a.csv").shape
    (2, 1)
    """
    try:
        y = np.asarray(labels)
    except ValueError as error:
        raise DataError(f"{whose}: labels must form one array ({error})") from error
    if y.dtype.kind not in "biuf" or y.ndim not in (1, 2) or (y.ndim == 2 and not y.shape[1]):
        raise DataError(
            f"{whose}: labels must be one number per sample, or one row of them; got {y.dtype}{list(y.shape)}"
        )
    rows = y.astype(np.float64).reshape(len(y), 1 if y.ndim == 1 else y.shape[1])
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        raise DataError(f"{whose}: labels must be finite numbers; got {rows[tuple(bad[0])]} in row {bad[0][0]}")
    return rows


def check_range(labels: NDArray[np.int64], classes: int, whose: str) -> None:
    """Refuse labels that are not below the number of classes."""
    if len(labels) and labels.max() >= classes:
        row = int(np.argmax(labels))
        raise DataError(f"{whose}: labels must be integers from 0 to {classes - 1}; got {labels[row]} in row {row}")


def check_plausible(classes: int, samples: int, whose: str) -> None:
    """Refuse labels that are no class numbers (postcodes, years): each number up to them would be a class."""
    if classes > 1000 + 10 * samples:
        raise DataError(f"{whose}: labels run up to {classes - 1} for {samples} samples; number the classes from 0 on")
