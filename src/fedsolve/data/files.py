"""Files of samples, read into columns: .npz, .csv and .parquet."""

from __future__ import annotations

import ast
import math
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from fedsolve.arrays import Array, sides
from fedsolve.data.arrow import read_parquet
from fedsolve.data.reading import NUMBERS, Reading
from fedsolve.data.sheets import Check, Content, content, read_csv
from fedsolve.errors import DataError, brief, plain

NAMES = "feature_names"
OTHER = "other"  # columns that are neither features nor the label stand below it, as texts
_NPZ_KEYS = ("x", "y", "x_test", "y_test", "client")
_MAGIC = b"\x93NUMPY"
_NPY_HEADERS = {b"\x01\x00": "<H", b"\x02\x00": "<I"}  # how the length of the header is written, by version
_LONGEST_NPY_HEADER = 10_000  # NumPy's own limit
_UNPACKED = 2**25  # bytes that any packed file may hold, however small it is
_PACKED = 500  # and how many times its own size beyond that; only a file of almost nothing but zeros packs better
_CHUNK = 2**20  # bytes that are unpacked at a time


def read_columns(path: Path, features: Sequence[str] = ()) -> dict[str, Array]:
    """`x` and, where they are there, `y`, `client`, `x_test`, `y_test` of a file, and the names of its columns.

    Every cell of `x` is a number. Tables with texts and empty cells are read by `read_content`.
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
            _check_announced(path, "write it without compression, by numpy.savez", announced)
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


def _check_announced(path: Path, way_out: str, announced: int) -> None:
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


# --- tables of text, and Parquet ---


def read_content(path: Path, reading: Reading, check: Check | None = None, *, wanted: bool = True) -> Content:
    """The columns of a .csv or .parquet file as they are read by, or one error with all that is wrong with it.

    `wanted` says whether there must be a label; `check` looks at the labels.
    """
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"{path} is no table whose columns have names: wanted a file that ends in .csv or .parquet")
    try:
        if path.suffix.lower() == ".csv":
            sheet = read_csv(path, reading, labels_of, wanted=wanted)
        else:
            sheet = read_parquet(
                path, reading, partial(_check_announced, path, "write it as an .npz file"), wanted=wanted
            )
        return content(sheet, reading, check)
    except OSError as error:
        raise DataError(f"cannot read {path}: {' '.join((error.strerror or str(error)).split())}") from error


def _numbers(path: Path, features: Sequence[str]) -> dict[str, Array]:
    """A table in which every cell of a feature is a number."""
    reading = Reading(columns=NUMBERS, kinds=dict.fromkeys(features, NUMBERS))
    found = read_content(path, reading, wanted=False)
    arrays = {"x": np.asarray(found.inputs), "y": found.labels, "client": found.client}
    others = {f"{OTHER}/{name}": np.array(cells, dtype=object) for name, cells in found.others.items()}
    return {key: array for key, array in arrays.items() if array is not None} | others | {NAMES: np.array(found.names)}


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


def _strict_float(text: str) -> float:
    """The number in a text of ASCII characters without underscores; blanks around it may be of any kind."""
    stripped = text.strip()
    if "_" in stripped or not stripped.isascii():
        raise ValueError(text)
    return float(stripped)


def _is_integer(text: str, digits: int = 18) -> bool:
    """Whether a text is how an integer is written, with so many digits at most: 64 bits hold 18 of them."""
    number = text.removeprefix("-")
    return len(number) <= digits and number.isdecimal() and (number[0] != "0" or text == "0")


READERS: dict[str, Callable[[Path, Sequence[str]], dict[str, Array]]]
READERS = {".npz": _npz, ".csv": _numbers, ".parquet": _numbers}
ENDINGS = tuple(READERS)
