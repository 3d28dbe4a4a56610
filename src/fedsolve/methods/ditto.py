"""Ditto: a global model by FedAvg, and beside it a personal one that is held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021: the personal model descends
on F_k(v) + lam/2 |v - w|^2, with w the global model that was received; it never leaves the client.
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
class Ditto(Averaging, Method):
    """FedAvg's global model, and a personal one trained near it: training alone at lam = 0."""

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al., Ditto, ICML 2021"
    sends: ClassVar[str] = "its trained copy of the global model times its number of samples, and that number; its loss"
    laws: ClassVar[frozenset[str]] = frozenset({"local-at-lam-0"})

    lam: float = parameters.number(1.0, "strength of the pull of the personal model towards the global one", low=0)

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """Training of the personal model, which starts as the first global one, then of the global one."""
        from fedsolve.families.gradient import training as _torch

        shared = _sgd.unpacked(message)
        pull = _torch.towards(shared, self.lam, self.model, task)
        personal, _ = _torch.train(self, private or shared, task, train, rng, hook=pull)
        trained, loss = _torch.train(self, shared, task, train, rng)
        return personal, _sgd.weighted(trained, loss, len(train))

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The personal model; the global one for a client that never took part."""
        return private or _sgd.unpacked(message)
