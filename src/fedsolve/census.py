"""Whether arrays can be what they say they are: the moments of some samples. Looked at before they touch a sum.

With F the features and Y the one-hot labels of n samples, [F Y]'[F Y] is positive semi-definite, Y'Y is the diagonal
matrix of the class counts n_c, and rows of Y sum to one. Hence

    F'F >= 0,    N - Y'F (F'F)^+ F'Y >= 0  with N = diag(n_c),    F'Y 1 = F'1,    sum n_c = n:

no class is explained by more than its samples. Where a feature is always one, n_c, F'1 and n stand in the moments and
everything is checked exactly; where none is, what follows for sums over classes is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsolve import arrays as named
from fedsolve import blas
from fedsolve.arrays import Arrays, Float
from fedsolve.errors import DataError
from fedsolve.moments import Moments

EXPLAINED = 1e-4  # share by which rounding may let samples explain more than there is
EXACT = 1e-9  # share by which rounding may part what is equal
MOST_SAMPLES = 2**40
VANISHING = 1e-154  # features below this square to less than a normal float64, so their squares say nothing of them


@dataclass(frozen=True, slots=True)
class Census:
    """What moments say of themselves: how many samples of how many classes."""

    samples: int
    classes: int  # how many classes they have samples of; none where targets are numbers


def examine(arrays: Arrays, *, ones: int | None = None, bound: float | None = None) -> Census:
    """Refuse, with the reason, moments that no labelled samples have; `arrays` have the layout of moments.

    `ones` is the feature that is always one, where there is one, and `bound` the length that no sample's features
    exceed. It takes a Cholesky factor of F'F and a triangular solve.

    >>> import fedsolve as fs
    >>> examine(fs.Moments.of([[1.0, 2.0], [0.5, 0.0]], [0, 2], classes=3).arrays())
    Census(samples=2, classes=2)
    >>> examine(fs.Moments.of([[1.0, 2.0]], [0]).scaled(9.0).arrays())
    Traceback (most recent call last):
    fedsolve.errors.DataError: its F'Y is larger than its F'F and its counts allow
    """
    named.check(arrays, "it")
    moments, counts = glance(arrays, ones=ones, bound=bound)
    present = (moments.cross != 0).any(axis=0)
    factor = moments.factor()
    if present.any():
        _explained(moments, factor, counts, present)
    return Census(moments.count, int(present.sum()))


def examine_numbers(arrays: Arrays) -> Census:
    """Refuse moments that no samples with numbers as targets have: features explain no more than the squares.

    >>> import fedsolve as fs
    >>> moments = fs.Moments.of([[1.0], [2.0]], np.array([[3.0], [5.0]]), squares=True)
    >>> examine_numbers(moments.arrays())
    Census(samples=2, classes=0)
    """
    named.check(arrays, "it")
    samples(arrays)
    moments = Moments.from_arrays(arrays)
    squares = np.zeros(moments.targets) if moments.squares is None else moments.squares
    explained = np.square(blas.lower_solve(moments.factor(), moments.cross)).sum(axis=0)
    if not (squares >= 0).all() or not (explained <= (1 + EXPLAINED) * squares).all():
        raise DataError("its features explain more of its targets than their squares: no samples have these moments")
    return Census(moments.count, 0)


def glance(arrays: Arrays, *, ones: int | None = None, bound: float | None = None) -> tuple[Moments, Float | None]:
    """The moments in arrays of finite numbers, and their class counts where a feature is always one.

    Looks at squares, counts and F'Y alone: counts that are counts, squares that are, and |F'Y| within what squares and
    counts allow. Whether F'F as a whole is that of samples, it does not see.
    """
    samples(arrays)
    moments = Moments.from_arrays(arrays)
    diagonal = moments.diagonal()
    if not diagonal.min(initial=0.0) >= 0:
        raise DataError(f"the squares of feature {int(diagonal.argmin())} sum to {diagonal.min():.3g}")
    counts = None if ones is None else _ones(moments, diagonal, ones)
    _bounds(moments, diagonal, counts, ones, bound)
    return moments, counts


def samples(arrays: Arrays) -> int:
    """How many samples moments say they are of; refused where that is no count, or more than anybody has."""
    number = arrays["count"]
    count = int(number) if number.shape == () and number.dtype.kind in "iu" else -1
    if not 0 <= count <= MOST_SAMPLES:
        raise DataError(f"it says that it has {np.array2string(number, threshold=4)} samples")
    return count


def _ones(moments: Moments, diagonal: Float, ones: int) -> Float:
    """The class counts, where a feature is always one."""
    counts: Float = moments.cross[ones]
    n = moments.count
    row = moments.triangle[blas.packed_row(moments.features, ones)]
    if row[ones] != n:
        raise DataError(f"it says that it has {n} samples, but its column of ones sums to {row[ones]:.10g}")
    if not (counts >= 0).all() or (counts != np.floor(counts)).any() or counts.sum() != n:
        raise DataError(f"its class counts sum to {counts.sum():.10g} of {n} samples, or are not counts")
    gaps = np.abs(moments.cross.sum(axis=1) - row)
    if not (gaps <= EXACT * np.sqrt(n) * np.sqrt(diagonal) + EXACT * np.abs(row) + n * VANISHING).all():
        raise DataError("its sums over classes are not its sums over samples")
    return counts


def _bounds(moments: Moments, diagonal: Float, counts: Float | None, ones: int | None, bound: float | None) -> None:
    """Lengths: |F'Y e_c| <= n_c B and tr F'F <= n B^2; and always |F'Y|_jc <= sqrt(n_c (F'F)_jj)."""
    n, sums = float(moments.count), moments.cross
    if bound is not None:
        squares = diagonal
        if ones is not None:
            squares, sums = np.delete(squares, ones), np.delete(sums, ones, axis=0)
        length = np.sqrt(squares.sum() / max(n, 1.0))
        if not length <= bound * (1 + EXACT):
            raise DataError(
                f"its samples have a length of {length:.4g} (root mean square), and the declared bound is {bound:g}"
            )
        per_class = n if counts is None else counts
        if not (np.linalg.norm(sums, axis=0) <= per_class * bound * (1 + EXACT)).all():
            raise DataError(f"its class sums are longer than samples within the declared bound {bound:g} allow")
    if not (_short(moments, diagonal) if counts is None else _fits(moments, diagonal, counts)):
        raise DataError("its F'Y is larger than its F'F and its counts allow")


def _short(moments: Moments, squares: Float) -> bool:
    """Whether sum_c (F'Y)_jc^2 <= n (F'F)_jj, as it follows class by class; one pass, unless that leaves the range."""
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.einsum("jc,jc->j", moments.cross, moments.cross)
        is_short = bool((lengths <= (1 + EXPLAINED) * moments.count * squares).all())
    return is_short or _fits(moments, squares, np.full(moments.targets, float(moments.count)))


def _fits(moments: Moments, squares: Float, counts: Float) -> bool:
    """Whether |F'Y|_jc <= sqrt(n_c (F'F)_jj), whatever the units."""
    largest = np.sqrt((1 + EXPLAINED) * counts) * np.sqrt(squares)[:, None] + moments.count * VANISHING
    return bool((np.abs(moments.cross) <= largest).all())


def _explained(moments: Moments, factor: Float, counts: Float | None, present: NDArray[np.bool_]) -> None:
    """No class is explained by more than its samples, nor the constant one by more than all.

    A class whose sums are all zero is explained by nothing and takes nothing from the others: only the rest is solved.
    """
    half = blas.lower_solve(factor, moments.cross[:, present])
    n, slack = float(moments.count), 1 + EXPLAINED
    whole, constant = float(np.square(half).sum()), float(np.square(half.sum(axis=1)).sum())
    if not (whole <= slack * n and constant <= slack * n):
        raise DataError(
            f"its features explain {max(whole, constant):.5g} samples, and it says that it has {moments.count}: the "
            "moments were scaled, or belong to other labels or another count"
        )
    if counts is not None:
        rest = np.diag(slack * counts[present] + EXPLAINED) - half.T @ half
        if blas.cholesky(np.asfortranarray(rest)) is None:
            raise DataError("its features explain more samples of some classes than it has of them")
