"""Runs on disk and what they say: sections that share data and split, groups over seeds, figures per client.

How result.json is laid out is known here and in `resultfile.py`, which checks it. Format 1 has accuracies as plain
numbers; format 2 has the same and, beside them, every metric by name.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from fedsolve import codec
from fedsolve.arrays import finite
from fedsolve.errors import DataError, plain
from fedsolve.resultfile import read_failure, read_result
from fedsolve.study.compare import FAILURE

Column: TypeAlias = Literal["own", "global", "alone"]
"""Which model of a client a figure is of: its own, the one global model, or that of training alone."""

# Settings that decide which samples each client trains and is tested on. Runs that differ in one are never compared.
_SPLIT = (
    "data", "label", "client", "drop", "task", "columns", "limit", "skip_broken", "clients", "partition", "test",
    "min_samples",
)  # fmt: skip
# Of no consequence for the method's own figures: `alone` only adds figures beside them.
_IGNORED = ("method", "set", "rounds", "seed", "alone")


@dataclass(frozen=True)
class RunFile:
    """A run on disk, or why there is none."""

    place: Path
    method: str
    seed: int
    result: Mapping[str, Any]  # result.json
    weights: np.ndarray[Any, Any] | None = None  # who listens to whom, where a method learns that
    failure: str = ""

    @property
    def clients(self) -> Mapping[str, Mapping[str, Any]]:
        """What result.json says of each client, by name."""
        clients: Mapping[str, Mapping[str, Any]] = self.result.get("clients", {})
        return clients

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings it was run with; fewer where it was run from Python."""
        settings: Mapping[str, Any] = self.result.get("settings", {})
        return settings

    def number(self, *path: str) -> float | None:
        """A number somewhere in result.json, None where it is not there."""
        return _number(self.result, *path)

    def summary(self, part: str, metric: str = "accuracy") -> float | None:
        """A metric over clients: its `mean`, `pooled`, `std` or `worst_decile`."""
        plain = self.number("accuracy", part) if metric == "accuracy" else None
        return plain if plain is not None else self.number("metrics", metric, part)

    def figures(self, whose: Column = "own", metric: str = "accuracy") -> dict[str, float]:
        """A metric of each client that has it."""
        values = {name: client_figure(figures, whose, metric) for name, figures in sorted(self.clients.items())}
        return {name: value for name, value in values.items() if value is not None}

    def mean(self, whose: Column = "own", metric: str = "accuracy") -> float | None:
        """The mean of a metric over clients, as result.json has it, or else of their figures."""
        stored = self.summary("mean", metric) if whose == "own" else None
        if stored is not None:
            return stored
        values = self.figures(whose, metric)
        return statistics.fmean(values.values()) if values else None

    def metrics(self) -> list[str]:
        """Names of the metrics that it has, its clients' included."""
        tables = [self.result.get("metrics")]
        for figures in self.clients.values():
            tables += [figures.get("metrics"), figures.get("global"), figures.get("alone")]
        return list(dict.fromkeys(name for table in tables if isinstance(table, Mapping) for name in table))

    def history(self) -> dict[int, float]:
        """The mean accuracy after each round in which it was evaluated."""
        values: dict[int, float] = {}
        for line in self.result.get("history", ()):
            for path in (("accuracy",), ("metrics", "accuracy"), ("metrics", "accuracy", "mean")):
                value = _number(line, *path)
                if value is not None:
                    values[int(line["round"])] = value
                    break
        return values


def client_figure(figures: Mapping[str, Any], whose: Column = "own", metric: str = "accuracy") -> float | None:
    """A metric of one client, in both formats of result.json.

    >>> client_figure({"accuracy": 0.9, "alone": 0.8}, "alone")
    0.8
    >>> client_figure({"accuracy": 0.9, "metrics": {"auc": 0.95}, "alone": {"accuracy": 0.8, "auc": 0.85}}, "alone")
    0.8
    """
    paths: list[tuple[str, ...]] = [("metrics" if whose == "own" else whose, metric)]
    if metric == "accuracy":
        paths.insert(0, ("accuracy" if whose == "own" else whose,))
    return next((value for path in paths if (value := _number(figures, *path)) is not None), None)


def _number(content: Any, *path: str) -> float | None:
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    if isinstance(content, bool) or not isinstance(content, int | float) or not math.isfinite(content):
        return None
    return float(content)


def entries(folders: Iterable[Path]) -> list[RunFile]:
    """The runs in folders, and in the folders below them."""
    places: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}")
        below = [path for name in ("result.json", FAILURE) for path in folder.rglob(name)]
        marks = sorted(path for path in below if _in_sight(folder, path))
        if not marks:
            raise DataError(f"{folder} holds no results: neither a result.json nor a folder with one")
        places |= dict.fromkeys(path.parent for path in marks)
    return [_entry(place) for place in places]


