"""What each client does to everybody's predictions, from the sums alone: subtract, and solve again.

The model is ridge on the sums, its strength by cross-validation on them; for afl, fedhip and apfl that is their global
model, for others a stand-in for it. With W the model of all, W_i the one without client i and D_i = W - W_i,

    moved_i   = |F D_i|^2 / n                                              over everybody's samples
    misfit_i  = |Y_i - F_i W_i|^2 / n_i                                    its samples, by a model that never saw them
    harm_i    = sum over the others j of |Y_j - F_j W_j|^2 - |Y_j - F_j (W_j - D_i)|^2, a sample of theirs:

how much less others would err on data that their model never saw, were i not there. With R_j = F_j'(Y_j - F_j W_j) and
R their sum, the sum over j is -2 <D_i, R - R_i> - <D_i, (G - G_i) D_i>: one solve a client. (D_i is taken with j in.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Float
from fedsolve.errors import DataError
from fedsolve.moments import Moments
from fedsolve.solver import cross_validated_ridge

FACTORS = tuple(10.0**-power for power in range(7))  # times the mean diagonal: ridges to choose from
SUSPECT = 5.0  # spreads from the median; honest clients of Fashion-MNIST and CIFAR-100 stay below, at Dirichlet 0.1 too
_SPREAD = 1.4826  # a median distance, times this, is the standard deviation where things are normal


@dataclass(frozen=True, slots=True)
class Influence:
    """One client. Errors are squared distances of scores and one-hot labels, a sample: 0 is right, 1 knows nothing."""

    client: str
    samples: int
    moved: float  # how far everybody's scores move without it, root mean square a sample
    harm: float  # how much less the others would err without it; negative: it helps them
    misfit: float  # its own error by the model of the others
    length: float  # root mean square of its samples' features, over the median client's
    suspicion: float  # how many spreads misfit or length lie from those of the median client


def influence(parts: Iterable[tuple[str, Moments]], total: Moments, ridge: float | None = None) -> list[Influence]:
    """Every client of which `total` is the sum, the most suspicious first; three at least."""
    ridge = cross_validated_ridge(total, FACTORS) if ridge is None else ridge
    lower = total.lower()
    everybody = _solve(lower, total.cross, ridge, total.cross)
    names: list[str] = []
    counts, moved, misfits, lengths, gaps, rest = [], [], [], [], [], np.zeros_like(total.cross)
    leftovers: list[Float] = []
    for name, part in parts:
        own = part.lower()
        without = lower - own
        alone = _solve(without, total.cross - part.cross, ridge, everybody)
        fitted = blas.symmetric_product(own, alone)
        gap, leftover = everybody - alone, part.cross - fitted
        error = part.count - 2.0 * float((alone * part.cross).sum()) + float((alone * fitted).sum())
        names.append(name)
        counts.append(part.count)
        misfits.append(error / part.count)
        lengths.append(float(part.diagonal().sum()) / part.count)
        spread = blas.symmetric_product(without, gap)
        square = float((gap * spread).sum())
        moved.append((square + float((gap * blas.symmetric_product(own, gap)).sum())) / total.count)
        # Of the change in the others' errors, what needs nobody else is known now; the rest when all were seen.
        gaps.append((gap.astype(np.float32), -square))
        leftovers.append(leftover.astype(np.float32))
        rest += leftover
    if len(names) < 3:
        raise DataError(f"influence compares clients; there are {len(names)}, and it takes three")
    harms = [
        (known - 2.0 * float((gap * (rest - leftover)).sum())) / max(1, total.count - count)
        for (gap, known), leftover, count in zip(gaps, leftovers, counts, strict=True)
    ]
    median = float(np.median(lengths)) or 1.0
    strange = np.maximum(_spreads(np.array(misfits)), np.abs(_spreads(np.log(np.maximum(lengths, 1e-300)))))
    found = [
        Influence(name, count, float(np.sqrt(max(m, 0.0))), harm, misfit, float(np.sqrt(length / median)), float(s))
        for name, count, m, harm, misfit, length, s in zip(
            names, counts, moved, harms, misfits, lengths, strange, strict=True
        )
    ]
    return sorted(found, key=lambda each: (-each.suspicion, each.client))


def _solve(lower: Float, cross: Float, ridge: float, otherwise: Float) -> Float:
    """Ridge; what is known `otherwise` where nothing is left to solve."""
    shifted = lower.copy(order="F")
    shifted[np.diag_indices_from(shifted)] += max(ridge, 1e-12 * float(np.abs(np.diagonal(lower)).max(initial=1e-300)))
    factor = blas.cholesky(shifted)
    return otherwise if factor is None else blas.cholesky_solve(factor, cross)


def _spreads(values: Float) -> Float:
    """Distances from the median, in units of the median distance."""
    apart = values - np.median(values)
    unit = _SPREAD * float(np.median(np.abs(apart))) + 1e-9 * float(np.abs(values).max(initial=0.0)) + 1e-300
    spreads: Float = apart / unit
    return spreads
