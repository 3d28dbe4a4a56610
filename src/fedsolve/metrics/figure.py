"""What a metric is, how tallies add, and how a figure spreads over clients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fedsolve import arrays
from fedsolve.arrays import Array, Arrays
from fedsolve.errors import DataError

LARGEST_COUNT = 2**40  # of samples; sums over classes and bins cannot overflow below it
Better: TypeAlias = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure that a tally gives; `value` is None where it is not defined, as for no samples at all.

    >>> from fedsolve import metrics
    >>> tally = metrics.classes.tally([[2.0, 1.0], [0.0, 3.0]], [[0.7, 0.3], [0.1, 0.9]], [0, 0])
    >>> metrics.METRICS["accuracy"].value(tally)
    0.5
    """

    name: str
    better: Better
    value: Callable[[Arrays], float | None]
    doc: str
    share: bool = False  # of all: shown in percent


def add(a: Arrays, b: Arrays) -> dict[str, Array]:
    """The tally of both: commutative, associative up to the rounding of sums, and `{}` changes nothing.

    >>> import numpy as np
    >>> add({}, add({"count": np.array(2)}, {"count": np.array(3)}))
    {'count': array(5)}
    """
    return arrays.accumulate(arrays.accumulate(None, a), b) if a and b else arrays.accumulate(None, a or b)


def spread(values: Sequence[float], better: Better) -> dict[str, float]:
    """Mean, population deviation and mean of the worst tenth (at least one) over clients; {} for no clients.

    Sums are exact: clients that all have the same value have that mean, to the last digit.

    >>> spread([0.5, 0.75, 1.0], "higher")["worst_decile"], spread([0.5, 0.75, 1.0], "lower")["worst_decile"]
    (0.5, 1.0)
    """
    if not all(map(math.isfinite, values)):
        raise DataError("figures of clients must be finite; leave out the clients for which one is not defined")
    if not values:
        return {}
    worst_first = sorted(map(float, values), reverse=better == "lower")
    return {
        "mean": statistics.mean(worst_first),
        "std": statistics.pstdev(worst_first),
        "worst_decile": statistics.mean(worst_first[: -(-len(worst_first) // 10)]),
    }
