"""What adaptive blocks bring when clients are not equally fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.families.layered import forward as passes
from fedsolve.families.layered.stages import Stage
from fedsolve.runtime.drive import drive
from fedsolve.runtime.inbox import Replies
from fedsolve.runtime.inprocess import InProcess

CLIENTS, SAMPLES, BLOCK, LIMIT = 12, 1024, 64, 512
DELAYS = [0.001] * 8 + [0.004, 0.008, 0.012, 0.016]  # seconds a block, whatever its size: dispatch, disk, a busy core
NETWORK = "mlp:64,64,64,64"


class _Unequal(InProcess):
    """Clients with a delay for every block, one after the other, so that they do not get into each other's way."""

    here = threading.local()

    def __init__(self, method: fs.Method, federation: fs.Federation) -> None:
        super().__init__(method, federation, workers=1)
        self.taken: list[dict[str, float]] = []

    def ask(self, requests: Any, inbox: Any, tick: Any) -> None:
        self.times: dict[str, float] = {}
        super().ask(requests, inbox, tick)
        if isinstance(inbox, Replies):
            self.taken.append(self.times)

    def _handle(self, name: str, request: Any) -> Any:
        self.here.delay = DELAYS[int(name[1:])] if request.kind == "update" else 0.0
        started = time.perf_counter()
        answer = super()._handle(name, request)
        self.times[name] = time.perf_counter() - started
        return answer


def measure() -> list[dict[str, Any]]:
    """Twelve clients, four of them 4 to 16 times slower a block: seconds of the slowest, by layer."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((CLIENTS * SAMPLES, 64)), rng.integers(10, size=CLIENTS * SAMPLES)
    parts = zip(np.split(x, CLIENTS), np.split(y, CLIENTS), strict=True)
    federation = fs.Federation.from_arrays({f"c{i:02d}": {"train": part} for i, part in enumerate(parts)}, classes=10)
    design = passes.design

    def slow(stage: Stage, inputs: Any, block: int, *, constant: bool = True) -> Iterator[Any]:
        for rows in design(stage, inputs, block, constant=constant):
            time.sleep(_Unequal.here.delay)
            yield rows

    rows: list[dict[str, Any]] = []
    states = []
    passes.design = slow
    try:
        for adaptive in (False, True):
            method = fs.FedACnnL(network=NETWORK, block=BLOCK, limit=LIMIT, adaptive=adaptive)
            transport = _Unequal(method, federation)
            states.append(drive(method, federation.task, transport).state)
            slowest = [max(times.values()) for times in transport.taken]
            idle = [max(t.values()) - float(np.mean(list(t.values()))) for t in transport.taken]
            rows.append(
                {
                    "blocks": "adaptive" if adaptive else "fixed",
                    **{f"layer {n} s": taken for n, taken in enumerate(slowest, 1)},
                    "whole s": sum(slowest),
                    "idle s": sum(idle),
                }
            )
    finally:
        passes.design = design
    saved = 1 - rows[1]["idle s"] / rows[0]["idle s"]
    apart = max(
        float(np.linalg.norm(a - states[1][n]) / np.linalg.norm(a))
        for n, a in states[0].items()
        if n.endswith("weight")
    )
    for row, share, error in zip(rows, (0.0, saved), (0.0, apart), strict=True):
        row |= {"idle saved": share, "weights apart": error}
    return rows
