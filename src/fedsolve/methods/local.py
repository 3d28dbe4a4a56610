"""Training alone: ridge on the client's own data. What every federation has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsolve import methods, parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.families.ridge import alone, calibration, linear
from fedsolve.families.statistics.plain import model_summary
from fedsolve.laws import Law, SendsNothing
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.summary import Summary


@dataclass(frozen=True)
class Local(Method):
    """Each client alone, by ridge: W_k = (F_k'F_k + ridge I)^-1 F_k'Y_k. Nothing is sent.

    With model=mlp:64 or another network, each client trains that by SGD instead.
    """

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "ridge regression on the client's own data"
    sends: ClassVar[str] = "nothing"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (SendsNothing(),)

    ridge: float | str = parameters.number(
        "auto", "strength of the ridge; auto: each client's own, by closed-form leave-one-out", low=0, auto=True
    )
    intercept: bool = parameters.flag(True, "add an intercept that is not penalised")

    def __new__(cls, *values: object, **settings: object) -> Any:
        """Training alone has one name for users: where `model` names a network, the other method of that name."""
        elsewhere = settings.keys() - cls.__dataclass_fields__.keys()
        return methods.create("local", settings) if elsewhere else super().__new__(cls)

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def alone(self) -> Mapping[str, object] | None:
        """None: this is training alone itself."""
        return None

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """Empty: no client learns from another."""
        return {}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """Empty: the server learns nothing."""
        return {}

    def inference(self, state: Arrays, task: Task) -> Summary | None:
        """The coefficients of a client's own model."""
        return model_summary(state, task, self.name)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """No private state and an empty reply: all happens in `personalize`."""
        return {}, {}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The client's own ridge solution."""
        found = alone.own_ridge(site, self.ridge, intercept=self.intercept)
        return Personal(found.model, {"ridge": found.ridge}, found.unsure)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the linear model."""
        return linear.scores(model, inputs)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times a sharpness, chosen on left-out predictions where the ridge is."""
        return calibration.probabilities(model, scores)
