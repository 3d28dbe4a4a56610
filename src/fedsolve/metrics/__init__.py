"""Tallies that add, and the figures they give: `classes` for answers that are classes, `numbers` for numbers.

A client counts once what its answers are worth: a tally. Tallies of clients add name by name, and the sum is the tally
of all their samples together, so that pooled figures need no samples and can travel under a secure sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedsolve.arrays import Arrays
from fedsolve.metrics import classes as classes
from fedsolve.metrics import numbers as numbers
from fedsolve.metrics.figure import LARGEST_COUNT as LARGEST_COUNT
from fedsolve.metrics.figure import Metric as Metric
from fedsolve.metrics.figure import add as add
from fedsolve.metrics.figure import spread as spread

METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in (*classes.METRICS, *numbers.METRICS)}
)
KINDS: Mapping[str, tuple[Metric, ...]] = MappingProxyType({"classes": classes.METRICS, "numbers": numbers.METRICS})
MAIN = {"classes": "accuracy", "numbers": "rmse"}  # the figure that is shown where there is room for one, by target


def figures(tally: Arrays) -> dict[str, float]:
    """All metrics that are defined for a tally, by name: none for `{}` or for no samples, and never NaN.

    The area under the ROC curve is the one of the histograms. For one client put its exact one in its place:
    `figures(tally) | {"auc": exact_auc(probabilities, labels)}`, where that is not None.

    >>> figures(classes.tally([[2.0, 1.0], [0.0, 3.0]], [[1.0, 0.0], [0.5, 0.5]], [0, 1]))["brier"]
    0.25
    >>> figures(numbers.tally([[2.0], [5.0]], [[2.0], [4.0]]))["mae"]
    0.5
    """
    if not tally:
        return {}
    known = KINDS["numbers" if "squares" in tally else "classes"]
    values = {metric.name: metric.value(tally) for metric in known}
    return {name: value for name, value in values.items() if value is not None}
