"""fedprior, our own: the federation is the prior, and each client moves away from it as far as its data justify.

Three steps, all from the sums of F'F and F'Y over a feature space with a column of ones (so that F'Y also holds the
class means and counts, and F'F the means):

1. *What everybody else knows*: a linear discriminant from the sums without the client's own part (they subtract
   exactly), so that the client judges it on data it has never seen.
2. *What the client knows of itself*: how frequent classes are here, against the federation, as an offset of the scores;
   with a scale for the scores, both chosen by leave-one-out.
3. *What is left over*: ridge on the residuals of the resulting probabilities, its strength and length by leave-one-out.

The criterion is the cross-entropy of left-out predictions on the client's own training data. The result is one linear
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from scipy.special import log_softmax, softmax

from fedsolve import blas, parameters
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.federation import Samples, Task
from fedsolve.method import Method
from fedsolve.methods import _ridge
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out

SCALES = (0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0)  # of the discriminant
PSEUDOCOUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # samples that the federation's class shares count for
# Strengths of the ridge, times the mean square length of the rows.
STRENGTHS: tuple[float, ...] = tuple(np.geomspace(0.01, 300.0, 10).tolist())
STEPS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # how far along the correction; 0: none
Pair: TypeAlias = tuple[float, float]
_SENT = ("triangle", "cross", "count", "weight", "intercept")


@dataclass(frozen=True)
class FedPrior(Method):
    """The federation's discriminant as a prior, moved to the client's class shares and residuals by leave-one-out."""

    name: ClassVar[str] = "fedprior"
    paper: ClassVar[str] = "fedsolve's own"
    sends: ClassVar[str] = "F'F (one triangle) and F'Y of its training data, with a column of ones, once"
    laws: ClassVar[frozenset[str]] = frozenset({"others-split-invariant", "order-free"})

    shrink: float = parameters.number(
        0.02, "share of the mean variance that is added to each variance within classes", low=1e-6, high=1e6
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    def message(self, state: Arrays, client: str) -> Arrays:
        """The sums and the global model, once there are some."""
        return {name: state[name] for name in _SENT if name in state}

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """The global model: the discriminant of all, with everybody's class shares."""
        total = Moments.from_arrays(replies)
        weight, offset = discriminant(total, self.shrink)
        return {**total.arrays(), "weight": weight, "intercept": offset + np.log(class_shares(total))}

    def init_client(self, task: Task, train: Samples, rng: np.random.Generator) -> Arrays:
        """Not part of any sum yet."""
        return {"counted": np.array(False)}

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """The statistics of the client's data, with a column of ones."""
        return {"counted": np.array(True)}, _ridge.moments(task, train, intercept=True).arrays()

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The three steps."""
        total = Moments.from_arrays(message, task.space)
        others = total - _ridge.moments(task, train, intercept=True) if bool(private["counted"]) else total
        weight, offset = discriminant(others, self.shrink)
        rows = _ridge.design(train, intercept=False)
        known, labels, shares = rows @ weight + offset, train.labels, class_shares(total)
        scale, pseudocount = _choose(
            [(s, p) for p in PSEUDOCOUNTS for s in SCALES],
            lambda pair: pair[0] * known + _own_shares(labels, shares, pair[1], left_out=True),
            labels,
        )
        before = scale * known + _own_shares(labels, shares, pseudocount, left_out=True)
        centre = total.lower()[-1, :-1] / max(total.count, 1)
        strength, step, correction, shift = _correction(rows - centre, before, labels)
        own = _own_shares(labels, shares, pseudocount, left_out=False)
        return {
            "weight": scale * weight + step * correction,
            "intercept": scale * offset + own[0] + step * (shift - centre @ correction),
            "scale": np.array(scale),
            "pseudocount": np.array(pseudocount),
            "strength": np.array(strength),
            "step": np.array(step),
        }

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model."""
        return {name: message[name] for name in ("weight", "intercept") if name in message}

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the linear model."""
        return _ridge.scores(model, inputs)


def class_shares(moments: Moments) -> Float:
    """The share of each class, with one sample more in each, so that none is zero."""
    counts: Float = moments.cross[-1] + 1.0
    shares: Float = counts / counts.sum()
    return shares


def discriminant(moments: Moments, shrink: float) -> tuple[Float, Float]:
    """Weights and offsets of the linear discriminant of moments with a column of ones, without any class shares.

    With class means m_c, overall mean g and S the scatter within classes, shrunk towards a multiple of the
    identity: score_c(x) = (x - g)' S^-1 (m_c - g) - (m_c - g)' S^-1 (m_c - g) / 2. A class without samples scores 0.
    """
    features, counts = moments.features - 1, moments.cross[-1]
    if moments.count == 0:
        return np.zeros((features, len(counts))), np.zeros(len(counts))
    lower = moments.lower()
    centre = np.array(lower[-1, :-1]) / moments.count
    means = moments.cross[:-1] / np.maximum(counts, 1.0)
    within = np.asfortranarray(lower[:-1, :-1] - np.tril((means * counts) @ means.T)) / moments.count
    spread = float(np.trace(within)) / features
    within[np.diag_indices(features)] += shrink * spread if spread > 0 else 1.0
    apart = np.where(counts > 0, means - centre[:, None], 0.0)
    factor = blas.cholesky(within)
    while factor is None:  # rounding left a direction negative: only where classes have no scatter in it
        within[np.diag_indices(features)] += max(spread, 1e-300)
        factor = blas.cholesky(within)
    weight = np.ascontiguousarray(blas.cholesky_solve(factor, apart))
    return weight, -0.5 * (apart * weight).sum(0) - centre @ weight


def _own_shares(labels: Array, shares: Float, pseudocount: float, *, left_out: bool) -> Float:
    """Log class shares of the client, where the federation's `shares` count for `pseudocount` samples.

    One row; or, with `left_out`, a row a sample: the shares among the others.
    """
    counts = np.bincount(labels, minlength=len(shares)) + pseudocount * shares
    rows = np.tile(counts, (len(labels) if left_out else 1, 1))
    if left_out:
        rows[np.arange(len(labels)), labels] -= 1.0
    logs: Float = np.log(rows / rows.sum(1, keepdims=True))
    return logs


def _correction(rows: Float, before: Float, labels: Array) -> tuple[float, float, Float, Float]:
    """Ridge of the residuals on the rows: its strength, how far to go, its weights, and its constant.

    A constant as long as the rows stands beside them, so that it is hardly penalised.
    """
    unit = float(np.square(rows).sum(1).mean()) or 1.0
    design = np.column_stack([rows, np.full(len(rows), np.sqrt(unit))])
    residuals = _ridge.one_hot(labels, before.shape[1]) - softmax(before, axis=1)
    path = RidgePath.of(design, residuals)
    moved = {}
    for strength in STRENGTHS:
        gain = path.ridge(strength * unit)
        moved[strength] = left_out(residuals, path.fitted(gain), path.leverage(gain))
    pairs = [(STRENGTHS[-1], 0.0), *((strength, step) for step in STEPS[1:] for strength in reversed(STRENGTHS))]
    strength, step = _choose(pairs, lambda pair: before + pair[1] * moved[pair[0]], labels)
    # V' (s / (s^2 + r)) U'R: the weights behind the fitted values
    weights = design.T @ (path.basis @ (path.projected / (path.squares + strength * unit)[:, None]))
    return strength, step, weights[:-1], np.sqrt(unit) * weights[-1]


def _choose(pairs: Sequence[Pair], scores: Callable[[Pair], Float], labels: Array) -> Pair:
    """The pair of least cross-entropy; of equals, the first."""
    rows = np.arange(len(labels))
    losses = np.array([-log_softmax(scores(pair), axis=1)[rows, labels].mean() for pair in pairs])
    return pairs[int(np.argmax(losses <= losses.min() + _ridge.TIE))]
