"""FedProx: FedAvg with local training held near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020: the local loss is
F_k(v) + mu/2 |v - w|^2 (2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Arrays
from fedsolve.data.federation import Samples, Task
from fedsolve.families.gradient import settings as _sgd
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.method import Method


@dataclass(frozen=True)
class FedProx(Averaging, Method):
    """FedAvg whose local loss has mu/2 |v - w|^2 beside it; FedAvg itself at mu = 0."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., FedProx, MLSys 2020"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    laws: ClassVar[frozenset[str]] = frozenset({"one-model", "fedavg-at-mu-0"})

    mu: float = parameters.number(0.01, "strength of the pull towards the global model", low=0)

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """Local training from the global model, and near it."""
        from fedsolve.families.gradient import training as _torch

        shared = _sgd.unpacked(message)
        pull = _torch.towards(shared, self.mu, self.model, task)
        trained, loss = _torch.train(self, shared, task, train, rng, hook=pull)
        return {}, _sgd.weighted(trained, loss, len(train))

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The global model."""
        return _sgd.unpacked(message)
