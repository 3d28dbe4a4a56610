"""FedALA's blend of two models, element by element, learnt by descent on the loss of what it gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsolve.arrays import Array, Arrays, finite
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient import zoo
from fedsolve.families.gradient.networks import (
    as_arrays,
    check_inputs,
    features,
    like,
    misfit,
    one_thread,
    rebuild,
    sample_shape,
    seeded,
    trained_on,
)
from fedsolve.families.gradient.settings import Training
from fedsolve.families.gradient.tensors import array_of, here
from fedsolve.families.gradient.training import batches

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch


def learn_blend(
    settings: Training,
    old: Arrays,
    new: Arrays,
    weights: Arrays,
    task: Task,
    samples: Samples,
    rng: np.random.Generator,
    *,
    eta: float,
    passes: int,
    settled: float,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """FedALA (5), (6): v = old + (new - old) W elementwise on the tensors W names, and W by descent on the loss at v.

    Everything else of v is that of `new`. W stays between 0 and 1. It learns for at most `passes` passes, and stops
    once the losses of the last ten vary by less than `settled`. Returns W and v.
    """
    check_inputs(samples)
    samples = trained_on(samples, task)
    with one_thread(), seeded(rng):
        module = rebuild(settings.model, new, sample_shape(task.shape), task.outputs).eval()
        tensors = dict(module.named_parameters())
        for name, tensor in tensors.items():
            tensor.requires_grad_(name in weights)
        names = sorted(weights)
        blended = [tensors[name] for name in names]
        before, after = ([like(tensors[n], arrays[n]) for n in names] for arrays in (old, new))
        share = [like(tensors[name], weights[name]) for name in names]
        change = torch._foreach_sub(after, before)
        losses: list[float] = []
        score: Callable[[torch.Tensor], torch.Tensor] = module
        if eta and zoo.named(settings.model) and weights.keys() <= zoo.head_names(module):
            # Only the head moves, so what it sees is the same in every pass: one forward pass of the body for all.
            samples = Samples(features(settings.model, new, samples.inputs, task), samples.labels)
            score = zoo.head(module)

        def place() -> None:
            for tensor, low, high, weight in zip(blended, before, after, share, strict=True):
                tensor.copy_(torch.lerp(low, high, weight))  # at weight 1 exactly the new one

        with torch.no_grad():
            place()
        for _ in range(passes if eta else 0):
            total = torch.zeros((), device=here())
            for inputs, labels, _ in batches(samples, settings.batch, rng):
                value = misfit(score(inputs), labels)
                gradients = torch.autograd.grad(value, blended)
                with torch.no_grad():
                    torch._foreach_addcmul_(share, gradients, change, value=-eta)
                    torch._foreach_clamp_min_(share, 0.0)
                    torch._foreach_clamp_max_(share, 1.0)
                    place()
                    total += value.detach() * len(labels)
            losses.append(float(total) / len(samples))
            if len(losses) >= 10 and np.std(losses[-10:]) < settled:
                break
        learnt = {name: np.array(array_of(weight), order="C") for name, weight in zip(names, share, strict=True)}
        model = as_arrays(module)
    if not all(finite(array) for array in (*learnt.values(), *model.values())):
        raise DataError(f"learning the blend diverged; lower eta={eta}, or scale the inputs")
    return learnt, model
