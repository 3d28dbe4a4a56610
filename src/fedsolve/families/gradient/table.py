"""What a server keeps of every client: one row per client, by name, in sorted order. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient import settings
from fedsolve.method import Plan

COLUMNS = 2**14  # of all rows that are looked at together in double precision


class Apart(settings.Training):
    """What methods do alike whose server has something of its own for every client."""

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Everybody, and each reply by itself."""
        return Plan(tuple(clients), "collect")

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over the samples of those that answered."""
        return settings.mean_loss(state)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.predictions(self.model, model, inputs, task)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One row per client; the rows are in the order of the names, and those are sorted.

    >>> table = Table().having({"b": np.array([1.0, 2.0])}).having({"a": np.array([3.0, 4.0])})
    >>> table.names, table.row("a").tolist(), table.row("c")
    (('a', 'b'), [3.0, 4.0], None)
    """

    names: tuple[str, ...] = ()
    rows: Array = field(default_factory=lambda: np.empty((0, 0), np.float32))

    @overload
    def row(self, client: str) -> Array | None: ...
    @overload
    def row(self, client: str, otherwise: Array) -> Array: ...
    def row(self, client: str, otherwise: Array | None = None) -> Array | None:
        """The row of a client; `otherwise` where it has none."""
        return self.rows[self.names.index(client)] if client in self.names else otherwise

    def places(self, clients: Sequence[str]) -> NDArray[np.intp]:
        """Where the rows of these clients are, all of whom have one."""
        index = {name: place for place, name in enumerate(self.names)}
        return np.array([index[client] for client in clients], dtype=np.intp)

    def widened(self, clients: Iterable[str], first: Array) -> Table:
        """With a row for each of these clients too, `first` where they had none."""
        names = tuple(sorted({*self.names, *clients}))
        wider = Table(names, np.empty((len(names), len(first)), first.dtype))
        wider.rows[:] = first
        if self.names:
            wider.rows[wider.places(self.names)] = self.rows
        return wider

    def having(self, new: Mapping[str, Array]) -> Table:
        """With these rows, in the place of those that the same clients had."""
        if not new:
            return self
        wider = self.widened(new, next(iter(new.values())))
        wider.rows[wider.places(list(new))] = list(new.values())
        return wider


def written(names: Sequence[str]) -> NDArray[Any]:
    """Names as an array of bytes, as they stand in a state."""
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def names_of(array: Array) -> tuple[str, ...]:
    """The inverse of `written`."""
    text = array.tobytes().decode()
    return tuple(text.split("\n")) if text else ()


def table_of(state: Arrays, what: str) -> Table:
    """What a state has of every client, one row each; before the first round there is nothing."""
    return Table(names_of(state["clients"]), state[what]) if what in state else Table()


def answered(replies: Arrays) -> list[str]:
    """Who answered, of replies that were collected: each array stands below its client's name."""
    return sorted({name.partition("/")[0] for name in replies})


def flat(arrays: Arrays, names: Sequence[str], client: str | None = None) -> Array:
    """The arrays with these names as one row; those below a client's name, where one is given."""
    below = "" if client is None else f"{client}/"
    return np.concatenate([arrays[below + name].ravel() for name in names])


def shaped(row: Array, like: Arrays, names: Sequence[str]) -> dict[str, Array]:
    """The inverse of `flat`: arrays with the shapes of `like`."""
    made, first = {}, 0
    for name in names:
        last = first + like[name].size
        made[name] = row[first:last].reshape(like[name].shape)
        first = last
    return made


def mean_loss(replies: Arrays) -> Array:
    """The mean over samples of the losses in replies that were collected, each with its count of samples."""
    clients = answered(replies)
    counts = np.array([int(replies[f"{client}/count"]) for client in clients])
    if not (counts > 0).all():
        raise DataError(f"replies must come from at least one sample each; got {counts.min()}")
    losses = np.array([float(replies[f"{client}/loss"]) for client in clients])
    return np.array(float(counts @ losses) / float(counts.sum()))


def squared_distances(rows: Array) -> Float:
    """|w_i - w_j|^2 of all pairs of rows, in double precision, a block of columns at a time.

    About the mean row, since what all have in common would take digits. It adds up to no negative distance.
    """
    inner = np.zeros((len(rows), len(rows)))
    for first in range(0, rows.shape[1], COLUMNS):
        part = rows[:, first : first + COLUMNS].astype(np.float64)
        part -= part.mean(0)
        inner += part @ part.T
    own = np.diag(inner)
    apart: Float = np.maximum(own[:, None] + own[None] - 2.0 * inner, 0.0)
    np.fill_diagonal(apart, 0.0)
    return apart
