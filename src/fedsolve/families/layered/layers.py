"""What the layer-wise methods share: a layer's statistics in blocks, its solve, what a client keeps, and predictions.

FedACnnL (5): with X_l the rows of layer l and Z_l their targets, W_l = (X_l'X_l + gamma I)^-1 X_l'Z_l; clients send
X_l'X_l and X_l'Z_l. Where Z_l is the labels times one matrix Q_l, they send X_l'Y: multiplying by Q_l commutes with the
sums and the solve, so nobody has to before the layer is applied. For a convolution the rows are the patches of all
images, each with the label of its image. What targets there are, `targets` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve import arrays as named
from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.samples import Samples
from fedsolve.data.task import Target, Task
from fedsolve.errors import DataError
from fedsolve.families.layered import forward, targets
from fedsolve.families.layered.description import Network
from fedsolve.families.layered.stages import Stage
from fedsolve.families.ridge import calibration
from fedsolve.families.ridge.choice import server_ridge
from fedsolve.families.ridge.linear import linear_model, trust
from fedsolve.features import clusters
from fedsolve.moments import Moments
from fedsolve.solver import solution_of

MODEL = ("weight", "intercept", "sharpness")  # what predictions need of a layer of least squares
BANK = ("contrast", "filters", "gain", "offset", "origin", "scale")  # and of a layer of patches
HIDDEN_RIDGE = 0.01  # of the mean diagonal of X'X: auto for hidden layers, whose random codes nothing is judged by


@dataclass(frozen=True, slots=True)
class Reader:
    """How samples are read: the network, the scale of its inputs, and how many rows are held at a time."""

    network: Network
    scale: str
    block: int
    target: str = "place"  # what hidden layers are fitted to
    constant: bool = True  # whether every layer has a feature that is always one

    def stages(self, task: Task) -> tuple[Stage, ...]:
        """The layers for the samples of a task."""
        return self.network.stages(task.shape, task.outputs)

    def coded(self, stage: Stage) -> bool:
        """Whether a layer is held as it is, and not as class scores."""
        return targets.coded(self.target, stage)

    def prepare(self, inputs: Array) -> Array:
        """Inputs at the scale of the network; patches take pictures as they are."""
        return inputs if self.network.patches else forward.prepare(inputs, self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Samples somewhere on their way through a network: behind `depth` layers. At depth 0 they are raw inputs."""

    inputs: Array
    depth: int = 0


def layers(arrays: Arrays) -> list[dict[str, Array]]:
    """The layers of a model or a message, in order."""
    count = sum(name.startswith("layer/") and name.endswith(("/weight", "/origin")) for name in arrays)
    return [named.take(f"layer/{number}", arrays) for number in range(count)]


def network_of(arrays: Arrays) -> dict[str, Array]:
    """Seeds and layers of a state: all that a model needs."""
    names = {name for name in arrays if name.startswith("layer/") and name.rpartition("/")[2] in (*MODEL, *BANK)}
    return {name: arrays[name] for name in arrays if name in names or name == "seeds"}


def solved_layer(
    total: Moments, gamma: float | str, *, hidden: bool, classes: bool, constant: bool
) -> dict[str, Array]:
    """FedACnnL (5): the ridge is added once, whoever and however many answered. The constant is a feature like any.

    Except where the layer gives numbers, which may be far from zero: there it is not penalised. Beside the layer, how
    far it can be trusted and, where its columns are `classes`, the sharpness of its scores.
    """
    free = constant and total.squares is not None
    if isinstance(gamma, str) and hidden:
        ridge = HIDDEN_RIDGE * float(total.diagonal().mean())
    else:
        ridge = server_ridge(gamma, total, intercept=free)
    solution = solution_of(total, ridge, intercept=free, solver="auto", one_hot=classes)
    weights = linear_model(solution) if free else forward.unstacked(solution.weights, constant=constant)
    layer = {**weights, "ridge": np.array(ridge), **trust(solution)}
    return {**layer, "sharpness": np.array(calibration.sharpness_of_sums(total, solution))} if classes else layer


