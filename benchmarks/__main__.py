"""Run benchmarks by name (default: those of speed), print tables against the last run of this machine, and keep them.

Each run is a line of benchmarks/results/bench.jsonl, with the CPU's name; the latest also a file of its own, NAME.json.
"""

from __future__ import annotations

import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsolve.result import versions
from fedsolve.threads import cores

from . import (
    blend,
    blocks,
    costs,
    crowd,
    deep,
    defaults,
    extraction,
    floor,
    flower,
    fresh,
    history,
    layers,
    ledger,
    local_sgd,
    natural,
    noise,
    personal,
    personal_speed,
    recursion,
    scale,
    secure,
    start,
    streams,
    tables,
    tables_accuracy,
    thin,
)

SPEED = {
    "start": start.measure,
    "floor": floor.measure,
    "thin": thin.measure,
    "recursion": recursion.measure,
    "scale": scale.measure,
    "extraction": extraction.measure,
    "torch": local_sgd.measure,
    "blend": blend.measure,
    "layers": layers.measure,
    "blocks": blocks.measure,
    "ledger": ledger.measure,
    "tables": tables.measure,
    "secure": secure.measure,
}
PERSONAL = {"personal-speed": personal_speed.measure}  # CPU seconds over the floor; by name only: some minutes
GRADIENT = {"costs": costs.measure, "crowd": crowd.measure}  # every gradient method; by name only: some minutes
LARGE = {"streams": streams.measure}  # a file of 1.7 GB; by name only
DEPLOYMENT = {"flower": flower.measure}  # real processes; by name only
# On real data; by name only: they take long.
ACCURACY = {
    "fresh": fresh.measure,
    "natural": natural.measure,
    "numbers": tables_accuracy.measure,
    "personal": personal.measure,
    "deep": deep.measure,
    "defaults": defaults.measure,
    "noise": noise.measure,
}
BENCHMARKS = SPEED | PERSONAL | GRADIENT | LARGE | DEPLOYMENT | ACCURACY


def main(names: list[str]) -> None:
    strange = [name for name in names if name not in BENCHMARKS]
    if strange:
        sys.exit(f"unknown benchmark {strange[0]!r}; known: {', '.join(BENCHMARKS)}")
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    machine, kept = {"cpu": cpu(), "cores": cores()}, folder / "bench.jsonl"
    print(f"{machine['cpu']}, {machine['cores']} cores")
    for name in names or list(SPEED):
        print(f"\n== {name}: {(BENCHMARKS[name].__doc__ or '').strip().splitlines()[0]}", flush=True)
        rows = BENCHMARKS[name]()
        before = history.last(history.read(kept), name, machine)
        show(history.compared(rows, before["rows"]) if before else rows)
        if before:
            print(f"last: {before['date']}, fedsolve {before.get('versions', {}).get('fedsolve', '?')}")
        record = {
            "benchmark": name,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "versions": versions(),
            "rows": rows,
        }
        path = folder / f"{name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        history.append(kept, record)
        print(f"saved {path} and {kept.name}")


def show(rows: list[dict[str, Any]]) -> None:
    heads = list(dict.fromkeys(head for row in rows for head in row))
    cells = [[text(row.get(head, "")) for head in heads] for row in rows]
    widths = [max(len(head), *(len(line[i]) for line in cells)) for i, head in enumerate(heads)]
    for line in [heads, ["-" * width for width in widths], *cells]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")


def text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main(sys.argv[1:])
