"""The map `columns`: raw columns of a table as numbers, in a way that the whole federation agrees on.

A number is taken about the federation's mean, over its deviation; an empty cell counts as the mean, and where training
has empty cells a column of its own marks them. Texts become one column a level, but for the commonest, which the others
stand beside; empty cells are a level, and so are rare levels together. What is the same in every row gives no column.

Words decide such a map: `columns:age:54.4/9.0,ca:0.7/0.9/empty,sex=male|female`. It is fitted from sums over clients,
see `fedsolve.features.columnsums`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float
from fedsolve.errors import DataError, ParameterError, plain
from fedsolve.features.cells import Cells, Column, Texts

NAME = "columns"
EMPTY, OTHER = "(empty)", "(other)"  # levels of empty cells, and of rare and unknown levels together
CELL = 3  # rows of the federation below which a level has no column of its own
WIDEST = 2**16  # columns, before and after: each stands in the specification
MOST_LEVELS = 100  # of a column that have a column of their own: the commonest
LONGEST_TEXT = 200  # characters of a name or a level
ROWS = 4096  # rows that are written at a time, so that they stay in the processor's cache
_UNFITTED = re.compile(rf"{NAME}(?::cell=([1-9][0-9]{{0,5}}))?")


def unfitted(text: str) -> int | None:
    """The least rows of a level in a specification that is still to be fitted; None for any other text.

    >>> unfitted("columns"), unfitted("columns:cell=10"), unfitted("columns:age:1.0/2.0")
    (3, 10, None)
    """
    found = _UNFITTED.fullmatch(text)
    return None if found is None else int(found[1] or CELL)


@dataclass(frozen=True, slots=True)
class Number:
    """A column of numbers: its mean and deviation in training, zero where all are equal, and whether it had holes."""

    name: str
    origin: float
    scale: float
    holes: bool = False

    def __post_init__(self) -> None:
        _check_text(self.name, "a column's name")
        if not math.isfinite(self.origin) or not 0 <= self.scale < math.inf:
            raise ParameterError(f"{NAME}: the mean of {self.name!r} must be finite, its deviation not below zero")

    def __str__(self) -> str:
        return f"{_quoted(self.name)}:{self.origin!r}/{self.scale!r}{'/empty' * self.holes}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that it becomes."""
        return (self.name,) * (self.scale > 0) + (f"{self.name} {EMPTY}",) * self.holes

    def write(self, column: Column, rows: Float) -> None:
        """The numbers of a column into the rows that they become, which hold zeros."""
        values = _as_numbers(column, self.name)
        if self.scale > 0:
            made = values - self.origin
            made /= self.scale
            empty = np.isnan(made)
            made[empty] = 0.0
            rows[:, 0] = made
        else:
            empty = np.isnan(values)
        if self.holes:
            rows[:, -1] = empty


@dataclass(frozen=True, slots=True)
class Levels:
    """A column of texts: its levels in training, first the one that the others stand beside."""

    name: str
    levels: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_text(self.name, "a column's name")
        for level in self.levels:
            _check_text(level, "a level")
        if not 0 < len(self.levels) <= MOST_LEVELS + 2 or len(set(self.levels)) != len(self.levels):
            raise ParameterError(
                f"{NAME}: {self.name!r} takes 1 to {MOST_LEVELS + 2} levels that differ; got {len(self.levels)}"
            )

    def __str__(self) -> str:
        return f"{_quoted(self.name)}={'|'.join(map(_quoted, self.levels))}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that it becomes: one a level, but for the first."""
        return tuple(f"{self.name}={plain(level)}" for level in self.levels[1:])

    def places(self, column: Column) -> NDArray[np.int64]:
        """The place of each row's level here; -1 for one that is unknown and has no others to go with."""
        texts = _as_texts(column, self.name)
        known = {level: place for place, level in enumerate(self.levels)}
        rest = known.get(OTHER, -1)
        where = [known.get(level, rest) for level in texts.levels]
        return np.array([*where, known.get(EMPTY, rest)])[texts.codes]

    def write(self, column: Column, rows: Float) -> None:
        """A one in the column of each row's level; the rows hold zeros."""
        places = self.places(column)
        marked = np.flatnonzero(places > 0)
        rows[marked, places[marked] - 1] = 1.0


Part: TypeAlias = Number | Levels


