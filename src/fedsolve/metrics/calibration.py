"""How often classes are right that a model gives a probability: a curve that follows from the histograms of a tally.

For two classes it is that of the second one, for more that of all classes, each against the rest. The histograms know
probabilities by their bins, so the mean probability is that of the middles of bins: for up to `FEW` classes none is
wider than 0.05, and for two classes none is wider than 0.011. For more classes bins are too wide for a curve.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsolve.arrays import Arrays, is_count
from fedsolve.errors import DataError, brief
from fedsolve.metrics.classes import edges
from fedsolve.metrics.figure import LARGEST_COUNT

FEW = 20  # classes up to which there is a curve
BINS = 20  # of a curve, of the same width


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers with about the same probability: how many, their mean probability, and the share that was right."""

    count: int
    probability: float
    share: float

    def __post_init__(self) -> None:
        if not is_count(self.count) or not 0 < self.count <= FEW * LARGEST_COUNT:
            raise DataError(f"calibration must have bins with a count of 1 or more; got {brief(self.count)}")
        for name in ("probability", "share"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise DataError(f"calibration must have bins with a {name} from 0 to 1; got {brief(value)}")

    @property
    def place(self) -> int:
        """Which of the bins of a curve it is, from 0 on."""
        return min(int(self.probability * BINS), BINS - 1)


def curve(tally: Arrays) -> tuple[Bin, ...]:
    """The bins of a curve that are not empty, by ascending probability; none for many classes, or for numbers.

    >>> from fedsolve import metrics
    >>> shares = [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]
    >>> bins = curve(metrics.classes.tally(shares, shares, [0, 1, 1, 1]))
    >>> [(each.count, round(each.probability, 1), each.share) for each in bins]
    [(2, 0.1, 0.5), (2, 0.8, 1.0)]
    """
    positives = tally.get("positives")
    if positives is None or not 2 <= len(positives) <= FEW:
        return ()
    first = 1 if len(positives) == 2 else 0
    right = positives[first:].sum(axis=0)
    every = right + tally["negatives"][first:].sum(axis=0)
    odds = edges(len(positives))
    limits = np.concatenate([[0.0], odds / (1.0 + odds), [1.0]])
    middles = (limits[1:] + limits[:-1]) / 2
    places = np.minimum((middles * BINS).astype(np.int64), BINS - 1)
    counts, rights, sums = (np.bincount(places, weights, minlength=BINS) for weights in (every, right, every * middles))
    return tuple(
        Bin(int(counts[i]), float(min(1.0, sums[i] / counts[i])), float(rights[i] / counts[i]))
        for i in np.flatnonzero(counts)
    )


def merged(curves: Iterable[Iterable[Bin]]) -> tuple[Bin, ...]:
    """The curve of several runs together.

    >>> merged([[Bin(1, 0.51, 1.0)], [Bin(3, 0.53, 0.0)]])
    (Bin(count=4, probability=0.525, share=0.25),)
    """
    places: dict[int, list[Bin]] = {}
    for bins in curves:
        for each in bins:
            places.setdefault(each.place, []).append(each)
    return tuple(_sum(places[place]) for place in sorted(places))


def _sum(bins: list[Bin]) -> Bin:
    count = sum(each.count for each in bins)
    probability = sum(each.count * each.probability for each in bins) / count
    return Bin(count, min(1.0, probability), min(1.0, sum(each.count * each.share for each in bins) / count))


def words(bins: Iterable[Bin]) -> list[dict[str, float]]:
    """A curve as values of JSON."""
    return [asdict(each) for each in bins]


def of_words(values: Any) -> tuple[Bin, ...]:
    """The inverse of `words`, of what anybody may have written.

    >>> of_words([{"count": 2, "probability": 0.1, "share": 7}])
    Traceback (most recent call last):
    fedsolve.errors.DataError: calibration must have bins with a share from 0 to 1; got 7
    """
    if not isinstance(values, list) or len(values) > BINS:
        raise DataError(f"calibration must be a list of at most {BINS} bins; got {brief(values)}")
    for value in values:
        if not isinstance(value, Mapping) or value.keys() != {"count", "probability", "share"}:
            raise DataError(f"calibration must have bins with count, probability and share; got {brief(value)}")
    found = tuple(Bin(**value) for value in values)
    if any(not before.probability < after.probability for before, after in itertools.pairwise(found)):
        raise DataError("calibration must have bins by ascending probability, each once")
    return found
