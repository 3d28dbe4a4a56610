"""A running sum of moments that is exact: what was added and taken out again leaves no trace, however large it was.

Every number is held as an unevaluated sum of floats, each what the ones before it leave, rounded:

    S = high + low + rest_1 + ...    with high = round(S), low = round(S - high), rest_1 = round(S - high - low), ...

Two floats hold what samples of a like size sum to; only the few numbers that take more have a `rest`. The pieces follow
from S alone, so that neither the order of additions nor what was in between shows. They are found with Knuth's exact
sum of two floats: s = round(a + b) and the error a + b - s, which is a float again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.errors import DataError
from fedsolve.moments import Moments

BLOCK = 8192  # numbers at a time: temporaries stay in the cache
LARGEST = 2.0**1000  # of a number in a part: no sum of millions of them overflows
FADED = 1e-12  # of a rounded total, a feature of whose squares less than this share is left has lost digits
_FLOATS = ("triangle", "cross", "squares")  # the last where targets are numbers


class Total:
    """The sum of moments of one space, exactly. It owns its arrays.

    >>> import fedsolve as fs
    >>> giant, small = (fs.Moments.of([[value]], [0], classes=1).arrays() for value in (9.97e36, 0.1))
    >>> total = Total.zero(1, 1)
    >>> total.add(giant)
    >>> total.add(small)
    >>> total.take(giant)
    >>> bool(total.high["triangle"][0] == 0.1**2), 9.97e36**2 + 0.1**2 - 9.97e36**2
    (True, 0.0)
    """

    def __init__(self, high: Arrays, low: Arrays | None = None) -> None:
        low = low or {}
        self._high = {name: np.array(array) for name, array in high.items()}
        self._floats = [name for name in _FLOATS if name in high]
        self._low = {name: np.array(low[name]) if name in low else np.zeros_like(high[name]) for name in self._floats}
        self._rest = {
            name: _Rest(np.array(low[f"{name}/places"]), np.array(low[f"{name}/rest"]))
            if f"{name}/places" in low
            else _Rest.none()
            for name in self._floats
        }
        # The largest squares that a rounded total of version 0.1.0 ever had; None where the sum is exact.
        self._peak: Float | None = np.array(low["peak"]) if "peak" in low else None

    @classmethod
    def zero(cls, features: int, targets: int) -> Total:
        """The total of no samples at all, of classes."""
        return cls(Moments.zero(features, targets).arrays())

    @property
    def high(self) -> Arrays:
        """The sum, rounded once, as a method's `aggregate` takes it."""
        return self._high

    @property
    def low(self) -> Arrays:
        """What must be kept beside `high` for the sum to be exact."""
        low: dict[str, Array] = dict(self._low)
        for name, rest in self._rest.items():
            if rest.places.size:
                low |= {f"{name}/places": rest.places, f"{name}/rest": rest.pieces}
        return low if self._peak is None else {**low, "peak": self._peak}

    def add(self, part: Arrays) -> None:
        """Add the moments of a client, exactly."""
        self._accumulate(part, np.add)
        if self._peak is not None:
            self._peak = np.maximum(self._peak, self._diagonal())

    def take(self, part: Arrays) -> None:
        """Take the moments of a client out again, exactly: a feature that nobody else has is zero after it.

        A total of version 0.1.0 was rounded. Where little is left of it, what is rounding and what are the others'
        statistics cannot be told apart, and it is refused.
        """
        self._accumulate(part, np.subtract)
        if self._peak is None:
            return
        left = np.abs(self._diagonal())
        faded = np.flatnonzero(~((left == 0) | (left >= FADED * self._peak)))
        if faded.size:
            raise DataError(
                f"the total was rounded by version 0.1.0, and what would be left of feature {int(faded[0])} cannot be "
                "told from rounding; make a new ledger from the contributions of those who stay"
            )

    def distance(self, other: Total) -> float:
        """The largest difference to another total, each feature's relative to its size; NaN where one has a NaN.

        It is zero only where the two are equal.
        """
        size = np.sqrt(np.maximum(np.abs(self._diagonal()), np.abs(other._diagonal())))
        size = np.where(size > 0, size, 1.0)
        samples = np.sqrt(max(1.0, float(self._high["count"]), float(other._high["count"])))
        gap = [self._gap(other, name) for name in self._floats]
        square = blas.unpack(gap[0], len(size)) / size[:, None] / size
        cross = gap[1] / (samples * size[:, None])
        count = abs(int(self._high["count"]) - int(other._high["count"]))
        gaps = [np.abs(square).max(initial=0.0), np.abs(cross).max(initial=0.0), count]
        if "squares" in self._floats:
            most = np.maximum(self._high["squares"], other._high["squares"])
            gaps.append(np.abs(gap[2] / np.where(most > 0, most, 1.0)).max(initial=0.0))
        return float(np.max(gaps))

    def _gap(self, other: Total, name: str) -> Float:
        gap: Float = (self._high[name] - other._high[name]) + (self._low[name] - other._low[name])
        flat = gap.reshape(-1)
        mine, theirs = self._rest[name], other._rest[name]
        flat[mine.places] += mine.pieces.sum(axis=0)
        flat[theirs.places] -= theirs.pieces.sum(axis=0)
        return gap

    def _diagonal(self) -> Float:
        return Moments.from_arrays(self._high).diagonal().copy()

    def _accumulate(self, part: Arrays, operation: np.ufunc) -> None:
        self._high["count"] = np.asarray(operation(self._high["count"], part["count"]))
        for name in self._floats:
            high, low = self._high[name].reshape(-1), self._low[name].reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):  # then the spill is no number, and refused
                spill = _accumulate(high, low, part[name].reshape(-1), operation)
            self._rest[name] = _settle(high, low, spill, self._rest[name])


