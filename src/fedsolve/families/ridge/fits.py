"""A client's fit from a start of the federation's: its class shares and a scale, then ridge on what is left over.

Nothing is picked: candidates are averaged, each weighing by the cross-entropy of its left-out predictions on the
client's own training data (`weigh`). Averages of linear models are linear models, so the result is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from fedsolve.arrays import Array, Float, log_softmax, softmax
from fedsolve.families.ridge import choice, linear
from fedsolve.families.ridge.knowledge import Knowledge, class_shares
from fedsolve.solver import RidgePath, left_out

PSEUDOCOUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # samples that the federation's class shares count for
# Strengths of the ridge, times the mean square length of the rows.
STRENGTHS: tuple[float, ...] = tuple(np.geomspace(300.0, 0.03, 7).tolist())
STEPS = (1.0, 3.0, 10.0, 30.0)  # how far along the correction, beside 0: none


def own_shares(labels: Array, shares: Float, pseudocount: float, *, left_out: bool) -> Float:
    """Log class shares of the client, where the federation's `shares` count for `pseudocount` samples.

    One row; or, with `left_out`, one row per sample: the shares among the others.
    """
    counts = np.bincount(labels, minlength=len(shares)) + pseudocount * shares
    rows = np.tile(counts, (len(labels) if left_out else 1, 1))
    if left_out:
        rows[np.arange(len(labels)), labels] -= 1.0
    logs: Float = np.log(rows / rows.sum(1, keepdims=True))
    return logs


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
    shares: tuple[Float, ...]  # log class shares for each pseudocount, one row
    left_out_shares: tuple[Float, ...]  # one row per sample: the shares among the others

    @classmethod
    def of(cls, rows: Float, labels: Array, knowledge: Knowledge) -> Fitting:
        """Everything that does not depend on where a fit starts."""
        centre = knowledge.sums.sum(1) / max(knowledge.counts.sum(), 1.0)
        unit = float(np.square(rows - centre).sum(1).mean()) or 1.0
        design = np.column_stack([rows - centre, np.full(len(rows), np.sqrt(unit))])
        every = class_shares(knowledge.counts)
        shares, left_out_shares = (
            tuple(own_shares(labels, every, p, left_out=out) for p in PSEUDOCOUNTS) for out in (False, True)
        )
        path = RidgePath.of(design, linear.one_hot(labels, len(every)))
        return cls(rows, labels, centre, unit, path, design, shares, left_out_shares)

    def fit(self, weight: Float, offset: Float, scales: Sequence[float]) -> Fit:
        """The two steps from a start."""
        scores = self.rows @ weight + offset
        pairs = list(product(range(len(PSEUDOCOUNTS)), scales))
        by_pair = weigh((scale * scores + self.left_out_shares[p] for p, scale in pairs), self.labels)
        scale = float(by_pair @ [scale for _, scale in pairs])
        by_share = by_pair.reshape(len(PSEUDOCOUNTS), -1).sum(1)
        before = scale * scores + sum(w * s for w, s in zip(by_share, self.left_out_shares, strict=True))
        offset = scale * offset + sum(w * s[0] for w, s in zip(by_share, self.shares, strict=True))
        correction, moved, step = self._correction(before)
        weight = scale * weight + correction[:-1]
        offset = offset + np.sqrt(self.unit) * correction[-1] - self.centre @ correction[:-1]
        return Fit(weight, offset, before + moved, float(by_share @ PSEUDOCOUNTS), step)

    def _correction(self, before: Float) -> tuple[Float, Float, float]:
        """Ridge of the residuals, averaged: weights, left-out predictions, and the mean step."""
        residuals = self.path.targets - softmax(before, axis=1)
        projected = self.path.basis.T @ residuals
        moves = []
        for strength in STRENGTHS:
            gain = self.path.ridge(strength * self.unit)
            fitted = self.path.basis @ (gain[:, None] * projected)
            moves.append(left_out(residuals, fitted, self.path.leverage(gain)))
        pairs = list(product(STEPS, range(len(STRENGTHS))))
        scores = (before + step * moves[strength] for step, strength in pairs)
        weights = weigh(chain([before], scores), self.labels)[1:].reshape(len(STEPS), -1)
        steps = STEPS @ weights  # how far along each strength
        # V' (s / (s^2 + r)) U'R: the weights behind the fitted values
        along = sum(step / (self.path.squares + r * self.unit) for step, r in zip(steps, STRENGTHS, strict=True))
        correction = self.design.T @ (self.path.basis @ (np.asarray(along)[:, None] * projected))
        moved = sum(step * move for step, move in zip(steps, moves, strict=True))
        return correction, np.asarray(moved), float(steps.sum())


def weigh(scores: Iterable[Float], labels: Array) -> Float:
    """Weights of candidates from their left-out scores on the client's samples; they sum to one.

    With g the total cross-entropy by which a candidate beats the first, exp(g) - 1, against 1 for the first: the more
    likely of two weighs more, by as much as it is more likely; what does not beat the first has no weight. Below
    `choice.TOO_FEW` samples, the first has all.
    """
    rows = np.arange(len(labels))
    losses = np.array([-log_softmax(each, axis=1)[rows, labels].sum() for each in scores])
    if len(labels) < choice.TOO_FEW:
        losses[:] = 0.0
    gain = np.maximum(losses[0] - losses, 0.0)
    with np.errstate(divide="ignore"):
        logs = gain + np.log(-np.expm1(-gain))
    logs[0] = 0.0
    weights: Float = softmax(logs, axis=0)
    return weights
