"""A site's own record of what it sent and what it refused: one line of JSON each, readable by its owner alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedsolve.arrays import Arrays
from fedsolve.errors import DataError

_LONGEST = 500  # characters of a text; whoever asks decides how long a name is


@dataclass(frozen=True)
class Log:
    """The audit file of a site.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     log = Log(Path(place) / "audit.jsonl")
    ...     log.write({"what": "update", "bytes": 1064})
    ...     json.loads(log.path.read_text())["bytes"]
    1064
    """

    path: Path

    def write(self, entry: Mapping[str, object]) -> None:
        """Append one line, before the answer leaves: without a line there is no answer."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        append(self.path, json.dumps({name: _bounded(value) for name, value in line.items()}))


def append(path: Path, line: str) -> None:
    """Append a line to a file that only its owner can read, and wait until it is on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"cannot write to {path}: {error.strerror or error}") from error


def layout(arrays: Arrays) -> dict[str, str]:
    """Names, types and shapes of arrays, and no values.

    >>> import numpy as np
    >>> layout({"cross": np.zeros((64, 10))})
    {'cross': '<f8[64, 10]'}
    """
    return {name: f"{array.dtype.str}{list(array.shape)}" for name, array in arrays.items()}


def _bounded(value: object) -> object:
    return value[:_LONGEST] if isinstance(value, str) else value
