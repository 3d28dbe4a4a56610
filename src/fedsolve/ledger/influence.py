"""What each client does to everybody's predictions, from the sums alone: subtract, and solve again.

The model is ridge on the sums, its strength by cross-validation on them; for afl, fedhip and apfl that is their global
model, for others a stand-in for it. With W the model of all, W_i the one without client i, W_ij without two,

    moved_i   = |F (W - W_i)|^2 / n                                 over everybody's samples
    misfit_i  = |Y_i - F_i W_i|^2 / n_i                             its samples, by a model that never saw them
    harm_i    = sum over the others j of |Y_j - F_j W_j|^2 - |Y_j - F_j W_ij|^2, per sample of theirs:

how much less others would err on data that their model never saw, were i not there. The first two are exact. For the
third, W_j - W_ij = (H - G_i - G_j)^-1 (C_i - G_i W_j) is taken as D_i + H^-1 G_i D_j, with D_i = W - W_i: right to
first order in a client's share. With R_j = C_j - G_j W_j and S the sum of H^-1 R_j D_j', the sum over j is then

    -2 (<D_i, R - R_i> + <G_i, S> - <G_i D_i, H^-1 R_i>) - <D_i, (G - G_i) D_i>:    two solves per client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas
from fedsolve.arrays import Array, Float
from fedsolve.errors import DataError
from fedsolve.moments import Moments
from fedsolve.solver import cross_validated_ridge

FACTORS = tuple(10.0**-power for power in range(7))  # times the mean diagonal: ridges to choose from
LEAST = 1e-12  # of the largest diagonal: a ridge above the rounding that is left where a client is taken out
SUSPECT = 5.0  # spreads from the median; honest clients of Fashion-MNIST and CIFAR-100 stay below, at Dirichlet 0.1 too
_CHANGED = "the clients changed while they were compared; try again"
_SPREAD = 1.4826  # a median distance, times this, is the standard deviation where things are normal


@dataclass(frozen=True, slots=True)
class Influence:
    """What one client does to all.

    Errors are squared distances of scores and one-hot labels, per sample: 0 is right, 1 knows nothing.
    """

    client: str
    samples: int
    moved: float  # how far everybody's scores move without it, root mean square per sample
    harm: float  # how much less the others would err without it; negative: it helps them
    misfit: float  # its own error by the model of the others
    length: float  # root mean square of its samples' features, over the median client's
    suspicion: float  # how many spreads misfit or length lie from those of the median client


def influence(
    parts: Callable[[], Iterable[tuple[str, Moments]]], total: Moments, ridge: float | None = None
) -> list[Influence]:
    """Every client of which `total` is the sum, the most suspicious first; three at least. `parts` is called twice.

    >>> import numpy as np
    >>> import fedsolve as fs
    >>> rng, parts = np.random.default_rng(0), []
    >>> for client in range(20):
    ...     x = rng.normal(size=(50, 3))
    ...     labels = x.argmax(axis=1) if client else x.argmin(axis=1)  # the first one lies
    ...     parts.append((f"site-{client}", fs.Moments.of(x, labels, classes=3)))
    >>> first = influence(lambda: parts, sum((part for _, part in parts), fs.Moments.zero(3, 3)))[0]
    >>> first.client, first.suspicion > SUSPECT, first.harm > 0
    ('site-0', True, True)
    """
    ridge = cross_validated_ridge(total, FACTORS) if ridge is None else ridge
    ridge = max(ridge, LEAST * float(total.diagonal().max(initial=0.0)), np.finfo(float).tiny)
    lower = total.lower()
    factor = _factor(lower, ridge)
    if factor is None:
        raise DataError("the total is not positive definite even with a ridge; `fedsolve ledger verify` says why")
    model = blas.cholesky_solve(factor, total.cross)
    absences: list[_Absence] = []
    residuals, pairs = np.zeros_like(total.cross), np.zeros_like(lower)  # R and S
    for name, part in parts():
        mine = part.lower()
        others = lower - mine
        reduced = _factor(others, ridge)
        if reduced is None:
            raise DataError(_CHANGED)  # more than the total has of it
        without = blas.cholesky_solve(reduced, total.cross - part.cross)
        scores = blas.symmetric_product(mine, without)
        gap, residual = model - without, part.cross - scores
        truth = float(part.count) if part.squares is None else float(part.squares.sum())
        error = truth - _dot(without, 2.0 * part.cross - scores)
        step = blas.symmetric_product(mine, gap)
        shift = _dot(gap, blas.symmetric_product(others, gap))
        pull = blas.cholesky_solve(factor, residual)
        pairs += pull @ gap.T
        residuals += residual
        absences.append(
            _Absence(
                client=name,
                samples=part.count,
                moved=(shift + _dot(gap, step)) / total.count,
                misfit=error / part.count,
                square=float(part.diagonal().sum()) / part.count,
                harm=2.0 * _dot(step, pull) - shift,
                gap=gap.astype(np.float32),
                residual=residual.astype(np.float32),
            )
        )
    if sum(absence.samples for absence in absences) != total.count:
        raise DataError(_CHANGED)
    if len(absences) < 3:
        raise DataError(f"influence compares clients; there are {len(absences)}, and it takes three")
    triangle = blas.pack(pairs + pairs.T)  # <G, S> is a sum over the triangle of G: twice what is off the diagonal
    triangle[blas.packed_diagonal(len(lower))] /= 2.0
    harms: list[float] = []
    for name, part in parts():
        absence = absences[len(harms)] if len(harms) < len(absences) else None
        if absence is None or (name, part.count) != (absence.client, absence.samples):
            raise DataError(_CHANGED)
        cross = _dot(absence.gap, residuals - absence.residual) + float(part.triangle @ triangle)
        harms.append((absence.harm - 2.0 * cross) / (total.count - part.count))
    if len(harms) < len(absences):
        raise DataError(_CHANGED)
    squares = np.array([absence.square for absence in absences])
    median = float(np.median(squares)) or 1.0
    misfits = np.array([absence.misfit for absence in absences])
    suspicions = np.maximum(_spreads(misfits), np.abs(_spreads(np.log(np.maximum(squares, 1e-300)))))
    influences = [
        Influence(
            client=absence.client,
            samples=absence.samples,
            moved=float(np.sqrt(max(absence.moved, 0.0))),
            harm=harm,
            misfit=absence.misfit,
            length=float(np.sqrt(absence.square / median)),
            suspicion=float(suspicion),
        )
        for absence, harm, suspicion in zip(absences, harms, suspicions, strict=True)
    ]
    return sorted(influences, key=lambda each: (-each.suspicion, each.client))


@dataclass(frozen=True, slots=True, eq=False)
class _Absence:
    """What is kept of a client that was left out, until all were."""

    client: str
    samples: int
    moved: float  # squared
    misfit: float
    square: float  # mean squared length of its samples' features
    harm: float  # the terms of its sum that need no other client: 2 <G_i D_i, H^-1 R_i> - <D_i, (G - G_i) D_i>
    gap: NDArray[np.float32]  # D_i
    residual: NDArray[np.float32]  # R_i


def _dot(left: Array, right: Array) -> float:
    return float((left * right).sum())


def _factor(lower: Float, ridge: float) -> Float | None:
    shifted = lower.copy(order="F")
    shifted[np.diag_indices_from(shifted)] += ridge
    return blas.cholesky(shifted)


def _spreads(values: Float) -> Float:
    """Distances from the median, in units of the median distance."""
    distances = values - np.median(values)
    unit = _SPREAD * float(np.median(np.abs(distances))) + 1e-9 * float(np.abs(values).max(initial=0.0)) + 1e-300
    spreads: Float = distances / unit
    return spreads
