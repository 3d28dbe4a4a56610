"""A running sum of moments that does not drift: what was added and taken out again leaves no trace.

Every number is held as an unevaluated sum high + low of two floats, some 32 digits (Knuth's exact sum of two numbers,
carried over by Dekker). A thousand additions and subtractions then err in the last bit of `high` at most.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.moments import Moments

BLOCK = 8192  # numbers at a time: temporaries stay in the cache
FADED = 1e-12  # a feature of whose squares less than this share is left has lost digits: sum its parts again
GONE = 1e-24  # of which less than this is left, nobody has it any more: the rest is rounding
_FLOATS = ("triangle", "cross")


class Total:
    """The sum of moments of one space. It owns its arrays.

    >>> import fedsolve as fs
    >>> large, small = (fs.Moments.of([[value]], [0], classes=1).arrays() for value in (2.0**13, 0.1))
    >>> total = Total.zero(1, 1)
    >>> total.add(large)
    >>> total.add(small)
    >>> total.take(large)
    True
    >>> bool(total.high["triangle"][0] == 0.1**2), 2.0**26 + 0.1**2 - 2.0**26 == 0.1**2
    (True, False)
    """

    def __init__(self, high: Arrays, low: Arrays | None = None) -> None:
        self._high = {name: np.array(array) for name, array in high.items()}
        low = low or {name: np.zeros_like(high[name]) for name in _FLOATS}
        self._low = {name: np.array(low[name]) for name in _FLOATS}
        self._peak: Float = np.array(low["peak"]) if "peak" in low else self._diagonal()

    @classmethod
    def zero(cls, features: int, targets: int) -> Total:
        """The total of no samples at all."""
        return cls(Moments.zero(features, targets).arrays())

    @property
    def high(self) -> Arrays:
        """The sum, correctly rounded, as a method's `aggregate` takes it."""
        return self._high

    @property
    def low(self) -> Arrays:
        """What must be kept beside `high` for the sum to stay exact."""
        return {**self._low, "peak": self._peak}

    def add(self, part: Arrays) -> None:
        """Add the moments of a client."""
        self._accumulate(part, np.add)
        self._peak = np.maximum(self._peak, self._diagonal())

    def take(self, part: Arrays) -> bool:
        """Take the moments of a client out again; whether all digits are there still.

        A feature that nobody else has is zero after it.
        """
        self._accumulate(part, np.subtract)
        left = np.abs(self._diagonal())
        is_gone = left < GONE * self._peak
        is_faded = (left < FADED * self._peak) & ~is_gone
        self._clear(np.flatnonzero(is_gone))
        return not bool(is_faded.any())

    def distance(self, other: Total) -> float:
        """The largest difference to another total, each feature's relative to its size; NaN where one has a NaN."""
        size = np.sqrt(np.maximum(np.abs(self._diagonal()), np.abs(other._diagonal())))
        size = np.where(size > 0, size, 1.0)
        samples = np.sqrt(max(1.0, float(self._high["count"]), float(other._high["count"])))
        gap = [(self._high[n] - other._high[n]) + (self._low[n] - other._low[n]) for n in _FLOATS]
        square = blas.unpack(gap[0], len(size)) / size[:, None] / size
        cross = gap[1] / (samples * size[:, None])
        count = abs(int(self._high["count"]) - int(other._high["count"]))
        return float(np.max([np.abs(square).max(initial=0.0), np.abs(cross).max(initial=0.0), count]))

    def _diagonal(self) -> Float:
        return Moments.from_arrays(self._high).diagonal().copy()

    def _accumulate(self, part: Arrays, operation: np.ufunc) -> None:
        self._high["count"] = np.asarray(operation(self._high["count"], part["count"]))
        spare = tuple(np.empty(BLOCK) for _ in range(3))
        for name in _FLOATS:
            high, low = self._high[name].reshape(-1), self._low[name].reshape(-1)
            _accumulate(high, low, part[name].reshape(-1), operation, spare)

    def _clear(self, features: Iterable[int]) -> None:
        width = len(self._peak)
        for feature in features:
            places = blas.packed_row(width, int(feature))
            for half in (self._high, self._low):
                half["triangle"][places] = 0.0
                half["cross"][feature] = 0.0
            self._peak[feature] = 0.0


def _accumulate(high: Float, low: Float, part: Array, operation: np.ufunc, spare: tuple[Float, ...]) -> None:
    """(high, low) + part or - part, in place: s + e is exactly high + part (Knuth); then low joins e (Dekker)."""
    for start in range(0, high.size, BLOCK):
        h, low_, p = (array[start : start + BLOCK] for array in (high, low, part))
        s, v, e = (array[: h.size] for array in spare)
        operation(h, p, out=s)
        np.subtract(s, h, out=v)
        if operation is np.add:
            np.subtract(p, v, out=e)
        else:
            np.add(p, v, out=e)
            np.negative(e, out=e)
        np.subtract(s, v, out=v)
        np.subtract(h, v, out=v)
        np.add(e, v, out=e)
        np.add(e, low_, out=e)
        np.add(s, e, out=h)
        np.subtract(h, s, out=s)
        np.subtract(e, s, out=low_)
