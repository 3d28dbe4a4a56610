"""Ratios that survive a noisy machine: both sides in turn, several times, and the median of the quotients."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def ratios(
    base: Callable[[], object], calls: dict[str, Callable[[], object]], repeats: int
) -> dict[str, dict[str, float]]:
    """For each call: median seconds, and the median of its time over the base's time in the same turn."""
    base()
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in ("base", *calls)}
    for _ in range(repeats):
        times["base"].append(seconds(base))
        for name, call in calls.items():
            times[name].append(seconds(call))
    found = {"base": {"seconds": statistics.median(times["base"]), "ratio": 1.0}}
    for name in calls:
        quotients = [t / b for t, b in zip(times[name], times["base"], strict=True)]
        found[name] = {"seconds": statistics.median(times[name]), "ratio": statistics.median(quotients)}
    return found
