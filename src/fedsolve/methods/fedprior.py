"""fedprior, our own: the federation is the prior, and each client moves away from it as far as its data justify.

All from the sums of F'F and F'Y over a feature space with a column of ones (so that F'Y also holds the class means and
counts, and F'F the means). A client fits three times, from three starts:

- *discriminant* and *least squares*: what everybody else knows, from the sums without the client's own part (they
  subtract exactly), so that the client judges it on data it has never seen;
- *own*: nothing of the federation but its class shares.

Each fit has two steps. First, how frequent classes are here, against the federation, as an offset of the scores, with
a scale for the scores. Then what is left over: ridge on the residuals of the resulting probabilities, of some strength
and length. At last the three are mixed. Nothing is picked: candidates are averaged, each weighing by the cross-entropy
of its left-out predictions on the client's own training data (`_weigh`). Averages of linear models are linear models,
so the result is one. A client whose data cannot tell candidates apart keeps the first: the federation's discriminant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import ClassVar

import numpy as np
from scipy.special import log_softmax, softmax

from fedsolve import blas, parameters
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.federation import Samples, Task
from fedsolve.method import Method
from fedsolve.methods import _ridge
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out

SCALES = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)  # of the discriminant; the first is the theory's
STEEPER = (4.0, 8.0, 16.0, 32.0, 2.0)  # of least squares, whose scores are shares, not logarithms
PSEUDOCOUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # samples that the federation's class shares count for
# Strengths of the ridge, times the mean square length of the rows.
STRENGTHS: tuple[float, ...] = tuple(np.geomspace(300.0, 0.03, 7).tolist())
STEPS = (1.0, 3.0, 10.0, 30.0)  # how far along the correction, beside 0: none
PARTS = 8  # mixtures of the three fits are in steps of an eighth
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
        """Three fits, mixed."""
        total = Moments.from_arrays(message, task.space)
        others = total - _ridge.moments(task, train, intercept=True) if bool(private["counted"]) else total
        weight, offset = discriminant(others, self.shrink)
        straight = least_squares(others, weight)
        nothing = np.zeros_like(weight), np.zeros_like(offset)
        client = _Client.of(train, total)
        starts = (((weight, offset), SCALES), (straight, STEEPER), (nothing, (1.0,)))
        fits = [client.fit(*start, scales) for start, scales in starts]
        mixtures = np.array([m for m in product(range(PARTS, -1, -1), repeat=3) if sum(m) == PARTS]) / PARTS
        scores = (sum(w * fit.left_out for w, fit in zip(mixture, fits, strict=True)) for mixture in mixtures)
        mixture = _weigh(scores, train.labels) @ mixtures

        def mixed(name: str) -> Float:
            return np.asarray(sum(w * getattr(fit, name) for w, fit in zip(mixture, fits, strict=True)))

        return {
            "weight": mixed("weight"),
            "intercept": mixed("intercept"),
            **{name: np.array(w) for name, w in zip(("discriminant", "least_squares", "own"), mixture, strict=True)},
            "pseudocount": mixed("pseudocount"),
            "step": mixed("step"),
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


def least_squares(moments: Moments, weight: Float) -> tuple[Float, Float]:
    """Centred least squares on one-hot targets, with the discriminant's shrinkage, from its weights; less the shares.

    With A the class means about the overall one, D the counts and N S the scatter within classes, X'Y = A D and
    X'X = N S + A D A', so by Woodbury the weights are S^-1 A (I + D A' S^-1 A / N)^-1 D / N. `weight` is S^-1 A.
    """
    counts, count = np.maximum(moments.cross[-1], 0.0), max(moments.count, 1)
    centre = np.array(moments.lower()[-1, :-1]) / count
    apart = np.where(counts > 0, moments.cross[:-1] / np.maximum(counts, 1.0) - centre[:, None], 0.0)
    root = np.sqrt(counts / count)
    inner = np.eye(len(root)) + root[:, None] * (apart.T @ weight) * root
    straight = weight @ (root[:, None] * np.linalg.solve(inner, np.diag(root)))
    return straight, -centre @ straight


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


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """A linear model, what it predicts for each training sample without that sample, and the averages behind it."""

    weight: Float
    intercept: Float
    left_out: Float
    pseudocount: float
    step: float


@dataclass(frozen=True, slots=True, eq=False)
class _Client:
    """What all fits of a client share: its rows, decomposed once, and its class shares."""

    rows: Float
    labels: Array
    centre: Float  # of everybody's features
    unit: float  # mean square length of the rows about the centre
    path: RidgePath
    design: Float  # the rows about the centre, and a constant as long as they are: it is hardly penalised
    shares: tuple[Float, ...]  # log class shares for each pseudocount, one row
    left_out_shares: tuple[Float, ...]  # a row a sample: the shares among the others

    @classmethod
    def of(cls, train: Samples, total: Moments) -> _Client:
        """Decompose once."""
        rows = _ridge.design(train, intercept=False)
        centre = np.array(total.lower()[-1, :-1]) / max(total.count, 1)
        unit = float(np.square(rows - centre).sum(1).mean()) or 1.0
        design = np.column_stack([rows - centre, np.full(len(rows), np.sqrt(unit))])
        every = class_shares(total)
        shares, left_out_shares = (
            tuple(_own_shares(train.labels, every, p, left_out=out) for p in PSEUDOCOUNTS) for out in (False, True)
        )
        path = RidgePath.of(design, _ridge.one_hot(train.labels, len(every)))
        return cls(rows, train.labels, centre, unit, path, design, shares, left_out_shares)

    def fit(self, weight: Float, offset: Float, scales: Sequence[float]) -> _Fit:
        """The two steps from a start."""
        known = self.rows @ weight + offset
        pairs = list(product(range(len(PSEUDOCOUNTS)), scales))
        by_pair = _weigh((scale * known + self.left_out_shares[p] for p, scale in pairs), self.labels)
        scale = float(by_pair @ [scale for _, scale in pairs])
        by_share = by_pair.reshape(len(PSEUDOCOUNTS), -1).sum(1)
        before = scale * known + sum(w * s for w, s in zip(by_share, self.left_out_shares, strict=True))
        offset = scale * offset + sum(w * s[0] for w, s in zip(by_share, self.shares, strict=True))
        correction, moved, step = self._correction(before)
        weight = scale * weight + correction[:-1]
        offset = offset + np.sqrt(self.unit) * correction[-1] - self.centre @ correction[:-1]
        return _Fit(weight, offset, before + moved, float(by_share @ PSEUDOCOUNTS), step)

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
        weights = _weigh(chain([before], scores), self.labels)[1:].reshape(len(STEPS), -1)
        steps = STEPS @ weights  # how far along each strength
        # V' (s / (s^2 + r)) U'R: the weights behind the fitted values
        along = sum(step / (self.path.squares + r * self.unit) for step, r in zip(steps, STRENGTHS, strict=True))
        correction = self.design.T @ (self.path.basis @ (np.asarray(along)[:, None] * projected))
        moved = sum(step * move for step, move in zip(steps, moves, strict=True))
        return correction, np.asarray(moved), float(steps.sum())


def _weigh(scores: Iterable[Float], labels: Array) -> Float:
    """Weights of candidates from their left-out scores on the client's samples; they sum to one.

    With g the total cross-entropy by which a candidate beats the first, exp(g) - 1, against 1 for the first: the more
    likely of two weighs more, by as much as it is more likely; what does not beat the first has no weight. Below
    `_ridge.TOO_FEW` samples, the first has all.
    """
    rows = np.arange(len(labels))
    losses = np.array([-log_softmax(each, axis=1)[rows, labels].sum() for each in scores])
    if len(labels) < _ridge.TOO_FEW:
        losses[:] = 0.0
    gain = np.maximum(losses[0] - losses, 0.0)
    with np.errstate(divide="ignore"):
        logs = gain + np.log(-np.expm1(-gain))
    logs[0] = 0.0
    weights: Float = softmax(logs)
    return weights
