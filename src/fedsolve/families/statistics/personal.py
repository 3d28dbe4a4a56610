"""A client's own coefficients: its log-likelihood, weighing alpha, beside the federation's, as a quadratic at b0.

The minimiser of alpha L_k(b) + (b - b0)'H (b - b0) / 2, with L_k the client's negative log-likelihood, b0 the
coefficients of the federation and H its curvature there: a ridge towards b0 in the federation's own metric. alpha = 0
is the federation, a large alpha is the client alone. What a sample adds is taken out of both parts by one Newton step,
which gives its predictor without itself (exactly, for least squares); alpha is the one of least left-out deviance.
"""

from __future__ import annotations

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Arrays, Float
from fedsolve.data.samples import Samples
from fedsolve.families.statistics import scoring
from fedsolve.families.statistics.distributions import Distribution
from fedsolve.families.statistics.units import Roles

ALPHAS: tuple[float, ...] = (0.0, *(10.0 ** (power / 2) for power in range(-2, 9)))
STEPS = 30  # of Newton's method for one alpha, at most; five are usual
CLOSE = 1e-10  # the square of Newton's decrement at which coefficients have settled
TOO_FEW = 3  # samples, below which leaving one out leaves nothing to choose by
TIE = 1e-9  # deviances per sample that differ by less are equal: the smaller alpha stands
ALL_ITS_OWN = 1e-9  # one minus a leverage below this is rounding


def personalised(
    family: Distribution, roles: Roles, train: Samples, message: Arrays, punished: Float, *, counted: bool
) -> tuple[Float, float]:
    """The client's coefficients and its alpha. `punished` is the ridge of the federation, which is part of H."""
    shared = message["coefficients"]
    if len(train) < TOO_FEW:
        return shared, 0.0
    parts = list(scoring.blocks(family, roles, train, message["origin"], message["basis"]))
    block = scoring.Block(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    lower = blas.unpack(message["triangle"], shared.size)
    metric = lower + np.tril(lower, -1).T + punished
    metric[np.diag_indices_from(metric)] *= 1.0 + 1e-12
    best, chosen, least = shared, 0.0, np.inf
    at = shared
    for alpha in ALPHAS:
        found = _minimiser(family, block, metric, shared, at, alpha)
        if found is None:
            break
        at = found
        loss = _left_out(family, block, metric, shared, at, alpha, counted=counted)
        if loss < least - TIE * len(train):
            best, chosen, least = at, alpha, loss
    return best, chosen


def _minimiser(
    family: Distribution, block: scoring.Block, metric: Float, shared: Float, at: Float, alpha: float
) -> Float | None:
    """Newton's method with halved steps; None where the curvature gives out."""
    if alpha == 0:
        return shared
    value = _objective(family, block, metric, shared, at, alpha)
    for _ in range(STEPS):
        mean = family.mean(block.rows @ at + block.offset)
        score = block.rows.T @ (block.weights[:, None] * (block.targets - mean))
        gradient = alpha * score.T.ravel() - metric @ (at - shared).T.ravel()
        matrix = metric + alpha * scoring._curvature(block.rows, _weighted(family, block, mean))
        factor = blas.cholesky(np.asfortranarray(np.tril(matrix)))
        if factor is None:
            return None
        step = blas.cholesky_solve(factor, gradient[:, None])[:, 0]
        size, taken = 1.0, step.reshape(at.shape[::-1]).T
        while size > 1e-9:
            there = at + size * taken
            reached = _objective(family, block, metric, shared, there, alpha)
            if reached <= value + 1e-12 * abs(value):
                break
            size *= 0.5
        at, value = there, reached
        if float(step @ gradient) <= CLOSE * alpha:
            return at
    return at


def _weighted(family: Distribution, block: scoring.Block, mean: Float) -> Float:
    curvature: Float = block.weights[:, None, None] * family.variance(mean)
    return curvature


def _objective(
    family: Distribution, block: scoring.Block, metric: Float, shared: Float, at: Float, alpha: float
) -> float:
    away = (at - shared).T.ravel()
    deviance = block.weights @ family.deviance(block.targets, block.rows @ at + block.offset)
    return float(0.5 * alpha * deviance + 0.5 * away @ metric @ away)


def _left_out(
    family: Distribution,
    block: scoring.Block,
    metric: Float,
    shared: Float,
    at: Float,
    alpha: float,
    *,
    counted: bool,
) -> float:
    """The deviance of each sample at the coefficients without it, summed."""
    rows, targets, offset, weights = block
    predictors, before = rows @ at + offset, rows @ shared + offset
    mean, mean_before = family.mean(predictors), family.mean(before)
    own, common = _weighted(family, block, mean), _weighted(family, block, mean_before)
    size, outputs = at.shape
    matrix = metric + alpha * scoring._curvature(rows, own)
    factor = blas.cholesky(np.asfortranarray(np.tril(matrix)))
    if factor is None:
        return np.inf
    inverse = blas.cholesky_solve(factor, np.eye(len(matrix))).reshape(outputs, size, outputs, size)
    # x'M^-1 x, a small matrix per sample
    leverage = np.empty((len(rows), outputs, outputs))
    for a in range(outputs):
        for b in range(outputs):
            leverage[:, a, b] = np.einsum("ij,ij->i", rows @ inverse[a, :, b], rows)
    pull = alpha * weights[:, None] * (targets - mean)
    curvature = alpha * own
    if counted:  # the federation's part has the sample too, as its quadratic at b0
        moved = np.einsum("iab,ib->ia", common, predictors - before)
        pull = pull + weights[:, None] * (targets - mean_before) - moved
        curvature = curvature + common
    rest = np.eye(outputs) - np.einsum("iab,ibc->iac", leverage, curvature)
    sound = np.linalg.det(rest) > ALL_ITS_OWN
    rest[~sound] = np.eye(outputs)
    change = np.linalg.solve(rest, np.einsum("iab,ib->ia", leverage, pull)[:, :, None])[:, :, 0]
    each = family.deviance(targets, predictors - change)
    return float((weights * each)[sound].sum() / max(1, int(sound.sum())) * len(rows))
