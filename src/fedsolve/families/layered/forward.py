"""Samples on their way through a network that is trained layer by layer: scale, patches, layers.

Where targets of a hidden layer are the labels times a random matrix Q (classes x width), its least-squares solution is
that for the labels themselves, times Q. Such a layer is held as class scores (`weight`, features x classes, and
`intercept`), and Q as a seed: smaller to send, cheaper to apply, and the layer on its own is a classifier. Other layers
are held as they are, features x width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fedsolve.arrays import Array, Arrays, Float, flat
from fedsolve.families.layered.stages import Item, Stage
from fedsolve.features import answers
from fedsolve.features.maps import ACTIVATIONS

SCALES = ("auto", "power", "unit", "none")
_POOLS: dict[str, Callable[[Float, Float], Float]] = {"avgpool": np.add, "maxpool": np.maximum}


# --- preparation ---


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


# --- patches ---


def design(stage: Stage, inputs: Array, block: int, *, constant: bool = True) -> Iterator[Float]:
    """The rows a layer is fitted to, each with a one behind it: samples, or patches, image by image and place by place.

    No more than `block` rows at a time; `inputs` are a few samples of any shape that the stage takes. Without
    `constant` there is no one.
    """
    if stage.layer.kind == "dense":
        rows = flat(inputs)
        for start in range(0, len(rows), block):
            yield _rows(rows[start : start + block], constant)
        return
    windows = _windows(stage, inputs)
    count, places = len(windows), stage.positions
    if places <= block:
        images = block // places
        for start in range(0, count, images):
            yield _rows(windows[start : start + images], constant, 3)
        return
    columns = stage.places[1]
    for image in windows:
        for start in range(0, places, block):
            numbers = np.arange(start, min(start + block, places))
            yield _rows(image[numbers // columns, numbers % columns], constant)


def _windows(stage: Stage, inputs: Array) -> Array:
    """Images x rows x columns x patch (height, width, channels): a view."""
    item = stage.layer
    images = inputs.reshape(len(inputs), *stage.inputs)
    if any(item.pad):
        images = np.pad(images, ((0, 0), (item.pad[0],) * 2, (item.pad[1],) * 2, (0, 0)))
    windows: Array = answers.patches(images, *item.window, (item.stride, item.stride))
    return windows


def _rows(rows: Array, constant: bool, lead: int = 1) -> Float:
    """Rows (the first `lead` axes count them), with a constant one behind each if asked; contiguous, copied once."""
    numbers = math.prod(rows.shape[lead:])
    result = np.empty((math.prod(rows.shape[:lead]), numbers + constant))
    result[:, :numbers].reshape(rows.shape)[...] = rows  # splitting axes gives a view
    result[:, numbers:] = 1.0
    return result


def mean_rows(stage: Stage, inputs: Array, *, constant: bool = True) -> Float:
    """The mean of the rows of each sample (for a dense layer the row itself), with the one."""
    if stage.layer.kind == "dense":
        return _rows(flat(inputs), constant)
    return _rows(_windows(stage, inputs).mean(axis=(1, 2)), constant)


# --- forward passes ---


def values(stage: Stage, layer: Arrays, inputs: Array, block: int) -> Float:
    """What a layer gives for each row, before any encoding: scores of the classes, or its columns if it is coded."""
    weights, constant = stacked(layer), "intercept" in layer
    return np.concatenate([rows @ weights for rows in design(stage, inputs, block, constant=constant)])


def forward(stage: Stage, layer: Arrays, encoding: Float | None, inputs: Array, block: int) -> Float:
    """A few samples through a layer, its encoding if it has one, and its tail."""
    found = values(stage, layer, inputs, block)
    result: Float = (found if encoding is None else found @ encoding).reshape(len(inputs), *stage.places, stage.width)
    return behind_tail(stage, result)


def behind_tail(stage: Stage, values: Float) -> Float:
    """What a layer gives, behind the activations and pools that follow it."""
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
    """Weight and intercept, where there is one, as one matrix, the intercept last: a feature like any other."""
    return np.vstack([layer["weight"], layer["intercept"]]) if "intercept" in layer else layer["weight"]


def unstacked(weights: Float, *, constant: bool = True) -> dict[str, Array]:
    """The weight and the intercept of a matrix that `stacked` made."""
    if not constant:
        return {"weight": np.ascontiguousarray(weights)}
    return {"weight": np.ascontiguousarray(weights[:-1]), "intercept": np.ascontiguousarray(weights[-1])}
