"""Arrays to bytes and back: the safetensors format, in C order, with metadata. The only place that knows it.

The format is eight bytes of header length, a JSON header, and the arrays one after the other. It is written here with
one copy, which leaves other threads running, and read with none; the safetensors library takes three and one, which is
most of the time of a small client, and its version 0.8 writes Fortran-ordered arrays wrongly without a word. Tests hold
both to the same arrays.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedsolve.arrays import Array, Arrays
from fedsolve.errors import DataError

Bytes: TypeAlias = bytes | memoryview

_NAMES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_DTYPES = {name: np.dtype(code) for name, code in _NAMES.items()}
_TAGS = {dtype: name for name, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000  # the format's own limit


def encode(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> memoryview:
    """The bytes of named arrays; `decode` gives back the same bits, whatever the memory order was."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    # Wide types first, then by name: every array starts at a multiple of its item size.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    for name in order:
        array = arrays[name]
        if array.dtype not in _TAGS:
            raise DataError(
                f"{name!r} has type {array.dtype}, which cannot be sent; use one of {', '.join(_TAGS.values())}"
            )
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _TAGS[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    data = np.empty(len(head) + end, dtype=np.uint8)
    data[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    start = len(head)
    for name in order:
        array = arrays[name]
        place = data[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        place[...] = array
        start += array.nbytes
    return data.data.toreadonly()


def decode(data: Bytes, source: str = "message") -> dict[str, Array]:
    """The arrays in `data`, read-only and without a copy; `source` names the sender in errors."""
    return read(data, source)[0]


def read(data: Bytes, source: str = "message") -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays, as `decode` gives them, and metadata."""
    length = int.from_bytes(data[:8], "little")
    arrays, expected, start = {}, 0, 8 + length
    try:
        if len(data) < 8 or length > min(_LARGEST_HEADER, len(data) - 8):
            raise ValueError("the header is cut off")
        header = json.loads(bytes(data[8:start]))
        metadata = dict(header.pop("__metadata__", {}))
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
            dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
            first, last = entry["data_offsets"]
            count = math.prod(shape)
            # Arrays lie one after the other, without gaps or overlaps, each as long as its shape says.
            if first != expected or last - first != count * dtype.itemsize or any(side < 0 for side in shape):
                raise ValueError(f"{name!r} does not fill bytes {first} to {last}")
            arrays[name] = np.frombuffer(data, dtype, count, start + first).reshape(shape)
            expected = last
        if start + expected != len(data):
            raise ValueError(f"{len(data) - start} bytes of data where {expected} were announced")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DataError(f"{source} is damaged or not a safetensors file ({error})") from error
    return arrays, metadata


def write_file(path: Path, arrays: Arrays, metadata: Mapping[str, str] | None = None) -> None:
    """Write a file that is there whole or not at all."""
    write_bytes(path, encode(arrays, metadata))


def write_bytes(path: Path, data: Bytes) -> None:
    """Write to a temporary neighbour, then rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~umask())  # mkstemp makes files only their owner can read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_file(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays and metadata of a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return read(data, str(path))


def umask() -> int:
    """The permissions that new files are made without."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
