"""FedProx, and then fine-tuning: each client trains on, on its own data, without the pull towards the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays
from fedsolve.families.gradient.averaging import Averaging, fine_tuned, trained_near
from fedsolve.laws import Equals, Law
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class FedProxFT(Averaging, Method):
    """FedProx's global model, fine-tuned by each client on its own data."""

    name: ClassVar[str] = "fedprox-ft"
    paper: ClassVar[str] = "Li et al., FedProx, MLSys 2020, with fine-tuning"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (Equals("fedavg-ft", mu=0.0),)

    mu: float = parameters.number(0.01, "strength of the pull towards the global model", low=0)
    finetune: int = parameters.number(2, "passes over the client's data after the last round", low=0, integer=True)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, and near it."""
        return {}, trained_near(self, message, site, pull=self.mu)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model after `finetune` passes over the client's data."""
        return fine_tuned(self, message, site, self.finetune)
