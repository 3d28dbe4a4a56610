"""Everybody's system, factorised once, from which systems with some samples weighing more are solved.

With H = F'F + ridge I = L L' and G = H^-1 F'Y, samples F_k, Y_k that weigh alpha more have the minimiser

    P = G + alpha L'^-1 Z (I + alpha Z'Z)^-1 (Y_k - F_k G),    Z = L^-1 F_k'                          (Woodbury),

a system as large as the samples are many. Z'Z is also what leaving one of them out takes. With an intercept, features
are those about everybody's means, beside which the constant one stands alone: its part of Z is 1 / sqrt(n).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsolve import digits
from fedsolve.arrays import Float
from fedsolve.moments import Moments
from fedsolve.solver import factor_of
from fedsolve.triangle import Triangle

SOUND = 1e-7  # reciprocal condition number of H from which on models by it have the digits of the whole system's
LIKELY = 10.0  # how much worse random errors may be than those that were drawn


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """H = L L', and what it takes to say that a system with further samples has lost no digits."""

    factor: Triangle  # L
    means: Float | None  # of the features, where there is an intercept
    count: int
    squares: Float  # of each feature, summed
    varied: Float  # the same about the means: at least this much is left of them with any further samples
    cross: Float  # F'Y
    rcond: float
    moved: float  # how far errors as large as the features move predictions; see digits.moved

    @classmethod
    def of(cls, moments: Moments, ridge: float, *, intercept: bool) -> Anchor | None:
        """The anchor; None where H is near to singular, or a feature seems constant and is not zero.

        Such systems are solved by themselves: which digits were lost then depends on the further samples.
        """
        found = factor_of(moments, ridge, intercept=intercept)
        squares = moments.diagonal()[: moments.features - intercept]
        if found is None or not found.rcond > SOUND or squares[found.constant].any():
            return None
        varied = np.einsum("ij,ij->i", found.lower, found.lower) - ridge
        moved = digits.moved(found.lower, np.sqrt(squares))
        cross = moments.cross[: moments.features - intercept]
        triangle = Triangle.of(found.lower)
        return cls(triangle, found.means, moments.count, squares, varied, cross, found.rcond, moved)

    def along(self, rows: Float) -> Float:
        """L^-1 F_k', one column per row of features: coordinates in which H is the identity, without the constant's."""
        return self.factor.solve((rows if self.means is None else rows - self.means).T)

    def design(self, along: Float) -> Float:
        """The coordinates as rows, with the constant's behind them where there is one."""
        if self.means is None:
            return along.T
        return np.hstack([along.T, np.full((along.shape[1], 1), 1.0 / np.sqrt(self.count))])

    def change(self, along: Float, inner: Float) -> tuple[Float, Float | None]:
        """H^-1 F_k' `inner`: the change of the weights, and that of the intercept where there is one."""
        if inner.shape[0] < inner.shape[1]:
            weights = self.factor.solve(along, transposed=True) @ inner
        else:
            weights = self.factor.solve((inner.T @ along.T).T, transposed=True)
        if self.means is None:
            return weights, None
        return weights, inner.sum(0) / self.count - self.means @ weights

    def sure(self, squares: Float, rows: Float, targets: Float, alpha: float, weights: Float) -> bool:
        """Whether it is certain that the system with further samples, weighing alpha, has lost no digits that matter.

        `squares` are those of their features, summed, and `weights` the solution. Where that is not certain, the system
        has to be solved by itself, which says what it is unsure of.

        Its condition is at most that of H times what its diagonal grows by, times m^3/2 between norms. If that is too
        much to be safe, how far rounding moves predictions decides, as in `digits.of_factor`: H grows, so errors of the
        same size move them less than they do with H alone.
        """
        used = self.squares > 0
        if squares[~used].any():
            return False  # features that nobody else has
        grown = (self.squares + alpha * squares)[used]
        most = float((grown / self.squares[used]).max(initial=1.0))
        kept = float((self.varied[used] / grown).min(initial=1.0)) if self.means is not None else 1.0
        further = most if self.means is None else float(1.0 / max(kept, 1e-300))
        if self.rcond * kept > digits.SAFE * len(used) ** 1.5 * further:
            return True
        if not kept > digits.SAFE:
            return False
        lengths = np.sqrt(self.squares + alpha * squares)
        cross = np.abs(self.cross + alpha * (rows.T @ targets))
        told = (cross[used] / lengths[used, None]).max(0, initial=0.0)
        return LIKELY * digits.pushed(lengths, weights, told) * float(np.sqrt(most)) * self.moved <= digits.TOLERANCE
