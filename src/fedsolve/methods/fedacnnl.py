"""FedACnnL: a deep network, trained layer by layer by least squares; one round per layer, no gradients.

Gu et al., "Analytic Personalized Federated Meta-Learning", 2025. Each hidden layer is fitted to the labels
times a random matrix, the last one to the labels (1); sums over clients give the pooled solution of every layer (5),
whatever the split and whatever the size of the blocks that clients work in. gamma is added once: (3) as printed would
add it once per client. The size of blocks follows (7) in a form that settles, or as it is printed (`pace`); see
`fedsolve.runtime.pace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.families import layered as nets
from fedsolve.families.layered import layers
from fedsolve.families.layered.settings import Layerwise, asked, first_state, layer_update, next_layer
from fedsolve.laws import Law, OneModel, OrderFree, SplitInvariant
from fedsolve.method import Method, Personal, Purpose, Server, Site


@dataclass(frozen=True)
class FedACnnL(Layerwise, Method):
    """One network for all, equal to the same layer-wise training on the pooled data."""

    name: ClassVar[str] = "fedacnnl"
    paper: ClassVar[str] = "Gu et al., Analytic Personalized Federated Meta-Learning (FedACnnL), 2025"
    sends: ClassVar[str] = "X'X (one triangle) and X'Z of each layer's inputs and targets, once per layer"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (SplitInvariant(), OrderFree(), OneModel())

    @property
    def rounds(self) -> int:
        """One round per trained layer; a layer of patches takes a few."""
        return nets.parse(self.network).rounds

    def init_server(self, server: Server) -> Arrays:
        """The seed of the label encodings. A network that does not fit the inputs is refused here."""
        return first_state(self, server)

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seed and the layers so far."""
        return asked(state) if purpose == "update" else layers.network_of(state)

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """FedACnnL (5): the next layer from the sum over those that answered."""
        return next_layer(self, state, replies, server.task)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The inputs of the next layer, kept where there is room, and the statistics of that layer."""
        return layer_update(self, private, message, site, tag=0)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The network that all clients trained together, as it was sent."""
        return Personal(message)

    def shared(self, message: Arrays) -> Arrays | None:
        """The same network: there is no other."""
        return message

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the last layer there is."""
        return layers.scores(self.reader(), model, inputs, task.target)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times the sharpness of the last layer, which follows from its sums."""
        return layers.probabilities(model, scores)
