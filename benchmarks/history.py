"""Runs of benchmarks that are kept on this machine, and what changed since the last one.

A run is a line of results/bench.jsonl, beside the other results and out of version control: figures mean something
next to others of the same CPU, and a checkout is where they are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
Row = Mapping[str, Any]
FIGURES = ("ratio", "value", "cpu seconds", "seconds")  # which of a row's numbers is its figure, the first that it has


def read(path: Path) -> list[Record]:
    """All runs in a file, the oldest first; a line that was cut off in the middle is left out."""
    records: list[Record] = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"benchmark", "machine", "rows"} <= record.keys():
            records.append(record)
    return records


def append(path: Path, record: Record) -> None:
    """One more run, as one write."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def last(records: Iterable[Record], benchmark: str, machine: Mapping[str, Any]) -> Record | None:
    """The latest run of a benchmark on such a machine: the same CPU, and as many cores."""
    alike = [each for each in records if each["benchmark"] == benchmark and each["machine"] == dict(machine)]
    return alike[-1] if alike else None


def compared(rows: Sequence[Row], before: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows with their figure of the run before, and how many times as large it is now; bare where there is none."""
    old = {_label(row): _figure(row) for row in before}
    found = []
    for row in rows:
        now, then = _figure(row), old.get(_label(row))
        is_known = now is not None and then is not None and then > 0
        found.append({**row, "last": then, "now / last": now / then} if is_known and now and then else dict(row))
    return found


def _label(row: Row) -> tuple[tuple[str, str], ...]:
    """What a row is of: its texts and whole numbers, but for bars."""
    kinds = (str, int)
    return tuple((name, str(value)) for name, value in row.items() if isinstance(value, kinds) and name != "bar")


def _figure(row: Row) -> float | None:
    names = [name for name in FIGURES if isinstance(row.get(name), float)]
    names += [name for name, value in row.items() if isinstance(value, float) and name != "bar"]
    return float(row[names[0]]) if names else None
