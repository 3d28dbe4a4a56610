"""What the layer-wise methods share: a layer's statistics in blocks, its solve, what a client keeps, and predictions.

FedACnnL (5): with X_l the rows of layer l and Q_l the label encoding, W_l = (X_l'X_l + gamma I)^-1 X_l'Y Q_l. Clients
send X_l'X_l and X_l'Y; multiplying by Q_l commutes with the sums and the solve, so nobody has to before the layer is
applied. For a convolution the rows are the patches of all images, each with the label of its image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsolve import arrays as named
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.layered import forward
from fedsolve.families.layered.description import Network
from fedsolve.families.layered.stages import Stage
from fedsolve.families.ridge.calibration import sharpness_of_sums
from fedsolve.families.ridge.linear import trust
from fedsolve.moments import Moments
from fedsolve.solver import solution_of

MODEL = ("weight", "intercept", "sharpness")  # what predictions need of a layer


@dataclass(frozen=True, slots=True)
class Reader:
    """How samples are read: the network, the scale of its inputs, and how many rows are held at a time."""

    network: Network
    scale: str
    block: int

    def stages(self, task: Task) -> tuple[Stage, ...]:
        """The layers for the samples of a task."""
        return self.network.stages(task.shape, task.classes)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Samples somewhere on their way through a network: behind `depth` layers. At depth 0 they are raw inputs."""

    inputs: Array
    depth: int = 0


def layers(arrays: Arrays) -> list[dict[str, Array]]:
    """The layers of a model or a message, in order."""
    count = sum(name.startswith("layer/") and name.endswith("/weight") for name in arrays)
    return [named.take(f"layer/{number}", arrays) for number in range(count)]


def network_of(arrays: Arrays) -> dict[str, Array]:
    """Seeds and layers of a state: all that a model needs."""
    names = {name for name in arrays if name.startswith("layer/") and name.rpartition("/")[2] in MODEL}
    return {name: arrays[name] for name in arrays if name in names or name == "seeds"}


def solved_layer(total: Moments, gamma: float) -> dict[str, Array]:
    """FedACnnL (5): the ridge is added once, whoever and however many answered. The constant is a feature like any.

    Beside the layer, the sharpness of its scores as those of a classifier, and how far it can be trusted.
    """
    solution = solution_of(total, gamma, solver="auto", one_hot=True)
    sharpness = np.array(sharpness_of_sums(total, solution))
    return {**forward.unstacked(solution.weights), "sharpness": sharpness, **trust(solution)}


def blocks(
    reader: Reader, stages: tuple[Stage, ...], model: Arrays, source: Source, depth: int
) -> Iterator[tuple[slice, Float]]:
    """A few samples at a time, as they arrive at layer `depth`.

    So few that no layer on the way has more than `block` rows; single images where even one has more.
    """
    weights, seed = layers(model), int(model["seeds"][0])
    largest = max(stage.positions for stage in stages[source.depth : depth + 1])
    step = max(1, reader.block // largest)
    for start in range(0, len(source.inputs), step):
        rows = slice(start, min(start + step, len(source.inputs)))
        values = source.inputs[rows]
        if source.depth == 0:
            values = forward.prepare(values, reader.scale)
        for number in range(source.depth, depth):
            stage, layer = stages[number], weights[number]
            encoding = forward.encoding(seed, number, layer["weight"].shape[1], stage.width)
            values = forward.forward(stage, layer, encoding, values, reader.block)
        yield rows, values


def moved(
    reader: Reader, stages: tuple[Stage, ...], model: Arrays, source: Source, depth: int, budget: float
) -> Source:
    """The samples behind `depth` layers where that fits into `budget` bytes, else the source as it is."""
    if depth == source.depth or 8.0 * len(source.inputs) * np.prod(stages[depth].inputs) > budget:
        return source
    activations = np.empty((len(source.inputs), *stages[depth].inputs))
    for rows, values in blocks(reader, stages, model, source, depth):
        activations[rows] = values.reshape(len(values), *stages[depth].inputs)
    return Source(activations, depth)


def statistics(
    reader: Reader, stages: tuple[Stage, ...], model: Arrays, source: Source, labels: NDArray[np.int64], depth: int
) -> Moments:
    """X'X and X'Y of layer `depth`, with a constant feature; FedACnnL (6), whatever the blocks."""
    stage = stages[depth]

    def parts() -> Iterator[tuple[Float, Array]]:
        for rows, values in blocks(reader, stages, model, source, depth):
            repeated = np.repeat(labels[rows], stage.positions)
            start = 0
            for design in forward.design(stage, values, reader.block):
                yield design, repeated[start : start + len(design)]
                start += len(design)

    return Moments.over(parts(), features=stage.features + 1, classes=stages[-1].width)


def scores(reader: Reader, model: Arrays, inputs: Array) -> Float:
    """Scores of the classes by the last layer there is; those of a convolution are means over its places.

    A network of which only the first layers are trained is a classifier, too.
    """
    trained = layers(model)
    classes, depth = trained[0]["weight"].shape[1], len(trained) - 1
    stages = reader.network.stages(inputs.shape[1:], classes)
    for stage, layer in zip(stages, trained, strict=False):  # before encodings of such widths are drawn
        if layer["weight"].shape != (stage.features, classes):
            raise DataError(f"a layer must have shape {(stage.features, classes)}; got {layer['weight'].shape}")
    weights = forward.stacked(trained[depth])
    result = np.empty((len(inputs), classes))
    for rows, values in blocks(reader, stages, model, Source(inputs), depth):
        result[rows] = forward.mean_rows(stages[depth], values) @ weights
    return result


# --- a client's private state ---


def restore(private: Arrays, train: Samples, tag: int, depth: int) -> Source:
    """The activations that a client kept, where they are those of this network up to here; else its raw inputs."""
    if "activations" in private and int(private["tag"]) == tag and int(private["depth"]) <= depth:
        return Source(private["activations"], int(private["depth"]))
    return Source(train.inputs)


def keep(source: Source, tag: int) -> dict[str, Array]:
    """The private state that `restore` reads: activations, how deep they are, and whose network they are of."""
    if source.depth == 0:
        return {}
    return {"activations": source.inputs, "depth": np.array(source.depth), "tag": np.array(tag)}


def paced(block: int, limit: int, pace: float | None) -> int:
    """How many rows a block has: more for a client that is slow, never more than it has memory for."""
    return block if pace is None else min(limit, round(block * pace))
