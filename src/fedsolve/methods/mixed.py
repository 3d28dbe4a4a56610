"""Linear mixed model: every site's coefficients are those of all plus its own deviations, drawn as far as data say.

Laird and Ware, "Random-effects models for longitudinal data", Biometrics 1982. y = X (b + u_k) + e with u_k ~ N(0, V)
on some columns. The likelihood follows from each site's X'X, X'y, y'y and n (Luo et al., DLMM, Nature Communications
2022). Here sites keep these and answer with sums at the variances they are sent: values and derivatives, so that the
server takes Newton steps and needs neither a site's data nor its effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.families.ridge import linear
from fedsolve.families.statistics import mixing, newton, reports
from fedsolve.families.statistics.mixing import Mixing
from fedsolve.families.statistics.units import Roles
from fedsolve.laws import Law
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.summary import Summary


@dataclass(frozen=True)
class Mixed(Method):
    """A linear mixed model of numbers: coefficients of all, and personal ones with their uncertainty.

    A client with many samples keeps its own coefficients, one with few is drawn to those of all, and one without any
    gets them. How far follows from how much sites differ, column by column, which the restricted likelihood tells.
    """

    name: ClassVar[str] = "mixed"
    paper: ClassVar[str] = "Laird and Ware, Biometrics 1982; Luo et al., DLMM, Nature Communications 2022"
    sends: ClassVar[str] = "weighted sums of squares of its columns and their derivatives, every round"
    # Sums are order-free, but whether a variance of next to nothing is left at zero may hang on their last bit.
    laws: ClassVar[tuple[Law, ...]] = ()
    targets: ClassVar[tuple[str, ...]] = ("numbers",)

    slopes: str = parameters.text(
        "all", "columns with random slopes beside the random intercept: all, none, or NAME,NAME,..."
    )
    covariance: str = parameters.choice(
        "diagonal", ("diagonal", "full"), "of the random effects; diagonal: independent, columns about their means"
    )
    likelihood: str = parameters.choice("reml", ("reml", "ml"), "restricted likelihood, or likelihood")
    rounds: int = parameters.number(100, "rounds at most; it stops when it has converged", low=2, integer=True)
    tol: float = parameters.number(
        1e-5, "converged when the next step is below this many standard errors", low=1e-7, high=1.0
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own, with an intercept as here."""
        return {"intercept": True}

    def _mixing(self, task: Task) -> Mixing:
        reml, full = self.likelihood == "reml", self.covariance == "full"
        return Mixing(Roles.of(task), task, self.slopes, full, reml, self.tol)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """Columns about zero."""
        return self._mixing(server.task).begin()

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """Variances and coefficients so far."""
        return mixing.sent(state, purpose == "personalize")

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """One step in the variances, with coefficients at their best for them."""
        return self._mixing(server.task).after(state, replies)

    def done(self, state: Arrays) -> bool:
        """Once the likelihood is at its largest, or has none."""
        return int(state["status"]) in (newton.CONVERGED, mixing.EXHAUSTED)

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The variance of the errors, and whether it is final."""
        shown = {"variance": float(state["variance"])} if "value" in state else {}
        return {**shown, "converged": self.done(state)}

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Too few samples, and too few rounds."""
        if int(state["status"]) == mixing.EXHAUSTED:
            return ("mixed has no more samples than coefficients: nobody can tell how far sites differ; add samples",)
        if self.done(state):
            return ()
        return (f"mixed had not converged after {self.rounds} rounds; allow more: --rounds {2 * self.rounds}",)

    def inference(self, state: Arrays, task: Task) -> Summary | None:
        """Coefficients of all, variance components, likelihood."""
        return reports.mixed_summary(state, self._mixing(task))

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The sums at the variances that were sent."""
        return self._mixing(site.task).reply(private, message, site.train)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The client's coefficients b + u_k, and how unsure they are."""
        return self._mixing(site.task).personal(private, message, site.train)

    def shared(self, message: Arrays) -> Arrays | None:
        """The coefficients of all."""
        return {name: message[name] for name in mixing.MODEL if name in message}

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The numbers that the linear model gives."""
        return linear.scores(model, inputs)
