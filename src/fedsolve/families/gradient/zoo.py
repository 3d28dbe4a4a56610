"""The networks that gradient methods train, by name. Each is a body and a head; which is which, the network says.

A network takes float32 tensors: images as (samples, channels, height, width), anything else as (samples, numbers).
An own one is `package.module:factory`: `factory(shape, classes)` is called with the shape of one sample, (channels,
height, width) or (numbers,), and returns a `torch.nn.Module` that gives one score per class. Its head is its submodule
called `head`, or else the last of its modules that has parameters of its own. Its module is one that Python finds, or
one in the current folder. Only a user names it: `methods.restored` refuses one that a file or a message alone names.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from fedsolve.errors import ParameterError
from fedsolve.families import widths
from fedsolve.families.gradient import deep
from fedsolve.families.gradient.convolution import PooledConvolution
from fedsolve.families.gradient.settings import EXAMPLES
from fedsolve.modules import attribute, current_folder

Shape = tuple[int, ...]


def build(spec: str, shape: Shape, classes: int) -> nn.Module:
    """The network that a text stands for, with weights drawn from torch's generator."""
    form = widths.read(spec, EXAMPLES)
    if form is None:
        return _own(spec, shape, classes)
    name, sizes = form
    return _ZOO[name](shape, classes, sizes)


def named(spec: str) -> bool:
    """Whether a text stands for one of our networks, whose modules hold nothing but parameters and buffers."""
    return widths.read(spec, EXAMPLES) is not None


def depth(spec: str) -> int:
    """How many layers the widths in a text ask for, before the head; 0 where a network has no widths."""
    form = widths.read(spec, EXAMPLES)
    return len(form[1]) if form else 0


def head_names(module: nn.Module) -> frozenset[str]:
    """The tensors of the head, by their names in the state dict; those of the body are the others."""
    prefix = head_prefix(module)
    return frozenset(name for name in module.state_dict() if name.startswith(prefix))


def head_prefix(module: nn.Module) -> str:
    """What the names of the head's tensors begin with in the state dict."""
    return _head(module) + "."


def _head(module: nn.Module) -> str:
    return "head" if isinstance(getattr(module, "head", None), nn.Module) else layers(module)[-1]


def head(module: nn.Module) -> nn.Module:
    """The head itself."""
    return module.get_submodule(_head(module))


