"""What adaptive blocks bring when clients are not equally fast: FedACnnL on emulated devices."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.data import catalog
from fedsolve.records import Times

CLIENTS, SAMPLES = 12, 1024
FAST_LINE = "slow:4,16;mbit=100000"  # that nobody waits for, as InfiniBand in the paper's testbed
RULES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "adaptive, damped": {"adaptive": True},
    "adaptive, (7) as printed": {"adaptive": True, "pace": "printed"},
}


def measure() -> list[dict[str, Any]]:
    """Clients on devices, a third each 1, 4 and 16 times slower: emulated seconds of each layer, and idle ones.

    Twelve clients with layers of one width, where what changes from round to round is the block alone; and MNIST as in
    the paper, where it is at hand: 100 clients, on a fast network and on lines of 100 megabits. Seconds are CPU seconds
    of this machine times how slow a device is, so others on the machine do not count.
    """
    rows = _rows("layers of 64", _synthetic(), "mlp:64,64,64,64,64,64", 8, FAST_LINE)
    if not catalog.absent("mnist"):
        mnist = fs.load("mnist").split(fs.dirichlet(0.1), clients=100, seed=0, test="official")
        for devices in (FAST_LINE, "slow:4,16"):
            rows += _rows("MNIST", mnist, "mlp:128,64", 16, devices)
    return rows


def _synthetic() -> fs.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((CLIENTS * SAMPLES, 64)), rng.integers(10, size=CLIENTS * SAMPLES)
    parts = zip(np.split(x, CLIENTS), np.split(y, CLIENTS), strict=True)
    return fs.Federation.from_arrays({f"c{i:02d}": {"train": part} for i, part in enumerate(parts)}, classes=10)


def _rows(data: str, federation: fs.Federation, network: str, block: int, devices: str) -> list[dict[str, Any]]:
    """One row per rule."""
    last = fs.FedACnnL(network=network).rounds  # figures are not what is looked at
    fs.run(fs.FedACnnL(network=network), federation, evaluate_every=last)  # what is loaded once is nobody's work
    rows: list[dict[str, Any]] = []
    fixed: fs.Result | None = None
    for name, rule in RULES.items():
        method = fs.FedACnnL(network=network, block=block, **rule)
        result = fs.run(method, federation, devices=devices, evaluate_every=last)
        fixed = fixed or result
        rows.append(
            {
                "data": data,
                "devices": devices,
                "blocks": name,
                **{f"layer {line.round} s": line.seconds for line in result.history},
                "whole s": sum(line.seconds for line in result.history),
                "idle s a client": _times(result).waiting / len(result.clients),
                "idle share": _times(result).idle,
                "idle saved": 1 - _times(result).waiting / _times(fixed).waiting,
                "weights apart": _apart(fixed.state, result.state),
            }
        )
    return rows


def _times(result: fs.Result) -> Times:
    """The seconds of all clients together."""
    return sum((client.seconds or Times() for client in result.clients.values()), start=Times())


def _apart(one: Any, other: Any) -> float:
    """The largest relative difference of a layer's weights."""
    weights = [name for name in one if name.endswith("weight")]
    return max(float(np.linalg.norm(one[n] - other[n]) / np.linalg.norm(one[n])) for n in weights)
