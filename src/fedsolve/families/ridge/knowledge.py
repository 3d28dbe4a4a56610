"""What a federation's sums say about classes: the discriminant and least squares of all, or of all but some samples.

The sums are F'F and F'Y of features with a column of ones behind them, so that F'Y also holds the class sums and
counts. The scatter within classes is decomposed once, on the server; samples of a client are part of the sums and
subtract exactly, so that each client can have what everybody else knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas, digits
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.families.ridge import linear
from fedsolve.moments import Moments


def class_shares(counts: Float) -> Float:
    """The share of each class, with one sample more in each, so that none is zero."""
    shares: Float = (counts + 1.0) / (counts + 1.0).sum()
    return shares


def lost_features(moments: Moments, shrink: float) -> NDArray[np.bool_]:
    """Which features have a scatter within classes that is mostly rounding: eps times the squares it is left over from.

    Those that are constant, too: all are shrunk alike, by the mean scatter, so what rounding leaves of a feature with
    huge values would shrink the others.
    """
    squares, sums, counts = moments.diagonal()[:-1], moments.cross[:-1], moments.cross[-1]
    scatter = squares - (np.square(sums) / np.maximum(counts, 1.0)).sum(1)
    mean = float(scatter.mean())
    scatter += shrink * mean if mean > 0 else 1.0
    lost: NDArray[np.bool_] = digits.EPS * squares > digits.TOLERANCE * scatter
    return lost & (squares > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What sums with a column of ones say about classes, decomposed once for all clients."""

    factor: Float  # L, packed: L L' is the scatter within classes, sum over samples, plus a multiple of the identity
    cross: Float  # F'Y: below the sums of the samples of each class, how many they are

    @property
    def sums(self) -> Float:
        """Of the samples of each class, features x classes."""
        return self.cross[:-1]

    @property
    def counts(self) -> Float:
        """How many samples each class has."""
        counts: Float = self.cross[-1]
        return counts

    @classmethod
    def of(cls, moments: Moments, shrink: float) -> Knowledge:
        """The identity counts for `shrink` of the mean variance within classes."""
        sums, counts = moments.cross[:-1], moments.cross[-1]
        means = sums / np.maximum(counts, 1.0)
        within = np.asfortranarray(moments.lower()[:-1, :-1])
        within -= np.tril((means * counts) @ means.T)
        spread = float(np.trace(within)) / len(within)
        within[np.diag_indices_from(within)] += shrink * spread if spread > 0 else 1.0
        return cls(blas.pack(_factor(within, spread)), moments.cross)

    def arrays(self) -> dict[str, Array]:
        """The factor and F'Y as named arrays, as they are sent."""
        return {"factor": self.factor, "cross": self.cross}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Knowledge:
        """The knowledge in a message that has the arrays of `arrays`."""
        return cls(arrays["factor"], arrays["cross"])

    def everybody(self) -> Others:
        """All that is known, with no samples taken out."""
        return Others(self.factor, np.empty((0, len(self.sums))), self.sums, self.counts)

    def without(self, rows: Float, labels: Array) -> Others:
        """Without samples that are part of it.

        Of each class, the scatter of all is that of the others, that of `rows`, and n k / (n + k) times the square of
        the distance between the two means, of n other samples and k of `rows`.
        """
        indicators = linear.one_hot(labels, len(self.counts))
        own_counts, own_sums = indicators.sum(0), rows.T @ indicators
        sums, counts = self.sums - own_sums, np.maximum(self.counts - own_counts, 0.0)  # noisy ones may be fewer
        own_means = own_sums / np.maximum(own_counts, 1.0)
        both = (own_counts > 0) & (counts > 0)
        weights = np.sqrt((own_counts * counts)[both] / (own_counts + counts)[both])
        between = weights[:, None] * (sums[:, both] / counts[both] - own_means[:, both]).T
        return Others(self.factor, np.vstack([rows - own_means.T[labels], between]), sums, counts)


@dataclass(frozen=True, slots=True, eq=False)
class Others:
    """What is known from all but some samples: everybody's scatter less Z'Z, with the others' sums and counts."""

    factor: Float
    gone: Float  # Z
    sums: Float
    counts: Float

    @property
    def _apart(self) -> tuple[Float, Float]:
        """The mean of all samples, and the class means about it. A class without samples is not apart."""
        centre = self.sums.sum(1) / max(self.counts.sum(), 1.0)
        means = self.sums / np.maximum(self.counts, 1.0)
        return centre, np.where(self.counts > 0, means - centre[:, None], 0.0)

    def discriminant(self) -> tuple[Float, Float]:
        """Weights and offsets of the linear discriminant, without any class shares.

        With class means m_c, overall mean g and S the shrunk covariance within classes: score_c(x) = (x - g)' S^-1
        (m_c - g) - (m_c - g)' S^-1 (m_c - g) / 2. A class without samples scores 0.
        """
        centre, apart = self._apart
        if self.counts.sum() <= 0:
            return np.zeros_like(self.sums), np.zeros_like(self.counts)
        weight = self.counts.sum() * _solve_less(self.factor, self.gone, apart)
        return weight, -0.5 * (apart * weight).sum(0) - centre @ weight

    def least_squares(self, weight: Float) -> tuple[Float, Float]:
        """Centred least squares on one-hot targets, shrunk alike, from the discriminant's weights; less the shares.

        With A the class means about the overall one, D the counts, N their sum and N S the scatter within classes,
        X'Y = A D and X'X = N S + A D A', so by Woodbury the weights are S^-1 A (I + D A' S^-1 A / N)^-1 D / N.
        """
        centre, apart = self._apart
        root = np.sqrt(self.counts / max(self.counts.sum(), 1.0))
        inner = np.eye(len(root)) + root[:, None] * (apart.T @ weight) * root
        straight = weight @ (root[:, None] * np.linalg.solve(inner, np.diag(root)))
        return straight, -centre @ straight


def _solve_less(factor: Float, gone: Float, right: Float) -> Float:
    """(L L' - Z'Z)^-1 `right`, on the smaller side: samples, by Woodbury's identity, or features."""
    count, size = gone.shape
    if count < size:
        solved = blas.packed_lower_solve(factor, np.hstack([gone.T, right]))
        along, start = solved[:, :count], solved[:, count:]
        inner = blas.cholesky(np.eye(count) - along.T @ along)
        if inner is not None:
            start = start + along @ blas.cholesky_solve(inner, along.T @ start)
            return np.ascontiguousarray(blas.packed_lower_solve(factor, start, transposed=True))
    lower = blas.unpack(factor, size)
    rest = np.asfortranarray(np.tril(lower @ lower.T - gone.T @ gone))
    return np.ascontiguousarray(blas.cholesky_solve(_factor(rest, float(np.trace(rest)) / size), right))


def _factor(lower: Float, spread: float) -> Float:
    """The Cholesky factor. Where rounding left a direction negative, one without scatter, more and more is added."""
    more = max(spread, 1e-300)
    while (factor := blas.cholesky(lower)) is None:
        lower[np.diag_indices_from(lower)] += more
        more *= 10.0
    return factor
