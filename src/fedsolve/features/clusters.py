"""Filters for `patches`, fitted from sums over clients in rounds of their own.

1. The mean variance of a patch gives the contrast.
2. Mean and covariance of patches give the directions that are whitened.
3. K-means among directions, each step a round: a patch counts for the filter that it lies along, or against.
4. Mean and deviation of every feature, of some thousand pictures that their own content picks.

Patches are rounded to multiples of 1 / `GRID` before they are summed, and features likewise: the sums are whole
numbers, which floats add up exactly and in any order. So every split of the same pictures gives the same bits, and with
them the same choices in every step. The mean variance alone is a sum of fractions; it is rounded to three digits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.errors import DataError
from fedsolve.features import answers
from fedsolve.features.patches import NAME, Bank, Patches, Recipe
from fedsolve.rng import derive
from fedsolve.threads import ONE_THREAD

GRID = 256.0  # steps to one, for patches, whose variance is below one; sums stay exact up to a billion patches
FINE = 4096.0  # steps to one, for features, which are about one
TRACES = 9  # places a side at which patches are looked at for contrast and covariance
SAMPLES = 4  # places a side whose patches take part in k-means
PATCHES = 16384  # at a time
BLOCK = 1024  # pictures at a time
ENOUGH = 5000  # pictures, about, for the means and deviations of features
STAY = 1e-3  # of a patch: what a filter weighs beside its patches, so that one without patches stays where it is
LARGEST = 127  # of a rounded weight


def sums(recipe: Recipe, state: Arrays, inputs: Array) -> dict[str, Array]:
    """What a client tells of its pictures in the round that follows `state`, which is what it was sent."""
    recipe.channels(inputs.shape[1:])
    with ONE_THREAD:  # products are small: a second thread would only wait
        if "contrast" not in state:
            return _variance(recipe, inputs)
        contrast = float(state["contrast"])
        if "whitening" not in state:
            return _covariance(recipe, contrast, inputs)
        if "gain" not in state:
            return _clusters(recipe, contrast, state, inputs)
        return _features(recipe, state, inputs)


def advance(recipe: Recipe, state: Arrays, total: Arrays) -> dict[str, Array]:
    """The next state, from the sums of all clients; it starts from nothing."""
    count = int(total["count"])
    if not count > 0:
        raise DataError(f"{NAME} needs training pictures, and there are none")
    if "contrast" not in state:
        variance = float(total["variance"]) / count
        if not 0 < variance < np.inf:
            raise DataError(f"{NAME} needs pictures that are not all of one colour; the mean variance is {variance:g}")
        return {"contrast": np.array(float(f"{recipe.contrast * variance:.3g}")), "pictures": total["pictures"]}
    if "whitening" not in state:
        return {**state, **_whitened(recipe, total, count)}
    if "gain" not in state:
        return _moved(recipe, state, total)
    mean, square = total["sums"] / (FINE * count), total["squares"] / (FINE**2 * count)
    origin = mean.astype(np.float16)
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0)).astype(np.float16)
    return {**state, "origin": origin, "scale": np.where(deviation > 0, deviation, np.float16(1.0))}


def fitted(recipe: Recipe, state: Arrays) -> Patches:
    """The map, once all rounds are over."""
    parts = (state[name] for name in ("filters", "gain", "offset", "origin", "scale"))
    bank = Bank(float(state["contrast"]), *parts)
    return Patches.of(recipe, len(bank.filters) // recipe.numbers(1), bank)


# --- what clients tell ---


def _patches(recipe: Recipe, inputs: Array, a_side: int) -> Iterator[Any]:
    """Some patches of all pictures, about `a_side` down and across, as rows in double precision; a few at a time."""
    sides = (inputs.shape[1] - recipe.height + 1, inputs.shape[2] - recipe.width + 1)
    stride = tuple(-(-side // a_side) for side in sides)
    every = answers.patches(inputs, recipe.height, recipe.width, (stride[0], stride[1]))
    step = max(1, PATCHES // (every.shape[1] * every.shape[2]))
    for start in range(0, len(every), step):
        some = every[start : start + step]
        rows = np.empty((some.shape[0] * some.shape[1] * some.shape[2], recipe.numbers(some.shape[5])))
        rows.reshape(some.shape)[...] = some
        yield rows


def _on_grid(rows: Any, contrast: float) -> Any:
    """Normalised patches in whole steps of the grid."""
    answers.normalise(rows, contrast)
    rows *= GRID
    return np.rint(rows, out=rows)


def _variance(recipe: Recipe, inputs: Array) -> dict[str, Array]:
    count, total = 0, 0.0
    for rows in _patches(recipe, inputs, TRACES):
        count, total = count + len(rows), total + float(answers.centre(rows).sum())
    return {"count": np.array(count), "variance": np.array(total), "pictures": np.array(len(inputs))}


def _covariance(recipe: Recipe, contrast: float, inputs: Array) -> dict[str, Array]:
    numbers = recipe.numbers(recipe.channels(inputs.shape[1:]))
    count, mean, products = 0, np.zeros(numbers), np.zeros((numbers, numbers))
    for rows in _patches(recipe, inputs, TRACES):
        rows = _on_grid(rows, contrast)
        count, mean, products = count + len(rows), mean + rows.sum(0), products + rows.T @ rows
    return {"count": np.array(count), "sums": mean, "triangle": blas.pack(products)}


def _clusters(recipe: Recipe, contrast: float, state: Arrays, inputs: Array) -> dict[str, Array]:
    """For each filter the sum of its patches, of those against it with the sign turned, and the sum of the signs."""
    directions = state["whitening"] @ state["filters"]
    against_mean = state["mean"] @ directions
    count, sums, signs = 0, np.zeros(directions.T.shape), np.zeros(recipe.filters)
    for rows in _patches(recipe, inputs, SAMPLES):
        rows = _on_grid(rows, contrast)
        products = rows @ (directions / GRID) - against_mean
        mine = np.abs(products).argmax(1)
        every = np.arange(len(rows))
        belongs = np.zeros(products.shape)
        belongs[every, mine] = np.sign(products[every, mine])
        count, sums, signs = count + len(rows), sums + belongs.T @ rows, signs + belongs.sum(0)
    return {"count": np.array(count), "sums": sums, "signs": signs}


def _features(recipe: Recipe, state: Arrays, inputs: Array) -> dict[str, Array]:
    """Sums of the features, and of their squares, before an origin and a scale are known."""
    plain = {"origin": np.zeros(recipe.size, np.float16), "scale": np.ones(recipe.size, np.float16)}
    features, picked = fitted(recipe, {**state, **plain}), inputs[_picked(inputs, int(state["pictures"]))]
    total, squares = np.zeros(recipe.size), np.zeros(recipe.size)
    for start in range(0, len(picked), BLOCK):
        rows = np.rint(features(picked[start : start + BLOCK]) * FINE).astype(np.float64)
        total, squares = total + rows.sum(0), squares + np.square(rows).sum(0)
    return {"count": np.array(len(picked)), "sums": total, "squares": squares}


def _picked(inputs: Array, pictures: int) -> NDArray[np.int64]:
    """Rows of about `ENOUGH` of all clients' pictures, by a checksum of each: the same ones wherever they lie."""
    if pictures <= ENOUGH:
        return np.arange(len(inputs))
    sums = np.array([zlib.crc32(np.ascontiguousarray(picture).data) for picture in inputs], dtype=np.int64)
    return np.flatnonzero(sums * pictures < ENOUGH * 2**32)


