"""Clients and the federation they form: checked once when it is made, read-only after."""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve.arrays import Array
from fedsolve.data.samples import Samples, check_inputs, check_labels, check_plausible, check_range, read_only
from fedsolve.data.target import Classes, Target, target_words
from fedsolve.data.task import Task
from fedsolve.errors import CONTROLS, DataError, ParameterError, brief
from fedsolve.features import fitting, standard
from fedsolve.features.cache import extract
from fedsolve.features.cells import Cells
from fedsolve.features.maps import FeatureMap, Identity
from fedsolve.progress import Progress
from fedsolve.threads import side_by_side

__all__ = ["Client", "Federation", "Samples", "Task", "check_name", "client_names", "federation_of"]
_NAME = re.compile(rf"[^{CONTROLS}/\\.][^{CONTROLS}/\\]{{0,99}}")
MANY = 1000  # samples a client from which on several are hashed side by side


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One owner of data. `train` and `test` hold features."""

    name: str
    train: Samples
    test: Samples
    persons: int | None = None  # behind its training samples, where the table says whose rows they are

    def __repr__(self) -> str:
        return f"Client({reprlib.repr(self.name)}, {len(self.train)} train, {len(self.test)} test)"


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """Clients and the task they share.

    >>> wards = {"ward-a": {"train": ([[0.1], [2.0]], [0, 1])}, "ward-b": {"train": ([[1.5]], [1])}}
    >>> Federation.from_arrays(wards)
    Federation('arrays', 2 clients, 3 samples, 2 classes, features identity of (1,))
    """

    task: Task
    clients: Mapping[str, Client]
    name: str
    fingerprint: str  # of all clients' names, data and split
    moved: int = 0  # samples that were moved to mend a split

    def __repr__(self) -> str:
        samples = sum(len(client.train) + len(client.test) for client in self.clients.values())
        return (
            f"Federation({reprlib.repr(self.name)}, {len(self.clients)} clients, {samples} samples, "
            f"{target_words(self.task.target)}, features {self.task.described[:200]})"
        )

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
        classes: int | None = None,
        *,
        name: str = "arrays",
        class_names: Sequence[str] = (),
        target: Target | None = None,
    ) -> Federation:
        """A federation from `{"ward-a": {"train": (x, y), "test": (x, y)}, ...}`; "test" may be left out.

        Labels are class numbers; `classes` defaults to the largest of anybody plus one. Where numbers are to be
        predicted, `target=fs.Numbers("pressure")` says so, and what they are called. Arrays are not
        copied: do not write to them after.
        """
        if not clients:
            raise DataError("a federation needs at least one client; got none")
        checked: dict[str, dict[str, tuple[Array, NDArray[Any]]]] = {}
        read = check_labels if target is None else target.read
        shape: tuple[int, ...] | None = None
        for client, parts in clients.items():
            check_name(client)
            if "train" not in parts or not set(parts) <= {"train", "test"}:
                raise DataError(f"client {client!r} needs 'train' and may have 'test'; got {sorted(parts)}")
            checked[client] = {}
            for part, pair in parts.items():
                whose = f"client {client!r}, {part}"
                if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                    raise DataError(f"{whose}: wanted a pair of inputs and labels; got {type(pair).__name__}")
                x, y = check_inputs(pair[0], whose), read(pair[1], whose)
                if len(x) != len(y):
                    raise DataError(f"{whose}: {len(x)} inputs but {len(y)} labels")
                if part == "train" and not len(x):
                    raise DataError(f"client {client!r} has no training samples; leave it out or give it one")
                if shape is not None and len(x) and x.shape[1:] != shape:
                    raise DataError(f"{whose}: inputs have shape {x.shape[1:]}, but those of others have {shape}")
                shape = x.shape[1:] if shape is None else shape
                checked[client][part] = (x, y)
        if target is None:
            target = _classes_of(checked, classes, class_names, name)
        inputs = shape or ()
        members = {}
        for client, pairs in checked.items():
            empty = (np.empty((0, *inputs)), pairs["train"][1][:0])
            members[client] = Client(client, read_only(*pairs["train"]), read_only(*pairs.get("test", empty)))
        return federation_of(Task(target, inputs), members, name)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        label: str | Sequence[str],
        client: str,
        person: str | None = None,
        drop: Sequence[str] = (),
        test: float = 0.2,
        seed: int = 0,
        task: str = "auto",
        columns: str = "auto",
        date_as: str = "",
        features: str = "",
        name: str = "frame",
    ) -> Federation:
        """A federation from a data frame of pandas, polars or pyarrow, with its columns by name.

        `label` is what is predicted (several, where they are numbers), `client` says whose each row is, `person` which
        rows are of one person: these are then all trained on, or all tested on. Texts, truth values and empty cells are
        taken as they are; see `fedsolve.features.columns`. With columns="numbers" every cell must be a number, and
        stays as it is.

        >>> import polars
        >>> rows = {"age": [61, None, 45, 52], "sex": ["f", "m", "m", "f"], "ward": ["a", "a", "b", "b"]}
        >>> frame = polars.DataFrame({**rows, "ill": [True, False, False, True]})
        >>> wards = Federation.from_frame(frame, label="ill", client="ward", features="columns:cell=1", test=0.0)
        >>> wards.task.class_names, wards.task.columns
        (('false', 'true'), ('age', 'age (empty)', 'sex=m'))
        """
        from fedsolve.data.framed import federation_of_frame  # which makes a table of it, and splits that

        return federation_of_frame(
            frame, label=label, client=client, person=person, drop=drop, test=test, seed=seed, task=task,
            columns=columns, date_as=date_as, features=features, name=name,
        )  # fmt: skip

    def with_features(self, features: FeatureMap) -> Federation:
        """The same federation with its inputs replaced by their features; models then start from the raw inputs."""
        task = replace(self.task, features=features)
        done: dict[int, Samples] = {}  # a global test set stands in every client

        def mapped(samples: Samples) -> Samples:
            if id(samples) not in done:
                rows = extract(features, samples.inputs) if len(samples) else np.empty((0, *task.shape))
                done[id(samples)] = read_only(rows, samples.labels)
            return done[id(samples)]

        clients = {n: replace(c, train=mapped(c.train), test=mapped(c.test)) for n, c in self.clients.items()}
        return replace(self, task=task, clients=MappingProxyType(clients))

    def fitted(self, features: str, progress: Progress | None = None) -> Federation:
        """The same federation with features whose specification holds maps that are fitted to its training samples.

        They come from sums over the clients, and are the same however the samples are split.

        >>> wards = Federation.from_arrays({"a": {"train": ([[1.0], [3.0]], [0, 1])}, "b": {"train": ([[5.0]], [1])}})
        >>> wards.fitted("standardise").clients["b"].train.inputs.round(3).tolist()
        [[1.225]]
        """
        if self.task.features != Identity():
            raise ParameterError(
                f"features are {str(self.task.features)[:80]} already; maps are fitted to inputs as they are"
            )
        inputs = [client.train.inputs for client in self.clients.values()]
        return self.with_features(fitting.fit(features, inputs, progress))

    def standardised(self, rest: str = "") -> Federation:
        """The same federation with every number about the federation's mean, over its deviation; then other maps.

        It is short for `fitted("standardise+REST")`.
        """
        return self.fitted(f"{standard.NAME}+{rest}" if rest else standard.NAME)


def _classes_of(
    clients: Mapping[str, Mapping[str, tuple[Array, NDArray[Any]]]],
    classes: int | None,
    class_names: Sequence[str],
    name: str,
) -> Classes:
    """The classes that the labels of all clients are numbers of."""
    if classes is None:
        classes = 1 + max(int(y.max(initial=-1)) for pairs in clients.values() for _, y in pairs.values())
        check_plausible(classes, sum(len(pairs["train"][1]) for pairs in clients.values()), name)
    target = Classes(classes, tuple(class_names))
    for client, pairs in clients.items():
        for part, (_, y) in pairs.items():
            check_range(y, target.count, f"client {client!r}, {part}")
    return target


def federation_of(task: Task, clients: dict[str, Client], name: str, moved: int = 0) -> Federation:
    """The federation of checked clients, with the fingerprint of their names, data and split."""
    target = task.target.fitted(client.train.labels for _, client in sorted(clients.items()))
    task = replace(task, target=target)
    digest = hashlib.sha256(f"{task.classes or target.words()} {task.inputs}".encode())
    # A global test set stands in every client; it is hashed once.
    apart = {id(samples): samples for client in clients.values() for samples in (client.train, client.test)}
    each = side_by_side if sum(map(len, apart.values())) > MANY * len(apart) else map
    content = dict(zip(apart, each(_content, apart.values()), strict=True))
    for _, client in sorted(clients.items()):
        digest.update(client.name.encode() + content[id(client.train)] + content[id(client.test)])
    return Federation(task, MappingProxyType(clients), name, digest.hexdigest()[:16], moved)


def _content(samples: Samples) -> bytes:
    """The digest of inputs and labels."""
    inputs = samples.inputs
    if isinstance(inputs, Cells):
        content = hashlib.sha256(inputs.digest())
    else:
        content = hashlib.sha256(f"{inputs.dtype} {inputs.shape}".encode())
        content.update(np.ascontiguousarray(inputs).data)
    content.update(np.ascontiguousarray(samples.labels).data)
    return content.digest()


def client_names(count: int) -> list[str]:
    """Names for numbered clients, with as many digits as sort by name and by number alike.

    >>> client_names(3)
    ['client-00', 'client-01', 'client-02']
    """
    digits = max(2, len(str(count - 1)))
    return [f"client-{number:0{digits}d}" for number in range(count)]


def check_name(name: str) -> None:
    """Refuse a name that a client cannot have, since names become file names and are shown on terminals."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "global" or len(name.encode()) > 200:
        raise DataError(
            "client names become file names: 1 to 100 characters, no slash, no control character, not starting with a "
            f"dot, not 'global'; got {brief(name)}"
        )
