"""Who takes part in a round: a share of the clients, or a share that is drawn anew for every round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedsolve.errors import ParameterError

Participation: TypeAlias = float | str
"""A share above 0 and at most 1, or two of them: "0.6-1"."""


@dataclass(frozen=True, slots=True)
class Turnout:
    """From how large to how large a share of the clients is asked in a round."""

    low: float
    high: float

    @classmethod
    def of(cls, participation: Participation) -> Turnout:
        """The turnout that a setting stands for.

        >>> Turnout.of("0.6-1"), Turnout.of(0.5)
        (Turnout(low=0.6, high=1.0), Turnout(low=0.5, high=0.5))
        """
        low = high = math.nan
        with suppress(ValueError, TypeError):
            low = high = float(participation)
        if isinstance(participation, str) and math.isnan(low):
            first, _, last = participation.partition("-")
            with suppress(ValueError):
                low, high = float(first), float(last)
        if isinstance(participation, bool) or not 0 < low <= high <= 1:
            raise ParameterError(
                "participation must be a share above 0 and at most 1, or two as in 0.6-1, between which it is drawn "
                f"anew for each round; got {participation!r}"
            )
        return cls(low, high)

    def draw(self, clients: Sequence[str], rng: np.random.Generator) -> list[str]:
        """Some of the clients, at least one, in sorted order."""
        names = sorted(clients)
        if self.low == 1.0 or not names:
            return names
        count = max(1, round(self.low * len(names)))
        if self.high > self.low:  # a whole number from the least to the most, each as likely
            count = int(
                rng.integers(max(1, math.ceil(self.low * len(names) - 1e-9)), int(self.high * len(names) + 1e-9) + 1)
            )
        return [names[i] for i in np.sort(rng.choice(len(names), count, replace=False))]
