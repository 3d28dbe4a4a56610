"""FedProto: clients share nothing but the mean features of their classes, and train theirs towards everybody's.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. The local loss is
cross-entropy plus lam times the mean square of z - P_y over all numbers of a batch, with z what the head sees and P_y
the global mean of the sample's class; samples whose class has none yet have no such term, but count in the mean. After
training a client tells the means of its classes, found in a pass of their own: those that the authors' code gathers
while it trains lag behind the network. Global means have one vote per client, as in that code; `by_samples` weighs them
(the paper prints such weights, and divides by the number of clients once more, which is no mean). A sample is taken for
the class of the nearest P_c, of those that its client has, or for what the head says.

At lam = 0 the networks are those of training alone. The authors have a momentum of 0.5, and lam = 0.1 for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.families.gradient import prototypes, settings
from fedsolve.laws import Law, TrainsAlone
from fedsolve.method import Method, Personal, Purpose, Server, Site


@dataclass(frozen=True)
class FedProto(settings.Training, Method):
    """A network of one's own, with features of a class drawn to everybody's; evaluated: the nearest class mean."""

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = "Tan et al., FedProto, AAAI 2022"
    sends: ClassVar[str] = "the mean features of its classes, and which these are; its training loss and samples"
    laws: ClassVar[tuple[Law, ...]] = (TrainsAlone(lam=0.0, decide="head"),)

    lam: float = parameters.number(1.0, "strength of the pull of features towards the mean of their class", low=0)
    by_samples: bool = parameters.flag(False, "weigh a client's means by their samples; false: one vote per client")
    decide: str = parameters.choice(
        "means", ("means", "head"), "predict by the nearest global mean of a class that one has, or by one's head"
    )

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The seed of everybody's first network, and no means."""
        return {**prototypes.seed(server), **prototypes.unknown(self.model, server.task)}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seed and the global means, the same for every client."""
        return {name: state[name] for name in ("seed", "means", "known")}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The means over those that have a class."""
        means = prototypes.renewed(state, replies["means"], replies["votes"])
        return {"seed": state["seed"], **means, "loss": settings.pooled_loss(replies)}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over samples, once clients have trained."""
        return settings.mean_loss(state)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Training of the own network with features near the means; then the client's own means."""
        from fedsolve.families.gradient import losses, networks, training

        labels, loss, beside = site.train.labels, None, {}
        if self.lam and message["known"].any():
            beside = {"aim": message["means"][labels], "aimed": message["known"][labels]}
            loss = losses.plus(
                self.lam, lambda batch: losses.off(batch.features, batch.beside["aim"], batch.beside["aimed"])
            )
        trained, value = training.train(self, self._own(private, message, site), site, loss=loss, beside=beside)
        means, counts = networks.class_means(self.model, trained, site.train, site.task)
        votes = counts if self.by_samples else np.sign(counts)
        reply = {"means": (means * votes[:, None]).astype(np.float32), "votes": votes}
        return trained, {**reply, **settings.told(value, len(labels))}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The own network; with it the means of the classes that the client has, unless the head decides."""
        own = self._own(private, message, site)
        if self.decide == "head":
            return Personal(own)
        here = np.bincount(site.train.labels, minlength=site.task.classes) > 0
        return Personal({**own, **under("nearest", {"means": message["means"], "known": here & message["known"]})})

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Minus the squared distance to each mean; the head's scores where there are no means."""
        from fedsolve.families.gradient import networks

        near = take("nearest", model)
        own = {name: array for name, array in model.items() if not name.startswith("nearest/")}
        if not near or not near["known"].any():
            return networks.scores(self.model, own, inputs, task)
        return networks.nearest(networks.features(self.model, own, inputs, task), near["means"], near["known"])

    def _own(self, private: Arrays, message: Arrays, site: Site) -> Arrays:
        """The client's network; before its first round the one that everybody starts from."""
        return private or prototypes.first(self.model, message, site.task)
