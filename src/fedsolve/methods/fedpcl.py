"""FedPCL: projections of one's own, trained to tell classes apart by everybody's class means.

Tan et al., "Federated Learning from Pre-Trained Models: A Contrastive Learning Approach", NeurIPS 2022. Meant for
frozen features (`--features`): the body of `model` is the projection; u is what it gives, rectified and at unit length.
A client tells the mean u of each of its classes, its prototypes; the server sends everybody's to everybody. The local
loss is

    CE(u . P / tau, y) + mean_j CE(u . P_j / tau, y),

with P_j the prototypes of client j, P their mean over clients, and the softmax over classes. Where client j lacks a
class, P stands in for it; a class that nobody has told of is left out. In the first round there are no prototypes, and
nothing trains. The authors' code has the softmax over the samples of a batch in two augmented views; features that are
computed once have one view.

What is evaluated is the nearest of the client's own prototypes. The head of `model` is not used. Prototypes are arrays
with a row per class, and a mask: a public implementation stacks them in the order in which a client met its classes.
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
from fedsolve.families.gradient.table import Table, answered, names_of, written
from fedsolve.laws import Law, OrderFree
from fedsolve.method import Method, Personal, Plan, Purpose, Server, Site

SECOND = 0.999  # of Adam's second moments


@dataclass(frozen=True)
class FedPCL(settings.Training, Method):
    """A projection of one's own, trained on everybody's class means; evaluated: the nearest of one's own means."""

    name: ClassVar[str] = "fedpcl"
    paper: ClassVar[str] = "Tan et al., FedPCL, NeurIPS 2022"
    sends: ClassVar[str] = "the mean projections of its classes, and which these are; its training loss and samples"
    laws: ClassVar[tuple[Law, ...]] = (OrderFree(),)

    lr: float = parameters.number(1e-3, "learning rate of Adam", low=0)
    sgd_momentum: float = parameters.number(0.9, "how much of its first moments Adam keeps", low=0, high=0.999)
    tau: float = parameters.number(0.07, "temperature of the softmax", low=0.001)
    decay: float = parameters.number(1e-4, "weight decay", low=0)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The seed of everybody's first projection, and nobody's prototypes."""
        from fedsolve.families.gradient import networks

        networks.check_body(self.model, server.task, type(self).__name__)
        return prototypes.seed(server)

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Everybody, and the prototypes of each apart."""
        return Plan(tuple(clients), "collect")

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seed; before an update everybody's prototypes, once there are any."""
        told = ("means", "known") if purpose == "update" and "means" in state else ()
        return {name: state[name] for name in ("seed", *told)}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The last prototypes of everybody that ever answered, a row per client."""
        clients, names = answered(replies), names_of(state["clients"]) if "clients" in state else ()
        tables = {
            part: (Table(names, state[part]) if names else Table()).having(
                {client: replies[f"{client}/{part}"].ravel() for client in clients}
            )
            for part in ("means", "known")
        }
        rows = {part: table.rows for part, table in tables.items()}
        kept = {"seed": state["seed"], "clients": written(tables["means"].names), **rows}
        trained = [client for client in clients if f"{client}/loss" in replies]
        if trained:
            total = {n: np.asarray(sum(replies[f"{c}/{n}"] for c in trained)) for n in ("loss", "count")}
            kept["loss"] = settings.pooled_loss(total)
        return kept

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over samples, once clients have trained."""
        return settings.mean_loss(state)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Training of the own projection on everybody's prototypes; then the client's own."""
        from fedsolve.families.gradient import losses, networks, optimisers, training

        own, told = self._own(private, message, site.task), {}
        if "means" in message:
            known = message["known"]
            sets = prototypes.filled(message["means"].reshape(*known.shape, -1), known)
            own, loss = training.train(
                self, own, site, loss=losses.by_prototypes(sets, np.any(known, axis=0), self.tau),
                frozen=networks.head(self.model, site.task),
                optimiser=optimisers.adam(self.lr, (self.sgd_momentum, SECOND), self.decay),
            )  # fmt: skip
            told = settings.told(loss, len(site.train))
        return own, {**self._prototypes(own, site), **told}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The own projection, and the client's own prototypes under it."""
        own = self._own(private, message, site.task)
        return Personal({**own, **under("nearest", self._prototypes(own, site))})

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Minus the squared distance to each prototype of the client's, as sharp as in training."""
        from fedsolve.families.gradient import networks

        near = take("nearest", model)
        own = {name: array for name, array in model.items() if not name.startswith("nearest/")}
        points = prototypes.units(networks.features(self.model, own, inputs, task))
        return networks.nearest(points, near["means"], near["known"]) / (2.0 * self.tau)

    def _own(self, private: Arrays, message: Arrays, task: Task) -> Arrays:
        """The client's projection; before its first round the one that everybody starts from."""
        return private or prototypes.first(self.model, message, task)

    def _prototypes(self, own: Arrays, site: Site) -> dict[str, Array]:
        from fedsolve.families.gradient import networks

        networks.check_inputs(site.train)
        points = prototypes.units(networks.features(self.model, own, site.train.inputs, site.task))
        means, counts = prototypes.by_class(points, site.train.labels, site.task.classes)
        return {"means": means.astype(np.float32), "known": counts > 0}
