"""The discrete Gaussian, exact and many at a time: integers x with probability proportional to exp(-x^2 / (2 s^2)).

Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020. Everything is decided by comparing
whole numbers, so that no rounding of an exponential or of a uniform number is in the draws; bits come from the system's
cryptographic source. Noise with this law on a lattice of some step protects values on the same lattice as the Gaussian
of the same deviation does, and nothing can be read off its last digits, as off those of a rounded Gaussian.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.errors import ParameterError

Source: TypeAlias = Callable[[int], bytes]
"""As many random bytes as asked for."""
Whole: TypeAlias = NDArray[np.int64]
LARGEST = 2**24  # of s: 2 s^2 and its small multiples, and squares of draws, are whole numbers below 2^63
_BEYOND = 2**6  # times s: no draw of a discrete Gaussian is there, its share is below exp(-2000)
BLOCK = 2**17  # draws at a time, so that what is drawn and refused stays small


def discrete_gaussian(s: int, count: int, source: Source = os.urandom) -> Whole:
    """As many draws, each of mean 0 and of variance s^2 (less where s is below 2: at 1 it is so to nine digits).

    Another `source` than the system's is for tests alone.

    >>> draws = discrete_gaussian(1000, 20_000)
    >>> draws.dtype, round(float(draws.std()) / 1000, 1)
    (dtype('int64'), 1.0)
    """
    if not 1 <= s <= LARGEST:
        raise ParameterError(f"the deviation of a discrete Gaussian is a whole number from 1 to {LARGEST}; got {s!r}")
    result = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        wanted = min(BLOCK, int(1.4 * (count - done)) + 16)
        draws = _laplace(s, wanted, source)
        # exp(-(|x| - s)^2 / (2 s^2)) times exp(-|x| / s) is exp(-x^2 / (2 s^2)) up to a factor
        apart = np.abs(draws) - s
        draws = draws[_exponential(apart * apart, 2 * s * s, source)][: count - done]
        result[done : done + len(draws)] = draws
        done += len(draws)
    return result


def _laplace(s: int, count: int, source: Source) -> Whole:
    """About so many draws x with probability proportional to exp(-|x| / s), |x| below `_BEYOND` s."""
    units = _below(s, int(1.6 * count) + 16, source)
    units = units[_exponential(units, s, source)]
    turns = np.zeros(len(units), dtype=np.int64)
    going = np.arange(len(units))
    while len(going):
        going = going[_exponential(np.ones(len(going), dtype=np.int64), 1, source)]
        turns[going] += 1
    sizes = units + s * np.minimum(turns, _BEYOND)
    negative = np.unpackbits(np.frombuffer(source(len(sizes) // 8 + 1), dtype=np.uint8))[: len(sizes)].astype(bool)
    kept = (turns < _BEYOND) & ~(negative & (sizes == 0))  # or zero would come twice as often
    sizes[negative] *= -1
    draws: Whole = sizes[kept]
    return draws


def _exponential(above: Whole, below: int, source: Source) -> NDArray[np.bool_]:
    """True with probability exp(-above / below), one for each.

    A whole part of the exponent is so many times exp(-1). For what is left, g: let K be the first k for which a draw
    of probability g / k fails; K is odd with probability 1 - g + g^2 / 2! - ... = exp(-g).
    """
    wholes, rest = above // below, above % below
    result = np.ones(len(above), dtype=bool)
    going = np.flatnonzero(wholes)
    while len(going):
        passed = _exponential_of_one(len(going), source)
        result[going[~passed]] = False
        wholes[going] -= 1
        going = going[passed]
        going = going[wholes[going] > 0]
    places = np.flatnonzero(result & (rest > 0))
    result[places] = _odd(rest[places], below, 1, source)
    return result


def _exponential_of_one(count: int, source: Source) -> NDArray[np.bool_]:
    """True with probability exp(-1): as above with g = 1, where the first draw never fails."""
    return _odd(np.ones(count, dtype=np.int64), 1, 2, source)


def _odd(above: Whole, below: int, first: int, source: Source) -> NDArray[np.bool_]:
    """Whether the first k from `first` on is odd for which a draw of probability above / (below k) fails."""
    result = np.zeros(len(above), dtype=bool)
    going, k = np.arange(len(above)), first
    while len(going):
        passed = _below(below * k, len(going), source) < above[going]
        result[going[~passed]] = k % 2 == 1
        going, k = going[passed], k + 1
    return result


def _below(bound: int, count: int, source: Source) -> Whole:
    """Uniform whole numbers from 0 to `bound` - 1, by rejection: no remainder makes some of them likelier."""
    size = 4 if bound <= 2**16 else 8
    top = 2 ** (8 * size) // bound * bound - 1
    result = np.empty(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        words = np.frombuffer(source(size * len(missing)), dtype=f"<u{size}")
        taken = words <= words.dtype.type(top)
        result[missing[taken]] = (words[taken] % words.dtype.type(bound)).astype(np.int64)
        missing = missing[~taken]
    return result


def whole_deviation(sigma: float) -> tuple[int, float]:
    """The finest lattice for noise of at least this deviation: s, and the step, a power of two, with s step >= sigma.

    >>> s, step = whole_deviation(5.3)
    >>> s <= LARGEST, math.log2(step), 5.3 <= s * step < 5.3 * (1 + 2e-7)
    (True, -21.0, True)
    """
    if not 0 < sigma < math.inf:
        raise ParameterError(f"the deviation of noise must be a number above 0; got {sigma!r}")
    step = math.ldexp(1.0, math.frexp(sigma / LARGEST)[1])  # sigma / LARGEST < step <= 2 sigma / LARGEST
    return math.ceil(sigma / step), step