def _in_sight(folder: Path, path: Path) -> bool:
    """Whether nothing between a folder and a path below it is hidden: results under way are, and killed ones."""
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


def _entry(place: Path) -> RunFile:
    if not (place / "result.json").is_file():
        failure = read_failure(place / FAILURE)
        reason = plain(failure["reason"])
        return RunFile(place, plain(failure["method"]), failure["seed"], {}, failure=reason)
    result = read_result(place / "result.json")
    weights = None
    if result["method"] == "fedapa":
        weights = codec.read_file(place / "state.safetensors")[0].get("weights")
        if weights is not None and (weights.ndim != 2 or not weights.size or not finite(weights)):
            raise DataError(f"{place / 'state.safetensors'} is damaged: its weights must be a matrix of finite numbers")
    return RunFile(place, plain(result["method"]), result["settings"].get("seed", 0), result, weights)


# --- what tells runs apart ---


def split_of(run: RunFile) -> dict[str, Any]:
    """What decides which samples each client has: of two runs with the same, only the seed draws differently."""
    split = {name: run.settings.get(name) for name in _SPLIT}
    about = run.result.get("data", {})
    if split["data"] is None:
        # From Python or from sites: there is a name that tells little, and a fingerprint where the data were at hand.
        split["data"] = about.get("name")
        split["fingerprint"] = about.get("fingerprint") or ", ".join(sorted(run.clients))
    elif split["partition"] == "by-client" and split["limit"] and not str(split["data"]).startswith("synthetic:"):
        split["clients"] = None  # as many as the seed's draw left: an outcome, not a choice
    return split


def _surroundings(run: RunFile) -> dict[str, Any]:
    return {name: value for name, value in run.settings.items() if name not in (*_SPLIT, *_IGNORED)}


def _parameters(run: RunFile) -> dict[str, Any]:
    rounds = run.settings.get("rounds")
    return {**run.settings.get("set", {}), **({} if rounds is None else {"rounds": rounds})}


def _key(values: Mapping[str, Any]) -> str:
    """Equal for equal values: 1 and 1.0 are, and what is not there is None."""
    plain = {name: _plain(value) for name, value in values.items() if value is not None}
    return json.dumps(plain, sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({_key({name: each.get(name)}) for each in settings}) > 1]


def _words(values: Mapping[str, Any], names: Sequence[str], sign: str) -> list[str]:
    return [_word(name, values.get(name), sign) for name in names]


def _word(name: str, value: Any, sign: str) -> str:
    if name == "data":
        return plain(str(value))
    if name == "fingerprint":
        return f"fingerprint{sign}{plain(str(value)[:8])}"
    text = "all" if name == "limit" and value is None else "-" if value is None else value
    return plain(f"{name}{sign}{text}")


# --- groups and sections ---


@dataclass(frozen=True)
class Group:
    """All runs that differ in nothing but their seed."""

    name: str
    method: str
    look: int  # which colour and marker it has in plots
    runs: tuple[RunFile, ...]
    copies: tuple[RunFile, ...] = ()  # of runs among them, which count once

    def each(self, *path: str) -> list[float]:
        """A number of result.json, of each run that has it."""
        return [value for run in self.runs if (value := run.number(*path)) is not None]

    def mean(self, *path: str) -> float | None:
        """The mean over seeds of a number of result.json."""
        values = self.each(*path)
        return statistics.fmean(values) if values else None

    def means(self, whose: Column = "own", metric: str = "accuracy") -> list[float]:
        """The mean over clients, of each run that has it."""
        return [value for run in self.runs if (value := run.mean(whose, metric)) is not None]

    def beside(self, whose: Column) -> list[float]:
        """The same accuracies of another model; none unless every run has them, or seeds would not be the same."""
        values = self.means(whose)
        return values if len(values) == len(self.runs) else []

    def accuracy(self) -> float | None:
        """The mean accuracy over clients and seeds."""
        values = self.means()
        return statistics.fmean(values) if values else None

    def sent(self) -> float | None:
        """Bytes up and down of all clients, as the mean over seeds."""
        up, down = self.mean("bytes", "up"), self.mean("bytes", "down")
        return None if up is None or down is None else up + down


@dataclass(frozen=True)
class Section:
    """Runs that may be compared: on the same data, split in the same way."""

    name: str
    runs: tuple[RunFile, ...]
    groups: tuple[Group, ...]  # the most accurate first


