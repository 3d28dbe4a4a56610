"""FedHiP: each client's model lies between the federation's and its own, in closed form.

"FedHiP: Heterogeneity-Invariant Personalized Federated Learning Through Closed-Form Solutions". The minimiser of (1),

    |Y - F P|^2 over everybody's data  +  alpha |Y_k - F_k P|^2 over the client's own  +  beta |P|^2,

is P_k = (A + alpha A_k + beta I)^-1 (B + alpha B_k) with A, B the sums over all clients: the client's own samples weigh
1 + alpha. The ridge beta is added once, by whoever solves; the paper adds it on every client and takes it
off again (12), (14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.federation import Samples, Task
from fedsolve.families import ridge as _ridge
from fedsolve.method import Method
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out, solve, whiten

ALPHAS: tuple[float, ...] = (0.0, *np.geomspace(0.1, 10_000.0, 21).tolist())  # what alpha=auto chooses from
_MODEL = ("weight", "intercept")
_SENT = ("triangle", "cross", "count", "beta", *_MODEL)


@dataclass(frozen=True)
class FedHiP(Method):
    """A global model and a personal one a client: own samples weigh 1 + alpha, everybody else's weigh 1."""

    name: ClassVar[str] = "fedhip"
    paper: ClassVar[str] = "Tang et al., FedHiP, 2025"
    sends: ClassVar[str] = "F'F (one triangle) and F'Y of its training data, once"
    laws: ClassVar[frozenset[str]] = frozenset({"others-split-invariant", "order-free"})

    alpha: float | str = parameters.number(
        "auto",
        "weight of the client's own data; auto: each client's own, by closed-form leave-one-out",
        low=0,
        auto=True,
    )
    beta: float | str = parameters.number(
        1.0, "ridge, added once; auto: the server's, by cross-validation on the sums alone", low=0, auto=True
    )
    intercept: bool = parameters.flag(False, "add an intercept that is not penalised")

    def __post_init__(self) -> None:
        parameters.check(self)

    def message(self, state: Arrays, client: str) -> Arrays:
        """The sums and the global model, once there are some."""
        return {name: state[name] for name in state if name in _SENT}

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """FedHiP (12): the global model from the sum over those that answered."""
        total = Moments.from_arrays(replies)
        beta = _ridge.server_ridge(self.beta, total, intercept=self.intercept)
        solution = solve(total, beta, intercept=self.intercept, solver="auto")
        known = {"beta": np.array(beta)}
        return {**known, **total.arrays(), **_ridge.linear_model(solution), **_ridge.trust(solution)}

    def init_client(self, task: Task, train: Samples, rng: np.random.Generator) -> Arrays:
        """Not part of any sum yet."""
        return {"counted": np.array(False)}

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """The statistics of the client's data."""
        own = _ridge.moments(task, train, intercept=self.intercept)
        return {"counted": np.array(True)}, own.arrays()

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """FedHiP (14): one solve with the client's own samples weighing 1 + alpha."""
        total, beta = Moments.from_arrays(message, task.space), float(message["beta"])
        alpha = self.alpha
        if isinstance(alpha, str):
            alpha = self._choose(total, message, task, train, counted=bool(private["counted"]))
        own = _ridge.moments(task, train, intercept=self.intercept)
        solution = solve(total + own.scaled(alpha), beta, intercept=self.intercept, solver="auto")
        return {**_ridge.linear_model(solution), "alpha": np.array(alpha)}

    def _choose(self, total: Moments, message: Arrays, task: Task, train: Samples, *, counted: bool) -> float:
        """The alpha with the best leave-one-out predictions on the client's own training data.

        Fitting the client's data with weight alpha is ridge towards the global model in the metric of
        H = A + beta I. Leaving a sample out takes it from the client's part (weight alpha) and, if the client is in the
        sum, from there too (weight 1): with H the identity, its leverage is (1 + alpha) s^2 / (1 + alpha s^2).
        """
        rows = _ridge.design(train, intercept=self.intercept)
        prior = _ridge.scores(message, train.inputs)
        targets = _ridge.one_hot(train.labels, task.classes)
        path = RidgePath.of(whiten(total, float(message["beta"]), rows, intercept=self.intercept), targets - prior)

        def predicted(alpha: float) -> Float:
            shrunk = path.squares / (1.0 + alpha * path.squares)
            leverage = path.leverage((counted + alpha) * shrunk)
            return prior + left_out(path.targets, path.fitted(alpha * shrunk), leverage)

        return _ridge.best(ALPHAS, map(predicted, ALPHAS), train.labels)

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model."""
        return {name: message[name] for name in _MODEL if name in message}

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the linear model."""
        return _ridge.scores(model, inputs)
