"""FedAvg: local SGD from the global model, then the mean of the models, weighted by samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve.arrays import Arrays
from fedsolve.data.federation import Samples, Task
from fedsolve.families.gradient import settings as _sgd
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.method import Method


@dataclass(frozen=True)
class FedAvg(Averaging, Method):
    """One global model by gradient descent: w = sum n_k w_k / sum n_k of locally trained w_k, round after round."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., FedAvg, AISTATS 2017"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    laws: ClassVar[frozenset[str]] = frozenset({"one-model"})

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """Local training from the global model."""
        from fedsolve.families.gradient import training as _torch

        trained, loss = _torch.train(self, _sgd.unpacked(message), task, train, rng)
        return {}, _sgd.weighted(trained, loss, len(train))

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The global model."""
        return _sgd.unpacked(message)