# --- what the server makes of it ---


def _whitened(recipe: Recipe, total: Arrays, count: int) -> dict[str, Array]:
    """Directions of most variance, each over its deviation, and filters to start from: random directions among them."""
    mean = total["sums"] / (GRID * count)
    lower = blas.unpack(total["triangle"], len(mean))
    second = (lower + np.tril(lower, -1).T) / (GRID**2 * count)
    variance, vectors = np.linalg.eigh(second - np.outer(mean, mean))
    kept = recipe.kept(len(mean) // recipe.numbers(1))
    variance, vectors = variance[::-1][:kept], vectors[:, ::-1][:, :kept]
    whitening = vectors / np.sqrt(np.maximum(variance, 0.0) + recipe.smoothing)
    filters = derive(recipe.seed, NAME, "filters", kept, recipe.filters).standard_normal((kept, recipe.filters))
    filters /= np.linalg.norm(filters, axis=0)
    state = {"mean": mean, "whitening": whitening, "filters": filters, "step": np.array(0)}
    return state if recipe.steps else _rounded(state)


def _moved(recipe: Recipe, state: Arrays, total: Arrays) -> dict[str, Array]:
    """A step of k-means: every filter along the sum of the whitened patches that are its."""
    patches = total["sums"] / GRID - total["signs"][:, None] * state["mean"]
    filters = (patches @ state["whitening"]).T + STAY * state["filters"]
    filters /= np.linalg.norm(filters, axis=0)
    following = {**state, "filters": filters, "step": state["step"] + 1}
    return following if int(following["step"]) < recipe.steps else _rounded(following)


def _rounded(state: Arrays) -> dict[str, Array]:
    """Filters for patches as they are, not whitened, in small integers with a gain each."""
    weights: Float = state["whitening"] @ state["filters"]
    gain = (np.abs(weights).max(0) / LARGEST).astype(np.float32)
    filters = np.rint(weights / gain).astype(np.int8)
    offset = (state["mean"] @ (filters * gain.astype(np.float64))).astype(np.float32)
    return {**state, "filters": filters, "gain": gain, "offset": offset}
