"""How a run went: what it had taken and what it had reached after each round, from the history of its result.

The history has what each round took by itself. What all rounds up to one took together is added up here, and nowhere
stored a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Axis: TypeAlias = Literal["rounds", "seconds", "bytes"]
"""What a course is drawn against."""
AXES: tuple[Axis, ...] = ("rounds", "seconds", "bytes")


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run stands after a round."""

    round: int
    seconds: float | None  # of all rounds so far, their evaluations included; None where one does not say
    bytes: float | None  # up and down, of all clients and rounds so far; the last round has the last models in it
    figures: Mapping[str, Mapping[str, float]]  # `mean` and `pooled` by metric, where it was evaluated

    def at(self, axis: Axis) -> float | None:
        """Where it is on an axis."""
        return {"rounds": float(self.round), "seconds": self.seconds, "bytes": self.bytes}[axis]


def course(history: Iterable[Mapping[str, Any]]) -> tuple[Stand, ...]:
    """The stands after the rounds of a history, as result.json has it, in both formats.

    >>> lines = [{"round": n, "seconds": 0.5, "bytes_up": 8, "bytes_down": 2, "accuracy": n / 4} for n in (1, 2)]
    >>> [(stand.round, stand.seconds, stand.bytes, stand.figures["accuracy"]["mean"]) for stand in course(lines)]
    [(1, 0.5, 10.0, 0.25), (2, 1.0, 20.0, 0.5)]
    """
    stands, seconds, sent = list[Stand](), _Sum(), _Sum()
    for line in history:
        seconds.add(_number(line.get("seconds")))
        up, down = _number(line.get("bytes_up")), _number(line.get("bytes_down"))
        sent.add(None if up is None or down is None else up + down)
        stands.append(Stand(int(line["round"]), seconds.value, sent.value, _figures(line)))
    return tuple(stands)


class _Sum:
    """A sum that is unknown as soon as one of its parts is."""

    def __init__(self) -> None:
        self.value: float | None = 0.0

    def add(self, part: float | None) -> None:
        self.value = None if self.value is None or part is None else self.value + part


def _figures(line: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Mean and pooled figure of each metric; format 1 has the mean accuracy alone, as a number."""
    told = {"accuracy": line.get("accuracy"), **line.get("metrics", {})}
    every = {name: value if isinstance(value, Mapping) else {"mean": value} for name, value in told.items()}
    kept = {}
    for name, parts in every.items():
        numbers = {part: number for part, value in parts.items() if (number := _number(value)) is not None}
        if numbers:
            kept[name] = numbers
    return kept


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
