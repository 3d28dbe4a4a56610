"""Hooks: functions that change the gradients of a step, given the parameters, in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsolve.arrays import Arrays
from fedsolve.data.task import Task
from fedsolve.families.gradient.networks import Tensors, laid_out

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch

Hook = Callable[[Tensors, Tensors], None]  # of parameters and their gradients


def towards(anchor: Arrays, strength: float, model: str, task: Task) -> Hook | None:
    """The gradient of strength/2 |w - anchor|^2, added to the loss's. Parameters only: buffers are not descended on."""
    return pulled(laid_out(anchor, model, task), strength) if strength else None


def pulled(anchor: Tensors, strength: float) -> Hook:
    """As `towards`, to tensors as they are at each step: whoever gave them may move them."""

    def hook(parameters: Tensors, gradients: Tensors) -> None:
        torch._foreach_add_(gradients, parameters, alpha=strength)
        torch._foreach_add_(gradients, anchor, alpha=-strength)

    return hook


def only(moving: Arrays, model: str, task: Task) -> Hook:
    """Gradients of nothing but the numbers of parameters that are marked as moving, by true and false."""
    factors = laid_out({name: mask.astype(np.float32) for name, mask in moving.items()}, model, task)

    def hook(parameters: Tensors, gradients: Tensors) -> None:
        torch._foreach_mul_(gradients, factors)

    return hook


def clipped(most: float, norm: float = 2.0) -> Hook | None:
    """Gradients scaled down to a norm of all of them together of at most `most`; 0 is no limit."""
    if most == 0:
        return None

    def hook(parameters: Tensors, gradients: Tensors) -> None:
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, norm)), norm)
        torch._foreach_mul_(gradients, (most / torch.clamp_min(length, most)).item())

    return hook


def chain(*hooks: Hook | None) -> Hook | None:
    """All of these that there are, one after the other."""
    there = [hook for hook in hooks if hook is not None]

    def hook(parameters: Tensors, gradients: Tensors) -> None:
        for one in there:
            one(parameters, gradients)

    return hook if there else None


def following(anchor: Tensors, rate: float) -> Callable[[Tensors], None]:
    """What moves an anchor by a share of its way to the parameters: a <- a + rate (w - a)."""
    return lambda parameters: torch._foreach_lerp_(anchor, parameters, rate)
