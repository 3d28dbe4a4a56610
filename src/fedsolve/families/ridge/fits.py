"""A client's fit from a start of the federation's: its class shares and a scale, then ridge on what is left over.

Nothing is picked: candidates are averaged, each weighing by the cross-entropy of its left-out predictions on the
client's own training data (`weights_of`). Averages of linear models are linear models, so the result is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float, softmax
from fedsolve.families.ridge import choice, linear
from fedsolve.families.ridge.knowledge import Knowledge, class_shares
from fedsolve.solver import RidgePath

PSEUDOCOUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # samples that the federation's class shares count for
# Strengths of the ridge, times the mean square length of the rows.
STRENGTHS: tuple[float, ...] = tuple(np.geomspace(300.0, 0.03, 7).tolist())
AT_A_TIME = 2**16  # numbers that stay in the cache
POWERS_AT_A_TIME = 2**13  # the same where thirty arrays are used side by side
MANY = 2**14  # left-out predictions from which on it pays to look at all strengths in single precision first
NEGLIGIBLE = 50.0  # cross-entropy beyond the least with which a candidate weighs less than rounding
ROUNDED = 1e-4  # share by which single precision may be off; what is worse than the start has no weight
TINY, TINY_SINGLE = 1e-200, 1e-25  # sums of exponentials below which digits may have been lost to the end of numbers
STEPS = (1.0, 3.0, 10.0, 30.0)  # how far along the correction, beside 0: none


def own_counts(labels: Array, shares: Float) -> Float:
    """How often the client has each class, where the federation's `shares` count for some samples (`PSEUDOCOUNTS`).

    One row per class and one column per pseudocount; a column's sum is the client's samples and the pseudocount.
    """
    own = np.bincount(labels, minlength=len(shares)).astype(np.float64)
    return np.asarray(own[:, None] + np.multiply.outer(shares, np.array(PSEUDOCOUNTS)))


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A fit from a start: `scale` times it, an offset of each class, and a correction of the weights, F'U `along`.

    With it, what it predicts for each training sample without that sample, and the averages behind it.
    """

    scale: float
    offset: Float
    along: Float  # one row per direction of U, those of the client's rows
    left_out: Float
    pseudocount: float
    step: float


