"""The items of a network, its trained layers with what stands behind each, and the shapes on the way through them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

from fedsolve.errors import DataError
from fedsolve.families.widths import refuse
from fedsolve.features.patches import Recipe

Shape: TypeAlias = tuple[int, ...]
POOLS = ("avgpool", "maxpool")
TRAINED = ("dense", "conv", "patches")


@dataclass(frozen=True, slots=True)
class Item:
    """One word of a description, and where it stands in it."""

    kind: str  # "dense", "conv", "patches", "flatten", a pooling or an activation
    start: int  # character in the description
    text: str
    width: int = 0  # of dense, channels of conv; 0 for the last layer, which has one column per class
    window: tuple[int, int] = (1, 1)  # of conv and pooling
    stride: int = 1
    pad: tuple[int, int] = (0, 0)  # rows and columns of zeros on each side
    recipe: Recipe | None = None  # of patches


@dataclass(frozen=True, slots=True)
class Stage:
    """A trained layer and what stands behind it, up to the next trained layer."""

    layer: Item
    tail: tuple[Item, ...]
    inputs: Shape  # of one sample, as the layer takes it: a row, or height x width x channels
    width: int  # columns before the tail; the number of classes in the last stage
    last: bool

    @property
    def features(self) -> int:
        """How many numbers of the inputs a target is fitted to, without the constant."""
        if self.layer.kind != "conv":
            return math.prod(self.inputs)
        return math.prod(self.layer.window) * self.inputs[-1]

    @property
    def places(self) -> Shape:
        """The places of an image at which a convolution looks; () for a layer without places."""
        if self.layer.kind != "conv":
            return ()
        item = self.layer
        sides = zip(self.inputs[:2], item.window, item.pad, strict=True)
        return tuple((side + 2 * pad - window) // item.stride + 1 for side, window, pad in sides)

    @property
    def positions(self) -> int:
        """How many rows a sample gives: one per place."""
        return math.prod(self.places)

    @property
    def outputs(self) -> Shape:
        """The shape of a sample behind the tail."""
        shape: Shape = (*self.places, self.width)
        for item in self.tail:
            shape = _behind(item, shape)
        return shape


@lru_cache(maxsize=64)
def cut(text: str, items: tuple[Item, ...], inputs: Shape, classes: int) -> tuple[Stage, ...]:
    """The stages for samples of shape `inputs`; an item that does not fit them is refused at its place in `text`."""
    stages: list[Stage] = []
    shape: Shape = inputs
    layers = [place for place, item in enumerate(items) if item.kind in TRAINED]
    for number, place in enumerate(layers):
        item = items[place]
        end = layers[number + 1] if number + 1 < len(layers) else len(items)
        last = number + 1 == len(layers)
        arriving = _arriving(text, item, shape, first=not number)
        stage = Stage(item, items[place + 1 : end], arriving, classes if last else item.width, last)
        if min(stage.places, default=1) < 1:
            window = "x".join(map(str, item.window))
            _refuse(text, item, f"a window of {window} does not fit images of {_sides(arriving)}")
        if item.recipe is not None:
            try:
                item.recipe.channels(arriving)
            except DataError as error:
                _refuse(text, item, str(error))
        _check_tail(text, stage)
        shape = stage.outputs
        stages.append(stage)
    return tuple(stages)


def _check_tail(text: str, stage: Stage) -> None:
    shape: Shape = (*stage.places, stage.width)
    for item in stage.tail:
        if item.kind in POOLS and (len(shape) != 3 or min(shape[:2]) < item.stride):
            _refuse(text, item, f"there is nothing to pool: what arrives here is {_sides(shape)}")
        shape = _behind(item, shape)


def _arriving(text: str, item: Item, shape: Shape, *, first: bool) -> Shape:
    """The shape as a layer takes it: flat, or with channels."""
    if item.kind == "dense":
        return (math.prod(shape),)
    if len(shape) == 2:
        shape = (*shape, 1)  # grey images have no axis for channels
    if len(shape) != 3:
        whose = "the inputs are" if first else "what arrives here is"
        needs = f"a layer of {item.kind} needs images, height x width or height x width x channels"
        _refuse(text, item, f"{needs}; {whose} {_sides(shape)}")
    return shape


def _behind(item: Item, shape: Shape) -> Shape:
    """The shape of a sample behind an item that is not trained."""
    if item.kind == "flatten":
        return (math.prod(shape),)
    if item.kind in POOLS:
        return (shape[0] // item.stride, shape[1] // item.stride, shape[2])
    return shape


def _refuse(text: str, item: Item, reason: str) -> NoReturn:
    refuse(text, item.start, item.text, reason, DataError)


def _sides(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if len(shape) > 1 else f"rows of {shape[0]} numbers"
