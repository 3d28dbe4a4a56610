"""FedPAC: one body for all, whose features of a class agree; and for each client a mixture of everybody's heads.

Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023. A client
first looks at its features z under the body that everybody was sent: h, the means of its classes times their shares,
and V, how unsure its samples leave it of them. Then it trains its head alone, then the body alone, on cross-entropy
plus lam times the mean square of z less the global mean of the sample's class (its own where there is no global one; no
such term in the first round). The server averages bodies and class means over samples, and mixes a head for each client
with weights that V and h decide: see `families/gradient/mixture.py`.

Constants are the authors', but for a weight decay. Their momentum of 0.5 is that of the head's pass, whose learning
rate is large; the body has that of all methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.families.gradient import mixture, prototypes, settings
from fedsolve.families.gradient.table import Table, flat, names_of, shaped, written
from fedsolve.laws import Law
from fedsolve.method import Method, Personal, Plan, Purpose, Server, Site

HEAD_MOMENTUM = 0.5


@dataclass(frozen=True)
class FedPAC(settings.Training, Method):
    """A body for all with aligned features, and heads mixed for each client; evaluated: both, as the client trained."""

    name: ClassVar[str] = "fedpac"
    paper: ClassVar[str] = "Xu et al., FedPAC, ICLR 2023"
    sends: ClassVar[str] = (
        "its body times its number of samples; its head; sums of its features by class and their spread; its class "
        "counts; its training loss"
    )
    laws: ClassVar[tuple[Law, ...]] = ()

    lam: float = parameters.number(1.0, "strength of the pull of features towards the mean of their class", low=0)
    head_lr: float = parameters.number(0.1, "learning rate of the head", low=0)
    head_epochs: int = parameters.number(1, "passes for the head, before those for the body", low=1, integer=True)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first body, the head that everybody starts with, and no class means."""
        from fedsolve.families.gradient import networks

        task = server.task
        first, body = networks.initial(self.model, task, server.rng), networks.body(self.model, task)
        networks.check_body(self.model, task, type(self).__name__)
        return {
            **under("model", {name: array for name, array in first.items() if name in body}),
            **under("head", {name: array for name, array in first.items() if name not in body}),
            **prototypes.unknown(self.model, task), "clients": written([]),
        }  # fmt: skip

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Everybody; bodies and class sums are summed, heads and what mixes them stay apart."""
        return Plan(tuple(clients), "sum", each=("head", "about"))

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The body and the client's head, the first one where it never answered; before an update the class means."""
        first = take("head", state)
        row = _heads(state).row(client)
        head = first if row is None else shaped(row, first, sorted(first))
        means = {name: state[name] for name in ("means", "known")} if purpose == "update" else {}
        return {**settings.sent(state), **under("head", head), **means}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The means of bodies and of class features over samples, and a mixture of heads for each that answered."""
        first = take("head", state)
        clients = sorted(name.removesuffix("/about/spread") for name in replies if name.endswith("/about/spread"))
        heads = np.stack([flat(take(f"{client}/head", replies), sorted(first)) for client in clients])
        spread = np.array([float(replies[f"{client}/about/spread"]) for client in clients])
        shapes = np.stack([replies[f"{client}/about/shape"].ravel() for client in clients]).astype(np.float64)
        mixed = mixture.weights(spread, shapes).astype(heads.dtype) @ heads
        table = _heads(state).having(dict(zip(clients, mixed, strict=True)))
        return {
            **settings.average(replies), **under("head", first),
            "clients": written(table.names), "heads": table.rows,
            **prototypes.renewed(state, replies["sums"], replies["counts"]),
        }  # fmt: skip

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over samples, once clients have trained."""
        return settings.mean_loss(state)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """What the features are like under the body that was sent; then the head's training, then the body's."""
        from fedsolve.families.gradient import losses, networks, optimisers, training

        start, labels, head = self._joined(message), site.train.labels, networks.head(self.model, site.task)
        networks.check_inputs(site.train)
        points = networks.features(self.model, start, site.train.inputs, site.task)
        means, counts = prototypes.by_class(points, labels, site.task.classes)
        about = mixture.statistics(points, means, counts)
        there, _ = training.train(
            self, start, site, epochs=self.head_epochs, frozen=frozenset(start) - head,
            optimiser=optimisers.sgd(self.head_lr, HEAD_MOMENTUM),
        )  # fmt: skip
        loss, beside, known = None, {}, message["known"]
        if self.lam and known.any():
            aims = np.where(known[:, None], message["means"], means.astype(np.float32))
            beside = {"aim": aims[labels], "aimed": np.ones(len(labels), bool)}
            loss = losses.plus(
                self.lam, lambda batch: losses.off(batch.features, batch.beside["aim"], batch.beside["aimed"])
            )
        trained, value = training.train(self, there, site, frozen=head, loss=loss, beside=beside)
        after, _ = networks.class_means(self.model, trained, site.train, site.task)
        reply = {
            **settings.weighted({n: a for n, a in trained.items() if n not in head}, value, len(labels)),
            **under("head", {name: trained[name] for name in head}), **under("about", about),
            "sums": (after * counts[:, None]).astype(np.float32), "counts": counts,
        }  # fmt: skip
        return trained, reply

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The network as the client trained it; what was sent for a client that never took part."""
        return Personal(private or self._joined(message))

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.scores(self.model, model, inputs, task)

    def _joined(self, message: Arrays) -> dict[str, Array]:
        return {**take("model", message), **take("head", message)}


def _heads(state: Arrays) -> Table:
    """The mixed heads of a state, one row per client; before the first round there are none."""
    return Table(names_of(state["clients"]), state["heads"]) if "heads" in state else Table()
