"""Labels of a table in parts: which target they pose, and each part's as that target reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float
from fedsolve.data import arrow
from fedsolve.data.labels import target_of
from fedsolve.data.parts import Part, Parts, sound
from fedsolve.data.reading import AUTO, NUMBERS, Fault, Reading, Roles, refuse
from fedsolve.data.target import Classes, Numbers, Target
from fedsolve.errors import DataError
from fedsolve.features import exact

MOST_LABELS = 2**16  # that differ, up to which they can be classes


@dataclass(frozen=True)
class Labels:
    """Labels of some rows: how many, and which values, as long as these may be classes."""

    rows: int
    values: frozenset[Any]
    endless: bool = False  # numbers that are not whole, or too many that differ
    whole: bool = True

    def plus(self, other: Labels) -> Labels:
        """Those of the rows of both."""
        values = self.values | other.values
        endless = self.endless or other.endless or len(values) > MOST_LABELS
        kept = frozenset(list(values)[:MOST_LABELS])
        return Labels(self.rows + other.rows, kept, endless, self.whole and other.whole)


@dataclass(frozen=True)
class LabelsOf:
    """The labels of a part."""

    source: str
    roles: Roles

    def __call__(self, part: Part) -> Labels:
        """How many, and which values."""
        with sound(self.source):
            values, places = label_values(part, self.roles, self.source)
        if places is not None:
            return Labels(len(places), frozenset(values[np.unique(places)].tolist()))
        if values.ndim > 1 or not (np.floor(values) == values).all():
            return Labels(len(values), frozenset(), endless=True, whole=False)
        return Labels(len(values), frozenset(np.unique(values).tolist()))


def target_in(found: Labels, parts: Parts, roles: Roles, reading: Reading) -> Target:
    """The target that the labels of all parts pose."""
    what = f"{parts.name}: the label {', '.join(roles.label)}"
    if reading.task == NUMBERS or (reading.task == AUTO and not found.whole):
        return _numbers(found.rows, parts, roles)
    if found.endless:
        raise DataError(
            f"{what}: it has more than {MOST_LABELS} different values; say --task numbers if it is measured"
        )
    values = sorted(found.values) if len({type(value) is str for value in found.values}) == 1 else []
    target, _ = target_of(np.array(values), reading.task, what, roles.label)
    return target


def _numbers(rows: int, parts: Parts, roles: Roles) -> Numbers:
    """Numbers to predict with their means and deviations, from exact sums over the labels."""
    target = Numbers(roles.label)
    sums = parts.fold(_Powers(target, parts.name, roles, None), exact.added, roles.label)
    origin = exact.totals(np.zeros((target.count, 1)) if sums is None else sums) / rows
    squares = parts.fold(_Powers(target, parts.name, roles, origin), exact.added, roles.label)
    scale = np.sqrt(exact.totals(np.zeros((target.count, 1)) if squares is None else squares) / rows)
    return Numbers(roles.label, origin.tolist(), [value if value > 0 else 1.0 for value in scale.tolist()])


@dataclass(frozen=True)
class _Powers:
    """Sums of labels, or of their squares about an origin, without rounding."""

    target: Numbers
    source: str
    roles: Roles
    origin: Float | None

    def __call__(self, part: Part) -> Float:
        values = self.target.read(label_values(part, self.roles, self.source)[0], self.source)
        return exact.rows(map(exact.pieces, (values if self.origin is None else np.square(values - self.origin)).T))


def label_values(part: Part, roles: Roles, source: str) -> tuple[Array, NDArray[Any] | None]:
    """Labels as they stand: texts that differ with the place of each row's, or a number per row."""
    import pyarrow as pa

    found: list[Array] = []
    for name in roles.label:
        values = part.table.column(name)
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if arrow.is_text(pa.types, kind) or pa.types.is_boolean(kind):
            texts = arrow.texts(values.cast(pa.string()) if pa.types.is_boolean(kind) else values)
            _refuse_empty(texts.codes < 0, name, part, source)
            if len(roles.label) > 1:
                raise DataError(f"{source}: several labels must all be numbers; {name!r} holds texts")
            return np.array(texts.levels), texts.codes
        numbers = arrow.plain_values(name, values)
        if numbers.dtype.kind == "f":
            _refuse_empty(np.isnan(numbers), name, part, source)
        found.append(numbers)
    return (found[0] if len(found) == 1 else np.column_stack([each.astype(np.float64) for each in found])), None


def _refuse_empty(empty: NDArray[np.bool_], name: str, part: Part, source: str) -> None:
    if empty.any():
        row = int(np.argmax(empty))
        refuse(source, [Fault(f"the label {name!r} is empty, first", row, "; remove such rows")], part.where)


def class_numbers(values: Array, places: NDArray[Any] | None, target: Target, source: str) -> NDArray[Any]:
    """Labels as the target reads them; texts, and numbers that are names of classes, are read once each."""
    if places is None and not (isinstance(target, Classes) and target.names):
        return target.read(values, source)
    if places is None:
        values, places = np.unique(values, return_inverse=True)
    used = np.unique(places)
    numbers = np.full(len(values) + 1, -1, dtype=np.int64)
    numbers[used] = target.read(values[used], source)
    return numbers[places]
