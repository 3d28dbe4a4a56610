"""FedAvg, and then fine-tuning: each client trains the global model on, on its own data alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays
from fedsolve.families.gradient.averaging import Averaging, fine_tuned, trained_near
from fedsolve.laws import Law, SharesWith
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class FedAvgFT(Averaging, Method):
    """FedAvg's global model, fine-tuned by each client on its own data."""

    name: ClassVar[str] = "fedavg-ft"
    paper: ClassVar[str] = "McMahan et al., FedAvg, AISTATS 2017, with fine-tuning"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (SharesWith("fedavg"),)

    finetune: int = parameters.number(2, "passes over the client's data after the last round", low=0, integer=True)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model."""
        return {}, trained_near(self, message, site)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model after `finetune` passes over the client's data."""
        return fine_tuned(self, message, site, self.finetune)
