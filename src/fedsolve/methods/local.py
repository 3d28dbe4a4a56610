"""Training alone: ridge, or SGD on a network, on the client's own data. What every federation has to beat."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.federation import Samples, Task
from fedsolve.errors import ParameterError
from fedsolve.families import ridge as _ridge
from fedsolve.families.gradient import settings as _sgd
from fedsolve.method import Method
from fedsolve.solver import solve

RIDGE = "ridge"
_CLOSED_FORM = ("ridge", "intercept")  # what a ridge takes; a network takes the rest


@dataclass(frozen=True)
class Local(Method):
    """Each client alone: ridge, W_k = (F_k'F_k + ridge I)^-1 F_k'Y_k, or a network by SGD. Nothing is sent."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "ridge regression, or a network, on the client's own data"
    sends: ClassVar[str] = "nothing"
    laws: ClassVar[frozenset[str]] = frozenset({"sends-nothing"})

    ridge: float | str = parameters.number(
        "auto", "strength of the ridge; auto: each client's own, by closed-form leave-one-out", low=0, auto=True
    )
    intercept: bool = parameters.flag(False, "add an intercept that is not penalised")
    model: str = parameters.text(RIDGE, f"ridge: closed form; or a network: {_sgd.MODELS}")
    rounds: int = parameters.number(
        0, "rounds of training a network; 0: 50 for a network, 1 for ridge", low=0, integer=True
    )
    epochs: int = parameters.number(2, "network: passes over the client's data in a round", low=1, integer=True)
    batch: int = parameters.number(64, "network: samples in a mini-batch", low=1, integer=True)
    lr: float = parameters.number(0.01, "network: learning rate", low=0)
    sgd_momentum: float = parameters.number(0.9, "network: momentum of SGD, anew in each round", low=0, high=1)

    def __post_init__(self) -> None:
        parameters.check(self)
        closed = self.model == RIDGE
        if not closed:
            _sgd.check_model(self.model, "Local")
        for item in fields(self):
            idle = (item.name in _CLOSED_FORM) != closed and item.name not in ("model", "rounds")
            if idle and getattr(self, item.name) != item.default:
                raise ParameterError(
                    f"parameter {item.name!r} of Local has no effect with model={self.model}; leave it out"
                )
        if closed and self.rounds > 1:
            raise ParameterError(f"parameter 'rounds' of Local: ridge takes exactly 1 round; got {self.rounds}")
        object.__setattr__(self, "rounds", self.rounds or (1 if closed else 50))

    @property
    def processes(self) -> bool:
        """As the other methods that train networks."""
        return self.model != RIDGE

    def _training(self) -> _sgd.Training:
        return _sgd.Training(self.model, self.rounds, self.epochs, self.batch, self.lr, self.sgd_momentum)

    def message(self, state: Arrays, client: str) -> Arrays:
        """Nothing is sent."""
        return {}

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """Nothing is aggregated."""
        return {}

    def init_server(self, task: Task, rng: np.random.Generator) -> Arrays:
        """Nothing; but torch is loaded here, before clients get processes of their own."""
        if self.model != RIDGE:
            from fedsolve.families.gradient import networks as _torch

            _torch.initial(self.model, task, rng)
        return {}

    def init_client(self, task: Task, train: Samples, rng: np.random.Generator) -> Arrays:
        """The first network of the client's own."""
        if self.model == RIDGE:
            return {}
        from fedsolve.families.gradient import networks as _torch

        return _torch.initial(self.model, task, rng)

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """Nothing is replied; a network trains on."""
        if self.model == RIDGE:
            return {}, {}
        from fedsolve.families.gradient import training as _torch

        return _torch.train(self._training(), private, task, train, rng)[0], {}

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The client's own ridge solution, or its network."""
        if self.model != RIDGE:
            return private
        own = _ridge.moments(task, train, intercept=self.intercept)
        ridge = self.ridge
        if isinstance(ridge, str):
            ridge = _ridge.choose_ridge(task, train, intercept=self.intercept)
        solution = solve(own, ridge, intercept=self.intercept, solver="auto")
        return {**_ridge.linear_model(solution), "ridge": np.array(ridge)}

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the linear model, or of the network."""
        if self.model != RIDGE:
            from fedsolve.families.gradient import networks as _torch

            return _torch.scores(self.model, model, inputs)
        return _ridge.scores(model, inputs)
