"""The columns of a file that a model is to predict from: its own by name, the label, and all others as they are."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedsolve.arrays import Array
from fedsolve.data import catalog
from fedsolve.errors import DataError

LABELS = ("y", "label")
Others: TypeAlias = dict[str, list[str]]
"""Columns that are neither features nor the label, by name, in the order of the file."""


def columns_of(path: Path, features: Sequence[str]) -> tuple[dict[str, Array], Others]:
    """`x` and, where it is there, `y` of a file, as `catalog.read_columns` gives them, and the columns besides.

    A model of named columns (`features`) takes these, whatever else a table holds. Where columns have no names, in an
    .npz file or in the model, all of them are features.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None or not features:
        return catalog.read_columns(path), {}
    try:
        texts, numbers = reader(path, features)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    label = [name for name in LABELS if name in texts]
    if len(label) > 1:
        raise DataError(f"{path} has columns {' and '.join(label)}; which is the label? Leave one out")
    columns = {"x": np.column_stack([numbers[name] for name in features]), catalog.NAMES: np.array(features)}
    for name in label:
        labels = texts.pop(name)
        if "" in labels:
            raise DataError(f"{path}: the label in row {labels.index('')} is missing")
        columns["y"] = _numbers_or_texts(labels)
    return columns, texts


def _check(names: Sequence[str], features: Sequence[str], path: Path) -> None:
    """Refuse a file without a column of the model, or with two of one name."""
    missing = [name for name in features if name not in names]
    if missing:
        others = [name for name in names if name not in (*features, *LABELS, "client")]
        besides = f" and has {', '.join(others)} besides" if others else ""  # one of them may be it, misspelt
        raise DataError(
            f"{path}: it lacks {', '.join(missing)}{besides}; the model takes the columns {', '.join(features)}"
        )
    if len(set(names)) != len(names):
        raise DataError(f"{path}: column names must differ; got {', '.join(names)}")


def _csv(path: Path, features: Sequence[str]) -> tuple[Others, Mapping[str, Array]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            names = [name.strip() for name in next(lines, [])]
            _check(names, features, path)
            rows = []
            for row in lines:
                if row and len(row) != len(names):
                    raise DataError(f"{path}: line {lines.line_num} has {len(row)} fields, the header {len(names)}")
                rows += [row] if row else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error})") from error
    if not rows:
        raise DataError(f"{path} holds no samples")
    texts = {name: [cell.strip() for cell in cells] for name, cells in zip(names, zip(*rows, strict=True), strict=True)}
    return texts, {name: _numbers(texts.pop(name), name, path) for name in features}


def _numbers(cells: list[str], name: str, path: Path) -> Array:
    try:
        return np.array(cells).astype(np.float64)
    except ValueError as error:
        raise DataError(f"{path}: column {name!r} must hold numbers ({error})") from error


def _parquet(path: Path, features: Sequence[str]) -> tuple[Others, Mapping[str, Array]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow: pip install 'fedsolve[data]'") from error
    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise DataError(f"{path} is damaged or not a Parquet file ({error})") from error
    _check(table.column_names, features, path)
    if not table.num_rows:
        raise DataError(f"{path} holds no samples")
    numbers = {}
    for name in features:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise DataError(f"{path}: column {name!r} must hold numbers; got {kind}")
        numbers[name] = table[name].to_numpy().astype(np.float64)
    return {name: _texts(table[name]) for name in table.column_names if name not in numbers}, numbers


def _texts(column: Any) -> list[str]:
    return ["" if value is None else str(value) for value in column.to_pylist()]


def _numbers_or_texts(labels: list[str]) -> Array:
    for kind in (np.int64, np.float64):
        try:
            return np.array(labels).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(labels)


_READERS = {".csv": _csv, ".parquet": _parquet}
