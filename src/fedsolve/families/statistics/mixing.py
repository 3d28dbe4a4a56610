"""A linear mixed model between sites and server: coordinates first, then Newton steps in the variances of the effects.

The first round gives means and deviations of the columns. From then on a site keeps the sums of its columns about
them, and answers from these alone: R'W R and derivatives at the variances that it is sent, all of them sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError, unknown
from fedsolve.families.statistics import effects, likelihood, newton, scoring
from fedsolve.families.statistics.distributions import Gaussian
from fedsolve.families.statistics.effects import Structure
from fedsolve.families.statistics.units import Roles
from fedsolve.method import Personal

START = 0.5  # deviation of every random effect to start from, in those of the errors
UNKNOWN = 1e300  # a variance that makes nothing of the residuals, before there are any
SLACK = 1e-12  # relative; a likelihood that falls by less has not fallen
SMALL, PATIENCE = 1e-4, 6  # a squared decrement, and how many steps below it are taken where they gain next to nothing
MOST = 2**22  # numbers in a reply
EXHAUSTED = newton.COMPLETE  # no more samples than coefficients: no variance can be told
_SENT = ("status", "origin", "spread", "centre", "free", "coefficients", "inverse", "variance")


@dataclass(frozen=True, eq=False)
class Mixing:
    """A model of one task: which columns have random effects, and how it is solved."""

    roles: Roles
    task: Task
    slopes: str
    full: bool
    reml: bool
    tolerance: float

    def structure(self, kept: Array) -> Structure:
        """Random effects of the intercept, which stands last, and of the columns asked for that are there."""
        names = [self.roles.names[place] for place in kept]
        wanted = set(self.roles.names) if self.slopes == "all" else set(slope_names(self.slopes))
        for name in sorted(wanted - set(self.roles.names)):
            raise unknown("column for a random slope:", name, self.roles.names)
        columns = [place for place, name in enumerate(names) if name in wanted]
        return Structure(np.array([*columns, len(kept)], dtype=np.int64), self.full)

    def begin(self) -> Arrays:
        """Columns about zero; refused where replies would be too large."""
        columns = len(self.roles.columns)
        entries = len(self.structure(np.arange(columns)).places[0])
        if not entries * (columns + 2) ** 2 <= MOST:
            raise DataError(
                f"mixed sends {entries * (columns + 2) ** 2} numbers for random effects of {columns} columns, and at "
                f"most {MOST} are allowed; choose slopes=none, or name a few columns"
            )
        return {"status": np.array(newton.OPENING), "origin": np.zeros(columns)}

    def after(self, state: Arrays, replies: Arrays) -> Arrays:
        """The next state, from the sums over those that answered."""
        if int(state["status"]) == newton.OPENING:
            return self._opened(state, replies)
        kept = np.flatnonzero(state["spread"])
        structure, free = self.structure(kept), state["free"]
        found = likelihood.Likelihood.of(replies, structure, free, int(state["count"]), reml=self.reml)
        best = float(state.get("value", np.inf))
        if not found.value <= best + SLACK * abs(found.value):
            half = 0.5 * state["step"]
            return {**state, "step": half, "free": state["before"] + half}
        step, decrement = likelihood.step(found, free)
        now = {
            **state,
            "coefficients": found.coefficients,
            "inverse": found.inverse,
            "variance": np.array(found.variance),
        }
        now |= {"value": np.array(found.value), "determinant": np.array(found.log_determinant), "before": free}
        now |= self._model(now, found.coefficients, found.variance * found.inverse)
        # Where a variance of zero is just about the best, digits do not double: a few small steps are enough.
        crawls = int(state.get("crawls", 0)) + 1 if decrement <= SMALL else 0
        now["crawls"] = np.array(crawls)
        if decrement <= self.tolerance**2 or crawls > PATIENCE:
            over = ("step", "before", "crawls")
            return {**{n: a for n, a in now.items() if n not in over}, "status": np.array(newton.CONVERGED)}
        return {**now, "step": step, "free": free + step}

    def _opened(self, state: Arrays, replies: Arrays) -> Arrays:
        """Origin and scale of the columns, and coefficients without random effects."""
        now = newton.opened(replies, state, 0.0, np.zeros(1))
        there = now["basis"].any(1)
        spread = np.where(there, now["spread"], 0.0)
        size = int(there.sum()) + 1
        entries = self.structure(np.flatnonzero(there)).places
        coefficients = np.append((now["basis"] @ now["coefficients"][:-1])[there, 0] * spread[there], 0.0)
        following = {
            "status": now["status"],
            "origin": now["origin"],
            "spread": spread,
            "centre": now["coefficients"][-1],
            "count": now["count"],
            "sites": now["sites"],
            "free": np.where(entries[0] == entries[1], START, 0.0),
            "coefficients": coefficients,
            "inverse": np.zeros((size, size)),
            "variance": np.array(UNKNOWN),
        }
        following |= self._model(following, coefficients, np.zeros((size, size)))
        alone = int(now["count"]) <= size and int(now["status"]) == newton.RUNNING
        return {**following, "status": np.array(EXHAUSTED)} if alone else following

    def _model(self, state: Arrays, coefficients: Float, covariance: Float) -> dict[str, Array]:
        """Coefficients of all features with their covariance, the intercept last; zero for those without one."""
        matrix = self.in_features(state)
        values, spread = matrix @ coefficients, matrix @ covariance @ matrix.T
        values[-1] += state["centre"][0]
        return {"weight": values[:-1, None], "intercept": values[-1:], "covariance": spread}

    def in_features(self, state: Arrays) -> Float:
        """The matrix from coefficients of (x - origin) / spread to those of all features, the intercept last."""
        kept = np.flatnonzero(state["spread"])
        matrix = np.zeros((self.task.width + 1, len(kept) + 1))
        matrix[self.roles.columns[kept], np.arange(len(kept))] = 1.0 / state["spread"][kept]
        matrix[-1, :-1], matrix[-1, -1] = -state["origin"][kept] / state["spread"][kept], 1.0
        return matrix

    # --- client half ---
    def reply(self, private: Arrays, message: Arrays, train: Samples) -> tuple[Arrays, Arrays]:
        """What the site keeps, and its sums."""
        if int(message["status"]) == newton.OPENING:
            return {}, scoring.opening(Gaussian(), self.roles, train, message["origin"])
        kept = self._kept(private, message, train)
        told = {**message, "reml": np.array(self.reml)}
        structure = self.structure(np.flatnonzero(message["spread"]))
        return kept, effects.sums(_square(kept["gram"]), structure, told)

    def _kept(self, private: Arrays, message: Arrays, train: Samples) -> Arrays:
        """The sums about the origin, computed once."""
        about = ("origin", "spread", "centre")
        if "gram" in private and all(np.array_equal(private[name], message[name]) for name in about):
            return private
        places = np.flatnonzero(message["spread"])
        gram = np.zeros((len(places) + 2, len(places) + 2))
        for rows, targets, _, _ in scoring.blocks(Gaussian(), self.roles, train, message["origin"]):
            moved = [rows[:, places] / message["spread"][places], np.ones(len(rows)), targets - message["centre"]]
            block = np.column_stack(moved)
            gram += block.T @ block
        return {"gram": blas.pack(gram), **{name: message[name] for name in about}}

    def personal(self, private: Arrays, message: Arrays, train: Samples) -> Personal:
        """The coefficients b + u given the client's data, and their covariance: of both, since both are unsure."""
        if float(message["variance"]) == UNKNOWN:
            return Personal({name: message[name] for name in MODEL})
        structure = self.structure(np.flatnonzero(message["spread"]))
        gram = _square(self._kept(private, message, train)["gram"])
        found = effects.Effects.of(gram, structure, message["free"])
        drawn, spread = found.predicted(gram, structure, message["coefficients"])
        place = np.eye(len(message["coefficients"]))[structure.columns]
        # The effects follow b by -V Z'W X: what b is unsure of, the client's own data make up for in part.
        along = np.eye(place.shape[1]) - place.T @ spread @ gram[structure.columns, :-1]
        covariance = float(message["variance"]) * (along @ message["inverse"] @ along.T + place.T @ spread @ place)
        return Personal(self._model(message, message["coefficients"] + place.T @ drawn, covariance))


MODEL = ("weight", "intercept", "covariance")


def sent(state: Arrays, personal: bool) -> Arrays:
    """Coordinates, variances and coefficients; with the global model for personal ones."""
    if int(state["status"]) == newton.OPENING and not personal:
        return {name: state[name] for name in ("status", "origin")}
    return {name: state[name] for name in (*_SENT, *(MODEL if personal else ())) if name in state}


def slope_names(text: str) -> tuple[str, ...]:
    """The columns in a text NAME,NAME,...; none in "none" or an empty one."""
    return () if text in ("none", "") else tuple(name.strip() for name in text.split(","))


def _square(triangle: Float) -> Float:
    size = int((np.sqrt(8 * len(triangle) + 1) - 1) / 2)
    lower = blas.unpack(triangle, size)
    return lower + np.tril(lower, -1).T
