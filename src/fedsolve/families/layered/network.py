"""Networks whose layers are trained one after the other by least squares: their description, shapes and forward passes.

A description is a list of items: "conv:5x5x32,leaky,avgpool:2,conv:3x3x64,leaky,avgpool:2,dense". Dense and convolution
layers are trained; activations and pooling behind a trained layer belong to its stage. Presets: "lr" is one dense layer
to the classes, "mlp:128,64" has hidden dense layers with relu, "dcnn" and "dcnn:SCALE" are the convolutional network of
the FedACnnL paper with its widths times SCALE.

Targets of a hidden layer are the labels times a random matrix Q (classes x width), so its least-squares solution is
that for the labels themselves, times Q. A layer is therefore held as class scores (`weight`, features x classes, and
`intercept`), and Q as a seed: smaller to send, cheaper to apply, and every layer on its own is a classifier.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedsolve.arrays import Array, Arrays, Float, flat
from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.features.maps import ACTIVATIONS
from fedsolve.rng import derive

Shape: TypeAlias = tuple[int, ...]
SCALES = ("auto", "power", "unit", "none")
_PRESETS = ("lr", "mlp", "dcnn")
_DCNN = (
    ("5x5", 512, "leaky,avgpool:2"),
    ("3x3", 1024, "leaky,avgpool:2"),
    ("3x3", 2048, "leaky"),
    ("3x3", 2048, "leaky"),
)
_POOLS: dict[str, Callable[[Float, Float], Float]] = {"avgpool": np.add, "maxpool": np.maximum}
_ITEMS = ("dense", "conv", "flatten", *_POOLS, *ACTIVATIONS)


@dataclass(frozen=True, slots=True)
class Item:
    """One word of a description, and where it stands in it."""

    kind: str  # "dense", "conv", "flatten", a pooling or an activation
    start: int  # character in the description
    text: str
    width: int = 0  # of dense, channels of conv; 0 for the last layer, which has one column a class
    window: tuple[int, int] = (1, 1)  # of conv and pooling
    stride: int = 1
    pad: tuple[int, int] = (0, 0)  # rows and columns of zeros on each side


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
        if self.layer.kind == "dense":
            return math.prod(self.inputs)
        return math.prod(self.layer.window) * self.inputs[-1]

    @property
    def places(self) -> Shape:
        """The places of an image at which a convolution looks; () for a dense layer."""
        if self.layer.kind == "dense":
            return ()
        item = self.layer
        sides = zip(self.inputs[:2], item.window, item.pad, strict=True)
        return tuple((side + 2 * pad - window) // item.stride + 1 for side, window, pad in sides)

    @property
    def positions(self) -> int:
        """How many rows a sample gives: one a place."""
        return math.prod(self.places)

    @property
    def outputs(self) -> Shape:
        """The shape of a sample behind the tail."""
        shape: Shape = (*self.places, self.width)
        for item in self.tail:
            shape = _behind(item, shape)
        return shape


@dataclass(frozen=True, slots=True)
class Network:
    """A description, taken apart."""

    text: str
    spelled: str  # with presets spelled out
    items: tuple[Item, ...]

    @property
    def depth(self) -> int:
        """How many layers are trained."""
        return sum(item.kind in ("dense", "conv") for item in self.items)

    def stages(self, inputs: Shape, classes: int) -> tuple[Stage, ...]:
        """The trained layers for samples of shape `inputs`, each with what stands behind it."""
        return _stages(self, tuple(inputs), classes)


# --- descriptions ---


@lru_cache(maxsize=64)
def parse(text: str) -> Network:
    """The network a description stands for; an error points at the place."""
    if not isinstance(text, str):
        raise ParameterError(f"a network is described by a text such as 'mlp:128,64'; got {text!r}")
    name, colon, argument = text.strip().partition(":")
    if name in _PRESETS:
        expanded = _preset(text, name, argument if colon else None)
        return Network(text, expanded, parse(expanded).items)
    items = tuple(_item(text, start, word) for start, word in _words(text))
    for place, item in enumerate(items):
        last = place == len(items) - 1
        if last and (item.kind != "dense" or item.width):
            _fail(text, item.start, item.text, "the last item must be 'dense', without a width: one output a class")
        if item.kind == "dense" and not item.width and not last:
            _fail(text, item.start, item.text, "a hidden layer needs a width: write dense:128")
        if not place and item.kind not in ("dense", "conv"):
            _fail(text, item.start, item.text, "a network starts with a trained layer, dense or conv")
    return Network(text, text, items)


def _words(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for word in text.split(","):
        yield start + len(word) - len(word.lstrip()), word.strip()
        start += len(word) + 1


def _preset(text: str, name: str, argument: str | None) -> str:
    if name == "lr":
        if argument is not None:
            _fail(text, text.index(":"), argument, "'lr' takes no argument")
        return "dense"
    if name == "mlp":
        start = text.find(":") + 1 or len(text)
        words = list(_words(argument)) if argument is not None else [(0, "")]
        for offset, word in words:
            if not re.fullmatch("[0-9]{1,7}", word) or int(word) < 1:
                _fail(text, start + offset, word, "'mlp' takes the widths of its hidden layers, as in mlp:128,64")
        return ",".join([f"dense:{word},relu" for _, word in words] + ["dense"])
    scale = 1.0
    if argument is not None:
        try:
            scale = float(argument)
        except ValueError:
            scale = math.nan
        if not 0 < scale <= 16:
            _fail(text, text.index(":") + 1, argument, "'dcnn' takes a scale of its widths above 0 and up to 16")
    layers = [f"conv:{window}x{max(1, round(scale * width))},{tail}" for window, width, tail in _DCNN]
    return ",".join([*layers, "dense"])


def _item(text: str, start: int, word: str) -> Item:
    kind, *arguments = word.split(":")
    if kind not in _ITEMS:
        hint = unknown("item", kind, _ITEMS) if kind else "an item is missing"
        _fail(text, start, word, f"{hint}")
    if kind in ("flatten", *ACTIVATIONS):
        if arguments:
            _fail(text, start, word, f"{kind!r} takes no argument")
        return Item(kind, start, word)
    if kind == "dense":
        if len(arguments) > 1 or (arguments and not _whole(arguments[0])):
            _fail(text, start, word, "a dense layer is written dense:WIDTH, or dense as the last")
        return Item(kind, start, word, width=int(arguments[0]) if arguments else 0)
    if kind in _POOLS:
        if len(arguments) != 1 or not _whole(arguments[0]):
            _fail(text, start, word, f"pooling is written {kind}:SIZE, as in {kind}:2")
        size = int(arguments[0])
        return Item(kind, start, word, window=(size, size), stride=size)
    return _convolution(text, start, word, arguments)


def _convolution(text: str, start: int, word: str, arguments: Sequence[str]) -> Item:
    form = "a convolution is written conv:HEIGHTxWIDTHxCHANNELS, then :stride=N and :pad=N or :pad=same if wanted"
    sides = arguments[0].split("x") if arguments else []
    if len(sides) != 3 or not all(map(_whole, sides)):
        _fail(text, start, word, form)
    height, width, channels = map(int, sides)
    stride, pad = 1, (0, 0)
    for option in arguments[1:]:
        name, _, value = option.partition("=")
        if name == "stride" and _whole(value):
            stride = int(value)
        elif name == "pad" and value == "same" and height % 2 and width % 2:
            pad = (height // 2, width // 2)
        elif name == "pad" and re.fullmatch("[0-9]{1,4}", value) and int(value) < min(height, width):
            pad = (int(value), int(value))
        else:
            wrong = "pad must be smaller than the window, and 'same' needs odd sides" if name == "pad" else form
            _fail(text, start + word.index(option), option, wrong)
    return Item("conv", start, word, width=channels, window=(height, width), stride=stride, pad=pad)


def _whole(text: str) -> bool:
    return bool(re.fullmatch("[0-9]{1,7}", text)) and int(text) > 0


def _fail(
    text: str, start: int, word: str, reason: str, kind: type[ParameterError | DataError] = ParameterError
) -> NoReturn:
    place = f"{word!r} at character {start + 1}" if word else f"character {start + 1}"
    raise kind(f"{place} of network {text!r}: {reason}")


# --- shapes ---


@lru_cache(maxsize=64)
def _stages(network: Network, inputs: Shape, classes: int) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    shape: Shape = inputs
    layers = [place for place, item in enumerate(network.items) if item.kind in ("dense", "conv")]
    for number, place in enumerate(layers):
        item = network.items[place]
        end = layers[number + 1] if number + 1 < len(layers) else len(network.items)
        last = number + 1 == len(layers)
        taken = _taken(network, item, shape, first=not number)
        stage = Stage(item, network.items[place + 1 : end], taken, classes if last else item.width, last)
        if min(stage.places, default=1) < 1:
            window = "x".join(map(str, item.window))
            _fail_shape(network, item, f"a window of {window} does not fit images of {_sides(taken)}")
        shape = (*stage.places, stage.width)
        for behind in stage.tail:
            if behind.kind in _POOLS and (len(shape) != 3 or min(shape[:2]) < behind.stride):
                _fail_shape(network, behind, f"there is nothing to pool: what arrives here is {_sides(shape)}")
            shape = _behind(behind, shape)
        stages.append(stage)
    return tuple(stages)


def _taken(network: Network, item: Item, shape: Shape, *, first: bool) -> Shape:
    """The shape as a layer takes it: flat, or with channels."""
    if item.kind == "dense":
        return (math.prod(shape),)
    if len(shape) == 2:
        shape = (*shape, 1)  # grey images have no axis for channels
    if len(shape) != 3:
        whose = "the inputs are" if first else "what arrives here is"
        _fail_shape(
            network,
            item,
            f"a convolution needs images, height x width or height x width x channels; {whose} {_sides(shape)}",
        )
    return shape


def _fail_shape(network: Network, item: Item, reason: str) -> NoReturn:
    _fail(network.spelled, item.start, item.text, reason, DataError)


def _sides(shape: Shape) -> str:
    return " x ".join(map(str, shape)) if len(shape) > 1 else f"rows of {shape[0]} numbers"


def _behind(item: Item, shape: Shape) -> Shape:
    if item.kind == "flatten":
        return (math.prod(shape),)
    if item.kind in _POOLS:
        return (shape[0] // item.stride, shape[1] // item.stride, shape[2])
    return shape


# --- forward passes ---


def prepare(inputs: Array, scale: str) -> Float:
    """Inputs in float64, bytes in [0, 1], brought to a scale: the same for everybody, and for each sample on its own.

    "unit" is unit length, "power" the square root of each value (with its sign) and then unit length, "none" neither.
    "auto" is "power" for images (two axes or more), whose brightness means little, and "none" for rows of a table.
    """
    plain = scale == "none" or (scale == "auto" and inputs.ndim < 3)
    roots = not plain and scale != "unit"
    if inputs.dtype == np.uint8:  # there are 256 values: they are looked up, in one pass
        values = np.arange(256) / 255.0
        rows: Float = np.take(np.sqrt(values) if roots else values, inputs)
    else:
        rows = np.asarray(inputs, dtype=np.float64)
        rows = np.copysign(np.sqrt(np.abs(rows)), rows) if roots else rows if plain else rows.copy()
    if not plain:
        lengths = np.sqrt(np.einsum("ij,ij->i", flat(rows), flat(rows)))
        rows /= np.where(lengths > 0, lengths, 1.0).reshape(-1, *[1] * (rows.ndim - 1))
    return rows


def design(stage: Stage, inputs: Float, block: int) -> Iterator[Float]:
    """The rows a layer is fitted to, each with a one behind it: samples, or patches, image by image and place by place.

    No more than `block` rows at a time; `inputs` are a few samples of any shape that the stage takes.
    """
    if stage.layer.kind == "dense":
        rows = flat(inputs)
        for start in range(0, len(rows), block):
            yield _with_one(rows[start : start + block])
        return
    windows = _windows(stage, inputs)
    count, places = len(windows), stage.positions
    if places <= block:
        images = block // places
        for start in range(0, count, images):
            yield _with_one(windows[start : start + images], 3)
        return
    columns = stage.places[1]
    for image in windows:
        for start in range(0, places, block):
            chosen = np.arange(start, min(start + block, places))
            yield _with_one(image[chosen // columns, chosen % columns], 1)


def _windows(stage: Stage, inputs: Float) -> Float:
    """Images x rows x columns x patch (height, width, channels): a view."""
    item = stage.layer
    images = inputs.reshape(len(inputs), *stage.inputs)
    if any(item.pad):
        images = np.pad(images, ((0, 0), (item.pad[0],) * 2, (item.pad[1],) * 2, (0, 0)))
    windows = sliding_window_view(images, item.window, axis=(1, 2))
    return windows[:, :: item.stride, :: item.stride].transpose(0, 1, 2, 4, 5, 3)


def _with_one(rows: Float, lead: int = 1) -> Float:
    """Rows (the first `lead` axes count them) with a constant one behind each, contiguous and copied once."""
    result = np.empty((math.prod(rows.shape[:lead]), math.prod(rows.shape[lead:]) + 1))
    result[:, :-1].reshape(rows.shape)[...] = rows  # splitting axes gives a view
    result[:, -1] = 1.0
    return result


def mean_rows(stage: Stage, inputs: Float) -> Float:
    """The mean of the rows of each sample (for a dense layer the row itself), with the one."""
    if stage.layer.kind == "dense":
        return _with_one(flat(inputs))
    return _with_one(_windows(stage, inputs).mean(axis=(1, 2)))


def class_scores(stage: Stage, layer: Arrays, inputs: Float, block: int) -> Float:
    """What a layer says on its own: scores of the classes for each row, before any encoding (rows x classes)."""
    weights = stacked(layer)
    return np.concatenate([rows @ weights for rows in design(stage, inputs, block)])


def forward(stage: Stage, layer: Arrays, encoding: Float, inputs: Float, block: int) -> Float:
    """A few samples through a layer, its encoding and its tail."""
    scores = class_scores(stage, layer, inputs, block)
    values: Float = (scores @ encoding).reshape(len(inputs), *stage.places, stage.width)
    for item in stage.tail:
        if item.kind == "flatten":
            values = flat(values)
        elif item.kind in _POOLS:
            values = _pool(item, values)
        else:
            values = ACTIVATIONS[item.kind](values)
    return values


def _pool(item: Item, values: Float) -> Float:
    """Windows side by side; what does not fill a window at the far edges is left out."""
    size = item.stride
    height, width = values.shape[1] // size * size, values.shape[2] // size * size
    corners = [values[:, i:height:size, j:width:size] for i in range(size) for j in range(size)]
    pooled = corners[0].copy()
    for corner in corners[1:]:
        _POOLS[item.kind](pooled, corner, out=pooled)  # type: ignore[call-arg]
    return pooled / size**2 if item.kind == "avgpool" else pooled


# --- weights ---


def stacked(layer: Mapping[str, Array]) -> Float:
    """Weight and intercept as one matrix, the intercept last: a constant feature like any other."""
    return np.vstack([layer["weight"], layer["intercept"]])


def unstacked(weights: Float) -> dict[str, Array]:
    """The inverse."""
    return {"weight": np.ascontiguousarray(weights[:-1]), "intercept": np.ascontiguousarray(weights[-1])}


@lru_cache(maxsize=32)
def encoding(seed: int, number: int, classes: int, width: int) -> Float:
    """Q of a hidden layer, classes x width, standard normal: drawn from the seed by everybody who needs it."""
    matrix = derive(seed, "label encoding", number, classes, width).standard_normal((classes, width))
    matrix.flags.writeable = False
    return matrix
