"""The server half of methods that average models; torch is imported where it is needed, so that they list without."""

from __future__ import annotations

from collections.abc import Mapping

from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.families.gradient import settings
from fedsolve.method import Purpose, Server


class Averaging(settings.Training):
    """The server half of methods that average models, and what their clients do alike."""

    def init_server(self, server: Server) -> Arrays:
        """The first global model."""
        from fedsolve.families.gradient import networks

        return under("model", networks.initial(self.model, server.task, server.rng))

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The global model."""
        return settings.sent(state)

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean over those that answered."""
        return settings.average(replies)

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss."""
        return settings.mean_loss(state)

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model."""
        return take("model", message)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the network."""
        from fedsolve.families.gradient import networks

        return networks.scores(self.model, model, inputs, task)
