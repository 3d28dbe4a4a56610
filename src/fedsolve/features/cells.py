"""Rows of a table as their owner has them: columns with names, of numbers or of texts, some cells empty.

It stands where arrays of inputs stand until a feature map, `columns`, makes numbers of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float
from fedsolve.errors import DataError

Places: TypeAlias = NDArray[np.int64]
_EMPTY_NUMBER = np.uint64(0x7FF8000000000000)  # NaN has many bit patterns, an empty cell has one


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Texts:
    """A column of texts: the place of each row's text among the levels, -1 for an empty cell.

    >>> column = Texts.of(["yes", None, "no", "yes"])
    >>> column, column.levels, column.codes.tolist()
    (Texts(4 rows), ('no', 'yes'), [1, -1, 0, 1])
    """

    levels: tuple[str, ...]
    codes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"Texts({len(self)} rows)"

    @classmethod
    def of(cls, values: Iterable[str | None]) -> Texts:
        """The column of these texts; None and "" are empty cells."""
        places: dict[str | None, int] = {None: -1, "": -1}
        codes = np.fromiter((places.setdefault(value, len(places) - 2) for value in values), dtype=np.int32)
        return cls.coded([text for text in places if text], codes)

    @classmethod
    def coded(cls, texts: Sequence[str], codes: NDArray[Any]) -> Texts:
        """The column whose rows have these places in a list of texts that differ, in any order; levels are sorted."""
        order = sorted(range(len(texts)), key=texts.__getitem__)
        moved = np.empty(len(texts) + 1, dtype=np.int32)
        moved[order], moved[-1] = np.arange(len(texts)), -1
        return cls(tuple(texts[place] for place in order), moved[codes])

    def take(self, rows: Places | slice) -> Texts:
        """Some rows; levels that they do not have stay among the levels."""
        return Texts(self.levels, self.codes[rows])

    def counts(self) -> dict[str, int]:
        """How many rows have each level that some row has."""
        numbers = np.bincount(self.codes[self.codes >= 0], minlength=len(self.levels)).tolist()
        return {level: number for level, number in zip(self.levels, numbers, strict=True) if number}

    def empty(self) -> int:
        """How many cells are empty."""
        return int((self.codes < 0).sum())


Column: TypeAlias = Float | Texts


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cells:
    """Rows with named columns: numbers in float64, where NaN is an empty cell, or `Texts`.

    >>> ward = Cells(("age", "sex"), (np.array([61.0, np.nan]), Texts.of(["f", "m"])))
    >>> ward, ward.shape, ward[1:].columns[1].codes.tolist()
    (Cells(2 rows, 2 columns), (2, 2), [1])
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.columns) or not self.names or len(set(self.names)) != len(self.names):
            raise DataError(
                f"cells need columns with names that differ; got {len(self.names)} names of {len(self.columns)} columns"
            )
        if len({len(column) for column in self.columns}) != 1:
            raise DataError("columns must have as many rows as each other")

    def __len__(self) -> int:
        return len(self.columns[0])

    def __repr__(self) -> str:
        return f"Cells({len(self)} rows, {len(self.names)} columns)"

    @classmethod
    def numbered(cls, inputs: Array) -> Cells:
        """Rows of numbers, in columns that are called by their places, from 1 on."""
        rows = inputs.reshape(len(inputs), -1).astype(np.float64, copy=False)
        return cls(tuple(str(place + 1) for place in range(rows.shape[1])), tuple(rows.T))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self.names)

    def __getitem__(self, rows: Places | slice) -> Cells:
        return self.take(rows)

    def take(self, rows: Places | slice) -> Cells:
        """Some rows, in this order; slices are views."""
        return Cells(self.names, tuple(c.take(rows) if isinstance(c, Texts) else c[rows] for c in self.columns))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All cells as one array, where every column holds numbers."""
        texts = [name for name, column in zip(self.names, self.columns, strict=True) if isinstance(column, Texts)]
        if texts:
            raise DataError(f"column {texts[0]!r} holds texts: these rows are no array; make numbers of them first")
        return np.column_stack([np.asarray(column) for column in self.columns]).astype(dtype or np.float64, copy=False)

    def by_name(self, names: Sequence[str], whose: str) -> Cells:
        """The columns of these names, in this order; what else there is stays behind, what is missing is refused."""
        if names == self.names:
            return self
        here = dict(zip(self.names, self.columns, strict=True))
        check_present(here, names, whose)
        return Cells(tuple(names), tuple(here[name] for name in names))

    def bits(self) -> NDArray[np.uint64]:
        """One row of numbers per row that is the same for the same content: floats as their bits, texts as digests."""
        table = np.empty(self.shape, dtype=np.uint64)
        for place, column in enumerate(self.columns):
            if isinstance(column, Texts):
                digests = [hashlib.blake2b(level.encode(), digest_size=8).digest() for level in column.levels]
                known = np.frombuffer(b"".join([*digests, bytes(8)]), dtype="<u8").astype(np.uint64)
                table[:, place] = known[column.codes]
            else:
                table[:, place] = np.where(np.isnan(column), _EMPTY_NUMBER, (column + 0.0).view(np.uint64))
        return table

    def digest(self) -> bytes:
        """A digest that is the same for the same names and content."""
        content = hashlib.sha256("\0".join(self.names).encode())
        content.update(self.bits().data)
        return content.digest()


def check_present(here: Mapping[str, object] | Iterable[Hashable], names: Sequence[str], whose: str) -> None:
    """Refuse a table that lacks columns, all of them in one sentence."""
    present = set(here)
    missing = [name for name in names if name not in present]
    if missing:
        known = set(names)
        besides = [str(name) for name in here if name not in known]
        said = f" and has {', '.join(besides[:20])} besides" if besides else ""  # one of them may be it, misspelt
        raise DataError(f"{whose}: it lacks {', '.join(missing)}{said}; the columns wanted are {', '.join(names)}")
