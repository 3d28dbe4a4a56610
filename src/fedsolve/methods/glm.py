"""Generalised linear models: least squares, logistic and Poisson regression, equal to those of the pooled table.

McCullagh and Nelder, "Generalized Linear Models", 1989. Each round is one step of iteratively reweighted least squares
(Newton's method, since the links are canonical): sites send X'WX, the score and the deviance as sums, the server
solves. Coefficients, standard errors and deviance are those of all rows in one place, whatever the split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.ridge import linear
from fedsolve.families.statistics import distributions, newton, personal, reports, scoring
from fedsolve.families.statistics.units import Roles
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant, SplitInvariant
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.summary import Summary

MOST = 2000  # coefficients: a site sends half their square
_SENT = {  # to sites, by where the fit stands
    newton.OPENING: ("status", "origin"),
    newton.ERRORS: ("status", "origin", "basis", "coefficients"),
}
_STEP = ("status", "origin", "basis", "coefficients", "null")
_MODEL = ("weight", "intercept")


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

    def _family(self, task: Task) -> distributions.Distribution:
        return distributions.distribution(self.family, task)

    def _roles(self, task: Task) -> Roles:
        return Roles.of(task, self.offset, self.weights)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """Columns about zero; refused where there are too many coefficients."""
        outputs = max(1, server.task.classes - 1)
        columns = len(self._roles(server.task).columns)
        if not (columns + 1) * outputs <= MOST:
            raise DataError(
                f"glm solves for at most {MOST} coefficients; {columns} columns and {outputs + 1} classes have "
                f"{(columns + 1) * outputs}: choose afl or fedhip"
            )
        return {"status": np.array(newton.OPENING), "origin": np.zeros(columns)}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """Coordinates and coefficients; for personal models the curvature, too."""
        names = _SENT.get(int(state["status"]), _STEP)
        names = (*_STEP, "triangle", *_MODEL) if purpose == "personalize" else names
        return {name: state[name] for name in names if name in state}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The next step, from the sums over those that answered."""
        family, roles = self._family(server.task), self._roles(server.task)
        status = int(state["status"])
        if status == newton.OPENING:
            mean = (replies["total"] / replies["weight"])[None, :]
            now = newton.opened(replies, state, self.ridge, family.link(mean)[0])
        elif status == newton.ERRORS:
            return {**state, "meat": replies["meat"], "status": np.array(newton.COMPLETE)}
        else:
            sandwich = self.errors != "classical"
            now = newton.advanced(
                state, replies, ridge=self.ridge, tolerance=self.tol, fixed=family.fixed, errors=sandwich
            )
        classes = server.task.target.kind == "classes"
        return {**now, **newton.weights(now, roles.columns, server.task.width, classes=classes)}

    def done(self, state: Arrays) -> bool:
        """Once it has converged and errors are known, or classes are separated."""
        return int(state["status"]) in (newton.CONVERGED, newton.SEPARATED, newton.COMPLETE)

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The deviance, and whether it is at its least."""
        shown = {"deviance": float(state["deviance"])} if "deviance" in state else {}
        return {**shown, "converged": int(state["status"]) in (newton.CONVERGED, newton.ERRORS, newton.COMPLETE)}

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Separation, columns that repeat others, and too few rounds."""
        return reports.glm_warnings(state, self._roles(task), self.rounds)

    def inference(self, state: Arrays, task: Task) -> Summary | None:
        """Coefficients in the table's units, with errors where there is no ridge."""
        return reports.glm_summary(
            state, task, self._family(task), self._roles(task), ridge=self.ridge, errors=self.errors
        )

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The sums of one step."""
        family, roles = self._family(site.task), self._roles(site.task)
        status = int(message["status"])
        if status == newton.OPENING:
            return {}, scoring.opening(family, roles, site.train, message["origin"])
        if status == newton.ERRORS:
            return {}, scoring.meat(family, roles, site.train, message, by_site=self.errors == "sites")
        return {}, scoring.step(family, roles, site.train, message)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The client's own coefficients, where they are asked for and there is a curvature yet."""
        shared = {name: message[name] for name in _MODEL}
        if not self.personal or "triangle" not in message:
            return Personal(shared)
        roles = self._roles(site.task)
        punished = newton.penalty(message, self.ridge)
        found, alpha = personal.personalised(
            self._family(site.task), roles, site.train, message, punished, counted=site.counted
        )
        if alpha == 0:
            return Personal(shared, {"alpha": 0.0})
        classes = site.task.target.kind == "classes"
        moved = {**message, "coefficients": found}
        return Personal(newton.weights(moved, roles.columns, site.task.width, classes=classes), {"alpha": alpha})

    def shared(self, message: Arrays) -> Arrays | None:
        """The coefficients of the pooled table."""
        return {name: message[name] for name in _MODEL if name in message}

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Logits of the classes, the first one's zero; of numbers, their means."""
        scores: Float = linear.scores(model, inputs)
        roles = self._roles(task)
        if roles.offset is not None:
            added = np.concatenate([np.zeros(0), *(offset for _, _, offset, _ in roles.blocks(inputs))])
            scores[:, 1 if task.target.kind == "classes" else 0 :] += added[:, None]
        return scores if task.target.kind == "classes" else self._family(task).mean(scores)
