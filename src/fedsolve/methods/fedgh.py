"""FedGH: clients keep their bodies; the server trains one head for all on the mean features of their classes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023. A client puts the head
that it was sent on its own body, trains both, and tells the mean features of each of its classes. The server takes each
mean for a sample of its class, and descends on the cross-entropy of its head on them, in batches. The authors' code
gives the server's optimiser the parameters of another network, so that its head stays the first one; here it learns.
Their clients average the means of batches, in which samples of small batches weigh more; here a mean is that of all
samples of a class, under the trained network.

What is evaluated is the network as the client trained it, as in that code; `evaluate=global` puts the server's head on
the client's body. The server's learning rate and batch are the authors', the number of its passes is ours: with one,
twenty clients of a few classes each give the head one to three steps in a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.families.gradient import prototypes, settings
from fedsolve.families.gradient.table import answered
from fedsolve.laws import Law, OrderFree, TrainsAlone
from fedsolve.method import Method, Personal, Plan, Purpose, Server, Site


@dataclass(frozen=True)
class FedGH(settings.Training, Method):
    """A body of one's own under a head that the server trains on everybody's class means; evaluated: both, trained."""

    name: ClassVar[str] = "fedgh"
    paper: ClassVar[str] = "Yi et al., FedGH, ACM MM 2023"
    sends: ClassVar[str] = "the mean features of its classes, and which these are; its training loss and samples"
    laws: ClassVar[tuple[Law, ...]] = (TrainsAlone(rounds=1, evaluate="own"), OrderFree())

    server_lr: float = parameters.number(0.01, "learning rate of the head on the server", low=0)
    server_passes: int = parameters.number(1, "passes over all class means in a round", low=1, integer=True)
    server_batch: int = parameters.number(64, "class means in a batch of the server", low=1, integer=True)
    evaluate: str = parameters.choice(
        "own", ("own", "global"), "one's network as one trained it, or its body under the server's head"
    )

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The seed of everybody's first network, and its head."""
        from fedsolve.families.gradient import networks

        seed = prototypes.seed(server)
        first = prototypes.first(self.model, seed, server.task)
        return {**seed, **under("head", {n: first[n] for n in sorted(networks.head(self.model, server.task))})}

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Everybody, and the means of each apart."""
        return Plan(tuple(clients), "collect")

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seed and the server's head, the same for every client."""
        return {"seed": state["seed"], **under("head", take("head", state))}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The head learns from all class means of those that answered."""
        from fedsolve.families.gradient import descent

        clients = answered(replies)
        known = np.stack([replies[f"{client}/known"] for client in clients])
        means = np.stack([replies[f"{client}/means"] for client in clients])
        head = descent.taught(
            take("head", state), means[known], np.nonzero(known)[1], self.model, server.task, server.rng,
            lr=self.server_lr, passes=self.server_passes, batch=self.server_batch,
        )  # fmt: skip
        total = {name: sum(replies[f"{client}/{name}"] for client in clients) for name in ("loss", "count")}
        loss = settings.pooled_loss({name: np.asarray(value) for name, value in total.items()})
        return {"seed": state["seed"], **under("head", head), "loss": loss}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over samples, once clients have trained."""
        return settings.mean_loss(state)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Training of the own body under the head that was sent; then the client's class means."""
        from fedsolve.families.gradient import networks, training

        trained, loss = training.train(self, self._joined(private, message, site.task), site)
        means, counts = networks.class_means(self.model, trained, site.train, site.task)
        reply = {"means": means.astype(np.float32), "known": counts > 0}
        return trained, {**reply, **settings.told(loss, len(site.train))}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The network as the client trained it; or under the server's head, as for one that never took part."""
        trained = self.evaluate == "own" and bool(private)
        return Personal(private if trained else self._joined(private, message, site.task))

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.scores(self.model, model, inputs, task)

    def _joined(self, private: Arrays, message: Arrays, task: Task) -> dict[str, Array]:
        """The client's body, or the first one of all, under the head that was sent."""
        return {**(private or prototypes.first(self.model, message, task)), **take("head", message)}
