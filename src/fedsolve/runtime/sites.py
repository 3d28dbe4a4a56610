"""Sites: where a client's data, memory and model lie when clients are machines of their own.

A site has no other memory than its folder: each request may find a new process. What it is told, and what it tells of
itself, is in `job`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from fedsolve import codec, disk, methods
from fedsolve.arrays import Array, Arrays
from fedsolve.codec import Bytes
from fedsolve.data import catalog
from fedsolve.data.align import align
from fedsolve.data.federation import Client, Federation, check_name
from fedsolve.data.large import Large, large
from fedsolve.data.parts import Parquet
from fedsolve.data.reading import Reading
from fedsolve.data.samples import Samples
from fedsolve.data.table import Table
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import fitting, maps
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.privacy.account import LARGEST_EPSILON
from fedsolve.privacy.budget import Budget
from fedsolve.privacy.policy import Policy, Refusal
from fedsolve.runtime import splits
from fedsolve.runtime.agreement import check_terms
from fedsolve.runtime.client import Memory, Request, handle
from fedsolve.runtime.fitting import NAME as FITTING
from fedsolve.runtime.fitting import Fitting
from fedsolve.runtime.job import VERSION, Description, Job

if TYPE_CHECKING:
    from fedsolve.privacy.protocol import Member

KEYS, VAULTS, SPENT = "keys", "secure", "spent.json"  # in the folder of a site's state
KEPT_RUNS = 3  # folders of private state that a site keeps
_RUN = re.compile(r"[0-9A-Za-z]{1,32}")  # names of runs become names of folders


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

    def method(self, job: Job) -> Method:
        """The method that the job names, as it can be had here."""
        ...

    def member(self, job: Job, terms: str) -> Member:
        """What it brings along to secure sums, on these terms; refused where it has no keys."""
        ...

    def spend(self, mu: float) -> None:
        """Note that a reply with noise goes out, or refuse it."""
        ...


# --- a site with data of its own ---


@dataclass(frozen=True)
class FileSite:
    """A site whose data are a file or a folder of its own, and that answers by rules of its own."""

    name: str
    data: str
    state: Path
    features: str = ""  # what the feature map is here; needed where it takes a network
    model: str = ""  # the network of the users' own that jobs may name, package.module:factory
    policy: Policy = field(default_factory=Policy)
    reading: Reading = field(default_factory=Reading)  # which columns of its table are what
    keys: Path | None = None  # the folder of its keys for secure sums
    stream: bool = False  # whether its table is Parquet that is read in blocks, and need not fit into memory

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> FileSite:
        """From the configuration of a node: `client`, `data`, `state`, maybe `features`, `model`, and its policy."""
        for key in ("client", "data", "state"):
            if not isinstance(config.get(key), str) or not config[key]:
                raise DataError(f'the node\'s configuration lacks {key}="..."; it has {", ".join(config) or "nothing"}')
        places = str(config.get("features", "")), str(config.get("model", ""))
        rules, keys = (Policy.of(config), Reading.of(config)), str(config.get("keys", ""))
        state = Path(config["state"])
        stream = str(config.get("stream", "")).strip().lower() == "yes"
        return cls(config["client"], config["data"], state, *places, *rules, Path(keys) if keys else None, stream)

    def account(self) -> dict[str, object]:
        """The split, once something was answered from it."""
        if "_split" not in self.__dict__:
            return {}
        split = self._split
        samples = len(split.train) if isinstance(split, splits.Split) else split.rows
        return {"samples": samples, "test": split.test, "split_seed": split.seed, "data": split.data}

    def describe(self, job: Job) -> Description:
        """The task that its file poses, and how many samples it holds."""
        check_name(self.name)
        self._admit(job)
        features, table = self._features(job), self._rows(job)
        if isinstance(table, Table):
            whole, target = (
                Samples(cast(Array, table.inputs), table.labels),
                self.policy.told(table.target, table.labels),
            )
        else:
            whole, target = table.samples(), self.policy.told_fitted(table.task.target, table.rows)
        task = replace(table.task, features=features, target=target)
        return Description(self.name, VERSION, task, len(whole), self._words(job, whole), self.policy.words())

    def _words(self, job: Job, whole: Samples) -> str:
        """Levels that enough rows have, by name, for a map that is fitted in secure sums."""
        fit = self.method(job) if job.method == FITTING and job.quorum else None
        return fit.named(whole) if isinstance(fit, Fitting) and fit.needs_words else ""

    def _admit(self, job: Job) -> None:
        """Refuse a job that the policy does not allow. Noise that the server adds is none to the site.

        Nor is noise that more sites are said to share than a sum has at least: each would add next to nothing.
        """
        noise = job.noisy()
        if noise is not None:
            noise.check_shared(job.quorum)
        epsilon = noise.epsilon if noise and noise.by == "sites" else None
        method = "" if job.method == FITTING else job.method
        thin = bool(job.set.get("thin"))
        self.policy.admit(method, job.features, quorum=job.quorum, epsilon=epsilon, thin=thin)

    def client(self, job: Job, task: Task) -> tuple[Task, Client]:
        """Classes and columns in the common order, then features, then its own split into training and test.

        Refused is what its policy does not allow: a split that the server asks for, a second split of the same data,
        too few training samples, too few of a class.
        """
        self._admit(job)
        self.policy.check_test(job.test)
        features, rows, test = self._features(job), self._rows(job), self.policy.test
        check_terms(task, rows.task, self.name)
        common = task.with_map(features)
        try:
            table = align(rows, task, self.data) if isinstance(rows, Table) else rows.aligned(task)
        except DataError as error:
            raise DataError(f"the data of site {self.name!r} are not what all agreed on: {error}") from error
        if isinstance(table, Table) and not isinstance(test, str):
            table = replace(table, test=None)
        if features != maps.Identity():
            table = table.with_features(features)
        client = table.client_of(self.name, seed=self.policy.split_seed, test=test)
        seen = not job.quorum and not job.noise  # so that the server sees its sums as they are
        sums = seen and job.method != FITTING and self.method(job).closed_form
        self.policy.check_samples(client.train, task.target, common.columns if sums else None)
        splits.admit(self.state, self._split, self.policy)
        return common, client

    def method(self, job: Job) -> Method:
        """The method of the job; a network of the users' own is imported if the site itself names it, too."""
        if job.method == FITTING:
            return replace(Fitting(**job.set), told_from=self.policy.min_cell)
        return methods.restored(job.method, job.set, model=self.model)

    def member(self, job: Job, terms: str) -> Member:
        """Its keys and those it has pinned, in its folder; a sum is over no fewer sites than the job says."""
        if self.keys is None:
            raise DataError("it has no keys for secure sums; there, `fedsolve deploy join` makes them")
        from fedsolve.privacy.credentials import IDENTITY, PEERS

        files = self.keys / IDENTITY, self.keys / PEERS
        quorum = max(self.policy.quorum, job.quorum)
        return _member(self.name, *files, quorum=quorum, data=self._split.data, terms=terms)

    def spend(self, mu: float) -> None:
        """Into its own account of these data, up to its own limit."""
        limit = LARGEST_EPSILON if self.policy.epsilon_max is None else self.policy.epsilon_max
        Budget(self.state / SPENT, limit).spend(self._split.data, mu)

    def _features(self, job: Job) -> maps.FeatureMap:
        """The map of the site's own setting, else the job's, if that takes words alone.

        One of the site's own that is not the job's is told by its identity, for the server to see, and is not opened.
        A map that is fitted in the run, and numbers that were fitted before, are the site's to name: who chooses them
        chooses thresholds, and so whom they single out.
        """
        if job.method == FITTING:
            self._check_fitted(str(job.set.get("features", "")))
            return maps.Identity()
        told = Elsewhere(job.features, job.identity or job.features, ())
        to_fit = bool(self.features) and fitting.unfitted(self.features)
        if to_fit and not fitting.fits(self.features, job.features):
            return Elsewhere(self.features, self.features, ())
        if self.features and not to_fit and not maps.matches(self.features, told.identity):
            return Elsewhere(self.features, maps.seal(self.features), ())
        features = maps.from_words(told, self._table.task.inputs, "" if to_fit else self.features)
        if features is told:
            raise DataError(f"{told.refusal()}; a site says it with FEATURES in its site.env")
        if fitting.numbered(job.features) and not self.features:
            raise DataError("fitted numbers must be the site's own word, too: FEATURES in its site.env says them")
        return features

    def _check_fitted(self, text: str) -> None:
        """Refuse to fit any other map than the one that the site names."""
        if not self.features or Fitting(self.features) != Fitting(text):
            named = f"{self.features[:80]!r}" if self.features else "none"
            raise DataError(
                f"a map is fitted to the data of site {self.name!r} if its site.env names it: FEATURES={text[:80]}; it "
                f"names {named}"
            )

    def _rows(self, job: Job) -> Table | Large:
        """Its file, read once per message; pictures that no map reads must have one size, and are read to know it."""
        table = self._table
        if isinstance(table, Large):
            return self.policy.checked_stream(table)
        return self.policy.checked(self._stacked if self._features(job) == maps.Identity() else table)

    @cached_property
    def _table(self) -> Table | Large:
        try:
            reading = self.reading.for_features(self.features)
            return large(Parquet.of(self.data), reading) if self.stream else catalog.load(self.data, reading=reading)
        except (FedsolveError, OSError) as error:
            if not Path(self.data).exists():
                raise
            words = f"the data of site {self.name!r} cannot be read; there, `fedsolve deploy check` says why"
            raise Refusal(words, str(error)) from error  # the error may quote the file

    @cached_property
    def _split(self) -> splits.Split | splits.Sketch:
        table = self._table
        kind = splits.Sketch if isinstance(table, Large) else splits.Split
        return kind.of(table, self.name, self.policy)  # type: ignore[arg-type]

    @cached_property
    def _stacked(self) -> Table:
        table = self._table
        if isinstance(table, Large):
            raise DataError("a stream holds rows of a table, and no pictures")
        return table.stacked()


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

    def method(self, job: Job) -> Method:
        """The method of the job, whose writer is on this machine."""
        return job.create()

    def member(self, job: Job, terms: str) -> Member:
        """Keys that were made for the run."""
        from fedsolve.privacy.credentials import PEERS

        folder = self.state / KEYS
        return _member(self.name, folder / f"{self.name}.key", folder / PEERS, quorum=job.quorum, terms=terms)

    def spend(self, mu: float) -> None:
        """Nothing: whoever asks has the data."""


