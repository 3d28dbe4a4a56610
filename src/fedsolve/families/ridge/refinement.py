"""A second stream of features that corrects a first: its ridge beta and its weight lam, chosen by leave-one-out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Float
from fedsolve.families.ridge import calibration, choice, linear, screening
from fedsolve.moments import Moments
from fedsolve.sides import ridge_weights, smaller_gram
from fedsolve.solver import RidgePath, left_out, solution_of

LAMBDAS = tuple(step / 10 for step in range(1, 11))  # what lam=auto chooses from, beside 0
CLEAR = 1e-10  # share of the trace of the products above which a ridge leaves no doubt that the system is regular


class Refinement(NamedTuple):
    """The weights of the second stream, its ridge, its weight, and how sharp left-out predictions with it are."""

    weights: Float
    beta: float
    lam: float
    sharpness: float


def refined(
    prior: Float,
    rows: Float,
    targets: Float,
    labels: NDArray[Any],
    sharpness: float,
    *,
    beta: float | str,
    lam: float | str,
) -> Refinement:
    """Ridge of `targets`, what the first stream leaves over, on `rows`, the features of the second.

    The rest is as `choose_beta_and_lam` has it. The products that choose beta give the weights.
    """
    linear.squares(rows, lambda: Moments.of(rows, targets))
    gram = smaller_gram(rows)
    chooses = isinstance(lam, str) or (isinstance(beta, str) and lam != 0)
    path = RidgePath.of_gram(gram, rows, targets) if chooses else None
    (beta, lam), sharpness = choose_beta_and_lam(
        prior, rows, targets, labels, sharpness, beta=beta, lam=lam, gram=gram, path=path
    )
    weights = None
    if beta > CLEAR * float(np.trace(gram)):
        weights = ridge_weights(rows, gram, targets, beta, None if path is None else path.inner(beta))
    if weights is None:
        weights = solution_of(Moments.of(rows, targets), beta, solver="auto").weights
    return Refinement(weights, beta, lam, sharpness)


def choose_beta_and_lam(
    prior: Float,
    rows: Float,
    targets: Float,
    labels: NDArray[Any],
    sharpness: float,
    *,
    beta: float | str,
    lam: float | str,
    gram: Float | None = None,
    path: RidgePath | None = None,
) -> tuple[tuple[float, float], float]:
    """Beta and lam together, by leave-one-out; of equals the first, which is lam = 0: the first stream alone.

    `prior` are scores of the first stream without the samples, `targets` what it left over with them, `rows` the
    features of the second, `gram` their `sides.smaller_gram` and `path` its decomposition. A `beta` or `lam` that is a
    number stays. And the sharpness of the left-out predictions; `sharpness`, that of the first stream, where nothing is
    chosen, and zero for numbers, which have none.
    """
    gram = smaller_gram(rows) if gram is None else gram
    unit = float(np.trace(gram)) / rows.shape[1] or 1.0
    betas = [unit * factor for factor in choice.RIDGES] if isinstance(beta, str) else [beta]
    lams = [0.0, *LAMBDAS] if isinstance(lam, str) else [lam]
    # Without the second stream all betas are alike, and the first stands.
    pairs = [(beta, lam) for lam in lams for beta in (betas if lam else betas[:1])]
    if len(pairs) == 1:
        return pairs[0], sharpness
    path = RidgePath.of_gram(gram, rows, targets) if path is None else path

    @cache
    def second(beta: float) -> Float:
        gain = path.ridge(beta)
        return left_out(targets, path.fitted(gain), path.leverage(gain))

    left = _near_best(pairs, prior, path, second, labels)
    best = choice.best(left, (prior + lam * second(beta) for beta, lam in left), labels) if len(left) > 1 else left[0]
    if not sharpness:
        return best, 0.0
    return best, calibration.sharpness(prior + best[1] * second(best[0]), labels, sharpness)


def _near_best(
    pairs: list[tuple[float, float]],
    prior: Float,
    path: RidgePath,
    second: Callable[[float], Float],
    labels: NDArray[Any],
) -> list[tuple[float, float]]:
    """The pairs that may be the best, for all that single precision tells; all of them where a leverage is nearly one.

    What is missed is D - lam R, with D what the first stream misses and R what the second predicts, `second` of a beta.
    Its square is a polynomial of lam.
    """
    betas = list(dict.fromkeys(beta for beta, _ in pairs))
    gains = np.stack([path.ridge(beta) for beta in betas], axis=1)
    rest = (1.0 - path.base) - np.square(path.basis) @ gains
    if len(labels) < choice.TOO_FEW or not rest.min(initial=1.0) > screening.NEARLY_ALL:
        return pairs
    wanted = labels if labels.ndim == 2 else linear.one_hot(labels, prior.shape[1])
    weights = choice.unit_weights(labels)
    missed = (wanted - prior) * weights
    if labels.ndim == 2 or len(labels) < choice.FEW_SAMPLES:
        whole = float(np.square(missed).sum())
        parts = {
            beta: (float((missed * second(beta) * weights).sum()), float(np.square(second(beta) * weights).sum()))
            for beta in betas
        }
        losses = [whole - 2 * lam * parts[beta][0] + lam**2 * parts[beta][1] for beta, lam in pairs]
        return [pairs[place] for place in screening.near_best(np.array(losses), labels)]
    single, targets, ones = missed.astype(np.float32), path.targets.astype(np.float32), np.ones((len(labels), 1))
    scores: list[screening.Single] = []
    for some, missing in screening.misses(path, gains):
        missing /= rest[:, some, None].astype(np.float32)
        scores += [targets - missing[:, place] for place in range(missing.shape[1])]
    of_beta = dict(zip(betas, scores, strict=True))
    each_loss = [
        choice.losses_of_misses((single - np.float32(lam) * of_beta[beta])[:, None, :], ones, labels)[0]
        for beta, lam in pairs
    ]
    return [pairs[place] for place in screening.near_best(np.array(each_loss), labels)]
