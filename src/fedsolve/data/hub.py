"""Data sets of the Hugging Face hub, or of a folder in its layout: pictures with labels, or columns of numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.data.folders import BrokenImage, decode, stacked
from fedsolve.data.table import Table
from fedsolve.errors import DataError
from fedsolve.features.images import Picture

LABELS = ("label", "labels", "fine_label", "y", "class")  # where no column is declared to hold classes
TRAIN, TEST = ("train",), ("test", "validation", "valid")


@dataclass(frozen=True, eq=False)
class Stored:
    """Pictures in the rows of a data set, decoded when they are asked for."""

    rows: Any  # a datasets.Dataset whose column holds the bytes of files
    column: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def _bytes(self) -> Iterator[tuple[int, bytes]]:
        for number in range(self.start, self.stop):
            yield number, self.rows[number][self.column]["bytes"] or b""

    def __iter__(self) -> Iterator[Picture]:
        for number, data in self._bytes():
            try:
                yield decode(data)
            except BrokenImage as error:
                raise DataError(f"the picture in row {number} cannot be read: {error}") from error

    def __getitem__(self, rows: slice) -> Stored:
        start, stop, _ = rows.indices(len(self))
        return Stored(self.rows, self.column, self.start + start, self.start + stop)

    def take(self, rows: NDArray[np.int64]) -> Stored:
        """The pictures in these rows."""
        return Stored(self.rows.select(self.start + rows), self.column, 0, len(rows))

    def digest(self) -> bytes:
        """The digest of the content of all pictures."""
        digest = hashlib.sha256()
        for _, data in self._bytes():
            digest.update(hashlib.sha256(data).digest())
        return digest.digest()

    def stacked(self) -> Picture:
        """All in one array, if they have one size."""
        return stacked([f"row {number}" for number in range(self.start, self.stop)], self)


def read(name: str) -> Table:
    """The table behind a name of the hub or a folder: its training split, and its test split where it has one."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"hf:{name} needs datasets: pip install 'fedsolve[hf-data]'") from error
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise DataError(
            f"hf:{name} could not be loaded ({type(error).__name__}: {said}); without a network, hf: takes a "
            "folder that holds the data set"
        ) from error
    train = next((splits[each] for each in TRAIN if each in splits), None)
    if train is None:
        raise DataError(f"hf:{name} has no split 'train'; it has {', '.join(splits)}")
    test = next((splits[each] for each in TEST if each in splits), None)
    label = _label(datasets, train, name)
    kind = train.features[label]
    inputs = [_inputs(datasets, part, label, name) for part in (train, test) if part is not None]
    return Table.make(
        f"hf:{name}",
        inputs[0],
        _numbers(train, label, name),
        test=(inputs[1], _numbers(test, label, name)) if test is not None else None,
        client=np.array(train["client"]) if "client" in train.column_names else None,
        class_names=tuple(kind.names) if isinstance(kind, datasets.ClassLabel) else (),
    )


def _label(datasets: Any, train: Any, name: str) -> str:
    declared = [each for each, kind in train.features.items() if isinstance(kind, datasets.ClassLabel)]
    known = [each for each in LABELS if each in train.column_names]
    chosen = [each for each in known if each in declared] or declared or known
    if not chosen:
        raise DataError(f"hf:{name} has no column of classes; its columns are {', '.join(train.column_names)}")
    return str(chosen[0])


def _numbers(part: Any, label: str, name: str) -> Array:
    values = np.array(part[label])
    if values.dtype.kind not in "iu":
        raise DataError(f"hf:{name}: the column {label!r} must hold class numbers; it holds {values.dtype}")
    return values


def _inputs(datasets: Any, part: Any, label: str, name: str) -> Any:
    """The column of pictures, or all columns of numbers side by side."""
    pictures = [each for each, kind in part.features.items() if isinstance(kind, datasets.Image)]
    if pictures:
        stored = part.cast_column(pictures[0], datasets.Image(decode=False))
        return Stored(stored, pictures[0], 0, len(stored))
    numbers = [
        each
        for each, kind in part.features.items()
        if each not in (label, "client")
        and str(getattr(kind, "dtype", "")).startswith(("int", "uint", "float", "bool"))
    ]
    if not numbers:
        raise DataError(f"hf:{name} has neither a column of pictures nor columns of numbers")
    return np.column_stack([np.array(part[each], dtype=np.float64) for each in numbers])
