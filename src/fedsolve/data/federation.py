"""Samples, clients, federations, and tables that can be split into one. Checked once, when they are made."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve.arrays import Array, finite
from fedsolve.data.partition import ByClient, Partition, Rows, parse, top_up
from fedsolve.errors import DataError, ParameterError
from fedsolve.features.cache import Progress, extract
from fedsolve.features.images import ANY_SIZE, Inputs, Pictures
from fedsolve.features.maps import FeatureMap, Identity, described, space
from fedsolve.rng import derive

_NAME = re.compile(r"[^\x00-\x1f/\\.][^\x00-\x1f/\\]{0,99}")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Inputs (n, ...) and their class numbers (n,), read-only."""

    inputs: Array
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Task:
    """What all sides agree on before anything is computed: the classes and the feature space."""

    classes: int
    inputs: tuple[int, ...]  # shape of one raw input; images.ANY_SIZE where each picture has its own
    features: FeatureMap = field(default_factory=Identity)
    class_names: tuple[str, ...] = ()  # where classes have names: one each, in order
    feature_names: tuple[str, ...] = ()  # where the numbers of an input have names

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as methods see it: of its features."""
        return self.features.shape(self.inputs)

    @property
    def width(self) -> int:
        """How many numbers that is."""
        return int(np.prod(self.shape))

    @property
    def space(self) -> int:
        """The identity of the feature space."""
        return space(self.features, self.inputs)

    @property
    def described(self) -> str:
        """The feature space in words."""
        return described(self.features, self.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One owner of data. `train` and `test` hold features."""

    name: str
    train: Samples
    test: Samples


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """Clients and the task they share."""

    task: Task
    clients: Mapping[str, Client]
    name: str
    fingerprint: str  # of all clients' names, data and split
    moved: int = 0  # samples that were moved to mend a split

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
        classes: int | None = None,
        *,
        name: str = "arrays",
        class_names: Sequence[str] = (),
    ) -> Federation:
        """A federation from `{"ward-a": {"train": (x, y), "test": (x, y)}, ...}`; "test" may be left out.

        `classes` defaults to the largest label of anybody plus one. Arrays are not copied: do not write to them after.

        >>> x, y = np.arange(12.0).reshape(6, 2), [0, 1, 0, 1, 0, 1]
        >>> wards = {"ward-a": {"train": (x[:4], y[:4]), "test": (x[4:], y[4:])}, "ward-b": {"train": (x, y)}}
        >>> federation = Federation.from_arrays(wards)
        >>> [(name, len(client.train), len(client.test)) for name, client in federation.clients.items()]
        [('ward-a', 4, 2), ('ward-b', 6, 0)]
        """
        if not clients:
            raise DataError("a federation needs at least one client; got none")
        drawn: dict[str, dict[str, tuple[Array, NDArray[np.int64]]]] = {}
        shape: tuple[int, ...] | None = None
        for client, parts in clients.items():
            check_name(client)
            if "train" not in parts or not set(parts) <= {"train", "test"}:
                raise DataError(f"client {client!r} needs 'train' and may have 'test'; got {sorted(parts)}")
            drawn[client] = {}
            for part, pair in parts.items():
                whose = f"client {client!r}, {part}"
                if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                    raise DataError(f"{whose}: wanted a pair of inputs and labels; got {type(pair).__name__}")
                inputs, labels = pair
                x, y = check_inputs(inputs, whose), check_labels(labels, whose)
                if len(x) != len(y):
                    raise DataError(f"{whose}: {len(x)} inputs but {len(y)} labels")
                if part == "train" and not len(x):
                    raise DataError(f"client {client!r} has no training samples; leave it out or give it one")
                if shape is not None and len(x) and x.shape[1:] != shape:
                    raise DataError(f"{whose}: inputs have shape {x.shape[1:]}, but those of others have {shape}")
                shape = x.shape[1:] if shape is None else shape
                drawn[client][part] = (x, y)
        top = max(int(y.max(initial=-1)) for parts_ in drawn.values() for _, y in parts_.values())
        count = top + 1 if classes is None else classes
        if classes is None:
            _plausible(count, sum(len(parts_["train"][1]) for parts_ in drawn.values()), name)
        for client, parts_ in drawn.items():
            for part, (_, y) in parts_.items():
                check_range(y, count, f"client {client!r}, {part}")
        if class_names and len(class_names) != count:
            raise ParameterError(f"class_names must name each of {count} classes; got {len(class_names)}")
        inputs_shape = shape or ()
        task = Task(count, inputs_shape, class_names=tuple(class_names))
        empty = (np.empty((0, *inputs_shape)), np.empty(0, dtype=np.int64))
        made = {
            client: Client(client, _samples(*parts_["train"]), _samples(*parts_.get("test", empty)))
            for client, parts_ in drawn.items()
        }
        return _federation(task, made, name)

    def with_features(self, features: FeatureMap) -> Federation:
        """The same federation with its inputs replaced by their features; models then start from the raw inputs."""
        task = replace(self.task, features=features)

        def mapped(samples: Samples) -> Samples:
            if not len(samples):
                return _samples(np.empty((0, *task.shape)), samples.labels)
            return _samples(features(samples.inputs), samples.labels)

        clients = {n: Client(n, mapped(c.train), mapped(c.test)) for n, c in self.clients.items()}
        return replace(self, task=task, clients=MappingProxyType(clients))


