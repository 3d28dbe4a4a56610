"""What runs on disk say: sections that share data and split, groups over seeds, figures per client."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsolve.errors import plain
from fedsolve.metrics import words
from fedsolve.report.runfile import Column, RunFile
from fedsolve.report.runfile import entries as entries

# Settings that decide which samples each client trains and is tested on. Runs that differ in one are never compared.
_SPLIT = (
    "data", "label", "client", "person", "drop", "task", "columns", "date_as", "encoding", "limit", "skip_broken",
    "clients", "partition", "test", "min_samples",
)  # fmt: skip
# Of no consequence for the method: `alone` adds figures beside it, `metric` says which is shown, `device` where it ran.
_IGNORED = ("method", "set", "rounds", "seed", "alone", "metric", "name", "device")


# --- what tells runs apart ---


def split_of(run: RunFile) -> dict[str, Any]:
    """What decides which samples each client has: of two runs with the same, only the seed draws differently."""
    split = {name: run.settings.get(name) for name in _SPLIT}
    split["kind"] = run.task.get("kind", "classes")  # classes and numbers have no metric in common
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


def _called(run: RunFile) -> str:
    """The name that somebody gave it, or its method."""
    return plain(str(run.settings.get("name") or run.method))


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
    if name in ("data", "kind"):
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
    variant: int  # of its method on a page, from 0 on: `looks` gives each a look of its own
    metric: str  # that is shown of it and of what it is compared with
    runs: tuple[RunFile, ...]
    copies: tuple[RunFile, ...] = ()  # of runs among them, which count once

    def each(self, *path: str) -> list[float]:
        """A number of result.json, of each run that has it."""
        return [value for run in self.runs if (value := run.number(*path)) is not None]

    def mean(self, *path: str) -> float | None:
        """The mean over seeds of a number of result.json."""
        values = self.each(*path)
        return statistics.fmean(values) if values else None

    def means(self, whose: Column = "own", metric: str = "") -> list[float]:
        """The mean over clients, of each run that has it."""
        return [value for run in self.runs if (value := run.mean(whose, metric or self.metric)) is not None]

    def beside(self, whose: Column) -> list[float]:
        """The same figures of another model; none unless every run has them, or seeds would not be the same."""
        values = self.means(whose)
        return values if len(values) == len(self.runs) else []

    def figure(self) -> float | None:
        """The mean of its metric over clients and seeds."""
        values = self.means()
        return statistics.fmean(values) if values else None

    def seconds(self) -> float | None:
        """Seconds of a run, as the mean over seeds: those of its rounds, where these are of emulated devices."""
        values = [value for run in self.runs if (value := run.seconds()) is not None]
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
    groups: tuple[Group, ...]  # the best first
    metric: str  # by which they are compared

    def constant(self) -> float | None:
        """The metric of the best constant answers, as the mean over seeds; these are the same for every method."""
        seeds = {run.seed: value for run in self.runs if (value := run.constant(self.metric)) is not None}
        return statistics.fmean(seeds.values()) if seeds else None


def groups(runs: Sequence[RunFile], variants: Mapping[str, int] | None = None, metric: str = "") -> list[Group]:
    """Runs that differ in nothing but their seed, together; those that are best by a metric first.

    A name says what tells its group from others: data, split and surroundings from all others, parameters from those
    of the same method or the same name. A result that is there twice counts once.
    """
    succeeded = [run for run in runs if not run.failure]
    shown = _metric(succeeded, metric)
    splits = _differing([split_of(run) for run in succeeded])
    surroundings = _differing([_surroundings(run) for run in succeeded])
    unsorted = []
    for members in _together(succeeded, _called):
        parameters = _differing([_parameters(run) for run in members])
        for kind in _together(members, _kind):
            first = kind[0]
            told = _words(split_of(first), splits, "=")
            own = {name: value for name, value in _parameters(first).items() if value is not None}
            told += _words(_surroundings(first), surroundings, "=")
            told += _words(own, [name for name in parameters if name in own], "=")
            name = f"{_called(first)} ({', '.join(told)})" if told else _called(first)
            unsorted.append(Group(name, first.method, 0, shown, *_without_copies(kind, shown)))
    order = words.best_first(shown, {number: group.figure() for number, group in enumerate(unsorted)})
    ordered = [unsorted[number] for number in order]
    numbers = variants or _variants(ordered)
    return [replace(group, variant=numbers[group.name]) for group in ordered]


def sections(runs: Sequence[RunFile], metric: str = "") -> list[Section]:
    """The runs by data and split, in the order they come; a method has the same look in every section.

    Each is shown by the metric asked for, if it has that one, or by its own.
    """
    parts = _together([run for run in runs if not run.failure], lambda run: _key(split_of(run)))
    differing = _differing([split_of(part[0]) for part in parts])
    numbers = _variants([group for part in parts for group in groups(part, metric=metric)])
    alike = len({_key({"data": split_of(part[0])["data"]}) for part in parts}) < len(parts)
    names = list(dict.fromkeys(["data", *(differing if alike else [])]))  # names of data that differ tell enough
    found = []
    for part in parts:
        name, members = ", ".join(_words(split_of(part[0]), names, " ")), tuple(groups(part, numbers, metric))
        found.append(Section(name, tuple(part), members, _metric(part, metric)))
    return found


def _variants(every: Sequence[Group]) -> dict[str, int]:
    """The number of each group among those of its method, in the order of their names: no other method moves it."""
    names = sorted({(group.method, group.name) for group in every})
    first = {method: place for place, (method, _) in reversed(list(enumerate(names)))}
    return {name: place - first[method] for place, (method, name) in enumerate(names)}


def _metric(runs: Sequence[RunFile], asked: str) -> str:
    """The metric that runs are shown by: the one asked for where some have it, else the one that all name."""
    if not runs or (asked and any(asked in run.metrics() for run in runs)):
        return asked or words.main({})
    own = {run.main for run in runs}
    return own.pop() if len(own) == 1 else words.main(runs[0].task)


def _together(runs: Sequence[RunFile], key: Callable[[RunFile], str]) -> list[list[RunFile]]:
    parts: dict[str, list[RunFile]] = {}
    for run in runs:
        parts.setdefault(key(run), []).append(run)
    return list(parts.values())


def _kind(run: RunFile) -> str:
    return _key(split_of(run)) + _key(_surroundings(run)) + _key(_parameters(run))


def _without_copies(runs: Sequence[RunFile], metric: str) -> tuple[tuple[RunFile, ...], tuple[RunFile, ...]]:
    """Runs by seed, and those that have the seed and the figures of another."""
    distinct: dict[tuple[int, str], RunFile] = {}
    for run in runs:
        distinct.setdefault((run.seed, json.dumps([run.figures("own", metric), run.figures("global", metric)])), run)
    unique = tuple(sorted(distinct.values(), key=lambda run: run.seed))
    return unique, tuple(run for run in runs if not any(run is other for other in unique))


# --- figures per client ---


def per_client(group: Group, whose: Column = "own") -> dict[str, float]:
    """Each client's figure, as the mean over seeds."""
    return _means([run.figures(whose, group.metric) for run in group.runs])


