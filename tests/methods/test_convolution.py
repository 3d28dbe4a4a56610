"""The convolution of grey pictures is torch's, computed otherwise."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'fedsolve[torch]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from fedsolve.families.gradient import convolution as _convolution  # noqa: E402
from fedsolve.families.gradient.convolution import PooledConvolution  # noqa: E402

SIZES = [
    pytest.param(28, 28, 5, 6, 70, id="LeNet on Fashion-MNIST, the last pictures fewer"),
    pytest.param(29, 21, 5, 3, 33, id="a line and a column too many for pairs"),
    pytest.param(8, 27, 4, 2, 1, id="one picture, not square, an even kernel"),
    pytest.param(14, 18, 7, 15, 32, id="tiles of six"),
    pytest.param(3, 8, 2, 1, 5, id="tiles of three, one row, one channel"),
    pytest.param(11, 15, 1, 4, 5, id="a kernel of one"),
]


def drawn(height: int, width: int, side: int, channels: int, samples: int) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return PooledConvolution(1, channels, side).double(), torch.randn(samples, 1, height, width, dtype=torch.float64)


def by_torch(block: Any, pictures: Any) -> Any:
    return functional.max_pool2d(functional.relu(functional.conv2d(pictures, block[0].weight, block[0].bias)), 2)


@pytest.mark.parametrize(("height", "width", "side", "channels", "samples"), SIZES)
def test_values_and_gradients_are_those_of_torch(
    height: int, width: int, side: int, channels: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, pictures = drawn(height, width, side, channels, samples)
    expected = by_torch(block, pictures)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, list(block.parameters()), weights)
    monkeypatch.setattr(nn.Conv2d, "forward", forbidden)
    found = block(pictures)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(torch.autograd.grad(found, list(block.parameters()), weights), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def forbidden(*arguments: object) -> None:
    raise AssertionError("torch's own convolution was taken")


def test_its_gradient_is_the_slope() -> None:
    block, pictures = drawn(12, 12, 5, 2, 3)
    assert torch.autograd.gradcheck(
        lambda weight, bias: _convolution._Banded.apply(pictures[:, 0], weight[:, 0], bias, 4),
        (block[0].weight, block[0].bias),
    )


def test_equal_outputs_share_one_gradient() -> None:
    block, _ = drawn(12, 12, 5, 2, 3)
    blank = torch.ones(3, 1, 12, 12, dtype=torch.float64)
    with torch.no_grad():
        block[0].bias.fill_(10.0)  # all outputs positive
    both = (torch.autograd.grad(y.sum(), list(block.parameters())) for y in (block(blank), by_torch(block, blank)))
    torch.testing.assert_close(*both)


def test_what_the_pictures_memory_looks_like_does_not_matter() -> None:
    block, pictures = drawn(28, 28, 5, 6, 8)
    wide = torch.zeros(8, 28, 56, dtype=torch.float64)
    wide[:, :, ::2] = pictures[:, 0]
    torch.testing.assert_close(block(wide[:, None, :, ::2]), block(pictures), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("before", "after", "width", "slope"),
    [
        pytest.param(3, 6, 28, False, id="colours"),
        pytest.param(1, 16, 28, False, id="many channels"),
        pytest.param(1, 6, 30, False, id="13 columns, which no tile divides"),
        pytest.param(1, 6, 28, True, id="gradient to the pictures"),
    ],
)
def test_other_layers_are_torchs_own(
    before: int, after: int, width: int, slope: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, pictures = PooledConvolution(before, after, 5), torch.randn(4, before, 28, width, requires_grad=slope)
    torch.testing.assert_close(block(pictures), by_torch(block, pictures))
    if slope:
        assert torch.autograd.grad(block(pictures).sum(), pictures)[0].abs().sum() > 0
    monkeypatch.setattr(nn.Conv2d, "forward", forbidden)
    with pytest.raises(AssertionError, match="own convolution"):
        block(pictures)
