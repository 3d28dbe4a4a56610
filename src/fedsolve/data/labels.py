"""Which kind of target a column of labels is: classes, or numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.arrays import Array
from fedsolve.data.reading import AUTO, CLASSES, NUMBERS
from fedsolve.data.samples import check_labels, check_plausible
from fedsolve.data.target import Classes, Numbers, Target
from fedsolve.errors import DataError

FEW = 20  # whole numbers that differ, up to which they are classes


def target_of(labels: Array, task: str, whose: str, names: Sequence[str] = ("y",)) -> tuple[Target, Array]:
    """The target that labels pose, and the labels as it reads them.

    Texts and truth values are classes, and so are whole numbers of few values; other numbers are numbers. Whole numbers
    of many values may be either: `task` says it, "classes" or "numbers". Numbers are called by `names`.

    >>> target_of(np.array(["ill", "well"]), "auto", "a.csv")
    (Classes(count=2, names=('ill', 'well')), array([0, 1]))
    """
    if task == NUMBERS or (task == AUTO and _is_numbers(labels, whose)):
        target = Numbers(names)
        return target, target.read(labels, whose)
    if labels.ndim != 1:
        raise DataError(f"{whose}: several labels are numbers; leave out --task {CLASSES}, or name one")
    if labels.dtype.kind == "f" and not _whole(labels):
        labels = np.array([f"{value:.17g}" for value in labels])
    if labels.dtype.kind in "iuf" and len(labels) and labels.min() < 0:
        labels = labels.astype(np.int64).astype(np.str_)
    if labels.dtype.kind == "U":
        known, numbers = np.unique(labels, return_inverse=True)
        return Classes(len(known), tuple(known.tolist())), np.asarray(numbers, dtype=np.int64)
    classes = check_labels(labels, whose)
    count = int(classes.max(initial=0)) + 1
    check_plausible(count, len(labels), whose)
    return Classes(count), classes


def _is_numbers(labels: Array, whose: str) -> bool:
    """Whether labels of which nothing is said are numbers; refused where they may be either."""
    if labels.ndim > 1:
        return True
    if labels.dtype.kind in "Ub":
        return False
    if not _whole(labels):
        return True
    distinct = len(np.unique(labels))
    if distinct > FEW:
        raise DataError(
            f"{whose}: it holds {distinct} different whole numbers; say --task {CLASSES} if each is a class, or "
            f"--task {NUMBERS} if they count or measure something"
        )
    return False


def _whole(labels: Array) -> bool:
    return labels.dtype.kind in "iub" or bool((np.floor(labels) == labels).all())


def named_classes(labels: Array) -> tuple[Array, tuple[str, ...]]:
    """Class numbers, and the sorted class names where labels are texts."""
    if labels.dtype.kind != "U":
        return labels, ()
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers, tuple(names.tolist())
