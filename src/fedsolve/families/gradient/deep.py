"""Deep networks for pictures, written from their papers: ResNet-18 and VGG-11, without their heads.

Both have two forms. Pictures with no side above 64 get the form that papers use on CIFAR: ResNet-18 begins with a 3 x 3
convolution of stride 1 and no pooling, and VGG-11's head stands on the means of its last maps. Larger ones get the form
of the ImageNet papers: ResNet-18 begins with 7 x 7, stride 2 and a max pooling, VGG-11 ends in two hidden layers of
4096 with dropout. Pictures have any number of channels, and any size: VGG-11's poolings round up.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu

SMALL = 64  # the longest side of a picture that gets the form for small ones
STAGES = (64, 128, 256, 512)  # channels of ResNet-18, two blocks each
COLUMN_A = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # channels of VGG-11, with a pooling behind each part
HIDDEN = 4096  # units in each of VGG-11's hidden layers
GROUPS = 2  # of channels that are normalised together, in each layer
Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    """Wu and He, ECCV 2018, with two groups: there are no statistics of batches that clients would not share."""
    return nn.GroupNorm(GROUPS, channels)


def resnet18(shape: tuple[int, ...], norm: Norm = nn.BatchNorm2d) -> tuple[nn.Module, int]:
    """He et al., CVPR 2016, for pictures of (channels, height, width): the body, and how many numbers it gives."""
    channels, *sides = shape
    start: list[nn.Module]
    if max(sides) <= SMALL:
        start = [_convolution(channels, STAGES[0], 3), norm(STAGES[0]), nn.ReLU(inplace=True)]
    else:
        start = [_convolution(channels, STAGES[0], 7, 2), norm(STAGES[0]), nn.ReLU(inplace=True)]
        start.append(nn.MaxPool2d(3, stride=2, padding=1))
    blocks = [_Residual(STAGES[0], STAGES[0], 1, norm), _Residual(STAGES[0], STAGES[0], 1, norm)]
    for before, after in pairwise(STAGES):
        blocks += [_Residual(before, after, 2, norm), _Residual(after, after, 1, norm)]
    return nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), STAGES[-1]


class _Residual(nn.Module):  # type: ignore[misc]  # to mypy, torch is Any
    """Two convolutions, and a way past them: the inputs as they are, or brought to the same shape."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        same = stride == 1 and before == after
        self.past = nn.Sequential() if same else nn.Sequential(_convolution(before, after, 1, stride), norm(after))
        self.through = nn.Sequential(
            _convolution(before, after, 3, stride), norm(after), nn.ReLU(inplace=True),
            _convolution(after, after, 3), norm(after),
        )  # fmt: skip

    def forward(self, inputs: Tensor) -> Tensor:
        """Both ways added, and rectified."""
        outputs: Tensor = relu(self.through(inputs) + self.past(inputs))
        return outputs


def vgg11(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Simonyan and Zisserman, ICLR 2015, column A, for pictures: the body, and how many numbers it gives."""
    channels, *sides = shape
    body: list[nn.Module] = []
    for part in COLUMN_A:
        for after in part:
            body += [_convolution(channels, after, 3, bias=True), nn.ReLU(inplace=True)]
            channels = after
        body.append(nn.MaxPool2d(2, ceil_mode=True))
    if max(sides) <= SMALL:
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels
    body += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for inputs in (channels * 7 * 7, HIDDEN):
        body += [_begun(nn.Linear(inputs, HIDDEN)), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*body), HIDDEN


def _convolution(before: int, after: int, size: int, stride: int = 1, *, bias: bool = False) -> nn.Module:
    """A convolution that keeps the sides of a picture, or divides them by its stride."""
    return _begun(nn.Conv2d(before, after, size, stride, padding=size // 2, bias=bias))


def _begun(layer: nn.Module) -> nn.Module:
    """The layer with first weights that keep signals as large as they are, and biases of zero (He et al., ICCV 2015).

    Torch's own weights are smaller, and after eight layers without norms next to nothing is left of a signal. Uniform,
    not normal: where only shapes are wanted, torch would load for seconds to draw normal numbers without memory.
    """
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
