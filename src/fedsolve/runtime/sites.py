"""Sites: where a client's data, memory and model lie when clients are machines of their own.

Before anything is computed each site describes itself, and `agree` makes the one task of it that all share, or says
which site differs and in what. A site has no other memory than its folder: each request may find a new process.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from fedsolve import codec, methods
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.data import catalog
from fedsolve.data.align import align
from fedsolve.data.federation import Client, Federation, check_name
from fedsolve.data.table import Table
from fedsolve.data.task import Classes, Task
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.features import maps
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.runtime import splits
from fedsolve.runtime.client import Memory, Request, handle
from fedsolve.runtime.policy import OWN, Policy, Refusal

VERSION = metadata.version("fedsolve")
KEPT_RUNS = 3  # folders of private state that a site keeps
_RUN = re.compile(r"[0-9A-Za-z]{1,32}")  # names of runs become names of folders


@dataclass(frozen=True)
class Job:
    """What all sites are told: the method and the features. How a site splits its data is its own affair."""

    method: str
    set: Mapping[str, Any] = field(default_factory=dict)
    features: str = "identity"
    seed: int = 0
    test: float | str = OWN  # where it is a share, sites with another one refuse to answer
    version: str = VERSION  # of fedsolve at the server

    def create(self) -> Method:
        """The method with its parameters."""
        return methods.create(self.method, self.set)


@dataclass(frozen=True)
class Description:
    """What a site tells about its data before anything is computed: no values, but names, sizes and shapes."""

    name: str
    version: str
    task: Task  # as its data alone pose it
    samples: int


@dataclass(frozen=True)
class Rules:
    """How the server treats its sites."""

    sites: tuple[str, ...] = ()  # who is expected; empty: whoever is there
    min_clients: int = 2  # fewer than these, and the run stops
    wait: float = 120.0  # seconds for the expected to appear
    timeout: float = 1800.0  # seconds for an answer
    participation: float = 1.0
    evaluate_every: int = 0  # 0: after the last round only, since each evaluation costs one message per site
    keys: Mapping[str, str] = field(default_factory=dict)  # the public key of each site, where nodes have keys

    def __post_init__(self) -> None:
        for name, low in (("min_clients", 1), ("wait", 0), ("timeout", 1), ("evaluate_every", 0)):
            if not getattr(self, name) >= low:
                label = name.replace("_", "-")
                raise ParameterError(f"{label} must be a number of at least {low}; got {getattr(self, name)!r}")


def to_text(value: Job | Description) -> str:
    """A job or a description as JSON; a task in it as its own text."""
    parts = {item.name: getattr(value, item.name) for item in fields(value)}
    return json.dumps({name: part.to_text() if isinstance(part, Task) else part for name, part in parts.items()})


def from_text(kind: type[Any], text: str) -> Any:
    """The job or description that `to_text` wrote; one with other fields is refused."""
    try:
        values = json.loads(text)
        names = {item.name for item in fields(kind)}
        if not isinstance(values, dict) or set(values) != names:
            raise ValueError(f"wanted {', '.join(sorted(names))}")
        if "task" in values:
            values["task"] = Task.from_text(values["task"])
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise DataError(f"not a {kind.__name__.lower()} that this version of fedsolve understands: {error}") from error


class Host(Protocol):
    """The place where one client's data lie, and what it does there for a run."""

    @property
    def name(self) -> str:
        """The name of the client."""
        ...

    @property
    def state(self) -> Path:
        """The folder of its memory and its models."""
        ...

    @property
    def policy(self) -> Policy | None:
        """Its own rules; none, if it is part of an experiment on one machine."""
        ...

    def account(self) -> Mapping[str, object]:
        """What it answered from, for its own record: how many samples, which split, of which data."""
        ...

    def describe(self, job: Job) -> Description:
        """What it tells about its data."""
        ...

    def client(self, job: Job, task: Task) -> tuple[Task, Client]:
        """The common task with the feature map that is here, and its own data as samples of it."""
        ...


# --- agreement ---


def shared_text(task: Task, job: Job) -> str:
    """A task as all sites are told it: the text is the same wherever the files of the feature map lie."""
    return replace(task, features=Elsewhere(job.features, task.features.identity, task.shape)).to_text()


def agree(descriptions: Mapping[str, Description], job: Job) -> Task:
    """The task that all sites share, or an error that names the site that differs and says in what."""
    features = maps.parse(job.features)
    tasks = {name: descriptions[name].task for name in sorted(descriptions)}
    inputs = Counter(task.inputs for task in tasks.values()).most_common(1)[0][0]
    space = maps.described(features, inputs)
    for name, task in tasks.items():
        if task.described != space:
            words = maps.difference(task.described, space)
            raise DataError(f"site {name!r} has other features than the rest: {words}; nothing was added up")
    texts = [name for name, task in tasks.items() if task.class_names]
    numbers = [name for name, task in tasks.items() if not task.class_names]
    if texts and numbers:
        raise DataError(
            f"the labels of site {texts[0]!r} are texts, those of site {numbers[0]!r} numbers; use one or the other"
        )
    class_names = tuple(sorted(set().union(*(task.class_names for task in tasks.values()))))
    columns = next((task.feature_names for task in tasks.values() if task.feature_names), ())
    for name, task in tasks.items():
        odd = sorted(set(columns) ^ set(task.feature_names))
        if task.feature_names and odd:
            raise DataError(f"the columns of site {name!r} are not those of the rest: {', '.join(odd[:5])} differ")
    classes = len(class_names) or max(task.classes for task in tasks.values())
    return Task(Classes(classes, class_names), inputs, features, columns)


# --- a site with data of its own ---


