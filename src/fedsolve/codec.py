"""Arrays to bytes and back: the safetensors format, in C order, with metadata. The only place that knows it.

The format is eight bytes of header length, a JSON header, and the arrays one after the other. It is written here with
one copy (two of what is not in C order), which leaves other threads running where it is long, and read with none; the
safetensors library takes three and one, which is most of the time of a small client, and its version 0.8 writes
Fortran-ordered arrays wrongly without an error. Tests compare the two.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedsolve import disk
from fedsolve.arrays import Array, Arrays, Layout, is_count, layout, sides
from fedsolve.errors import DataError, brief, plain
from fedsolve.texts import read_json

Bytes: TypeAlias = bytes | memoryview

_NAMES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_DTYPES = {name: np.dtype(code) for name, code in _NAMES.items()}
_TAGS = {dtype: name for name, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000  # the format's own limit
_CACHED_HEADER = 8_192  # larger ones are parsed anew: a stranger's headers fill the cache with a few MB at most
_SEAL = "content-digest"  # the name of its digest among the metadata
_ROOM = 1024  # bytes that `allot` leaves for a header


def encode(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> memoryview:
    """The bytes of named arrays; `decode` gives back the same bits, whatever the memory order was."""
    shapes = layout(arrays)
    places = _places(shapes)
    text = _header(shapes, tuple((metadata or {}).items()))
    data = _allotted(arrays, places) if len(text) <= _ROOM - 8 else None
    if data is None:
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(8, "little") + text
        parts = [np.asarray(arrays[place.name], order="C").data for place in places]
        return memoryview(b"".join([head, *parts]))
    text = text.ljust(_ROOM - 8)
    for array in arrays.values():
        array.flags.writeable = False
    data[:_ROOM] = np.frombuffer(len(text).to_bytes(8, "little") + text, dtype=np.uint8)
    data.flags.writeable = False
    return data.data


def allot(shapes: Layout) -> dict[str, Array]:
    """Empty arrays of that layout that already lie in a message: to be filled, and then encoded without a copy.

    Encoding makes them read-only, so that what was sent stays what was sent; encoded again, they are copied.
    """
    places = _places(tuple(sorted(shapes)))
    data = np.empty(_ROOM + _end(places), dtype=np.uint8)
    return {place.name: _view(data, _ROOM, place) for place in places}


def decode(data: Bytes, source: str = "message") -> dict[str, Array]:
    """The arrays in `data`, read-only and without a copy; `source` names the sender in errors."""
    return read(data, source)[0]


def read(data: Bytes, source: str = "message") -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays, as `decode` gives them, and metadata."""
    length = int.from_bytes(data[:8], "little")
    try:
        if len(data) < 8 or length > min(_LARGEST_HEADER, len(data) - 8):
            raise ValueError("the header is cut off")
        text = bytes(data[8 : 8 + length])
        places, metadata = _parse(text) if length <= _CACHED_HEADER else _parse.__wrapped__(text)
        if 8 + length + _end(places) != len(data):
            raise ValueError(f"{len(data) - 8 - length} bytes of data where {_end(places)} were announced")
        view = memoryview(data).toreadonly()
        return {place.name: _view(view, 8 + length, place) for place in places}, dict(metadata)
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        reason = plain(str(error)) or type(error).__name__
        raise DataError(f"{source} is damaged or not a safetensors file ({reason})") from error


