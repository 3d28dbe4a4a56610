"""A client's own ridge, of a strength that leave-one-out chooses: weights from the products that chose it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedsolve import digits
from fedsolve.arrays import Array, Float
from fedsolve.families.ridge import calibration, linear, screening
from fedsolve.families.ridge.choice import RIDGES
from fedsolve.method import Site
from fedsolve.moments import Moments
from fedsolve.sides import ridge_weights, smaller_gram
from fedsolve.solver import RidgePath, solution_of

LIKELY = 10.0  # how much worse random errors may be than the mean


class Alone(NamedTuple):
    """A client's own model, the ridge behind it, and the features that it is unsure of."""

    model: dict[str, Array]
    ridge: float
    unsure: tuple[int, ...]


def own_ridge(site: Site, ridge: float | str, *, intercept: bool) -> Alone:
    """The client's least squares at a ridge, or at the one with the best leave-one-out predictions on its data."""

    def own_moments() -> Moments:
        return linear.moments(site, intercept=intercept)

    if not isinstance(ridge, str):
        return _solved(own_moments(), ridge, 0.0, intercept=intercept)
    squares = linear.squares(linear.design(site.train, intercept=False), own_moments)
    chosen = choose_ridge(site, intercept=intercept)
    ridge, sharpness, path = chosen.ridge, chosen.sharpness, chosen.path
    weights = ridge_weights(chosen.design, chosen.gram, path.targets, ridge, path.inner(ridge))
    if weights is None or not _sure(path, squares, chosen.design, ridge):
        return _solved(own_moments(), ridge, sharpness, intercept=intercept)
    model: dict[str, Array] = {"weight": weights}
    if intercept:
        model["intercept"] = chosen.target_means - chosen.means @ weights
    return Alone({**model, "sharpness": np.array(sharpness)} if sharpness else model, ridge, ())


class Chosen(NamedTuple):
    """A ridge, how sharp its left-out predictions are (zero for numbers), and the products that chose it."""

    ridge: float
    sharpness: float
    path: RidgePath
    design: Float  # the features, about their means where there is an intercept
    gram: Float
    means: Float
    target_means: Float


def choose_ridge(site: Site, *, intercept: bool) -> Chosen:
    """The strength with the best leave-one-out predictions on the client's own training data."""
    rows, labels, target = linear.design(site.train, intercept=False), site.train.labels, site.task.target
    targets = target.rows(labels)
    means, target_means = (rows.mean(0), targets.mean(0)) if intercept else (np.zeros(0), np.zeros(targets.shape[1]))
    design = rows - means if intercept else rows
    gram = smaller_gram(design)
    path = RidgePath.of_gram(gram, design, targets - target_means, base=1.0 / len(rows) if intercept else 0.0)
    # The mean diagonal of F'F, centred if there is an intercept.
    unit = float(path.squares.sum()) / rows.shape[1] or 1.0
    candidates = [unit * factor for factor in RIDGES]
    gains = path.squares[:, None] / (path.squares[:, None] + np.array(candidates))
    ridge, left_out = screening.best_fit(path, candidates, gains, gains, target_means, labels)
    sharpness = 0.0 if target.kind == "numbers" else calibration.sharpness(left_out, labels, float(targets.shape[1]))
    return Chosen(ridge, sharpness, path, design, gram, means, target_means)


def _solved(own_moments: Moments, ridge: float, sharpness: float, *, intercept: bool) -> Alone:
    """By the whole system, which says what it is unsure of."""
    one_hot = own_moments.squares is None
    solution = solution_of(own_moments, ridge, intercept=intercept, solver="auto", one_hot=one_hot)
    model = linear.linear_model(solution)
    if one_hot:
        model["sharpness"] = np.array(sharpness or calibration.sharpness_of_sums(own_moments, solution))
    return Alone(model, ridge, solution.unsure)


def _sure(path: RidgePath, squares: Float, design: Float, ridge: float) -> bool:
    """Whether it is certain that no digits that matter were lost, from bounds on what `digits.of_factor` looks at.

    H is at least ridge I, so errors as large as the features move predictions by sqrt(tr F'F / ridge) at most. With y a
    target, |F'y|^2 = sum s^2 (U'y)^2 and |w|^2 = sum (s / (s^2 + ridge))^2 (U'y)^2, and the largest |f_j'y| / |f_j| is
    no less than |F'y| / |F|. Features that lose digits to an offset are left to the whole system.
    """
    about = np.einsum("ij,ij->j", design, design) if path.base else squares
    if (about < digits.SAFE * squares).any():
        return False
    along = np.square(path.projected)
    shown = path.squares @ along
    long_weights = (path.squares / np.square(path.squares + ridge)) @ along
    told = shown > 0
    lengths = float(squares.sum())
    spread = float(np.sqrt(squares.max(initial=0.0) * lengths * (long_weights[told] / shown[told]).max(initial=0.0)))
    return LIKELY * digits.EPS * (1.0 + spread) * float(np.sqrt(lengths / ridge)) <= digits.TOLERANCE