def groups(runs: Sequence[RunFile], looks: Mapping[str, int] | None = None) -> list[Group]:
    """Runs that differ in nothing but their seed, together; the most accurate first.

    A name says what tells its group from others: data, split and surroundings from all others, parameters from those
    of the same method. A result that is there twice counts once.
    """
    succeeded = [run for run in runs if not run.failure]
    splits = _differing([split_of(run) for run in succeeded])
    surroundings = _differing([_surroundings(run) for run in succeeded])
    unsorted = []
    for members in _together(succeeded, lambda run: run.method):
        parameters = _differing([_parameters(run) for run in members])
        for kind in _together(members, _kind):
            first = kind[0]
            words = _words(split_of(first), splits, "=")
            own = {name: value for name, value in _parameters(first).items() if value is not None}
            words += _words(_surroundings(first), surroundings, "=")
            words += _words(own, [name for name in parameters if name in own], "=")
            name = f"{first.method} ({', '.join(words)})" if words else first.method
            unsorted.append(Group(name, first.method, 0, *_without_copies(kind)))
    ordered = sorted(unsorted, key=lambda group: -(group.accuracy() or 0.0))
    numbers = looks or {group.name: number for number, group in enumerate(ordered)}
    return [replace(group, look=numbers[group.name]) for group in ordered]


def sections(runs: Sequence[RunFile]) -> list[Section]:
    """The runs by data and split, in the order they come; a method has the same look in every section."""
    parts = _together([run for run in runs if not run.failure], lambda run: _key(split_of(run)))
    differing = _differing([split_of(part[0]) for part in parts])
    looks: dict[str, int] = {}
    for part in parts:
        for group in groups(part):
            looks.setdefault(group.name, len(looks))
    names = list(dict.fromkeys(["data", *differing]))
    return [
        Section(", ".join(_words(split_of(part[0]), names, " ")), tuple(part), tuple(groups(part, looks)))
        for part in parts
    ]


def _together(runs: Sequence[RunFile], key: Callable[[RunFile], str]) -> list[list[RunFile]]:
    parts: dict[str, list[RunFile]] = {}
    for run in runs:
        parts.setdefault(key(run), []).append(run)
    return list(parts.values())


def _kind(run: RunFile) -> str:
    return _key(split_of(run)) + _key(_surroundings(run)) + _key(_parameters(run))


def _without_copies(runs: Sequence[RunFile]) -> tuple[tuple[RunFile, ...], tuple[RunFile, ...]]:
    """Runs by seed, and those that have the seed and the figures of another."""
    distinct: dict[tuple[int, str], RunFile] = {}
    for run in runs:
        distinct.setdefault((run.seed, json.dumps([run.figures(), run.figures("global")])), run)
    unique = tuple(sorted(distinct.values(), key=lambda run: run.seed))
    return unique, tuple(run for run in runs if not any(run is other for other in unique))


# --- figures per client ---


def per_client(group: Group, whose: Column = "own", metric: str = "accuracy") -> dict[str, float]:
    """Each client's figure, as the mean over seeds."""
    return _means([run.figures(whose, metric) for run in group.runs])


def gains(group: Group, runs: Sequence[RunFile]) -> dict[str, float]:
    """Points of accuracy that each client gains over training alone on the same split, as the mean over seeds.

    A run that did not train its clients alone is held against a run of `local` among `runs`, of the same seed, data,
    split and features; where there is none it has no gains.
    """
    differences = []
    for run in group.runs:
        before = alone(run, runs)
        differences.append({name: 100 * (now - before[name]) for name, now in run.figures().items() if name in before})
    return _means(differences)


def alone(run: RunFile, runs: Sequence[RunFile]) -> dict[str, float]:
    """Each client's accuracy when it trains alone on the same data, from the run itself or from `local` beside it."""
    inside = run.figures("alone")
    if inside:
        return inside
    beside = [other for other in runs if other.method == "local" and not other.failure and _same_samples(run, other)]
    if not beside:
        return {}
    parameters = _parameters(run)  # an intercept, a network, a learning rate: the nearest `local` has the same

    def agreement(other: RunFile) -> int:
        return sum(_key({"": parameters.get(name)}) == _key({"": v}) for name, v in _parameters(other).items())

    return max(beside, key=agreement).figures()


def _same_samples(run: RunFile, other: RunFile) -> bool:
    prints = {str(each.result.get("data", {}).get("fingerprint") or "") for each in (run, other)} - {""}
    return (
        run.seed == other.seed
        and len(prints) <= 1
        and _key(split_of(run)) == _key(split_of(other))
        and run.settings.get("features") == other.settings.get("features")
    )


def _means(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for table in tables:
        for name, value in table.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.fmean(each) for name, each in sorted(values.items())}
