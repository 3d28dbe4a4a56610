"""Whether one method is better than another: differences over the same clients, with intervals, tests and ranks.

Clients of one split share its draw, so they are drawn again within their seed (a stratified bootstrap), and the mean of
a comparison is that over seeds of the mean over clients. P-values of several methods against one are adjusted together
(Holm 1979). Over several data sets methods are compared by their ranks (Demsar 2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedsolve.arrays import Float
from fedsolve.errors import ParameterError
from fedsolve.rng import derive

Figures = Mapping[int, Mapping[str, float]]
"""A figure of each client, by seed and client."""

DRAWS = 4000  # of a bootstrap
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """How much larger the figures of one method are than those of another, over the same clients and seeds."""

    mean: float
    low: float  # of the interval that covers 95 %
    high: float
    p: float  # of Wilcoxon's signed-rank test: that differences lie evenly about zero
    pairs: int
    adjusted: float = math.nan  # the p-value beside those of other methods; see `holm`


def difference(mine: Figures, theirs: Figures, *, draws: int = DRAWS) -> Difference:
    """The difference of two methods, over clients and seeds that both have.

    >>> found = difference({0: {"a": 0.9, "b": 0.8, "c": 0.85}}, {0: {"a": 0.8, "b": 0.75, "c": 0.8}})
    >>> round(found.mean, 3), found.low > 0, found.pairs
    (0.067, True, 3)
    """
    parts = [
        np.array([mine[seed][client] - theirs[seed][client] for client in both])
        for seed in sorted(mine.keys() & theirs.keys())
        if (both := sorted(mine[seed].keys() & theirs[seed].keys()))
    ]
    if not parts:
        raise ParameterError("two methods are compared over clients and seeds that both have, and these have none")
    drawn = np.mean([_means(part, draws, place) for place, part in enumerate(parts)], axis=0)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    every = np.concatenate(parts)
    mean = float(np.mean([part.mean() for part in parts]))
    return Difference(mean, float(low), float(high), _wilcoxon(every), len(every))


def _means(values: Float, draws: int, place: int) -> Float:
    """Means of values that are drawn again with replacement; the same draws for as many values, whatever they are."""
    rng = derive(0, "bootstrap", place, len(values))
    drawn: Float = values[rng.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    return drawn


def _wilcoxon(values: Float) -> float:
    """The two-sided p-value, of those that differ; 1 where nothing does."""
    differing = values[values != 0.0]
    return float(stats.wilcoxon(differing).pvalue) if len(differing) else 1.0


def holm(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same with p-values adjusted for their number (Holm 1979).

    >>> found = holm({name: Difference(0.1, 0.0, 0.2, p, 20) for name, p in (("a", 0.01), ("b", 0.04), ("c", 0.03))})
    >>> {name: round(each.adjusted, 2) for name, each in found.items()}
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted, largest, count = dict[str, float](), 0.0, len(differences)
    for place, name in enumerate(sorted(differences, key=lambda name: differences[name].p)):
        largest = max(largest, min(1.0, (count - place) * differences[name].p))
        adjusted[name] = largest
    return {name: replace(each, adjusted=adjusted[name]) for name, each in differences.items()}


@dataclass(frozen=True, slots=True)
class Ranks:
    """Mean ranks of methods over data sets: 1 is best."""

    means: Mapping[str, float]
    critical: float  # mean ranks that differ by less than this cannot be told apart at 5 % (Nemenyi)
    p: float  # of Friedman's test: that all are alike
    sets: int

    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Largest groups of neighbours in rank that cannot be told apart, best first."""
        order = sorted(self.means, key=lambda name: (self.means[name], name))
        groups = list[tuple[str, ...]]()
        for start, first in enumerate(order):
            group = tuple(name for name in order[start:] if self.means[name] - self.means[first] < self.critical)
            if len(group) > 1 and not any(set(group) <= set(other) for other in groups):
                groups.append(group)
        return tuple(groups)


def ranks(tables: Sequence[Mapping[str, float]], *, larger: bool = True) -> Ranks:
    """Ranks of methods over data sets, each a figure by method; `larger` figures are better, or smaller ones.

    Equal figures share their ranks.

    >>> found = ranks([{"a": 0.9, "b": 0.8}, {"a": 0.7, "b": 0.7}, {"a": 0.6, "b": 0.5}])
    >>> {name: round(mean, 2) for name, mean in found.means.items()}, found.sets
    ({'a': 1.17, 'b': 1.83}, 3)
    """
    names = sorted(tables[0]) if tables else []
    if len(tables) < 2 or len(names) < 2 or any(sorted(table) != names for table in tables):
        raise ParameterError("ranks are of two or more methods, all with a figure on each of two or more data sets")
    figures = np.array([[table[name] for name in names] for table in tables])
    placed = stats.rankdata(-figures if larger else figures, axis=1)
    count, sets = len(names), len(tables)
    # Studentised ranges with infinite degrees of freedom, over the root of two (Demsar 2006, table 5).
    width = stats.studentized_range.ppf(LEVEL, count, np.inf) / math.sqrt(2)
    p = _friedman(placed)
    means = dict(zip(names, placed.mean(axis=0).tolist(), strict=True))
    return Ranks(means, float(width * math.sqrt(count * (count + 1) / (6 * sets))), p, sets)


def _friedman(placed: Float) -> float:
    """The p-value of Friedman's test, in its form with ties, also for two methods."""
    sets, count = placed.shape
    spread = np.square(placed - (count + 1) / 2).sum()
    if not spread:
        return 1.0
    between = sets * np.square(placed.mean(axis=0) - (count + 1) / 2).sum()
    return float(stats.chi2.sf((count - 1) * sets * between / spread, count - 1))
