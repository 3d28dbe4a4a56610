"""The loss of a small network at many parameters in one pass: softmax regression and `mlp`, layer by layer.

Tried one after the other, small networks spend their time between kernels. Here the first layers of all networks are
one product with the batch that they share, and each later layer is one call. Samples are columns: the softmax then goes
over numbers that lie apart, in an eighth of the time. torch.vmap takes nearly as long as one network after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fedsolve.families.gradient import zoo
from fedsolve.families.gradient.networks import Tensors

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Layers = tuple[nn.Module, ...]


@dataclass(frozen=True)
class Stackable:
    """A loss: called, at a network's parameters as they are; `along`, at each of many others.

    Those are stacked, in the order of the network's parameters, with a row for each network in front. `numbers` is how
    many are in memory for each of them, beside its parameters.
    """

    here: Callable[[], Tensor]
    along: Callable[[Tensors], Tensor]
    numbers: int

    def __call__(self) -> Tensor:
        """The loss at the parameters as they are."""
        return self.here()


def layers(spec: str, module: nn.Module) -> Layers | None:
    """The layers of a network from input to output, if they are such as `misfits` goes through; else None.

    Nothing in them depends on what was computed before: they draw nothing, and have no running statistics. A network of
    the user's own is none of them: it may do more than its layers say.
    """
    parts = tuple(part for part in module.modules() if type(part) not in (nn.Sequential, nn.Flatten))
    return parts if zoo.named(spec) and all(type(part) in (nn.Linear, nn.ReLU) for part in parts) else None


def stackable(here: Callable[[], Tensor], through: Layers, inputs: Tensor, labels: Tensor) -> Stackable:
    """The mean misfit of a batch, given as a function without arguments, and along stacks too."""
    return Stackable(here, partial(_mean, through, inputs, labels), made(through, len(labels)))


def _mean(through: Layers, inputs: Tensor, labels: Tensor, stacks: Tensors) -> Tensor:
    return misfits(through, stacks, inputs, labels).mean(1)


def made(through: Layers, samples: int) -> int:
    """How many numbers the layers make of so many samples."""
    widths: list[int] = [part.out_features for part in through if isinstance(part, nn.Linear)]
    return samples * sum(widths)


def misfits(through: Layers, stacks: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
    """`networks.misfit` of each sample, by networks and samples, where the networks have these parameters."""
    given, found = iter(stacks), inputs.flatten(1).t()
    for part in through:
        if isinstance(part, nn.ReLU):
            found = found.relu()
            continue
        weight, bias = next(given), next(given).unsqueeze(2)
        if found.dim() == 2:  # the inputs, the same for all
            found = weight.flatten(0, 1).mm(found).view(*weight.shape[:2], -1).add_(bias)
        else:
            found = torch.baddbmm(bias, weight, found)
    if labels.is_floating_point():
        return (found - labels.t()).square().mean(1)
    return cross_entropy(found, labels.expand(len(found), -1), reduction="none")
