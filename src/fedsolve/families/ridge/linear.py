"""The linear model: its statistics, its weights, how far to trust them, and its scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve import digits, parameters
from fedsolve import thin as rotated
from fedsolve.arrays import Array, Arrays, Float, flat
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError
from fedsolve.families.ridge.calibration import sharpness_of_sums
from fedsolve.features.maps import FeatureMap, bound
from fedsolve.method import Rows, Site
from fedsolve.moments import LARGEST, SMALLEST, Moments
from fedsolve.solver import Solution, solution_of

PREDICT_ROWS = 8192  # scores are computed in blocks of rows, so that float64 copies of the inputs stay small


def moments(site: Site, *, intercept: bool = False, features: FeatureMap | None = None) -> Moments:
    """The statistics of a client's training data, through a feature map of the method's own if it has one."""
    task, numbers = site.task, site.task.target.kind == "numbers"
    of = partial(Moments.of, classes=task.outputs, intercept=intercept, squares=numbers)

    def tell(train: Samples) -> Moments:
        if features is None:
            return of(train.inputs, train.labels, space=task.space)
        parts = (
            of(features(train.inputs[rows]), train.labels[rows])
            for rows in (slice(start, start + PREDICT_ROWS) for start in range(0, len(train), PREDICT_ROWS))
        )
        return reduce(add, parts)

    return site.train.fold(tell, Moments.__add__)


def thin_setting() -> Any:
    """The setting of methods whose sites may send thin replies."""
    words = "sites with fewer samples than half the features send rows under a secret rotation in place of F'F and F'Y"
    return parameters.flag(False, f"{words}: far fewer bytes, but no secure sum, and Y'Y can be told")


def sent(site: Site, *, intercept: bool = False, features: FeatureMap | None = None, thin: bool = False) -> Arrays:
    """What a client sends: its moments, or, where `thin` replies are asked for and fewer numbers, its rows turned."""
    task, train = site.task, site.train
    width = task.width if features is None or not thin else math.prod(features.shape(train.inputs.shape[1:]))
    if not (thin and rotated.is_shorter(len(train), width + intercept)):
        return moments(site, intercept=intercept, features=features).arrays()
    rows = train.inputs if features is None else features(train.inputs)
    return rotated.of(rows, train.labels, classes=task.outputs, intercept=intercept)


def moments_of(rows: Float, site: Site, *, intercept: bool) -> Moments:
    """The statistics of a client's training data, of which `rows` are features of the method's own."""
    numbers = site.task.target.kind == "numbers"
    return Moments.of(rows, site.train.labels, classes=site.task.outputs, intercept=intercept, squares=numbers)


def bounded(task: Task, *, intercept: bool) -> Rows:
    """What bounds the rows of a task's features; refused where its feature map does not."""
    longest = bound(task.features)
    if longest is None:
        raise ParameterError(
            f"noise of a stated epsilon needs features of bounded length; the map {str(task.features)[:80]!r} does not "
            "bound them: let it end in unit or clip:R, as in --features unit"
        )
    return Rows(longest, intercept)


def linear_model(solution: Solution) -> dict[str, Array]:
    """A solution as a model: `weight` (features x classes), and `intercept` where there is one."""
    model: dict[str, Array] = {"weight": solution.weights}
    if solution.intercept is not None:
        model["intercept"] = solution.intercept
    return model


def trust(solution: Solution) -> dict[str, Array]:
    """How far a solution can be trusted, as arrays for the server's state."""
    return {
        "rcond": np.array(solution.rcond),
        "rank": np.array(solution.rank),
        "minimum_norm": np.array(solution.solver == "eigen"),
        "unsure": np.array(solution.unsure, dtype=np.int64),
    }


def global_model(total: Moments, ridge: float, *, intercept: bool = False) -> dict[str, Array]:
    """What a server knows once it has solved: sums, model, how far to trust it, and for classes its sharpness."""
    one_hot = total.squares is None
    solution = solution_of(total, ridge, intercept=intercept, solver="auto", one_hot=one_hot)
    sharpness = {"sharpness": np.array(sharpness_of_sums(total, solution))} if one_hot else {}
    return {**total.arrays(), **linear_model(solution), **sharpness, **trust(solution)}


def figures(state: Arrays, *names: str) -> dict[str, float]:
    """Numbers of a server's state to show: those named, and how far its solution can be trusted."""
    every = (*names, "count", "sharpness", "rcond", "rank", "minimum_norm")
    return {name: state[name].item() for name in every if name in state}


def warnings(state: Arrays, task: Task, *, intercept: bool) -> tuple[str, ...]:
    """Sentences about the features whose digits were lost in the sums of a server's state."""
    if "unsure" not in state:
        return ()
    centred = Moments.from_arrays(state) if intercept else None
    return digits.sentences(state["unsure"].tolist(), centred, names=task.columns)


def scores(model: Arrays, inputs: Array) -> Float:
    """Features times weight, plus the intercept where there is one."""
    rows = flat(inputs)
    result = np.empty((len(rows), model["weight"].shape[1]))
    for start in range(0, len(rows), PREDICT_ROWS):
        block = slice(start, start + PREDICT_ROWS)
        np.matmul(np.asarray(rows[block], dtype=np.float64), model["weight"], out=result[block])
    return result + model["intercept"] if "intercept" in model else result


def design(train: Samples, *, intercept: bool) -> Float:
    """A client's features in float64, with a column of ones if asked."""
    rows = np.asarray(flat(train.inputs), dtype=np.float64)
    return np.column_stack([rows, np.ones(len(rows))]) if intercept else rows


def squares(rows: Float, own_moments: Callable[[], Moments]) -> Float:
    """The sum of squares of each feature. Rows of which no moments can be made are refused as `own_moments` does it."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        sums: Float = np.einsum("ij,ij->j", rows, rows)
    small = sums < SMALLEST
    if not sums.max(initial=0.0) <= LARGEST or (small.any() and rows[:, small].any()):
        own_moments()
    return sums


def one_hot(labels: NDArray[np.int64], classes: int) -> Float:
    """One row per sample, with a one at its class."""
    rows = np.zeros((len(labels), classes))
    rows[np.arange(len(labels)), labels] = 1.0
    return rows