@dataclass(frozen=True, slots=True, eq=False)
class Unread:
    """Samples whose pictures are still in their files."""

    inputs: Pictures
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Samples in one place, before they are spread over clients."""

    name: str
    inputs: Inputs
    labels: NDArray[np.int64]
    classes: int
    test: Samples | Unread | None = None  # an official test set
    client: NDArray[Any] | None = None  # the natural owner of each row
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    features: FeatureMap = field(default_factory=Identity)  # that made the inputs
    raw: tuple[int, ...] = ()  # the shape of one input before that
    skipped: tuple[str, ...] = ()  # files that were left out, and why

    @classmethod
    def make(
        cls,
        name: str,
        inputs: ArrayLike | Pictures,
        labels: ArrayLike,
        *,
        test: tuple[ArrayLike | Pictures, ArrayLike] | None = None,
        client: ArrayLike | None = None,
        class_names: Sequence[str] = (),
        feature_names: Sequence[str] = (),
        skipped: Sequence[str] = (),
    ) -> Table:
        """A checked table."""
        x: Inputs = inputs if isinstance(inputs, Pictures) else check_inputs(inputs, name)
        y, shape = check_labels(labels, name), _shape(x)
        if len(x) != len(y):
            raise DataError(f"{name}: {len(x)} inputs but {len(y)} labels")
        if not len(x):
            raise DataError(f"{name} holds no samples")
        official: Samples | Unread | None = None
        top = int(y.max())
        if test is not None:
            given, yt = test[0], check_labels(test[1], f"{name}, test")
            xt: Inputs = given if isinstance(given, Pictures) else check_inputs(given, f"{name}, test")
            if len(xt) != len(yt) or _shape(xt) != shape:
                raise DataError(
                    f"{name}: the test set has {len(xt)} inputs of shape {_shape(xt)} and {len(yt)} labels; "
                    f"wanted inputs of shape {shape} and as many labels"
                )
            official = _samples(xt, yt) if isinstance(xt, np.ndarray) else Unread(xt, yt)
            top = max(top, int(yt.max(initial=0)))
        classes = len(class_names) or top + 1
        _plausible(classes, len(y), name)
        check_range(y, classes, name)
        if official is not None:
            check_range(official.labels, classes, f"{name}, test")
        owners = None if client is None else np.asarray(client)
        if owners is not None and owners.shape != (len(x),):
            raise DataError(f"{name}: 'client' must name the owner of each of {len(x)} rows; got shape {owners.shape}")
        if owners is not None and owners.dtype.kind not in "iuU":
            raise DataError(f"{name}: 'client' must hold integers or texts; got {owners.dtype}")
        names, columns = tuple(class_names), tuple(feature_names)
        return cls(name, x, y, classes, official, owners, names, columns, Identity(), shape, tuple(skipped))

    def sample(self, limit: int, seed: int = 0) -> Table:
        """At most `limit` of its rows, drawn by the seed, in their order. An official test set stays whole."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ParameterError(f"limit must be an integer of at least 1; got {limit!r}")
        if limit >= len(self.labels):
            return self
        rows = np.sort(derive(seed, "limit").permutation(len(self.labels))[:limit])
        inputs = self.inputs[rows] if isinstance(self.inputs, np.ndarray) else self.inputs.take(rows)
        owners = None if self.client is None else self.client[rows]
        return replace(self, inputs=inputs, labels=self.labels[rows], client=owners)

    def with_features(self, features: FeatureMap, progress: Progress | None = None) -> Table:
        """The same table with its inputs replaced by their features, from the cache where they take time."""
        features.shape(self.raw)  # refuses inputs that the map does not take
        whole = extract(features, self.inputs, progress)
        test = self.test
        if test is not None:
            test = _samples(extract(features, test.inputs, progress), test.labels)
        return replace(self, inputs=whole, test=test, features=features)

    def split(
        self,
        partition: Partition | str,
        *,
        clients: int | None = None,
        seed: int = 0,
        test: float | str = 0.2,
        min_samples: int = 2,
    ) -> Federation:
        """Spread the rows over clients, and give each client a test set.

        `test` is a share of each client's own rows; or "official": the official test set, dealt out in the class
        proportions of the clients; or "global": all of it for everybody. Clients with fewer than `min_samples` get some
        from the largest; natural clients are left as they are.

        >>> table = Table.make("small", np.arange(40.0).reshape(20, 2), [0, 1] * 10)
        >>> federation = table.split("iid", clients=4, seed=0, test=0.2)
        >>> [len(client.train) for client in federation.clients.values()]
        [4, 4, 4, 4]
        """
        if isinstance(partition, str):
            partition = parse(partition)
        if isinstance(min_samples, bool) or not isinstance(min_samples, int) or min_samples < 1:
            raise ParameterError(f"min-samples must be an integer of at least 1; got {min_samples!r}")
        natural = isinstance(partition, ByClient)
        if not isinstance(self.inputs, np.ndarray):
            return self._stacked().split(partition, clients=clients, seed=seed, test=test, min_samples=min_samples)
        names, owners = self._names(natural, clients)
        if len(names) > len(self.labels):
            raise DataError(f"{len(names)} clients are more than the {len(self.labels)} samples of {self.name}")
        rng = derive(seed, "partition")
        parts = partition(owners if owners is not None else self.labels, len(names), rng)
        parts, moved = (parts, 0) if natural else top_up(parts, min_samples, rng)
        train, tests = self._test_rows(self.inputs, parts, names, seed, test)
        # Rows are put in client order once; every client then is a view of one array.
        order = np.concatenate(train)
        inputs, labels = self.inputs[order], self.labels[order]
        ends = np.cumsum([len(rows) for rows in train])
        made = {}
        for name, rows, end, held_out in zip(names, train, ends, tests, strict=True):
            own = slice(end - len(rows), end)
            made[name] = Client(name, _samples(inputs[own], labels[own]), held_out)
        task = Task(self.classes, self.raw, self.features, self.class_names, self.feature_names)
        return _federation(task, made, self.name, moved)

    def _stacked(self) -> Table:
        """Pictures of one size as one array."""
        if isinstance(self.inputs, np.ndarray):
            return self
        inputs, test = self.inputs.stacked(), self.test
        if isinstance(test, Unread):
            test = _samples(test.inputs.stacked(), test.labels)
        return replace(self, inputs=inputs, test=test, raw=inputs.shape[1:])

    def _names(self, natural: bool, clients: int | None) -> tuple[list[str], NDArray[Any] | None]:
        if not natural:
            count = 20 if clients is None else clients
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
                raise ParameterError(f"clients must be an integer of at least 1; got {clients!r}")
            return client_names(int(count)), None
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

    def _test_rows(
        self, inputs: Array, parts: list[Rows], names: list[str], seed: int, test: float | str
    ) -> tuple[list[Rows], list[Samples]]:
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
        for name, rows in zip(names, parts, strict=True):
            shuffled = derive(seed, "test", name).permutation(rows)
            # At least one sample for testing where there are two, and always one for training.
            held = min(len(rows) - 1, max(round(test * len(rows)), 1 if test > 0 else 0))
            train.append(np.sort(shuffled[held:]))
            mine = np.sort(shuffled[:held])
            tests.append(_samples(inputs[mine], self.labels[mine]))
        return train, tests

    def _deal(self, parts: list[Rows], test: Samples, rng: np.random.Generator) -> list[Samples]:
        """Each class of the official test set, dealt out in proportion to the clients' training counts."""
        counts = np.stack([np.bincount(self.labels[rows], minlength=self.classes) for rows in parts])
        dealt: list[list[Rows]] = [[] for _ in parts]
        for label in range(self.classes):
            rows = rng.permutation(np.flatnonzero(test.labels == label))
            total = counts[:, label].sum()
            if total == 0 or not len(rows):
                continue  # nobody trains on this class, so nobody is tested on it
            ends = np.round(np.cumsum(counts[:, label]) * (len(rows) / total)).astype(np.int64)[:-1]
            for own, piece in zip(dealt, np.split(rows, ends), strict=True):
                own.append(piece)
        mine = [np.sort(np.concatenate([np.empty(0, dtype=np.int64), *own])) for own in dealt]
        return [_samples(test.inputs[rows], test.labels[rows]) for rows in mine]


