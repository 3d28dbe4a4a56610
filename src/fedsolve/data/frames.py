"""Data frames (pandas, polars or pyarrow, none of them imported here), with their columns taken by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from fedsolve.arrays import Array
from fedsolve.data import arrow, kinds
from fedsolve.data.gathering import Words
from fedsolve.data.kinds import Told
from fedsolve.data.reading import DAYS, NUMBERS, TEXTS, Fault, Reading, refuse, roles
from fedsolve.data.sheets import Sheet, content, texts_of
from fedsolve.errors import DataError, brief, plain
from fedsolve.features.cells import Cells, Texts
from fedsolve.features.columns import Columns


def in_columns(inputs: Any, names: Sequence[str], whose: str, *, others: bool = False) -> Array:
    """Inputs as one array, and the columns of a frame in the order of `names`, whatever their order in the frame.

    A frame must have each of these columns once, and no other unless `others` may stay behind, such as an id; `whose`
    begins the sentence that says what is wrong. Anything without columns, or with no names to go by, is taken as it is.
    Columns that are not all numbers give an array of objects.
    """
    columns = _columns(inputs)
    if columns is None or not names:
        try:
            return np.asarray(inputs)
        except ValueError as error:
            raise DataError(f"{whose}: inputs must form one array; got rows of different lengths ({error})") from error
    counts, expected = Counter(columns), set(names)
    faults = {
        "missing": [name for name in names if name not in counts],
        "not among them": [column for column in counts if column not in expected],
        "more than once": [column for column, count in counts.items() if column in expected and count > 1],
    }
    if any(which for fault, which in faults.items() if not (others and fault == "not among them")):
        text = "; ".join(f"{fault}: {', '.join(map(str, which))}" for fault, which in faults.items() if which)
        raise DataError(f"{whose} must have the {len(names)} columns that were trained on, in any order; {text}")
    # Column by column: numbers of several types stay numbers, where pandas makes objects of truth values and floats.
    parts = [np.asarray(inputs[name]) for name in names]
    if not all(part.dtype.kind in "biuf" for part in parts):
        parts = [part.astype(object) for part in parts]
    return np.column_stack(parts)


def is_frame(inputs: Any) -> bool:
    """Whether something has columns with names."""
    return _columns(inputs) is not None


def cells_for(features: Columns, inputs: Any, whose: str) -> Cells:
    """The rows of a frame, or of an array of numbers, as the map of a model takes them: columns by name."""
    if isinstance(inputs, Cells):
        return inputs.by_name(features.raw, whose)
    if not is_frame(inputs):
        rows = np.asarray(inputs)
        if rows.dtype.kind not in "biuf" or rows.ndim != 2:
            raise DataError(f"{whose}: wanted a data frame with the columns {', '.join(features.raw)}")
        if np.isinf(rows).any():
            raise DataError(f"{whose}: numbers must be finite")
        return features.named(rows)
    found = content(
        frame_sheet(inputs, Reading(kinds=features.kinds), whose, wanted=False), Reading(kinds=features.kinds)
    )
    if not isinstance(found.inputs, Cells):
        raise DataError(f"{whose}: wanted columns with names")
    return found.inputs


def frame_sheet(frame: Any, reading: Reading, source: str, *, wanted: bool = True) -> Sheet:
    """The columns of a data frame."""
    columns = _columns(frame)
    if columns is None:
        raise DataError(f"wanted a data frame of pandas, polars or pyarrow; got {type(frame).__name__}")
    odd = [name for name in columns if not isinstance(name, str)]
    if odd:
        raise DataError(f"{source}: names of columns must be texts; got {brief(odd[0])}")
    if hasattr(type(frame), "column_names"):  # pyarrow
        return arrow.sheet(source, columns, frame.num_rows, partial(map, frame.column), reading, wanted=wanted)
    faults: list[Fault] = []
    parts = roles(columns, reading, faults, wanted=wanted)
    if len(set(columns)) != len(columns):
        refuse(source, faults)
    told = {name: _column(name, np.asarray(frame[name]), reading) for name in parts.features}
    special = {}
    for name in {*parts.label, parts.client, parts.person} & set(columns):
        values = _column(name, np.asarray(frame[name]), Reading(kinds={name: ""}, date_as=DAYS))
        faults += values.faults
        special[name] = texts_of(values.column) if isinstance(values.column, Texts) else values.column
        if special[name].dtype.kind == "f" and not np.isnan(special[name]).any() and _whole(special[name]):
            special[name] = special[name].astype(np.int64)
    return Sheet(source, parts, len(frame), told, special, {}, faults)


def _whole(values: Array) -> bool:
    return bool((np.floor(values) == values).all() and (np.abs(values) < 2**53).all())


def _columns(inputs: Any) -> list[Any] | None:
    """The names of the columns; None for what is not a frame."""
    if hasattr(type(inputs), "column_names"):  # pyarrow, whose `columns` are the values
        return list(inputs.column_names)
    return list(inputs.columns) if hasattr(inputs, "columns") else None


def _column(name: str, values: Array, reading: Reading) -> Told:
    """A column of a frame of pandas or polars, as numbers or texts, by what it holds."""
    wanted = reading.kinds.get(name)
    if values.dtype.kind == "O":
        return _objects(name, values, reading)
    if values.dtype.kind == "b":
        return _truth(values.astype(np.int32), reading)
    if values.dtype.kind in "iuf":
        numbers = values.astype(np.float64)
        if wanted == TEXTS and not np.isnan(numbers).all():
            return Told(_texts([_written(value) for value in numbers.tolist()]), TEXTS)
        return arrow.finite(name, numbers)
    if values.dtype.kind in "UT":
        return _judged(name, _texts(values.tolist()), reading)
    if values.dtype.kind == "M":
        if reading.date_as != DAYS and wanted != NUMBERS:
            return Told(np.empty(len(values)), "dates", (kinds.date_fault(name),))
        return Told(kinds.days_of(values), NUMBERS)
    fault = Fault(f"column {name!r} holds {values.dtype}; leave it out with --drop {name}")
    return Told(np.empty(len(values)), TEXTS, (fault,))


def _objects(name: str, values: Array, reading: Reading) -> Told:
    """A column of Python objects: of one kind, and empty cells."""
    empty = np.array([_missing(value) for value in values], dtype=bool)
    found = {_kind(value): row for row, value in reversed(list(enumerate(values.tolist()))) if not empty[row]}
    if len(found) > 1:
        words = " and ".join(sorted(found))
        first = values[max(found.values())]
        fault = Fault(
            f"column {name!r} holds {words}; got",
            max(found.values()),
            f"{plain(str(first), 40)!r}; make it one of them",
        )
        return Told(np.empty(len(values)), TEXTS, (fault,))
    kind = next(iter(found), "")
    if not kind:
        return Told(np.full(len(values), np.nan), NUMBERS)
    if kind == "numbers":
        numbers = np.array([np.nan if hole else float(value) for value, hole in zip(values, empty, strict=True)])
        return _column(name, numbers, reading)
    if kind == "truth values":
        return _truth(
            np.array([-1 if hole else int(v) for v, hole in zip(values, empty, strict=True)], np.int32), reading
        )
    if kind == "texts":
        return _judged(name, _texts(["" if hole else str(v) for v, hole in zip(values, empty, strict=True)]), reading)
    if kind == "dates" and (reading.date_as == DAYS or reading.kinds.get(name) == NUMBERS):
        return Told(np.array([np.nan if h else _days(v) for v, h in zip(values, empty, strict=True)]), NUMBERS)
    fault = (
        kinds.date_fault(name)
        if kind == "dates"
        else Fault(f"column {name!r} holds {kind}; leave it out with --drop {name}")
    )
    return Told(np.empty(len(values)), TEXTS, (fault,))


def _missing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "texts"
    if isinstance(value, bool | np.bool_):
        return "truth values"
    if isinstance(value, int | float | np.number | Decimal):
        return "numbers"
    return "dates" if kinds.is_day(value) else type(value).__name__


def _days(value: Any) -> float:
    day = value.replace(tzinfo=None) if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return (day - datetime(1970, 1, 1)).total_seconds() / 86400


def _truth(codes: Array, reading: Reading) -> Told:
    if reading.columns == NUMBERS and codes.min(initial=0) >= 0:
        return Told(codes.astype(np.float64), NUMBERS)
    return Told(Texts(("false", "true"), codes), "booleans")


def _texts(values: list[str]) -> Texts:
    words = Words(endless=True)
    words.add(values)
    return words.column()


def _judged(name: str, column: Texts, reading: Reading) -> Told:
    return Told(column, TEXTS) if name in reading.kinds else kinds.judged(name, column, reading, spelt=False)


def _written(value: float) -> str:
    """A number as a text file has it; nothing for an empty cell."""
    return "" if value != value else str(int(value)) if value == int(value) else repr(value)
