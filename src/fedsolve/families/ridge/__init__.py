"""What the closed-form methods share: the linear model, its statistics, and choices by leave-one-out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Arrays, Float, flat
from fedsolve.data.federation import Samples, Task
from fedsolve.features.maps import FeatureMap
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, Solution, cross_validated_ridge, left_out

RIDGES = tuple(
    10.0**power for power in range(2, -6, -1)
)  # times the mean square of the features: what auto chooses from
SHARED_RIDGES = tuple(
    10.0 ** (-power / 2) for power in range(9)
)  # times the mean diagonal: what the server chooses from
FEW_SAMPLES = 100
TOO_FEW = 3  # below this, leaving one out leaves nothing to choose by: the first candidate stands, the global model
STEEPNESS = 20.0  # of the sigmoid that smooths the count of errors; 10 to 50 choose nearly alike
TIE = 1e-9  # losses a sample that differ by less are equal
PREDICT_ROWS = 8192  # scores are computed in blocks of rows, so that float64 copies of the inputs stay small


_T = TypeVar("_T")


def moments(task: Task, train: Samples, *, intercept: bool = False, features: FeatureMap | None = None) -> Moments:
    """The statistics of a client's training data, through a feature map of the method's own if it has one."""
    if features is None:
        return Moments.of(train.inputs, train.labels, classes=task.classes, intercept=intercept, space=task.space)
    parts = (
        Moments.of(features(train.inputs[rows]), train.labels[rows], classes=task.classes, intercept=intercept)
        for rows in (slice(start, start + PREDICT_ROWS) for start in range(0, len(train), PREDICT_ROWS))
    )
    return reduce(add, parts)


def linear_model(solution: Solution) -> dict[str, Array]:
    """A solution as a model: `weight` (features x classes), and `intercept` where there is one."""
    model: dict[str, Array] = {"weight": solution.weights}
    if solution.intercept is not None:
        model["intercept"] = solution.intercept
    return model


def trust(solution: Solution) -> dict[str, Array]:
    """How far a solution can be trusted, as 0-d arrays for the server's state."""
    return {
        "rcond": np.array(solution.rcond),
        "rank": np.array(solution.rank),
        "minimum_norm": np.array(solution.solver == "eigen"),
    }


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


def one_hot(labels: NDArray[np.int64], classes: int) -> Float:
    """A row a sample, with a one at its class."""
    rows = np.zeros((len(labels), classes))
    rows[np.arange(len(labels)), labels] = 1.0
    return rows


def server_ridge(ridge: float | str, total: Moments, *, intercept: bool = False) -> float:
    """The ridge as given; where it is "auto", by generalised cross-validation on the sums alone."""
    return cross_validated_ridge(total, SHARED_RIDGES, intercept=intercept) if isinstance(ridge, str) else float(ridge)


def choose_ridge(task: Task, train: Samples, *, intercept: bool) -> float:
    """The strength with the best leave-one-out predictions on the client's own training data."""
    rows = design(train, intercept=False)
    targets = one_hot(train.labels, task.classes)
    path = RidgePath.of(rows, targets, intercept=intercept)
    unit = (
        float(path.squares.sum()) / rows.shape[1] or 1.0
    )  # the mean diagonal of F'F, centred if there is an intercept
    candidates = [unit * factor for factor in RIDGES]
    mean = targets.mean(0) if intercept else 0.0

    def predicted(ridge: float) -> Float:
        gain = path.ridge(ridge)
        return left_out(path.targets, path.fitted(gain), path.leverage(gain)) + mean

    return best(candidates, map(predicted, candidates), train.labels)


def best(candidates: Sequence[_T], predictions: Iterable[Float], labels: NDArray[np.int64]) -> _T:
    """The candidate with the best leave-one-out predictions (samples x classes, one matrix a candidate).

    Best is the smallest smoothed count of errors: the sum over samples of a steep sigmoid of the margin, true class
    minus best other. The count itself takes few values and ties; squared error looks away from the decision. Below
    `FEW_SAMPLES` even the smoothed count is too noisy to choose by, and squared error decides. Of equals, the first;
    below `TOO_FEW` samples too, which is why methods put the candidate nearest the global model there.
    """
    if len(labels) < TOO_FEW:
        return candidates[0]
    rows = np.arange(len(labels))

    def loss(scores: Float) -> float:
        own = scores[rows, labels]
        if len(labels) < FEW_SAMPLES:
            return float(np.square(scores).sum() + (1.0 - 2.0 * own).sum())  # |scores - one-hot|^2
        others = scores.copy()
        others[rows, labels] = -np.inf
        return float((0.5 + 0.5 * np.tanh(0.5 * STEEPNESS * (others.max(1) - own))).sum())  # a smooth share of errors

    losses = np.array([loss(scores) for scores in predictions])
    # Rounding must not decide between equals: the first wins.
    return candidates[int(np.argmax(losses <= losses.min() + TIE * len(labels)))]
