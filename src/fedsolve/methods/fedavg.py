"""FedAvg: local SGD from the global model, then the mean of the models, weighted by samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve.arrays import Arrays, take
from fedsolve.families.gradient.averaging import Averaging, trained_near
from fedsolve.laws import Law, OneModel
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class FedAvg(Averaging, Method):
    """One global model by gradient descent: w = sum n_k w_k / sum n_k of locally trained w_k, round after round."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., FedAvg, AISTATS 2017"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OneModel(),)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model."""
        return {}, trained_near(self, message, site)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))
