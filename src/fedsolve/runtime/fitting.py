"""The rounds in which sites fit a feature map, as a method: it adds up what clients tell, and trains no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError
from fedsolve.features import clusters, maps, patches
from fedsolve.features.patches import Recipe
from fedsolve.laws import Law
from fedsolve.method import Method, Personal, Purpose, Server, Site

NAME = "fit"


def _recipe(text: str) -> Recipe:
    """The recipe that a specification begins with; refuses what sites cannot fit."""
    first, *rest = maps.parts(text)
    recipe = patches.unfitted(first)
    if recipe is None or any(each == "standardise" or patches.unfitted(each) for each in rest):
        raise ParameterError(
            f"sites fit one map in a run, patches:..., and it stands first; got {text[:80]!r}: give others fitted, as "
            "the features of a model of such a run are written"
        )
    return recipe


@dataclass(frozen=True)
class Fitting(Method):
    """Sums over the clients' training samples, as many rounds as the map takes."""

    name: ClassVar[str] = NAME
    paper: ClassVar[str] = "see fedsolve.features.clusters"
    sends: ClassVar[str] = "sums over patches of its pictures, and over the features they give"
    laws: ClassVar[tuple[Law, ...]] = ()

    features: str = parameters.text("patches", "the map to be fitted, first of those that follow it", _recipe)

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def rounds(self) -> int:
        """As many as the map takes."""
        return _recipe(self.features).rounds

    def check(self, inputs: tuple[int, ...]) -> None:
        """Refuse inputs of a shape that the map does not take."""
        _recipe(self.features).channels(inputs)

    def fitted(self, state: Arrays) -> str:
        """The specification with the fitted map in it, once all rounds are over."""
        _, *rest = maps.parts(self.features)
        return "+".join([str(clusters.fitted(_recipe(self.features), state)), *rest])

    def init_server(self, server: Server) -> Arrays:
        """Nothing is fitted yet. Inputs that the map does not take are refused here."""
        self.check(server.task.inputs)
        return {}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """What is fitted so far."""
        return state

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """What the sums of this round give."""
        return clusters.advance(_recipe(self.features), state, replies)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The sums of this round."""
        return {}, clusters.sums(_recipe(self.features), message, site.train.inputs)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """Nothing: there is no model."""
        return Personal({})

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Nothing: no class before another."""
        return np.zeros((len(inputs), task.outputs))
