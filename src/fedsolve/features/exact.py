"""Sums of floats without rounding: told as a few floats that add up to them, the same for every order and split.

The pieces of a sum are its rounded value, the rounded rest, and so on until nothing is left: a function of the exact
sum alone. Long columns are cut first into parts of so few bits that NumPy adds them exactly, in any order
(Rump, Ogita and Oishi 2008, "Accurate floating-point summation, part I", ExtractVector).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedsolve.arrays import Float

BLOCK = 2**15  # numbers that are cut at a time, so that they stay in the processor's cache
FEW = 64  # numbers that Python adds faster than NumPy cuts them
LARGEST = 2.0**900  # above, cutting could overflow


def pieces(values: Float) -> list[float]:
    """The pieces of the sum of finite numbers.

    >>> pieces(np.array([1e16, 1.0, -1e16])), pieces(np.array([1e16, 1.0]))
    ([1.0], [1e+16, 1.0])
    """
    parts = list[float]()
    for start in range(0, len(values), BLOCK):
        rest = values[start : start + BLOCK]
        high = np.empty_like(rest)
        while len(rest) > FEW and 0 < (top := max(float(rest.max()), -float(rest.min()))) < LARGEST:
            # Multiples of eps * sigma below sigma: sums of all of them need no more than 53 bits.
            sigma = math.ldexp(1.0, math.frexp(top)[1] + (len(rest) + 1).bit_length())
            np.add(rest, sigma, out=high)
            high -= sigma
            parts.append(float(high.sum()))
            rest = rest - high
        parts += rest[rest != 0.0].tolist()
    return _rounded(parts)


def _rounded(values: Sequence[float]) -> list[float]:
    found = [math.fsum(values)]
    while rest := math.fsum([*values, *(-piece for piece in found)]):
        found.append(rest)
    return found


def rows(columns: Iterable[list[float]]) -> Float:
    """One row of pieces per sum, with zeros behind those that have fewer.

    >>> rows([[1e16, 1.0], [3.0]]).tolist()
    [[1e+16, 1.0], [3.0, 0.0]]
    """
    found = list(columns)
    table = np.zeros((len(found), max(map(len, found), default=1)))
    for place, column in enumerate(found):
        table[place, : len(column)] = column
    return table


def added(left: Float, right: Float) -> Float:
    """The rows of pieces of the sums of both, which commutes and associates.

    >>> added(np.array([[1e16]]), np.array([[1.0]])).tolist()
    [[1e+16, 1.0]]
    """
    return rows(_rounded(row) for row in np.hstack([left, right]).tolist())


def totals(table: Float) -> Float:
    """Each sum rounded once."""
    return np.array([math.fsum(row) for row in table.tolist()])
