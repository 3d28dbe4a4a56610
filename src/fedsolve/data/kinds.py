"""What the columns of a table are: numbers, texts, dates, and those that are no use to anybody, with the reasons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np

from fedsolve.arrays import Float
from fedsolve.data.gathering import MANY, MOST, NEARLY_ALL, Numbers, Words, is_number, numeric_share
from fedsolve.data.reading import DAYS, LONGEST_TEXT, NUMBERS, TEXTS, Fault, Reading
from fedsolve.errors import plain
from fedsolve.features.cells import Column, Texts

MANY_LEVELS = 100  # from which on texts that hardly repeat are names or notes, not levels
_ISO = re.compile(
    r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
)
_TURNED = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?: (\d{2}):(\d{2})(?::(\d{2}))?)?")
_BOOLEANS = {"true", "false"}
_DATES = 0.9  # share of the texts from which on they are dates
_DROP = "leave it out with --drop {name}"


@dataclass(frozen=True, slots=True)
class Told:
    """A column as it was read, and what is said of it beside its values."""

    column: Column
    kind: str  # "numbers", "texts", "booleans" or "dates"
    faults: tuple[Fault, ...] = ()


def of_numbers(name: str, found: Numbers, reading: Reading) -> Told:
    """A column of numbers that a file has; what is none in it is a fault."""
    faults = []
    if found.strange:
        cell, (row, _) = min(found.strange.items(), key=lambda item: item[1][0])
        cells = sum(count for _, count in found.strange.values())
        faults.append(_not_numbers(name, cell, row, cells))
    if found.infinite is not None:
        row, cell = found.infinite
        faults.append(Fault(f"column {name!r} must hold finite numbers; got", row, repr(plain(cell, 40))))
    return Told(found.values(), NUMBERS, tuple(faults))


def _not_numbers(name: str, cell: str, row: int, cells: int) -> Fault:
    also = f" (and {cells - 1} cells more)" if cells > 1 else ""
    return Fault(
        f"column {name!r} must hold numbers; got", row,
        f"{plain(cell, 40)!r}; mend or empty it{also}, or {_DROP.format(name=name)}",
    )  # fmt: skip


def of_words(name: str, found: Words, reading: Reading, *, comma: bool = False) -> Told:
    """A column of texts that a file has."""
    if found.endless:
        return Told(Texts((), np.empty(0, dtype=np.int32)), TEXTS, (_names_fault(name, len(found.texts), None),))
    column = found.column()
    if reading.kinds.get(name) == TEXTS:
        return Told(booleans(column) or column, TEXTS)
    return judged(name, column, reading, comma=comma)


def judged(name: str, column: Texts, reading: Reading, *, comma: bool = False, spelt: bool = True) -> Told:
    """What a column of texts is: levels, truth values, dates, or what nobody can use.

    `spelt` says whether numbers and truth values are written as texts there, as in a file of texts.
    """
    counts = column.counts()
    if spelt and (truth := booleans(column)) is not None:
        return Told(truth, "booleans")
    dates = sum(_is_date(level) for level in counts)
    if counts and dates >= _DATES * len(counts):
        return _dated(name, column, reading)
    if spelt:
        share, distinct = numeric_share(counts.items(), comma)
        if share >= NEARLY_ALL or (share > MOST and distinct > MANY):
            strange = next(level for level in counts if not is_number(level, comma))
            first = _first(column, lambda level: not is_number(level, comma))
            cells = sum(count for level, count in counts.items() if not is_number(level, comma))
            shown = column.levels[column.codes[first]] if first is not None else strange
            return Told(column, TEXTS, (_not_numbers(name, shown, first or 0, cells),))
    if len(counts) > MANY_LEVELS and 2 * len(counts) > len(column):
        return Told(column, TEXTS, (_names_fault(name, len(counts), len(column)),))
    row = _first(column, lambda level: len(level) > LONGEST_TEXT)
    if row is not None:
        length = len(column.levels[column.codes[row]])
        words = f"{length} characters; levels have at most {LONGEST_TEXT}: {_DROP.format(name=name)}"
        return Told(column, TEXTS, (Fault(f"column {name!r} has a text of", row, words),))
    return Told(column, TEXTS)


def _names_fault(name: str, distinct: int, rows: int | None) -> Fault:
    many = f"{distinct} different texts" + (f" in {rows} rows" if rows else "")
    return Fault(f"column {name!r} has {many}: names or notes, and no levels; {_DROP.format(name=name)}")


def _first(column: Texts, fits: Callable[[str], object]) -> int | None:
    """The first row with a level that fits."""
    marked = np.array([*(bool(fits(level)) for level in column.levels), False])
    rows = np.flatnonzero(marked[column.codes])
    return int(rows[0]) if len(rows) else None


def booleans(column: Texts) -> Texts | None:
    """The same column with the levels false and true, where it holds these, in letters of any case; else None.

    >>> booleans(Texts.of(["TRUE", "False"])).levels
    ('false', 'true')
    """
    counts = column.counts()
    if not counts or not {level.lower() for level in counts} <= _BOOLEANS:
        return None
    places = np.array([*(int(level.lower() == "true") for level in column.levels), -1], dtype=np.int32)
    return Texts(("false", "true"), places[column.codes])


# --- dates ---


def _is_date(text: str) -> bool:
    return _ISO.fullmatch(text) is not None or _TURNED.fullmatch(text) is not None


def date_fault(name: str) -> Fault:
    """What to say of a column of dates."""
    return Fault(
        f"column {name!r} holds dates; {_DROP.format(name=name)}, or take all dates as days since 1970 with "
        f"--date-as {DAYS}"
    )


def _dated(name: str, column: Texts, reading: Reading) -> Told:
    if reading.date_as != DAYS:
        return Told(column, "dates", (date_fault(name),))
    counts = column.counts()
    turned = [found for level in counts if (found := _TURNED.fullmatch(level))]
    slashes = [found for found in turned if found[2] != "."]
    days_first = all(int(found[3]) <= 12 for found in turned)
    if slashes and days_first and all(int(found[1]) <= 12 for found in slashes):
        words = f"{slashes[0][0]!r}, which may be day or month first; write dates as 2026-11-18"
        first = _first(column, lambda level: level == slashes[0][0])
        return Told(column, "dates", (Fault(f"column {name!r} holds", first, words),))
    values, bad = [], ""
    for level in column.levels:
        try:
            values.append(_days(level, days_first))
        except ValueError:
            values.append(np.nan)
            bad = bad or (level if level in counts else "")
    if bad:
        row = _first(column, lambda level: level == bad)
        return Told(column, "dates", (Fault(f"column {name!r} must hold dates; got", row, repr(plain(bad, 40))),))
    return Told(np.array([*values, np.nan])[column.codes], NUMBERS)


def _days(text: str, days_first: bool) -> float:
    """Days since 1970-01-01."""
    if found := _ISO.fullmatch(text):
        year, month, day, *clock = found.groups()
    elif found := _TURNED.fullmatch(text):
        first, _, second, year, *clock = found.groups()
        day, month = (first, second) if days_first else (second, first)
    else:
        raise ValueError(text)
    hour, minute, second = (int(part or 0) for part in clock)
    since = datetime(int(year), int(month), int(day), hour, minute, second) - datetime(1970, 1, 1)
    return since.days + since.seconds / 86400


def days_of(values: np.ndarray) -> Float:
    """Dates of NumPy as days since 1970-01-01; NaN for what is no time.

    >>> days_of(np.array(["1970-01-02", "NaT"], dtype="datetime64[s]")).tolist()
    [1.0, nan]
    """
    seconds = values.astype("datetime64[s]")
    return np.where(np.isnat(seconds), np.nan, seconds.astype(np.int64) / 86400.0)


def is_day(value: object) -> bool:
    """Whether a Python value is a date."""
    return isinstance(value, date)
