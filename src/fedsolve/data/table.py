"""Tables: all samples in one place, before they are spread over clients."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve.arrays import Array
from fedsolve.data.federation import Client, Federation, check_name, client_names, federation_of
from fedsolve.data.partition import ByClient, Partition, Rows, parse, top_up
from fedsolve.data.persons import first_rows, held_out, numbered, rows_of, shared
from fedsolve.data.samples import (
    Samples,
    Unread,
    check_inputs,
    check_labels,
    check_plausible,
    check_range,
    read_only,
    shape_of,
)
from fedsolve.data.target import Classes, Target, target_words
from fedsolve.data.task import Task
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import columns, fitting, maps
from fedsolve.features.cache import extract
from fedsolve.features.cells import Cells
from fedsolve.features.images import Inputs, Pictures
from fedsolve.features.maps import FeatureMap, Identity
from fedsolve.parameters import whole
from fedsolve.progress import Progress
from fedsolve.rng import derive
from fedsolve.threads import side_by_side

BLOCK = 2**14  # rows that cells are made numbers of at a time


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Samples in one place, before they are spread over clients.

    >>> Table.make("wards", [[0.1], [2.0], [1.5]], [0, 1, 1])
    Table('wards', 3 samples, 2 classes, inputs (1,), features identity)
    """

    name: str
    inputs: Inputs | Cells
    labels: NDArray[Any]  # class numbers, or one row of numbers per sample
    target: Target
    test: Samples | Unread | None = None  # an official test set
    client: NDArray[Any] | None = None  # the natural owner of each row
    feature_names: tuple[str, ...] = ()
    features: FeatureMap = field(default_factory=Identity)  # that made the inputs
    raw: tuple[int, ...] = ()  # the shape of one input before that
    skipped: tuple[str, ...] = ()  # files that were left out, and why
    layout: str = ""  # how labels were found in folders, in words
    person: NDArray[np.int64] | None = None  # whose each row is, as a number

    def __repr__(self) -> str:
        return (
            f"Table({reprlib.repr(self.name)}, {len(self.labels)} samples, {target_words(self.target)}, "
            f"inputs {self.raw}, features {str(self.features)[:200]})"
        )

    @classmethod
    def make(
        cls,
        name: str,
        inputs: ArrayLike | Pictures | Cells,
        labels: ArrayLike,
        *,
        test: tuple[ArrayLike | Pictures, ArrayLike] | None = None,
        client: ArrayLike | None = None,
        class_names: Sequence[str] = (),
        target: Target | None = None,
        feature_names: Sequence[str] = (),
        skipped: Sequence[str] = (),
        layout: str = "",
        person: ArrayLike | None = None,
    ) -> Table:
        """A checked table. Without a `target`, labels are the numbers of classes, which `class_names` may name."""
        x: Inputs | Cells = inputs if isinstance(inputs, Pictures | Cells) else check_inputs(inputs, name)
        read = check_labels if target is None else target.read
        y, shape = read(labels, name), shape_of(x)
        if len(x) != len(y):
            raise DataError(f"{name}: {len(x)} inputs but {len(y)} labels")
        if not len(x):
            raise DataError(f"{name} holds no samples")
        official = None if test is None else _official(name, *test, shape, read)
        if target is None:
            target = _classes_of(name, [y] if official is None else [y, official.labels], class_names)
        owners = None if client is None else np.asarray(client)
        if owners is not None and owners.shape != (len(x),):
            raise DataError(f"{name}: 'client' must name the owner of each of {len(x)} rows; got shape {owners.shape}")
        if owners is not None and owners.dtype.kind not in "iuU":
            raise DataError(f"{name}: 'client' must hold integers or texts; got {owners.dtype}")
        persons = None if person is None else numbered(np.asarray(person))
        if persons is not None and persons.shape != (len(x),):
            raise DataError(f"{name}: 'person' must say whose each of {len(x)} rows is; got {len(persons)}")
        return cls(
            name,
            x,
            y,
            target,
            official,
            owners,
            inputs.names if isinstance(inputs, Cells) else tuple(feature_names),
            raw=shape,
            skipped=tuple(skipped),
            layout=layout,
            person=persons,
        )

    @property
    def classes(self) -> int:
        """The number of classes; none where the target is numbers."""
        return self.task.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in order, where they have some."""
        return self.task.class_names

    @property
    def task(self) -> Task:
        """The task that this table poses."""
        return Task(self.target, self.raw, self.features, self.feature_names)

    def sample(self, limit: int, seed: int = 0) -> Table:
        """At most `limit` of its rows, drawn by the seed, in their order. An official test set stays whole."""
        limit = whole("limit", limit, 1)
        if limit >= len(self.labels):
            return self
        rows = np.sort(derive(seed, "limit").permutation(len(self.labels))[:limit])
        inputs = self.inputs.take(rows) if isinstance(self.inputs, Pictures) else self.inputs[rows]
        owners = None if self.client is None else self.client[rows]
        persons = None if self.person is None else numbered(self.person[rows])
        return replace(self, inputs=inputs, labels=self.labels[rows], client=owners, person=persons)

    def with_features(self, features: FeatureMap, progress: Progress | None = None) -> Table:
        """The same table with its inputs replaced by their features, from the cache where they take time."""
        features.shape(self.raw)  # refuses inputs that the map does not take
        rows = extract(features, self.inputs, progress)
        test = self.test
        if test is not None:
            test = read_only(extract(features, test.inputs, progress), test.labels)
        return replace(self, inputs=rows, test=test, features=features)

    def stacked(self) -> Table:
        """The same table with its pictures, which must have one size, in one array."""
        if not isinstance(self.inputs, Pictures):
            return self
        inputs, test = self.inputs.stacked(), self.test
        if isinstance(test, Unread):
            test = read_only(test.inputs.stacked(), test.labels)
        return replace(self, inputs=inputs, test=test, raw=inputs.shape[1:])

    def check_classes(self) -> None:
        """Refuse a table whose labels are all equal: every method is right about all of it."""
        if (self.labels != self.labels[0]).any():
            return
        label = self.class_names[self.labels[0]] if self.class_names else self.labels[0]
        few = "give samples of two classes or more" if self.classes else "give samples of different numbers"
        raise DataError(
            f"{self.name}: all labels are equal ({str(label)!r}, {len(self.labels)} samples), so there is nothing to "
            f"tell apart; {self.layout or few}"
        )

    def split(
        self,
        partition: Partition | str,
        *,
        clients: int | None = None,
        seed: int = 0,
        test: float | str = 0.2,
        min_samples: int = 2,
        features: str = "",
    ) -> Federation:
        """Spread the rows over clients, and give each client a test set.

        `test` is a share of each client's own rows; or "official": the official test set, dealt out in the class
        proportions of the clients; or "global": all of it for everybody. Clients with fewer than `min_samples` get some
        from the largest; natural clients are left as they are. Where the target is numbers, their tenths are what
        classes are else. Where the table knows persons, all rows of one are trained on, or all are tested on.

        Texts and empty cells become numbers here: `columns` is fitted to the rows that clients train on, and `features`
        may name maps behind it.

        >>> table = Table.make("small", np.arange(40.0).reshape(20, 2), [0, 1] * 10)
        >>> [len(client.train) for client in table.split("iid", clients=4, test=0.2).clients.values()]
        [4, 4, 4, 4]
        """
        if isinstance(partition, str):
            partition = parse(partition)
        min_samples = whole("min-samples", min_samples, 1)
        self.check_classes()
        natural = isinstance(partition, ByClient)
        table = self.stacked()
        names, owners = table._owners(natural, clients)
        rng = derive(seed, "partition")
        persons = None if natural else self.person
        labels = self.target.strata(self.labels, self.labels)
        by = owners if owners is not None else labels if persons is None else labels[first_rows(persons)]
        parts = partition(by, len(names), rng)
        parts, moved = (parts, 0) if natural else top_up(parts, min_samples, rng)
        if persons is not None:
            parts = rows_of(parts, persons)
        train, held = table._held(parts, names, seed, test)
        return table._spread(train, held, names, moved, table._fitted(features, train))

    def owned_by(self, client: str, *, seed: int = 0, test: float | str = 0.2) -> Federation:
        """All rows as those of one client, whatever the table says of owners: a site's file, of one class or more.

        >>> Table.make("ward", [[0.1], [2.0]], [1, 1]).owned_by("ward-a", test=0.0).clients["ward-a"]
        Client('ward-a', 2 train, 0 test)
        """
        check_name(client)
        table = self.stacked()
        train, held = table._held([np.arange(len(self.labels))], [client], seed, test)
        return table._spread(train, held, [client])

    def client_of(self, name: str, *, seed: int = 0, test: float | str = 0.2) -> Client:
        """The one client of `owned_by`."""
        return self.owned_by(name, seed=seed, test=test).clients[name]

    def _fitted(self, features: str, train: list[Rows]) -> FeatureMap | None:
        """The map that makes numbers of cells, fitted to the rows that clients train on; None where there are none."""
        if not isinstance(self.inputs, Cells):
            if features:
                raise ParameterError(f"{self.name} holds numbers: give it features by with_features, or fitted behind")
            return None
        first = maps.parts(features)[0].partition(":")[0] if features else ""
        rest = f"+{features}" if features not in ("", str(Identity())) else ""
        # Sums are exact, so that those of any blocks of rows give the bits that those of the clients' rows give.
        rows = np.sort(np.concatenate(train))
        blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        text = features if first == columns.NAME else columns.NAME + rest
        return fitting.fit(text, fitting.Taken(self.inputs, blocks))

    def _spread(
        self,
        train: list[Rows],
        held: Sequence[Rows | Samples],
        names: list[str],
        moved: int = 0,
        features: FeatureMap | None = None,
    ) -> Federation:
        """The federation in which each client trains on its rows, and is tested on others, or on samples of its own."""
        task = self.task if features is None else replace(self.task, features=features)

        def numbers(rows: Rows) -> Array | Cells:
            """These rows as methods see them; made from cells in blocks, so that cells are not all there twice."""
            if features is None or not isinstance(self.inputs, Cells):
                return self.inputs[rows] if isinstance(self.inputs, Cells) else np.asarray(self.inputs)[rows]
            made = np.zeros((len(rows), task.width))

            def fill(start: int) -> None:
                part, block = cells[rows[start : start + BLOCK]], made[start : start + BLOCK]
                if isinstance(features, columns.Columns):
                    features.write(part, block)
                else:
                    block[:] = extract(features, part)

            starts, cells = range(0, len(rows), BLOCK), self.inputs
            for _ in side_by_side(fill, starts) if len(starts) > 1 else map(fill, starts):
                pass
            return made

        # Rows are put in client order once; every client then is a view of one array.
        order = np.concatenate(train)
        inputs, labels = numbers(order), self.labels[order]
        ends = np.cumsum([len(rows) for rows in train])
        clients = {}
        for name, rows, end, out in zip(names, train, ends, held, strict=True):
            place = slice(end - len(rows), end)
            tests = out if isinstance(out, Samples) else read_only(numbers(out), self.labels[out])
            persons = None if self.person is None else len(np.unique(self.person[rows]))
            clients[name] = Client(name, read_only(inputs[place], labels[place]), tests, persons)
        return federation_of(task, clients, self.name, moved)

    def _owners(self, natural: bool, clients: int | None) -> tuple[list[str], NDArray[Any] | None]:
        """The names of the clients, and the owner of each row where the table says it."""
        if not natural:
            count = whole("clients", 20 if clients is None else clients, 1)
            if count > len(self.labels):  # before each gets a name
                raise DataError(f"{count} clients are more than the {len(self.labels)} samples of {self.name}")
            return client_names(count), None
        if self.client is None:
            raise DataError(f"{self.name} has no column 'client', so it cannot be split by-client")
        values = np.unique(self.client)
        if clients is not None and clients != len(values):
            raise ParameterError(f"{self.name} has {len(values)} natural clients; got clients={clients}: leave it out")
        if values.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values))):
            return client_names(len(values)), self.client
        names = [str(value) for value in values]
        for name in names:
            check_name(name)
        return names, self.client

    def _held(
        self, parts: list[Rows], names: list[str], seed: int, test: float | str
    ) -> tuple[list[Rows], Sequence[Rows | Samples]]:
        """The rows that each client trains on, and the rows or samples that it is tested on."""
        if isinstance(test, str):
            if test not in ("official", "global"):
                raise ParameterError(f"test must be a share from 0 to 1, 'official' or 'global'; got {test!r}")
            if not isinstance(self.test, Samples):
                raise DataError(f"{self.name} has no official test set; use a share of each client's data (test=0.2)")
            if test == "global":
                return parts, [self.test] * len(parts)
            return parts, self._deal(parts, self.test, derive(seed, "test"))
        if not 0 <= test < 1:
            raise ParameterError(f"test must be a share from 0 up to but not including 1; got {test!r}")
        train, tests = [], []
        everywhere = None if self.person is None else shared(parts, self.person)
        for name, rows in zip(names, parts, strict=True):
            rng = derive(seed, "test", name)
            if self.person is not None and everywhere is not None:
                tests.append(held_out(rows, self.person, everywhere, test, rng))
                train.append(np.setdiff1d(rows, tests[-1]))
                continue
            shuffled = rng.permutation(rows)
            # At least one sample for testing where there are two, and always one for training.
            held = min(len(rows) - 1, max(round(test * len(rows)), 1 if test > 0 else 0))
            train.append(np.sort(shuffled[held:]))
            tests.append(np.sort(shuffled[:held]))
        return train, tests

    def _deal(self, parts: list[Rows], test: Samples, rng: np.random.Generator) -> list[Samples]:
        """Each class of the official test set, dealt out in proportion to the clients' training counts."""
        labels, held_out = (self.target.strata(each, self.labels) for each in (self.labels, test.labels))
        strata = 1 + max(int(labels.max()), int(held_out.max(initial=0)))
        counts = np.stack([np.bincount(labels[rows], minlength=strata) for rows in parts])
        dealt: list[list[Rows]] = [[] for _ in parts]
        for label in range(strata):
            rows = rng.permutation(np.flatnonzero(held_out == label))
            total = counts[:, label].sum()
            if total == 0 or not len(rows):
                continue  # nobody trains on this class, so nobody is tested on it
            ends = np.round(np.cumsum(counts[:, label]) * (len(rows) / total)).astype(np.int64)[:-1]
            for pieces, piece in zip(dealt, np.split(rows, ends), strict=True):
                pieces.append(piece)
        shares = [np.sort(np.concatenate([np.empty(0, dtype=np.int64), *pieces])) for pieces in dealt]
        return [read_only(test.inputs[rows], test.labels[rows]) for rows in shares]


def _classes_of(name: str, labels: Sequence[NDArray[np.int64]], class_names: Sequence[str]) -> Classes:
    """The classes that labels, of training and then of the test, are numbers of."""
    classes = len(class_names) or 1 + max(int(part.max(initial=0)) for part in labels)
    check_plausible(classes, len(labels[0]), name)
    for part, whose in zip(labels, (name, f"{name}, test"), strict=False):
        check_range(part, classes, whose)
    return Classes(classes, tuple(class_names))


def _official(
    name: str,
    inputs: ArrayLike | Pictures,
    labels: ArrayLike,
    shape: tuple[int, ...],
    read: Callable[[ArrayLike, str], NDArray[Any]],
) -> Samples | Unread:
    """A checked test set whose inputs have the shape of the others."""
    y = read(labels, f"{name}, test")
    x: Inputs = inputs if isinstance(inputs, Pictures) else check_inputs(inputs, f"{name}, test")
    if len(x) != len(y) or shape_of(x) != shape:
        raise DataError(
            f"{name}: the test set has {len(x)} inputs of shape {shape_of(x)} and {len(y)} labels; "
            f"wanted inputs of shape {shape} and as many labels"
        )
    return read_only(x, y) if isinstance(x, np.ndarray) else Unread(x, y)
