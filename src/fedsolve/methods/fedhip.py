"""FedHiP: each client's model lies between the federation's and its own, in closed form.

"FedHiP: Heterogeneity-Invariant Personalized Federated Learning Through Closed-Form Solutions". The minimiser of (1),

    |Y - F P|^2 over everybody's data  +  alpha |Y_k - F_k P|^2 over the client's own  +  beta |P|^2,

is P_k = (A + alpha A_k + beta I)^-1 (B + alpha B_k) with A, B the sums over all clients: the client's own samples weigh
1 + alpha. The ridge beta is added once, by whoever solves; the paper adds it on every client and takes it
off again (12), (14).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.anchor import Anchor
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.families.ridge import calibration, choice, linear, personal
from fedsolve.families.statistics.plain import least_squares_summary
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant
from fedsolve.method import Method, Personal, Purpose, Rows, Server, Site
from fedsolve.moments import Moments
from fedsolve.summary import Summary

_MODEL = ("weight", "intercept", "sharpness")
_SENT = ("triangle", "cross", "count", "squares", "beta", *_MODEL)


@dataclass(frozen=True)
class FedHiP(Method):
    """A global model, and a personal one per client: own samples weigh 1 + alpha, everybody else's weigh 1."""

    name: ClassVar[str] = "fedhip"
    paper: ClassVar[str] = "Tang et al., FedHiP, 2025"
    sends: ClassVar[str] = "F'F (one triangle) and F'Y of its training data, once"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OthersSplitInvariant(), OrderFree())

    alpha: float | str = parameters.number(
        "auto",
        "weight of the client's own data; auto: each client's own, by closed-form leave-one-out",
        low=0,
        auto=True,
    )
    beta: float | str = parameters.number(
        "auto", "ridge, added once; auto: the server's, by cross-validation on the sums alone", low=0, auto=True
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
        """The sums and the global model, once there are some."""
        return {name: state[name] for name in state if name in _SENT}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """FedHiP (12): the global model from the sum over those that answered."""
        total = Moments.from_arrays(replies)
        beta = choice.server_ridge(self.beta, total, intercept=self.intercept)
        return {"beta": np.array(beta), **linear.global_model(total, beta, intercept=self.intercept)}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The ridge, and how far the global solution can be trusted."""
        return linear.figures(state, "beta")

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Features whose digits were lost in the sums."""
        return linear.warnings(state, task, intercept=self.intercept)

    def inference(self, state: Arrays, task: Task) -> Summary | None:
        """Least squares of all, with errors where there is no ridge."""
        return least_squares_summary(state, task, float(state.get("beta", 0.0)), self.name)

    def rows(self, message: Arrays, task: Task) -> Rows:
        """The task's features, with a column of ones where there is an intercept."""
        return linear.bounded(task, intercept=self.intercept)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The statistics of the client's data; kept where personalisation takes them and not the data."""
        sent = linear.sent(site, intercept=self.intercept, thin=self.thin)
        few = personal.is_few(len(site.train), site.task.width + self.intercept)
        kept = not isinstance(self.alpha, str) and not (few and site.train.in_memory)
        return under("own", sent) if kept else {}, sent

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """FedHiP (14): one solve with the client's own samples weighing 1 + alpha."""
        train, sums = site.train, take("own", private)
        total, beta, shared = (
            Moments.from_arrays(message, site.task.space),
            float(message["beta"]),
            self.shared(message),
        )
        if sums and not isinstance(self.alpha, str):  # of many samples the sums are all that it takes
            own, sharpness = Moments.from_arrays(sums, site.task.space), float(shared.get("sharpness", 0.0))
            found = personal.weighed(total, beta, own, self.alpha, sharpness, intercept=self.intercept)
            return Personal(found.model, {"alpha": found.alpha}, found.unsure)
        found = personal.own_model(
            total,
            beta,
            shared,
            linear.design(train, intercept=False),
            train.labels,
            alpha=self.alpha,
            counted=site.counted,
            intercept=self.intercept,
            anchor=site.once(self._anchor, message),
            own_moments=lambda: linear.moments(site, intercept=self.intercept),
        )
        return Personal(found.model, {"alpha": found.alpha}, found.unsure)

    def _anchor(self, message: Arrays) -> Anchor | None:
        """Everybody's system, factorised: the same for all clients."""
        return Anchor.of(Moments.from_arrays(message), float(message["beta"]), intercept=self.intercept)

    def shared(self, message: Arrays) -> Arrays:
        """The global model, without the sums that are sent beside it."""
        return {name: message[name] for name in _MODEL if name in message}

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the linear model."""
        return linear.scores(model, inputs)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times a sharpness, chosen on left-out predictions where alpha is."""
        return calibration.probabilities(model, scores)
