"""FedAvg, and then some more training of each client's own: the plainest way to a personal model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays, take
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Law, SharesWith
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class FedAvgFT(Averaging, Method):
    """FedAvg's global model, fine-tuned by each client on its own data."""

    name: ClassVar[str] = "fedavg-ft"
    paper: ClassVar[str] = "McMahan et al., FedAvg, AISTATS 2017, with fine-tuning"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    laws: ClassVar[tuple[Law, ...]] = (SharesWith("fedavg"),)

    finetune: int = parameters.number(2, "passes over the client's data after the last round", low=0, integer=True)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model."""
        from fedsolve.families.gradient import training

        trained, loss = training.train(self, take("model", message), site)
        return {}, settings.weighted(trained, loss, len(site.train))

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model after `finetune` passes over the client's data."""
        from fedsolve.families.gradient import training

        return Personal(training.train(self, take("model", message), site, epochs=self.finetune)[0])