def apart(module: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The network as a function that gives two things: what its head sees, one row per sample, and its scores.

    A network of the user's own is watched: it says nothing of its body, but calls its head. It must be a copy that
    nobody else has, since the watch stays.
    """
    if isinstance(module, nn.Sequential) and [name for name, _ in module.named_children()] == ["body", "head"]:

        def through(inputs: Tensor) -> tuple[Tensor, Tensor]:
            features = module.body(inputs)
            return features, module.head(features)

        return through
    seen: list[Tensor] = []
    head(module).register_forward_pre_hook(lambda _, given: seen.append(given[0]))

    def watched(inputs: Tensor) -> tuple[Tensor, Tensor]:
        seen.clear()
        scores = module(inputs)
        if not seen:
            raise ParameterError(
                "parameter 'model': this method needs what the head sees, and the network never calls "
                f"{_head(module)!r}; call it as a module in its forward"
            )
        return seen[0].flatten(1), scores

    return watched


def layers(module: nn.Module) -> list[str]:
    """The modules with parameters of their own, from the input to the output (in the order they are registered in)."""
    return [name for name, child in module.named_modules() if next(child.parameters(recurse=False), None) is not None]


def _body_and_head(body: nn.Module, head: nn.Linear) -> nn.Module:
    return nn.Sequential(OrderedDict(body=body, head=head))


def _lr(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    """Softmax regression: a linear head on the inputs, or on frozen features where there is a feature map."""
    return _body_and_head(nn.Flatten(), nn.Linear(_count(shape), classes))


def _mlp(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    body: list[nn.Module] = [nn.Flatten()]
    sizes = (_count(shape), *widths)
    for before, after in pairwise(sizes):
        body += [nn.Linear(before, after), nn.ReLU()]
    return _body_and_head(nn.Sequential(*body), nn.Linear(sizes[-1], classes))


def _lenet5(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    """LeCun et al. 1998 as FedAPA has it: 6 and 16 channels, then 120 and 84; 62k numbers for 3 x 32 x 32."""
    channels, height, width = _image(shape, "lenet5", 5, 5)
    body = nn.Sequential(
        PooledConvolution(channels, 6, 5),
        PooledConvolution(6, 16, 5),
        nn.Flatten(),
        nn.Linear(16 * height * width, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    return _body_and_head(body, nn.Linear(84, classes))


def _cnn(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    """Small convolutions of 3 x 3, each followed by pooling, and one hidden layer of 64."""
    widths = widths or (16, 32)
    channels, height, width = _image(shape, "cnn", *[3] * len(widths))
    body: list[nn.Module] = []
    for before, after in pairwise((channels, *widths)):
        body.append(PooledConvolution(before, after, 3))
    body += [nn.Flatten(), nn.Linear(widths[-1] * height * width, 64), nn.ReLU()]
    return _body_and_head(nn.Sequential(*body), nn.Linear(64, classes))


def _dcnn(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    """FedACnnL's deep network: convolutions of 5, 3, 3 and 3 with leaky ReLU, the first two pooled by means."""
    if len(widths) != 4:
        raise ParameterError(f"parameter 'model': dcnn has four convolutions, as in dcnn:64,128,256,256; got {widths}")
    if len(shape) != 3 or min(_places(side) for side in shape[1:]) < 1:
        raise ParameterError(f"parameter 'model': dcnn takes images of at least 28 x 28; got inputs of shape {shape}")
    body: list[nn.Module] = []
    for before, after, kernel, pooled in zip((shape[0], *widths), widths, (5, 3, 3, 3), (1, 1, 0, 0), strict=False):
        body += [nn.Conv2d(before, after, kernel), nn.LeakyReLU(), *([nn.AvgPool2d(2)] if pooled else [])]
    places = _places(shape[1]) * _places(shape[2])
    return _body_and_head(nn.Sequential(*body, nn.Flatten()), nn.Linear(widths[-1] * places, classes))


def _places(side: int) -> int:
    """The side of what the convolutions of dcnn leave of a picture's."""
    return ((side - 4) // 2 - 2) // 2 - 4


def _resnet18(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    body, width = deep.resnet18(_image(shape, "resnet18"))
    return _body_and_head(body, nn.Linear(width, classes))


def _resnet18_gn(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    body, width = deep.resnet18(_image(shape, "resnet18-gn"), deep.group_norm)
    return _body_and_head(body, nn.Linear(width, classes))


def _vgg11(shape: Shape, classes: int, widths: Shape) -> nn.Module:
    body, width = deep.vgg11(_image(shape, "vgg11"))
    return _body_and_head(body, nn.Linear(width, classes))


def _image(shape: Shape, name: str, *kernels: int) -> Shape:
    """Channels of the input, and the sides of what convolutions with pooling leave of it."""
    height, width = shape[-2:] if len(shape) == 3 else (0, 0)
    for kernel in kernels:
        height, width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
    if len(shape) != 3 or height < 1 or width < 1:
        got = f"{len(shape)}-dimensional inputs" if len(shape) != 3 else f"{shape[1]} x {shape[2]}"
        raise ParameterError(
            f"parameter 'model': {name} takes images, (height, width) or (height, width, channels), "
            f"that are large enough for its layers; got {got}; try mlp:128,64"
        )
    return shape[0], height, width


def _count(shape: Shape) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


# --- networks of the user's own ---


def _own(spec: str, shape: Shape, classes: int) -> nn.Module:
    with current_folder():  # also while the factory runs: it may import what lies beside it
        module = _factory(spec)(shape, classes)
    if not isinstance(module, nn.Module) or not layers(module):
        kind = type(module).__name__
        raise ParameterError(f"parameter 'model': {spec} must return a torch.nn.Module with parameters; got {kind}")
    with torch.no_grad():
        scores: Tensor = module.eval()(torch.zeros(2, *shape, device=next(module.parameters()).device))
    if not isinstance(scores, Tensor) or scores.shape != (2, classes):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ParameterError(f"parameter 'model': {spec} must give scores of shape (samples, {classes}); got {got}")
    return module


def _factory(spec: str) -> Callable[[Shape, int], object]:
    factory = attribute(spec, "parameter 'model'")
    if not callable(factory):
        module, _, name = spec.partition(":")
        where, kind = getattr(sys.modules[module], "__file__", None) or module, type(factory).__name__
        raise ParameterError(f"parameter 'model': cannot find {spec!r}: {where} has a {kind}, not a function, {name!r}")
    return cast(Callable[[Shape, int], object], factory)


_ZOO: dict[str, Callable[[Shape, int, Shape], nn.Module]] = {
    "lr": _lr,
    "mlp": _mlp,
    "lenet5": _lenet5,
    "cnn": _cnn,
    "dcnn": _dcnn,
    "resnet18": _resnet18,
    "resnet18-gn": _resnet18_gn,
    "vgg11": _vgg11,
}
