"""Time and peak memory as the number of clients grows, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

FEATURES, CLASSES, SAMPLES = 512, 10, 10

SCRIPT = """
import json, sys, time
import numpy as np
import fedsolve as fs
clients, features, classes, samples = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
x = rng.standard_normal((clients * samples, features))
y = rng.integers(classes, size=len(x))
parts = zip(np.split(x, clients), np.split(y, clients), strict=True)
federation = fs.Federation.from_arrays({f"c{i:05d}": {"train": part} for i, part in enumerate(parts)}, classes=classes)
started = time.perf_counter()
fs.run(fs.AFL(ridge=1.0, intercept=False), federation)
taken = time.perf_counter() - started
status = open("/proc/self/status").read().split()  # ru_maxrss would count the parent's memory, too
peak = int(status[status.index("VmHWM:") + 1]) * 1024
print(json.dumps({"seconds": taken, "peak": peak, "data": x.nbytes}))
"""


def measure() -> list[dict[str, Any]]:
    """AFL, m = 512, ten samples a client: seconds, milliseconds a client, peak memory (data and Python included)."""
    rows = []
    for clients in (10, 100, 1000, 10_000):
        command = [sys.executable, "-c", SCRIPT, *map(str, (clients, FEATURES, CLASSES, SAMPLES))]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append(
            {
                "clients": clients,
                "seconds": found["seconds"],
                "ms a client": 1e3 * found["seconds"] / clients,
                "peak GB": found["peak"] / 1e9,
                "of it data GB": found["data"] / 1e9,
                "bar GB": 1.5 if clients == 10_000 else "",
            }
        )
    return rows
