"""What trackers are told of a run, as flat names: settings once, figures of each round, and figures of the result.

All figures are over clients: no client's name and no client's own figure is among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from fedsolve.records import Round
from fedsolve.result import Result

Scalar: TypeAlias = bool | int | float | str


def of_settings(settings: Mapping[str, Any], above: str = "") -> dict[str, Scalar]:
    """Settings by name, those inside others behind a dot; without those that are not set.

    >>> of_settings({"method": "fedhip", "set": {"alpha": 20.0}, "limit": None})
    {'method': 'fedhip', 'set.alpha': 20.0}
    """
    flat: dict[str, Scalar] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= of_settings(value, f"{above}{name}.")
        elif value is not None:
            flat[above + name] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return flat


def of_round(line: Round) -> dict[str, float]:
    """A round: mean and pooled figure of each metric that was evaluated, the loss, bytes, seconds, and how many missed.

    >>> of_round(Round(1, 800, 1600, 0.5, ("b",), metrics={"accuracy": {"mean": 0.9, "pooled": None}}))
    {'accuracy/mean': 0.9, 'bytes_up': 800.0, 'bytes_down': 1600.0, 'seconds': 0.5, 'missing': 1.0}
    """
    found = {f"{metric}/{kind}": value for metric, kinds in line.metrics.items() for kind, value in kinds.items()}
    found |= {"loss": line.loss, "bytes_up": line.bytes_up, "bytes_down": line.bytes_down}
    return _numbers({**found, "seconds": line.seconds, "missing": len(line.missing)})


def of_result(result: Result) -> dict[str, float]:
    """A result, below "final/": every metric over clients, the rounds, all bytes and all seconds."""
    found = {f"{name}/{kind}": value for name, each in result.metrics.items() for kind, value in asdict(each).items()}
    found |= {"rounds": result.rounds, "bytes_up": result.bytes_up, "bytes_down": result.bytes_down}
    return {f"final/{name}": value for name, value in _numbers({**found, "seconds": result.seconds.total}).items()}


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None}
