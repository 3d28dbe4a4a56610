"""Which of many shrunken fits may be the best by leave-one-out: the choice that all of them give, at less work.

Losses of left-out predictions are functions of what these miss. With one decomposition U diag(s) V', a fit with gains g
misses E = R - U g U'R = (R - U U'R) + U (1 - g) U'R: one product per candidate, and no difference of large numbers, so
that single precision has six digits of it whatever the gain. That tells which candidates are far from the best. The
others, mostly one or two, are compared in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Float
from fedsolve.families.ridge import choice
from fedsolve.solver import RidgePath, left_out

SLACK = 2e-5  # share of the least loss within which a candidate may be the best: single precision errs by 1e-6
SLACK_EACH = 2e-5  # and of a sample, where errors are counted
NEARLY_ALL = 1e-9  # one minus a leverage below which all candidates are compared in double precision
AT_A_TIME = 2**17  # numbers that stay in the cache

Single = NDArray[np.float32]
_T = TypeVar("_T")


def best_fit(
    path: RidgePath, candidates: Sequence[_T], gains: Float, pulls: Float, prior: Float, labels: NDArray[Any]
) -> tuple[_T, Float]:
    """The candidate with the best left-out predictions, as `choice.best` finds it, and these predictions.

    A candidate fits `path` with its column of `gains`, and leverages are those of its column of `pulls`. The targets of
    `path` are what `prior` leaves over of the labels, so that predictions are the fit and `prior`.
    """
    rest = (1.0 - path.base) - np.square(path.basis) @ pulls

    @cache  # the best of several is asked for again
    def predicted(place: int) -> Float:
        return prior + left_out(path.targets, path.fitted(gains[:, place]), path.leverage(pulls[:, place]))

    left = list(range(len(candidates)))
    if len(labels) < choice.TOO_FEW:
        left = left[:1]
    elif rest.min(initial=1.0) > NEARLY_ALL:
        left = near_best(_losses(path, gains, rest, labels), labels)
    best = choice.best(left, map(predicted, left), labels) if len(left) > 1 else left[0]
    return candidates[best], predicted(best)


def near_best(losses: Float, labels: NDArray[Any]) -> list[int]:
    """The places of all losses that may be the least, for all that single precision tells."""
    counts = labels.ndim == 1 and len(labels) >= choice.FEW_SAMPLES
    least = float(losses.min())
    most = least + SLACK * abs(least) + (SLACK_EACH if counts else 2 * choice.TIE) * len(labels)
    return [int(place) for place in np.flatnonzero(~(losses > most))]


def _losses(path: RidgePath, gains: Float, rest: Float, labels: NDArray[Any]) -> Float:
    """The loss of each column of gains, in single precision; `rest` is one minus the leverage, samples x candidates."""
    projected, targets_ = path.projected, path.targets
    if labels.ndim == 2:
        weights = choice.unit_weights(labels)
        projected, targets_ = projected * weights, targets_ * weights
    outside = targets_ - path.basis @ projected if path.basis.shape[1] < len(labels) else None
    basis, targets = path.basis.astype(np.float32), path.targets.shape[1]
    shrunk = (1.0 - gains).astype(np.float32)
    projected = projected.astype(np.float32)
    step = max(1, AT_A_TIME // max(1, len(labels) * targets))
    losses = []
    for start in range(0, gains.shape[1], step):
        some = slice(start, start + step)
        # U (1 - g) U'R of several candidates side by side: samples x candidates x targets
        inside = shrunk[:, some, None] * projected[:, None, :]
        wide = inside.shape[1] * targets
        misses = (basis @ inside.reshape(len(inside), wide)).reshape(len(labels), inside.shape[1], targets)
        if outside is not None:
            misses += outside.astype(np.float32)[:, None, :]
        losses.append(choice.losses_of_misses(misses, rest[:, some], labels))
    return np.concatenate(losses)
