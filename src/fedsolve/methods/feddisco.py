"""FedDisco: FedAvg whose weights also look at how far a client's class shares are from even ones.

Ye et al., "FedDisco: Federated Learning with Discrepancy-Aware Collaboration", ICML 2023. Client k weighs
max(0, n_k/n - a d_k + b) (8), normalised over those that answered; d_k is the discrepancy of its class shares from even
ones. As in the authors' code, the divergence of Kullback and Leibler is divided by its sum over clients, the other
discrepancies are not. Weights are kept in units of samples, max(0, n_k - n (a d_k - b)), so that a = b = 0 is FedAvg.

Each weight depends on everybody's numbers, so the server keeps each model until all are there. The authors' constants
are for ten clients: with a hundred, n_k/n is small beside b = 0.1, and weights are nearly equal. Where nobody has a
positive weight, everybody weighs by samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, accumulate, take, under
from fedsolve.errors import DataError
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.families.gradient.table import answered
from fedsolve.laws import Equals, Law, OneModel
from fedsolve.method import Method, Personal, Plan, Server, Site


@dataclass(frozen=True)
class FedDisco(Averaging, Method):
    """FedAvg weighed by samples and by how even a client's classes are; FedAvg itself at a = b = 0."""

    name: ClassVar[str] = "feddisco"
    paper: ClassVar[str] = "Ye et al., FedDisco, ICML 2023"
    sends: ClassVar[str] = "its trained model, its class counts and its training loss"
    laws: ClassVar[tuple[Law, ...]] = (OneModel(), Equals("fedavg", a=0.0, b=0.0))

    a: float = parameters.number(0.5, "what a discrepancy takes off a client's weight", low=0)
    b: float = parameters.number(0.1, "what every client's weight gets", low=0)
    measure: str = parameters.choice("kl", ("kl", "l1", "l2", "cosine"), "what discrepancies are measured by")

    # --- server half ---
    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Everybody, and each model apart."""
        return Plan(tuple(clients), "collect")

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean of the models by their weights; beside it the mean training loss over samples."""
        clients, names = answered(replies), sorted(take("model", state))
        counts = np.stack([replies[f"{client}/labels"] for client in clients])
        weights = self.weights(counts)
        total: dict[str, Array] = {}
        for client, weight in zip(clients, weights, strict=True):
            model = {name: replies[f"{client}/model/{name}"] for name in names}
            total = accumulate(total or None, {n: array * array.dtype.type(weight) for n, array in model.items()})
        loss = sum(
            float(replies[f"{client}/loss"]) * int(own.sum()) for client, own in zip(clients, counts, strict=True)
        )
        mean = {name: array / array.dtype.type(weights.sum()) for name, array in total.items()}
        return {**under("model", mean), "loss": np.array(loss / int(counts.sum()))}

    def weights(self, counts: Array) -> Float:
        """The weight of each client in units of samples, of class counts with one row per client."""
        sizes = counts.sum(1).astype(np.float64)
        if not (sizes > 0).all():
            raise DataError(f"replies must come from at least one sample each; got {sizes.min():g}")
        shares = counts / sizes[:, None]
        found: Float = np.maximum(0.0, sizes - sizes.sum() * (self.a * discrepancies(shares, self.measure) - self.b))
        return found if found.any() else sizes

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model."""
        from fedsolve.families.gradient import training

        trained, loss = training.train(self, take("model", message), site)
        labels = np.bincount(site.train.labels, minlength=site.task.classes)
        return {}, {**under("model", trained), "labels": labels, "loss": np.array(loss)}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))


def discrepancies(shares: Float, measure: str) -> Float:
    """How far each row of class shares is from even ones."""
    classes = shares.shape[1]
    found: Float
    if measure == "kl":
        found = np.sum(shares * np.log(np.where(shares > 0, shares, 1.0) * classes), axis=1)
        total = found.sum()
        return found / total if total > 0 else np.zeros_like(found)
    if measure == "cosine":  # of shares, which sum to one, with even ones
        found = 1.0 - 1.0 / (np.linalg.norm(shares, axis=1) * np.sqrt(classes))
    else:
        found = np.linalg.norm(shares - 1.0 / classes, ord=1 if measure == "l1" else 2, axis=1)
    return found