@dataclass(frozen=True, eq=False)  # without slots, for what is computed once it is asked for
class Fitting:
    """What all fits of a client share: its rows, decomposed once, and its class shares."""

    labels: Array
    centre: Float  # of everybody's features
    unit: float  # mean square length of the rows about the centre
    path: RidgePath
    moves: Moves
    design: Float  # the rows about the centre, and a constant as long as they are: it is hardly penalised
    counts: Float  # of the classes, as `own_counts` has them

    @classmethod
    def of(cls, rows: Float, labels: Array, knowledge: Knowledge) -> Fitting:
        """Everything that does not depend on where a fit starts."""
        centre = knowledge.sums.sum(1) / max(knowledge.counts.sum(), 1.0)
        design = np.empty((len(rows), rows.shape[1] + 1))
        np.subtract(rows, centre, out=design[:, :-1])
        unit = float(np.einsum("ij,ij->i", design[:, :-1], design[:, :-1]).mean()) or 1.0
        design[:, -1] = np.sqrt(unit)
        every = class_shares(knowledge.counts)
        path = RidgePath.of(design, linear.one_hot(labels, len(every)))
        gains = path.squares[:, None] / (path.squares[:, None] + unit * np.array(STRENGTHS))
        moves = Moves(path.basis, gains, 1.0 - path.base - np.square(path.basis) @ gains)
        return cls(labels, centre, unit, path, moves, design, own_counts(labels, every))

    def fit(self, scores: Float, scales: Sequence[float]) -> Fit:
        """The two steps from a start with these scores on the client's samples."""
        by_pair = weights_of(self._losses_of_pairs(scores, scales), len(self.labels))
        pairs = list(product(range(len(PSEUDOCOUNTS)), scales))
        scale = float(by_pair @ [scale for _, scale in pairs])
        by_share = by_pair.reshape(len(PSEUDOCOUNTS), -1).sum(1)
        # Log shares of the classes; among the others, a sample's own class has one sample less.
        samples = len(self.labels) + np.array(PSEUDOCOUNTS)
        logs = np.log(self.counts) @ by_share
        before = scale * scores + (logs - by_share @ np.log(samples - 1.0))
        before[np.arange(len(self.labels)), self.labels] += (
            np.log(self._own) - np.log(self.counts[self.labels])
        ) @ by_share
        along, moved, step = self._correction(before)
        offset = logs - by_share @ np.log(samples)
        return Fit(scale, offset, along, before + moved, float(by_share @ PSEUDOCOUNTS), step)

    def behind(self, along: Float) -> tuple[Float, Float]:
        """The weights and the intercept of a correction along the basis."""
        correction = self.design.T @ (self.path.basis @ along)
        return correction[:-1], np.sqrt(self.unit) * correction[-1] - self.centre @ correction[:-1]

    def _losses_of_pairs(self, scores: Float, scales: Sequence[float]) -> Float:
        """The cross-entropy of scale * scores plus log shares, for all pseudocounts, and within these for all scales.

        The shares among the others are proportional to the counts less one of the sample's own class: sums of
        exp(scale * scores) times shares are one product for all pseudocounts.
        """
        rows, labels, own = np.arange(len(self.labels)), self.labels, self._own
        below = scores - scores.max(1, keepdims=True)
        losses = np.empty((len(PSEUDOCOUNTS), len(scales)))
        for place, scale in enumerate(scales):
            powers = np.exp(scale * below)
            of_own = powers[rows, labels]
            powers[rows, labels] = 0.0  # added apart: the difference of two large numbers would lose digits
            sums = powers @ self.counts + of_own[:, None] * own
            losses[:, place] = (np.log(sums) - np.log(own) - (scale * below[rows, labels])[:, None]).sum(0)
        return losses.ravel()

    @property
    def _own(self) -> Float:
        """Of each sample's class, how often the others have it; samples x pseudocounts."""
        return np.asarray(self.counts[self.labels] - 1.0)

    def _correction(self, before: Float) -> tuple[Float, Float, float]:
        """Ridge of the residuals, averaged: its weights along the basis, left-out predictions, and the mean step.

        Of many samples, single precision tells which strengths can have any weight, and only those are looked at.
        """
        path, strengths = self.path, self.unit * np.array(STRENGTHS)
        origin = _Origin.of(before, self.labels)
        residuals, start = path.targets - origin.shares, origin.loss
        projected = path.basis.T @ residuals
        losses = np.full((len(STEPS), len(STRENGTHS)), np.inf)
        places = np.arange(len(STRENGTHS))
        if before.size >= MANY:
            single = origin.single()
            for part, moves in self._single.at(residuals.astype(np.float32), projected.astype(np.float32), places):
                losses[:, part] = _losses_along(single, moves, self.labels)
            most = min(start + ROUNDED * (abs(start) + len(before)), float(losses.min()) + NEGLIGIBLE)
            places = np.flatnonzero(~(losses > most).all(0))
            losses[:] = np.inf
        kept = []
        for part, moves in self.moves.at(residuals, projected, places):
            losses[:, part] = _losses_along(origin, moves, self.labels)
            kept.append((part, moves))
        weights = weights_of(np.array([start, *losses.ravel()]), len(self.labels))[1:].reshape(losses.shape)
        steps = STEPS @ weights  # how far along each strength
        # V' (s / (s^2 + r)) U'R: the weights behind the fitted values
        behind = (1.0 / (path.squares[:, None] + strengths)) @ steps
        moved = np.zeros_like(before)
        for part, moves in kept:
            moved += np.einsum("isj,s->ij", moves, steps[part])
        return behind[:, None] * projected, moved, float(steps.sum())

    @cached_property
    def _single(self) -> Moves:
        """The moves in single precision."""
        return Moves(*(array.astype(np.float32) for array in self.moves))


def entropy(scores: Float, labels: Array) -> float:
    """The total cross-entropy of softmax of the scores."""
    below = scores - scores.max(1, keepdims=True)
    own = below[np.arange(len(labels)), labels].sum()
    return float(np.log(np.exp(below, out=below).sum(1)).sum() - own)


class _Origin(NamedTuple):
    """Scores that moves start from, and their exponentials below the largest of each sample, in one precision."""

    scores: Array
    powers: Array
    own: float  # the scores of samples' own classes below the largest, summed

    @classmethod
    def of(cls, scores: Float, labels: Array) -> _Origin:
        """Of scores in double precision."""
        below = scores - scores.max(1, keepdims=True)
        own = float(below[np.arange(len(labels)), labels].sum())
        return cls(scores, np.exp(below, out=below), own)

    def single(self) -> _Origin:
        """The same in single precision."""
        return _Origin(self.scores.astype(np.float32), self.powers.astype(np.float32), self.own)

    @property
    def shares(self) -> Float:
        """The softmax of the scores."""
        return np.asarray(self.powers / self.powers.sum(1, keepdims=True))

    @property
    def loss(self) -> float:
        """The total cross-entropy of the softmax."""
        return float(np.log(self.powers.sum(1)).sum()) - self.own


