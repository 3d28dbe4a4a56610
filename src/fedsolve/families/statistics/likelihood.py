"""The likelihood of a linear mixed model on the server: its value and derivatives from sums, and the next step.

With coefficients b and variance s2 at their best for a V, twice the negative log-likelihood is, up to constants,

    d(V) = sum log|M_k| + m log RSS + log|A|      with A = sum X'W X, RSS what b leaves, m = n - p

by REML; by ML the last term is missing and m = n. Steps are Newton's in the entries of L, V = L L', so that a variance
of zero is a place like any other and never negative. Far away, and where the curvature is not positive, its expectation
serves: with it, steps are those of Fisher's scoring, which does not stop at the next best place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Arrays, Float
from fedsolve.families.statistics.effects import Structure

LEAST = 1e-18  # share of the target's squares that residuals have at least
NEAR = 1.0  # a decrement, squared, from which on the observed curvature is trusted
LARGEST_STEP = 1.0  # of an entry of L, beside the largest entry
FLATTEST = 1e-9  # share of the largest curvature that a direction is given at least


class Likelihood(NamedTuple):
    """Value, derivatives and what is solved for at a V."""

    value: float  # d(V)
    gradient: Float  # in the entries of L
    curvature: Float
    coefficients: Float
    inverse: Float  # of A
    variance: float  # s2
    residual: float
    log_determinant: float  # of A

    @classmethod
    def of(cls, sums: Arrays, structure: Structure, free: Float, count: int, *, reml: bool) -> Likelihood:
        """From the sums over all sites."""
        width = sums["products"].shape[1]
        size = int((math.isqrt(8 * width + 1) - 1) // 2)
        lower = blas.unpack(sums["weighted"], size)
        whole = lower + np.tril(lower, -1).T
        square, right = whole[:-1, :-1], whole[:-1, -1]
        scale = 1.0 / np.sqrt(np.diagonal(square))
        factor = np.linalg.cholesky(square * scale * scale[:, None])
        half = np.linalg.solve(factor, np.diag(scale))
        inverse: Float = half.T @ half
        coefficients = half.T @ (half @ right)
        # A fit without residuals has an infinite likelihood, which rounding would decide on.
        residual = max(float(whole[-1, -1] - right @ coefficients), LEAST * float(whole[-1, -1]))
        log_determinant = 2.0 * float((np.log(np.diagonal(factor)) - np.log(scale)).sum())
        freedom = count - reml * len(square)
        value = float(sums["log_determinant"]) + freedom * math.log(residual) + reml * log_determinant
        variance = residual / freedom
        products = np.zeros((len(sums["products"]), size, size))
        rows, columns = np.tril_indices(size)
        products[:, rows, columns] = products[:, columns, rows] = sums["products"]
        parts = _derivatives(sums, products, structure, coefficients, inverse, variance, freedom, reml=reml)
        slope, curvature = _in_factor(*parts, structure, free)
        return cls(value, slope, curvature, coefficients, inverse, variance, residual, log_determinant)


def _derivatives(
    sums: Arrays,
    products: Float,
    structure: Structure,
    coefficients: Float,
    inverse: Float,
    variance: float,
    freedom: float,
    *,
    reml: bool,
) -> tuple[Float, Float, Float]:
    """Gradient in the free entries of V, and two curvatures: the observed one, and that which is expected."""
    first, second = structure.places
    twice = np.where(first == second, 1.0, 2.0)  # an entry off the diagonal stands in V twice
    ahead = np.append(-coefficients, 1.0)
    squares = products @ ahead @ ahead
    inner = products[:, :-1, :-1]
    traces = np.einsum("ipq,pq->i", inner, inverse)
    slope = twice * (sums["information"] - squares / variance - reml * traces)
    # How b follows V: A^-1 X'W E W (y - X b); and the part of log|A| that is quadratic in its derivatives.
    pull = twice[:, None] * (products @ ahead)[:, :-1]
    follows = 2.0 / variance * pull @ inverse @ pull.T
    shapes = twice[:, None, None] * (inner @ inverse)
    quadratic = reml * np.einsum("ipq,jqp->ij", shapes, shapes, optimize=True)
    fall = twice * squares / variance
    observed = sums["observed"] - sums["expected"] - follows - quadratic - np.outer(fall, fall) / freedom
    trace = twice * sums["information"]
    expected = sums["expected"] - np.outer(trace, trace) / freedom
    return slope, observed, expected


def _in_factor(
    slope: Float, observed: Float, expected: Float, structure: Structure, free: Float
) -> tuple[Float, Float]:
    """Gradient and curvature in the free entries of L: V = L L', so that dV = dL L' + L dL'."""
    a, b = structure.places
    size, lower = len(structure.columns), structure.factor(free)
    order = np.zeros((size, size), dtype=np.int64)
    order[a, b] = order[b, a] = np.arange(len(a))
    whole = np.zeros((size, size))
    whole[a, b] = whole[b, a] = slope / np.where(a == b, 1.0, 2.0)
    # dV / dL[i, j] has L[:, j] in row and column i; as free entries, each counted once.
    jacobian = np.zeros((len(a), len(a)))
    for place, (i, j) in enumerate(zip(a, b, strict=True)):
        rows = np.arange(size) if structure.full else np.array([i])
        np.add.at(jacobian[:, place], order[i, rows], np.where(rows == i, 2.0, 1.0) * lower[rows, j])
    # The second derivative of V is there whatever V is: it alone is the curvature at a variance of zero.
    bend = 2.0 * whole[np.ix_(a, a)] * (b[:, None] == b[None, :])
    gradient = jacobian.T @ slope
    values, vectors = np.linalg.eigh(bend)
    far = jacobian.T @ expected @ jacobian + (vectors * np.maximum(values, 0.0)) @ vectors.T
    if not _step(far, gradient)[1] < NEAR:
        return gradient, far
    values, vectors = np.linalg.eigh(jacobian.T @ observed @ jacobian + bend)
    # Along a direction that bends down, a step as if it bent up still leads downhill.
    return gradient, (vectors * np.abs(values)) @ vectors.T


def step(at: Likelihood, free: Float) -> tuple[Float, float]:
    """Newton's step, not too long, and the square of its decrement."""
    found, decrement = _step(at.curvature, at.gradient)
    longest = float(np.abs(found).max(initial=0.0)) / max(1.0, float(np.abs(free).max(initial=0.0)))
    return found / max(1.0, longest / LARGEST_STEP), decrement


def _step(curvature: Float, gradient: Float) -> tuple[Float, float]:
    """The step of a curvature, whose flattest directions are taken for steeper ones, and its squared decrement."""
    values, vectors = np.linalg.eigh(curvature)
    values = np.maximum(values, FLATTEST * max(values[-1], np.finfo(np.float64).tiny))
    found: Float = -vectors @ ((vectors.T @ gradient) / values)
    return found, float(-gradient @ found)
