"""What layer-wise methods share: their settings, the seed they start from, and a client's part of a layer.

Methods differ in who is summed together and in what clients do with the network in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from fedsolve import digits, parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.families.layered import layers, targets
from fedsolve.families.layered.description import parse
from fedsolve.families.layered.forward import SCALES
from fedsolve.families.layered.targets import TARGETS
from fedsolve.features import clusters
from fedsolve.method import Server, Site
from fedsolve.moments import Moments

FIT = "fit"  # where a state has what is fitted of a layer of patches that is not complete


@dataclass(frozen=True)
class Layerwise:
    """The settings of layer-wise training: the network, its ridge, and how a client reads its samples."""

    network: str = parameters.text(
        "mlp:128,64", "layers: lr, mlp:128,64, dcnn:0.125, patches:6x6x320,dense or conv:3x3x32,relu,...,dense", parse
    )
    target: str = parameters.choice(
        "place",
        TARGETS,
        "what hidden layers are fitted to: labels in a code of its own at each place, in one code for all places, or "
        "with a projection of the inputs (Forward Projection)",
    )
    constant: bool = parameters.flag(True, "a feature that is always one in every layer, which the paper has not")
    gamma: float | str = parameters.number(
        10.0,
        "ridge of every layer, added once on the server; auto: of the last by cross-validation on the sums alone",
        low=0,
        auto=True,
    )
    scale: str = parameters.choice(
        "auto", SCALES, "of the inputs: unit length, or square roots first (power); auto: power for images"
    )
    block: int = parameters.number(
        4096, "rows a client works on at a time; of a convolution, patches", low=1, integer=True
    )
    adaptive: bool = parameters.flag(False, "slow clients are told to use larger blocks, up to limit")
    pace: str = parameters.choice(
        "damped",
        ("damped", "printed"),
        "how adaptive blocks follow the time that clients take: by a rule that settles, or by the paper's (7)",
    )
    limit: int = parameters.number(32768, "rows in a block that a client has memory for", low=1, integer=True)
    cache: float = parameters.number(
        128.0, "megabytes in which a client may keep activations for the next layer", low=0
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def paced(self) -> bool:
        """Whether blocks follow the time that clients take."""
        return self.adaptive

    @property
    def pacing(self) -> str:
        """By which rule they do."""
        return self.pace

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own on the inputs, with a constant where every layer has one here."""
        return {"intercept": self.constant}

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Inputs of layers whose digits were lost in the sums; they have no names."""
        every = {name: array.tolist() for name, array in sorted(state.items()) if name.endswith("/unsure")}
        told = [digits.sentences(unsure, kind=f"{name.rpartition('/')[0]} input") for name, unsure in every.items()]
        return tuple(chain.from_iterable(told))

    @property
    def budget(self) -> float:
        """How many bytes of activations a client may keep."""
        return 1e6 * self.cache

    def reader(self, pace: float | None = None) -> layers.Reader:
        """How samples are read, in larger blocks for a client that is slow where `adaptive` asks for it."""
        block = layers.paced(self.block, self.limit, pace if self.adaptive else None)
        return layers.Reader(parse(self.network), self.scale, block, self.target, self.constant)


def first_state(method: Layerwise, server: Server) -> dict[str, Array]:
    """The seed of the label encodings. A network that does not fit the inputs is refused here."""
    method.reader().stages(server.task)
    return {"seeds": server.rng.integers(2**31, size=1)}


def asked(state: Arrays) -> dict[str, Array]:
    """What clients are sent before an update: the seed, the layers so far, and what is fitted of the next one."""
    return {**layers.network_of(state), **under(FIT, take(FIT, state))}


def next_layer(method: Layerwise, state: Arrays, replies: Arrays, task: Task) -> dict[str, Array]:
    """The state once the sums of all who answered are in: with its next layer, or a round nearer to it."""
    reader, depth = method.reader(), len(layers.layers(state))
    stages = reader.stages(task)
    recipe = stages[depth].layer.recipe
    if recipe is None:
        hidden, classes = not stages[depth].last, task.classes > 0 and not reader.coded(stages[depth])
        total = Moments.from_arrays(replies)
        layer = layers.solved_layer(total, method.gamma, hidden=hidden, classes=classes, constant=method.constant)
        return {**state, **under(f"layer/{depth}", layer)}
    fit = clusters.advance(recipe, take(FIT, state), replies)
    before = {name: array for name, array in state.items() if not name.startswith(f"{FIT}/")}
    if "origin" not in fit:
        return {**before, **under(FIT, fit)}
    return {**before, **under(f"layer/{depth}", {name: fit[name] for name in layers.BANK})}


def layer_update(
    method: Layerwise, private: Arrays, message: Arrays, site: Site, *, tag: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The inputs of the next layer, to be kept where there is room, and its statistics, which are the reply.

    `tag` says whose network it is, so that nobody goes on from activations of another one.
    """
    reader = method.reader(site.pace)
    stages, depth = reader.stages(site.task), len(layers.layers(message))
    recipe = stages[depth].layer.recipe
    if recipe is not None:  # the first layer, so its inputs are the pictures
        pictures = site.train.inputs.reshape(len(site.train), *stages[depth].inputs)
        return {}, clusters.sums(recipe, take(FIT, message), pictures)
    source = layers.restore(private, site.train, tag, depth)
    if depth + 1 < len(stages) or reader.network.patches:  # nobody else needs the inputs of the last layer again
        source = layers.moved(reader, stages, message, source, depth, method.budget)
    labels = targets.seen(site.task.target, site.train.labels, hidden=not stages[depth].last)
    statistics = layers.statistics(reader, stages, message, source, labels, depth)
    return layers.keep(source, tag), statistics.arrays()