def _member(name: str, identity: Path, peers: Path, **words: Any) -> Member:
    from fedsolve.privacy.credentials import read_identity, read_peers  # need a package that not everybody has
    from fedsolve.privacy.protocol import Member

    return Member(name, read_identity(identity), read_peers(peers), **words)


# --- what a site does ---


def opening(job: Job, space: str, message: Arrays) -> Bytes:
    """The first request of a run."""
    return Request("update", 1, job.seed, space, message).write()


def assumption(task: str, request: Bytes) -> str:
    """The digest of what an answer depends on, beside the job and the site's data: the task's text and the request."""
    return hashlib.sha256(task.encode() + b"\0" + request).hexdigest()


def terms(job: str, task: str) -> str:
    """The digest of what all sites are told beside a request: the texts of the job and of the task."""
    return hashlib.sha256(job.encode() + b"\0" + task.encode()).hexdigest()


def respond(site: Host, job: Job, common: Task, data: Bytes, run: str, told: str = "") -> Bytes:
    """The answer of a site to a request. What it remembers between requests of a run, and its model, stay with it.

    `told` are the terms that a secure sum is bound to.
    """
    method, request = site.method(job), Request.read(data)
    task, client = site.client(job, common)
    # The first update starts from nothing; what an answer for another task left behind is no memory.
    memory = None if (request.kind, request.round) == ("update", 1) else _recall(site, job, run)
    member = site.member(job, told) if job.quorum else None

    def act(kept: Arrays) -> tuple[Arrays, tuple[Memory, Bytes]]:
        before = memory and replace(memory, secure=kept)
        after, answer = handle(
            method, task, client, before, request, member=member, noise=job.noisy(), spend=site.spend, kept=kept
        )
        return after.secure, (replace(after, secure={}), answer)

    if member is None:
        _, (memory, answer) = act({})
    else:
        from fedsolve.runtime import vault  # needs a package that not everybody has

        memory, answer = vault.using(site.state / VAULTS / site.name, act)
    if memory.model is not None:
        folder = disk.private_folder(site.state / "models")
        Model(method, task, memory.model, site.name).save(folder / f"{site.name}.safetensors")
    codec.write_file(_memory(site, job, run), memory.arrays(with_model=False))
    return answer


def forget(site: Host) -> None:
    """Remove the private state of all but the last few runs, and secrets of a secure sum that came to nothing."""
    if (vaults := site.state / VAULTS / site.name).exists():
        from fedsolve.runtime import vault

        vault.forget(vaults)
    runs = sorted((site.state / "runs").glob("*"), key=lambda path: path.stat().st_mtime)
    for path in runs[:-KEPT_RUNS]:
        shutil.rmtree(path, ignore_errors=True)


def _recall(site: Host, job: Job, run: str) -> Memory | None:
    path = _memory(site, job, run)
    return Memory.from_arrays(codec.read_file(path)[0]) if path.exists() else None


def _memory(site: Host, job: Job, run: str) -> Path:
    """Where a site remembers: apart for the rounds in which a map is fitted, which come before a run's own."""
    if not _RUN.fullmatch(run):
        raise DataError(f"a run is called by up to 32 letters and digits; got {run[:40]!r}")
    kind = f"-{FITTING}" if job.method == FITTING else ""
    return disk.private_folder(site.state / "runs" / run) / f"{site.name}{kind}.safetensors"
