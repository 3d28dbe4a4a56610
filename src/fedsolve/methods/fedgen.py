"""FedGen: the server learns to make features of a class that all heads agree on, and clients train on them, too.

Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021. The generator G(y, e)
learns on the server, from the clients' heads, labels and noise alone (4). From the second round on, clients add to
their cross-entropy alpha CE(head(G(y')), y'), for labels y' that are drawn, and beta KL(head(G(y)) || scores of x), for
the labels y of the batch; both fade by 0.98 per round, as does the generator's learning rate. What a head gives is
taken for scores: a network should do nothing behind its head that changes which is largest.

Constants are the authors' for MNIST. Their clients have no momentum: with 0.9, an alpha and beta of 10 are too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Arrays, take, under
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Equals, Law, OneModel
from fedsolve.method import Method, Personal, Plan, Purpose, Server, Site

FADE = 0.98  # per round: of alpha, of beta, and of the generator's learning rate


@dataclass(frozen=True)
class FedGen(Averaging, Method):
    """FedAvg, with a generator of features on the server that clients learn from; FedAvg at alpha = beta = 0."""

    name: ClassVar[str] = "fedgen"
    paper: ClassVar[str] = "Zhu et al., FedGen, ICML 2021"
    sends: ClassVar[str] = (
        "its trained model times its number of samples; its head; its class counts; its training loss"
    )
    laws: ClassVar[tuple[Law, ...]] = (OneModel(), Equals("fedavg", alpha=0.0, beta=0.0))

    sgd_momentum: float = parameters.number(0.0, "momentum of SGD; the authors have none", low=0, high=1)
    alpha: float = parameters.number(10.0, "strength of cross-entropy on generated features", low=0)
    beta: float = parameters.number(10.0, "strength of the pull of scores to those of generated features", low=0)
    steps: int = parameters.number(50, "steps of the generator in a round", low=1, integer=True)
    drawn: int = parameters.number(32, "features that are generated for a step", low=2, integer=True)
    noise: int = parameters.number(32, "random numbers that a feature is made of", low=1, integer=True)
    hidden: int = parameters.number(256, "width of the generator", low=1, integer=True)
    generator_lr: float = parameters.number(3e-4, "learning rate of the generator (Adam)", low=0)
    decay: float = parameters.number(0.01, "weight decay of the generator", low=0)

    @property
    def _generates(self) -> bool:
        """Whether anybody looks at what is generated."""
        return self.alpha > 0 or self.beta > 0

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first model, and a generator that has learnt nothing."""
        from fedsolve.families.gradient import generator, networks

        state = under("model", networks.initial(self.model, server.task, server.rng))
        if not self._generates:
            return state
        size = networks.feature_size(self.model, server.task)
        first = generator.first(self.noise, self.hidden, server.task.classes, size, server.rng)
        return {**state, **under("generator", first)}

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Everybody; models are summed, heads and class counts stay apart."""
        return Plan(tuple(clients), "sum", each=("head", "labels"))

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The global model; with it the generator, once it has learnt, and the labels that it knows."""
        sent = settings.sent(state)
        if purpose == "personalize" or "labels" not in state:
            return sent
        return {**sent, **under("generator", take("generator", state)), "labels": state["labels"]}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean of the models; and the generator learns from the heads."""
        following = settings.average(replies)
        if not self._generates:
            return following
        from fedsolve.families.gradient import generator

        clients = sorted(name.removesuffix("/labels") for name in replies if name.endswith("/labels"))
        heads = [take(f"{client}/head", replies) for client in clients]
        counts = np.stack([replies[f"{client}/labels"] for client in clients])
        lr = self.generator_lr * FADE ** (server.round - 1)
        learnt, memory = generator.learn(
            take("generator", state), take("memory", state), heads, counts,
            generator.Lesson(self.steps, self.drawn, lr, self.decay), self.model, server.task, server.rng,
        )  # fmt: skip
        labels = np.flatnonzero(counts.sum(0))
        return {**following, **under("generator", learnt), **under("memory", memory), "labels": labels}

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, on samples and on generated features."""
        from fedsolve.families.gradient import generator, networks, training

        loss = None
        if "labels" in message:
            aside = site.rng.spawn(1)[0]  # so that training draws as FedAvg's does
            fade = FADE ** (site.round - 1)
            loss = generator.taught(
                take("generator", message), message["labels"], self.drawn, fade * self.alpha, fade * self.beta,
                site.task.classes, aside,
            )  # fmt: skip
        trained, value = training.train(self, take("model", message), site, loss=loss)
        reply = settings.weighted(trained, value, len(site.train))
        if self._generates:
            head = {name: trained[name] for name in sorted(networks.head(self.model, site.task))}
            reply |= under("head", head)
            reply["labels"] = np.bincount(site.train.labels, minlength=site.task.classes)
        return {}, reply

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))
