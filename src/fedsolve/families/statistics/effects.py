"""Random effects at a site: its part of the likelihood of a linear mixed model and of its derivatives, as sums.

The model of site k is y = X b + Z u + e, with Z some columns of X, u ~ N(0, s2 V) and e ~ N(0, s2 I). With
W = (I + Z V Z')^-1 and R = [X y], all that the likelihood needs of a site is R'W R and log|I + Z V Z'|, which follow
from the sums G = R'R. With B = Z'W R and N = Z'W Z the derivatives along a symmetric E are

    d R'W R = - B'E B,    d log|I + Z V Z'| = tr(N E),    d2 R'W R = B'(E N F + F N E) B,    d tr(N E) = - tr(N E N F).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float

Places = tuple[NDArray[np.int64], NDArray[np.int64]]


class Structure(NamedTuple):
    """Which columns of X have random effects, and which entries of V are free: the diagonal, or all of it."""

    columns: NDArray[np.int64]
    full: bool

    @property
    def places(self) -> Places:
        """Rows and columns of the free entries of V, and of its factor L with V = L L'."""
        size = len(self.columns)
        rows, columns = np.tril_indices(size) if self.full else np.diag_indices(size)
        return rows, columns

    def factor(self, free: Float) -> Float:
        """L from its free entries."""
        lower = np.zeros((len(self.columns), len(self.columns)))
        lower[self.places] = free
        return lower


class Effects(NamedTuple):
    """The sums of a site at a V: R'W R, log|I + Z V Z'|, B and N, and what random effects are made of."""

    weighted: Float
    log_determinant: float
    pulled: Float  # B
    information: Float  # N
    lower: Float  # L
    inner: Float  # the Cholesky factor of M = I + L'Z'Z L

    @classmethod
    def of(cls, gram: Float, structure: Structure, free: Float) -> Effects:
        """From R'R; no row of the site is needed again."""
        lower, columns = structure.factor(free), structure.columns
        rows = gram[columns]  # Z'R
        crossed = rows[:, columns]
        matrix = np.eye(len(columns)) + lower.T @ crossed @ lower
        inner: Float = np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
        half = np.linalg.solve(inner, lower.T @ rows)
        whole = lower @ np.linalg.solve(inner.T, half)
        pulled: Float = rows - crossed @ whole
        weighted: Float = gram - half.T @ half
        information = pulled[:, columns]
        total = 2.0 * float(np.log(np.diagonal(inner)).sum())
        return cls(weighted, total, pulled, 0.5 * (information + information.T), lower, inner)

    def predicted(self, gram: Float, structure: Structure, coefficients: Float) -> tuple[Float, Float]:
        """The random effects given the data, u = V Z'W (y - X b), and their covariance over s2, L M^-1 L'."""
        half = np.linalg.solve(self.inner, self.lower.T)
        spread: Float = half.T @ half
        left = gram[structure.columns] @ np.append(-coefficients, 1.0)
        return spread @ left, spread


def sums(gram: Float, structure: Structure, message: Arrays) -> dict[str, Array]:
    """What a site sends: R'W R, the determinant, B'E B for each free entry, N, and second derivatives.

    Those of the profiled likelihood need the coefficients, the variance and the inverse of X'W X, which only the sum
    over sites gives. Sites are sent those of the round before: they are in the metric of a step, not in its direction.
    """
    found = Effects.of(gram, structure, message["free"])
    first, second = structure.places
    pulled, information = found.pulled, found.information
    products = np.einsum("ip,iq->ipq", pulled[first], pulled[second])
    products = 0.5 * (products + products.transpose(0, 2, 1))
    error = pulled @ np.append(-message["coefficients"], 1.0)
    part = pulled[:, :-1]
    pushed = np.outer(error, error) / float(message["variance"]) + float(message["reml"]) * (
        part @ message["inverse"] @ part.T
    )
    width = len(gram)
    lower = np.tril_indices(width)
    return {
        "weighted": blas.pack(found.weighted),
        "products": products[:, lower[0], lower[1]],
        "log_determinant": np.array(found.log_determinant),
        "information": information[first, second],
        "expected": along(information, information, structure),
        "observed": 2.0 * along(pushed, information, structure),
    }


def along(one: Float, two: Float, structure: Structure) -> Float:
    """tr(one E two F), symmetric in E and F, for all pairs of free entries E and F of a symmetric matrix."""
    if not structure.full:
        return one * two
    a, b = structure.places
    weight = np.where(a == b, 0.5, 1.0)

    def entries(matrix: Float, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Float:
        return matrix[np.ix_(rows, columns)]

    # tr(one e_a e_b' two e_c e_d') = one[d, a] two[b, c], over the two orders of each pair
    total = (
        entries(one, a, b) * entries(two, b, a)
        + entries(one, a, a) * entries(two, b, b)
        + entries(one, b, b) * entries(two, a, a)
        + entries(one, b, a) * entries(two, a, b)
    )
    total = 0.5 * (total + total.T)
    result: Float = total * weight * weight[:, None]
    return result
