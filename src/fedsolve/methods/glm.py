"""Generalised linear models: least squares, logistic and Poisson regression, equal to those of the pooled table.

McCullagh and Nelder, "Generalized Linear Models", 1989. Each round is one step of iteratively reweighted least squares
(Newton's method, since the links are canonical): sites send X'WX, the score and the deviance as sums, the server
solves. Coefficients, standard errors and deviance are those of all rows in one place, whatever the split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.families.ridge import linear
from fedsolve.families.statistics import distributions, fit, newton, reports
from fedsolve.families.statistics.fit import Fit
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant, SplitInvariant
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.summary import Summary


@dataclass(frozen=True)
class GLM(Method):
    """Least squares, logistic or Poisson regression by Newton's method, and a personal model per client.

    More than two classes are one multinomial model, not one against the rest. The global model is that of the pooled
    table; a personal model is drawn from it to the client's own data, as far as leave-one-out finds it useful.
    """

    name: ClassVar[str] = "glm"
    paper: ClassVar[str] = "McCullagh and Nelder, Generalized Linear Models, 1989"
    sends: ClassVar[str] = "X'WX, X'(y - mean) and the deviance of its training data, every round"
    laws: ClassVar[tuple[Law, ...]] = (SplitInvariant(), OthersSplitInvariant(), OrderFree())
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")

    family: str = parameters.choice(
        "auto",
        ("auto", *distributions.NAMES),
        "distribution of the target; auto: binomial for classes (multinomial for more than two), gaussian for numbers",
    )
    personal: bool = parameters.flag(
        True, "a model of each client's own, drawn from the global one; false: one for all"
    )
    ridge: float = parameters.number(0.0, "ridge of the global coefficients but the intercept, added once", low=0)
    offset: str = parameters.text("", "column that is added to the linear predictor, in its own units; empty: none")
    weights: str = parameters.text("", "column with the weight of each sample, in its own units; empty: all alike")
    errors: str = parameters.choice(
        "classical",
        ("classical", "robust", "sites"),
        "standard errors: classical; robust: whatever the variances (HC1); sites: clustered by site; one round more",
    )
    rounds: int = parameters.number(25, "rounds at most; it stops when it has converged", low=1, integer=True)
    tol: float = parameters.number(
        1e-9, "converged when the next step is below this many standard errors", low=1e-12, high=1.0
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own, with an intercept as here."""
        return {"intercept": True}

    def _fit(self, task: Task) -> Fit:
        return Fit.of(task, self.family, self.offset, self.weights, self.ridge, self.tol, self.errors)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """Columns about zero."""
        return self._fit(server.task).begin()

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """Coordinates and coefficients; for personal models the curvature, too."""
        return fit.sent(state, purpose)

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The next step, from the sums over those that answered."""
        return self._fit(server.task).after(state, replies)

    def done(self, state: Arrays) -> bool:
        """Once it has converged and errors are known, or classes are separated."""
        return int(state["status"]) in (newton.CONVERGED, newton.SEPARATED, newton.COMPLETE)

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The deviance, and whether it is at its least."""
        shown = {"deviance": float(state["deviance"])} if "deviance" in state else {}
        return {**shown, "converged": int(state["status"]) in (newton.CONVERGED, newton.ERRORS, newton.COMPLETE)}

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Separation, and too few rounds."""
        return reports.glm_warnings(state, self._fit(task).roles, self.rounds)

    def inference(self, state: Arrays, task: Task) -> Summary | None:
        """Coefficients in the table's units, with errors where there is no ridge."""
        found = self._fit(task)
        return reports.glm_summary(state, task, found.family, found.roles, ridge=self.ridge, errors=self.errors)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The sums of one step."""
        return {}, self._fit(site.task).reply(message, site.train)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The client's own coefficients, or those of all."""
        if not self.personal:
            return Personal({name: message[name] for name in fit.MODEL})
        return self._fit(site.task).personal(message, site.train, counted=site.counted)

    def shared(self, message: Arrays) -> Arrays | None:
        """The coefficients of the pooled table."""
        return {name: message[name] for name in fit.MODEL if name in message}

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Logits of the classes, the first one's zero; of numbers, their means."""
        return self._fit(task).predictions(linear.scores(model, inputs), inputs)
