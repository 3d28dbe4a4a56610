"""AFL: federated least squares in one round, equal to training on the pooled data whatever the split.

He et al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025.
The paper merges weights pair by pair with three inversions a client (10) and takes a ridge out again at the end (16);
that recursion is algebraically one sum and one solve, which is what runs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.federation import Samples, Task
from fedsolve.families import ridge as _ridge
from fedsolve.method import Method
from fedsolve.moments import Moments
from fedsolve.solver import solve


@dataclass(frozen=True)
class AFL(Method):
    """One global model: W = (sum F'F + ridge I)^-1 sum F'Y; of minimum norm where that is singular."""

    name: ClassVar[str] = "afl"
    paper: ClassVar[str] = "He et al., AFL, CVPR 2025"
    sends: ClassVar[str] = "F'F (one triangle) and F'Y of its training data, once"
    laws: ClassVar[frozenset[str]] = frozenset({"split-invariant", "order-free", "one-model"})

    ridge: float | str = parameters.number(
        0.0,
        "ridge of the pooled solution, added once on the server; auto: by cross-validation on the sums alone",
        low=0,
        auto=True,
    )
    intercept: bool = parameters.flag(False, "add an intercept that is not penalised")

    def __post_init__(self) -> None:
        parameters.check(self)

    def message(self, state: Arrays, client: str) -> Arrays:
        """The global model, once there is one."""
        return {name: state[name] for name in ("weight", "intercept") if name in state}

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """One solve on the sum over those that answered."""
        total = Moments.from_arrays(replies)
        ridge = _ridge.server_ridge(self.ridge, total, intercept=self.intercept)
        solution = solve(total, ridge, intercept=self.intercept, solver="auto")
        known = {"ridge": np.array(ridge)}
        return {**known, **total.arrays(), **_ridge.linear_model(solution), **_ridge.trust(solution)}

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """The statistics of the client's data, without any ridge: it is added once, on the server."""
        return {}, _ridge.moments(task, train, intercept=self.intercept).arrays()

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The global model."""
        return message

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model."""
        return message

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the linear model."""
        return _ridge.scores(model, inputs)
