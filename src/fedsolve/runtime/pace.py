"""How much more slow clients should take on at a time, by one of two rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedsolve.errors import unknown

LARGEST_PACE = 1e6
SMALLEST_PACE = 1e-6


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times its first block each client should take on at a time, by how long clients took.

    `printed` is FedACnnL (7): a client's block is its first one times how slow it is *now*; with the larger block it is
    fast, so the next one is small again. `damped` is a form of it that settles: the factor of a client grows by the
    root of how many times longer than the median it took, and never shrinks: it only stops growing, when the client
    keeps up or has reached its own limit.

    >>> taken = {"a": 1.0, "b": 1.0, "slow": 9.0}
    >>> Pace().after(taken).of("slow"), Pace(rule="printed").after(taken).of("slow")
    (3.0, 9.0)
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    rule: str = "damped"
    least: float = 0.0  # of `printed`: the seconds of the fastest client in the first round; 0 before it

    def __post_init__(self) -> None:
        if self.rule not in _RULES:
            raise unknown("pace", self.rule, _RULES)

    def of(self, client: str) -> float:
        """The factor of a client; 1 for those that keep up, or that nothing is known of."""
        return self.factors.get(client, 1.0)

    def after(self, seconds: Mapping[str, float]) -> Pace:
        """The factors after a round in which clients took that long; who was not part of it keeps its own."""
        return _RULES[self.rule](self, seconds) if seconds else self

    @classmethod
    def read(cls, factors: Mapping[str, float], rule: str, least: float) -> Pace:
        """A pace that was written down; a ValueError where it can be none."""
        if not 0 <= least < math.inf or not all(0 < factor < math.inf for factor in factors.values()):
            raise ValueError("a pace with factors or seconds that cannot be")
        return cls(dict(factors), rule, least)


def _damped(pace: Pace, seconds: Mapping[str, float]) -> Pace:
    median = float(np.median(list(seconds.values())))
    behind = {name: duration / median for name, duration in seconds.items() if duration > median > 0}
    grown = {name: min(pace.of(name) * math.sqrt(times), LARGEST_PACE) for name, times in behind.items()}
    return replace(pace, factors={**pace.factors, **grown})


def _printed(pace: Pace, seconds: Mapping[str, float]) -> Pace:
    """FedACnnL (7), of a client's own seconds, as the text has it.

    Differences of arrival times, as the formula has them, would count how long each client waited for the slowest. A
    client that is faster than all were in the first round, as in a smaller layer, gets a block below its first.
    """
    least = pace.least or min(seconds.values())
    if not least > 0:
        return pace
    now = {name: min(max(taken / least, SMALLEST_PACE), LARGEST_PACE) for name, taken in seconds.items()}
    return replace(pace, factors={**pace.factors, **now}, least=least)


_RULES: Mapping[str, Callable[[Pace, Mapping[str, float]], Pace]] = {"damped": _damped, "printed": _printed}