@dataclass(frozen=True)
class FileSite:
    """A site whose data are a file or a folder of its own, and that answers by rules of its own."""

    name: str
    data: str
    state: Path
    features: str = ""  # where the backbone lies here, if that is not where it lies at the server
    policy: Policy = field(default_factory=Policy)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> FileSite:
        """From the configuration of a node: `client`, `data`, `state`, maybe `features`, and the site's policy."""
        for key in ("client", "data", "state"):
            if not isinstance(config.get(key), str) or not config[key]:
                raise DataError(f'the node\'s configuration lacks {key}="..."; it has {", ".join(config) or "nothing"}')
        place, policy = Path(config["state"]), Policy.of(config)
        return cls(config["client"], config["data"], place, str(config.get("features", "")), policy)

    def account(self) -> dict[str, object]:
        """The split, once something was answered from it."""
        if "_split" not in self.__dict__:
            return {}
        split = self._split
        return {"samples": len(split.train), "test": split.test, "split_seed": split.seed, "data": split.data}

    def describe(self, job: Job) -> Description:
        """The task that its file poses, and how many samples it holds."""
        check_name(self.name)
        table, features = self._rows(job), self._features(job)
        return Description(self.name, VERSION, replace(table.task, features=features), len(table.labels))

    def client(self, job: Job, task: Task) -> tuple[Task, Client]:
        """Classes and columns in the common order, then features, then its own split into training and test.

        Refused is what its policy does not allow: a split that the server asks for, a second split of the same data,
        too few training samples, too few of a class.
        """
        self.policy.check_test(job.test)
        features, test = self._features(job), self.policy.test
        common = task.with_map(features)
        try:
            table = align(self._rows(job), task, self.data)
        except DataError as error:
            raise DataError(f"the data of site {self.name!r} are not what all agreed on: {error}") from error
        if not isinstance(test, str):
            table = replace(table, test=None)
        if features != maps.Identity():
            table = table.with_features(features)
        client = table.owned_by(self.name, seed=self.policy.split_seed, test=test).clients[self.name]
        self.policy.check_counts(client.train.labels, table.target)
        splits.admit(self.state, self._split, self.policy)
        return common, client

    def _features(self, job: Job) -> maps.FeatureMap:
        return maps.parse(self.features or job.features)

    def _rows(self, job: Job) -> Table:
        """Its file, read once per message; pictures that no map reads must have one size, and are read to know it."""
        return self._stacked if self._features(job) == maps.Identity() else self._table

    @cached_property
    def _table(self) -> Table:
        try:
            return catalog.load(self.data)
        except (FedsolveError, OSError) as error:
            if not Path(self.data).exists():
                raise
            words = f"the data of site {self.name!r} cannot be read; there, `fedsolve deploy check` says why"
            raise Refusal(words, str(error)) from error  # the error may quote the file

    @cached_property
    def _split(self) -> splits.Split:
        return splits.Split.of(self._table, self.name, self.policy)

    @cached_property
    def _stacked(self) -> Table:
        return self._table.stacked()


# --- a site that is part of an experiment on one machine ---


@dataclass(frozen=True)
class SplitSite:
    """A site that is a client of a federation which is already there."""

    name: str
    federation: Federation
    state: Path
    policy: None = None

    def account(self) -> dict[str, object]:
        """Nothing: whoever asks has the data."""
        return {}

    def describe(self, job: Job) -> Description:
        """The task of the federation, and how many samples are this client's."""
        client = self.federation.clients[self.name]
        return Description(self.name, VERSION, self.federation.task, len(client.train) + len(client.test))

    def client(self, job: Job, task: Task) -> tuple[Task, Client]:
        """The federation's task, and this client's share of the data."""
        return self.federation.task, self.federation.clients[self.name]


# --- what a site does ---


def opening(job: Job, space: str, message: Arrays) -> Bytes:
    """The first request of a run."""
    return Request("update", 1, job.seed, space, message).write()


def assumption(task: str, request: Bytes) -> str:
    """The digest of what an answer depends on, beside the job and the site's data: the task's text and the request."""
    return hashlib.sha256(task.encode() + b"\0" + request).hexdigest()


def respond(site: Host, job: Job, common: Task, data: Bytes, run: str) -> Bytes:
    """The answer of a site to a request. What it remembers between requests of a run, and its model, stay with it."""
    method, request = job.create(), Request.read(data)
    task, client = site.client(job, common)
    # The first update starts from nothing; what an answer for another task left behind is no memory.
    memory = None if (request.kind, request.round) == ("update", 1) else _recall(site, run)
    memory, answer = handle(method, task, client, memory, request)
    if memory.model is not None:
        folder = _folder(site.state / "models")
        Model(method, task, memory.model, site.name).save(folder / f"{site.name}.safetensors")
    codec.write_file(_memory(site, run), memory.arrays(with_model=False))
    return answer


def forget(site: Host) -> None:
    """Remove the private state of all but the last few runs."""
    runs = sorted((site.state / "runs").glob("*"), key=lambda path: path.stat().st_mtime)
    for path in runs[:-KEPT_RUNS]:
        shutil.rmtree(path, ignore_errors=True)


def _recall(site: Host, run: str) -> Memory | None:
    path = _memory(site, run)
    return Memory.from_arrays(codec.read_file(path)[0]) if path.exists() else None


def _memory(site: Host, run: str) -> Path:
    if not _RUN.fullmatch(run):
        raise DataError(f"a run is called by up to 32 letters and digits; got {run[:40]!r}")
    return _folder(site.state / "runs" / run) / f"{site.name}.safetensors"


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {path}: {error.strerror or error}") from error
    return path
