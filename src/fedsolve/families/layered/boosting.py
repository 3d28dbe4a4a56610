"""States of samples that grow block by block, as DeepAFL has them: what is solved so far, and what follows from it.

A state, message or model has "seeds", the "start/..." where states begin at mean 0 and deviation 1, "block/NUMBER/..."
for each block, and the head: "weight", "intercept", "sharpness". A block is open until it has its step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import count
from operator import add

import numpy as np
from numpy.typing import NDArray

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, flat, take
from fedsolve.data.samples import Samples
from fedsolve.errors import DataError
from fedsolve.families.layered import layers
from fedsolve.families.ridge import linear
from fedsolve.features.maps import ACTIVATIONS, RandomProjection, projection
from fedsolve.moments import Moments

ROWS = 2048  # samples that are computed with at a time
BIAS = 0.5  # deviation of the constant part before an activation, where that of the rest is 1
HEAD = ("weight", "intercept", "sharpness")
BLOCK = ("weight", "origin", "scale", "step")


def solved(arrays: Arrays) -> int:
    """How many blocks are solved."""
    return next(number for number in count() if f"block/{number}/step" not in arrays)


def is_open(arrays: Arrays) -> bool:
    """Whether a block waits for its step; else a head is next."""
    return f"block/{solved(arrays)}/weight" in arrays


def model_of(arrays: Arrays) -> dict[str, Array]:
    """The seeds, the start, the blocks that are solved and the head: all that predicting takes."""
    blocks = (f"block/{number}/{part}" for number in range(solved(arrays)) for part in BLOCK)
    return {name: arrays[name] for name in ("seeds", "start/origin", "start/scale", *HEAD, *blocks) if name in arrays}


def restored(private: Arrays, message: Arrays, train: Samples, depth: int) -> layers.Source:
    """The states that a client kept, where they were made with what the message has; else its raw inputs."""
    return layers.restore(private, train, tag(message, min(int(private.get("depth", 0)), depth)), depth)


def kept(source: layers.Source, message: Arrays) -> dict[str, Array]:
    """The private state that `restored` reads."""
    return layers.keep(source, tag(message, source.depth))


def tag(arrays: Arrays, depth: int) -> int:
    """What states at a depth were made with, as a number: a step depends on all that was before it."""
    made = ("seeds", "start/origin") if depth < 2 else (f"block/{depth - 2}/step",)
    return zlib.crc32(b"".join(arrays[name].tobytes() for name in made if name in arrays))


@dataclass(frozen=True, slots=True)
class Boosting:
    """How states are made. Depth 0 are raw inputs, 1 is the start, and each block is one more."""

    blocks: int
    width: int  # random features of a block, and of a random start
    activation: str
    start: str  # "features" at mean 0 and deviation 1, or "random" ones

    def states(self, arrays: Arrays, source: layers.Source, depth: int) -> Iterator[tuple[slice, Float]]:
        """A few samples at a time, at `depth`."""
        blocks = [take(f"block/{number}", arrays) for number in range(depth - 1)]
        for start in range(0, len(source.inputs), ROWS):
            rows = slice(start, start + ROWS)
            state = source.inputs[rows] if source.depth else self._first(arrays, source.inputs[rows])
            for number in range(max(source.depth - 1, 0), depth - 1):
                along = self.features(arrays, number, state) @ blocks[number]["step"]
                state = state + along @ blocks[number]["weight"].T  # X + F D with D = K W'
            yield rows, state

    def moved(self, arrays: Arrays, source: layers.Source, depth: int, budget: float) -> layers.Source:
        """The samples at `depth` where that fits into `budget` bytes, else the source as it is."""
        size = flat(source.inputs).shape[1] if self.start == "features" else self.width
        if source.depth == depth or 8.0 * len(source.inputs) * size > budget:
            return source
        behind = np.empty((len(source.inputs), size))
        for rows, state in self.states(arrays, source, depth):
            behind[rows] = state
        return layers.Source(behind, depth)

    def last_states(self, private: Arrays, message: Arrays, train: Samples) -> Float:
        """A client's samples behind all blocks there are, one row each, from what it kept where it did."""
        depth = solved(message) + 1
        source = restored(private, message, train, depth)
        return np.concatenate([state for _, state in self.states(message, source, depth)])

    def _first(self, arrays: Arrays, inputs: Array) -> Float:
        """X_0 of a few samples."""
        if self.start == "random":
            return RandomProjection(self.width, self.activation, int(arrays["seeds"][0]))(inputs)
        first: Float = (flat(inputs) - arrays["start/origin"]) * arrays["start/scale"]
        return first

    def features(self, arrays: Arrays, number: int, state: Float) -> Float:
        """F of a block: before the activation N(0, 1), whatever the size and number of the states."""
        origin, scale = arrays[f"block/{number}/origin"], arrays[f"block/{number}/scale"]
        unit = 1.0 / np.sqrt(1.0 + BIAS**2)
        rows = np.full((len(state), state.shape[1] + 1), unit * BIAS)
        rows[:, :-1] = (state - origin) * (unit * scale)
        random = RandomProjection(self.width, self.activation, int(arrays["seeds"][number + 1]))
        return ACTIVATIONS[self.activation](rows @ projection(random, rows.shape[1]))

    def sums(self, message: Arrays, source: layers.Source, labels: NDArray[np.int64], classes: int) -> Moments:
        """What a client adds to the next solve: of the open block, or X'X and X'Y of the states for the next head."""
        number = solved(message)
        states = self.states(message, source, number + 1)
        if is_open(message):
            parts = (self._block_sums(message, state, labels[rows], number) for rows, state in states)
        else:
            parts = (Moments.of(state, labels[rows], classes=classes, intercept=True) for rows, state in states)
        return reduce(add, parts)

    def _block_sums(self, message: Arrays, state: Float, labels: NDArray[np.int64], number: int) -> Moments:
        """F'F, and F' times what the head leaves over; behind it F'X u for the probes u, where there are some."""
        head, intercept = message[f"block/{number}/weight"], message["intercept"]
        targets = linear.one_hot(labels, len(intercept)) - state @ head - intercept
        if "probes" in message:
            targets = np.column_stack([targets, state @ message["probes"][:-1] + message["probes"][-1]])
        return Moments.of(self.features(message, number, state), targets)

    def scores(self, model: Arrays, inputs: Array) -> Float:
        """Scores of the last head there is, on the states behind all blocks there are."""
        self._check(model, flat(inputs).shape[1])
        result = np.empty((len(inputs), model["weight"].shape[1]))
        for rows, state in self.states(model, layers.Source(inputs), solved(model) + 1):
            result[rows] = state @ model["weight"] + model["intercept"]
        return result

    def _check(self, model: Arrays, inputs: int) -> None:
        """Refuse a model whose arrays do not fit together, before matrices of any size are drawn."""
        size = inputs if self.start == "features" else self.width
        classes = model["weight"].shape[-1]
        wanted: dict[str, tuple[int, ...]] = {"seeds": (self.blocks + 1,), "weight": (size, classes)}
        wanted |= {"start/origin": (size,), "start/scale": (size,)} if self.start == "features" else {}
        shapes = ((size, classes), (size,), (size,), (self.width, classes))
        for number in range(solved(model)):
            wanted |= {f"block/{number}/{name}": shape for name, shape in zip(BLOCK, shapes, strict=True)}
        for name, shape in wanted.items():
            if model[name].shape != shape:
                raise DataError(f"{name!r} must have the shape {shape} for these settings; got {model[name].shape}")


@dataclass(frozen=True)
class Blockwise:
    """The settings of boosting: how many blocks, how wide, and what states start from."""

    blocks: int = parameters.number(4, "blocks; each takes two rounds", low=1, integer=True)
    width: int = parameters.number(256, "random features of a block, and of a random start", low=1, integer=True)
    activation: str = parameters.choice("gelu", tuple(ACTIVATIONS), "activation of the random features")
    start: str = parameters.choice(
        "features",
        ("features", "random"),
        "first state: all features at mean 0 and deviation 1, or random features of the inputs at unit length",
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def rounds(self) -> int:
        """One for the first head, and for each block one for itself and one for the head behind it."""
        return 2 * self.blocks + 1

    def boosting(self) -> Boosting:
        """How states are made with these settings."""
        return Boosting(self.blocks, self.width, self.activation, self.start)
