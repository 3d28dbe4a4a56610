"""Convolution, pooling of 2 x 2 and ReLU in one: from one channel to a few as matrix products, else torch's own layers.

Libraries fill their vectors with channels, so few of them leave much of a vector empty. Here the outputs are cut into
tiles, two lines high, and one banded matrix maps all that a tile depends on to all that it gives: more arithmetic in
less time. A tile's lines, and its even and odd columns, come out apart, so pooling compares whole blocks. Some pictures
go at once, so that their outputs stay in the core's own cache; for the gradient they are made again, which is faster
than to keep them. All of this is for the CPU: other devices have torch's layers.

Values and gradients are those of torch's layers, up to rounding, and up to which of several equal outputs has the
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

FEW = 15  # channels out; from 16 on, torch is faster
TILES = (4, 5, 6, 7, 3)  # pooled columns of a tile, the fastest first: wide bands waste arithmetic, narrow ones vectors
AT_ONCE = 16  # pictures; 28 x 28 to six channels take half a megabyte


class PooledConvolution(nn.Sequential):  # type: ignore[misc]  # to mypy, torch is Any
    """A convolution, the largest of each 2 x 2 of its outputs, and ReLU."""

    def __init__(self, before: int, after: int, size: int) -> None:
        # The largest of four is positive where any is: pooling first gives the same values and a quarter of the work.
        super().__init__(nn.Conv2d(before, after, size), nn.MaxPool2d(2), nn.ReLU(inplace=True))

    def forward(self, pictures: Tensor) -> Tensor:
        """From (samples, channels, height, width) to half of each side, less the kernel's margin."""
        weight, bias = self[0].weight, self[0].bias
        rows, columns = ((side - weight.shape[3] + 1) // 2 for side in pictures.shape[2:])
        tile = next((width for width in TILES if columns % width == 0), 0)
        if not tile or len(bias) > FEW or pictures.shape[1] > 1 or pictures.requires_grad or not pictures.is_cpu:
            plain: Tensor = super().forward(pictures)
            return plain
        pooled: Tensor = _Banded.apply(pictures[:, 0], weight[:, 0], bias, tile)
        return pooled.relu_().view(len(pictures), rows, columns, len(bias)).permute(0, 3, 1, 2)


class _Banded(torch.autograd.Function):  # type: ignore[misc]
    """Pooled outputs, one row per tile, of pictures (samples, height, width) and weights (channels out, side, side)."""

    @staticmethod
    def forward(ctx: Any, pictures: Tensor, weight: Tensor, bias: Tensor, tile: int) -> Tensor:
        channels, side, _ = weight.shape
        rows, columns = ((length - side + 1) // 2 for length in pictures.shape[1:])
        tiles = rows * columns // tile
        band = weight.new_zeros((side + 1) * (2 * tile + side - 1), 4 * tile * channels)
        _diagonals(band, side, tile).copy_(weight.permute(1, 2, 0)[:, :, None, None, None])
        pooled = pictures.new_empty(len(pictures) * tiles, tile * channels)
        strips = [_strips(some, side, tile) for some in pictures.split(AT_ONCE)]
        for some, place in zip(strips, pooled.split(AT_ONCE * tiles), strict=True):
            left, right = _halves(torch.maximum(*_halves(some.mm(band))))
            torch.maximum(left, right, out=place)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(band, *strips)
            ctx.sizes = side, tile, tiles
        return pooled.add_(bias.repeat(tile))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_pooled: Tensor) -> tuple[None, Tensor, Tensor, None]:
        band, *strips = ctx.saved_tensors
        side, tile, tiles = ctx.sizes
        of_band = torch.zeros_like(band)
        for some, gradient in zip(strips, of_pooled.split(AT_ONCE * tiles), strict=True):
            outputs = some.mm(band)
            upper, lower = _halves(outputs)
            larger = torch.maximum(upper, lower)
            _share(gradient, *_halves(larger))
            _share(larger, upper, lower)
            of_band.addmm_(some.t(), outputs)
        of_weight = _diagonals(of_band, side, tile).sum((2, 3, 4)).permute(2, 0, 1)
        return None, of_weight, of_pooled.sum(0).view(tile, -1).sum(0), None


def _strips(pictures: Tensor, side: int, tile: int) -> Tensor:
    """What each tile depends on, one row per tile: lines and columns of the picture for two lines of outputs."""
    span = 2 * tile + side - 1
    return pictures.unfold(1, side + 1, 2).unfold(2, span, 2 * tile).reshape(-1, (side + 1) * span)


def _diagonals(band: Tensor, side: int, tile: int) -> Tensor:
    """The kernel's places in the band: its row and column; the output's parities, its pooled column, its channel.

    A row of the band is a line and a column of the strip: the output's and the kernel's together.
    """
    row = band.shape[1]
    half, quarter, channels = row // 2, row // 4, row // (4 * tile)
    line = (2 * tile + side - 1) * row
    strides = (line, row, line + half, row + quarter, 2 * row + channels, 1)
    return band.as_strided((side, side, 2, 2, tile, channels), strides)


def _halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second half of each row, as views: the upper and the lower line, the even and odd columns."""
    first, second = rows.chunk(2, dim=1)
    return first, second


def _share(gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """Put the gradient of a maximum in the place of what it is the maximum of."""
    first.ge_(second).mul_(gradient)
    torch.sub(gradient, first, out=second)
