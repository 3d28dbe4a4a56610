"""Files of samples, read into columns: .npz, .csv and .parquet."""

from __future__ import annotations

import csv
import zlib
from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.errors import DataError

NAMES = "feature_names"
OTHER = "other"  # columns that are neither features nor the label stand below it, as texts
_LABELS = ("y", "label")
_NPZ_KEYS = ("x", "y", "x_test", "y_test", "client")
_WORDS = {"y": "label", "client": "client"}


def read_columns(path: Path, features: Sequence[str] = ()) -> dict[str, Array]:
    """`x` and, where they are there, `y`, `client`, `x_test`, `y_test` of a file, and the names of its columns.

    Where `features` are named, a table may hold other columns besides: they come along as texts, below `OTHER`.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"cannot read {path}: wanted a file that ends in {', '.join(READERS)}")
    try:
        return reader(path, features)
    except OSError as error:
        raise DataError(f"cannot read {path}: {' '.join((error.strerror or str(error)).split())}") from error


def _npz(path: Path, features: Sequence[str]) -> dict[str, Array]:
    try:
        with path.open("rb") as file:  # NumPy leaves it open where it is not a whole zip file
            archive = np.load(file, allow_pickle=False)  # noqa: TID251  (this is the one place)
            if not isinstance(archive, NpzFile):
                raise ValueError("it holds a single array")
            return {key: archive[key] for key in _NPZ_KEYS if key in archive.files}
    except (ValueError, BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataError(f"{path} is damaged or not an .npz file of plain arrays ({error})") from error


# --- csv ---


def _csv(path: Path, features: Sequence[str]) -> dict[str, Array]:
    """One pass over the file: each row is checked, its numbers are converted, its label and client kept as texts."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _csv_columns(file, str(path), features)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error})") from error


def _csv_columns(file: TextIO, source: str, features: Sequence[str]) -> dict[str, Array]:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, [])]
    columns = _columns(header, source, features)
    places = [header.index(name) for name in columns["x"]]
    numbers = _fields(places)
    names = {key: columns[key][0] for key in ("y", "client") if columns[key]}
    names |= {f"{OTHER}/{name}": name for name in columns[OTHER]}
    texts: dict[str, list[str]] = {key: [] for key in names}
    text_places = [(header.index(names[key]), cells) for key, cells in texts.items()]
    values, fault, rows = array("d"), "", 0
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(f"{source}: line {reader.line_num} has {len(row)} fields, the header {len(header)}")
        fields = numbers(row)
        joined = "".join(fields)  # `float` alone also takes 1_000 and digits of other scripts
        try:
            values.extend(map(_strict_float if "_" in joined or not joined.isascii() else float, fields))
        except ValueError:
            fault = fault or _not_a_number(fields, columns["x"], rows)
        for place, cells in text_places:
            cells.append(row[place])
        rows += 1
    if not rows:
        raise DataError(f"{source} holds no samples")
    if fault:
        raise DataError(f"{source}: {fault}")
    arrays: dict[str, Array] = {"x": np.frombuffer(values, np.float64).reshape(rows, len(places))}
    for key, cells in texts.items():
        stripped = np.array([text.strip() for text in cells])
        if key in _WORDS and (stripped == "").any():
            raise DataError(f"{source}: the {_WORDS[key]} in row {int(np.argmax(stripped == ''))} is missing")
        arrays[key] = _numbers_or_texts(stripped) if key == "y" else stripped  # "007" is not 7
    return arrays | {NAMES: np.array(columns["x"])}


def _fields(places: list[int]) -> Callable[[list[str]], Sequence[str]]:
    """What takes the fields at these places from a row; one slice where they stand side by side."""
    if places == list(range(places[0], places[-1] + 1)):
        return itemgetter(slice(places[0], places[-1] + 1))
    return itemgetter(*places)


def _strict_float(text: str) -> float:
    """The number in a text of ASCII characters without underscores; blanks around it may be of any kind."""
    stripped = text.strip()
    if "_" in stripped or not stripped.isascii():
        raise ValueError(text)
    return float(stripped)


def _not_a_number(fields: Sequence[str], names: Sequence[str], row: int) -> str:
    """Which column holds something else in this row, in words."""
    for field, name in zip(fields, names, strict=True):
        try:
            _strict_float(field)
        except ValueError:
            return f"column {name!r} must hold numbers; got {field!r} in row {row}"
    return f"every feature must be a number; row {row} has one that is none"


# --- parquet ---


def _parquet(path: Path, features: Sequence[str]) -> dict[str, Array]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow: pip install 'fedsolve[data]'") from error
    try:
        table = pq.read_table(path)
        columns = _columns(table.column_names, str(path), features)
        arrays: dict[str, Array] = {}
        texts = [name for name in columns["x"] if not _is_number(pa, table.schema.field(name).type)]
        if texts:
            raise DataError(f"{path}: column {texts[0]!r} must hold numbers; encode it or leave it out")
        arrays["x"] = np.column_stack([table[name].to_numpy().astype(np.float64) for name in columns["x"]])
        for key in ("y", "client"):
            if columns[key]:
                column = table[columns[key][0]]
                if pa.types.is_dictionary(column.type):
                    column = column.cast(column.type.value_type)
                texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
                if not texts and not _is_number(pa, column.type):
                    raise DataError(f"{path}: {_WORDS[key]}s must be numbers or texts; got {column.type}")
                if column.null_count:
                    raise DataError(f"{path}: a {_WORDS[key]} is missing")
                values = column.to_numpy()
                arrays[key] = values.astype(np.str_) if texts else values
        arrays |= {f"{OTHER}/{name}": _texts(table[name]) for name in columns[OTHER]}
        return arrays | {NAMES: np.array(columns["x"])}
    except pa.ArrowException as error:
        raise DataError(f"{path} is damaged or not a Parquet file ({error})") from error


def _texts(column: Any) -> NDArray[np.str_]:
    return np.array(["" if value is None else str(value) for value in column.to_pylist()])


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _columns(names: list[str], source: str, features: Sequence[str]) -> dict[str, list[str]]:
    """Which columns are features, which is the label, which the client, and which are none of these."""
    if len(set(names)) != len(names):
        raise DataError(f"{source}: column names must differ; got {', '.join(names)}")
    label = [name for name in _LABELS if name in names]
    if len(label) > 1:
        raise DataError(f"{source} has columns {' and '.join(label)}; which is the label? Leave one out")
    if features:
        missing = [name for name in features if name not in names]
        others = [name for name in names if name not in (*features, *label)]
        if missing:
            besides = [name for name in others if name != "client"]
            said = f" and has {', '.join(besides)} besides" if besides else ""  # one of them may be it, misspelt
            raise DataError(
                f"{source}: it lacks {', '.join(missing)}{said}; the model takes the columns {', '.join(features)}"
            )
        return {"x": list(features), "y": label, "client": [], OTHER: others}
    client = [name for name in names if name == "client"]
    numbers = [name for name in names if name not in (*label, *client)]
    if not numbers:
        raise DataError(f"{source} has no feature columns; its columns are {', '.join(names) or 'missing'}")
    return {"x": numbers, "y": label, "client": client, OTHER: []}


def _numbers_or_texts(texts: NDArray[np.str_]) -> Array:
    for kind in (np.int64, np.float64):
        try:
            return texts.astype(kind)
        except ValueError:
            continue
    return texts


READERS: dict[str, Callable[[Path, Sequence[str]], dict[str, Array]]]
READERS = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
ENDINGS = tuple(READERS)
