"""The Method protocol: a frozen dataclass of hyper-parameters with pure functions, in two halves.

The server half never sees data; the client half never sees server state. What one knows of the other is what
was sent. State goes in and comes out; nothing that was given is written to.

Where most methods do the same, the protocol has a body that a method may inherit; methods never inherit from methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fedsolve.arrays import Array, Arrays
from fedsolve.data.federation import Samples, Task

Fold: TypeAlias = Literal["sum", "collect"] | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who takes part in a round, and how their replies are folded into what `aggregate` is given.

    - "sum": one mapping, the sum over clients. One copy on the server whatever the number of clients.
    - "collect": every reply, under its client's name ("client-03/weight").
    - a mapping from client to group: a sum for each group, under the group's name.
    """

    clients: tuple[str, ...]
    fold: Fold = "sum"


@runtime_checkable
class Method(Protocol):
    """What the round loop asks of a method."""

    name: ClassVar[str]  # in the catalogue and on the command line
    paper: ClassVar[str]  # where it is from
    sends: ClassVar[str]  # what a client sends, in words
    laws: ClassVar[frozenset[str]]  # what it promises; see checks.LAWS

    @property
    def rounds(self) -> int:
        """How many times clients are asked to update."""
        return 1

    @property
    def processes(self) -> bool:
        """Whether clients side by side need processes of their own and not threads, as torch's one generator asks."""
        return False

    @property
    def paced(self) -> bool:
        """Whether clients are told how slow they are: `update` then finds `pace`, 1 or more, in its message."""
        return False

    # --- server half ---
    def init_server(self, task: Task, rng: np.random.Generator) -> Arrays:
        """The server's state before the first round: empty, unless a method says otherwise."""
        return {}

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Who of the present `clients` takes part in this round, and how replies fold: all of them, summed."""
        return Plan(tuple(clients))

    def message(self, state: Arrays, client: str) -> Arrays:
        """What the server sends to a client, before an update and for personalisation."""
        ...

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """The next state, from the folded replies of those that answered."""
        ...

    # --- client half ---
    def init_client(self, task: Task, train: Samples, rng: np.random.Generator) -> Arrays:
        """The client's private state before its first round. It never leaves the client."""
        return {}

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """One round of work: the new private state, and the reply."""
        ...

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """The client's model. Its 0-d arrays are the hyper-parameters that were chosen for this client."""
        ...

    def shared(self, message: Arrays) -> Arrays | None:
        """The one global model that a message carries, where the method has one."""
        return None

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores, one row a sample and one column a class; the largest wins."""
        ...