@dataclass(frozen=True, repr=False)
class Columns:
    """Raw columns as numbers.

    >>> ward = Columns((Number("age", 50.0, 10.0, True), Levels("sex", ("f", "m"))))
    >>> str(ward), ward.names
    ('columns:age:50.0/10.0/empty,sex=f|m', ('age', 'age (empty)', 'sex=m'))
    >>> ward(Cells(("age", "sex"), (np.array([45.0, np.nan]), Texts.of(["f", "m"])))).tolist()
    [[-0.5, 0.0, 0.0], [0.0, 1.0, 1.0]]
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.parts) <= WIDEST or len(set(self.raw)) != len(self.raw):
            raise ParameterError(f"{NAME} takes 1 to {WIDEST} columns whose names differ; got {len(self.parts)}")
        if not 0 < len(self.names) <= WIDEST:
            raise ParameterError(
                f"{NAME} gives 1 to {WIDEST} columns; got {len(self.names)}: every column is the same in all rows, or "
                "there are too many levels"
            )

    def __repr__(self) -> str:
        return f"Columns({len(self.parts)} columns to {len(self.names)})"

    @classmethod
    def read(cls, argument: str) -> Columns:
        """The map in the text behind `columns:`, which must be as such a map is written."""
        try:
            found = cls(tuple(map(_part, argument.split(",", WIDEST))))
            if str(found) == f"{NAME}:{argument}":
                return found
        except ParameterError:
            raise
        except ValueError:
            pass
        raise ParameterError(
            f"{NAME} is written {NAME}:NAME:MEAN/DEVIATION,NAME=LEVEL|LEVEL,... as a model of a run has it; got "
            f"{plain(argument, 80)!r}"
        )

    @cached_property
    def raw(self) -> tuple[str, ...]:
        """The names of the columns that it takes."""
        return tuple(part.name for part in self.parts)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that it gives."""
        return tuple(name for part in self.parts for name in part.names)

    @cached_property
    def units(self) -> tuple[Float, Float]:
        """Origin and scale of each column that it gives; 0 and 1 of those that stand for a level or an empty cell."""
        origin, scale = np.zeros(len(self.names)), np.ones(len(self.names))
        for part, place in zip(self.parts, self._places(), strict=True):
            if isinstance(part, Number) and part.scale > 0:
                origin[place.start], scale[place.start] = part.origin, part.scale
        return origin, scale

    @property
    def dropped(self) -> tuple[str, ...]:
        """The columns that it takes and gives nothing for: in training they were the same in every row."""
        return tuple(part.name for part in self.parts if not part.names)

    @property
    def kinds(self) -> Mapping[str, str]:
        """Whether each column that it takes holds "numbers" or "texts"."""
        return {part.name: "numbers" if isinstance(part, Number) else "texts" for part in self.parts}

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """One row of as many numbers as it has names; refuses inputs with another number of columns."""
        if inputs != (len(self.parts),):
            raise DataError(f"{NAME} was made for {len(self.parts)} columns; these inputs have the shape {inputs}")
        return (len(self.names),)

    def __call__(self, inputs: Array | Cells) -> Float:
        """The rows as numbers. Rows in an array have the columns in order, and NaN in empty cells."""
        cells = inputs if isinstance(inputs, Cells) else self.named(inputs)
        if cells.names != self.raw:
            cells = cells.by_name(self.raw, "the table")
        rows = np.zeros((len(cells), len(self.names)))
        self.write(cells, rows)
        return rows

    def write(self, cells: Cells, rows: Float) -> None:
        """The numbers of cells, whose columns are in order, into rows that hold zeros."""
        for start in range(0, len(cells), ROWS):
            block = cells[start : start + ROWS]
            for part, column, place in zip(self.parts, block.columns, self._places(), strict=True):
                part.write(column, rows[start : start + ROWS, place])

    def _places(self) -> Iterator[slice]:
        """Where the columns of each part stand."""
        end = 0
        for part in self.parts:
            start, end = end, end + len(part.names)
            yield slice(start, end)

    def named(self, inputs: Array) -> Cells:
        """Rows of numbers with the columns in order, as cells with names; refused where columns hold texts."""
        self.shape(inputs.shape[1:])
        texts = [part.name for part in self.parts if isinstance(part, Levels) and part.names]
        if texts:
            raise DataError(f"column {texts[0]!r} holds texts: give a data frame, not an array of numbers")
        values = inputs.astype(np.float64)
        return Cells(self.raw, tuple(values[:, place] for place in range(values.shape[1])))

    def example(self, numbers: Array) -> Cells:
        """Rows such as it takes, from any whole numbers: where a column holds texts, they are the places of levels."""
        made: list[Column] = []
        for part, column in zip(self.parts, numbers.T, strict=True):
            if isinstance(part, Levels):
                levels = [level for level in part.levels if level not in (EMPTY, OTHER)]
                made.append(Texts.of(levels[place % len(levels)] if levels else None for place in column))
            else:
                made.append(column.astype(np.float64))
        return Cells(self.raw, tuple(made))

    def strange(self, cells: Cells) -> tuple[str, ...]:
        """What rows have that training had not, one sentence a column: unknown levels, and holes in numbers."""
        told = []
        for part, column in zip(self.parts, cells.by_name(self.raw, "the table").columns, strict=True):
            if isinstance(part, Number):
                holes = int(np.isnan(_as_numbers(column, part.name)).sum())
                if holes and part.scale > 0 and not part.holes:
                    told.append(f"column {part.name!r} has {holes} empty cells and had none in training: they count "
                                "as its mean")  # fmt: skip
                continue
            if len(part.levels) == 1:
                continue
            texts = _as_texts(column, part.name)
            counts = {**texts.counts(), **({EMPTY: empty} if (empty := texts.empty()) else {})}
            new = sorted(set(counts) - set(part.levels))
            if new:
                rest = OTHER if OTHER in part.levels else part.levels[0]
                shown = ", ".join(repr(plain(level, 40)) for level in new[:5]) + (", ..." if len(new) > 5 else "")
                told.append(f"column {part.name!r} has {sum(counts[level] for level in new)} cells of levels that had "
                            f"no column in training ({shown}): they count as {plain(rest, 40)!r}")  # fmt: skip
        return tuple(told)

    @property
    def identity(self) -> str:
        """The digest of its words."""
        return f"{NAME}; words {hashlib.sha256(str(self).encode()).hexdigest()[:32]}"

    def __str__(self) -> str:
        return f"{NAME}:{','.join(map(str, self.parts))}"


