"""Sites: where a client's data, memory and model lie when clients are machines of their own.

Before anything is computed each site describes itself, and `agree` makes the one task of it that all share, or says
which site differs and in what. A site has no other memory than its folder: each request may find a new process.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsolve import codec, methods
from fedsolve.arrays import Arrays, take
from fedsolve.codec import Bytes
from fedsolve.data import catalog
from fedsolve.data.federation import Client, Federation, Samples, Table, Task, check_name
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import maps
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.runtime.loop import Request, handle

VERSION = metadata.version("fedsolve")
KEPT_RUNS = 3  # folders of private state that a site keeps


@dataclass(frozen=True)
class Job:
    """What all sites are told: the method, the features and how each splits its data."""

    method: str
    set: Mapping[str, Any] = field(default_factory=dict)
    features: str = "identity"
    seed: int = 0
    test: float | str = 0.2
    version: str = VERSION  # of fedsolve at the server

    def create(self) -> Method:
        """The method."""
        return methods.create(self.method, self.set)


@dataclass(frozen=True)
class Description:
    """What a site tells about its data before anything is computed: no values, but names, sizes and shapes."""

    name: str
    version: str
    classes: int
    class_names: tuple[str, ...]
    inputs: tuple[int, ...]
    feature_names: tuple[str, ...]
    space: str  # the feature space in words
    samples: int


@dataclass(frozen=True)
class Terms:
    """What all sites agreed on; with the job it makes the task."""

    classes: int
    class_names: tuple[str, ...]
    inputs: tuple[int, ...]
    feature_names: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """How the server treats its sites."""

    sites: tuple[str, ...] = ()  # who is expected; empty: whoever is there
    min_clients: int = 2  # fewer than these, and the run stops
    wait: float = 120.0  # seconds for the expected to appear
    timeout: float = 1800.0  # seconds for an answer
    participation: float = 1.0
    evaluate_every: int = 0  # 0: after the last round only, since each evaluation costs a message a site
    keys: Mapping[str, str] = field(default_factory=dict)  # the public key of each site, where nodes have keys

    def __post_init__(self) -> None:
        for name, low in (("min_clients", 1), ("wait", 0), ("timeout", 1), ("evaluate_every", 0)):
            if not getattr(self, name) >= low:
                shown = name.replace("_", "-")
                raise ParameterError(f"{shown} must be a number of at least {low}; got {getattr(self, name)!r}")


def to_text(value: Job | Description | Terms) -> str:
    """As JSON."""
    return json.dumps(asdict(value))


def from_text(kind: type[Any], text: str) -> Any:
    """The inverse of `to_text`."""
    try:
        found = json.loads(text)
        known = {item.name for item in fields(kind)}
        if not isinstance(found, dict) or set(found) != known:
            raise ValueError(f"wanted {', '.join(sorted(known))}")
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})
    except (ValueError, TypeError) as error:
        raise DataError(f"not a {kind.__name__.lower()} that this version of fedsolve understands: {error}") from error


class Site(Protocol):
    """One client's place."""

    @property
    def name(self) -> str:
        """The client's."""
        ...

    @property
    def state(self) -> Path:
        """Its folder."""
        ...

    def describe(self, job: Job) -> Description:
        """What it tells about its data."""
        ...

    def client(self, job: Job, terms: Terms) -> tuple[Task, Client]:
        """The common task, and its own data as samples of it."""
        ...


# --- agreement ---


def agree(descriptions: Mapping[str, Description], job: Job) -> tuple[Task, Terms]:
    """The task that all sites share, or an error that names the site that differs and says in what."""
    features = maps.parse(job.features)
    every = [descriptions[name] for name in sorted(descriptions)]
    inputs = Counter(site.inputs for site in every).most_common(1)[0][0]
    wanted = maps.described(features, inputs)
    for site in every:
        if site.space != wanted:
            words = maps.difference(site.space, wanted)
            raise DataError(f"site {site.name!r} has other features than the rest: {words}; nothing was added up")
    texts = [site.name for site in every if site.class_names]
    numbers = [site.name for site in every if not site.class_names]
    if texts and numbers:
        raise DataError(
            f"the labels of site {texts[0]!r} are texts, those of site {numbers[0]!r} numbers; use one or the other"
        )
    class_names = tuple(sorted(set().union(*(site.class_names for site in every))))
    columns = next((site.feature_names for site in every if site.feature_names), ())
    for site in every:
        odd = sorted(set(columns) ^ set(site.feature_names))
        if site.feature_names and odd:
            raise DataError(f"the columns of site {site.name!r} are not those of the rest: {', '.join(odd[:5])} differ")
    terms = Terms(len(class_names) or max(site.classes for site in every), class_names, inputs, columns)
    return Task(terms.classes, inputs, features, class_names, columns), terms


def own_terms(site: Description) -> Terms:
    """What would be agreed on if all sites were like this one."""
    return Terms(site.classes, site.class_names, site.inputs, site.feature_names)


# --- a site with data of its own ---


