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
from fedsolve.triangle import Triangle


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

    def whitened(self) -> Whitened:
        """The same, ready to have samples taken out."""
        triangle = Triangle.of(blas.unpack(self.factor, len(self.sums)))
        return Whitened(self, triangle, triangle.solve(self.sums))


@dataclass(frozen=True, slots=True, eq=False)
class Whitened:
    """What is known, with a factor that is fast to solve with: once for all clients of a process."""

    known: Knowledge
    triangle: Triangle  # L
    along: Float  # L^-1 times the sums of each class

    def everybody(self) -> Others:
        """All that is known, with no samples taken out."""
        return self.without(np.empty((0, len(self.known.sums))), np.empty(0, dtype=np.int64))

    def without(self, rows: Float, labels: Array) -> Others:
        """Without samples that are part of it."""
        indicators = linear.one_hot(labels, len(self.known.counts))
        own = indicators.sum(0)
        means = rows.T @ (indicators / np.maximum(own, 1.0))
        counts = np.maximum(self.known.counts - own, 0.0)  # noisy ones may be fewer
        sums = self.known.sums - means * own
        centre: Float = sums.sum(1) / max(counts.sum(), 1.0)
        return Others(self, rows, labels, means, own, counts, centre, _about(sums, centre, counts))


@dataclass(frozen=True, slots=True, eq=False)
class Others:
    """What is known from all but some samples: everybody's scatter less Z'Z, with the others' sums and counts.

    Of each class, the scatter of all is that of the others, that of the samples, and n k / (n + k) times the square of
    the distance between the two means, of n others and k samples: the rows of Z are the samples about their class
    means, and these distances.
    """

    all: Whitened
    rows: Float
    labels: Array
    means: Float  # of the samples of each class
    own: Float  # how many they are
    counts: Float  # of the others
    centre: Float  # their mean
    apart: Float  # their class means about it

    def discriminant(self) -> tuple[Float, Float]:
        """Weights and offsets of the linear discriminant, without any class shares.

        With class means m_c, overall mean g and S the shrunk covariance within classes: score_c(x) = (x - g)' S^-1
        (m_c - g) - (m_c - g)' S^-1 (m_c - g) / 2. A class without samples scores 0.
        """
        if self.counts.sum() <= 0:
            return np.zeros_like(self.apart), np.zeros_like(self.counts)
        weight = np.ascontiguousarray(self._solved())
        weight *= self.counts.sum()
        return weight, -0.5 * np.einsum("ij,ij->j", self.apart, weight) - self.centre @ weight

    def turn(self, weight: Float) -> Float:
        """What turns the discriminant's weights into those of centred least squares on one-hot targets, shrunk alike.

        With A the class means about the overall one, D the counts, N their sum and N S the scatter within classes,
        X'Y = A D and X'X = N S + A D A', so by Woodbury the weights are S^-1 A (I + D A' S^-1 A / N)^-1 D / N.
        """
        root = np.sqrt(self.counts / max(self.counts.sum(), 1.0))
        inner = np.eye(len(root)) + root[:, None] * (self.apart.T @ weight) * root
        return np.asarray(root[:, None] * np.linalg.solve(inner, np.diag(root)))

    def _solved(self) -> Float:
        """(L L' - Z'Z)^-1 times the class means apart, on the smaller side: samples, by Woodbury, or features."""
        triangle, both = self.all.triangle, (self.own > 0) & (self.counts > 0)
        count, size = len(self.rows) + int(both.sum()), len(self.apart)
        if count < size:
            # L^-1 of the samples gives that of all that is made of them.
            rows = triangle.solve(self.rows.T)
            means = rows @ self._shares
            along = self._gone(rows, means, self.all.along, both)
            sums = self.all.along - means * self.own
            start = _about(sums, sums.sum(1) / self.counts.sum(), self.counts)
            inner = blas.cholesky(np.asfortranarray(np.eye(count) - along.T @ along))
            if inner is not None:
                start += along @ blas.cholesky_solve(inner, along.T @ start)
                return triangle.solve(start, transposed=True)
        lower = blas.unpack(self.all.known.factor, size)
        gone = self._gone(self.rows.T, self.means, self.all.known.sums, both)
        rest = np.asfortranarray(np.tril(lower @ lower.T - gone @ gone.T))
        return blas.cholesky_solve(_factor(rest, float(np.trace(rest)) / size), self.apart)

    @property
    def _shares(self) -> Float:
        """Of each sample in the mean of its class; samples x classes."""
        return linear.one_hot(self.labels, len(self.own)) / np.maximum(self.own, 1.0)

    def _gone(self, rows: Float, means: Float, sums: Float, both: NDArray[np.bool_]) -> Float:
        """Z' from samples, their class means and everybody's class sums, in any coordinates; samples are columns."""
        own, counts = self.own[both], self.counts[both]
        weights = np.sqrt(own * counts / (own + counts))
        others = (sums[:, both] - means[:, both] * own) / counts
        return np.hstack([rows - means[:, self.labels], weights * (others - means[:, both])])


def _about(sums: Float, centre: Float, counts: Float) -> Float:
    """Class means about a centre, from class sums in any coordinates; zero where a class has no samples."""
    means: Float = sums / np.maximum(counts, 1.0)
    means -= centre[:, None]
    means[:, counts <= 0] = 0.0
    return means


def _factor(lower: Float, spread: float) -> Float:
    """The Cholesky factor. Where rounding left a direction negative, one without scatter, more and more is added."""
    more = max(spread, 1e-300)
    while (factor := blas.cholesky(lower)) is None:
        lower[np.diag_indices_from(lower)] += more
        more *= 10.0
    return factor
