"""The server half of methods that average models; torch is imported where it is needed, so that they list without."""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array, Arrays
from fedsolve.data.federation import Task
from fedsolve.families.gradient import settings as _sgd


class Averaging(_sgd.Training):
    """The server half of methods that average models, and what their clients do alike."""

    def init_server(self, task: Task, rng: np.random.Generator) -> Arrays:
        """The first global model."""
        from fedsolve.families.gradient import networks

        return _sgd.packed(networks.initial(self.model, task, rng))

    def message(self, state: Arrays, client: str) -> Arrays:
        """The global model."""
        return _sgd.sent(state)

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """The mean over those that answered."""
        return _sgd.average(state, replies)

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model."""
        return _sgd.unpacked(message)

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the network."""
        from fedsolve.families.gradient import networks

        return networks.scores(self.model, model, inputs)
