"""A client's fit from a start of the federation's: its class shares and a scale, then ridge on what is left over.

Nothing is picked: candidates are averaged, each weighing by the cross-entropy of its left-out predictions on the
client's own training data (`weights_of`). Averages of linear models are linear models, so the result is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from fedsolve.arrays import Array, Float, softmax
from fedsolve.families.ridge import choice, linear
from fedsolve.families.ridge.knowledge import Knowledge, class_shares
from fedsolve.solver import RidgePath, left_out

PSEUDOCOUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # samples that the federation's class shares count for
# Strengths of the ridge, times the mean square length of the rows.
STRENGTHS: tuple[float, ...] = tuple(np.geomspace(300.0, 0.03, 7).tolist())
TINY = 1e-200  # sums of exponentials below which digits may have been lost to the end of numbers
STEPS = (1.0, 3.0, 10.0, 30.0)  # how far along the correction, beside 0: none


def own_counts(labels: Array, shares: Float) -> Float:
    """How often the client has each class, where the federation's `shares` count for some samples (`PSEUDOCOUNTS`).

    One row per class and one column per pseudocount; a column's sum is the client's samples and the pseudocount.
    """
    own = np.bincount(labels, minlength=len(shares)).astype(np.float64)
    return np.asarray(own[:, None] + np.multiply.outer(shares, np.array(PSEUDOCOUNTS)))


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A linear model, what it predicts for each training sample without that sample, and the averages behind it."""

    weight: Float
    intercept: Float
    left_out: Float
    pseudocount: float
    step: float


@dataclass(frozen=True, slots=True, eq=False)
class Fitting:
    """What all fits of a client share: its rows, decomposed once, and its class shares."""

    rows: Float
    labels: Array
    centre: Float  # of everybody's features
    unit: float  # mean square length of the rows about the centre
    path: RidgePath
    design: Float  # the rows about the centre, and a constant as long as they are: it is hardly penalised
    counts: Float  # of the classes, as `own_counts` has them

    @classmethod
    def of(cls, rows: Float, labels: Array, knowledge: Knowledge) -> Fitting:
        """Everything that does not depend on where a fit starts."""
        centre = knowledge.sums.sum(1) / max(knowledge.counts.sum(), 1.0)
        unit = float(np.square(rows - centre).sum(1).mean()) or 1.0
        design = np.column_stack([rows - centre, np.full(len(rows), np.sqrt(unit))])
        every = class_shares(knowledge.counts)
        path = RidgePath.of(design, linear.one_hot(labels, len(every)))
        return cls(rows, labels, centre, unit, path, design, own_counts(labels, every))

    def fit(self, weight: Float, offset: Float, scales: Sequence[float]) -> Fit:
        """The two steps from a start."""
        scores = self.rows @ weight + offset
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
        offset = scale * offset + (logs - by_share @ np.log(samples))
        correction, moved, step = self._correction(before)
        weight = scale * weight + correction[:-1]
        offset = offset + np.sqrt(self.unit) * correction[-1] - self.centre @ correction[:-1]
        return Fit(weight, offset, before + moved, float(by_share @ PSEUDOCOUNTS), step)

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
        """Ridge of the residuals, averaged: weights, left-out predictions, and the mean step."""
        residuals = self.path.targets - softmax(before, axis=1)
        projected = self.path.basis.T @ residuals
        moves = []
        for strength in STRENGTHS:
            gain = self.path.ridge(strength * self.unit)
            fitted = self.path.basis @ (gain[:, None] * projected)
            moves.append(left_out(residuals, fitted, self.path.leverage(gain)))
        along = [(1, int(step)) for step in STEPS]
        losses = np.array([losses_of_powers((before, move), along, self.labels) for move in moves])
        start = entropy(before, self.labels)
        weights = weights_of(np.array([start, *losses.T.ravel()]), len(self.labels))[1:].reshape(len(STEPS), -1)
        steps = STEPS @ weights  # how far along each strength
        # V' (s / (s^2 + r)) U'R: the weights behind the fitted values
        behind = sum(step / (self.path.squares + r * self.unit) for step, r in zip(steps, STRENGTHS, strict=True))
        correction = self.design.T @ (self.path.basis @ (np.asarray(behind)[:, None] * projected))
        moved = sum(step * move for step, move in zip(steps, moves, strict=True))
        return correction, np.asarray(moved), float(steps.sum())


def entropy(scores: Float, labels: Array) -> float:
    """The total cross-entropy of softmax of the scores."""
    below = scores - scores.max(1, keepdims=True)
    own = below[np.arange(len(labels)), labels].sum()
    return float(np.log(np.exp(below, out=below).sum(1)).sum() - own)


def losses_of_powers(parts: Sequence[Float], times: Sequence[tuple[int, ...]], labels: Array) -> Float:
    """The cross-entropy of sums of the parts, each so many times.

    Exponentials of each part are taken once, below the largest of each sample, and powers of these are products. Where
    parts are so far from each other that hardly anything is left of a product, they are added up first.
    """
    rows = np.arange(len(labels))
    below = [each - each.max(1, keepdims=True) for each in parts]
    own = np.array([float(each[rows, labels].sum()) for each in below])
    known = [_powers(np.exp(each), {number[k] for number in times}) for k, each in enumerate(below)]
    losses = []
    for numbers in times:
        factors = [known[k][number] for k, number in enumerate(numbers) if number]
        *first, last = factors
        product_ = reduce(np.multiply, first) if first else None
        sums = last.sum(1) if product_ is None else np.einsum("ij,ij->i", product_, last)
        if sums.min(initial=1.0) > TINY:
            losses.append(float(np.log(sums).sum()) - float(own @ numbers))
        else:
            whole = sum(number * part for number, part in zip(numbers, parts, strict=True))
            losses.append(entropy(np.asarray(whole), labels))
    return np.array(losses)


def _powers(base: Float, exponents: set[int]) -> dict[int, Float]:
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
