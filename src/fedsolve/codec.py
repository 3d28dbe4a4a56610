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
from collections.abc import Mapping, Sequence
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
_ROOM = 1024  # bytes that `allot` leaves for a header


def encode(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> memoryview:
    """The bytes of named arrays; `decode` gives back the same bits, whatever the memory order was."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    order, end = _order(arrays), 0
    for name in order:
        array = arrays[name]
        if array.dtype not in _TAGS:
            raise DataError(
                f"{name!r} has type {array.dtype}, which cannot be sent; use one of {', '.join(_TAGS.values())}"
            )
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _TAGS[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    allotted = _allotted([arrays[name] for name in order], end) if len(text) <= _ROOM - 8 else None
    if allotted is None:
        text += b" " * (-len(text) % 8)
        data = np.empty(8 + len(text) + end, dtype=np.uint8)
        for place, name in zip(_places(data, 8 + len(text), [arrays[n] for n in order]), order, strict=True):
            place[...] = arrays[name]
    else:
        data, text = allotted, text.ljust(_ROOM - 8)
    data[: 8 + len(text)] = np.frombuffer(len(text).to_bytes(8, "little") + text, dtype=np.uint8)
    for sent in (data, *arrays.values()) if allotted is not None else ():
        sent.flags.writeable = False
    return data.data.toreadonly()


def allot(**like: Array) -> dict[str, Array]:
    """Empty arrays, shaped like those given, that already lie in a message: to be filled, then encoded without a copy.

    Encoding makes them read-only, so that what was sent stays what was sent; encoded again, they are copied.
    """
    order = _order(like)
    data = np.empty(_ROOM + sum(array.nbytes for array in like.values()), dtype=np.uint8)
    return dict(zip(order, _places(data, _ROOM, [like[name] for name in order]), strict=True))


def _order(arrays: Arrays) -> list[str]:
    """Wide types first, then by name: every array starts at a multiple of its item size."""
    return sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))


def _places(data: Array, start: int, like: Sequence[Array]) -> list[Array]:
    """One view into `data` after the other, of the types and shapes of the given arrays."""
    places = []
    for array in like:
        places.append(data[start : start + array.nbytes].view(array.dtype).reshape(array.shape))
        start += array.nbytes
    return places


def _allotted(ordered: Sequence[Array], size: int) -> Array | None:
    """The message that arrays lie in, if they were made by `allot` and not sent before."""
    data = ordered[0].base if ordered else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (_ROOM + size,):
        return None
    at = data.__array_interface__["data"][0] + _ROOM
    for array in ordered:
        if array.base is not data or array.__array_interface__["data"][0] != at or not array.flags.c_contiguous:
            return None
        at += array.nbytes
    return data if data.flags.writeable else None


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
