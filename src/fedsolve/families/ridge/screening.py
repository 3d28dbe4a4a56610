"""Which of many shrunken fits may be the best by leave-one-out: the choice that all of them give, at less work.

Losses of left-out predictions are functions of what these miss. With one decomposition U diag(s) V', a fit with gains g
misses E = R - U g U'R = (R - U U'R) + U (1 - g) U'R: one product per candidate, and no difference of large numbers, so
that single precision has six digits of it whatever the gain. That tells which candidates are far from the best. The
others, mostly one or two, are compared in double precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    weights = choice.unit_weights(labels) if labels.ndim == 2 else None
    found = [choice.losses_of_misses(missed, rest[:, some], labels) for some, missed in misses(path, gains, weights)]
    return np.concatenate(found)


def misses(path: RidgePath, gains: Float, weights: Float | None = None) -> Iterator[tuple[slice, Single]]:
    """What fits miss in single precision, samples x candidates x targets, for some columns of gains at a time.

    With `weights`, each target is counted in units of its own.
    """
    projected, targets = path.projected, path.targets
    if weights is not None:
        projected, targets = projected * weights, targets * weights
    samples, width = targets.shape
    outside = targets - path.basis @ projected if path.basis.shape[1] < samples else None
    basis, shrunk, projected_ = (each.astype(np.float32) for each in (path.basis, 1.0 - gains, projected))
    step = max(1, AT_A_TIME // max(1, targets.size))
    for start in range(0, gains.shape[1], step):
        some = slice(start, start + step)
        # U (1 - g) U'R of several candidates side by side: samples x candidates x targets
        inside = shrunk[:, some, None] * projected_[:, None, :]
        columns = inside.shape[1] * width
        found = (basis @ inside.reshape(len(inside), columns)).reshape(samples, inside.shape[1], width)
        if outside is not None:
            found += outside.astype(np.float32)[:, None, :]
        yield some, found
