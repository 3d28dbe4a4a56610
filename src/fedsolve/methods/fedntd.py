"""FedNTD: FedAvg whose local training keeps what the global model says of the classes that are not the true one.

Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning", NeurIPS 2022: the
local loss is cross-entropy plus beta times tau^2 KL of the global model's softmax to the local one's (3), both over all
classes but the true one and at temperature tau; the global model is fixed. With two classes the term is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays, take
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Equals, Law, OneModel
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class FedNTD(Averaging, Method):
    """FedAvg with a distillation of the global model's scores of not-true classes; FedAvg itself at beta = 0."""

    name: ClassVar[str] = "fedntd"
    paper: ClassVar[str] = "Lee et al., FedNTD, NeurIPS 2022"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    laws: ClassVar[tuple[Law, ...]] = (OneModel(), Equals("fedavg", beta=0.0))

    beta: float = parameters.number(1.0, "strength of the distillation", low=0)
    tau: float = parameters.number(1.0, "temperature of the distillation", low=0.001)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, which is remembered."""
        from fedsolve.families.gradient import losses, networks, training

        shared, loss, beside = take("model", message), None, {}
        if self.beta:
            beside = {"fixed": networks.scores(self.model, shared, site.train.inputs, site.task)}
            loss = losses.plus(
                self.beta,
                lambda batch: losses.not_true(batch.scores, batch.beside["fixed"], batch.labels, self.tau),
            )
        trained, value = training.train(self, shared, site, loss=loss, beside=beside)
        return {}, settings.weighted(trained, value, len(site.train))

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))
