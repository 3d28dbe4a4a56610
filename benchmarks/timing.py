"""Ratios that survive a noisy machine: both sides in turn, several times, and the median of the quotients."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def ratios(
    base: Callable[[], object], calls: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, dict[str, float]]:
    """For each call: median seconds, and the median of its time over the base's time in the same turn."""
    found: dict[str, dict[str, float]] = {}
    bases: list[float] = []
    for name, call in calls.items():
        call()
        turns = [(seconds(base), seconds(call)) for _ in range(repeats)]
        quotients = [taken / floor for floor, taken in turns]
        found[name] = {"seconds": statistics.median(taken for _, taken in turns), "ratio": statistics.median(quotients)}
        bases += [floor for floor, _ in turns]
    return {"base": {"seconds": statistics.median(bases), "ratio": 1.0}, **found}
