"""Choices by leave-one-out: which ridge, which candidate, without a test set and without refitting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Float
from fedsolve.moments import Moments
from fedsolve.solver import cross_validated_ridge

RIDGES = tuple(10.0**power for power in range(2, -6, -1))  # times the mean square of the features: a client's choices
SHARED_RIDGES = tuple(10.0 ** (-power / 2) for power in range(9))  # times the mean diagonal: the server's choices
FEW_SAMPLES = 100
TOO_FEW = 3  # below this, leaving one out leaves nothing to choose by: the first candidate stands, the global model
STEEPNESS = 20.0  # of the sigmoid that smooths the count of errors; 10 to 50 choose nearly alike
TIE = 1e-9  # losses per sample that differ by less are equal

_T = TypeVar("_T")


def server_ridge(ridge: float | str, total: Moments, *, intercept: bool = False) -> float:
    """The ridge as given; where it is "auto", by generalised cross-validation on the sums alone."""
    return cross_validated_ridge(total, SHARED_RIDGES, intercept=intercept) if isinstance(ridge, str) else float(ridge)


def best(candidates: Sequence[_T], predictions: Iterable[Float], labels: NDArray[Any]) -> _T:
    """The candidate with the best leave-one-out predictions (samples x outputs, one matrix per candidate).

    For numbers, best is the smallest squared error, of several with each in its own deviation. For classes:

    Best is the smallest smoothed count of errors: the sum over samples of a steep sigmoid of the margin, true class
    minus best other. The count itself takes few values and ties; squared error counts more than the decision. Below
    `FEW_SAMPLES` even the smoothed count is too noisy to choose by, and squared error decides. Of equals, the first;
    below `TOO_FEW` samples too, which is why methods put the candidate nearest the global model there. A sample whose
    left-out prediction is unknown (NaN, see `solver.left_out`) with any candidate is left out for all of them.
    """
    if len(labels) < TOO_FEW:
        return candidates[0]
    rows, weights = np.arange(len(labels)), unit_weights(labels)

    def loss(scores: Float) -> tuple[float, Float]:
        """The loss, and that of each sample."""
        if labels.ndim == 2:
            errors = np.square((scores - labels) * weights).sum(1)
            return float(errors.sum()), errors
        true_scores = scores[rows, labels]
        if len(labels) < FEW_SAMPLES:  # |scores - one-hot|^2
            squares, rest = np.square(scores), 1.0 - 2.0 * true_scores
            return float(squares.sum() + rest.sum()), squares.sum(1) + rest
        others = scores.copy()
        others[rows, labels] = -np.inf
        leads = others.max(1) - true_scores
        errors = 0.5 + 0.5 * np.tanh(0.5 * STEEPNESS * leads)  # a smooth count of errors
        return float(errors.sum()), errors

    sums, each = zip(*map(loss, predictions), strict=True)
    losses = np.array(sums)
    if np.isnan(losses).any():
        known = np.isfinite(np.array(each)).all(axis=0)
        if known.sum() < TOO_FEW:
            return candidates[0]
        losses = np.array([part[known].sum() for part in each])
    # Rounding must not decide between equals: the first wins.
    return candidates[int(np.argmax(losses <= losses.min() + TIE * len(labels)))]


def unit_weights(labels: NDArray[Any]) -> Float:
    """What errors of each target are multiplied by: one over its deviation, where there are several numbers."""
    deviations = labels.std(0) if labels.ndim == 2 else np.ones(1)
    weights: Float = 1.0 / np.where(deviations > 0, deviations, 1.0)
    return weights


def losses_of_misses(misses: NDArray[Any], rest: Float, labels: NDArray[Any]) -> Float:
    """The losses of `best` from what fits miss, samples x candidates x outputs, in units of `unit_weights`.

    `rest` is one minus the leverage, samples x candidates: a left-out prediction misses a sample by the fit's over it.
    With m what is missed, the lead of the best other class over the true one is m_true - min m_other - 1.
    """
    if labels.ndim == 2 or len(labels) < FEW_SAMPLES:
        squares = np.einsum("ijk,ijk->ij", misses, misses)
        return np.asarray((squares / np.square(rest)).sum(0), dtype=np.float64)
    rows = np.arange(len(labels))
    own = misses[rows, :, labels]
    misses[rows, :, labels] = np.inf
    leads = (own - misses.min(2)) / rest - 1.0
    return np.asarray((0.5 + 0.5 * np.tanh(0.5 * STEEPNESS * leads)).sum(0))
