"""What methods share whose clients keep their networks and tell of their classes by mean features. Needs no torch.

All start from the same network, since features of two random networks have nothing in common. The server sends the seed
of it: eight bytes, which reach clients that come late or lost a reply, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.task import Task
from fedsolve.method import Server
from fedsolve.rng import derive

SHORTEST = 1e-12  # length that a point is divided by


def seed(server: Server) -> dict[str, Array]:
    """The seed of everybody's first network."""
    return {"seed": np.array(server.rng.integers(2**62))}


def first(model: str, seeded: Arrays, task: Task) -> dict[str, Array]:
    """The network that everybody starts from, of a state or message with its seed."""
    from fedsolve.families.gradient import networks

    return networks.initial(model, task, derive(int(seeded["seed"]), "network"))


def unknown(model: str, task: Task) -> dict[str, Array]:
    """Class means of which none is known yet."""
    from fedsolve.families.gradient import networks

    shape = (task.classes, networks.feature_size(model, task))
    return {"means": np.zeros(shape, np.float32), "known": np.zeros(task.classes, bool)}


def renewed(state: Arrays, sums: Array, counts: Array) -> dict[str, Array]:
    """Class means from sums and what was summed; where nobody has a class this time, its last mean stays."""
    there = counts > 0
    means: Any = np.where(there[:, None], sums / np.maximum(counts, 1)[:, None], state["means"])
    return {"means": means.astype(np.float32), "known": state["known"] | there}


def by_class(points: Array, labels: Array, classes: int) -> tuple[Float, Array]:
    """The mean of each class's points, zeros where it has none, and the number of points behind each."""
    counts = np.bincount(labels, minlength=classes)
    sums = np.zeros((classes, points.shape[1]))
    np.add.at(sums, labels, points)
    return sums / np.maximum(counts, 1)[:, None], counts


def units(points: Array) -> Array:
    """Points rectified and at unit length; one without a positive number stays zero."""
    positive = np.maximum(points, 0)
    lengths = np.linalg.norm(positive, axis=1, keepdims=True)
    shrunk: Array = positive / np.maximum(lengths, SHORTEST)
    return shrunk


def filled(means: Array, known: Array) -> Array:
    """The mean of clients' class means, then those of each client, in which that mean stands for what it lacks.

    `means` has clients, classes and numbers for sides, and `known` says which classes a client has. What nobody has
    is zero.
    """
    there = known[:, :, None]
    total = np.where(there, means, 0).sum(0, dtype=np.float64) / np.maximum(known.sum(0), 1)[:, None]
    average = total.astype(means.dtype)
    return np.concatenate([average[None], np.where(there, means, average)])
