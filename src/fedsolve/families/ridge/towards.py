"""A client's least squares of numbers, drawn towards what everybody else knows.

With r = y - b - z W what the others' model leaves over of the client's n rows z, at mean 0 and deviation 1 of the
federation, the client's shift a and slopes D are those of least

    |r - a - z D|^2  +  a^2 / shift  +  |D|^2 / slopes,

so a = shift sum(r - z D) / (1 + n shift). The two numbers are how much clients differ, as a multiple of the variance
of the noise; at 0 the federation's model stays as it is. With M = 1 - shift 11' / (1 + n shift), D is ridge of M^1/2 r
on M^1/2 z: one decomposition for each shift gives the fits of all slopes, and what they predict for a sample that is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsolve.arrays import Array, Float, softmax
from fedsolve.families.ridge import choice, standard
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out, solution_of

SHIFTS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SLOPES = SHIFTS  # over the number of features, so that predictions differ as much however many there are


class Line(NamedTuple):
    """A linear model of numbers."""

    weight: Float  # features x targets
    intercept: Float  # one number per target

    def __call__(self, rows: Float) -> Float:
        """What it predicts."""
        return np.asarray(rows @ self.weight + self.intercept)


@dataclass(frozen=True, slots=True, eq=False)
class Standard:
    """Everybody's sums, of features at mean 0 and deviation 1, and how to go there and back."""

    total: Moments
    origin: Float
    scale: Float  # one over the deviations; 0 for a feature that is constant

    @classmethod
    def of(cls, total: Moments) -> Standard:
        """From sums of features as they are, with a column of ones."""
        origin, scale = standard.origin_and_scale(total)
        return cls(standard.standardised(total, origin, scale), origin, scale)

    def rows(self, features: Float) -> Float:
        """Features at the federation's mean and deviation."""
        return np.asarray((features - self.origin) * self.scale)

    def without(self, rows: Float, targets: Float) -> Moments:
        """The sums of everybody else, where these rows are part of them."""
        return self.total - Moments.of(rows, targets, intercept=True, squares=True)

    def plain(self, line: Line) -> Line:
        """The same model for features as they are."""
        weight = self.scale[:, None] * line.weight
        return Line(weight, line.intercept - self.origin @ weight)


def least_squares(total: Moments) -> tuple[Line, float]:
    """The least squares of sums with a column of ones, and its ridge, by cross-validation on the sums alone."""
    ridge = choice.server_ridge("auto", total, intercept=True)
    solution = solution_of(total, ridge, intercept=True, solver="auto")
    return Line(solution.weights, np.asarray(solution.intercept)), ridge


def global_state(total: Moments) -> dict[str, Array]:
    """The least squares of all, for features as they are, its ridge, and the features that only look constant."""
    space = Standard.of(total)
    line, ridge = least_squares(space.total)
    unsure = standard.hidden(total, space.scale)
    return {**space.plain(line)._asdict(), "ridge": np.array(ridge), "unsure": unsure}


def own_line(total: Moments, features: Float, targets: Float, *, counted: bool) -> tuple[Line, dict[str, float]]:
    """The model of a client with these samples, and how far it moved, from everybody's sums with a column of ones.

    Where the client is `counted` in the sums, it is drawn towards what the others know. If nobody else is in them, they
    are the client's own, and their least squares is its model.
    """
    space = Standard.of(total)
    rows = space.rows(features)
    if counted and space.total.count <= len(rows):  # fewer, if the sums are noisy
        return space.plain(least_squares(space.total)[0]), {"shift": 0.0, "slopes": 0.0}
    others = space.without(rows, targets) if counted else space.total
    line, moved = drawn(rows, targets, least_squares(others)[0])
    return space.plain(line), moved


