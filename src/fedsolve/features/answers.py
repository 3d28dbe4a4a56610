"""What filters answer to the patches of pictures, picture by picture, in products that stay in a core's cache.

A patch is a window of a picture, less its mean, over the root of its variance and a contrast. A filter answers to it by
a product z; what counts is by how much z is above a threshold, and by how much it is below another. These are averaged
over windows of places, of the picture and, on demand, of its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedsolve.arrays import Array, Float
from fedsolve.features.images import Inputs

PLACES = 1024  # patches at a time, about
COLUMNS = 160  # filters at a time
WINDOWS = {"five": 5, "four": 4, "one": 1}  # of places: corners and centre, quarters, the whole picture
_CORNERS = tuple((down, across) for down in (0.22, 0.78) for across in (0.22, 0.78))
_DEVIATION = 0.2  # of a soft window, as a share of the picture's side


def patches(pictures: Array, height: int, width: int, stride: tuple[int, int] = (1, 1)) -> Any:
    """All patches: pictures x rows x columns x patch (height, width, channels), a view. Grey pictures have one channel.

    >>> patches(np.zeros((5, 8, 9)), 3, 3).shape
    (5, 6, 7, 3, 3, 1)
    """
    coloured = pictures[..., None] if pictures.ndim == 3 else pictures
    views = sliding_window_view(coloured, (height, width), axis=(1, 2))
    return views[:, :: stride[0], :: stride[1]].transpose(0, 1, 2, 4, 5, 3)


def centre(rows: Any) -> Any:
    """Take its mean off every row, in place; the variance of each. A row's result does not depend on the others."""
    rows -= rows.mean(1, keepdims=True)
    return np.einsum("ij,ij->i", rows, rows) / rows.dtype.type(rows.shape[1])


def normalise(rows: Any, contrast: float) -> None:
    """Every row less its mean, over the root of its variance and the contrast; in place."""
    variance = centre(rows)
    rows /= np.sqrt(variance + rows.dtype.type(contrast))[:, None]


@lru_cache(maxsize=64)
def places(name: str, rows: int, columns: int) -> Float:
    """The weight of each place in each window, windows x rows x columns; the weights of a window sum to one.

    >>> places("one", 2, 5).shape, places("four", 2, 2)[0].tolist()
    ((1, 2, 5), [[1.0, 0.0], [0.0, 0.0]])
    """

    def soft(count: int, middle: float) -> Float:
        weights: Float = np.exp(-0.5 * ((np.arange(count) - middle * (count - 1)) / (_DEVIATION * count)) ** 2)
        return np.asarray(weights / weights.sum())

    def half(count: int, middle: float) -> Float:  # halves share the middle of an odd count
        side = np.sign(middle - 0.5) * (np.arange(count) - 0.5 * (count - 1)) >= 0
        return np.asarray(side / side.sum())

    if name == "one":
        return np.full((1, rows, columns), 1.0 / (rows * columns))
    line = half if name == "four" else soft
    middles = _CORNERS if name == "four" else (*_CORNERS, (0.5, 0.5))
    return np.stack([np.outer(line(rows, down), line(columns, across)) for down, across in middles])


class _Part(NamedTuple):
    """A few filters, or their mirror images: which, the numbers, and the thresholds of answers."""

    filters: slice
    mirrored: int
    bank: Any
    above: Any
    below: Any


@dataclass(frozen=True, eq=False)
class Answers:
    """Filters for patches of one size, with the thresholds that their answers are held to, in one precision."""

    height: int
    width: int
    contrast: float
    windows: str
    bank: Any  # numbers of a patch x filters
    above: Any  # of each filter: answers above it count
    below: Any  # of each filter: answers below it count, too
    mirror: bool

    def means(self, pictures: Inputs) -> Iterator[Any]:
        """The mean answers of each picture, above and below x windows x filters.

        Each picture is computed on its own and in the same way, so that no bit depends on the pictures beside it.
        """
        shape: tuple[int, ...] = ()
        for picture in pictures:
            if picture.shape != shape:  # buffers are kept while pictures have one size
                shape, compute = picture.shape, self._computer(picture.shape)
            yield compute(picture)

    def _parts(self) -> list[_Part]:
        count = self.bank.shape[1]
        flipped = self.bank.reshape(self.height, self.width, -1, count)[:, ::-1].reshape(self.bank.shape)
        cuts = [slice(start, min(start + COLUMNS, count)) for start in range(0, count, COLUMNS)]
        return [
            _Part(cut, mirrored, np.ascontiguousarray(bank[:, cut]), self.above[cut], self.below[cut])
            for mirrored, bank in enumerate((self.bank, flipped) if self.mirror else (self.bank,))
            for cut in cuts
        ]

    def _computer(self, shape: tuple[int, ...]) -> Callable[[Array], Any]:
        """What computes the mean answers of a picture of this shape."""
        rows, columns = shape[0] - self.height + 1, shape[1] - self.width + 1
        kind, parts = self.bank.dtype, self._parts()
        weights = places(self.windows, rows, columns) * (0.5 if self.mirror else 1.0)
        step = max(1, PLACES // columns)  # rows of places at a time
        longest = min(step, rows) * columns
        buffer = np.empty((longest, len(self.bank)), dtype=kind)
        answers, clipped = (np.empty(longest * COLUMNS, dtype=kind) for _ in range(2))

        def pooled(start: int) -> tuple[Any, Any]:
            """Weights of some places: as they are, and for filters that stand for the mirror image."""
            some = weights[:, start : start + step]
            flat = (each.reshape(len(some), -1) for each in (some, some[:, :, ::-1]))
            straight, flipped = (np.ascontiguousarray(each, dtype=kind) for each in flat)
            return straight, flipped

        pools = [(start, pooled(start)) for start in range(0, rows, step)]

        def means(picture: Array) -> Any:
            result = np.zeros((2, len(weights), self.bank.shape[1]), dtype=kind)
            every = patches(picture[None], self.height, self.width)[0]
            for start, pool in pools:
                some = every[start : start + step]
                count = len(some) * columns
                buffer[:count].reshape(some.shape)[...] = some
                normalise(buffer[:count], self.contrast)
                for part in parts:
                    width = part.bank.shape[1]
                    z, cut = (each[: count * width].reshape(count, width) for each in (answers, clipped))
                    np.matmul(buffer[:count], part.bank, out=z)
                    np.maximum(z, part.above, out=cut)
                    result[0, :, part.filters] += pool[part.mirrored] @ cut
                    np.minimum(z, part.below, out=cut)
                    result[1, :, part.filters] -= pool[part.mirrored] @ cut
            # By how much z is above t is max(z, t) - t, and weights sum to one.
            result[0] -= self.above
            result[1] += self.below
            return np.maximum(result, 0, out=result)

        return means
