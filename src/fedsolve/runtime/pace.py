"""How much more slow clients should take on at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

LARGEST_PACE = 1e6


@dataclass(frozen=True, slots=True)
class Pace:
    """How much more slow clients should take on at a time: FedACnnL (7), in a form that settles.

    (7) sets a client's block to its first one times how slow it is *now*; with the larger block it is fast, so the next
    one is small again. Here the factor of a client grows by the root of how many times longer than the median it took,
    and never shrinks: it only stops growing, when the client keeps up or has reached its own limit.
    """

    factors: Mapping[str, float] = field(default_factory=dict)

    def of(self, client: str) -> float:
        """The factor of a client; 1 for those that keep up."""
        return self.factors.get(client, 1.0)

    def after(self, seconds: Mapping[str, float]) -> Pace:
        """The factors after a round in which clients took that long."""
        if not seconds:
            return self
        median = float(np.median(list(seconds.values())))
        behind = {name: duration / median for name, duration in seconds.items() if duration > median > 0}
        grown = {name: min(self.of(name) * math.sqrt(times), LARGEST_PACE) for name, times in behind.items()}
        return Pace({**self.factors, **grown})
