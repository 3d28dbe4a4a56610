"""Terms of losses, as functions of tensors. What is called fixed has no gradient."""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array
from fedsolve.families.gradient.prototypes import SHORTEST
from fedsolve.families.gradient.training import Batch, Loss

# isort: split
# Behind training, which says how to install torch where it is missing.
import torch
from torch import Tensor
from torch.nn.functional import (
    cosine_similarity,
    cross_entropy,
    kl_div,
    log_softmax,
    normalize,
    relu,
    softmax,
    softplus,
)


def plus(strength: float, term: Loss) -> Loss:
    """Cross-entropy plus `strength` times another term of a batch."""

    def loss(batch: Batch) -> Tensor:
        return batch.entropy + strength * term(batch)

    return loss


def contrast(here: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """MOON (3): the mean of -log of e^(cos(here, near)/tau)'s share in its sum with e^(cos(here, far)/tau)."""
    return softplus((cosine_similarity(here, far) - cosine_similarity(here, near)) / tau).mean()


def not_true(scores: Tensor, fixed: Tensor, labels: Tensor, tau: float) -> Tensor:
    """FedNTD (3): tau^2 KL(softmax(fixed/tau), softmax(scores/tau)), both over all classes but the true one."""
    true = labels[:, None] == torch.arange(scores.shape[1])
    lowest = torch.finfo(scores.dtype).min  # not minus infinity, of which KL makes NaN
    ours = log_softmax((scores / tau).masked_fill(true, lowest), dim=1)
    theirs = softmax((fixed / tau).masked_fill(true, lowest), dim=1)
    return tau**2 * kl_div(ours, theirs, reduction="none").masked_fill(true, 0.0).sum(1).mean()


def distilled(scores: Tensor, fixed: Tensor) -> Tensor:
    """The mean of KL(softmax(fixed), softmax(scores))."""
    return kl_div(log_softmax(scores, dim=1), softmax(fixed.detach(), dim=1), reduction="batchmean")


def off(here: Tensor, aims: Tensor, aimed: Tensor) -> Tensor:
    """FedProto's and FedPAC's term: the mean square of features less their aims; rows without one count as zeros."""
    return (here - aims).mul(aimed[:, None]).square().mean()


def by_prototypes(sets: Array, known: Array, tau: float) -> Loss:
    """FedPCL's loss: CE(u . P / tau, y) of the first of some sets of class means, plus its mean over the other sets.

    u are features, rectified and at unit length. Classes that are not `known` are in no softmax, and their samples have
    no loss, but count in the mean.
    """
    fixed, there = torch.from_numpy(np.array(sets)), torch.from_numpy(np.array(known))
    flat = fixed.flatten(0, 1).t() / tau

    def loss(batch: Batch) -> Tensor:
        u = normalize(relu(batch.features), dim=1, eps=SHORTEST)
        scores = (u @ flat).unflatten(1, fixed.shape[:2])  # samples, sets, classes
        shares = log_softmax(scores.masked_fill(~there, torch.finfo(scores.dtype).min), dim=2)
        costs = -shares[torch.arange(len(u)), :, batch.labels].mul(there[batch.labels][:, None]).mean(0)
        return costs[0] + costs[1:].mean()

    return loss


def weighted_entropy(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The mean of cross-entropies, each times its weight."""
    return (weights * cross_entropy(scores, labels, reduction="none")).mean()


def alike(noise: Tensor, made: Tensor) -> Tensor:
    """FedGen's diversity: e^-(mean over pairs of squared distance of noise times distance of what was made of it)."""
    apart = (made[:, None] - made[None]).abs().mean(2)
    return torch.exp(-((noise[:, None] - noise[None]).square().mean(2) * apart).mean())