def drawn(rows: Float, targets: Float, prior: Line) -> tuple[Line, dict[str, float]]:
    """The client's model, drawn towards `prior`, and its shift and slopes, of several targets their means.

    Nothing is picked: all pairs of `SHIFTS` and `SLOPES` are averaged, each target by itself, and weigh by the
    likelihood of their left-out errors e, |e|^-n. Before any row is seen, no shift weighs as much as all others
    together, and so do no slopes: few rows cannot tell pairs apart, and stay near the prior. With fewer rows than
    `choice.TOO_FEW`, the first pair has all: the prior as it is.

    >>> everybody, rows = Line(np.array([[2.0]]), np.array([5.0])), np.linspace(-1, 1, 40)[:, None]
    >>> line, moved = drawn(rows, everybody(rows) + 3.0 + np.sin(40 * rows), everybody)
    >>> line.weight.round(1).tolist(), line.intercept.round(1).tolist()
    ([[2.0]], [8.0])
    """
    rest = targets - prior(rows)
    slopes = np.array(SLOPES) / max(1, np.count_nonzero(rows.any(0)))
    paths = [_Path.of(rows, rest, shift) for shift in SHIFTS]
    # Leverages grow with shift and slopes: what is known without a sample at the last pair is known at all.
    known = np.isfinite(paths[-1].left_out(slopes[-1])).all(1)
    losses = np.array([np.square(path.left_out(each) - rest)[known].sum(0) for path in paths for each in slopes])
    weights = _weights(losses, int(known.sum())).reshape(len(SHIFTS), len(slopes), -1)
    moves = [path.solved(rows, slopes, each) for path, each in zip(paths, weights, strict=True)]
    change, shift = (np.sum(parts, axis=0) for parts in zip(*moves, strict=True))
    by_target = weights.mean(2)
    moved = {"shift": float(by_target.sum(1) @ SHIFTS), "slopes": float(by_target.sum(0) @ slopes)}
    return Line(prior.weight + change, prior.intercept + shift), moved


def _weights(losses: Float, count: int) -> Float:
    """Weights of all pairs from their squared errors (pairs x targets): belief times loss^(-count / 2)."""
    if count < choice.TOO_FEW:
        losses = np.where(np.arange(len(losses))[:, None] > 0, np.inf, 1.0)
    beliefs = [np.array([len(each) - 1.0] + [1.0] * (len(each) - 1)) for each in (SHIFTS, SLOPES)]
    logs = -0.5 * max(count, 1) * np.log(np.maximum(losses, np.finfo(np.float64).tiny))
    return softmax(logs + np.log(np.multiply.outer(*beliefs)).reshape(-1, 1), axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """The fits of all slopes at one shift."""

    rest: Float  # r
    share: float  # shift / (1 + n shift): of the sum of residuals that is a
    root: float  # M^1/2 = 1 - root 11'
    path: RidgePath  # of M^1/2 z and M^1/2 r
    basis: Float  # M^1/2 U

    @classmethod
    def of(cls, rows: Float, rest: Float, shift: float) -> _Path:
        count = len(rows)
        root = (1.0 - np.sqrt(1.0 / (1.0 + count * shift))) / max(1, count)
        path = RidgePath.of(rows - root * rows.sum(0), rest - root * rest.sum(0))
        return cls(rest, shift / (1.0 + count * shift), root, path, path.basis - root * path.basis.sum(0))

    def left_out(self, slopes: float) -> Float:
        """What is predicted of r for each row without that row; with B = M^1/2 U, r is fitted by (1 - M + B g B') r."""
        gain = self.path.squares * slopes / (1.0 + self.path.squares * slopes)
        fitted = self.share * self.rest.sum(0) + self.basis @ (gain[:, None] * self.path.projected)
        return left_out(self.rest, fitted, self.share + np.square(self.basis) @ gain)

    def solved(self, rows: Float, slopes: Float, weights: Float) -> tuple[Float, Float]:
        """D and a, each the sum over slopes with these weights (slopes x targets)."""
        # z'M^1/2 U 1 / (s^2 + 1 / slopes) U'M^1/2 r
        along = (slopes / (1.0 + np.multiply.outer(self.path.squares, slopes))) @ weights
        change = rows.T @ (self.basis @ (along * self.path.projected))
        return change, self.share * (weights.sum(0) * self.rest.sum(0) - rows.sum(0) @ change)
