"""A site's own record of what it sent and what it refused: one line of JSON each, readable by its owner alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedsolve import disk
from fedsolve.arrays import Arrays

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
        disk.append_line(self.path, json.dumps({name: _bounded(value) for name, value in line.items()}))


def layout(arrays: Arrays) -> dict[str, str]:
    """Names, types and shapes of arrays, and no values.

    >>> import numpy as np
    >>> layout({"cross": np.zeros((64, 10))})
    {'cross': '<f8[64, 10]'}
    """
    return {name: f"{array.dtype.str}{list(array.shape)}" for name, array in arrays.items()}


def _bounded(value: object) -> object:
    return value[:_LONGEST] if isinstance(value, str) else value