class _Place(NamedTuple):
    """Where an array lies behind the header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    first: int  # byte
    last: int


# A federation sends the same few layouts over and over, so headers are composed and parsed once.


@lru_cache(maxsize=256)
def _places(shapes: Layout) -> tuple[_Place, ...]:
    """One array after the other, wide types first, so that each starts at a multiple of its item size."""
    places: list[_Place] = []
    for name, code, shape in sorted(shapes, key=lambda entry: (-np.dtype(entry[1]).itemsize, entry[0])):
        dtype = np.dtype(code)
        if name == "__metadata__":
            raise DataError("'__metadata__' is the format's own name; call the array something else")
        if dtype not in _TAGS:
            raise DataError(f"{name!r} has type {dtype}, which cannot be sent; use one of {', '.join(_TAGS.values())}")
        first = _end(places)
        places.append(_Place(name, dtype, shape, first, first + math.prod(shape) * dtype.itemsize))
    return tuple(places)


@lru_cache(maxsize=256)
def _header(shapes: Layout, metadata: tuple[tuple[str, str], ...]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, dtype, shape, first, last in _places(shapes):
        header[name] = {"dtype": _TAGS[dtype], "shape": shape, "data_offsets": (first, last)}
    return json.dumps(header, separators=(",", ":")).encode()


@lru_cache(maxsize=256)
def _parse(text: bytes) -> tuple[tuple[_Place, ...], tuple[tuple[str, str], ...]]:
    """The inverse of `_header`, for headers that anybody may have written."""
    header = read_json(text, "its header")
    if not isinstance(header, dict):
        raise ValueError(f"its header must name arrays; got {brief(header)}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"its metadata must be texts by name; got {brief(metadata)}")
    places: list[_Place] = []
    for place in sorted((_place(*item) for item in header.items()), key=lambda place: (place.first, place.last)):
        # Arrays lie one after the other, without gaps or overlaps, each as long as its shape says.
        if place.first != _end(places) or place.last - place.first != math.prod(place.shape) * place.dtype.itemsize:
            raise ValueError(f"{brief(place.name)} does not fill bytes {place.first} to {place.last}")
        places.append(place)
    return tuple(places), tuple(metadata.items())


def _place(name: str, entry: object) -> _Place:
    """One entry of a header, every part of the right type and size before it is calculated with."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{brief(name)} must have dtype, shape and data_offsets; got {brief(entry)}")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise ValueError(f"{brief(name)} has type {brief(kind)}; known: {', '.join(_DTYPES)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise ValueError(f"the data_offsets of {brief(name)} must be two whole numbers; got {brief(offsets)}")
    return _Place(name, _DTYPES[kind], sides(shape, brief(name)), offsets[0], offsets[1])


def _end(places: Sequence[_Place]) -> int:
    return places[-1].last if places else 0


def _view(data: Array | memoryview, start: int, place: _Place) -> Array:
    return np.ndarray(place.shape, place.dtype, data, start + place.first)


def _allotted(arrays: Arrays, places: Sequence[_Place]) -> Array | None:
    """The message that arrays lie in, if they were made by `allot` and not sent before."""
    data = arrays[places[0].name].base if places else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (_ROOM + _end(places),):
        return None
    start = data.ctypes.data + _ROOM
    for place in places:
        array = arrays[place.name]
        if array.base is not data or array.ctypes.data != start + place.first or not array.flags.c_contiguous:
            return None
    return data if data.flags.writeable else None


def sealed(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> memoryview:
    """As `encode`, for a file: with a digest of arrays and metadata beside them, which `read_file` looks at."""
    texts = dict(metadata or {})
    return encode(arrays, {**texts, _SEAL: _digest(arrays, texts)})


def _digest(arrays: Arrays, texts: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(repr((layout(arrays), sorted(texts.items()))).encode(), digest_size=16)
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def write_file(path: Path, arrays: Arrays, metadata: Mapping[str, str] | None = None) -> None:
    """Write a sealed file that is there whole or not at all, for its owner alone."""
    disk.write_bytes(path, sealed(arrays, metadata))


def read_file(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays and metadata of a file; refused where it has a seal and is not what was sealed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    arrays, texts = read(data, str(path))
    seal = texts.pop(_SEAL, None)  # files of 0.1.0 have none
    if seal is not None and seal != _digest(arrays, texts):
        raise DataError(f"{path} is damaged: its content is not what was written; put a copy in its place")
    return arrays, texts