def reference(counts: Mapping[str, int], cell: int) -> tuple[str, ...]:
    """The levels that have a column, after the one they stand beside, from how many rows of all have each.

    Levels of fewer than `cell` rows, and the rarest beyond `MOST_LEVELS`, are one level together. The commonest comes
    first, of equals the first by name; the others follow by name.

    >>> reference({"red": 5, "blue": 9, "mauve": 1, "puce": 2}, 3)
    ('blue', '(other)', 'red')
    """
    common = [level for level, count in counts.items() if count >= cell and level != OTHER]
    kept = sorted(common, key=lambda level: (-counts[level], level))[:MOST_LEVELS]
    totals = Counter({level: counts[level] for level in kept})
    rest = sum(counts.values()) - sum(totals.values())
    if rest:
        totals[OTHER] = rest
    first = min(totals, key=lambda level: (-totals[level], level), default=EMPTY)
    return (first, *sorted(set(totals) - {first}))


def _part(text: str) -> Part:
    """The column in a piece of a specification; ValueError where it is none."""
    name, sign, rest = _split(text)
    if sign == "=":
        return Levels(_unquoted(name), tuple(map(_unquoted, rest.split("|", MOST_LEVELS + 3))))
    origin, scale, *holes = rest.split("/", 3)
    if holes not in ([], ["empty"]):
        raise ValueError
    return Number(_unquoted(name), float(origin), float(scale), bool(holes))


def _split(text: str) -> tuple[str, str, str]:
    for place, letter in enumerate(text):
        if letter in ":=":
            return text[:place], letter, text[place + 1 :]
    raise ValueError


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _unquoted(text: str) -> str:
    return unquote(text, errors="strict")


def _check_text(text: str, what: str) -> None:
    if not 0 < len(text) <= LONGEST_TEXT:
        raise ParameterError(f"{NAME}: {what} has 1 to {LONGEST_TEXT} characters; got {len(text)}")


def _as_numbers(column: Column, name: str) -> Float:
    if not isinstance(column, Texts):
        return column
    if (column.codes >= 0).any():
        raise DataError(f"column {name!r} holds texts here, and numbers in the federation; write it as all others do")
    return np.full(len(column), np.nan)


def _as_texts(column: Column, name: str) -> Texts:
    if isinstance(column, Texts):
        return column
    if not np.isnan(column).all():
        raise DataError(f"column {name!r} holds numbers here, and texts in the federation; write it as all others do")
    return Texts((), np.full(len(column), -1, dtype=np.int32))
