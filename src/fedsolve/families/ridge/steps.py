"""Steps of boosting in closed form: what random features F add to states X, so that a head W explains more of them.

With R what the head leaves over, D = argmin |R - F D W|^2 + lam |D|^2 is where F'F D W W' + lam D = F'R W'. The right
side ends in W', and so does the solution: D = K W' with F'F K W'W + lam K = F'R. In the eigenvectors of F'F = V s V'
and W'W = P q P' that is one division: (V'K P)_ij = (V'F'R P)_ij / (s_i q_j + lam).

lam is chosen by generalised cross-validation, as the ridge of a head is. But R was left over by a head, and what F has
in common with the states cannot be fitted twice: with H the head's hat matrix, a step takes up the trace of S (1 - H),
not that of its own hat matrix S. H needs F'X, as many numbers as two triangles. A few random directions are enough for
a trace: F'X u, for vectors u with E[u u'] = (X'X + ridge I)^-1, gives the trace of S H on average, and nearly always.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsolve import digits
from fedsolve.arrays import Float
from fedsolve.moments import Moments
from fedsolve.solver import whiten

PROBES = 16  # random directions from which the freedom of a step is estimated
LEAST = 1e-8  # of the mean diagonal: the ridge behind the probes of a head that has none
# Ridges to choose from, times the mean diagonals of F'F and W'W.
SHARES: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(2, -13, -1))


@dataclass(frozen=True, slots=True, eq=False)
class StepPath:
    """The steps K of a block for all ridges, from two decompositions: F'F = V s V' and W'W = P q P'."""

    vectors: Float  # V
    squares: Float  # s
    directions: Float  # P
    lengths: Float  # q
    right: Float  # V'F'R P

    @classmethod
    def of(cls, gram: Float, right: Float, weight: Float) -> StepPath:
        """F'F, F'R and W, decomposed once."""
        squares, vectors = np.linalg.eigh(gram)
        lengths, directions = np.linalg.eigh(weight.T @ weight)
        squares, lengths = np.maximum(squares, 0.0), np.maximum(lengths, 0.0)  # less is rounding
        return cls(vectors, squares, directions, lengths, vectors.T @ right @ directions)

    def step(self, share: float) -> Float:
        """K at a ridge that is `share` of the mean diagonals; none where the head or the features are zero."""
        return self.vectors @ self._inside(share)[0] @ self.directions.T

    def _inside(self, share: float) -> tuple[Float, Float]:
        """V'K P, and 1 / (s q + lam)."""
        lam = share * float(self.squares.mean() * self.lengths.mean())
        if not lam > 0:
            return np.zeros_like(self.right), np.zeros_like(self.right)
        inverse: Float = 1.0 / (np.multiply.outer(self.squares, self.lengths) + lam)
        return self.right * inverse, inverse

    def cross_validated(self, samples: int, rest: Float, used: float, probed: Float) -> float:
        """The share of least generalised cross-validation error; of equals the first, which is the largest.

        `rest` is R'R over the samples, `used` the freedom of the head, and `probed` F'X u for each probe u. Directions
        of P have a freedom and an error each. They are not pooled: rows of Y sum to one, so along one direction there
        is nothing to fit and no error, and it would halve the freedom of two classes.
        """
        # The diagonal of V'F'(1 - H)F V: single entries are off by far, sums over them are not.
        own: Float = self.squares - np.square(self.vectors.T @ probed).sum(1)
        before = samples * np.einsum("cj,cd,dj->j", self.directions, rest, self.directions, optimize=True)
        errors = []
        for share in SHARES:
            inside, inverse = self._inside(share)
            # |R p - F K W'W p|^2 for each direction p
            fitted = (2.0 * self.right - self.squares[:, None] * inside * self.lengths) * inside * self.lengths
            most, freedom = (self.lengths * (part @ inverse) for part in (self.squares, own))
            left = samples - used - np.clip(freedom, 0.0, most)
            each = np.maximum(before - fitted.sum(0), 0.0) / np.square(np.maximum(left, digits.EPS))
            errors.append(float(each.sum()))
        return SHARES[int(np.argmax(np.array(errors) <= min(errors) * (1 + 1e-9)))]


def probes(total: Moments, ridge: float, rng: np.random.Generator) -> Float:
    """Vectors u with E[sum u u'] = (X'X + ridge I)^-1, the constant without a ridge: all there are, or `PROBES`."""
    least = max(ridge, LEAST * float(total.diagonal()[:-1].mean()), np.finfo(np.float64).tiny)
    coordinates = whiten(total, least, np.eye(total.features), intercept=True)
    size = coordinates.shape[1]
    number = min(PROBES, size)
    basis, _ = np.linalg.qr(rng.standard_normal((size, number)))
    vectors: Float = np.sqrt(size / number) * (coordinates @ basis)
    return vectors