def client_names(count: int) -> list[str]:
    """`client-00`, `client-01`, ...: as many digits as sort by name and by number alike."""
    digits = max(2, len(str(count - 1)))
    return [f"client-{number:0{digits}d}" for number in range(count)]


def _shape(inputs: Inputs) -> tuple[int, ...]:
    return inputs.shape[1:] if isinstance(inputs, np.ndarray) else ANY_SIZE


def check_inputs(inputs: ArrayLike, whose: str) -> Array:
    """Inputs as an array of finite numbers, a row a sample."""
    try:
        x = np.asarray(inputs)
    except ValueError as error:
        raise DataError(f"{whose}: inputs must form one array; got rows of different lengths ({error})") from error
    if x.ndim < 2 or x.dtype.kind not in "biuf" or 0 in x.shape[1:]:
        raise DataError(f"{whose}: inputs must be an array of numbers, one row a sample; got {x.dtype}{list(x.shape)}")
    if x.dtype.kind == "f" and not finite(x):
        bad = np.argwhere(~np.isfinite(x))[0]
        raise DataError(f"{whose}: inputs must be finite; got {x[tuple(bad)]} in row {bad[0]}, column {bad[1]}")
    if x.dtype == np.float16 or x.dtype.kind == "b":
        x = x.astype(np.float32)
    return x


