"""A site's own record of what it sent and what it refused: one line of JSON each, readable by its owner alone.

Every byte that an answer carries is counted in one of its lines, so that the lines of a run sum up to what left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedsolve import disk
from fedsolve.arrays import Arrays
from fedsolve.errors import DataError, plain
from fedsolve.texts import read_json

FILE = "audit.jsonl"  # in the folder of a site's state
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


@dataclass(frozen=True, slots=True)
class Line:
    """What left a site, or was refused, and all that its record says of it."""

    time: str
    run: str
    what: str  # the kind of message: a hello, an update, a step of a secure sum, an evaluation
    method: str
    bytes: int
    rows: int | None  # how many it was made from; none, where nothing of the data is in it
    privacy: str  # "plain", or "secure, quorum 3", with the noise, if any
    sent: str  # names of the arrays, or words
    refused: str  # why nothing was answered; empty where something was
    round: int | None = None

    @classmethod
    def from_text(cls, text: str, where: str) -> Line:
        """A line as `Log` wrote it, also an older one, which says less."""
        words = read_json(text, where)
        if not isinstance(words, dict) or not isinstance(words.get("time"), str):
            raise DataError(f"{where} is not a line of a site's record")
        sent = words.get("sent", "")
        rows = next((found for name in ("samples", "rows") if (found := _whole(words.get(name))) is not None), None)

        def shown(name: str) -> str:
            return plain(str(words.get(name, "")))

        return cls(
            time=shown("time"),
            run=shown("run"),
            what=shown("what"),
            method=shown("method"),
            bytes=_whole(words.get("bytes")) or 0,
            rows=rows,
            privacy=shown("privacy"),
            sent=plain(", ".join(map(str, sent)) if isinstance(sent, dict) else str(sent)),
            refused=shown("refused"),
            round=_whole(words.get("round")),
        )


def read(path: Path) -> tuple[list[Line], list[int]]:
    """The lines of a record, and the numbers of those that cannot be read, as when the machine stopped in one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     log = Log(Path(place) / "audit.jsonl")
    ...     log.write({"run": "7", "what": "update", "method": "afl", "bytes": 1064, "samples": 48})
    ...     (line,), damaged = read(log.path)
    >>> line.what, line.bytes, line.rows, damaged
    ('update', 1064, 48, [])
    """
    lines, damaged = [], []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, 1):
                try:
                    lines.append(Line.from_text(text, f"line {number} of {path}"))
                except DataError:
                    damaged.append(number)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return lines, damaged


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def layout(arrays: Arrays) -> dict[str, str]:
    """Names, types and shapes of arrays, and no values.

    >>> import numpy as np
    >>> layout({"cross": np.zeros((64, 10))})
    {'cross': '<f8[64, 10]'}
    """
    return {name: f"{array.dtype.str}{list(array.shape)}" for name, array in arrays.items()}


def _bounded(value: object) -> object:
    return value[:_LONGEST] if isinstance(value, str) else value
