"""A model between the federation's and a client's own: its samples weigh 1 + alpha, and leave-one-out chooses alpha."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsolve.anchor import Anchor
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.families.ridge import calibration, linear, screening
from fedsolve.moments import Moments
from fedsolve.sides import dual, smaller_gram
from fedsolve.solver import RidgePath, solution_of, whiten

ALPHAS: tuple[float, ...] = (0.0, *np.geomspace(0.1, 10_000.0, 21).tolist())  # what alpha=auto chooses from


class Own(NamedTuple):
    """A client's model, the alpha behind it, and the features that it is unsure of."""

    model: dict[str, Array]
    alpha: float
    unsure: tuple[int, ...]


def own_model(
    total: Moments,
    ridge: float,
    shared: Arrays,
    rows: Float,
    labels: NDArray[Any],
    *,
    alpha: float | str,
    counted: bool,
    intercept: bool,
    anchor: Anchor | None,
    own_moments: Callable[[], Moments],
) -> Own:
    """The minimiser in which a client's samples weigh 1 + alpha. A number as alpha stays, else leave-one-out chooses.

    `total` are everybody's moments, `shared` the model of all, `rows` the client's features, and `own_moments` gives
    the sums of these. With `anchor`, that of `total`, the decomposition that chooses alpha gives the weights, too; and
    a fixed alpha takes a system as large as the samples are many, where these are few. Else, and where digits may have
    been lost, the whole system is solved.
    """
    squares = linear.squares(rows, own_moments)
    prior = linear.scores(shared, rows)
    targets = labels if labels.ndim == 2 else linear.one_hot(labels, prior.shape[1])
    sharpness = float(shared.get("sharpness", 0.0))
    left = targets - prior
    # A fixed alpha takes less with own sums, which are there where samples are many.
    near = anchor if isinstance(alpha, str) or is_few(len(rows), total.features) else None
    if near is not None:
        along = near.along(rows)
        design = near.design(along)
        gram = smaller_gram(design)
        if isinstance(alpha, str):
            path = RidgePath.of_gram(gram, design, left)
            alpha, sharpness = choose_alpha(path, prior, labels, sharpness, counted=counted)
        # With r = 1 / alpha, alpha (I + alpha Z'Z)^-1 is (r I + Z'Z)^-1.
        inner = dual(design, gram, left, 1.0 / alpha) if alpha > 0 else np.zeros((0, 0))
        model = _moved(near, along, inner, shared) if inner is not None else None
        if model is not None and near.sure(squares, rows, targets, alpha, model["weight"]):
            return Own(_told(model, sharpness), alpha, ())
    elif isinstance(alpha, str):
        whole = np.hstack([rows, np.ones((len(rows), 1))]) if intercept else rows
        path = RidgePath.of(whiten(total, ridge, whole, intercept=intercept), left)
        alpha, sharpness = choose_alpha(path, prior, labels, sharpness, counted=counted)
    return weighed(total, ridge, own_moments(), alpha, sharpness, intercept=intercept)


def weighed(total: Moments, ridge: float, own: Moments, alpha: float, sharpness: float, *, intercept: bool) -> Own:
    """The minimiser in which a client's samples, of which only the sums `own` are known, weigh 1 + alpha."""
    solution = solution_of(total + own.scaled(alpha), ridge, intercept=intercept, solver="auto")
    return Own(_told(linear.linear_model(solution), sharpness), alpha, solution.unsure)


def is_few(samples: int, features: int) -> bool:
    """Whether a system as large as the samples are many takes less than one as large as the features are."""
    return 2 * samples <= features


def choose_alpha(
    path: RidgePath, prior: Float, labels: NDArray[Any], sharpness: float, *, counted: bool
) -> tuple[float, float]:
    """The alpha with the best leave-one-out predictions on the client's own training data, and their sharpness.

    `path` decomposes the client's rows in coordinates where H = A + ridge I is the identity, with what the global model
    leaves over of its targets; `prior` is what it says of them, and `sharpness` its own: zero for numbers.

    Fitting the client's data with weight alpha is ridge towards the global model in the metric of H. Leaving a sample
    out takes it from the client's part (weight alpha) and, if the client is `counted` in the sum, from there too
    (weight 1): with H the identity, its leverage is (1 + alpha) s^2 / (1 + alpha s^2).
    """
    alphas, squares = np.array(ALPHAS), path.squares[:, None]
    shrunk = squares / (1.0 + alphas * squares)
    alpha, left_out = screening.best_fit(path, ALPHAS, alphas * shrunk, (counted + alphas) * shrunk, prior, labels)
    return alpha, calibration.sharpness(left_out, labels, sharpness) if sharpness else 0.0


def _moved(anchor: Anchor, along: Float, inner: Float, shared: Arrays) -> dict[str, Array]:
    """The model of all, moved by H^-1 F_k' `inner`; without any `inner` it stays as it is."""
    known = {name: shared[name] for name in ("weight", "intercept") if name in shared}
    if not inner.size:
        return known
    weights, intercept = anchor.change(along, inner)
    weights += known["weight"]  # in place: a model is the largest thing that a small client has
    model = {"weight": weights}
    return model if intercept is None else {**model, "intercept": known["intercept"] + intercept}


def _told(model: dict[str, Array], sharpness: float) -> dict[str, Array]:
    return {**model, "sharpness": np.array(sharpness)} if sharpness else model


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
    found = own_model(
        total,
        ridge,
        model,
        rows,
        labels,
        alpha=alpha,
        counted=counted,
        intercept=True,
        anchor=Anchor.of(total, ridge, intercept=True),
        own_moments=lambda: Moments.of(rows, labels, classes=total.targets, intercept=True),
    )
    return found.model, found.alpha
