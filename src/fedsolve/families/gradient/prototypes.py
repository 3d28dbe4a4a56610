"""What methods share whose clients keep their networks and tell of their classes by mean features. Needs no torch.

All start from the same network, since features of two random networks have nothing in common. The server sends the seed
of it: eight bytes, which reach clients that come late or lost a reply, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.method import Server
from fedsolve.rng import derive


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
