"""Tables that are larger than memory: Parquet that is read in blocks of rows, or frames on a cluster.

All that is told of such a table is a sum over its parts: which task it poses, what `columns` is fitted from, moments,
figures of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import add as plus
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Arrays, Float
from fedsolve.data import arrow
from fedsolve.data.federation import Client, check_name
from fedsolve.data.labelled import Labels, LabelsOf, class_numbers, label_values, target_in
from fedsolve.data.parts import Choice, Parquet, Part, Parts, sound, texts_of
from fedsolve.data.reading import AUTO, NUMBERS, TEXTS, Fault, Reading, Roles, refuse
from fedsolve.data.samples import Samples, read_only
from fedsolve.data.sheets import content, number_faults
from fedsolve.data.stream import Stream
from fedsolve.data.target import target_words
from fedsolve.data.task import Task
from fedsolve.data.workers import is_dask, of_dask
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import columns, columnsums, maps
from fedsolve.features.cells import Cells, Column
from fedsolve.features.maps import FeatureMap, Identity
from fedsolve.moments import Moments
from fedsolve.progress import Progress

RUN = 2048  # rows that are turned from columns at a time, so that they stay in the processor's cache
_Found = TypeVar("_Found")


@dataclass(frozen=True, eq=False, repr=False)
class Large:
    """A table in parts: the task that it poses, and sums over its rows. Its rows are never all in memory."""

    parts: Parts
    reading: Reading
    roles: Roles
    task: Task
    rows: int
    texts: frozenset[str] = frozenset()  # columns that hold texts, as the first look found

    def __repr__(self) -> str:
        return f"Large({self.parts.name!r}, {self.rows} rows, {target_words(self.task.target)})"

    def __len__(self) -> int:
        return self.rows

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return self.parts.name

    def samples(self, choice: Choice | None = None) -> Stream:
        """The rows that are meant, by default all, with the features of the task; they are counted first."""
        choice = choice or Choice()
        prepare = _Prepare(self.name, self.reading, self.roles, self.task, self.texts, choice)
        wanted = (*self.roles.features, *self.roles.label, *choice.wanted(self.roles))

        def gather(tell: Callable[[Samples], _Found], add: Callable[[_Found, _Found], _Found]) -> _Found:
            found: _Found | None = self.parts.fold(_Told(tell, prepare), add, wanted)
            if found is None:
                raise DataError(f"{self.name}: it holds no samples")
            return found

        if choice == Choice():
            return Stream(gather, self.rows)
        count = self.parts.fold(_Counted(choice, self.roles), plus, (*self.roles.label, *choice.wanted(self.roles)))
        return Stream(gather, count or 0)

    def client_of(self, name: str, *, test: float | str = 0.0, seed: int = 0) -> Client:
        """All rows as those of one client, which holds some of them out for tests."""
        check_name(name)
        if isinstance(test, str) or not 0 <= test < 1:
            raise ParameterError(f"of a stream, test is a share from 0 up to but not including 1; got {test!r}")
        train, held = (self.samples(Choice(side, test, seed)) for side in (False, True))
        if not len(train):
            raise DataError(f"{self.name}: no rows are left to train on; hold out fewer, or choose another seed")
        empty = read_only(np.empty((0, *self.task.shape)), self.task.target.read(np.empty((0, self.task.outputs))[:, 0]
                          if self.task.classes else np.empty((0, self.task.outputs)), name))  # fmt: skip
        return Client(name, train, held if len(held) else empty)

    def persons(self, most: int) -> int | None:
        """How many persons its rows are of, counted up to so many; None where it does not say."""
        if not self.roles.person:
            return None
        found = self.parts.fold(
            _Persons(self.roles.person, most), lambda left, right: left | right, (self.roles.person,)
        )
        return min(most, len(found or ()))

    def with_features(self, features: FeatureMap) -> Large:
        """The same table with its rows as these features."""
        features.shape(self.task.inputs)  # refuses inputs that the map does not take
        return replace(self, task=replace(self.task, features=features))

    def fitted(self, features: str = columns.NAME, choice: Choice | None = None) -> Large:
        """The same table with `columns` fitted to its rows, or to those that are meant, and the maps behind it.

        Sums are exact: they, and so the map, are the same bits whatever the parts and their order.
        """
        first, *rest = maps.parts(features)
        cell = columns.unfitted(first)
        if cell is None or any(map(maps.to_fit, rest)):
            raise ParameterError(
                f"to a stream {columns.NAME} is fitted, and maps behind it that need no fitting; got {features[:80]!r}"
            )
        raw = replace(self, task=replace(self.task, features=Identity())).samples(choice)
        total = raw.fold(_counted, columnsums.added)
        squares = raw.fold(partial(_squared, columnsums.means(total)), columnsums.added)
        found = columnsums.fitted(self.task.feature_names, total, squares, cell)
        return self.with_features(maps.parse("+".join([str(found), *rest])))

    def moments(self, *, intercept: bool = False, choice: Choice | None = None) -> Moments:
        """The moments of its rows, or of those that are meant, in the features of its task."""
        return self.samples(choice).fold(partial(_moments, self.task, intercept), Moments.__add__)

    def aligned(self, task: Task) -> Large:
        """The same table with the columns and classes of a task, refused where it lacks some; its features are raw."""
        names = task.feature_names or self.task.feature_names
        missing, extra = sorted(set(names) - set(self.roles.features)), sorted(set(self.roles.features) - set(names))
        if missing or extra:
            parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(extra)} besides"] * bool(extra)
            raise DataError(f"{self.name}: it {' and '.join(parts)}; wanted the columns {', '.join(names)}")
        if self.task.inputs != task.inputs:
            raise DataError(f"{self.name}: inputs have shape {self.task.inputs}; wanted shape {task.inputs}")
        if self.task.target.kind != task.target.kind:
            raise DataError(f"{self.name}: its labels are {self.task.target.kind}; wanted {task.target.kind}")
        common = Task(task.target, task.inputs, Identity(), names)
        return replace(self, task=common, roles=replace(self.roles, features=tuple(names)))


def stream(
    data: Any,
    *,
    label: str | Sequence[str] = (),
    drop: Sequence[str] = (),
    client: str = "",
    person: str = "",
    task: str = AUTO,
    columns: str = AUTO,
    date_as: str = "",
    progress: Progress | None = None,
) -> Large:
    """A table that need not fit into memory: a .parquet file, a folder of them, a frame of Dask, or other `Workers`.

    Which column is what is said as for any table. The first rows are looked at as all of a small table are; labels are
    gone through once, to know which task they pose. Everything else is a sum over blocks of rows.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = {"age": [61.0, None, 45.0, 52.0], "sex": ["f", "m", "m", "f"], "ill": [True, False, False, True]}
    ...     pq.write_table(pa.table(rows), f"{folder}/ward.parquet")
    ...     ward = stream(f"{folder}/ward.parquet", label="ill").fitted("columns:cell=1")
    ...     ward.task.columns, ward.moments(intercept=True)
    (('age', 'age (empty)', 'sex=m'), Moments(4 features, 2 targets, 4 samples, space ...))
    """
    parts = Parquet.of(data, progress) if isinstance(data, str | Path) else of_dask(data) if is_dask(data) else data
    labels = (label,) if isinstance(label, str) else tuple(label)
    reading = Reading(labels, client, person, tuple(drop), task, columns, date_as)
    return large(parts, reading)


def large(parts: Parts, reading: Reading) -> Large:
    """The table in parts, and the task that it poses."""
    first = parts.first()
    names = first.table.column_names
    with sound(parts.name):
        sheet = arrow.sheet(
            parts.name, names, first.table.num_rows, lambda some: [first.table.column(name) for name in some], reading,
            wanted=True,
        )  # fmt: skip
        content(sheet, reading)  # refuses all that is wrong with these rows at once
    roles = sheet.roles
    found = parts.fold(LabelsOf(parts.name, roles), Labels.plus, roles.label)
    if found is None:
        raise DataError(f"{parts.name}: it holds no samples")
    target = target_in(found, parts, roles, reading)
    texts = frozenset(name for name, told in sheet.features.items() if told.kind == TEXTS)
    task = Task(target, (len(roles.features),), Identity(), roles.features)
    return Large(parts, reading, roles, task, found.rows, texts)


# --- what is told of a part: values that travel to the workers of a cluster ---


@dataclass(frozen=True)
class _Prepare:
    """Rows of a part as samples of a task."""

    source: str
    reading: Reading
    roles: Roles
    task: Task
    texts: frozenset[str]
    choice: Choice

    def __call__(self, part: Part) -> Samples:
        with sound(self.source):
            chosen = self.choice.rows(part, self.roles)
            if chosen is not None and not chosen.all():
                part = Part(part.table.filter(_mask(chosen)), part.start)  # rows in errors are then those of the part
            labels = class_numbers(*label_values(part, self.roles, self.source), self.task.target, self.source)
            inputs = self._inputs(part)
        features = self.task.features
        return Samples(inputs if features == Identity() else features(inputs), labels)

    def _inputs(self, part: Part) -> Any:
        faults: list[Fault] = []
        found: list[Column] = []
        whole = self.reading.columns == NUMBERS
        reading = replace(self.reading, kinds=dict.fromkeys(self.texts, TEXTS))
        for name in self.roles.features:
            told = arrow.column(name, part.table.column(name), reading)
            faults += told.faults or (number_faults(name, told) if whole else ())
            found.append(told.column)
        refuse(self.source, faults, part.where)
        return _turned(found) if whole else Cells(self.roles.features, tuple(found))


@dataclass(frozen=True)
class _Told:
    """What is told of the samples that a part is made."""

    tell: Callable[[Samples], Any]
    prepare: _Prepare

    def __call__(self, part: Part) -> Any:
        return self.tell(self.prepare(part))


@dataclass(frozen=True)
class _Counted:
    """How many rows of a part are meant."""

    choice: Choice
    roles: Roles

    def __call__(self, part: Part) -> int:
        chosen = self.choice.rows(part, self.roles)
        return part.table.num_rows if chosen is None else int(chosen.sum())


@dataclass(frozen=True)
class _Persons:
    """Some of the persons that rows of a part are of."""

    column: str
    most: int

    def __call__(self, part: Part) -> frozenset[str]:
        return frozenset(np.unique(texts_of(part, self.column))[: self.most].tolist())


def _turned(found: Sequence[Column]) -> Float:
    """Columns of numbers as rows."""
    rows = np.empty((len(found[0]), len(found)))
    for start in range(0, len(rows), RUN):
        for place, column in enumerate(found):
            rows[start : start + RUN, place] = column[start : start + RUN]  # type: ignore[index]
    return rows


def _mask(chosen: NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return pa.array(chosen)


def _cells(part: Samples) -> Cells:
    inputs: Any = part.inputs
    return inputs if isinstance(inputs, Cells) else Cells.numbered(inputs)


def _counted(part: Samples) -> Arrays:
    return columnsums.counted(_cells(part))


def _squared(origin: Float, part: Samples) -> Arrays:
    return columnsums.squared(_cells(part), origin)


def _moments(task: Task, intercept: bool, part: Samples) -> Moments:
    numbers = task.target.kind == "numbers"
    return Moments.of(
        part.inputs, part.labels, classes=task.outputs, intercept=intercept, space=task.space, squares=numbers
    )
