"""FedACnnL: a deep network, trained layer by layer by least squares; one round a layer, no gradients.

Gu et al., "Analytic Personalized Federated Meta-Learning", 2025. Each hidden layer is fitted to the labels
times a random matrix, the last one to the labels (1); sums over clients give the pooled solution of every layer (5),
whatever the split and whatever the size of the blocks that clients work in. gamma is added once: (3) as printed would
add it once a client. The size of blocks follows (7) in a form that settles; see `fedsolve.runtime.pace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, under
from fedsolve.data.task import Task
from fedsolve.families import layered as nets
from fedsolve.families.layered import layers
from fedsolve.families.ridge import calibration
from fedsolve.laws import Law, OneModel, OrderFree, SplitInvariant
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.moments import Moments


@dataclass(frozen=True)
class FedACnnL(Method):
    """One network for all, equal to the same layer-wise training on the pooled data."""

    name: ClassVar[str] = "fedacnnl"
    paper: ClassVar[str] = "Gu et al., Analytic Personalized Federated Meta-Learning (FedACnnL), 2025"
    sends: ClassVar[str] = "X'X (one triangle) and X'Y of each layer's inputs, once a layer"
    laws: ClassVar[tuple[Law, ...]] = (SplitInvariant(), OrderFree(), OneModel())

    network: str = parameters.text(
        "mlp:128,64", "layers: lr, mlp:128,64, dcnn:0.125 or conv:3x3x32,relu,...,dense", nets.parse
    )
    gamma: float = parameters.number(10.0, "ridge of every layer, added once on the server", low=0)
    scale: str = parameters.choice(
        "auto", nets.SCALES, "of the inputs: unit length, or square roots first (power); auto: power for images"
    )
    block: int = parameters.number(
        4096, "rows a client works on at a time; of a convolution, patches", low=1, integer=True
    )
    adaptive: bool = parameters.flag(False, "slow clients are told to use larger blocks, up to limit")
    limit: int = parameters.number(32768, "rows in a block that a client has memory for", low=1, integer=True)
    cache: float = parameters.number(
        128.0, "megabytes in which a client may keep activations for the next layer", low=0
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def rounds(self) -> int:
        """One a trained layer."""
        return nets.parse(self.network).depth

    @property
    def paced(self) -> bool:
        """Whether blocks follow the time that clients take."""
        return self.adaptive

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own on the inputs, with a constant as every layer has here."""
        return {"intercept": True}

    def init_server(self, server: Server) -> Arrays:
        """The seed of the label encodings. A network that does not fit the inputs is refused here."""
        self._reader().stages(server.task)
        return {"seeds": server.rng.integers(2**31, size=1)}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seed and the layers so far."""
        return layers.network_of(state)

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """FedACnnL (5): the next layer from the sum over those that answered."""
        layer = layers.solved_layer(Moments.from_arrays(replies), self.gamma)
        return {**state, **under(f"layer/{len(layers.layers(state))}", layer)}

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The statistics of the next layer, and its inputs to keep where there is room."""
        reader = self._reader(layers.paced(self.block, self.limit, site.pace if self.adaptive else None))
        stages, depth = reader.stages(site.task), len(layers.layers(message))
        source = layers.restore(private, site.train, 0, depth)
        if depth + 1 < len(stages):  # nobody needs the inputs of the last layer again
            source = layers.moved(reader, stages, message, source, depth, 1e6 * self.cache)
        own = layers.statistics(reader, stages, message, source, site.train.labels, depth)
        return layers.keep(source, 0), own.arrays()

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The network of all."""
        return Personal(message)

    def shared(self, message: Arrays) -> Arrays | None:
        """The network of all."""
        return message

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the last layer there is."""
        return layers.scores(self._reader(), model, inputs)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times the sharpness of the last layer, which follows from its sums."""
        return calibration.probabilities(layers.layers(model)[-1], scores)

    def _reader(self, block: int | None = None) -> layers.Reader:
        return layers.Reader(nets.parse(self.network), self.scale, block or self.block)
