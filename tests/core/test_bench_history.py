"""Benchmarks are held against the last run of the same machine, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import history

HERE, THERE = {"cpu": "A", "cores": 2}, {"cpu": "B", "cores": 2}


def record(name: str, machine: dict[str, Any], ratio: float) -> dict[str, Any]:
    return {"benchmark": name, "machine": machine, "date": "", "rows": [{"what": "x", "ratio": ratio, "bar": 1.5}]}


def test_the_last_run_of_the_same_machine_is_found(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    assert history.read(path) == [] and history.last([], "floor", HERE) is None
    runs = (("floor", HERE, 1.0), ("floor", HERE, 2.0), ("floor", THERE, 3.0), ("thin", HERE, 4.0))
    for name, machine, ratio in runs:
        history.append(path, record(name, machine, ratio))
    with path.open("a") as file:
        file.write('{"benchmark": "floor", "mach')  # a run that was killed while it wrote
    found = history.last(history.read(path), "floor", HERE)
    assert found is not None and found["rows"][0]["ratio"] == 2.0
    assert history.last(history.read(path), "floor", {**HERE, "cores": 4}) is None


def test_rows_are_compared_by_what_they_are_of() -> None:
    before: list[dict[str, Any]] = [
        {"what": "a", "clients": 10, "seconds": 9.0, "ratio": 2.0, "bar": 3.0},
        {"what": "b", "value": 4.0},
    ]
    now: list[dict[str, Any]] = [
        {"what": "a", "clients": 10, "seconds": 1.0, "ratio": 1.0, "bar": 2.5},
        {"what": "a", "clients": 20, "ratio": 1.0},
        {"what": "b", "value": 6.0},
        {"what": "c"},
    ]
    found = history.compared(now, before)
    assert [row.get("now / last") for row in found] == [0.5, None, 1.5, None]
    assert [row.get("last") for row in found] == [2.0, None, 4.0, None]
