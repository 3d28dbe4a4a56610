"""Training alone: ridge on the client's own data. What every federation has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.federation import Samples, Task
from fedsolve.method import Method
from fedsolve.methods import _ridge
from fedsolve.solver import solve


@dataclass(frozen=True)
class Local(Method):
    """Each client alone: W_k = (F_k'F_k + ridge I)^-1 F_k'Y_k. Nothing is sent."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "ridge regression on the client's own data"
    sends: ClassVar[str] = "nothing"
    laws: ClassVar[frozenset[str]] = frozenset({"sends-nothing"})

    ridge: float | str = parameters.number(
        "auto", "strength of the ridge; auto: each client's own, by closed-form leave-one-out", low=0, auto=True
    )
    intercept: bool = parameters.flag(False, "add an intercept that is not penalised")

    def __post_init__(self) -> None:
        parameters.check(self)

    def message(self, state: Arrays, client: str) -> Arrays:
        """Nothing is sent."""
        return {}

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """Nothing is aggregated."""
        return {}

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """Nothing is replied."""
        return {}, {}

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The client's own ridge solution."""
        own = _ridge.moments(task, train, intercept=self.intercept)
        ridge = self.ridge
        if isinstance(ridge, str):
            ridge = _ridge.choose_ridge(task, train, intercept=self.intercept)
        solution = solve(own, ridge, intercept=self.intercept, solver="auto")
        return {**_ridge.linear_model(solution), "ridge": np.array(ridge)}

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the linear model."""
        return _ridge.scores(model, inputs)
