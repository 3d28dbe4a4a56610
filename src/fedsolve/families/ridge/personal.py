"""A model between the federation's and a client's own: its samples weigh 1 + alpha, and leave-one-out chooses alpha."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Arrays, Float
from fedsolve.families.ridge import calibration, choice, linear
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out, solution_of, whiten

ALPHAS: tuple[float, ...] = (0.0, *np.geomspace(0.1, 10_000.0, 21).tolist())  # what alpha=auto chooses from


def choose_alpha(
    total: Moments,
    ridge: float,
    rows: Float,
    prior: Float,
    labels: NDArray[Any],
    sharpness: float,
    *,
    counted: bool,
    intercept: bool,
) -> tuple[float, float]:
    """The alpha with the best leave-one-out predictions on the client's own training data, and their sharpness.

    `total` are everybody's moments, `rows` the client's features (with a one behind each where there is an intercept),
    `prior` what the global model says of them, and `sharpness` the global model's: zero for numbers, which have none.
    """
    predicted = left_out_scores(total, ridge, rows, prior, labels, counted=counted, intercept=intercept)
    alpha = choice.best(ALPHAS, map(predicted, ALPHAS), labels)
    return alpha, calibration.sharpness(predicted(alpha), labels, sharpness) if sharpness else 0.0


def left_out_scores(
    total: Moments,
    ridge: float,
    rows: Float,
    prior: Float,
    labels: NDArray[Any],
    *,
    counted: bool,
    intercept: bool,
) -> Callable[[float], Float]:
    """What the model with a given alpha predicts for each of the client's samples without that sample.

    Fitting the client's data with weight alpha is ridge towards the global model in the metric of
    H = A + ridge I. Leaving a sample out takes it from the client's part (weight alpha) and, if the client is `counted`
    in the sum, from there too (weight 1): with H the identity, its leverage is (1 + alpha) s^2 / (1 + alpha s^2).
    """
    targets = labels if labels.ndim == 2 else linear.one_hot(labels, prior.shape[1])
    path = RidgePath.of(whiten(total, ridge, rows, intercept=intercept), targets - prior)

    def predicted(alpha: float) -> Float:
        shrunk = path.squares / (1.0 + alpha * path.squares)
        leverage = path.leverage((counted + alpha) * shrunk)
        return prior + left_out(path.targets, path.fitted(alpha * shrunk), leverage)

    return predicted


def own_head(
    total: Moments,
    ridge: float,
    model: Arrays,
    rows: Float,
    labels: NDArray[np.int64],
    *,
    alpha: float | str,
    counted: bool,
) -> tuple[dict[str, Array], float]:
    """A head with an intercept in which the client's samples weigh 1 + alpha, and the alpha; a number stays as it is.

    `model` has the head of all on the sums `total`, `rows` are the client's features before it.
    """
    rows = np.column_stack([rows, np.ones(len(rows))])
    sharpness = float(model["sharpness"])
    if isinstance(alpha, str):
        prior = rows @ np.vstack([model["weight"], model["intercept"]])
        alpha, sharpness = choose_alpha(total, ridge, rows, prior, labels, sharpness, counted=counted, intercept=True)
    own_moments = Moments.of(rows, labels, classes=total.targets)
    solution = solution_of(total + own_moments.scaled(alpha), ridge, intercept=True, solver="auto")
    return {**linear.linear_model(solution), "sharpness": np.array(sharpness)}, alpha
