"""What a short run takes beside its numbers: loading libraries, and Flower's apps in place of none."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from typing import Any

TURNS = 5
BARE = "import numpy, scipy.linalg, typer, rich.console"
RUN = ["-m", "fedsolve", "run", "--clients", "5"]


def measure() -> list[dict[str, Any]]:
    """`fedsolve run` on digits, over a process that only imports NumPy, SciPy, typer and rich; medians of turns."""
    commands = {"floor: a process that loads the libraries": ["-c", BARE]}
    commands["fedsolve run, digits, 20 clients"] = RUN[:3]
    commands["fedsolve run, digits, 5 clients"] = RUN
    if find_spec("flwr") is not None:
        commands["the same with --runtime flower"] = [*RUN, "--runtime", "flower"]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory(prefix="fedsolve-") as folder:
        for turn in range(TURNS + 1):
            for name, arguments in commands.items():
                spent = _spent(arguments, folder)
                if turn:  # the first warms up
                    taken[name].append(spent)
    found = {name: [statistics.median(each) for each in zip(*turns, strict=True)] for name, turns in taken.items()}
    floor, local = next(iter(found.values())), found["fedsolve run, digits, 5 clients"]
    rows = [
        {"what": name, "cpu seconds": cpu, "wall seconds": wall, "ratio": cpu / floor[0], "bar": ""}
        for name, (cpu, wall) in found.items()
    ]
    rows[1]["bar"] = "1.0 cpu seconds"
    if (flower := found.get("the same with --runtime flower")) is not None:
        rows.append({"what": "flower over in process, CPU", "ratio": flower[0] / local[0], "bar": 3.0})
        rows.append({"what": "flower over in process, wall", "ratio": flower[1] / local[1], "bar": 3.0})
    return rows


def _spent(arguments: list[str], folder: str) -> tuple[float, float]:
    """CPU and wall seconds of a process and all it starts."""
    before, started = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), time.perf_counter() - started
