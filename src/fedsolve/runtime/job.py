"""What a server tells its sites, and what they tell of themselves before anything is computed: texts, and no values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from typing import Any

from fedsolve import methods
from fedsolve.census import MOST_SAMPLES
from fedsolve.data.federation import check_name
from fedsolve.data.task import Task
from fedsolve.errors import DataError, ParameterError, brief, plain, unknown
from fedsolve.features import maps
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.method import Method
from fedsolve.privacy.noise import Noise
from fedsolve.privacy.policy import OWN
from fedsolve.runtime.agreement import Agreement, agreement
from fedsolve.runtime.turnout import Participation
from fedsolve.texts import read_json

VERSION = metadata.version("fedsolve")
LONGEST_TEXT = 20_000_000  # characters of a description: more than all names that it may tell take


@dataclass(frozen=True)
class Job:
    """What all sites are told: the method and the features. How a site splits its data is its own affair.

    Whoever wrote it may name files and modules in it, and opens them. To a site they are words: it builds a method with
    `restored` and features from their identity, and what they take beside words is named by the site.
    """

    method: str
    set: Mapping[str, Any] = field(default_factory=dict)
    features: str = "identity"
    seed: int = 0
    test: float | str = OWN  # where it is a share, sites with another one refuse to answer
    version: str = VERSION  # of fedsolve at the server
    identity: str = ""  # of the features; `identified` fills it in
    quorum: int = 0  # of the secure sums that replies are added up in; 0: the server sees each reply
    noise: Mapping[str, Any] = field(default_factory=dict)  # the fields of `fedsolve.Noise`; empty: there is none

    def __post_init__(self) -> None:
        if type(self.quorum) is not int or self.quorum < 0 or not isinstance(self.noise, Mapping):
            raise ParameterError(f"a job has a quorum and noise; got {brief(self.quorum)} and {brief(self.noise)}")
        if self.noise:
            self.noisy()

    def create(self) -> Method:
        """The method with its parameters, for whoever wrote the job."""
        return methods.create(self.method, self.set)

    def noisy(self) -> Noise | None:
        """The noise that hides single records, where there is any."""
        try:
            return Noise(**self.noise) if self.noise else None
        except TypeError as error:
            raise ParameterError(
                f"noise has {', '.join(each.name for each in fields(Noise))}; got {brief(self.noise)}"
            ) from error

    def identified(self) -> Job:
        """The same job with the identity of its features, which are opened here; for whoever wrote it."""
        return replace(self, identity=maps.parse(self.features).identity)


@dataclass(frozen=True)
class Description:
    """What a site tells about its data before anything is computed: no values, but names, sizes and shapes."""

    name: str
    version: str
    task: Task  # as its data alone pose it
    samples: int
    words: str = ""  # levels of its columns, where they must be known before sums can be added under masks
    policy: str = ""  # its own rules in short, for the operator of the server

    def __post_init__(self) -> None:
        check_name(self.name)
        texts = all(isinstance(text, str) for text in (self.version, self.words, self.policy))
        if not texts or not isinstance(self.task, Task):
            raise DataError(
                f"version and task must be a text and a task; got {self.version!r:.50} and {self.task!r:.50}"
            )
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or not 0 <= self.samples <= MOST_SAMPLES:
            raise DataError(f"samples must be a whole number from 0 to {MOST_SAMPLES}; got {self.samples!r:.50}")


@dataclass(frozen=True)
class Rules:
    """How the server treats its sites."""

    sites: tuple[str, ...] = ()  # who is expected; empty: whoever is there
    min_clients: int = 2  # fewer than these, and the run stops
    wait: float = 120.0  # seconds for the expected to appear
    timeout: float = 1800.0  # seconds for an answer
    participation: Participation = 1.0
    evaluate_every: int = 0  # 0: after the last round only, since each evaluation costs one message per site
    keys: Mapping[str, str] = field(default_factory=dict)  # the public key of each site, where nodes have keys
    exclude: tuple[str, ...] = ()  # who is left out on purpose, and not expected

    def __post_init__(self) -> None:
        for name in ("sites", "exclude"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in self.exclude if self.sites else ():
            if name not in self.sites:
                raise unknown("site", name, self.sites)
        if self.sites and not set(self.sites) - set(self.exclude):
            raise ParameterError("exclude leaves no site over; name fewer")
        for name, low in (("min_clients", 1), ("wait", 0), ("timeout", 1), ("evaluate_every", 0)):
            if not getattr(self, name) >= low:
                label = name.replace("_", "-")
                raise ParameterError(f"{label} must be a number of at least {low}; got {getattr(self, name)!r}")

    @property
    def expected(self) -> tuple[str, ...]:
        """Who is expected and not left out on purpose; empty: whoever is there."""
        return tuple(name for name in self.sites if name not in self.exclude)


def to_text(value: Job | Description) -> str:
    """A job or a description as JSON; a task in it as its own text."""
    parts = {item.name: getattr(value, item.name) for item in fields(value)}
    return json.dumps({name: part.to_text() if isinstance(part, Task) else part for name, part in parts.items()})


def from_text(kind: type[Any], text: str) -> Any:
    """The job or description that `to_text` wrote; one with other fields, or of other kinds, is refused."""
    try:
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"a text of {len(text)} characters")
        values = read_json(text, "its text")
        names = {item.name for item in fields(kind)}
        if not isinstance(values, dict) or set(values) != names:
            raise ValueError(f"wanted {', '.join(sorted(names))}")
        if "task" in values:
            values["task"] = Task.from_text(values["task"])
        return kind(**values)
    except (ValueError, TypeError) as error:
        words = f"not a {kind.__name__.lower()} that this version of fedsolve understands"
        raise DataError(f"{words}: {plain(str(error))}") from error


def shared_text(task: Task, job: Job) -> str:
    """A task as all sites are told it: the text is the same wherever the files of the feature map lie."""
    return replace(task, features=Elsewhere(job.features, task.features.identity, task.shape)).to_text()


def agree(descriptions: Mapping[str, Description], job: Job) -> Task:
    """The task that all sites share, or an error that names the site that differs and says in what."""
    return agreed(descriptions, job).task


def agreed(descriptions: Mapping[str, Description], job: Job, quorum: int | None = None) -> Agreement:
    """The task that all sites share, or at least so many, with the reasons why others are left out."""
    tasks = {name: description.task for name, description in descriptions.items()}
    samples = {name: description.samples for name, description in descriptions.items()}
    return agreement(tasks, samples, maps.parse(job.features), quorum)
