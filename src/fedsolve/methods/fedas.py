"""FedAS: a body for all under heads of their own; each client aligns what it is sent with what it knew before.

Yang et al., "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024. On receipt of a body, a
client takes the mean feature of each class under the body that it had trained before, and descends with the received
one on the sum over the classes of a batch of the mean square of its features minus the class's mean. Then it trains the
whole network. The server's next body is the mean of the clients' by weights T_k, the trace of the Fisher information
after training: the sum over batches of the squared length of the gradient of the batch's mean loss.

T depends on the size of batches and grows with their number, as in the authors' code; it vanishes with the loss, and
1e-12 is the least that a client weighs, so that there is a mean where all vanish. Their code aligns the server's own
body, client after client, so that each receives what the others before it made of it; here everybody is sent the same.
A client that has trained nothing yet aligns nothing, and starts from the head of the server's first network, whose seed
it is sent. On a network without a body (`lr`) this is training alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient import settings
from fedsolve.laws import Law, TrainsAlone
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.rng import derive

LEAST = 1e-12  # weight
ALIGNED = 16  # samples in a batch of the alignment


@dataclass(frozen=True)
class FedAS(settings.Training, Method):
    """A body for all, weighed by Fisher information, that each client aligns and trains under a head of its own.

    What is evaluated is the network as the client has trained it.
    """

    name: ClassVar[str] = "fedas"
    paper: ClassVar[str] = "Yang et al., FedAS, CVPR 2024"
    sends: ClassVar[str] = "the body of its trained model times its Fisher trace, and that trace; its training loss"
    laws: ClassVar[tuple[Law, ...]] = (TrainsAlone(model="lr"),)

    align: int = parameters.number(1, "passes over the client's data that align a body", low=0, integer=True)
    align_lr: float = parameters.number(0.01, "learning rate of the alignment", low=0)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first body, and the seed of the network that it is from."""
        seed = np.array(server.rng.integers(2**63))
        return {**under("model", self._body(self._first(seed, server.task), server.task)), "seed": seed}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The body, and the seed of the head that newcomers start from."""
        return {**settings.sent(state), "seed": state["seed"]}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean of the bodies by their traces; beside it the mean training loss over clients."""
        here, trace = int(replies["here"]), float(replies["trace"])
        if not (here >= 1 and trace > 0):
            raise DataError(f"replies must come from clients with a positive trace; got {trace:g} from {here}")
        body = {name: array / array.dtype.type(trace) for name, array in take("model", replies).items()}
        return {**under("model", body), "seed": state["seed"], "loss": np.array(float(replies["loss"]) / here)}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over clients, once they have trained."""
        return settings.mean_loss(state)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Align the body with the client's last one, train it under the client's head, and weigh it."""
        from fedsolve.families.gradient import training

        trained, loss = training.train(self, self._aligned(private, message, site), site)
        trace = max(training.squared_slopes(self, trained, site), LEAST)
        body = {name: array * array.dtype.type(trace) for name, array in self._body(trained, site.task).items()}
        return trained, {**under("model", body), "trace": np.array(trace), "loss": np.array(loss), "here": np.array(1)}

    def _aligned(self, private: Arrays, message: Arrays, site: Site) -> Arrays:
        """The client's network with the body that was sent, aligned where the client has had one before."""
        from fedsolve.families.gradient import losses, networks, training

        start = self._whole(private, message, site.task)
        if not (private and self.align and take("model", message)):
            return start
        means, _ = networks.class_means(self.model, private, site.train, site.task)
        way = settings.Training(self.model, epochs=self.align, batch=ALIGNED, lr=self.align_lr, sgd_momentum=0.0)
        return training.train(
            way, start, site, loss=losses.near_classes, frozen=networks.head(self.model, site.task),
            beside={"mean": means[site.train.labels].astype(np.float32)},
        )[0]  # fmt: skip

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The network as the client trained it; the server's for a client that never took part."""
        return Personal(private or self._whole(private, message, site.task))

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.scores(self.model, model, inputs, task)

    # --- bodies and heads ---
    def _first(self, seed: Array, task: Task) -> dict[str, Array]:
        from fedsolve.families.gradient import networks

        return networks.initial(self.model, task, derive(int(seed)))

    def _body(self, model: Arrays, task: Task) -> dict[str, Array]:
        from fedsolve.families.gradient import networks

        return {name: model[name] for name in sorted(networks.body(self.model, task))}

    def _whole(self, private: Arrays, message: Arrays, task: Task) -> dict[str, Array]:
        """The body that was sent under the client's own head, or the first one."""
        return {**(private or self._first(message["seed"], task)), **take("model", message)}
