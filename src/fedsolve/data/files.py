"""Files of samples, read into columns: .npz, .csv and .parquet."""

from __future__ import annotations

import ast
import csv
import math
import re
import struct
import warnings
import zlib
from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, TextIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, sides
from fedsolve.errors import CONTROLS, DataError, brief, plain

NAMES = "feature_names"
OTHER = "other"  # columns that are neither features nor the label stand below it, as texts
_LABELS = ("y", "label")
_NPZ_KEYS = ("x", "y", "x_test", "y_test", "client")
_WORDS = {"y": "label", "client": "client"}
_LONGEST_TEXT = 200  # characters of a label or a client: an array of texts takes as much for each as for the longest
_MAGIC = b"\x93NUMPY"
_NPY_HEADERS = {b"\x01\x00": "<H", b"\x02\x00": "<I"}  # how the length of the header is written, by version
_LONGEST_NPY_HEADER = 10_000  # NumPy's own limit
_UNPACKED = 2**25  # bytes that any packed file may hold, however small it is
_PACKED = 500  # and how many times its own size beyond that; only a file of almost nothing but zeros packs better
_CHUNK = 2**20  # bytes that are unpacked at a time
_CONTROL = re.compile(f"[{CONTROLS}]")


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


# --- npz ---


def _npz(path: Path, features: Sequence[str]) -> dict[str, Array]:
    """Arrays of a zip file, each announced by its header; read here since NumPy believes any header that it is told."""
    try:
        with ZipFile(path) as archive:
            members = {key: f"{key}.npy" for key in _NPZ_KEYS if f"{key}.npy" in archive.namelist()}
            infos = {key: archive.getinfo(name) for key, name in members.items()}
            announced = sum(info.file_size for info in infos.values())
            _check_announced(path, announced, "write it without compression, by numpy.savez")
            if any(info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for info in infos.values()):
                raise ValueError("it is packed by another method than numpy.savez uses")
            return {key: _member(archive, info.filename, info.file_size) for key, info in infos.items()}
    except (
        ValueError, BadZipFile, EOFError, KeyError, IndexError, NotImplementedError, RuntimeError, MemoryError,
        OverflowError, struct.error, zlib.error,
    ) as error:  # fmt: skip
        if isinstance(error, DataError):
            raise
        reason = plain(str(error)) or type(error).__name__
        raise DataError(f"{path} is damaged or not an .npz file of plain arrays ({reason})") from error


def _check_announced(path: Path, announced: int, way_out: str) -> None:
    """Refuse a small file that says it holds a lot, before room is made for that."""
    size = path.stat().st_size
    if announced > _UNPACKED + _PACKED * size:
        raise DataError(
            f"{path} has {size} bytes and announces {announced}: more than {_PACKED} times its size; if that is right, "
            f"{way_out}"
        )