def drawn_layer(total: Moments, towards: Arrays, pull: float) -> dict[str, Array]:
    """The layer W of least |Z - X W|^2 + p |W - M|^2, drawn towards a layer M of other samples, whose sharpness it has.

    p is `pull` times the mean diagonal of X'X. W = (X'X + p I)^-1 (X'Z + p M) = M + (X'X + p I)^-1 X'(Z - X M).
    """
    prior = forward.stacked(towards)
    rest = Moments(total.triangle, total.cross - total.gram @ prior, total.samples)
    solution = solution_of(rest, pull * float(total.diagonal().mean()), solver="auto")
    layer = forward.unstacked(prior + solution.weights, constant="intercept" in towards)
    ridge = {"ridge": np.array(solution.ridge), **trust(solution)}
    return {**layer, **ridge, **{name: towards[name] for name in ("sharpness",) if name in towards}}


def blocks(
    reader: Reader, stages: tuple[Stage, ...], model: Arrays, source: Source, depth: int
) -> Iterator[tuple[slice, Array]]:
    """A few samples at a time, as they arrive at layer `depth`.

    So few that no layer on the way has more than `block` rows; single images where even one has more.
    """
    trained, seed = layers(model), int(model["seeds"][0])
    largest = max(stage.positions for stage in stages[source.depth : depth + 1])
    step = max(1, reader.block // largest)
    for start in range(0, len(source.inputs), step):
        rows = slice(start, min(start + step, len(source.inputs)))
        values = source.inputs[rows]
        if source.depth == 0:
            values = reader.prepare(values)
        for number in range(source.depth, depth):
            values = _behind(reader, stages, number, trained[number], values, seed)
        yield rows, values


def _behind(reader: Reader, stages: tuple[Stage, ...], number: int, layer: Arrays, values: Array, seed: int) -> Array:
    """A few samples behind a layer."""
    stage = stages[number]
    if stage.layer.recipe is not None:
        features = clusters.fitted(stage.layer.recipe, layer)
        return forward.behind_tail(stage, features(values.reshape(len(values), *stage.inputs)))
    encoding = None
    if not reader.coded(stage):
        encoding = targets.encoding(seed, number, layer["weight"].shape[1], stage.width)
    return forward.forward(stage, layer, encoding, values, reader.block)


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
    reader: Reader, stages: tuple[Stage, ...], model: Arrays, source: Source, labels: NDArray[Any], depth: int
) -> Moments:
    """X'X and X'Z of layer `depth`, or X'Y; FedACnnL (6), whatever the blocks. `labels` as the layer sees them."""
    stage = stages[depth]
    if reader.coded(stage):
        return _coded_statistics(reader, stages, model, source, labels, depth)

    def parts() -> Iterator[tuple[Float, Array]]:
        for rows, values in blocks(reader, stages, model, source, depth):
            yield from _labelled(reader, stage, values, labels[rows])

    features, squares = stage.features + reader.constant, stage.last and labels.ndim == 2
    return Moments.over(parts(), features=features, classes=_columns(stages, labels), squares=squares)


def _columns(stages: tuple[Stage, ...], labels: NDArray[Any]) -> int:
    """How many columns Y has."""
    return stages[-1].width if labels.ndim == 1 else labels.shape[1]


def _labelled(
    reader: Reader, stage: Stage, values: Array, labels: NDArray[Any]
) -> Iterator[tuple[Float, NDArray[Any]]]:
    """The rows of a few samples, each with the label of its sample."""
    repeated, start = np.repeat(labels, stage.positions, axis=0), 0
    for rows in forward.design(stage, values, reader.block, constant=reader.constant):
        yield rows, repeated[start : start + len(rows)]
        start += len(rows)


