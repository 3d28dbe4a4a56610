"""Distributions of a target given its linear predictors, each with its canonical link.

With the canonical link the score of a sample is x (y - mean) and its curvature x x' times the variance, so that
Newton's method, Fisher scoring and iteratively reweighted least squares are one. Targets and predictors have a row per
sample: one column, or for K classes K - 1 columns, of the classes but the first, which is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Float
from fedsolve.data.task import Task
from fedsolve.errors import DataError, ParameterError

NAMES = ("gaussian", "binomial", "poisson")
LARGEST = 700.0  # predictors whose exponential is a finite number


class Distribution(Protocol):
    """What a Newton step and a summary need to know."""

    name: ClassVar[str]
    words: ClassVar[str]  # in the head of a summary
    fixed: ClassVar[bool]  # whether the variance follows from the mean; else it is estimated

    def targets(self, labels: NDArray[Any]) -> Float:
        """Targets from labels, one row per sample; refused where the distribution cannot have them."""
        ...

    def start(self, targets: Float) -> Float:
        """Predictors to start from, each sample by itself."""
        ...

    def link(self, mean: Float) -> Float:
        """The predictors of a mean."""
        ...

    def mean(self, predictors: Float) -> Float:
        """The mean at predictors."""
        ...

    def variance(self, mean: Float) -> Float:
        """The covariance of the targets of a sample, samples x columns x columns, up to the dispersion."""
        ...

    def deviance(self, targets: Float, predictors: Float) -> Float:
        """Twice what the log-likelihood of each sample falls short of its best."""
        ...

    def best(self, targets: Float) -> Float:
        """The log-likelihood of each sample at its best, which the deviance is counted from."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """Numbers with errors of one variance."""

    name: ClassVar[str] = "gaussian"
    words: ClassVar[str] = "least squares"
    fixed: ClassVar[bool] = False

    def targets(self, labels: NDArray[Any]) -> Float:
        """The numbers, one column."""
        return _one_number(labels, self.name)

    def start(self, targets: Float) -> Float:
        """The targets themselves."""
        return targets

    def link(self, mean: Float) -> Float:
        """The mean itself."""
        return mean

    def mean(self, predictors: Float) -> Float:
        """The predictors themselves."""
        return predictors

    def variance(self, mean: Float) -> Float:
        """One."""
        return np.ones((len(mean), 1, 1))

    def deviance(self, targets: Float, predictors: Float) -> Float:
        """The square of the residual."""
        squares: Float = np.square(targets - predictors)[:, 0]
        return squares

    def best(self, targets: Float) -> Float:
        """Zero: what it is depends on the variance, which the sum of all deviances decides."""
        return np.zeros(len(targets))


@dataclass(frozen=True)
class Poisson:
    """Counts; the logarithm of their mean is linear."""

    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson, logarithmic link"
    fixed: ClassVar[bool] = True

    def targets(self, labels: NDArray[Any]) -> Float:
        """The counts, one column; refused below zero."""
        counts = _one_number(labels, self.name)
        if not (counts >= 0).all():
            raise DataError(f"family=poisson takes targets of at least 0; got {counts.min():g}")
        return counts

    def start(self, targets: Float) -> Float:
        """The logarithm of a little more than the count."""
        return np.log(targets + 0.1)

    def link(self, mean: Float) -> Float:
        """The logarithm."""
        return np.log(np.maximum(mean, np.exp(-LARGEST)))

    def mean(self, predictors: Float) -> Float:
        """The exponential."""
        return np.exp(np.minimum(predictors, LARGEST))

    def variance(self, mean: Float) -> Float:
        """The mean."""
        return mean[:, :, None]

    def deviance(self, targets: Float, predictors: Float) -> Float:
        """2 (y log(y / mean) - (y - mean))."""
        log = np.where(targets > 0, np.log(np.where(targets > 0, targets, 1.0)), predictors)
        each: Float = 2.0 * (targets * (log - predictors) - (targets - self.mean(predictors)))[:, 0]
        return each

    def best(self, targets: Float) -> Float:
        """That of the mean y: y log y - y - log y!."""
        from scipy.special import gammaln, xlogy

        each: Float = (xlogy(targets, targets) - targets - gammaln(targets + 1.0))[:, 0]
        return each


@dataclass(frozen=True)
class Categorical:
    """One of `count` classes, or with two of them a share: logits against the first class are linear."""

    count: int
    shares: bool = False  # numbers from 0 to 1 in place of classes
    name: ClassVar[str] = "binomial"
    words: ClassVar[str] = "logistic"
    fixed: ClassVar[bool] = True

    def targets(self, labels: NDArray[Any]) -> Float:
        """One column for each class but the first: one where it is the sample's."""
        if not self.shares:
            rows: Float = (labels[:, None] == np.arange(1, self.count)).astype(np.float64)
            return rows
        numbers = _one_number(labels, self.name)
        if not ((numbers >= 0) & (numbers <= 1)).all():
            raise DataError(
                f"family=binomial takes shares from 0 to 1; got {numbers.min():g} to {numbers.max():g}: "
                "choose family=gaussian or poisson"
            )
        return numbers

    def start(self, targets: Float) -> Float:
        """The logits of shares half way to even ones."""
        return self.link(0.5 * targets + 0.5 / self.count)

    def link(self, mean: Float) -> Float:
        """Logarithms of the ratios to the first class."""
        tiny = np.finfo(np.float64).tiny
        logits: Float = np.log(np.maximum(mean, tiny)) - np.log(np.maximum(1.0 - mean.sum(1, keepdims=True), tiny))
        return logits

    def mean(self, predictors: Float) -> Float:
        """The probability of each class but the first."""
        mean: Float = np.exp(self._logs(predictors)[:, 1:])
        return mean

    def variance(self, mean: Float) -> Float:
        """diag(p) - p p'."""
        covariance = -mean[:, :, None] * mean[:, None, :]
        place = np.arange(mean.shape[1])
        # 1 - p without cancellation is not needed: where it rounds to zero, so does the curvature.
        covariance[:, place, place] += mean
        return covariance

    def deviance(self, targets: Float, predictors: Float) -> Float:
        """-2 log p of the class; of a share, from its best."""
        shares = np.column_stack([1.0 - targets.sum(1), targets])
        each: Float = -2.0 * (shares * self._logs(predictors)).sum(1)
        return each + 2.0 * _entropy(shares) if self.shares else each

    def best(self, targets: Float) -> Float:
        """Zero: a class that is certain. Shares have it without the binomial coefficient, which says nothing."""
        return np.zeros(len(targets))

    def margins(self, targets: Float, predictors: Float) -> Float:
        """By how much the predictor of each sample's class is above that of any other."""
        every = np.column_stack([np.zeros(len(predictors)), predictors])
        own = np.column_stack([1.0 - targets.sum(1), targets]) > 0.5
        rest = np.where(own, -np.inf, every).max(1)
        lead: Float = np.where(own, every, -np.inf).max(1) - rest
        return lead

    def _logs(self, predictors: Float) -> Float:
        """Logarithms of the probabilities of all classes, which no predictor makes infinite."""
        every = np.column_stack([np.zeros(len(predictors)), predictors])
        every -= every.max(1, keepdims=True)
        logs: Float = every - np.log(np.exp(every).sum(1, keepdims=True))
        return logs


