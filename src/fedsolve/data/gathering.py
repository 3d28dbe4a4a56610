"""Columns of texts as a file has them, gathered block by block into numbers or coded texts, whichever they are.

A column is taken for numbers while most of its cells are; what else it holds is noted, with the row where it stood
first. Numbers are kept as numbers and texts as codes at once, so that a large file is never all there as Python texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedsolve.arrays import Float
from fedsolve.features.cells import Texts

EMPTY_WORDS = ("", "NA", "NaN", "nan", "null", "NULL", "None", "?", "(empty)")
_NUMBERS = dict.fromkeys(EMPTY_WORDS, "nan")
NEARLY_ALL = 0.9  # share of its filled cells from which a column is one of numbers, with mistakes in it
MOST = 0.5  # the same, where the numbers are of many values
MANY = 20  # values
MANY_TEXTS = 2**17  # texts from which on a column that hardly repeats any is not gathered further


def clean(cell: str) -> str:
    """A cell without blanks around it; nothing where it says that it is empty.

    >>> clean(" NA "), clean(" male")
    ('', 'male')
    """
    cell = cell.strip()
    return "" if cell in _NUMBERS else cell


def number(cell: str, comma: bool = False) -> float:
    """The number in a cell of ASCII characters without underscores; NaN in an empty one; ValueError for any other.

    >>> number("12,5", comma=True), number("?")
    (12.5, nan)
    """
    cell = cell.strip()
    cell = _NUMBERS.get(cell, cell)
    if "_" in cell or not cell.isascii() or (comma and "." in cell):
        raise ValueError(cell)
    return float(cell.replace(",", ".") if comma else cell)


class _Rows:
    """Numbers one behind the other. Room for more doubles when it is full: a thousand small arrays are no better."""

    def __init__(self, kind: DTypeLike) -> None:
        self._room, self._used = np.empty(1024, dtype=kind), 0

    def __len__(self) -> int:
        return self._used

    def add(self, block: NDArray[Any]) -> None:
        """Copy further numbers."""
        start, self._used = self._used, self._used + len(block)
        if self._used > len(self._room):
            room = np.empty(max(self._used, 2 * len(self._room)), dtype=self._room.dtype)
            room[:start] = self._room[:start]
            self._room = room
        self._room[start : self._used] = block

    def all(self) -> NDArray[Any]:
        """All of them, as a view."""
        return self._room[: self._used]


class Numbers:
    """A column that holds numbers, and what it holds besides."""

    def __init__(self, comma: bool) -> None:
        self.strange: dict[str, tuple[int, int]] = {}  # cells that are none: where the first stood, and how many
        self.infinite: tuple[int, str] | None = None  # where the first infinite one stood
        self._comma, self._rows = comma, _Rows(np.float64)

    def add(self, cells: Sequence[str]) -> None:
        """Take in the cells of further rows."""
        block = self._converted(cells)
        if not np.isfinite(block).all() and self.infinite is None and np.isinf(block).any():
            row = int(np.flatnonzero(np.isinf(block))[0])
            self.infinite = (len(self._rows) + row, cells[row])
        self.add_values(block)

    def add_values(self, block: Float) -> None:
        """Take in the numbers of further rows."""
        self._rows.add(block)

    def _converted(self, cells: Sequence[str]) -> Float:
        joined = "".join(cells)  # `float` alone also takes 1_000 and digits of other scripts
        if "_" not in joined and joined.isascii() and not (self._comma and "." in joined):
            texts = [cell.replace(",", ".") for cell in cells] if self._comma else cells
            try:
                return np.fromiter(map(float, texts), np.float64, len(cells))
            except ValueError:
                pass
            try:
                return np.fromiter(map(float, [_NUMBERS.get(cell, cell) for cell in texts]), np.float64, len(cells))
            except ValueError:
                pass
        return np.fromiter((self._one(cell, row) for row, cell in enumerate(cells)), np.float64, len(cells))

    def _one(self, cell: str, row: int) -> float:
        try:
            return number(cell, self._comma)
        except ValueError:
            first, count = self.strange.get(cell, (len(self._rows) + row, 0))
            if count or len(self.strange) < MANY_TEXTS:
                self.strange[cell] = (first, count + 1)
            return np.nan

    def values(self) -> Float:
        """All numbers, with NaN in place of what is none."""
        return self._rows.all()

    def mostly_texts(self) -> bool:
        """Whether it holds so much else that it is to be read as texts."""
        strange = sum(count for _, count in self.strange.values())
        if not strange:
            return False
        values = self.values()
        filled = values[~np.isnan(values)]
        share = len(filled) / (len(filled) + strange)
        many = len(np.unique(filled)) > MANY if share > MOST else False
        return not (share >= NEARLY_ALL or (share > MOST and many))


class Words:
    """A column of texts, as codes of those that differ."""

    def __init__(self, *, endless: bool = False) -> None:
        self.texts: list[str] = []  # cells that differ, cleaned
        self.endless = False  # whether so many differ that the rest was left out
        self._places: dict[str, int] = {}  # by cell as it is
        self._known: dict[str, int] = {}  # by cell as it is cleaned
        self._codes, self._rows, self._all = _Rows(np.int32), 0, endless

    def add(self, cells: Sequence[str]) -> None:
        """Take in the cells of further rows."""
        self.add_coded(np.empty(len(cells), dtype=np.int32) if self.endless else self.coded(cells))

    def add_coded(self, codes: NDArray[np.int32]) -> None:
        """Take in further rows by the places of their cells among the texts that differ."""
        self._rows += len(codes)
        if self.endless:
            return
        self._codes.add(codes)
        if not self._all and len(self.texts) > MANY_TEXTS and 2 * len(self.texts) > self._rows:
            self.endless = True

    def coded(self, cells: Sequence[str]) -> NDArray[np.int32]:
        """The places of cells among the texts that differ; new ones are added to these."""
        try:
            return np.fromiter(map(self._places.__getitem__, cells), np.int32, len(cells))
        except KeyError:
            for cell in cells:
                if cell not in self._places:
                    self._places[cell] = self._place(clean(cell))
        return np.fromiter(map(self._places.__getitem__, cells), np.int32, len(cells))

    def _place(self, text: str) -> int:
        if not text:
            return -1
        place = self._known.setdefault(text, len(self.texts))
        if place == len(self.texts):
            self.texts.append(text)
        return place

    def column(self) -> Texts:
        """The column."""
        return Texts.coded(self.texts, self._codes.all())


class Unknown:
    """A column that is numbers or texts, decided by the first block of rows with something in them."""

    def __init__(self, comma: bool) -> None:
        self._comma, self._empty = comma, 0
        self.found: Numbers | Words | None = None

    def add(self, cells: Sequence[str]) -> None:
        """Take in the cells of further rows."""
        if self.found is None:
            filled = [cell for cell in cells if clean(cell)]
            if not filled:
                self._empty += len(cells)
                return
            numbers = sum(is_number(cell, self._comma) for cell in filled)
            self.found = Numbers(self._comma) if 2 * numbers > len(filled) else Words()
            if self._empty:
                self.found.add([""] * self._empty)
        self.found.add(cells)

    def as_numbers(self) -> Numbers:
        """The numbers that somebody knows it to be."""
        if not isinstance(self.found, Numbers):
            self.found = Numbers(self._comma)
        return self.found

    def result(self) -> Numbers | Words:
        """What it is; where every cell is empty, numbers."""
        if self.found is None:
            self.found = Numbers(self._comma)
            self.found.add([""] * self._empty)
        return self.found


def is_number(cell: str, comma: bool = False) -> bool:
    """Whether a cell holds a number.

    >>> is_number("1e3"), is_number("1_000"), is_number("12,5")
    (True, False, False)
    """
    try:
        return not np.isnan(number(cell, comma))
    except ValueError:
        return False


def numeric_share(texts: Iterable[tuple[str, int]], comma: bool) -> tuple[float, int]:
    """The share of rows whose text is a number, and how many such texts differ, from texts with their counts.

    >>> numeric_share([("1", 3), ("n/a", 1)], False)
    (0.75, 1)
    """
    rows = total = distinct = 0
    for text, count in texts:
        total += count
        if is_number(text, comma):
            rows, distinct = rows + count, distinct + 1
    return rows / max(total, 1), distinct
