"""FedGen's generator of features: a dense layer with batch norm and ReLU, then a dense layer, as named arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsolve.arrays import Array, Arrays, under
from fedsolve.data.task import Task
from fedsolve.families.gradient import losses, networks
from fedsolve.families.gradient.descent import Tensors, dense, descend
from fedsolve.families.gradient.tensors import tensor_of
from fedsolve.families.gradient.training import Batch, Loss

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, cross_entropy, linear, one_hot, relu

STATISTICS = frozenset({"norm/mean", "norm/variance"})  # running ones: they travel, and are not descended on


@dataclass(frozen=True)
class Lesson:
    """How the generator learns in a round: steps of Adam on batches of labels, each with noise of its own."""

    steps: int
    drawn: int
    lr: float
    decay: float


def first(noise: int, hidden: int, classes: int, features: int, rng: np.random.Generator) -> dict[str, Array]:
    """A generator that has learnt nothing: from labels and `noise` numbers to `features`."""
    ones, zeros = np.ones(hidden, np.float32), np.zeros(hidden, np.float32)
    norm = {"weight": ones, "bias": zeros, "mean": zeros, "variance": ones}
    below, above = dense(noise + classes, hidden, rng), dense(hidden, features, rng)
    return {**under("below", below), **under("norm", norm), **under("above", above)}


def generate(tensors: Tensors, labels: Tensor, noise: Tensor, training: bool) -> Tensor:
    """Features of the labels. In training, batch norm takes the batch's statistics, and the running ones follow."""
    classes = tensors["below/weight"].shape[1] - noise.shape[1]
    values = torch.cat([one_hot(labels, classes).to(noise.dtype), noise], dim=1)
    values = linear(values, tensors["below/weight"], tensors["below/bias"])
    mean, variance, weight, bias = (tensors[f"norm/{name}"] for name in ("mean", "variance", "weight", "bias"))
    values = batch_norm(values, mean, variance, weight, bias, training)
    return linear(relu(values), tensors["above/weight"], tensors["above/bias"])


def learn(
    generator: Arrays,
    memory: Arrays,
    heads: Sequence[Arrays],
    counts: Array,
    lesson: Lesson,
    model: str,
    task: Task,
    rng: np.random.Generator,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The generator and Adam's memory after a lesson from the clients' heads, whose class counts are rows.

    Minimised is sum_k mean a_k(y) CE(head_k(G(y, e)), y) + e^-(mean over pairs of |e - e'|^2 |G - G'|), with a_k(y) the
    client's share of the samples of class y, over labels drawn evenly from those that anybody has.
    """
    present = np.flatnonzero(counts.sum(0))
    shares = tensor_of((counts / np.maximum(counts.sum(0), 1)).astype(np.float32))
    teachers = [networks.as_function(model, head, task) for head in heads]
    noise = generator["below/weight"].shape[1] - task.classes

    def objective(tensors: Tensors) -> Tensor:
        labels = tensor_of(rng.choice(present, lesson.drawn))
        drawn = tensor_of(rng.random((lesson.drawn, noise), dtype=np.float32))
        made = generate(tensors, labels, drawn, training=True)
        taught = sum(
            losses.weighted_entropy(teacher(made), labels, share[labels])
            for teacher, share in zip(teachers, shares, strict=True)
        )
        return taught + losses.alike(drawn, made)

    return descend(
        generator, objective, lesson.steps, lr=lesson.lr, decay=lesson.decay, memory=memory, buffers=STATISTICS
    )


def taught(
    generator: Arrays, labels: Array, drawn: int, alpha: float, beta: float, classes: int, rng: np.random.Generator
) -> Loss:
    """A client's loss: CE + alpha CE(head(G(y')), y') + beta KL(softmax of head(G(y)), which is fixed, to that of x).

    y' are `drawn` of the given labels, y those of the batch.
    """
    tensors = {name: tensor_of(np.array(array)) for name, array in generator.items()}
    noise = tensors["below/weight"].shape[1] - classes

    def made(wanted: Tensor) -> Tensor:
        return generate(tensors, wanted, tensor_of(rng.random((len(wanted), noise), dtype=np.float32)), training=False)

    def loss(batch: Batch) -> Tensor:
        wanted = tensor_of(rng.choice(labels, drawn))
        learnt = cross_entropy(batch.head(made(wanted)), wanted)
        kept = losses.distilled(batch.scores, batch.head(made(batch.labels)))
        return batch.misfit + alpha * learnt + beta * kept

    return loss
