"""FedProx: FedAvg with local training held near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020: the local loss is
F_k(v) + mu/2 |v - w|^2 (2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays, take
from fedsolve.families.gradient.averaging import Averaging, trained_near
from fedsolve.laws import Equals, Law, OneModel
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class FedProx(Averaging, Method):
    """FedAvg whose local loss has mu/2 |v - w|^2 beside it; FedAvg itself at mu = 0."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., FedProx, MLSys 2020"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OneModel(), Equals("fedavg", mu=0.0))

    mu: float = parameters.number(0.01, "strength of the pull towards the global model", low=0)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, and near it."""
        return {}, trained_near(self, message, site, pull=self.mu)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))