def check_size(part: Arrays) -> None:
    """Refuse numbers so large that their sum could overflow.

    >>> import fedsolve as fs
    >>> check_size(fs.Moments.of([[1e151]], [0], classes=1).arrays())
    Traceback (most recent call last):
    ...
    fedsolve.errors.DataError: its sums reach 1e+302, and a total holds numbers up to 1.07e+301
    """
    floats = [part[name] for name in _FLOATS if name in part]
    largest = float(np.max([(array.max(initial=0.0), -array.min(initial=0.0)) for array in floats]))
    if not largest <= LARGEST:
        raise DataError(f"its sums reach {largest:.3g}, and a total holds numbers up to {LARGEST:.3g}")


class _Rest(NamedTuple):
    """What two floats do not hold of a few numbers."""

    places: NDArray[np.int64]  # which numbers, ascending
    pieces: Float  # rest_1, rest_2, ...: one row each, one column per place

    @classmethod
    def none(cls) -> _Rest:
        return cls(np.empty(0, dtype=np.int64), np.empty((0, 0)))


def _exact_sum(a: Float, b: Float) -> tuple[Float, Float]:
    """round(a + b) and what that leaves (Knuth)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def _accumulate(high: Float, low: Float, part: Array, operation: np.ufunc) -> _Rest:
    """(high, low) + part or - part, in place, and what that leaves: the exact sum is high + low + it."""
    places: list[NDArray[np.int64]] = []
    spills: list[Float] = []
    spare = tuple(np.empty(BLOCK) for _ in range(4))
    for start in range(0, high.size, BLOCK):
        h, low_, p = (array[start : start + BLOCK] for array in (high, low, part))
        s, v, e, t = (array[: h.size] for array in spare)
        operation(h, p, out=s)  # s + e = h + p or h - p
        np.subtract(s, h, out=v)
        if operation is np.add:
            np.subtract(p, v, out=e)
        else:
            np.add(p, v, out=e)
            np.negative(e, out=e)
        np.subtract(s, v, out=v)
        np.subtract(h, v, out=v)
        np.add(e, v, out=e)
        np.add(low_, e, out=t)  # t + e = low + e
        np.subtract(t, low_, out=v)
        np.subtract(e, v, out=e)
        np.subtract(t, v, out=v)
        np.subtract(low_, v, out=v)
        np.add(e, v, out=e)
        np.add(s, t, out=h)  # high + low = s + t
        np.subtract(h, s, out=v)
        np.subtract(t, v, out=low_)
        np.subtract(h, v, out=v)
        np.subtract(s, v, out=v)
        np.add(low_, v, out=low_)
        (spilt,) = np.nonzero(e)
        if spilt.size:
            places.append(spilt + start)
            spills.append(e[spilt])
    if not places:
        return _Rest.none()
    return _Rest(np.concatenate(places), np.concatenate(spills)[None])


def _settle(high: Float, low: Float, spill: _Rest, rest: _Rest) -> _Rest:
    """Bring the numbers that take more than two floats into pieces again, in place; what stands beside high and low."""
    if not spill.places.size and not rest.places.size:
        return rest
    places = np.union1d(spill.places, rest.places)
    terms = np.zeros((3 + len(rest.pieces), places.size))
    terms[0], terms[1] = high[places], low[places]
    terms[2:-1, np.searchsorted(places, rest.places)] = rest.pieces
    terms[-1, np.searchsorted(places, spill.places)] = spill.pieces if spill.places.size else 0.0
    if not np.isfinite(terms).all():
        raise DataError("the sum of the statistics is no finite number: it overflows, or a part of it is damaged")
    pieces = _pieces(terms)
    high[places], low[places] = pieces[0], pieces[1]
    remain = pieces[2:].any(axis=0)
    return _Rest(places[remain], pieces[2:, remain]) if remain.any() else _Rest.none()


def _pieces(terms: Float) -> Float:
    """round(S), round(S - round(S)), ... of the sums S of columns, two at least, until nothing is left."""
    pieces: list[Float] = []
    left = terms
    while len(pieces) < 2 or left.any():
        left, first = _rounded(left)
        pieces.append(first)
    return np.stack(pieces)


def _rounded(terms: Float) -> tuple[Float, Float]:
    """The sums of columns, rounded to the nearest float, and terms that sum to what that leaves.

    Exact sums of neighbours, from the last to the first, until each is half an ulp of the one before it at most. The
    first is then the rounded sum, but where the second is just half an ulp: there the third decides, not the tie.
    """
    terms, is_settled = terms.copy(), False
    while not is_settled:
        before = terms.copy()
        for row in range(len(terms) - 1, 0, -1):
            terms[row - 1], terms[row] = _exact_sum(terms[row - 1], terms[row])
        is_settled = np.array_equal(before, terms)
    first, twice = terms[0].copy(), 2.0 * terms[1]
    further = first + twice
    is_tie = (further - first == twice) & (np.sign(terms[1]) * np.sign(terms[2]) > 0)
    terms[0] = np.where(is_tie, -twice, 0.0)
    return terms, np.where(is_tie, further, first)