def check_labels(labels: ArrayLike, whose: str) -> NDArray[np.int64]:
    """Labels as integers; floats count where they are whole numbers."""
    try:
        y = np.asarray(labels)
    except ValueError as error:
        raise DataError(f"{whose}: labels must be one integer a sample ({error})") from error
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise DataError(f"{whose}: labels must be one integer a sample; got {y.dtype}{list(y.shape)}")
    if y.dtype.kind == "f":
        odd = np.flatnonzero(~(np.floor(y) == y) | ~np.isfinite(y))
        if len(odd):
            raise DataError(f"{whose}: labels must be integers; got {y[odd[0]]} in row {odd[0]}")
    if len(y) and not float(y.max()) < 2**53:
        row = int(np.argmax(y))
        raise DataError(f"{whose}: labels must be integers from 0 on; got {y[row]} in row {row}")
    if len(y) and y.min() < 0:
        row = int(np.argmin(y))
        raise DataError(f"{whose}: labels must be integers from 0 on; got {y[row]} in row {row}")
    return y.astype(np.int64)


def check_range(labels: NDArray[np.int64], classes: int, whose: str) -> None:
    """Refuse labels that are not below the number of classes."""
    if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or classes < 1:
        raise ParameterError(f"classes must be an integer of at least 1; got {classes!r}")
    if len(labels) and labels.max() >= classes:
        row = int(np.argmax(labels))
        raise DataError(f"{whose}: labels must be integers from 0 to {classes - 1}; got {labels[row]} in row {row}")


def _plausible(classes: int, samples: int, whose: str) -> None:
    """Labels that are no class numbers (postcodes, years) would make a column for every number up to them."""
    if classes > 1000 + 10 * samples:
        raise DataError(f"{whose}: labels run up to {classes - 1} for {samples} samples; number the classes from 0 on")


def check_name(name: str) -> None:
    """Refuse a name that a client cannot have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "global" or len(name.encode()) > 200:
        raise DataError(
            "client names become file names: 1 to 100 characters, no slash, not starting with a dot, not 'global'; "
            f"got {name!r}"
        )


def _samples(inputs: Array, labels: NDArray[np.int64]) -> Samples:
    """Read-only views, so that nothing a method is given can be written to."""
    inputs, labels = inputs.view(), labels.view()
    inputs.flags.writeable = labels.flags.writeable = False
    return Samples(inputs, labels)


def _federation(task: Task, clients: dict[str, Client], name: str, moved: int = 0) -> Federation:
    digest = hashlib.sha256(f"{task.classes} {task.inputs}".encode())
    shared: dict[int, bytes] = {}  # a global test set stands in every client; it is hashed once
    for _, client in sorted(clients.items()):
        digest.update(client.name.encode())
        for samples in (client.train, client.test):
            if id(samples) not in shared:
                own = hashlib.sha256(f"{samples.inputs.dtype} {samples.inputs.shape}".encode())
                own.update(np.ascontiguousarray(samples.inputs).data)
                own.update(np.ascontiguousarray(samples.labels).data)
                shared[id(samples)] = own.digest()
            digest.update(shared[id(samples)])
    return Federation(task, MappingProxyType(clients), name, digest.hexdigest()[:16], moved)
