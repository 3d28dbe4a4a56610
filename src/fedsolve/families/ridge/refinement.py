"""A second stream of features that corrects a first: its ridge beta and its weight lam, chosen by leave-one-out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Float
from fedsolve.families.ridge import calibration, choice
from fedsolve.solver import RidgePath, left_out

LAMBDAS = tuple(step / 10 for step in range(1, 11))  # what lam=auto chooses from, beside 0


def choose_beta_and_lam(
    prior: Float,
    rows: Float,
    targets: Float,
    labels: NDArray[Any],
    sharpness: float,
    *,
    beta: float | str,
    lam: float | str,
) -> tuple[tuple[float, float], float]:
    """Beta and lam together, by leave-one-out; of equals the first, which is lam = 0: the first stream alone.

    `prior` are scores of the first stream without the samples, `targets` what it left over with them, `rows` the
    features of the second. A `beta` or `lam` that is a number stays. And the sharpness of the left-out predictions;
    `sharpness`, that of the first stream, where nothing is chosen, and zero for numbers, which have none.
    """
    unit = float(np.square(rows).sum()) / rows.shape[1] or 1.0
    betas = [unit * factor for factor in choice.RIDGES] if isinstance(beta, str) else [beta]
    lams = [0.0, *LAMBDAS] if isinstance(lam, str) else [lam]
    pairs = [(beta, lam) for lam in lams for beta in betas]
    if len(pairs) == 1:
        return pairs[0], sharpness
    path = RidgePath.of(rows, targets)
    refined = {}
    for each in betas:
        gain = path.ridge(each)
        refined[each] = left_out(targets, path.fitted(gain), path.leverage(gain))
    best = choice.best(pairs, (prior + lam * refined[beta] for beta, lam in pairs), labels)
    if not sharpness:
        return best, 0.0
    return best, calibration.sharpness(prior + best[1] * refined[best[0]], labels, sharpness)
