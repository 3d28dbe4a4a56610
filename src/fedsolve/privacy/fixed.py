"""Numbers as integers modulo 2^128: sums that are exact, the same in any order, and the same under masks.

A number is held as its multiple of a unit 2^-fraction, in two words of 64 bits (the low ones in row 0, the high ones in
row 1), negative ones in two's complement. Integers have the unit 1. Words are never added apart: whoever saw the sum of
the low words without its carries would learn more than the sum.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.errors import DataError, brief

Words: TypeAlias = NDArray[np.uint64]  # two rows: low words, high words

FRACTION = 60  # bits behind the point, unless said otherwise: a unit of 9e-19
LARGEST_FRACTION = 126
_BITS = 128
_BLOCK = 1 << 14  # numbers at a time: what is computed on the way stays in the cache
_ONES = np.uint64(2**64 - 1)
_FLOATS = ("<f8", "<f4")


def limit(fraction: int, parties: int) -> float:
    """What numbers must stay below, so that a sum over so many parties cannot wrap around.

    >>> limit(60, 10)
    1.4757395258967642e+19
    """
    return 2.0 ** (_BITS - 1 - fraction) / parties


def encode(numbers: Array, fraction: int, parties: int, name: str, out: Words | None = None) -> Words:
    """Each number as the nearest multiple of the unit (of two, the even one); integers as they are; into `out`.

    `name` is what the numbers are called where they are refused: they must be finite, and `parties` of them must fit.

    >>> encode(np.array([1.0, -1.0]), 0, 2, "x").tolist()
    [[1, 18446744073709551615], [0, 18446744073709551615]]
    """
    flat = np.ascontiguousarray(numbers).reshape(-1)
    words = np.empty((2, flat.size), dtype=np.uint64) if out is None else out
    if flat.dtype.kind in "iu":
        words[0] = flat.astype(np.uint64 if flat.dtype.kind == "u" else np.int64).view(np.uint64)
        words[1] = np.where(flat < 0, _ONES, np.uint64(0))
        return words
    if flat.dtype.str not in _FLOATS:
        raise DataError(f"{name!r} is {flat.dtype}, and a secure sum adds float64, float32 and integers")
    bound = limit(fraction, parties)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK].astype(np.float64)
        largest = float(np.abs(part).max())
        if not largest < bound:
            if not np.isfinite(largest):
                raise DataError(f"{name!r} has values that are not finite")
            raise DataError(  # without the value, since the sentence may be told to others
                f"{name!r} has values that do not fit: a secure sum over {parties} sites with {fraction} bits behind "
                f"the point holds those below {bound:.3g}; scale the features down, or agree on fewer bits"
            )
        words[:, start : start + _BLOCK] = _encode(part, fraction)
    return words


def _encode(numbers: NDArray[np.float64], fraction: int) -> Words:
    size = np.abs(numbers)
    size *= 2.0 ** (fraction - 64)  # exact, but for numbers that are far below the unit
    high = np.floor(size)
    size -= high  # exact: the digits behind the point
    size *= 2.0**64
    words = np.stack([np.rint(size).astype(np.uint64), high.astype(np.uint64)])
    _negate(words, np.signbit(numbers))
    return words


def _negate(words: Words, where: NDArray[np.bool_]) -> None:
    """Two's complement in place, without branches: all bits turned, and one more."""
    low, high = words
    one = where.astype(np.uint64)
    turned = np.uint64(0) - one
    low ^= turned
    high ^= turned
    low += one
    high += one & (low == 0)


def add(total: Words, part: Words) -> None:
    """`total + part`, into `total`, with the carries between words."""
    np.add(total[0], part[0], out=total[0])
    carry = total[0] < part[0]
    np.add(total[1], part[1], out=total[1])
    np.add(total[1], carry.view(np.uint8), out=total[1])


def subtract(total: Words, part: Words) -> None:
    """`total - part`, into `total`."""
    borrow = total[0] < part[0]
    np.subtract(total[1], part[1], out=total[1])
    np.subtract(total[1], borrow.view(np.uint8), out=total[1])
    np.subtract(total[0], part[0], out=total[0])


def decode(words: Words, fraction: int, dtype: np.dtype[Any], name: str) -> Array:
    """The numbers that words stand for, in that type: floats are the nearest there are, of two the even one.

    >>> decode(encode(np.array([0.1, -2.5]), 60, 1, "x"), 60, np.dtype(float), "x").tolist()
    [0.1, -2.5]
    """
    if dtype.kind in "iu":
        return _integers(words, dtype, name)
    numbers = np.empty(words.shape[1], dtype=dtype)
    for start in range(0, numbers.size, _BLOCK):
        numbers[start : start + _BLOCK] = _floats(words[:, start : start + _BLOCK], fraction, dtype)
    return numbers


def _integers(words: Words, dtype: np.dtype[Any], name: str) -> Array:
    low, high = words
    if dtype.kind == "u":
        fits, numbers = high == 0, low
    else:
        numbers = low.view(np.int64)
        fits = high == np.where(numbers < 0, _ONES, np.uint64(0))
    bounds = np.iinfo(dtype)
    if not (fits & (numbers >= bounds.min) & (numbers <= bounds.max)).all():
        raise DataError(f"the sum of {brief(name)} does not fit into {dtype}, the type that its parts have")
    whole: Array = numbers.astype(dtype)
    return whole


def _floats(words: Words, fraction: int, dtype: np.dtype[Any]) -> Array:
    """The leading 64 bits, with a last bit that says whether anything is below them: a float then rounds once, rightly.

    The length of the high word is read from a float, and is one too long where that was rounded up; 63 bits and the
    last one are still more than any float holds.
    """
    magnitude = words.copy()
    low, high = magnitude
    negative = high >> np.uint64(63) == 1
    _negate(magnitude, negative)
    length = np.minimum(np.frexp(high.astype(np.float64))[1], 64).astype(np.uint64)
    left, right = (np.uint64(64) - length) & np.uint64(63), length & np.uint64(63)
    inside = (length > 0) & (length < 64)
    top = np.where(length == 0, low, (high << left) | np.where(inside, low >> right, np.uint64(0)))
    below = (length > 0) & (low << left != 0)
    top |= below.astype(np.uint64)
    numbers: Array = np.ldexp(top.astype(dtype), length.astype(np.int32) - np.int32(fraction))
    np.negative(numbers, out=numbers, where=negative)
    return numbers
