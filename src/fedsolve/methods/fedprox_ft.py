"""FedProx, and then some more training of each client's own, without the pull towards the global model."""

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
class FedProxFT(Averaging, Method):
    """FedProx's global model, fine-tuned by each client on its own data."""

    name: ClassVar[str] = "fedprox-ft"
    paper: ClassVar[str] = "Li et al., FedProx, MLSys 2020, with fine-tuning"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    laws: ClassVar[frozenset[str]] = frozenset({"fedavg-at-mu-0"})

    mu: float = parameters.number(0.01, "strength of the pull towards the global model", low=0)
    finetune: int = parameters.number(2, "passes over the client's data after the last round", low=0, integer=True)

    def init_client(self, task: Task, train: Samples, rng: np.random.Generator) -> Arrays:
        """The seed of fine-tuning."""
        return _sgd.seed(rng)

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """Local training from the global model, and near it."""
        from fedsolve.families.gradient import training as _torch

        shared = _sgd.unpacked(message)
        pull = _torch.towards(shared, self.mu, self.model, task)
        trained, loss = _torch.train(self, shared, task, train, rng, hook=pull)
        return private, _sgd.weighted(trained, loss, len(train))

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The global model after `finetune` passes over the client's data."""
        from fedsolve.families.gradient import training as _torch

        rng = _sgd.generator(private)
        return _torch.train(self, _sgd.unpacked(message), task, train, rng, epochs=self.finetune)[0]
