"""Terms of losses, as functions of tensors. What is called fixed has no gradient."""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array
from fedsolve.families.gradient.networks import misfit
from fedsolve.families.gradient.prototypes import SHORTEST
from fedsolve.families.gradient.tensors import tensor_of
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
    """The misfit plus `strength` times another term of a batch."""

    def loss(batch: Batch) -> Tensor:
        return batch.misfit + strength * term(batch)

    return loss


def summed(first: float, one: Loss, second: float, two: Loss) -> Loss:
    """`first` times one term of a batch plus `second` times another."""
    return lambda batch: first * one(batch) + second * two(batch)


def own(batch: Batch) -> Tensor:
    """The misfit of a batch, by itself."""
    return batch.misfit


def shifted(batch: Batch) -> Tensor:
    """FedDBE: the misfit where the head sees z + b, with b the extra array called "bias"."""
    return misfit(batch.head(batch.features + batch.extra["bias"]), batch.labels)


def near_mean(centre: Array, share: float) -> Loss:
    """FedDBE: half the mean square of m - centre, with m a running mean of features over the batches it is called for.

    m <- (1 - share) m + share (the batch's mean), from zero on; what it remembers is fixed.
    """
    aim = tensor_of(np.array(centre))
    before = torch.zeros_like(aim)

    def term(batch: Batch) -> Tensor:
        nonlocal before
        running = (1 - share) * before + share * batch.features.mean(0)
        before = running.detach()
        return (running - aim).square().mean() / 2

    return term


def contrast(here: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """MOON (3): the mean of -log of e^(cos(here, near)/tau)'s share in its sum with e^(cos(here, far)/tau)."""
    return softplus((cosine_similarity(here, far) - cosine_similarity(here, near)) / tau).mean()


def not_true(scores: Tensor, fixed: Tensor, labels: Tensor, tau: float) -> Tensor:
    """FedNTD (3): tau^2 KL(softmax(fixed/tau), softmax(scores/tau)), both over all classes but the true one."""
    true = labels[:, None] == torch.arange(scores.shape[1], device=scores.device)
    lowest = torch.finfo(scores.dtype).min  # not minus infinity, of which KL makes NaN
    ours = log_softmax((scores / tau).masked_fill(true, lowest), dim=1)
    theirs = softmax((fixed / tau).masked_fill(true, lowest), dim=1)
    return tau**2 * kl_div(ours, theirs, reduction="none").masked_fill(true, 0.0).sum(1).mean()


def distilled(scores: Tensor, fixed: Tensor) -> Tensor:
    """The mean of KL(softmax(fixed), softmax(scores))."""
    return kl_div(log_softmax(scores, dim=1), softmax(fixed.detach(), dim=1), reduction="batchmean")


def imitated(batch: Batch, fixed: Tensor, temperature: float) -> Tensor:
    """How far a batch is from what another network says of it: `distilled`, or the mean square of numbers apart."""
    if batch.labels.is_floating_point():
        return (batch.scores - fixed).square().mean()
    return distilled(batch.scores, fixed / temperature)


def off(here: Tensor, aims: Tensor, aimed: Tensor) -> Tensor:
    """FedProto's and FedPAC's term: the mean square of features less their aims; rows without one count as zeros."""
    return (here - aims).mul(aimed[:, None]).square().mean()


def by_prototypes(sets: Array, known: Array, tau: float) -> Loss:
    """FedPCL's loss: CE(u . P / tau, y) of the first of some sets of class means, plus its mean over the other sets.

    u are features, rectified and at unit length. Classes that are not `known` are in no softmax, and their samples have
    no loss, but count in the mean.
    """
    fixed, there = tensor_of(np.array(sets)), tensor_of(np.array(known))
    flat = fixed.flatten(0, 1).t() / tau

    def loss(batch: Batch) -> Tensor:
        u = normalize(relu(batch.features), dim=1, eps=SHORTEST)
        scores = (u @ flat).unflatten(1, fixed.shape[:2])  # samples, sets, classes
        shares = log_softmax(scores.masked_fill(~there, torch.finfo(scores.dtype).min), dim=2)
        rows = torch.arange(len(u), device=u.device)
        costs = -shares[rows, :, batch.labels].mul(there[batch.labels][:, None]).mean(0)
        return costs[0] + costs[1:].mean()

    return loss


def near_classes(batch: Batch) -> Tensor:
    """FedAS: the sum over the batch's classes of the mean square of features minus the class's mean, beside them."""
    squares = (batch.features - batch.beside["mean"]).square().mean(1)
    counts = torch.bincount(batch.labels)
    return (squares / counts[batch.labels]).sum()


def discrepancy(here: Tensor, fixed: Tensor) -> Tensor:
    """FedPHP: the squared maximum mean discrepancy of two batches, under sum_i e^(-d / (2^i s)) for i from -2 to 2.

    d is the squared distance of two rows, and s its mean over all pairs of different rows of both batches; s is fixed.
    """
    rows = torch.cat([here, fixed])
    rows = rows - rows.detach().mean(0)  # which changes no distance, and keeps its digits
    squares = rows.square().sum(1)
    apart = squares[:, None] + squares[None] - 2 * rows @ rows.t()
    count = len(rows)
    scale = apart.detach().sum() / (count * (count - 1))
    # Where all rows are the same, every distance is zero, whatever it is divided by.
    units = apart / torch.clamp_min(scale, 1e-30)
    kernel = torch.stack([torch.exp(-units / 2**i) for i in (-2.0, -1.0, 0.0, 1.0, 2.0)]).sum(0)
    half = len(here)
    return kernel[:half, :half].mean() + kernel[half:, half:].mean() - 2 * kernel[:half, half:].mean()


def weighted_entropy(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The mean of cross-entropies, each times its weight."""
    return (weights * cross_entropy(scores, labels, reduction="none")).mean()


def alike(noise: Tensor, made: Tensor) -> Tensor:
    """FedGen's diversity: e^-(mean over pairs of squared distance of noise times distance of what was made of it)."""
    apart = (made[:, None] - made[None]).abs().mean(2)
    return torch.exp(-((noise[:, None] - noise[None]).square().mean(2) * apart).mean())