class Moves(NamedTuple):
    """What left-out predictions of ridge take beside the residuals, in the precision of these arrays."""

    basis: Array
    gains: Array  # along the basis, by strength
    rest: Array  # one minus the leverage of each sample, by strength

    def at(
        self, residuals: Array, projected: Array, places: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], Array]]:
        """Some places of the strengths at a time, and the predictions there, samples x places x classes.

        `projected` are the residuals along the basis.
        """
        some = max(1, AT_A_TIME // max(1, residuals.size))
        for start in range(0, len(places), some):
            part = places[start : start + some]
            shrunk = self.gains[:, part, None] * projected[:, None, :]
            fitted = self.basis @ shrunk.reshape(len(shrunk), -1)
            moves = fitted.reshape(len(residuals), len(part), -1)
            # r - (r - fitted) / rest
            moves -= residuals[:, None, :]
            moves /= self.rest[:, part, None]
            moves += residuals[:, None, :]
            yield part, moves


def _losses_along(origin: _Origin, moves: Array, labels: Array) -> Float:
    """The cross-entropy of the origin and each move, samples x moves x classes, as often as `STEPS` say; steps x moves.

    As `losses_of_powers` does it.
    """
    least = TINY if moves.dtype == np.float64 else TINY_SINGLE
    below = moves - moves.max(2, keepdims=True)
    own_moves = below[np.arange(len(labels)), :, labels].sum(0)
    powers = _powers(np.exp(below, out=below), {int(step) for step in STEPS})
    losses = np.empty((len(STEPS), moves.shape[1]))
    for place, step in enumerate(STEPS):
        sums = np.einsum("ij,isj->is", origin.powers, powers[int(step)])
        lost = sums.min(0, initial=1.0) <= least
        losses[place] = np.log(np.where(lost, 1.0, sums)).sum(0) - origin.own - step * own_moves
        for move in np.flatnonzero(lost):
            losses[place, move] = entropy(origin.scores + step * moves[:, move], labels)
    return losses


def losses_of_powers(parts: Sequence[Float], times: Sequence[tuple[int, ...]], labels: Array) -> Float:
    """The cross-entropy of sums of the parts, each so many times.

    Exponentials of each part are taken once, below the largest of each sample, and powers of these are products. Where
    parts are so far from each other that hardly anything is left of a product, they are added up first.
    """
    count, classes = parts[0].shape
    sums = np.empty((len(times), count))
    own = np.zeros(len(parts))
    some = max(1, POWERS_AT_A_TIME // classes)
    for start in range(0, count, some):
        block = slice(start, start + some)
        below = [each[block] - each[block].max(1, keepdims=True) for each in parts]
        rows = np.arange(len(below[0]))
        own += [float(each[rows, labels[block]].sum()) for each in below]
        known = [_powers(np.exp(each), {number[k] for number in times}) for k, each in enumerate(below)]
        for place, numbers in enumerate(times):
            *first, last = (known[k][number] for k, number in enumerate(numbers) if number)
            sums[place, block] = np.einsum("ij,ij->i", reduce(np.multiply, first), last) if first else last.sum(1)
    losses = np.log(np.maximum(sums, TINY)).sum(1) - np.array(times) @ own
    for lost in np.flatnonzero(~(sums.min(1, initial=1.0) > TINY)).tolist():
        whole = sum(number * part for number, part in zip(times[lost], parts, strict=True))
        losses[lost] = entropy(np.asarray(whole), labels)
    return np.asarray(losses)


def _powers(base: Array, exponents: set[int]) -> dict[int, Array]:
    """Whole powers of an array, each from the largest before it that goes into it."""
    found = {1: base}
    for exponent in sorted(exponents - {0, 1}):
        most = max(found)
        power, left = found[most], exponent - most
        while left:
            most = max(each for each in found if each <= left)
            power, left = power * found[most], left - most
        found[exponent] = power
    return found


def weights_of(losses: Float, count: int) -> Float:
    """Weights of candidates from the cross-entropy of their left-out predictions for `count` samples; they sum to one.

    With g the total cross-entropy by which a candidate beats the first, exp(g) - 1, against 1 for the first: the more
    likely of two weighs more, by as much as it is more likely; what does not beat the first has no weight. Below
    `choice.TOO_FEW` samples, the first has all.
    """
    gain = np.maximum(losses[0] - losses, 0.0) if count >= choice.TOO_FEW else np.zeros_like(losses)
    with np.errstate(divide="ignore"):
        logs = gain + np.log(-np.expm1(-gain))
    logs[0] = 0.0
    weights: Float = softmax(logs, axis=0)
    return weights
