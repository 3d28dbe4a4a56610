"""Peak memory of gradient methods whose replies are summed, with a thousand clients, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedsolve import methods

from . import costs

CLIENTS, SAMPLES, ROUNDS = 1000, 20, 2
NETWORKS = ("lr", "mlp:64")
BAR = 0.5  # GB
LIMIT = 600  # seconds; FedPAC's server solves a problem of all clients for each of them, which takes far longer

SCRIPT = """
import json, resource, sys, time
import numpy as np
import fedsolve as fs
name, settings, clients, samples = sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:])
rng = np.random.default_rng(0)
x, y = rng.standard_normal((clients * samples, 64), dtype=np.float32), rng.integers(10, size=clients * samples)
parts = zip(np.split(x, clients), np.split(y, clients), strict=True)
test = samples // 5  # to be evaluated on
federation = fs.Federation.from_arrays(
    {f"c{i:05d}": {"train": (a[test:], b[test:]), "test": (a[:test], b[:test])} for i, (a, b) in enumerate(parts)},
    classes=10,
)
def peak():
    status = open("/proc/self/status").read().split()  # ru_maxrss would count the parent's memory, too
    return int(status[status.index("VmHWM:") + 1]) * 1024
import fedsolve.families.gradient.training  # and torch
before, started, refused = peak(), time.perf_counter(), ""
try:
    fs.run(fs.create(name, settings), federation)
except fs.ParameterError as error:
    refused = str(error)
taken = time.perf_counter() - started
worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({"seconds": taken, "peak": peak(), "before": before, "worker": worker, "note": refused}))
"""


def measure(clients: int = CLIENTS, samples: int = SAMPLES) -> list[dict[str, Any]]:
    """1000 clients of 20 rows, 2 rounds with evaluation: peak memory, Python, torch and the data included."""
    return [_row(name, network, clients, samples) for network in NETWORKS for name in names()]


def names() -> list[str]:
    """Gradient methods whose server needs one copy of a network whatever the number of clients."""
    every = [name for name in costs.names() if name != "local"]
    return [name for name in every if methods.create(name).plan({}, ["a"]).fold == "sum"]


def _row(name: str, network: str, clients: int, samples: int) -> dict[str, Any]:
    settings = {"model": network, "rounds": ROUNDS, **costs.FEWER.get(name, {})}
    command = [sys.executable, "-c", SCRIPT, name, json.dumps(settings), str(clients), str(samples)]
    found = _found(command)
    return {
        "network": network,
        "method": name,
        "peak GB": found["peak"] / 1e9,
        "before the run GB": found["before"] / 1e9 if "before" in found else "",
        "largest worker GB": found["worker"] / 1e9
        if "worker" in found
        else "",  # with what it shares with the process itself
        "bar GB": BAR,
        "seconds": found["seconds"],
        "note": found["note"][:60],
    }


def _found(command: list[str]) -> dict[str, Any]:
    """What the script says; after LIMIT seconds, its peak memory so far."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ, start_new_session=True) as run:
        try:
            said, _ = run.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            status = Path(f"/proc/{run.pid}/status").read_text().split()
            peak = int(status[status.index("VmHWM:") + 1]) * 1024
            os.killpg(run.pid, signal.SIGKILL)  # its workers, too
            return {"seconds": float(LIMIT), "peak": peak, "note": "stopped; so far"}
    if run.returncode:
        raise RuntimeError(f"{command[3]} ended with {run.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
