"""Whether a contribution can be what it says it is: the moments of some samples. Looked at before it touches a sum.

With F the features and Y the one-hot labels of n samples, [F Y]'[F Y] is positive semi-definite, Y'Y is the diagonal
matrix of the class counts n_c, and rows of Y sum to one. Hence

    F'F >= 0,    N - Y'F (F'F)^+ F'Y >= 0  with N = diag(n_c),    F'Y 1 = F'1,    sum n_c = n:

no class is explained by more than its samples. Where a feature is always one, n_c, F'1 and n stand in the moments and
everything is checked exactly; where none is, what follows for sums over classes is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsolve import arrays as named
from fedsolve import blas
from fedsolve.arrays import Arrays, Float
from fedsolve.errors import DataError
from fedsolve.ledger.terms import Terms
from fedsolve.moments import Moments

EXPLAINED = 1e-4  # share by which rounding may let samples explain more than there is
EXACT = 1e-9  # share by which rounding may part what is equal
MOST_SAMPLES = 2**40


@dataclass(frozen=True, slots=True)
class Census:
    """What a contribution says of itself: how many samples of how many classes."""

    samples: int
    classes: int  # how many classes it has samples of


def content(arrays: Arrays) -> str:
    """The digest of arrays: of their names, types, shapes and values, whatever file they came in."""
    digest = hashlib.sha256(repr(named.layout(arrays)).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()[:32]


def examine(terms: Terms, arrays: Arrays) -> Census:
    """Refuse, with the reason, what cannot be the moments of samples of this federation.

    >>> import fedsolve as fs
    >>> from fedsolve.ledger.terms import Terms
    >>> terms = Terms.make(fs.AFL(), fs.Task(fs.Classes(3), (2,)))
    >>> moments = fs.Moments.of([[1.0, 2.0], [0.5, 0.0]], [0, 2], classes=3)
    >>> examine(terms, moments.arrays())
    Census(samples=2, classes=2)
    """
    layout = named.layout(arrays)
    if layout != terms.layout:
        raise DataError(f"it holds {named.words(layout)}; wanted {named.words(terms.layout)}")
    named.check(arrays, "it")
    count = int(arrays["count"])
    if not 0 < count <= MOST_SAMPLES:
        raise DataError(f"it says that it has {count} samples")
    moments = Moments.from_arrays(arrays)
    diagonal = moments.diagonal()
    if not diagonal.min() >= 0:
        raise DataError(f"the squares of feature {int(diagonal.argmin())} sum to {diagonal.min():.3g}")
    counts = None if terms.ones is None else _ones(moments, terms.ones)
    _bounds(terms, moments, diagonal, counts)
    present = (moments.cross != 0).any(axis=0)
    _explained(moments, moments.factor(), counts, present)
    return Census(count, int(present.sum()))


def _ones(moments: Moments, ones: int) -> Float:
    """The class counts, where a feature is always one."""
    counts: Float = moments.cross[ones]
    n = moments.count
    row = moments.triangle[blas.packed_row(moments.features, ones)]
    if row[ones] != n:
        raise DataError(f"it says that it has {n} samples, but its column of ones sums to {row[ones]:.10g}")
    if not (counts >= 0).all() or (counts != np.floor(counts)).any() or counts.sum() != n:
        raise DataError(f"its class counts sum to {counts.sum():.10g} of {n} samples, or are not counts")
    gaps = np.abs(moments.cross.sum(axis=1) - row)
    if not (gaps <= EXACT * np.sqrt(n * moments.diagonal()) + EXACT * np.abs(row)).all():
        raise DataError("its sums over classes are not its sums over samples")
    return counts


def _bounds(terms: Terms, moments: Moments, diagonal: Float, counts: Float | None) -> None:
    """Lengths: |F'Y e_c| <= n_c B and tr F'F <= n B^2; and always (F'Y)_jc^2 <= n_c (F'F)_jj."""
    n, squares, sums = float(moments.count), diagonal, moments.cross
    if terms.ones is not None:
        squares, sums = np.delete(squares, terms.ones), np.delete(sums, terms.ones, axis=0)
    per_class = np.full(moments.targets, n) if counts is None else counts
    if terms.bound is not None:
        length = np.sqrt(squares.sum() / n)
        if not length <= terms.bound * (1 + EXACT):
            raise DataError(
                f"its samples have a length of {length:.4g} (root mean square), and the declared bound is "
                f"{terms.bound:g}"
            )
        if not (np.linalg.norm(sums, axis=0) <= per_class * terms.bound * (1 + EXACT)).all():
            raise DataError(f"its class sums are longer than samples within the declared bound {terms.bound:g} allow")
    if not (np.square(sums) <= (1 + EXPLAINED) * squares[:, None] * per_class).all():
        raise DataError("its F'Y is larger than its F'F and its counts allow")


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
