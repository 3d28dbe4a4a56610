"""Arrays to bytes and back: safetensors, in C order, with metadata. The only place that knows the format."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
from safetensors import numpy as _format

from fedsolve.arrays import Array, Arrays
from fedsolve.errors import DataError


def encode(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of named arrays; `decode` gives back the same bits, whatever the memory order was."""
    # safetensors 0.8 writes Fortran-ordered and strided arrays wrongly and without an error, hence the copy.
    # ascontiguousarray would turn 0-d into 1-d.
    flat = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return _format.save(flat, dict(metadata) if metadata else None)


def decode(data: bytes, source: str = "message") -> dict[str, Array]:
    """The arrays in `data`, read-only, so that they can be shared; `source` names the sender in errors."""
    try:
        arrays = _format.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{source} is damaged or not a safetensors file ({error})") from error
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def metadata_of(data: bytes, source: str = "message") -> dict[str, str]:
    """The metadata in `data`: a JSON header after eight bytes that give its length."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        return dict(header.get("__metadata__") or {})
    except (ValueError, AttributeError) as error:
        raise DataError(f"{source} is damaged or not a safetensors file ({error})") from error


def write(path: Path, arrays: Arrays, metadata: Mapping[str, str] | None = None) -> None:
    """Write a file that is there whole or not at all."""
    write_bytes(path, encode(arrays, metadata))


def write_bytes(path: Path, data: bytes) -> None:
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


def read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays and metadata of a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return decode(data, str(path)), metadata_of(data, str(path))


def umask() -> int:
    """The permissions that new files are made without."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
