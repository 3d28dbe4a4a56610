"""FedACnnL: a deep network, trained layer by layer by least squares; one round a layer, no gradients.

Gu et al., "Analytic Personalized Federated Meta-Learning", 2025. Each hidden layer is fitted to the labels
times a random matrix, the last one to the labels (1); sums over clients give the pooled solution of every layer (5),
whatever the split and whatever the size of the blocks that clients work in. gamma is added once: (3) as printed would
add it once a client. The size of blocks follows (7) in a form that settles; see `fedsolve.runtime.loop.Pace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, under
from fedsolve.data.federation import Samples, Task
from fedsolve.families import layered as nets
from fedsolve.families import ridge as _ridge
from fedsolve.families.layered import layers as _layers
from fedsolve.method import Method
from fedsolve.moments import Moments


@dataclass(frozen=True)
class FedACnnL(Method):
    """One network for all, equal to the same layer-wise training on the pooled data."""

    name: ClassVar[str] = "fedacnnl"
    paper: ClassVar[str] = "Gu et al., Analytic Personalized Federated Meta-Learning (FedACnnL), 2025"
    sends: ClassVar[str] = "X'X (one triangle) and X'Y of each layer's inputs, once a layer"
    laws: ClassVar[frozenset[str]] = frozenset({"split-invariant", "order-free", "one-model"})

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

    def init_server(self, task: Task, rng: np.random.Generator) -> Arrays:
        """The seed of the label encodings. A network that does not fit the inputs is refused here."""
        self._reader().stages(task)
        return {"seeds": rng.integers(2**31, size=1)}

    def message(self, state: Arrays, client: str) -> Arrays:
        """The seed and the layers so far."""
        return _layers.known(state)

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """FedACnnL (5): the next layer from the sum over those that answered."""
        number = len(_layers.layers(state))
        solution = _layers.solved(Moments.from_arrays(replies), self.gamma)
        layer = {**nets.unstacked(solution.weights), **_ridge.trust(solution)}
        return {**state, **under(f"layer/{number}", layer)}

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """The statistics of the next layer, and its inputs to keep where there is room."""
        reader = self._reader(_layers.paced(self.block, self.limit, message))
        stages, depth = reader.stages(task), len(_layers.layers(message))
        source = _layers.restore(private, train, 0, depth)
        if depth + 1 < len(stages):  # nobody needs the inputs of the last layer again
            source = _layers.moved(reader, stages, message, source, depth, 1e6 * self.cache)
        own = _layers.statistics(reader, stages, message, source, train.labels, depth)
        return _layers.keep(source, 0), own.arrays()

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The network of all."""
        return message

    def shared(self, message: Arrays) -> Arrays | None:
        """The network of all."""
        return message

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the last layer there is."""
        return _layers.scores(self._reader(), model, inputs)

    def _reader(self, block: int | None = None) -> _layers.Reader:
        return _layers.Reader(nets.parse(self.network), self.scale, block or self.block)
