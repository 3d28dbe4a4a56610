"""What a site sums up for a Newton step: curvature, score and deviance at the coefficients it was sent.

Predictors are z'g with z = ((x - origin) basis, 1). Origin and basis are the same for all sites and bring the columns
apart: of uncorrelated columns about zero, sums of squares lose no digits. That is Cholesky QR, with its second pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float, finite
from fedsolve.data.samples import Samples
from fedsolve.errors import DataError
from fedsolve.families.statistics.distributions import Categorical, Distribution
from fedsolve.families.statistics.units import Roles

FLAT = 1e-10  # share of the largest curvature of a site below which a direction has none
CLEAR = 1e-9  # a lead of one class over the others that is no rounding


class Block(NamedTuple):
    """Some rows of a site: z, the targets, offsets as one column, and weights."""

    rows: Float
    targets: Float
    offset: Float
    weights: Float


def blocks(
    family: Distribution, roles: Roles, train: Samples, origin: Float, basis: Float | None = None
) -> Iterator[Block]:
    """A site's rows, a block at a time; without a basis, z are the columns about the origin."""
    for place, columns, offset, weights in roles.blocks(train.inputs):
        if not (finite(columns) and finite(offset) and finite(weights) and (weights >= 0).all()):
            raise DataError("columns and offsets must be finite, and weights of samples at least 0")
        moved = columns - origin
        inner = moved if basis is None else moved @ basis
        rows = np.column_stack([inner, np.ones(len(inner))])
        yield Block(rows, family.targets(train.labels[place]), offset[:, None], weights)


def opening(family: Distribution, roles: Roles, train: Samples, origin: Float) -> dict[str, Array]:
    """The sums of one weighted regression on working responses, each sample starting from its own target.

    They give means and covariances of the columns, hence origin and basis, and coefficients to start from.
    """
    width, outputs = len(roles.columns) + 1, _outputs(family)
    gram, cross, total = np.zeros((width, width)), np.zeros((width, outputs)), np.zeros(outputs)
    count, weight = 0, 0.0
    for rows, targets, offset, weights in blocks(family, roles, train, origin):
        predictors = family.start(targets)
        mean = family.mean(predictors)
        variance = np.diagonal(family.variance(mean), axis1=1, axis2=2)
        responses = predictors - offset + (targets - mean) / variance
        weighted = rows * (weights * variance.mean(1))[:, None]
        gram += weighted.T @ rows
        cross += weighted.T @ responses
        total += weights @ targets
        count += len(rows)
        weight += float(weights.sum())
    if not (finite(gram) and finite(cross)):
        raise DataError("squares of columns and targets must be finite; scale them down")
    sums = {"gram": blas.pack(gram), "cross": cross, "total": total}
    return {**sums, "count": np.array(count), "weight": np.array(weight), "sites": np.array(1)}


def step(family: Distribution, roles: Roles, train: Samples, message: Arrays) -> dict[str, Array]:
    """Curvature, score, deviance and what a summary needs, at the coefficients and those of the null model."""
    coefficients, null = message["coefficients"], message["null"]
    size, outputs = coefficients.shape
    curvature, score = np.zeros((outputs * size, outputs * size)), np.zeros((size, outputs))
    null_curvature, null_score = np.zeros((outputs, outputs)), np.zeros(outputs)
    sums = dict.fromkeys(("deviance", "best", "null_deviance", "logs"), 0.0)
    misfits = 0
    for block in blocks(family, roles, train, message["origin"], message["basis"]):
        rows, targets, offset, weights = block
        inner = rows @ coefficients
        predictors = inner + offset
        mean = family.mean(predictors)
        curvature += _curvature(rows, weights[:, None, None] * family.variance(mean))
        score += rows.T @ (weights[:, None] * (targets - mean))
        bare = np.broadcast_to(null + offset, predictors.shape)
        bare_mean = family.mean(bare)
        null_curvature += np.einsum("i,iab->ab", weights, family.variance(bare_mean))
        null_score += weights @ (targets - bare_mean)
        sums["deviance"] += float(weights @ family.deviance(targets, predictors))
        sums["null_deviance"] += float(weights @ family.deviance(targets, bare))
        sums["best"] += float(weights @ family.best(targets))
        sums["logs"] += float(np.log(weights[weights > 0]).sum())
        misfits += _misfits(family, targets, inner, weights)
    departure, rank = _departure(curvature, score.T.ravel())
    return {
        "triangle": blas.pack(curvature),
        "score": score,
        "null_curvature": null_curvature,
        "null_score": null_score,
        **{name: np.array(value) for name, value in sums.items()},
        "misfits": np.array(misfits),
        "departure": np.array(departure),
        "ranks": np.array(rank),
    }


def meat(family: Distribution, roles: Roles, train: Samples, message: Arrays, *, by_site: bool) -> dict[str, Array]:
    """The sum of s s' over samples, with s the score of one, or for errors clustered by site that of the whole site."""
    coefficients = message["coefficients"]
    size, outputs = coefficients.shape
    total, whole = np.zeros((outputs * size, outputs * size)), np.zeros(outputs * size)
    for rows, targets, offset, weights in blocks(family, roles, train, message["origin"], message["basis"]):
        errors = weights[:, None] * (targets - family.mean(rows @ coefficients + offset))
        if by_site:
            whole += (rows.T @ errors).T.ravel()
        else:
            total += _curvature(rows, errors[:, :, None] * errors[:, None, :])
    return {"meat": blas.pack(np.outer(whole, whole) if by_site else total)}


def _outputs(family: Distribution) -> int:
    return family.count - 1 if isinstance(family, Categorical) else 1


def _curvature(rows: Float, weights: Float) -> Float:
    """The sum of w_i (x) z_i z_i' over samples, with w_i a small matrix: classes first, then columns."""
    size, outputs = rows.shape[1], weights.shape[1]
    total = np.empty((outputs, size, outputs, size))
    for a in range(outputs):
        for b in range(a + 1):
            total[a, :, b] = (rows * weights[:, a, b, None]).T @ rows
            total[b, :, a] = total[a, :, b].T
    return total.reshape(outputs * size, outputs * size)


def _misfits(family: Distribution, targets: Float, inner: Float, weights: Float) -> int:
    """How many samples are not clearly on their own class's side, without the offset: if none, it is separation."""
    if not isinstance(family, Categorical) or family.shares:
        return len(targets)
    return int(((family.margins(targets, inner) <= CLEAR) & (weights > 0)).sum())


def _departure(curvature: Float, score: Float) -> tuple[float, int]:
    """s'H^-1 s of this site alone, along the directions that it has samples in, and how many these are."""
    diagonal = np.diagonal(curvature)
    scale = np.where(diagonal > 0, 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    values, vectors = np.linalg.eigh(curvature * scale * scale[:, None])
    there = values > FLAT * max(values[-1], 0.0)
    along = (vectors.T @ (score * scale))[there]
    return float((along**2 / values[there]).sum()), int(there.sum())
