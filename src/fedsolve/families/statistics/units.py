"""Which features are columns of the model, what they are called, and their values as the table had them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float, flat
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError, unknown

BLOCK = 2**16  # numbers of a block of rows: copies in float64 stay in the cache, whatever the number of samples


@dataclass(frozen=True, eq=False)
class Units:
    """The names of the features, and the affine map that each of them is: feature = (value - origin) / scale."""

    names: tuple[str, ...]
    origin: Float
    scale: Float

    @classmethod
    def of(cls, task: Task) -> Units:
        """Those of a task. Features that are not columns of a table one by one are in units of their own."""
        width = task.width
        units = getattr(task.features, "units", None)  # of maps that are affine for each column
        origin, scale = (np.zeros(width), np.ones(width)) if units is None else units
        names = getattr(task.features, "names", None) or task.feature_names
        if len(names) != width:
            names = tuple(f"x{place}" for place in range(width))
        return cls(tuple(names), origin, scale)


@dataclass(frozen=True, eq=False)
class Roles:
    """What each feature is to the model: a column with a coefficient, the offset, or the weights of the samples."""

    columns: NDArray[np.int64]
    offset: int | None
    weights: int | None
    units: Units

    @classmethod
    def of(cls, task: Task, offset: str = "", weights: str = "") -> Roles:
        """Offset and weights are named as the table names them; every other feature is a column."""
        units = Units.of(task)
        places = {name: place for place, name in enumerate(units.names)}
        for what, name in (("offset", offset), ("weights", weights)):
            if name and name not in places:
                raise unknown(f"column for the {what}:", name, places)
        if offset and offset == weights:
            raise ParameterError(f"offset and weights must be two columns; got {offset!r} for both")
        taken = {places[name] for name in (offset, weights) if name}
        columns = np.array([place for place in range(task.width) if place not in taken], dtype=np.int64)
        return cls(columns, places.get(offset), places.get(weights), units)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.units.names[place] for place in self.columns)

    def raw(self, rows: Float, place: int | None, otherwise: float) -> Float:
        """A feature as the table had it; one number for all rows where there is none."""
        if place is None:
            return np.full(len(rows), otherwise)
        values: Float = self.units.origin[place] + self.units.scale[place] * rows[:, place]
        return values

    def blocks(self, inputs: Array) -> Iterator[tuple[slice, Float, Float, Float]]:
        """Rows of columns in float64 with their offsets and weights, and where they stand, a block at a time."""
        rows = flat(inputs)
        step = max(1, BLOCK // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            place = slice(start, start + step)
            block = np.asarray(rows[place], dtype=np.float64)
            yield place, block[:, self.columns], self.raw(block, self.offset, 0.0), self.raw(block, self.weights, 1.0)