def gains(group: Group, runs: Sequence[RunFile]) -> dict[str, float]:
    """What each client gains over training alone on the same split, above zero if better, as the mean over seeds.

    It is in the unit of the metric: points of shares. A run that did not train its clients alone is held against a run
    of `local` among `runs`, of the same seed, data, split and features; where there is none it has no gains.
    """
    differences = []
    for run in group.runs:
        before, now = alone(run, runs, group.metric), run.figures("own", group.metric)
        better = {name: words.gain(group.metric, now[name], before[name]) for name in now if name in before}
        differences.append(better)
    return _means(differences)


def alone(run: RunFile, runs: Sequence[RunFile], metric: str = "") -> dict[str, float]:
    """Each client's figure when it trains alone on the same data, from the run itself or from `local` beside it."""
    inside = run.figures("alone", metric)
    if inside:
        return inside
    beside = [other for other in runs if other.method == "local" and not other.failure and _same_samples(run, other)]
    if not beside:
        return {}
    parameters = _parameters(run)  # an intercept, a network, a learning rate: the nearest `local` has the same

    def agreement(other: RunFile) -> int:
        return sum(_key({"": parameters.get(name)}) == _key({"": v}) for name, v in _parameters(other).items())

    return max(beside, key=agreement).figures("own", metric)


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