def distribution(family: str, task: Task) -> Distribution:
    """The distribution that a family is for a task; "auto" is binomial for classes and gaussian for numbers.

    >>> import fedsolve as fs
    >>> distribution("auto", fs.Task(fs.Classes(3), (4,)))
    Categorical(count=3, shares=False)
    """
    if task.target.kind == "classes":
        if family not in ("auto", "binomial"):
            raise ParameterError(
                f"family={family} predicts numbers, and the target of this task is classes; choose family=binomial, or "
                "read the target as numbers"
            )
        if task.classes < 2:
            raise DataError("there is nothing to tell apart: the target has one class")
        return Categorical(task.classes)
    known: dict[str, Distribution] = {
        "auto": Gaussian(),
        "gaussian": Gaussian(),
        "poisson": Poisson(),
        "binomial": Categorical(2, shares=True),
    }
    return known[family]


def _one_number(labels: NDArray[Any], name: str) -> Float:
    """Targets of one column."""
    numbers = np.asarray(labels, dtype=np.float64).reshape(len(labels), -1)
    if numbers.shape[1] != 1:
        raise DataError(f"family={name} predicts one number; got {numbers.shape[1]}: choose one of the targets")
    return numbers


def _entropy(shares: Float) -> Float:
    logs = np.log(np.where(shares > 0, shares, 1.0))
    each: Float = (shares * logs).sum(1)
    return each
