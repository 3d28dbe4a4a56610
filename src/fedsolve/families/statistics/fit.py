"""A generalised linear model between sites and server: what is sent, what is answered, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.statistics import newton, personal, scoring
from fedsolve.families.statistics.distributions import Distribution, distribution
from fedsolve.families.statistics.units import Roles
from fedsolve.method import Personal, Purpose

MOST = 2000  # coefficients: a site sends half their square
MODEL = ("weight", "intercept")
_STEP = ("status", "origin", "basis", "coefficients", "null")
_SENT = {  # to sites, by where the fit stands
    newton.OPENING: ("status", "origin"),
    newton.ERRORS: ("status", "origin", "basis", "coefficients"),
}
_Found: TypeAlias = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Fit:
    """A model of one task: its distribution, its columns, and how it is solved."""

    family: Distribution
    roles: Roles
    task: Task
    ridge: float
    tolerance: float
    errors: str  # "classical", "robust" or "sites"

    @classmethod
    def of(cls, task: Task, family: str, offset: str, weights: str, ridge: float, tolerance: float, errors: str) -> Fit:
        """The model that settings ask for; refused where the target is of another kind, or a column is not there."""
        return cls(distribution(family, task), Roles.of(task, offset, weights), task, ridge, tolerance, errors)

    @property
    def _classes(self) -> bool:
        return self.task.target.kind == "classes"

    # --- server half ---
    def begin(self) -> Arrays:
        """Columns about zero; refused where there are too many coefficients."""
        outputs, columns = max(1, self.task.classes - 1), len(self.roles.columns)
        if not (columns + 1) * outputs <= MOST:
            raise DataError(
                f"glm solves for at most {MOST} coefficients; {columns} columns and {outputs + 1} classes have "
                f"{(columns + 1) * outputs}: choose afl or fedhip"
            )
        return {"status": np.array(newton.OPENING), "origin": np.zeros(columns)}

    def after(self, state: Arrays, replies: Arrays) -> Arrays:
        """The next state, from the sums over those that answered."""
        status = int(state["status"])
        if status == newton.ERRORS:
            return {**state, "meat": replies["meat"], "status": np.array(newton.COMPLETE)}
        if status == newton.OPENING:
            mean = (replies["total"] / replies["weight"])[None, :]
            now = newton.opened(replies, state, self.ridge, self.family.link(mean)[0])
        else:
            again = self.errors != "classical"
            fixed = self.family.fixed
            now = newton.advanced(state, replies, ridge=self.ridge, tolerance=self.tolerance, fixed=fixed, errors=again)
        return {**now, **self._model(now)}

    # --- client half ---
    def reply(self, message: Arrays, train: Samples) -> _Found:
        """The sums that the state of the fit asks for."""
        status = int(message["status"])
        if status == newton.OPENING:
            return scoring.opening(self.family, self.roles, train, message["origin"])
        if status == newton.ERRORS:
            return scoring.meat(self.family, self.roles, train, message, by_site=self.errors == "sites")
        return scoring.step(self.family, self.roles, train, message)

    def personal(self, message: Arrays, train: Samples, *, counted: bool) -> Personal:
        """The client's own model, once the fit is over; the global one where leave-one-out finds none better."""
        shared = {name: message[name] for name in MODEL}
        if int(message["status"]) in (newton.OPENING, newton.RUNNING):  # a grid of fits, for coefficients that go on
            return Personal(shared)
        punished = newton.penalty(message, self.ridge)
        found, alpha = personal.personalised(self.family, self.roles, train, message, punished, counted=counted)
        own = shared if alpha == 0 else self._model({**message, "coefficients": found})
        return Personal(own, {"alpha": alpha})

    def predictions(self, scores: Float, inputs: Array) -> Float:
        """Logits of the classes, the first one's zero; of numbers, their means."""
        if self.roles.offset is not None:
            offsets = [np.zeros(0), *(offset for _, _, offset, _ in self.roles.blocks(inputs))]
            scores[:, int(self._classes) :] += np.concatenate(offsets)[:, None]
        return scores if self._classes else self.family.mean(scores)

    def _model(self, state: Arrays) -> _Found:
        return newton.weights(state, self.roles.columns, self.task.width, classes=self._classes)


def sent(state: Arrays, purpose: Purpose) -> Arrays:
    """Coordinates and coefficients, as far as the next sums need them; for personal models the curvature, too."""
    names = _SENT.get(int(state["status"]), _STEP)
    names = (*_STEP, "triangle", *MODEL) if purpose == "personalize" else names
    return {name: state[name] for name in names if name in state}
