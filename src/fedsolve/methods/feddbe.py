"""FedDBE: FedAvg whose clients keep what is special about their features in a vector of their own.

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS 2023. With z what the
network's body makes of a sample, the head sees z + b_k; b_k starts at zero, is trained with the network and never
leaves the client. Beside cross-entropy stands kappa times the mean over features of (m - g)^2 / 2: m is a running mean
of z, m <- (1 - mu) m + mu (mean of the batch), zero when a round begins and with a gradient through the batch alone; g
is the mean feature of everybody's samples, collected once.

The authors collect g in a round of FedAvg whose networks they throw away. Here it is collected in the first round,
which is one without the pull and is kept, and is the mean over all samples of those that answered, not over their last
batches. Where only the cross-entropy is left of the loss, this is FedAvg.

Their kappa for Fashion-MNIST is 50. The pull is a mean over features, so the same kappa is stronger on a network with
few of them, and with momentum: with the settings that methods share here, 50 spoils `mlp:64` on digits, and 1 does not.
With few batches in a round and a small mu, m stays near zero, and features are pulled beyond g.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Equals, Law
from fedsolve.method import Method, Personal, Purpose, Server, Site

if TYPE_CHECKING:
    from fedsolve.families.gradient.training import Loss

BIAS = "extra/bias"  # in a model and in a client's memory; names of a network's tensors have no slashes


@dataclass(frozen=True)
class FedDBE(Averaging, Method):
    """FedAvg with a bias of each client's own below the head, and features held near everybody's mean.

    What is evaluated is the global network with the client's bias.
    """

    name: ClassVar[str] = "feddbe"
    paper: ClassVar[str] = "Zhang et al., DBE, NeurIPS 2023"
    sends: ClassVar[str] = (
        "its trained model times its number of samples, and that number; its training loss; once the sum of its "
        "features; never its bias"
    )
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (Equals("fedavg", kappa=0.0, bias=False),)

    kappa: float = parameters.number(5.0, "strength of the pull of mean features towards everybody's", low=0)
    mu: float = parameters.number(1.0, "share of the last batch in the running mean of features", low=0.001, high=1)
    bias: bool = parameters.flag(True, "a bias of the client's own below the head; false: none")

    # --- server half ---
    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The global model; for training also everybody's mean feature, once it is known."""
        known = {"centre": state["centre"]} if purpose == "update" and "centre" in state else {}
        return {**settings.sent(state), **known}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean of the models; in the first round that of the features, which stays."""
        following = settings.average(replies)
        if "features" in replies:
            following["centre"] = (replies["features"] / int(replies["count"])).astype(np.float32)
        elif "centre" in state:
            following["centre"] = state["centre"]
        return following

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, with the client's bias below its head."""
        from fedsolve.families.gradient import networks, training

        extra = {}
        if self.bias:
            size = networks.feature_size(self.model, site.task)
            extra = {"bias": private[BIAS] if private else np.zeros(size, np.float32)}
        centre = message.get("centre")
        plain = centre is None and not self.bias
        trained, value = training.train(
            self, take("model", message), site, extra=extra, loss=None if plain else self._loss(centre)
        )
        own = {BIAS: trained.pop(BIAS)} if self.bias else {}
        reply = settings.weighted(trained, value, len(site.train))
        if self.kappa and centre is None:
            seen = networks.features(self.model, trained, site.train.inputs, site.task)
            reply["features"] = seen.sum(0, dtype=np.float64)
        return own, reply

    def _loss(self, centre: Array | None) -> Loss:
        """Misfit of what the head makes of z + b, and the pull where there is something to pull to."""
        from fedsolve.families.gradient import losses

        biased = losses.shifted if self.bias else losses.own
        return biased if centre is None else losses.summed(1.0, biased, self.kappa, losses.near_mean(centre, self.mu))

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model, and the client's bias where it has one."""
        return Personal({**take("model", message), **private})

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, with the bias below its head where there is one."""
        from fedsolve.families.gradient import networks

        network = {name: array for name, array in model.items() if name != BIAS}
        if BIAS not in model:
            return networks.predictions(self.model, network, inputs, task)
        seen = networks.features(self.model, network, inputs, task)
        if model[BIAS].shape != seen.shape[1:]:
            raise DataError(
                f"its bias must have shape {seen.shape[1:]}, one number per feature; got {model[BIAS].shape}"
            )
        head = {name: network[name] for name in networks.head(self.model, task)}
        return networks.in_units(networks.head_scores(self.model, head, seen + model[BIAS], task), task)