def _coded_statistics(
    reader: Reader, stages: tuple[Stage, ...], model: Arrays, source: Source, labels: NDArray[Any], depth: int
) -> Moments:
    """X'X and X'Z. With a code at each place, X'Z = sum over classes c and places p of (sum of x_p in c)' Q_cp."""
    stage, seed, classes = stages[depth], int(model["seeds"][0]), _columns(stages, labels)
    features = stage.features + reader.constant
    triangle, cross, count = np.zeros(blas.packed_size(features)), np.zeros((features, stage.width)), 0
    sums = np.zeros((classes, *stage.inputs))
    for rows, values in blocks(reader, stages, model, source, depth):
        some, mine = values.reshape(len(values), *stage.inputs), labels[rows]
        for label in _present(mine, classes) if reader.target == "place" else ():
            sums[label] += some[targets.members(mine, label)].sum(axis=0)
        for design, repeated in _labelled(reader, stage, values, mine):
            blas.gram(design, triangle, add=count > 0)
            count += len(design)
            if reader.target == "projection":
                cross += design.T @ targets.projected(seed, depth, design, repeated, classes, stage.width)
    if reader.target == "place":
        every = targets.codes(seed, depth, classes, stage.positions, stage.width)
        counts = targets.counts(labels, classes)
        for label in _present(labels, classes):
            start = 0
            for design in forward.design(stage, sums[label : label + 1], reader.block, constant=reader.constant):
                design[:, stage.features :] = counts[label]  # the constant of a sum of so many samples
                cross += design.T @ every[label, start : start + len(design)]
                start += len(design)
    return Moments(triangle, cross, np.array(count))


def _present(labels: NDArray[Any], classes: int) -> list[int]:
    """The classes, or tenths, that have samples."""
    return list(np.flatnonzero(targets.counts(labels, classes)).tolist())


def scores(reader: Reader, model: Arrays, inputs: Array, target: Target) -> Float:
    """Scores of the classes, or the numbers, by the last layer there is; of a convolution, over all its places.

    A network of which only the first layers are trained has answers, too; one without any has no opinion.
    """
    trained = layers(model)
    depth, seed, classes = len(trained) - 1, int(model["seeds"][0]), targets.columns(target)
    stages = reader.network.stages(inputs.shape[1:], target.width)
    _check_shapes(reader, stages, trained, classes)
    if depth < 0 or stages[depth].layer.recipe is not None:
        return targets.answers(target, np.zeros((len(inputs), classes)))
    stage, layer = stages[depth], trained[depth]
    result = np.zeros((len(inputs), target.width if stage.last else classes))
    for rows, values in blocks(reader, stages, model, Source(inputs), depth):
        if reader.coded(stage):
            found = forward.values(stage, layer, values, reader.block).reshape(
                len(values), stage.positions, stage.width
            )
            result[rows] = targets.decoded(reader.target, seed, depth, stage, found, classes)
        else:
            means = forward.mean_rows(stage, values, constant=reader.constant)
            result[rows] = means @ forward.stacked(layer)
    return targets.answers(target, result, hidden=not stage.last)


def probabilities(model: Arrays, scores: Array) -> Float:
    """Softmax of the scores times the sharpness of the last layer there is."""
    trained = layers(model)
    return calibration.probabilities(trained[-1] if trained else {}, scores)


def _check_shapes(reader: Reader, stages: tuple[Stage, ...], trained: list[dict[str, Array]], classes: int) -> None:
    """Refuse layers of another network, before anything of their widths is drawn."""
    for stage, layer in zip(stages, trained, strict=False):
        if stage.layer.recipe is not None:
            clusters.fitted(stage.layer.recipe, layer)
            continue
        shape = (stage.features, stage.width if stage.last or reader.coded(stage) else classes)
        if layer["weight"].shape != shape or ("intercept" in layer) != reader.constant:
            raise DataError(f"a layer must have shape {shape}; got {layer['weight'].shape}")


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
    """How many rows a block has: more for a client that is slow, never more than it has memory for. FedACnnL (7)."""
    return block if pace is None else min(limit, math.ceil(block * pace))
