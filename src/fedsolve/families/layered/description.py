"""Descriptions of networks that are trained layer by layer, from text to items; errors point at the place.

A description is a list of items: "conv:5x5x32,leaky,avgpool:2,conv:3x3x64,leaky,avgpool:2,dense". Dense and convolution
layers are trained; activations and pooling behind a trained layer belong to its stage. "patches:6x6x320" as the first
item is a layer of convolutional features that needs no labels, with the options of the feature map behind colons.
Presets: "lr" is one dense layer to the classes, "mlp:128,64" has hidden dense layers with relu, "dcnn" and "dcnn:SCALE"
are the convolutional network of the FedACnnL paper with its widths times SCALE; "dcnn:SCALE:pad=same" is padded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fedsolve.errors import FedsolveError, ParameterError, unknown
from fedsolve.families import widths
from fedsolve.families.layered.stages import POOLS, TRAINED, Item, Shape, Stage, cut
from fedsolve.families.widths import refuse, whole
from fedsolve.features.maps import ACTIVATIONS
from fedsolve.features.patches import Recipe

_NAMED = ("lr", "mlp:128,64")  # the presets that the families share
_DCNN = (
    ("5x5", 512, "leaky,avgpool:2"),
    ("3x3", 1024, "leaky,avgpool:2"),
    ("3x3", 2048, "leaky"),
    ("3x3", 2048, "leaky"),
)
_ITEMS = (*TRAINED, "flatten", *POOLS, *ACTIVATIONS)


@dataclass(frozen=True, slots=True)
class Network:
    """A description, taken apart into its items."""

    text: str
    spelled: str  # with presets spelled out
    items: tuple[Item, ...]

    @property
    def depth(self) -> int:
        """How many layers are trained."""
        return sum(item.kind in TRAINED for item in self.items)

    @property
    def patches(self) -> bool:
        """Whether its first layer is one of patches."""
        return self.items[0].recipe is not None

    @property
    def rounds(self) -> int:
        """How many sums over clients train it: one per layer, and as many as a layer of patches takes."""
        return sum(1 if item.recipe is None else item.recipe.rounds for item in self.items if item.kind in TRAINED)

    def stages(self, inputs: Shape, classes: int) -> tuple[Stage, ...]:
        """The trained layers for samples of shape `inputs`, each with what stands behind it."""
        return cut(self.spelled, self.items, tuple(inputs), classes)


@lru_cache(maxsize=64)
def parse(text: str) -> Network:
    """The network a description stands for; an error points at the place.

    >>> parse("mlp:128,64").spelled
    'dense:128,relu,dense:64,relu,dense'
    >>> [stage.outputs for stage in parse("conv:3x3x8,relu,avgpool:2,dense").stages((28, 28), classes=10)]
    [(13, 13, 8), (10,)]
    """
    if not isinstance(text, str):
        raise ParameterError(f"a network is described by a text such as 'mlp:128,64'; got {text!r}")
    preset = _preset(text)
    if preset is not None:
        return Network(text, preset, parse(preset).items)
    items = tuple(_item(text, start, word) for start, word in widths.words(text))
    for place, item in enumerate(items):
        last = place == len(items) - 1
        if last and (item.kind != "dense" or item.width):
            refuse(text, item.start, item.text, "the last item must be 'dense', without a width: one output per class")
        if item.kind == "dense" and not item.width and not last:
            refuse(text, item.start, item.text, "a hidden layer needs a width: write dense:128")
        if not place and item.kind not in TRAINED:
            refuse(text, item.start, item.text, "a network starts with a trained layer, dense, conv or patches")
        if place and item.kind == "patches":
            refuse(text, item.start, item.text, "patches are of the pictures themselves: they stand first")
    return Network(text, text, items)


def _preset(text: str) -> str | None:
    """What a preset stands for, item by item; None for a text that is no preset."""
    named = widths.read(text, _NAMED)
    if named is not None:  # lr has no hidden layers
        return ",".join([*(f"dense:{width},relu" for width in named[1]), "dense"])
    name, colon, argument = text.strip().partition(":")
    if name != "dcnn":
        return None
    argument, padded, rest = argument.partition(":pad=same")
    if rest or (padded and not argument):
        refuse(text, len(text) - len(rest), rest, "'dcnn' is written dcnn, dcnn:SCALE or dcnn:SCALE:pad=same")
    scale = 1.0
    if colon:
        try:
            scale = float(argument)
        except ValueError:
            scale = math.nan
        if not 0 < scale <= 16:
            reason = "'dcnn' takes a scale of its widths above 0 and up to 16"
            refuse(text, text.index(":") + 1, argument, reason)
    pad = ":pad=same" if padded else ""
    layers = [f"conv:{window}x{max(1, round(scale * width))}{pad},{tail}" for window, width, tail in _DCNN]
    return ",".join([*layers, "dense"])


def _item(text: str, start: int, word: str) -> Item:
    kind, *arguments = word.split(":")
    if kind not in _ITEMS:
        refuse(text, start, word, str(unknown("item", kind, _ITEMS)) if kind else "an item is missing")
    if kind in ("flatten", *ACTIVATIONS):
        if arguments:
            refuse(text, start, word, f"{kind!r} takes no argument")
        return Item(kind, start, word)
    if kind == "dense":
        if len(arguments) > 1 or (arguments and not whole(arguments[0])):
            refuse(text, start, word, "a dense layer is written dense:WIDTH, or dense as the last")
        return Item(kind, start, word, width=int(arguments[0]) if arguments else 0)
    if kind == "patches":
        try:
            recipe = Recipe.read(",".join(arguments))
        except FedsolveError as error:
            refuse(text, start, word, str(error))
        return Item(kind, start, word, width=recipe.size, recipe=recipe)
    if kind in POOLS:
        if len(arguments) != 1 or not whole(arguments[0]):
            refuse(text, start, word, f"pooling is written {kind}:SIZE, as in {kind}:2")
        size = int(arguments[0])
        return Item(kind, start, word, window=(size, size), stride=size)
    return _convolution(text, start, word, arguments)


def _convolution(text: str, start: int, word: str, arguments: Sequence[str]) -> Item:
    form = "a convolution is written conv:HEIGHTxWIDTHxCHANNELS, then :stride=N and :pad=N or :pad=same if wanted"
    sides = arguments[0].split("x") if arguments else []
    if len(sides) != 3 or not all(map(whole, sides)):
        refuse(text, start, word, form)
    height, width, channels = map(int, sides)
    stride, pad = 1, (0, 0)
    for option in arguments[1:]:
        name, _, value = option.partition("=")
        if name == "stride" and whole(value):
            stride = int(value)
        elif name == "pad" and value == "same" and height % 2 and width % 2:
            pad = (height // 2, width // 2)
        elif name == "pad" and re.fullmatch("[0-9]{1,4}", value) and int(value) < min(height, width):
            pad = (int(value), int(value))
        else:
            reason = "pad must be smaller than the window, and 'same' needs odd sides" if name == "pad" else form
            refuse(text, start + word.index(option), option, reason)
    return Item("conv", start, word, width=channels, window=(height, width), stride=stride, pad=pad)