@dataclass(frozen=True)
class FileSite:
    """A site whose data are a file or a folder of its own."""

    name: str
    data: str
    state: Path
    features: str = ""  # where the backbone lies here, if that is not where it lies at the server

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> FileSite:
        """From the configuration of a node: `client`, `data`, `state`, and maybe `features`."""
        for key in ("client", "data", "state"):
            if not isinstance(config.get(key), str) or not config[key]:
                raise DataError(f'the node\'s configuration lacks {key}="..."; it has {", ".join(config) or "nothing"}')
        return cls(config["client"], config["data"], Path(config["state"]), str(config.get("features", "")))

    def describe(self, job: Job) -> Description:
        """Of its file."""
        table = catalog.load(self.data)
        task = self._task(job, table)
        return Description(
            name=self.name,
            version=VERSION,
            classes=table.classes,
            class_names=table.class_names,
            inputs=task.inputs,
            feature_names=table.feature_names,
            space=task.described,
            samples=len(table.labels),
        )

    def client(self, job: Job, terms: Terms) -> tuple[Task, Client]:
        """Classes and columns in the common order, then features, then its own split into training and test."""
        table = _in_common_order(catalog.load(self.data), terms, self.name)
        if not isinstance(job.test, str):
            table = replace(table, test=None)
        features = self._features(job)
        if features != maps.Identity():
            table = table.with_features(features)
        own = replace(table, client=self._owned(table)).split("by-client", seed=job.seed, test=job.test)
        return own.task, own.clients[self.name]

    def _features(self, job: Job) -> maps.FeatureMap:
        return maps.parse(self.features or job.features)

    def _task(self, job: Job, table: Table) -> Task:
        check_name(self.name)
        features, shape = self._features(job), table.raw
        if features == maps.Identity() and not isinstance(table.inputs, np.ndarray):
            shape = table.inputs.stacked().shape[1:]  # pictures must have one size, and be read to know it
        return Task(table.classes, shape, features)

    def _owned(self, table: Table) -> NDArray[np.str_]:
        """All rows are the site's, whatever its file says of clients."""
        return np.full(len(table.labels), self.name)


def _in_common_order(table: Table, terms: Terms, name: str) -> Table:
    """The same rows with classes numbered, and columns ordered, as all sites agreed."""
    place = {known: number for number, known in enumerate(terms.class_names)}
    strange = sorted(set(table.class_names) - set(place))
    if strange or table.classes > terms.classes:
        raise DataError(
            f"the data of site {name!r} changed since it described them: {strange or table.classes} classes"
        )
    if table.class_names:
        numbers = np.array([place[known] for known in table.class_names], dtype=np.int64)
        test = table.test
        if test is not None:
            test = replace(test, labels=numbers[test.labels])
        table = replace(table, labels=numbers[table.labels], test=test)
    if table.feature_names and table.feature_names != terms.feature_names:
        order = [table.feature_names.index(column) for column in terms.feature_names]
        test = table.test
        if isinstance(test, Samples):
            test = replace(test, inputs=test.inputs[:, order])
        if isinstance(table.inputs, np.ndarray):
            table = replace(table, inputs=table.inputs[:, order], test=test)
    return replace(table, classes=terms.classes, class_names=terms.class_names, feature_names=terms.feature_names)


# --- a site that is part of an experiment on one machine ---


@dataclass(frozen=True)
class SplitSite:
    """A site that is a client of a federation which is already there."""

    name: str
    federation: Federation
    state: Path

    def describe(self, job: Job) -> Description:
        """Of its share."""
        task, own = self.federation.task, self.federation.clients[self.name]
        return Description(
            name=self.name,
            version=VERSION,
            classes=task.classes,
            class_names=task.class_names,
            inputs=task.inputs,
            feature_names=task.feature_names,
            space=task.described,
            samples=len(own.train) + len(own.test),
        )

    def client(self, job: Job, terms: Terms) -> tuple[Task, Client]:
        """Its share."""
        return self.federation.task, self.federation.clients[self.name]


# --- what a site does ---


def opening(job: Job, space: str, message: Arrays) -> Bytes:
    """The first request of a run."""
    return Request("update", 1, job.seed, space, message).write()


def assumption(terms: Terms, request: Bytes) -> str:
    """The digest of what an answer depends on, beside the job and the site's data."""
    return hashlib.sha256(to_text(terms).encode() + b"\0" + request).hexdigest()


def respond(site: Site, job: Job, terms: Terms, data: Bytes, run: str) -> Bytes:
    """The answer of a site to a request. What it remembers between requests of a run, and its model, stay with it."""
    method, request = job.create(), Request.read(data)
    task, client = site.client(job, terms)
    # The first update starts from nothing; what an answer under other terms left behind is no memory.
    memory = None if (request.kind, request.round) == ("update", 1) else _recall(site, run)
    memory, answer = handle(method, task, client, memory, request)
    model = take("model", memory)
    if request.kind == "evaluate":
        folder = _folder(site.state / "models")
        Model(method, task, model, site.name).save(folder / f"{site.name}.safetensors")
    kept = {name: array for name, array in memory.items() if not name.startswith("model/")}
    codec.write_file(_memory(site, run), kept)
    return answer


def forget(site: Site) -> None:
    """Remove the private state of all but the last few runs."""
    runs = sorted((site.state / "runs").glob("*"), key=lambda path: path.stat().st_mtime)
    for path in runs[:-KEPT_RUNS]:
        shutil.rmtree(path, ignore_errors=True)


def _recall(site: Site, run: str) -> Arrays | None:
    path = _memory(site, run)
    return codec.read_file(path)[0] if path.exists() else None


def _memory(site: Site, run: str) -> Path:
    return _folder(site.state / "runs" / run) / f"{site.name}.safetensors"


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {path}: {error.strerror or error}") from error
    return path
