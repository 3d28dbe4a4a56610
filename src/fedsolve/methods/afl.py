"""AFL: federated least squares in one round, equal to training on the pooled data whatever the split.

He et al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025.
The paper merges weights pair by pair with three inversions per client (10) and takes a ridge out again at the end (16);
that recursion is algebraically one sum and one solve, which is what runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.families.ridge import calibration, choice, linear
from fedsolve.families.statistics.plain import least_squares_summary
from fedsolve.laws import Law, OneModel, OrderFree, SplitInvariant
from fedsolve.method import Method, Personal, Purpose, Rows, Server, Site
from fedsolve.moments import Moments
from fedsolve.summary import Summary

_MODEL = ("weight", "intercept", "sharpness")


@dataclass(frozen=True)
class AFL(Method):
    """One global model: W = (sum F'F + ridge I)^-1 sum F'Y; of minimum norm where that is singular."""

    name: ClassVar[str] = "afl"
    paper: ClassVar[str] = "He et al., AFL, CVPR 2025"
    sends: ClassVar[str] = "F'F (one triangle) and F'Y of its training data, once"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (SplitInvariant(), OrderFree(), OneModel())

    ridge: float | str = parameters.number(
        "auto",
        "ridge of the pooled solution, added once on the server; auto: by cross-validation on the sums alone",
        low=0,
        auto=True,
    )
    intercept: bool = parameters.flag(True, "add an intercept that is not penalised")
    thin: bool = linear.thin_setting()

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own, with or without an intercept as here."""
        return {"intercept": self.intercept}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The global model, once there is one."""
        return {name: state[name] for name in _MODEL if name in state}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """One solve on the sum over those that answered."""
        total = Moments.from_arrays(replies)
        ridge = choice.server_ridge(self.ridge, total, intercept=self.intercept)
        return {"ridge": np.array(ridge), **linear.global_model(total, ridge, intercept=self.intercept)}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The ridge, and how far the solution can be trusted."""
        return linear.figures(state, "ridge")

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Features whose digits were lost in the sums."""
        return linear.warnings(state, task, intercept=self.intercept)

    def inference(self, state: Arrays, task: Task) -> Summary | None:
        """Least squares of all, with errors where there is no ridge."""
        return least_squares_summary(state, task, float(state.get("ridge", 0.0)), self.name)

    def rows(self, message: Arrays, task: Task) -> Rows:
        """The task's features, with a column of ones where there is an intercept."""
        return linear.bounded(task, intercept=self.intercept)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The statistics of the client's data, without any ridge: it is added once, on the server."""
        return {}, linear.sent(site, intercept=self.intercept, thin=self.thin)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(message)

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model, which is all that a message carries."""
        return message

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the linear model."""
        return linear.scores(model, inputs)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times the model's sharpness, which follows from the sums."""
        return calibration.probabilities(model, scores)
