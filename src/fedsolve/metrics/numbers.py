"""Figures of answers that are numbers, one or several per sample; of several, the mean over them.

A tally holds sums over samples for each target: of the errors, squared and in size, and of the true numbers about an
origin that all share, as they are and squared. An origin near their mean keeps the digits of R2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedsolve import arrays
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.errors import DataError
from fedsolve.metrics.figure import LARGEST_COUNT, Metric

SUMS = ("squares", "sizes", "sums", "spread")
CLOSE = 1e-9  # share by which rounding may part what no samples can part


def tally(predictions: ArrayLike, targets: ArrayLike, origin: ArrayLike = 0.0) -> dict[str, Array]:
    """Sums over samples; `predictions` and `targets` have one row per sample and one column per target.

    >>> tally([[1.0], [4.0]], [[2.0], [2.0]])["squares"]
    array([5.])
    """
    guess, truth = (_rows(values) for values in (predictions, targets))
    if guess.shape != truth.shape:
        raise DataError(f"predictions must have the shape of the targets, {truth.shape}; got {guess.shape}")
    if not (np.isfinite(guess).all() and np.isfinite(truth).all()):
        raise DataError("predictions must be numbers; got NaN or infinity, as from a model that has diverged")
    errors, about = guess - truth, truth - np.asarray(origin, dtype=np.float64)
    with np.errstate(over="ignore"):
        parts = (np.square(errors), np.abs(errors), about, np.square(about))
    total = {"count": np.array(len(truth)), **{name: part.sum(0) for name, part in zip(SUMS, parts, strict=True)}}
    if not all(np.isfinite(total[name]).all() for name in SUMS):
        raise DataError("the squares of predictions or targets overflow; bring the targets to a smaller unit")
    return total


def zero(width: int) -> dict[str, Array]:
    """The tally of no samples of so many targets."""
    if not width >= 1:
        raise DataError(f"a tally needs at least one target; got {width}")
    return {"count": np.array(0), **{name: np.zeros(width) for name in SUMS}}


def baseline(train: ArrayLike, test: ArrayLike, origin: ArrayLike = 0.0) -> dict[str, Array]:
    """The tally of the best constant answer: the mean of the training targets, for every sample of the test.

    >>> baseline([[1.0], [3.0]], [[2.0], [5.0]])["sizes"]
    array([3.])
    """
    truth = _rows(test)
    return tally(np.broadcast_to(_rows(train).mean(0), truth.shape), truth, origin)


def check(tally: Arrays, width: int, source: str = "the tally") -> None:
    """Refuse a tally that no samples can have: wrong layout, sums of squares that are less than the sums allow.

    >>> check(tally([[1.0]], [[2.0]]), width=1)
    """
    arrays.check(tally, source)
    layout, standard = arrays.layout(tally), arrays.layout(zero(width))
    if layout != standard:
        raise DataError(f"{source} of {width} targets must hold {arrays.words(standard)}; got {arrays.words(layout)}")
    count = int(tally["count"])
    if not 0 <= count <= LARGEST_COUNT:
        raise DataError(f"{source}: 'count' must lie between 0 and {LARGEST_COUNT}; got {count}")
    for squares, sums in (("squares", "sizes"), ("spread", "sums")):
        # The square of a mean is at most the mean of the squares.
        least = np.square(tally[sums] / math.sqrt(max(count, 1)))
        if not (tally[squares] * (1 + CLOSE) >= least * (1 - CLOSE)).all():
            raise DataError(f"{source}: {squares!r} is less than {sums!r} allows for {count} samples")
    if not (tally["sizes"] >= 0).all() or (not count and any(tally[name].any() for name in SUMS)):
        raise DataError(f"{source}: sums of {count} samples cannot be these")


def _rows(values: ArrayLike) -> Float:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2:
        raise DataError(f"numbers must have one row per sample and one column per target; got shape {rows.shape}")
    return rows


def _mean(tally: Arrays, name: str) -> Float | None:
    count = int(tally["count"])
    return tally[name] / count if count else None


def _rmse(tally: Arrays) -> float | None:
    means = _mean(tally, "squares")
    return None if means is None else float(np.sqrt(means).mean())


def _mae(tally: Arrays) -> float | None:
    means = _mean(tally, "sizes")
    return None if means is None else float(means.mean())


def _r2(tally: Arrays) -> float | None:
    """One less the squared errors over the squares about the mean; not defined where targets are constant."""
    count = int(tally["count"])
    if count < 2:
        return None
    about = tally["spread"] - np.square(tally["sums"]) / count
    some = about > CLOSE**2 * tally["spread"]  # what rounding leaves of nothing
    return float(np.mean(1.0 - tally["squares"][some] / about[some])) if some.any() else None


METRICS = (
    Metric("rmse", "lower", _rmse, "root of the mean squared error"),
    Metric("mae", "lower", _mae, "mean size of the error"),
    Metric("r2", "higher", _r2, "share of the variance that is explained; below 0 where the mean would do better"),
)
