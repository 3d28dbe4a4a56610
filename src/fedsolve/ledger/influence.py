"""What each client does to everybody's predictions, from the sums alone: subtract, and solve again.

The model is ridge on the sums, its strength by cross-validation on them; for afl, fedhip and apfl that is their global
model, for others a stand-in for it. With W the model of all, W_i the one without client i, W_ij without two,

    moved_i   = |F (W - W_i)|^2 / n                                 over everybody's samples
    misfit_i  = |Y_i - F_i W_i|^2 / n_i                             its samples, by a model that never saw them
    harm_i    = sum over the others j of |Y_j - F_j W_j|^2 - |Y_j - F_j W_ij|^2, a sample of theirs:

how much less others would err on data that their model never saw, were i not there. The first two are exact. For the
third, W_j - W_ij = (H - G_i - G_j)^-1 (C_i - G_i W_j) is taken as D_i + H^-1 G_i D_j, with D_i = W - W_i: right to
first order in a client's share. With R_j = C_j - G_j W_j and S the sum of H^-1 R_j D_j', the sum over j is then

    -2 (<D_i, R - R_i> + <G_i, S> - <G_i D_i, H^-1 R_i>) - <D_i, (G - G_i) D_i>:    two solves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def influence(
    parts: Callable[[], Iterable[tuple[str, Moments]]], total: Moments, ridge: float | None = None
) -> list[Influence]:
    """Every client of which `total` is the sum, the most suspicious first; three at least. `parts` is read twice."""
    ridge = cross_validated_ridge(total, FACTORS) if ridge is None else ridge
    lower = total.lower()
    factor = _factor(lower, ridge)
    if factor is None:
        raise DataError("the total is not positive definite even with a ridge; `fedsolve ledger verify` says why")
    everybody = blas.cholesky_solve(factor, total.cross)
    names: list[str] = []
    counts, moved, misfits, lengths, known = [], [], [], [], []
    gaps, leftovers, rest, paired = [], [], np.zeros_like(total.cross), np.zeros_like(lower)
    for name, part in parts():
        own = part.lower()
        without = lower - own
        reduced = _factor(without, ridge)
        alone = everybody if reduced is None else blas.cholesky_solve(reduced, total.cross - part.cross)
        fitted = blas.symmetric_product(own, alone)
        gap, leftover = everybody - alone, part.cross - fitted
        error = part.count - 2.0 * float((alone * part.cross).sum()) + float((alone * fitted).sum())
        names.append(name)
        counts.append(part.count)
        misfits.append(error / part.count)
        lengths.append(float(part.diagonal().sum()) / part.count)
        others, mine = float((gap * blas.symmetric_product(without, gap)).sum()), blas.symmetric_product(own, gap)
        moved.append((others + float((gap * mine).sum())) / total.count)
        pulled = blas.cholesky_solve(factor, leftover)
        paired += pulled @ gap.T
        rest += leftover
        # What needs nobody else; the rest when all were seen.
        known.append(2.0 * float((mine * pulled).sum()) - others)
        gaps.append(gap.astype(np.float32))
        leftovers.append(leftover.astype(np.float32))
    if len(names) < 3:
        raise DataError(f"influence compares clients; there are {len(names)}, and it takes three")
    packed = blas.pack(paired + paired.T)  # <G, S> is a sum over the triangle of G: twice what is off the diagonal
    packed[blas.packed_diagonal(len(lower))] /= 2.0
    harms = []
    for k, (name, part) in enumerate(parts()):
        if k >= len(names) or name != names[k]:
            raise DataError("the clients changed while they were compared; try again")
        cross = float((gaps[k] * (rest - leftovers[k])).sum()) + float(part.triangle @ packed)
        harms.append((known[k] - 2.0 * cross) / max(1, total.count - part.count))
    median = float(np.median(lengths)) or 1.0
    strange = np.maximum(_spreads(np.array(misfits)), np.abs(_spreads(np.log(np.maximum(lengths, 1e-300)))))
    found = [
        Influence(name, count, float(np.sqrt(max(m, 0.0))), harm, misfit, float(np.sqrt(length / median)), float(s))
        for name, count, m, harm, misfit, length, s in zip(
            names, counts, moved, harms, misfits, lengths, strange, strict=True
        )
    ]
    return sorted(found, key=lambda each: (-each.suspicion, each.client))


def _factor(lower: Float, ridge: float) -> Float | None:
    shifted = lower.copy(order="F")
    shifted[np.diag_indices_from(shifted)] += max(ridge, 1e-12 * float(np.abs(np.diagonal(lower)).max(initial=1e-300)))
    return blas.cholesky(shifted)


def _spreads(values: Float) -> Float:
    """Distances from the median, in units of the median distance."""
    apart = values - np.median(values)
    unit = _SPREAD * float(np.median(np.abs(apart))) + 1e-9 * float(np.abs(values).max(initial=0.0)) + 1e-300
    spreads: Float = apart / unit
    return spreads
