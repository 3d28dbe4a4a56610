"""FedAMP: every client is sent a mean of all models in which those that are near its own weigh more.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021. Client i is sent

    u_i = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j  over j other than i,  xi_ij = alpha A'(|w_i - w_j|^2),

with A(x) = 1 - e^(-x/sigma), so that xi_ij = (alpha/sigma) e^(-|w_i - w_j|^2 / sigma), and descends from u_i on
F_i(v) + lam/(2 alpha) |v - u_i|^2 to its next w_i, which is what is evaluated. Models that are alike are drawn
together, others are left apart.

What is ours: squared distances are counted in their mean over all pairs of clients, which depends on the network and
on the round, and so are sigma, alpha and lam; the ratios alpha/sigma and lam/alpha are as printed. Nothing in the paper
keeps 1 - sum_j xi_ij from being negative, as it is near the start, where all distances are zero: what a client takes
from others is scaled down to 1 - 1/N where it is more, so that its own model never weighs less than an even share.
alpha is small by default: the nearest models are often those that have hardly moved, and who takes much of them stays
behind with them. The authors' constants are not known here. The pull is weak for the same reason, lam/alpha = 0.1: on
training samples of Fashion-MNIST that were held back it did better than 0.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Arrays, Float, take, under
from fedsolve.errors import ParameterError
from fedsolve.families.gradient import parts
from fedsolve.families.gradient.table import (
    Apart,
    answered,
    flat,
    mean_loss,
    shaped,
    squared_distances,
    table_of,
    written,
)
from fedsolve.laws import Law, OrderFree, TrainsAlone
from fedsolve.method import Method, Personal, Purpose, Server, Site


@dataclass(frozen=True)
class FedAMP(Apart, Method):
    """A mean of all models for each client, in which near ones weigh more; what it trains that to is its model."""

    name: ClassVar[str] = "fedamp"
    paper: ClassVar[str] = "Huang et al., FedAMP, AAAI 2021"
    sends: ClassVar[str] = "its trained model, its training loss and its number of samples"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (
        OrderFree(),
        TrainsAlone(alpha=0.0, lam=0.0),
        TrainsAlone(clients=1, lam=0.0),
    )

    alpha: float = parameters.number(0.001, "how much of other models is sent, in mean squared distances", low=0)
    sigma: float = parameters.number(1.0, "how far models listen to each other, in mean squared distances", low=1e-6)
    lam: float = parameters.number(0.0001, "over alpha: strength of the pull towards what was sent", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam > 0 and not self.alpha > 0:
            raise ParameterError(
                f"parameter 'alpha' of FedAMP must be above 0 where lam={self.lam:g}, since the pull is lam / alpha; "
                "set lam=0 as well for training alone"
            )

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first model, and nobody's own yet."""
        from fedsolve.families.gradient import networks

        model = networks.initial(self.model, server.task, server.rng)
        trained = networks.parameter_names(self.model, server.task)
        return {**under("start", parts.parted(model, model, trained)), "clients": written([])}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The client's mean of all models; the first model for a client that never answered."""
        start = take("start", state)
        row = table_of(state, "means").row(client)
        sent = start if row is None else shaped(row, start, parts.order(start))
        return under("model", {name.partition("/")[2]: array for name, array in sent.items()})

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """New models in the place of those that the same clients had, and everybody's mean of them."""
        start = take("start", state)
        names = [name.partition("/")[2] for name in parts.order(start)]
        trained = {client: flat(replies, [f"model/{name}" for name in names], client) for client in answered(replies)}
        models = table_of(state, "models").having(trained)
        weights = self.weights(squared_distances(models.rows[:, : parts.parameters(start)]))  # buffers do not count
        return {
            **under("start", start),
            "clients": written(models.names),
            "models": models.rows,
            "means": weights.astype(np.float32) @ models.rows,
            "weights": weights,
            "loss": mean_loss(replies),
        }

    def weights(self, apart: Float) -> Float:
        """How much of each model, by column, a client is sent, by row, of the squared distances of all pairs."""
        count = len(apart)
        others = 1.0 - np.eye(count)
        mean = apart.sum() / max(1, count * (count - 1))
        near = np.exp(-apart / (self.sigma * mean)) if mean > 0 else np.ones_like(apart)
        found: Float = self.alpha / self.sigma * near * others
        taken, most = found.sum(1, keepdims=True), 1.0 - 1.0 / count
        found *= np.where(taken > most, most / np.where(taken > 0, taken, 1.0), 1.0)
        found += np.diag(1.0 - found.sum(1))
        return found

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the mean that was sent, and near it."""
        from fedsolve.families.gradient import hooks, training

        mean = take("model", message)
        pull = hooks.towards(mean, self.lam / self.alpha if self.lam else 0.0, self.model, site.task)
        trained, loss = training.train(self, mean, site, hook=pull)
        return trained, {**under("model", trained), "loss": np.array(loss), "count": np.array(len(site.train))}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The model as the client trained it; the first one for a client that never took part."""
        return Personal(private or take("model", message))
