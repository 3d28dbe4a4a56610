"""MOON: FedAvg whose local features are held nearer to the global model's than to those of the client's last model.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021: the local loss is cross-entropy plus mu times (3), the
mean of -log(e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau))), with z what the head sees, z_g the same
under the global model and z_p under the model that the client ended its last round with; both are fixed. In a client's
first round there is no last model, and no term. The paper's networks have a projection of 256 below the head: give such
a network as `model`. Where the body has nothing to train (`lr`), the term is a constant, and MOON is FedAvg.
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
class MOON(Averaging, Method):
    """FedAvg with a contrast between global, local and last local features; FedAvg itself at mu = 0."""

    name: ClassVar[str] = "moon"
    paper: ClassVar[str] = "Li et al., MOON, CVPR 2021"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OneModel(), Equals("fedavg", mu=0.0))

    mu: float = parameters.number(1.0, "strength of the contrast", low=0)
    tau: float = parameters.number(0.5, "temperature of the contrast", low=0.001)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, and away from the client's last one."""
        from fedsolve.families.gradient import losses, networks, training

        shared, loss, beside = take("model", message), None, {}
        if private and self.mu:
            # Once per round: both networks are fixed, so a sample's features are the same in every pass.
            models = {"near": shared, "far": private}
            beside = {
                name: networks.features(self.model, model, site.train.inputs, site.task)
                for name, model in models.items()
            }
            loss = losses.plus(
                self.mu,
                lambda batch: losses.contrast(batch.features, batch.beside["near"], batch.beside["far"], self.tau),
            )
        trained, value = training.train(self, shared, site, loss=loss, beside=beside)
        return trained if self.mu else {}, settings.weighted(trained, value, len(site.train))

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))