def _member(archive: ZipFile, name: str, size: int) -> Array:
    """One array of an archive, whose bytes must be as many as its header announces before room is made for them."""
    with archive.open(name) as file:
        dtype, fortran, shape, start = _npy_header(file, name)
        count = math.prod(shape) * dtype.itemsize
        if count != size - start:
            raise ValueError(f"{name} announces {count} bytes of values and has {size - start}")
        data = np.empty(count, dtype=np.uint8)
        for first in range(0, count, _CHUNK):
            chunk = file.read(min(_CHUNK, count - first))
            data[first : first + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            if len(chunk) < min(_CHUNK, count - first):
                raise ValueError(f"{name} is cut off")
        file.read(1)  # behind the last byte the checksum is compared
    values: Array = data.view(dtype)
    if dtype.kind == "U":
        letters = data.view(dtype.byteorder.replace("=", "<") + "u4")
        if not ((letters < 0xD800) | ((letters > 0xDFFF) & (letters < 0x110000))).all():
            raise ValueError(f"{name} holds texts that are not Unicode")
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def _npy_header(file: IO[bytes], name: str) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Type, order and shape of an array, and where its values begin: NumPy's format, for plain types alone."""
    magic, version = file.read(len(_MAGIC)), file.read(2)
    if magic != _MAGIC or version not in _NPY_HEADERS:
        raise ValueError(f"{name} does not begin like an array of NumPy")
    form = _NPY_HEADERS[version]
    (length,) = struct.unpack(form, file.read(struct.calcsize(form)))
    if length > _LONGEST_NPY_HEADER:
        raise ValueError(f"{name} has a header of {length} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the parser says of strange texts is no concern of the user
            header = ast.literal_eval(file.read(length).decode("latin1").strip())
    except (SyntaxError, TypeError, RecursionError) as error:
        raise ValueError(f"the header of {name} cannot be read") from error
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"the header of {name} must have descr, fortran_order and shape; got {brief(header)}")
    kind, fortran = header["descr"], header["fortran_order"]
    if not isinstance(kind, str) or not _PLAIN_TYPE.fullmatch(kind) or not isinstance(fortran, bool):
        raise ValueError(f"{name} must hold numbers or texts; got the type {brief(kind)}")
    try:
        shape = sides(header["shape"], name)
    except DataError as error:
        raise ValueError(str(error)) from error  # the file's name stands before it
    return np.dtype(kind), fortran, shape, len(_MAGIC) + 2 + struct.calcsize(form) + length


_PLAIN_TYPE = re.compile(r"\|b1|\|[iu]1|[<>][iu][248]|[<>]f[248]|[<>]c(8|16)|(\|S|[<>]U)[1-9]\d{0,6}")


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
    order = {name: place for place, name in enumerate(header)}
    places = [order[name] for name in columns["x"]]
    numbers = _fields(places)
    names = {key: columns[key][0] for key in ("y", "client") if columns[key]}
    names |= {f"{OTHER}/{name}": name for name in columns[OTHER]}
    texts: dict[str, list[str]] = {key: [] for key in names}
    text_places = [(order[names[key]], cells) for key, cells in texts.items()]
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
        stripped = [text.strip() for text in cells]
        if key not in _WORDS:
            arrays[key] = np.array(stripped, dtype=object)  # notes of any length
            continue
        if "" in stripped:
            raise DataError(f"{source}: the {_WORDS[key]} in row {stripped.index('')} is missing")
        _check_lengths(stripped, f"{source}: the {_WORDS[key]}")
        arrays[key] = labels_of(stripped) if key == "y" else np.array(stripped)
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
        announced = pq.read_metadata(path)
        _check_announced(path, 8 * announced.num_rows * announced.num_columns, "write it as an .npz file")
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
                if texts:
                    words = column.to_pylist()
                    _check_lengths(words, f"{path}: the {_WORDS[key]}")
                arrays[key] = np.array(words) if texts else column.to_numpy()
        arrays |= {f"{OTHER}/{name}": _texts(table[name]) for name in columns[OTHER]}
        return arrays | {NAMES: np.array(columns["x"])}
    except (pa.ArrowException, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        if isinstance(error, DataError):
            raise
        reason = plain(str(error)) or type(error).__name__
        raise DataError(f"{path} is damaged or not a Parquet file ({reason})") from error


def _texts(column: Any) -> NDArray[np.object_]:
    return np.array(["" if value is None else str(value) for value in column.to_pylist()], dtype=object)


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _columns(names: list[str], source: str, features: Sequence[str]) -> dict[str, list[str]]:
    """Which columns are features, which is the label, which the client, and which are none of these."""
    for name in names:
        if len(name) > _LONGEST_TEXT or _CONTROL.search(name):
            raise DataError(
                f"{source}: a column's name has at most {_LONGEST_TEXT} characters, and no control character; got "
                f"{brief(name)}"
            )
    if len(set(names)) != len(names):
        raise DataError(f"{source}: column names must differ; got {', '.join(names)}")
    label = [name for name in _LABELS if name in names]
    if len(label) > 1:
        raise DataError(f"{source} has columns {' and '.join(label)}; which is the label? Leave one out")
    if features:
        present, taken = set(names), {*features, *label}
        missing = [name for name in features if name not in present]
        others = [name for name in names if name not in taken]
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


def _check_lengths(texts: Sequence[str], what: str) -> None:
    """Refuse a text so long that an array, which takes as much for each as for the longest, would be huge."""
    row, length = max(enumerate(map(len, texts)), key=itemgetter(1), default=(0, 0))
    if length > _LONGEST_TEXT:
        raise DataError(f"{what} in row {row} has {length} characters; at most {_LONGEST_TEXT} are possible")


def labels_of(texts: Sequence[str]) -> Array:
    """Labels as numbers, where each text is what its number is written as and no two texts are one number; else texts.

    So texts that differ stay classes that differ. A column of numbers with one that is missing stays numbers.

    >>> labels_of(["7", "10"]), labels_of(["007", "7"]), labels_of(["1_0", "10"])
    (array([ 7, 10]), array(['007', '7'], dtype='<U3'), array(['1_0', '10'], dtype='<U3'))
    """
    distinct = set(texts)
    try:
        numbers = {text: _strict_float(text) for text in distinct}
    except ValueError:
        return np.array(texts)
    if all(map(_is_integer, distinct)):
        return np.array([int(text) for text in texts], dtype=np.int64)
    as_written = all(_is_integer(text, 400) or repr(number) == text for text, number in numbers.items())
    if all(map(math.isfinite, numbers.values())) and not (as_written and len(set(numbers.values())) == len(distinct)):
        return np.array(texts)
    return np.array([numbers[text] for text in texts])


def _is_integer(text: str, digits: int = 18) -> bool:
    """Whether a text is how an integer is written, with so many digits at most: 64 bits hold 18 of them."""
    number = text.removeprefix("-")
    return len(number) <= digits and number.isdecimal() and (number[0] != "0" or text == "0")


READERS: dict[str, Callable[[Path, Sequence[str]], dict[str, Array]]]
READERS = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
ENDINGS = tuple(READERS)
