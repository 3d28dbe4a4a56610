"""Probabilities from least squares: softmax of the scores times one number, the sharpness of the model.

Scores of least squares on one-hot targets are near the shares of the classes, so their softmax as they are would be
nearly even. Where a client has left-out predictions at hand, the sharpness is the one of least log-loss on them
(`sharpness`). Where only sums are there, it is one Newton step from zero on the log-loss of the training samples, which
is a function of the sums (`sharpness_of_sums`): right for classes that overlap, modest for classes that are far apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Arrays, Float, softmax
from fedsolve.moments import Moments
from fedsolve.solver import Solution

STEPS = 12  # of Newton's method at most; five are usual
CLOSE = 1e-3  # relative change of the sharpness at which it has settled
FURTHEST = 1.0  # change of its logarithm in one step


def sharpness_of_sums(total: Moments, solution: Solution) -> float:
    """The sharpness from the sums alone: sum of (s_y - mean s) over sum of var s, both over the training samples.

    With W the weights, (F'F) W = F'Y - ridge W gives the squares of the scores, and the rows of Y sum to one, so that
    F'1 = F'Y 1: nothing is computed but inner products of weights and sums.
    """
    weights, classes = solution.weights, total.targets
    stacked = weights if solution.intercept is None else np.vstack([weights, solution.intercept])
    both, both_right = stacked.sum(1), total.cross.sum(1)
    true_scores = float((stacked * total.cross).sum())  # of s_y; vdot would wake BLAS threads for so little
    all_scores = float(both @ both_right)  # the sum of the sums over classes
    squares = true_scores - solution.ridge * float(np.square(weights).sum())
    square_sums = all_scores - solution.ridge * float(np.square(weights.sum(1)).sum())
    rise, spread = true_scores - all_scores / classes, squares / classes - square_sums / classes**2
    return rise / spread if rise > 0 and spread > 0 else float(classes)


def sharpness(left_out: Float, labels: NDArray[np.int64], prior: float) -> float:
    """The sharpness t of least log-loss of softmax(t s) for left-out scores s, drawn towards `prior`.

    Samples that are all told apart would let t grow without end: half the squared logarithm of t / prior is added, as
    much as a single sample can say. Newton's method on the logarithm of t. Samples whose left-out scores are unknown
    (NaN) have no say.
    """
    unknown = np.isnan(left_out).any(1)
    if unknown.any():
        left_out, labels = left_out[~unknown], labels[~unknown]
    # Scores below the best of each sample: softmax is the same, and nothing overflows.
    below = left_out - left_out.max(1, keepdims=True)
    wanted = float(below[np.arange(len(labels)), labels].sum())
    squares, powers = np.square(below), np.empty_like(below)
    log_prior = log = float(np.log(prior))
    for _ in range(STEPS):
        t = float(np.exp(log))
        np.exp(np.multiply(below, t, out=powers), out=powers)
        shares = powers.sum(1)
        mean = np.einsum("ij,ij->i", powers, below) / shares
        square = np.einsum("ij,ij->i", powers, squares) / shares
        spread, rise = float((square - np.square(mean)).sum()), t * (float(mean.sum()) - wanted)
        # Its part of the curvature counts where it is positive: without it, steps towards a small t go to and fro.
        curvature = t * t * max(spread, 0.0) + max(rise, 0.0) + 1.0
        step = min(max((rise + log - log_prior) / curvature, -FURTHEST), FURTHEST)
        log -= step
        if abs(step) < CLOSE:
            break
    return float(np.exp(log))


def probabilities(model: Arrays, scores: Array) -> Float:
    """Softmax of the scores times the model's sharpness; models without one have that of plain least squares."""
    times = float(model["sharpness"]) if "sharpness" in model else float(scores.shape[1])
    return softmax(times * np.asarray(scores, dtype=np.float64))
