"""A run on disk: result.json by what a page asks of it.

How result.json is laid out is known here and in `resultfile.py`, which checks it. Format 1 has accuracies as plain
numbers; format 2 has the same and, beside them, every metric by name.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from fedsolve import codec
from fedsolve.arrays import finite
from fedsolve.course import Stand, course
from fedsolve.errors import DataError, plain
from fedsolve.metrics import words
from fedsolve.resultfile import read_failure, read_result
from fedsolve.study.compare import FAILURE

Column: TypeAlias = Literal["own", "global", "alone", "constant"]
"""Whose answers a figure is of: the client's own model, the global one, training alone, or the best constant."""


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

    def seconds(self) -> float | None:
        """The seconds that it took: of its rounds, where these are of emulated devices."""
        if self.settings.get("devices") is None:
            return self.number("seconds", "total")
        return float(sum(line.get("seconds", 0.0) for line in self.result.get("history", ())))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings it was run with; fewer where it was run from Python."""
        settings: Mapping[str, Any] = self.result.get("settings", {})
        return settings

    def number(self, *path: str) -> float | None:
        """A number somewhere in result.json, None where it is not there."""
        return _number(self.result, *path)

    @property
    def task(self) -> Mapping[str, Any]:
        """What it predicts: the kind of target, and names; results of format 1 do not say."""
        task: Mapping[str, Any] = self.result.get("task", {})
        return task

    @property
    def main(self) -> str:
        """The metric that is shown where there is room for one."""
        return words.main(self.task, self.settings.get("metric"))

    def summary(self, part: str, metric: str = "") -> float | None:
        """A metric over clients, `main` where none is named: its `mean`, `pooled`, `std` or `worst_decile`."""
        name = metric or self.main
        plain = self.number("accuracy", part) if name == "accuracy" else None
        return plain if plain is not None else self.number("metrics", name, part)

    def figures(self, whose: Column = "own", metric: str = "") -> dict[str, float]:
        """A metric of each client that has it, `main` where none is named."""
        name = metric or self.main
        values = {client: client_figure(figures, whose, name) for client, figures in sorted(self.clients.items())}
        return {client: value for client, value in values.items() if value is not None}

    def mean(self, whose: Column = "own", metric: str = "") -> float | None:
        """The mean of a metric over clients, as result.json has it, or else of their figures."""
        stored = self.summary("mean", metric) if whose == "own" else None
        if stored is not None:
            return stored
        values = self.figures(whose, metric)
        return statistics.fmean(values.values()) if values else None

    def constant(self, metric: str) -> float | None:
        """A metric of the best constant answers: the mean over clients, or else of all test samples together."""
        mean = self.mean("constant", metric)
        return mean if mean is not None else self.number("baseline", metric)

    def metrics(self) -> list[str]:
        """Names of the metrics that it has, its clients' included."""
        tables = [self.result.get("metrics")]
        for figures in self.clients.values():
            tables += [figures.get("metrics"), figures.get("global"), figures.get("alone")]
        return list(dict.fromkeys(name for table in tables if isinstance(table, Mapping) for name in table))

    def course(self) -> tuple[Stand, ...]:
        """Where it stood after each round: what it had taken, and the figures, where it was evaluated."""
        return course(self.result.get("history", ()))

    def history(self, metric: str = "", part: str = "mean") -> dict[int, float]:
        """The mean of a metric, or its pooled figure, after each round in which it was evaluated."""
        name = metric or self.main
        return {stand.round: value for stand in self.course() if (value := figure_of(stand, name, part)) is not None}


def figure_of(stand: Stand, metric: str, part: str = "mean") -> float | None:
    """The `mean` or `pooled` figure of a metric after a round, where it was evaluated."""
    return stand.figures.get(metric, {}).get(part)


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
