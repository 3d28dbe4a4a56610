"""A site's or a user's own file brought to a task: the same columns in the same order, the same class numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.data.samples import Samples
from fedsolve.data.table import Table
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.features.cells import Cells
from fedsolve.features.images import ANY_SIZE, Pictures


def align(table: Table, task: Task, whose: str) -> Table:
    """The rows of a table as the task wants them: columns by name, classes by name, pictures of one size as one array.

    Refused in one sentence that begins with `whose` they are: columns that are missing or too many, all at once,
    classes that the task does not have, and inputs of another shape. Columns without names are taken as they stand.

    >>> from fedsolve.data.task import Classes
    >>> task = Task(Classes(2, ("ill", "well")), (2,), feature_names=("age", "pulse"))
    >>> own = Table.make("a.csv", [[61.0, 40.0]], [0], class_names=("well",), feature_names=("pulse", "age"))
    >>> aligned = align(own, task, "a.csv")
    >>> aligned.inputs, aligned.labels
    (array([[40., 61.]]), array([1]))
    """
    order = _order(table.feature_names, task.feature_names, whose)
    if task.inputs != ANY_SIZE:
        table = table.stacked()
    fits = table.raw == task.inputs or (task.inputs == ANY_SIZE and len(table.raw) == 3 and table.raw[2] == 3)
    if not fits:
        wanted = "pictures (height, width, 3)" if task.inputs == ANY_SIZE else f"shape {task.inputs}"
        raise DataError(f"{whose}: inputs have shape {table.raw}; wanted {wanted}")
    test = table.test
    if isinstance(test, Samples):
        test = replace(
            test, inputs=cast(Array, _ordered(test.inputs, order)), labels=_classes(table, test.labels, task, whose)
        )
    elif test is not None:
        test = replace(test, labels=_classes(table, test.labels, task, whose))
    return replace(
        table,
        inputs=table.inputs if isinstance(table.inputs, Pictures) else _ordered(table.inputs, order),
        labels=_classes(table, table.labels, task, whose),
        target=task.target,
        test=test,
        feature_names=task.feature_names,
    )


def _order(columns: tuple[str, ...], names: tuple[str, ...], whose: str) -> list[int] | None:
    """Where each wanted column stands; None where they stand as they should or have no names."""
    if not columns or not names or columns == names:
        return None
    missing, extra = sorted(set(names) - set(columns)), sorted(set(columns) - set(names))
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(extra)} besides"] * bool(extra)
        raise DataError(f"{whose}: it {' and '.join(parts)}; wanted the columns {', '.join(names)}")
    return [columns.index(name) for name in names]


def _ordered(inputs: Array | Cells, order: list[int] | None) -> Array | Cells:
    if order is None:
        return inputs
    if isinstance(inputs, Cells):
        return inputs.by_name([inputs.names[place] for place in order], "the table")
    return inputs[:, order]


def _classes(table: Table, labels: NDArray[Any], task: Task, whose: str) -> NDArray[Any]:
    """Labels as the task has them: class numbers of the task, from those of the table."""
    if table.target.kind != task.target.kind:
        raise DataError(f"{whose}: its labels are {table.target.kind}; wanted {task.target.kind}")
    if task.target.kind == "numbers" or (table.class_names == task.class_names and table.classes <= task.classes):
        return task.target.read(labels, whose) if task.target.kind == "numbers" else labels
    names = table.class_names
    return task.target.read(np.array(names)[labels] if names else labels, whose)
