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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from fedsolve import blas, digits, parameters
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.task import Task
from fedsolve.families.ridge import choice, linear
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out

SCALES = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)  # of the discriminant; the first is the theory's
STEEPER = (4.0, 8.0, 16.0, 32.0, 2.0)  # of least squares, whose scores are shares, not logarithms
PSEUDOCOUNTS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # samples that the federation's class shares count for
# Strengths of the ridge, times the mean square length of the rows.
STRENGTHS: tuple[float, ...] = tuple(np.geomspace(300.0, 0.03, 7).tolist())
STEPS = (1.0, 3.0, 10.0, 30.0)  # how far along the correction, beside 0: none
PARTS = 8  # mixtures of the three fits are in steps of an eighth
_SENT = ("factor", "cross", "weight", "intercept")


@dataclass(frozen=True)
class FedPrior(Method):
    """The federation's discriminant as a prior, moved to the client's class shares and residuals by leave-one-out."""

    name: ClassVar[str] = "fedprior"
    paper: ClassVar[str] = "fedsolve's own"
    sends: ClassVar[str] = "F'F (one triangle) and F'Y of its training data, with a column of ones, once"
    laws: ClassVar[tuple[Law, ...]] = (OthersSplitInvariant(), OrderFree())

    shrink: float = parameters.number(
        0.02, "share of the mean variance that is added to each variance within classes", low=1e-6, high=1e6
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own, with an intercept as here."""
        return {"intercept": True}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """What is known about classes, and the global model, once there is something."""
        return {name: state[name] for name in _SENT if name in state}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The global model: the discriminant of all, with everybody's class shares."""
        total = Moments.from_arrays(replies)
        knowledge = Knowledge.of(total, self.shrink)
        weight, offset = knowledge.everybody().discriminant()
        shared = {"weight": weight, "intercept": offset + np.log(class_shares(knowledge.counts))}
        lost = {"unsure": np.flatnonzero(lost_features(total, self.shrink))}
        return {**total.arrays(), **knowledge.arrays(), **shared, **lost}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """How many samples the sums hold."""
        return {"count": state["count"].item()} if "count" in state else {}

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Features whose digits were lost in the scatter within classes."""
        return linear.warnings(state, task, intercept=True)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The statistics of the client's data, with a column of ones."""
        return {}, linear.moments(site, intercept=True).arrays()

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """A mixture of three fits, weighed by their left-out predictions on the client's own training data."""
        train = site.train
        knowledge = Knowledge.from_arrays(message)
        rows = linear.design(train, intercept=False)
        others = knowledge.without(rows, train.labels) if site.counted else knowledge.everybody()
        weight, offset = others.discriminant()
        straight = others.least_squares(weight)
        nothing = np.zeros_like(weight), np.zeros_like(offset)
        client = _Client.of(rows, train.labels, knowledge)
        starts = (((weight, offset), SCALES), (straight, STEEPER), (nothing, (1.0,)))
        fits = [client.fit(*start, scales) for start, scales in starts]
        mixtures = np.array([m for m in product(range(PARTS, -1, -1), repeat=3) if sum(m) == PARTS]) / PARTS
        scores = (sum(w * fit.left_out for w, fit in zip(mixture, fits, strict=True)) for mixture in mixtures)
        mixture = _weigh(scores, train.labels) @ mixtures

        def mixed(name: str) -> Float:
            return np.asarray(sum(w * getattr(fit, name) for w, fit in zip(mixture, fits, strict=True)))

        chosen = dict(zip(("discriminant", "least_squares", "own"), mixture.tolist(), strict=True))
        chosen |= {name: float(mixed(name)) for name in ("pseudocount", "step")}
        return Personal({"weight": mixed("weight"), "intercept": mixed("intercept")}, chosen)

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model, without what is sent beside it about classes."""
        return {name: message[name] for name in ("weight", "intercept") if name in message}

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the linear model: logarithms of class shares, up to a constant per sample."""
        return linear.scores(model, inputs)


def class_shares(counts: Float) -> Float:
    """The share of each class, with one sample more in each, so that none is zero."""
    shares: Float = (counts + 1.0) / (counts + 1.0).sum()
    return shares


def lost_features(moments: Moments, shrink: float) -> NDArray[np.bool_]:
    """Which features have a scatter within classes that is mostly rounding: eps times the squares it is left over from.

    Those that are constant, too: all are shrunk alike, by the mean scatter, so what rounding leaves of a feature with
    huge values would shrink the others.
    """
    squares, sums, counts = moments.diagonal()[:-1], moments.cross[:-1], moments.cross[-1]
    scatter = squares - (np.square(sums) / np.maximum(counts, 1.0)).sum(1)
    mean = float(scatter.mean())
    scatter += shrink * mean if mean > 0 else 1.0
    lost: NDArray[np.bool_] = digits.EPS * squares > digits.TOLERANCE * scatter
    return lost & (squares > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What sums with a column of ones say about classes, decomposed once for all clients."""

    factor: Float  # L, packed: L L' is the scatter within classes, sum over samples, plus a multiple of the identity
    cross: Float  # F'Y: below the sums of the samples of each class, how many they are

    @property
    def sums(self) -> Float:
        """Of the samples of each class, features x classes."""
        return self.cross[:-1]

    @property
    def counts(self) -> Float:
        """How many samples each class has."""
        counts: Float = self.cross[-1]
        return counts

    @classmethod
    def of(cls, moments: Moments, shrink: float) -> Knowledge:
        """The identity counts for `shrink` of the mean variance within classes."""
        sums, counts = moments.cross[:-1], moments.cross[-1]
        means = sums / np.maximum(counts, 1.0)
        within = np.asfortranarray(moments.lower()[:-1, :-1])
        within -= np.tril((means * counts) @ means.T)
        spread = float(np.trace(within)) / len(within)
        within[np.diag_indices_from(within)] += shrink * spread if spread > 0 else 1.0
        return cls(blas.pack(_factor(within, spread)), moments.cross)

    def arrays(self) -> dict[str, Array]:
        """The factor and F'Y as named arrays, as they are sent."""
        return {"factor": self.factor, "cross": self.cross}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Knowledge:
        """The knowledge in a message that has the arrays of `arrays`."""
        return cls(arrays["factor"], arrays["cross"])

    def everybody(self) -> Others:
        """All that is known, with no samples taken out."""
        return Others(self.factor, np.empty((0, len(self.sums))), self.sums, self.counts)

    def without(self, rows: Float, labels: Array) -> Others:
        """Without samples that are part of it.

        Of each class, the scatter of all is that of the others, that of `rows`, and n k / (n + k) times the square of
        the distance between the two means, of n other samples and k of `rows`.
        """
        indicators = linear.one_hot(labels, len(self.counts))
        own_counts, own_sums = indicators.sum(0), rows.T @ indicators
        sums, counts = self.sums - own_sums, self.counts - own_counts
        own_means = own_sums / np.maximum(own_counts, 1.0)
        both = (own_counts > 0) & (counts > 0)
        weights = np.sqrt((own_counts * counts)[both] / (own_counts + counts)[both])
        between = weights[:, None] * (sums[:, both] / counts[both] - own_means[:, both]).T
        return Others(self.factor, np.vstack([rows - own_means.T[labels], between]), sums, counts)


@dataclass(frozen=True, slots=True, eq=False)
class Others:
    """What is known from all but some samples: everybody's scatter less Z'Z, with the others' sums and counts."""

    factor: Float
    gone: Float  # Z
    sums: Float
    counts: Float

    @property
    def _apart(self) -> tuple[Float, Float]:
        """The mean of all samples, and the class means about it. A class without samples is not apart."""
        centre = self.sums.sum(1) / max(self.counts.sum(), 1.0)
        means = self.sums / np.maximum(self.counts, 1.0)
        return centre, np.where(self.counts > 0, means - centre[:, None], 0.0)

    def discriminant(self) -> tuple[Float, Float]:
        """Weights and offsets of the linear discriminant, without any class shares.

        With class means m_c, overall mean g and S the shrunk covariance within classes: score_c(x) = (x - g)' S^-1
        (m_c - g) - (m_c - g)' S^-1 (m_c - g) / 2. A class without samples scores 0.
        """
        centre, apart = self._apart
        if self.counts.sum() <= 0:
            return np.zeros_like(self.sums), np.zeros_like(self.counts)
        weight = self.counts.sum() * _solve_less(self.factor, self.gone, apart)
        return weight, -0.5 * (apart * weight).sum(0) - centre @ weight

    def least_squares(self, weight: Float) -> tuple[Float, Float]:
        """Centred least squares on one-hot targets, shrunk alike, from the discriminant's weights; less the shares.

        With A the class means about the overall one, D the counts, N their sum and N S the scatter within classes,
        X'Y = A D and X'X = N S + A D A', so by Woodbury the weights are S^-1 A (I + D A' S^-1 A / N)^-1 D / N.
        """
        centre, apart = self._apart
        root = np.sqrt(self.counts / max(self.counts.sum(), 1.0))
        inner = np.eye(len(root)) + root[:, None] * (apart.T @ weight) * root
        straight = weight @ (root[:, None] * np.linalg.solve(inner, np.diag(root)))
        return straight, -centre @ straight


def _solve_less(factor: Float, gone: Float, right: Float) -> Float:
    """(L L' - Z'Z)^-1 `right`, on the smaller side: samples, by Woodbury's identity, or features."""
    count, size = gone.shape
    if count < size:
        solved = blas.packed_lower_solve(factor, np.hstack([gone.T, right]))
        along, start = solved[:, :count], solved[:, count:]
        inner = blas.cholesky(np.eye(count) - along.T @ along)
        if inner is not None:
            start = start + along @ blas.cholesky_solve(inner, along.T @ start)
            return np.ascontiguousarray(blas.packed_lower_solve(factor, start, transposed=True))
    lower = blas.unpack(factor, size)
    rest = np.asfortranarray(np.tril(lower @ lower.T - gone.T @ gone))
    return np.ascontiguousarray(blas.cholesky_solve(_factor(rest, float(np.trace(rest)) / size), right))


def _factor(lower: Float, spread: float) -> Float:
    """The Cholesky factor. Where rounding left a direction negative, one without scatter, more and more is added."""
    more = max(spread, 1e-300)
    while (factor := blas.cholesky(lower)) is None:
        lower[np.diag_indices_from(lower)] += more
        more *= 10.0
    return factor


def _own_shares(labels: Array, shares: Float, pseudocount: float, *, left_out: bool) -> Float:
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
    left_out_shares: tuple[Float, ...]  # one row per sample: the shares among the others

    @classmethod
    def of(cls, rows: Float, labels: Array, knowledge: Knowledge) -> _Client:
        """Everything that does not depend on where a fit starts."""
        centre = knowledge.sums.sum(1) / max(knowledge.counts.sum(), 1.0)
        unit = float(np.square(rows - centre).sum(1).mean()) or 1.0
        design = np.column_stack([rows - centre, np.full(len(rows), np.sqrt(unit))])
        every = class_shares(knowledge.counts)
        shares, left_out_shares = (
            tuple(_own_shares(labels, every, p, left_out=out) for p in PSEUDOCOUNTS) for out in (False, True)
        )
        path = RidgePath.of(design, linear.one_hot(labels, len(every)))
        return cls(rows, labels, centre, unit, path, design, shares, left_out_shares)

    def fit(self, weight: Float, offset: Float, scales: Sequence[float]) -> _Fit:
        """The two steps from a start."""
        scores = self.rows @ weight + offset
        pairs = list(product(range(len(PSEUDOCOUNTS)), scales))
        by_pair = _weigh((scale * scores + self.left_out_shares[p] for p, scale in pairs), self.labels)
        scale = float(by_pair @ [scale for _, scale in pairs])
        by_share = by_pair.reshape(len(PSEUDOCOUNTS), -1).sum(1)
        before = scale * scores + sum(w * s for w, s in zip(by_share, self.left_out_shares, strict=True))
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
    weights: Float = softmax(logs)
    return weights
