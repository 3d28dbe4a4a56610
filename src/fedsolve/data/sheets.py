"""Tables from files and frames with their columns by name: .csv, .parquet, and data frames of pandas, polars, pyarrow.

A source says which columns there are and gives each as numbers or texts; what a user says of them, in a `Reading`,
decides what they are for. All that is wrong is gathered, and told in one error.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from fedsolve.arrays import Array
from fedsolve.data import dialect as dialects
from fedsolve.data import kinds, quick
from fedsolve.data.dialect import SAMPLE, Dialect
from fedsolve.data.gathering import Numbers, Unknown, Words
from fedsolve.data.kinds import Told
from fedsolve.data.reading import (
    LONGEST_TEXT,
    NUMBERS,
    TEXTS,
    Fault,
    Reading,
    Roles,
    Where,
    refuse,
    roles,
    rows_counted,
)
from fedsolve.errors import DataError
from fedsolve.features.cells import Cells, Texts

BLOCK = 4096  # rows of a text file that are there as texts at a time


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """The columns of a table that somebody wants, and what is wrong with it so far."""

    source: str
    roles: Roles
    rows: int
    features: Mapping[str, Told]
    special: Mapping[str, Array]  # labels, clients and persons: integers, floats with NaN, or texts with ""
    others: Mapping[str, list[str]] = field(default_factory=dict)
    faults: Sequence[Fault] = ()
    where: Where = rows_counted


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """A table whose columns are what they are for. No repr shows its rows."""

    inputs: Cells | Array
    names: tuple[str, ...]  # of the columns of inputs
    labels: Array | None  # (n,), or (n, d) where several were asked for
    label: tuple[str, ...]  # the names of their columns
    client: Array | None
    person: Array | None
    others: Mapping[str, list[str]]  # what goes through as it is

    def __repr__(self) -> str:
        return f"Content({len(self.inputs)} rows, {len(self.names)} columns)"


Check = Callable[[Array, Sequence[str]], object]
"""Looks at labels, and at what they are called, and raises a DataError where they cannot be what they should."""


def content(sheet: Sheet, reading: Reading, check: Check | None = None) -> Content:
    """What a sheet holds, or one error with all that is wrong with it. `check` looks at the labels."""
    faults = list(sheet.faults)
    whole = reading.columns == NUMBERS  # every cell a number
    for name, told in sheet.features.items():
        faults += told.faults or (number_faults(name, told) if whole else ())
    if not sheet.rows and not reading.kinds:
        faults.append(Fault("it holds no samples"))
    labels = _labels(sheet, faults, check if sheet.rows else None)
    owners = {"client": sheet.roles.client, "person": sheet.roles.person}
    found = {what: _owner(sheet, name, what, faults) if name else None for what, name in owners.items()}
    refuse(sheet.source, faults, sheet.where)
    names = tuple(sheet.features)
    columns = tuple(told.column for told in sheet.features.values())
    inputs: Cells | Array = Cells(names, columns)
    if whole:
        inputs = np.column_stack([np.asarray(column) for column in columns])
    return Content(inputs, names, labels, sheet.roles.label, found["client"], found["person"], sheet.others)


def number_faults(name: str, told: Told) -> Iterable[Fault]:
    """Why a column cannot stand where every cell must be a number."""
    if isinstance(told.column, Texts):
        rows = np.flatnonzero(told.column.codes >= 0)
        if not len(rows) and len(told.column):
            yield Fault(f"column {name!r} must hold numbers; it is", 0, "empty")
        for row in rows[:1].tolist():
            cell = told.column.levels[told.column.codes[row]]
            way_out = f"drop it with --drop {name}, or read it as it is with --columns auto"
            yield Fault(f"column {name!r} must hold numbers; got", row, f"{cell[:40]!r}; {way_out}")
    else:
        for row in np.flatnonzero(np.isnan(told.column))[:1].tolist():
            yield Fault(
                f"column {name!r} must hold a number in every row; it is empty", row, "; fill it, or use --columns auto"
            )


def _empty_rows(values: Array) -> Array:
    return np.flatnonzero(values == "" if values.dtype.kind in "UO" else ~np.isfinite(values))


def _labels(sheet: Sheet, faults: list[Fault], check: Check | None) -> Array | None:
    names = sheet.roles.label
    if not names or any(name not in sheet.special for name in names):
        return None
    before = len(faults)
    for name in names:
        rows = _empty_rows(sheet.special[name])
        if len(rows):
            also = f" and {len(rows) - 1} rows more" if len(rows) > 1 else ""
            faults.append(Fault(f"the label {name!r} is empty{also}, first", int(rows[0]), "; remove such rows"))
        faults += _too_long(sheet.special[name], f"the label {name!r}")
    found = [sheet.special[name] for name in names]
    if len(found) > 1:
        texts = [name for name, values in zip(names, found, strict=True) if values.dtype.kind == "U"]
        if texts:
            faults.append(Fault(f"several labels must all be numbers; {texts[0]!r} holds texts"))
            return None
    labels = found[0] if len(found) == 1 else np.column_stack([values.astype(np.float64) for values in found])
    filled = (
        np.delete(labels, _empty_rows(labels), axis=0) if labels.ndim == 1 else labels[: 0 if faults[before:] else None]
    )
    if check is not None and len(filled) and labels.dtype.kind != "O":
        try:
            check(filled, names)
        except DataError as error:
            faults.append(Fault(str(error)))
    return labels


def _owner(sheet: Sheet, name: str, what: str, faults: list[Fault]) -> Array | None:
    if name not in sheet.special:
        return None
    values = sheet.special[name]
    rows = _empty_rows(values)
    if len(rows):
        also = f" and {len(rows) - 1} rows more" if len(rows) > 1 else ""
        faults.append(Fault(f"the {what} {name!r} is empty{also}, first", int(rows[0]), ""))
        return None
    faults += _too_long(values, f"the {what} {name!r}")
    if values.dtype.kind == "f":
        odd = np.flatnonzero(values != np.floor(values))
        if len(odd):
            faults.append(
                Fault(f"the {what} {name!r} must be a name or a whole number; got", int(odd[0]), f"{values[odd[0]]}")
            )
            return None
        values = values.astype(np.int64)
    return values


def _too_long(values: Array, what: str) -> Iterable[Fault]:
    """A text so long that an array, which takes as much for each as for the longest, would be huge."""
    if values.dtype.kind == "O":
        lengths = np.array([len(text) for text in values])
        row = int(lengths.argmax())
        yield Fault(f"{what} has a text of", row, f"{lengths[row]} characters; at most {LONGEST_TEXT} are possible")


def texts_of(column: Texts) -> Array:
    """The texts of a column as an array, "" for empty cells; of Python objects where one is too long for that."""
    longest = max(map(len, column.levels), default=0)
    kind = np.dtype(object) if longest > LONGEST_TEXT else np.dtype(np.str_)
    return np.array([*column.levels, ""], dtype=kind)[column.codes]


# --- csv ---


def read_csv(path: Path, reading: Reading, spelled: Callable[[Sequence[str]], Array], *, wanted: bool) -> Sheet:
    """The columns of a text file; `spelled` makes labels of the texts that differ."""
    with dialects.opened(path, reading.encoding) as file:
        dialect = dialects.found(file.read(SAMPLE))
    with dialects.opened(path, reading.encoding) as file:
        names = header(next(csv.reader(file, delimiter=dialect.separator), []))
    if not names:
        raise DataError(f"{path} is empty; wanted a line with the names of its columns, and a line for each sample")
    faults: list[Fault] = []
    for name in names:
        if name not in reading.drop and name.startswith(UNNAMED) and name.removeprefix(UNNAMED).isdecimal():
            faults.append(Fault(f"{name} has no name; give it one, or leave it out with --drop {name!r}"))
    parts = roles(names, reading, faults, wanted=wanted)
    if len(set(names)) != len(names):
        refuse(str(path), faults)
    gather = partial(_gather, path, dialect, reading.encoding, names)

    def start() -> tuple[dict[str, Words], dict[str, Unknown | Numbers | Words]]:
        usual = NUMBERS if reading.columns == NUMBERS else ""
        texts = {name: Words(endless=True) for name in parts.text_columns() if name in names}
        return texts, {n: _gatherer(reading.kinds.get(n, usual), dialect, reading) for n in parts.features}

    ragged: list[Fault] = []
    count = None
    if quick.readable(path, reading.encoding):
        for numeric in (quick.begins_with_numbers(path, dialect, names), set[str]()):
            texts, found = start()
            count = quick.gather(path, dialect, names, {**texts, **found}, numeric)
            if count is not None:
                break
    if count is None:
        texts, found = start()
        count, ragged = gather({**texts, **found})
    settled = {name: each.result() if isinstance(each, Unknown) else each for name, each in found.items()}
    again = {
        name: Words()
        for name, each in settled.items()
        if isinstance(found[name], Unknown) and isinstance(each, Numbers) and each.mostly_texts()
    }
    if again:  # they began like numbers
        gather(again)
    faults += ragged
    told = {name: _told(name, again.get(name, each), reading, dialect) for name, each in settled.items()}
    special = dict[str, Array]()
    for name in texts.keys() - set(parts.others):
        column = texts[name].column()
        special[name] = _spelled(column, spelled, dialect.comma) if name in parts.label else texts_of(column)
    others = {name: texts_of(texts[name].column()).tolist() for name in parts.others}
    where = partial(_lines, path, dialect, reading.encoding, len(names))
    return Sheet(str(path), parts, count, told, special, others, faults, where)


UNNAMED = "column "


def header(cells: Sequence[str]) -> list[str]:
    """The names of columns; those without one are called by their place.

    >>> header(["age ", ""])
    ['age', 'column 2']
    """
    return [name.strip() or f"{UNNAMED}{place}" for place, name in enumerate(cells, start=1)]


def _gatherer(kind: str, dialect: Dialect, reading: Reading) -> Unknown | Numbers | Words:
    if kind == TEXTS:
        return Words(endless=True)
    return Numbers(dialect.comma) if kind == NUMBERS and not reading.date_as else Unknown(dialect.comma)


def _told(name: str, found: Numbers | Words, reading: Reading, dialect: Dialect) -> Told:
    if isinstance(found, Numbers):
        return kinds.of_numbers(name, found, reading)
    return kinds.of_words(name, found, reading, comma=dialect.comma)


def _spelled(column: Texts, spelled: Callable[[Sequence[str]], Array], comma: bool) -> Array:
    """Labels from their texts: numbers where each text is what its number is written as, else texts."""
    used = [level for level in column.levels if level]
    if max(map(len, used), default=0) > LONGEST_TEXT:
        return texts_of(column)
    texts = [level.replace(",", ".") for level in used] if comma else used
    values = spelled(texts if len(set(texts)) == len(texts) else used)
    if not (column.codes < 0).any():
        return np.asarray(values[column.codes]) if len(used) else texts_of(column)
    if values.dtype.kind == "U":
        return texts_of(column)
    return np.append(values.astype(np.float64), np.nan)[column.codes]


def _gather(
    path: Path,
    dialect: Dialect,
    encoding: str,
    names: Sequence[str],
    columns: Mapping[str, Unknown | Numbers | Words],
) -> tuple[int, list[Fault]]:
    """Each block of rows to the columns; how many rows there are, and lines with other numbers of cells."""
    places = {name: place for place, name in enumerate(names)}
    width, rows, ragged = len(names), 0, list[int]()
    with dialects.opened(path, encoding) as file:
        reader = csv.reader(file, delimiter=dialect.separator)
        next(reader, None)
        while block := list(islice(reader, BLOCK)):
            if set(map(len, block)) != {width}:
                ragged += [len(row) for row in block if row and len(row) != width]
                block = [row for row in block if len(row) == width]
            if block:
                cells = list(zip(*block, strict=True))
                for name, column in columns.items():
                    column.add(cells[places[name]])
                rows += len(block)
    if not ragged:
        return rows, []
    line = _first_ragged(path, dialect, encoding, width)
    also = f" (and {len(ragged) - 1} lines more that differ)" if len(ragged) > 1 else ""
    return rows, [Fault(f"line {line} has {ragged[0]} fields, the header {width}{also}")]


def _first_ragged(path: Path, dialect: Dialect, encoding: str, width: int) -> int:
    with dialects.opened(path, encoding) as file:
        reader = csv.reader(file, delimiter=dialect.separator)
        next(reader, None)
        return next((reader.line_num for row in reader if row and len(row) != width), 0)


def _lines(path: Path, dialect: Dialect, encoding: str, width: int, rows: Sequence[int]) -> Mapping[int, str]:
    """The lines of a file in which rows end: a second look, where something is wrong."""
    found, wanted, place = dict[int, str](), set(rows), 0
    with dialects.opened(path, encoding) as file:
        reader = csv.reader(file, delimiter=dialect.separator)
        next(reader, None)
        for row in reader:
            if len(found) == len(wanted):
                break
            if len(row) == width:
                if place in wanted:
                    found[place] = f"line {reader.line_num}"
                place += 1
    return found
