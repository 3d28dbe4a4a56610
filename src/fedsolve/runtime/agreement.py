"""The one task that sites with data of their own share, and who is left out of it.

Sites must agree on the feature space, on the kind of labels and on the columns; classes are those of all together. What
one site says decides for all how much they compute and send, so what it says must be plausible beside the rest.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedsolve.data.target import Classes, Numbers, target_words
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.features import maps
from fedsolve.features.maps import FeatureMap

MOST_CLASSES = 100_000
MORE_CLASSES = (1_000, 100)  # a site takes part with this many classes, and this many times its own, but not with more
CLASSES_PER_SAMPLE = 10  # a site may know of classes that it has no samples of: this many per sample, and 1,000
MOST_NUMBERS = 2**31  # of one sample, and as many sides as eight
LONGEST_NAME = 1_000  # characters of the name of a class or a column
LONGEST_NAMES = 8_000_000  # characters of all names that a site tells


class Agreement(NamedTuple):
    """The common task, and why sites are not part of it."""

    task: Task
    left_out: Mapping[str, str]


def most_classes(own: int) -> int:
    """With how many classes a site takes part that has so many of its own.

    >>> most_classes(10), most_classes(5_000)
    (2000, 100000)
    """
    more, times = MORE_CLASSES
    return min(MOST_CLASSES, more + times * own)


def check_terms(common: Task, own: Task, whose: str) -> None:
    """Refuse, at a site, a task that is far from what the site's own data pose, before anything is made for it.

    >>> check_terms(Task(Classes(3), (4,)), Task(Classes(2), (4,)), "ward-a")
    >>> check_terms(Task(Classes(10**8), (4,)), Task(Classes(2), (4,)), "ward-a")
    Traceback (most recent call last):
    fedsolve.errors.DataError: site 'ward-a' has 2 classes and takes part with at most 1200; the task has 100000000
    """
    if common.target.kind != own.target.kind:
        raise DataError(f"site {whose!r} has labels that are {own.target.kind}; the task's are {common.target.kind}")
    most = most_classes(own.classes)
    if common.classes > most:
        raise DataError(
            f"site {whose!r} has {own.classes} classes and takes part with at most {most}; "
            f"the task has {common.classes}"
        )
    implausible = _names(common) or _numbers(common)
    if implausible:
        raise DataError(f"site {whose!r} does not take part in such a task: {implausible}")


def agreement(
    tasks: Mapping[str, Task], samples: Mapping[str, int], features: FeatureMap, quorum: int | None = None
) -> Agreement:
    """The task that sites share, from what the data of each pose, with the server's feature map.

    Who differs from the rest, or says what cannot be, is left out where at least `quorum` sites remain; else, or
    without a quorum, an error names one site and says in what it differs from another.
    """
    table = _Table(dict(sorted(tasks.items())), {}, quorum)
    for name, task in list(table.tasks.items()):
        implausible = _numbers(task) or _names(task) or _classes(task, samples[name])
        if implausible:
            table.leave({name: implausible}, f"site {name!r} says what cannot be: {implausible}")
    space = _space(table, features)
    _labels(table)
    columns = _columns(table)
    _crowd(table)
    remaining = table.tasks.values()
    numbers = [(t.target, samples[name]) for name, t in table.tasks.items() if isinstance(t.target, Numbers)]
    if numbers:
        return Agreement(Task(Numbers.together(numbers), space, features, columns), table.left_out)
    class_names = tuple(sorted(set().union(*(task.class_names for task in remaining))))
    classes = len(class_names) or max(task.classes for task in remaining)
    return Agreement(Task(Classes(classes, class_names), space, features, columns), table.left_out)


@dataclass(slots=True)
class _Table:
    """Who is still at the table, and who was left out."""

    tasks: dict[str, Task]
    left_out: dict[str, str]
    quorum: int | None  # how many must remain; None: all

    def leave(self, reasons: Mapping[str, str], stop: str) -> None:
        """Leave sites out; stop where too few would remain."""
        remaining = len(self.tasks) - len(reasons)
        if self.quorum is None:
            raise DataError(stop)
        if remaining < self.quorum:
            raise DataError(f"{stop} ({remaining} of {len(self.tasks)} sites are alike, and {self.quorum} must be)")
        self.left_out |= reasons
        self.tasks = {name: task for name, task in self.tasks.items() if name not in reasons}

    def most(self, kind: Callable[[Task], Hashable | None]) -> Hashable | None:
        """The kind that most sites are of, the first of equal ones; None is of any kind."""
        votes = Counter(value for task in self.tasks.values() if (value := kind(task)) is not None)
        return votes.most_common(1)[0][0] if votes else None


def _space(table: _Table, features: FeatureMap) -> tuple[int, ...]:
    """The shape of raw inputs; who has other features than the server, or inputs of another shape, is left out."""
    shapes = Counter(t.inputs for t in table.tasks.values() if t.described == maps.described(features, t.inputs))
    inputs = (shapes or Counter(task.inputs for task in table.tasks.values())).most_common(1)[0][0]
    space = maps.described(features, inputs)
    reasons = {
        name: f"has other features than the rest: {maps.difference(task.described, space)}"
        for name, task in table.tasks.items()
        if task.described != space
    }
    for name, reason in list(reasons.items())[:1]:
        every = {name: f"it {reason}" for name, reason in reasons.items()}
        table.leave(every, f"site {name!r} {reason}; nothing was added up")
    return inputs


def _labels(table: _Table) -> None:
    """Classes, or numbers of the same names, as most have; and texts or numbers for classes."""
    words = {name: _target_words(task) for name, task in table.tasks.items()}
    common = table.most(_target_words)
    odd = [name for name in words if words[name] != common]
    if odd:
        stop = f"the labels of site {odd[0]!r} are {words[odd[0]]}, those of the rest {common}"
        table.leave({name: f"its labels are {words[name]}, those of the rest {common}" for name in odd}, stop)
    named = {name: bool(task.class_names) for name, task in table.tasks.items()}
    right = table.most(lambda task: bool(task.class_names))
    odd = [name for name in named if named[name] != right]
    if odd:
        kind, other = ("texts", "numbers") if named[odd[0]] else ("numbers", "texts")
        texts, numbers = (next(name for name in named if named[name] == texts) for texts in (True, False))
        stop = f"the labels of site {texts!r} are texts, those of site {numbers!r} numbers; use one or the other"
        table.leave(dict.fromkeys(odd, f"its labels are {kind}, those of the rest {other}"), stop)


def _target_words(task: Task) -> str:
    return "classes" if task.classes else target_words(task.target)


def _columns(table: _Table) -> tuple[str, ...]:
    """The columns that most have, in the order of the first of them; who tells no names has any."""
    right = table.most(lambda task: frozenset(task.feature_names) or None)
    reasons = {}
    for name, task in table.tasks.items():
        odd = sorted(set(task.feature_names) ^ right) if isinstance(right, frozenset) and task.feature_names else []
        if odd:
            reasons[name] = f"are not those of the rest: {', '.join(odd[:5])} differ"
    for name, reason in list(reasons.items())[:1]:
        every = {name: f"its columns {reason}" for name, reason in reasons.items()}
        table.leave(every, f"the columns of site {name!r} {reason}")
    return next((task.feature_names for task in table.tasks.values() if task.feature_names), ())


def _crowd(table: _Table) -> None:
    """Who tells the most classes is left out while most sites would not take part with all of them."""
    while True:
        counts = {name: task.classes for name, task in table.tasks.items()}
        names = set[str]().union(*(task.class_names for task in table.tasks.values()))
        classes, median = len(names) or max(counts.values()), statistics.median_low(counts.values())
        if classes <= most_classes(median):
            return
        name = max(counts, key=lambda name: (counts[name], name))
        reason = (
            f"it tells {counts[name]} classes: {classes} with those of the rest, and most sites, which have {median} "
            f"or fewer, take part with at most {most_classes(median)}"
        )
        table.leave({name: reason}, f"site {name!r} says what cannot be: {reason}")


def _classes(task: Task, samples: int) -> str:
    """Why a site cannot have so many classes; nothing where it can."""
    most = min(MOST_CLASSES, MORE_CLASSES[0] + CLASSES_PER_SAMPLE * samples)
    return (
        "" if task.classes <= most else f"it tells {task.classes} classes of {samples} samples; at most {most} can be"
    )


def _names(task: Task) -> str:
    names = (*task.class_names, *task.feature_names)
    longest, together = max(map(len, names), default=0), sum(map(len, names))
    if longest > LONGEST_NAME or together > LONGEST_NAMES:
        return (
            f"names of {longest} characters, {together} together; classes and columns may have {LONGEST_NAME} each "
            f"and {LONGEST_NAMES} together"
        )
    return ""


def _numbers(task: Task) -> str:
    """Why one sample cannot have such a shape; sides of -1 are any."""
    for shape in (task.inputs, task.shape):
        numbers = math.prod(max(1, side) for side in shape)
        if len(shape) > 8 or numbers > MOST_NUMBERS:
            return f"samples of {len(shape)} sides and more than {MOST_NUMBERS} numbers"
    return ""
