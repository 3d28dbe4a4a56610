"""What methods that average models share; torch is imported where it is needed, so that they list without it."""

from __future__ import annotations

from collections.abc import Mapping

from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.families.gradient import settings
from fedsolve.method import Personal, Purpose, Server, Site


class Averaging(settings.Training):
    """The server half of methods that average models, and what their clients do alike."""

    def init_server(self, server: Server) -> Arrays:
        """The first global model, its weights drawn from the server's generator."""
        from fedsolve.families.gradient import networks

        return under("model", networks.initial(self.model, server.task, server.rng))

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The global model of the server's state, the same for every client."""
        return settings.sent(state)

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean over those that answered."""
        return settings.average(replies)

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over samples, once clients have trained."""
        return settings.mean_loss(state)

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model, as it was sent."""
        return take("model", message)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.predictions(self.model, model, inputs, task)


def trained_near(method: settings.Training, message: Arrays, site: Site, *, pull: float = 0.0) -> dict[str, Array]:
    """The reply of a client that trains the global model w on F_k(v) + pull/2 |v - w|^2; without a pull, on F_k."""
    from fedsolve.families.gradient import hooks, training

    shared = take("model", message)
    hook = hooks.towards(shared, pull, method.model, site.task)
    trained, loss = training.train(method, shared, site, hook=hook)
    return settings.weighted(trained, loss, len(site.train))


def fine_tuned(method: settings.Training, message: Arrays, site: Site, passes: int) -> Personal:
    """The global model after `passes` over the client's own data, without any pull."""
    from fedsolve.families.gradient import training

    return Personal(training.train(method, take("model", message), site, epochs=passes)[0])
