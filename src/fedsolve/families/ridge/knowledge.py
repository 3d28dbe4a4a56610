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
        triangle, sums = Triangle.of(blas.unpack(self.factor, len(self.sums))), np.ascontiguousarray(self.sums.T)
        return Whitened(self, triangle, sums, triangle.solve(sums.T).T)


@dataclass(frozen=True, slots=True, eq=False)
class Whitened:
    """What is known, with a factor that is fast to solve with: once for all clients of a process.

    Here and in `Others`, what there is of each class is one row per class: rows of samples are added to it as they are.
    """

    known: Knowledge
    triangle: Triangle  # L
    sums: Float  # of the samples of each class, classes x features
    along: Float  # L^-1 times them, classes x features

    def everybody(self) -> Others:
        """All that is known, with no samples taken out."""
        return self.without(np.empty((0, self.sums.shape[1])), np.empty(0, dtype=np.int64))

    def without(self, rows: Float, labels: Array) -> Others:
        """Without samples that are part of it."""
        own = np.bincount(labels, minlength=len(self.sums)).astype(np.float64)
        counts = np.maximum(self.known.counts - own, 0.0)  # noisy ones may be fewer
        sums = self.sums - _class_sums(rows, labels, len(own))
        centre: Float = sums.sum(0) / max(counts.sum(), 1.0)
        return Others(self, rows, labels, own, counts, centre, _about(sums, centre, counts))


@dataclass(frozen=True, slots=True, eq=False)
class Others:
    """What is known from all but some samples: everybody's scatter less Z'Z, with the others' sums and counts.

    Of each class, the scatter of all is that of the others, that of the samples, and n k / (n + k) times the square of
    the distance d between the two means, of n others and k samples. Samples about their class means sum to zero, so
    Z has as many rows as there are samples: each about its class mean, plus sqrt(n / (n + k)) d.
    """

    all: Whitened
    rows: Float
    labels: Array
    own: Float  # how many samples of each class they are
    counts: Float  # of the others
    centre: Float  # their mean
    apart: Float  # their class means about it, classes x features

    def discriminant(self) -> tuple[Float, Float]:
        """Weights and offsets of the linear discriminant, without any class shares.

        With class means m_c, overall mean g and S the shrunk covariance within classes: score_c(x) = (x - g)' S^-1
        (m_c - g) - (m_c - g)' S^-1 (m_c - g) / 2. A class without samples scores 0.
        """
        if self.counts.sum() <= 0:
            return np.zeros_like(self.apart.T), np.zeros_like(self.counts)
        solved = self._solved()
        solved *= self.counts.sum()
        offset = -0.5 * np.einsum("ij,ij->i", self.apart, solved.T) - solved.T @ self.centre
        weight = np.empty(solved.shape)
        blas.transpose(solved.T, weight)
        return weight, offset

    def turn(self, weight: Float) -> Float:
        """What turns the discriminant's weights into those of centred least squares on one-hot targets, shrunk alike.

        With A the class means about the overall one, D the counts, N their sum and N S the scatter within classes,
        X'Y = A D and X'X = N S + A D A', so by Woodbury the weights are S^-1 A (I + D A' S^-1 A / N)^-1 D / N.
        """
        root = np.sqrt(self.counts / max(self.counts.sum(), 1.0))
        inner = np.eye(len(root)) + root[:, None] * (self.apart @ weight) * root
        factor = _factor(np.asfortranarray(inner), 1.0)  # symmetric, and at least the identity
        return np.asarray(root[:, None] * blas.cholesky_solve(factor, np.diag(root)))

    def _solved(self) -> Float:
        """(L L' - Z'Z)^-1 times the class means apart, on the smaller side: samples, by Woodbury, or features."""
        triangle, size = self.all.triangle, len(self.centre)
        if len(self.rows) < size:
            # L^-1 of the samples gives that of all that is made of them.
            rows = triangle.solve(self.rows.T).T
            gone, sums = self._gone(rows, self.all.along)
            inner = gone @ gone.T
            np.negative(inner, out=inner)
            inner[np.diag_indices_from(inner)] += 1.0
            factor = inner.T  # symmetric, so it is itself in Fortran order
            if blas.factorise(factor):
                start = _about(sums, sums.sum(0) / self.counts.sum(), self.counts)
                start += blas.cholesky_solve(factor, gone @ start.T).T @ gone
                return triangle.solve(start.T, transposed=True)
        lower, (gone, _) = blas.unpack(self.all.known.factor, size), self._gone(self.rows, self.all.sums)
        rest = np.asfortranarray(np.tril(lower @ lower.T - gone.T @ gone))
        return blas.cholesky_solve(_factor(rest, float(np.trace(rest)) / size), self.apart.T)

    def _gone(self, rows: Float, sums: Float) -> tuple[Float, Float]:
        """Z, and the others' class sums, from the samples and everybody's class sums, in any coordinates."""
        own_sums = _class_sums(rows, self.labels, len(sums))
        sums = sums - own_sums
        share = np.sqrt(self.counts / np.maximum(self.own + self.counts, 1.0))
        counts = np.where(self.counts > 0, self.counts, 1.0)
        # The samples' class means less sqrt(n / (n + k)) d, which is that share of the way to the others'.
        towards = own_sums * ((1.0 - share) / np.maximum(self.own, 1.0))[:, None]
        towards += sums * (share / counts)[:, None]
        return rows - towards[self.labels], sums


def _class_sums(rows: Float, labels: Array, classes: int) -> Float:
    """The sum of the rows of each class, classes x features.

    Row by row: a product with the matrix of ones and zeros takes four times as long, with 100 classes.
    """
    sums = np.zeros((classes, rows.shape[1]))
    for row, label in zip(rows, labels.tolist(), strict=True):
        sums[label] += row
    return sums


def whitened(message: Arrays) -> Whitened:
    """What a message says about classes: the same for all clients."""
    return Knowledge.from_arrays(message).whitened()


def _about(sums: Float, centre: Float, counts: Float) -> Float:
    """Class means about a centre, from class sums in any coordinates; zero where a class has no samples."""
    means: Float = sums / np.maximum(counts, 1.0)[:, None]
    means -= centre
    means[counts <= 0] = 0.0
    return means


def _factor(lower: Float, spread: float) -> Float:
    """The Cholesky factor. Where rounding left a direction negative, one without scatter, more and more is added."""
    more = max(spread, 1e-300)
    while (factor := blas.cholesky(lower)) is None:
        lower[np.diag_indices_from(lower)] += more
        more *= 10.0
    return factor
