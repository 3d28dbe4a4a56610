"""APPLE's mixture of core models: training that moves one of the cores, and how much there is of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedsolve.arrays import Array, Arrays
from fedsolve.families.gradient.networks import Tensors, laid_out, unlaid
from fedsolve.families.gradient.optimisers import Step, sgd
from fedsolve.families.gradient.settings import Training
from fedsolve.families.gradient.tensors import array_of, tensor_of
from fedsolve.families.gradient.training import train
from fedsolve.method import Site

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch
from torch import Tensor


class Learnt(NamedTuple):
    """What training a mixture comes to: the personal model, one's own core, the shares, and the loss."""

    model: dict[str, Array]
    core: dict[str, Array]
    shares: Array
    loss: float


def learn_mixture(
    settings: Training,
    cores: Arrays,
    own: int,
    shares: Array,
    first: Array,
    buffers: Arrays,
    site: Site,
    *,
    pull: float,
    share_lr: float,
    full: bool,
) -> Learnt:
    """Descent on F(v) + pull/2 |p - first|^2 at v = sum_j p_j w_j, by the core w_i of one's `own` and by all shares p.

    With g the gradient of F at v, a step moves w_i by p_i g and p_j by <g, w_j> + pull (p_j - first_j), both by SGD
    with momentum. `full` steps of the core are by g itself where p_i is positive, by -g where it is negative. `cores`
    have a row per core in each tensor; `buffers` are those of v to begin with, since none are mixed.
    """
    core = laid_out({name: array[own] for name, array in cores.items()}, settings.model, site.task)
    shapes = {name: array.shape for name, array in unlaid(core, settings.model, site.task).items()}
    rows = tensor_of(np.concatenate([cores[name].reshape(len(shares), -1) for name in shapes], axis=1))
    share, towards = (tensor_of(np.array(array, np.float32)) for array in (shares, first))

    def optimiser(parameters: Tensors) -> Step:
        sizes = [tensor.numel() for tensor in parameters]
        move_core = sgd(settings.lr, settings.sgd_momentum)(core)
        move_share = sgd(share_lr, settings.sgd_momentum)([share])

        def step(gradients: Tensors) -> None:
            mine = share[own].item()
            sloped = rows @ _row(gradients) + pull * (share - towards)  # before either moves
            move_core(torch._foreach_mul(gradients, float(np.sign(mine)) if full else mine))
            move_share([sloped])
            rows[own] = _row(core)
            for tensor, part in zip(parameters, (share @ rows).split(sizes), strict=True):
                tensor.copy_(part.view(tensor.shape))

        return step

    begin = (share @ rows).split([int(np.prod(shape)) for shape in shapes.values()])
    mixed = {name: array_of(part.view(shape)) for (name, shape), part in zip(shapes.items(), begin, strict=True)}
    model, loss = train(settings, {**buffers, **mixed}, site, optimiser=optimiser)
    return Learnt(model, unlaid(core, settings.model, site.task), array_of(share), loss)


def _row(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
