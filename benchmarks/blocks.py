"""What adaptive blocks bring when clients are not equally fast: FedACnnL on emulated devices."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.records import Times

CLIENTS, SAMPLES, BLOCK, LIMIT = 12, 1024, 8, 512
NETWORK = "mlp:64,64,64,64,64,64"  # layers of one width: what changes from round to round is the block alone
DEVICES = "slow:4,16;mbit=10000"  # a line that is not what clients wait for
RULES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "adaptive, damped": {"adaptive": True},
    "adaptive, (7) as printed": {"adaptive": True, "pace": "printed"},
}


def measure() -> list[dict[str, Any]]:
    """Twelve clients on devices, a third each 1, 4 and 16 times slower: emulated seconds of each layer, and idle ones.

    Seconds are CPU seconds of this machine times how slow a device is, so others on the machine do not count.
    """
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((CLIENTS * SAMPLES, 64)), rng.integers(10, size=CLIENTS * SAMPLES)
    parts = zip(np.split(x, CLIENTS), np.split(y, CLIENTS), strict=True)
    federation = fs.Federation.from_arrays({f"c{i:02d}": {"train": part} for i, part in enumerate(parts)}, classes=10)
    fs.run(fs.FedACnnL(network=NETWORK), federation)  # what is loaded and allocated once is nobody's work
    rows: list[dict[str, Any]] = []
    states = []
    for name, rule in RULES.items():
        method = fs.FedACnnL(network=NETWORK, block=BLOCK, limit=LIMIT, **rule)
        result = fs.run(method, federation, devices=DEVICES)
        states.append(result.state)
        every = sum((client.seconds or Times() for client in result.clients.values()), start=Times())
        rows.append(
            {
                "blocks": name,
                **{f"layer {line.round} s": line.seconds for line in result.history},
                "whole s": sum(line.seconds for line in result.history),
                "idle s a client": every.waiting / CLIENTS,
                "idle share": every.idle,
                "idle saved": 1
                - every.waiting / CLIENTS / (rows[0]["idle s a client"] if rows else every.waiting / CLIENTS),
                "weights apart": _apart(states[0], result.state),
            }
        )
    return rows


def _apart(one: Any, other: Any) -> float:
    """The largest relative difference of a layer's weights."""
    weights = [name for name in one if name.endswith("weight")]
    return max(float(np.linalg.norm(one[n] - other[n]) / np.linalg.norm(one[n])) for n in weights)
