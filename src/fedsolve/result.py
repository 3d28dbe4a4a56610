"""What a run leaves: figures per client, totals, models and the server's last state, in memory and on disk."""

from __future__ import annotations

import html
import itertools
import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedsolve import codec, disk, metrics
from fedsolve.arrays import Arrays
from fedsolve.errors import DataError
from fedsolve.grouping import GroupResult
from fedsolve.method import Method
from fedsolve.model import Model, load_model
from fedsolve.resultfile import FORMATS, digest, read_result
from fedsolve.summary import Summary

FORMAT = 2
CHECKPOINT = "checkpoint.safetensors"  # of a run that is not over; a result takes its place
REPORT = "report.html"  # may lie beside a result, and goes when another takes its place
SHOWN = 30  # clients in a table of a notebook
Whose: TypeAlias = Literal["personal", "shared", "alone"]  # the client's model, the global one, that of training alone


@dataclass(frozen=True, slots=True)
class ClientResult:
    """How one client fares. Figures are on its own test samples; there are none where it has none."""

    train: int
    test: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # of its personal model
    shared_metrics: Mapping[str, float] = field(default_factory=dict)  # of the one global model
    alone_metrics: Mapping[str, float] = field(default_factory=dict)  # of training alone
    chosen: Mapping[str, float] = field(default_factory=dict)  # hyper-parameters chosen for this client
    unsure: tuple[int, ...] = ()  # features whose digits its model lost; see Solution.unsure

    @property
    def accuracy(self) -> float | None:
        """The accuracy of its personal model."""
        return self.metrics.get("accuracy")

    @property
    def shared(self) -> float | None:
        """The accuracy of the one global model on its test samples."""
        return self.shared_metrics.get("accuracy")

    @property
    def alone(self) -> float | None:
        """The accuracy of training alone."""
        return self.alone_metrics.get("accuracy")

    def of(self, whose: Whose) -> Mapping[str, float]:
        """The figures of its personal model, of the global one, or of training alone."""
        return {"personal": self.metrics, "shared": self.shared_metrics, "alone": self.alone_metrics}[whose]

    def json(self) -> dict[str, Any]:
        """As it stands in result.json; the global model is called "global" there."""
        entry = {"train": self.train, "test": self.test, "accuracy": self.accuracy, "metrics": dict(self.metrics)}
        others = {"global": self.shared_metrics, "alone": self.alone_metrics, "chosen": self.chosen}
        filled = {name: dict(figures) for name, figures in others.items() if figures}
        return {**entry, **filled, **({"unsure": list(self.unsure)} if self.unsure else {})}

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> ClientResult:
        """The inverse of `json`; format 1 had accuracies alone, as plain numbers."""
        others = (entry.get("global"), entry.get("alone"))
        shared, alone = (figures if isinstance(figures, Mapping) else _accuracy(figures) for figures in others)
        metrics = entry.get("metrics", _accuracy(entry["accuracy"]))
        chosen, unsure = entry.get("chosen", {}), tuple(entry.get("unsure", ()))
        return cls(entry["train"], entry["test"], metrics, shared, alone, chosen, unsure)


def _accuracy(value: float | None) -> dict[str, float]:
    return {} if value is None else {"accuracy": value}


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over clients. `mean` counts clients alike, `pooled` counts test samples alike: papers mix them up."""

    mean: float | None = None
    pooled: float | None = None
    std: float | None = None  # over clients
    worst_decile: float | None = None  # mean over the worst tenth of the clients, at least one


def spreads(
    clients: Mapping[str, ClientResult], whose: Whose = "personal", tally: Arrays | None = None
) -> dict[str, Spread]:
    """Every figure over the clients that have it. Pooled ones are those of the clients' summed `tally`, where given.

    Without it, pooled accuracy still follows from the clients' own, and no other pooled figure does.

    >>> spreads({"a": ClientResult(9, 1, {"accuracy": 1.0}), "b": ClientResult(9, 3, {"accuracy": 0.0})})["accuracy"]
    Spread(mean=0.5, pooled=0.25, std=0.5, worst_decile=0.0)
    """
    pooled = dict(metrics.figures(tally)) if tally else {}
    tested = [(client.of(whose), client.test) for client in clients.values()]
    if "accuracy" not in pooled and any("accuracy" in figures for figures, _ in tested):
        counted = [(figures["accuracy"], count) for figures, count in tested if "accuracy" in figures]
        pooled["accuracy"] = sum(round(share * n) for share, n in counted) / sum(n for _, n in counted)
    by_name = {}
    for metric in metrics.METRICS.values():
        values = [figures[metric.name] for figures, _ in tested if metric.name in figures]
        if values:
            by_name[metric.name] = Spread(pooled=pooled.get(metric.name), **metrics.spread(values, metric.better))
    return by_name


@dataclass(frozen=True, slots=True)
class Round:
    """One line of the history."""

    round: int
    bytes_up: int
    bytes_down: int
    seconds: float
    missing: tuple[str, ...] = ()  # clients that were not part of it
    loss: float | None = None  # mean training loss, where clients send it
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # mean and pooled, if evaluated

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy over clients, where it was evaluated."""
        return self.metrics.get("accuracy", {}).get("mean")

    def json(self) -> dict[str, Any]:
        """As it stands in result.json, without a loss where there is none."""
        line = {name: value for name, value in asdict(self).items() if name != "loss" or value is not None}
        return {"round": line.pop("round"), "accuracy": self.accuracy, **line}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Round:
        """The inverse of `json`; format 1 had accuracies alone."""
        values = {name: value for name, value in line.items() if name != "accuracy"}
        if "metrics" not in values and line["accuracy"] is not None:
            values["metrics"] = {"accuracy": {"mean": line["accuracy"]}}
        return cls(**{**values, "missing": tuple(values["missing"])})


@dataclass(frozen=True, slots=True)
class Seconds:
    """The seconds of a run, by what they were spent on."""

    features: float = 0.0
    clients: float = 0.0
    server: float = 0.0
    evaluate: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The outcome of a run, at its last round.

    >>> import tempfile
    >>> import fedsolve as fs
    >>> federation = fs.load("digits").split(fs.dirichlet(0.1), clients=5)
    >>> result = fs.run(fs.AFL(ridge=1.0), federation)
    >>> round(result.accuracy.mean, 2), sorted(result.metrics)[:3]
    (0.95, ['accuracy', 'auc', 'balanced_accuracy'])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fs.Result.load(result.save(Path(folder) / "run")).accuracy == result.accuracy
    True
    """

    method: str
    settings: Mapping[str, Any]  # enough to run it again
    clients: Mapping[str, ClientResult]
    history: tuple[Round, ...]
    seconds: Seconds
    data: Mapping[str, Any]  # name, fingerprint, and how many samples a split had to move
    models: Mapping[str, Model]
    shared: Model | None  # the one global model, where the method has one
    state: Arrays  # the server's
    server: Mapping[str, float] = field(default_factory=dict)  # figures of that state, as the method tells them
    task: Mapping[str, Any] = field(default_factory=dict)  # the kind of target, and its names
    metrics: Mapping[str, Spread] = field(default_factory=dict)  # of personal models, by name
    baseline: Mapping[str, float] = field(default_factory=dict)  # of each client's commonest class, all samples pooled
    confusion: tuple[tuple[int, ...], ...] = ()  # of personal models, all samples pooled: one row per true class
    warnings: tuple[str, ...] = ()  # sentences on what not to trust: features whose digits were lost
    groups: Mapping[str, GroupResult] = field(default_factory=dict)  # of similar clients, where the method makes some
    group_models: Mapping[str, Model] = field(default_factory=dict)  # what the members of each have in common

    def __repr__(self) -> str:
        mean = self.accuracy.mean
        accuracy = "no accuracy" if mean is None else f"mean accuracy {mean:.4f}"
        return f"Result({self.method!r}, {len(self.clients)} clients, {self.rounds} rounds, {accuracy})"

    @property
    def accuracy(self) -> Spread:
        """Accuracy over clients, at the last round."""
        return self.metrics.get("accuracy", Spread())

    def spread(self, whose: Whose = "personal", metric: str = "accuracy") -> Spread:
        """A figure over clients, of their personal models, of the global one, or of training alone."""
        every = self.metrics if whose == "personal" else spreads(self.clients, whose)
        return every.get(metric, Spread())

    def _repr_html_(self) -> str:
        """Figures as a notebook shows them: over clients, then per client, the least accurate first."""
        share = {
            name: "-" if value is None else f"{100 * value:.1f} %" for name, value in asdict(self.accuracy).items()
        }
        kinds = [
            kind
            for kind in ("accuracy", "alone", "shared")
            if any(getattr(c, kind) is not None for c in self.clients.values())
        ]
        heads = "".join(f"<th>{'global' if kind == 'shared' else kind}</th>" for kind in kinds)
        lines = []
        for name in sorted(self.clients, key=lambda name: self.clients[name].accuracy or 0.0)[:SHOWN]:
            client = self.clients[name]
            values = [getattr(client, kind) for kind in kinds]
            cells = "".join(f"<td>{'-' if value is None else f'{100 * value:.1f} %'}</td>" for value in values)
            lines.append(f"<tr><td>{html.escape(name)}</td><td>{client.train}</td><td>{client.test}</td>{cells}</tr>")
        left = len(self.clients) - len(lines)
        return (
            f"<p><b>{html.escape(self.method)}</b>: accuracy {share['mean']} over {len(self.clients)} clients, "
            f"{share['pooled']} of all test samples, worst tenth {share['worst_decile']}</p>"
            f"<table><tr><th>client</th><th>train</th><th>test</th>{heads}</tr>{''.join(lines)}</table>"
            + (f"<p>and {left} more</p>" if left > 0 else "")
            + "".join(f"<p>warning: {html.escape(sentence)}</p>" for sentence in self.warnings)
        )

    @property
    def rounds(self) -> int:
        """How many rounds were run."""
        return len(self.history)

    @property
    def bytes_up(self) -> int:
        """Bytes of the replies of all clients, over all rounds."""
        return sum(line.bytes_up for line in self.history)

    @property
    def bytes_down(self) -> int:
        """Bytes of the messages to all clients, over all rounds."""
        return sum(line.bytes_down for line in self.history)

    def summary(self) -> Summary:
        """The global model as a statistician reads it: coefficients, standard errors, intervals, p-values, tests.

        >>> import fedsolve as fs
        >>> result = fs.run(fs.GLM(), fs.load("wards").split("by-client"))
        >>> result.summary().rows[0].name, sorted(result.summary().figures)[:2]
        ('age', ['AIC', 'BIC'])
        """
        model = self.shared
        found = model.method.inference(self.state, model.task) if model else None
        if found is None:
            raise DataError(f"{self.method} has no global coefficients to show; glm, mixed, afl and fedhip have")
        return found

    def with_alone(self, alone: Result) -> Result:
        """The same result with each client's figures from training alone beside it."""
        clients = {name: replace(c, alone_metrics=alone.clients[name].metrics) for name, c in self.clients.items()}
        return replace(self, clients=clients)

    def json(self) -> dict[str, Any]:
        """All but models and state, as result.json holds it."""
        return {
            "format": FORMAT,
            "method": self.method,
            "task": dict(self.task),
            "settings": dict(self.settings),
            "clients": {name: client.json() for name, client in self.clients.items()},
            "accuracy": asdict(self.accuracy),
            "metrics": {name: asdict(spread) for name, spread in self.metrics.items()},
            "baseline": dict(self.baseline),
            "confusion": [list(row) for row in self.confusion],
            "privacy": {"secure": False, "quorum": None, "epsilon": None},  # the server sees every reply as it is
            "rounds": self.rounds,
            "bytes": {"up": self.bytes_up, "down": self.bytes_down},
            "seconds": {name: round(value, 6) for name, value in asdict(self.seconds).items()},
            "history": [line.json() for line in self.history],
            "server": dict(self.server),
            "warnings": list(self.warnings),
            **({"groups": {name: group.json() for name, group in self.groups.items()}} if self.groups else {}),
            "versions": versions(),
            "data": dict(self.data),
        }

    def save(self, directory: str | Path) -> Path:
        """Write `result.json`, `state.safetensors`, `models/`, and `groups/` if it has any: all at once, or nothing.

        An earlier result in the same place is replaced; any other content is left alone and refused. When this returns,
        the result is on the disk, and its owner alone can read it.
        """
        place = Path(directory)
        disk.recover(place)
        if place.exists() and not replaceable(place):
            raise DataError(
                f"{directory} exists and is not a result of fedsolve; name another place, or remove it first"
            )
        content = self.json()
        text = json.dumps({**content, "digest": digest(content)}, indent=1, allow_nan=False)
        with disk.replacing(place) as folder:
            shared = {} if self.shared is None else {"global": self.shared}
            _create(folder / "models", itertools.chain(self.models.items(), shared.items()))
            if self.group_models:  # not among the models of clients: any name there may be a client's
                _create(folder / "groups", self.group_models.items())
            disk.create(folder / "state.safetensors", codec.sealed(self.state))
            disk.create(folder / "result.json", text.encode() + b"\n")
        return place

    @classmethod
    def load(
        cls, directory: str | Path, kind: type[Method] | None = None, *, features: str = "", model: str = ""
    ) -> Result:
        """A result from disk. Its models are read when they are asked for, with what `load_model` is told here."""
        folder, read = Path(directory), partial(load_model, kind=kind, features=features, model=model)
        disk.recover(folder)
        try:
            content = read_result(folder / "result.json")
            clients = {name: ClientResult.read(entry) for name, entry in content["clients"].items()}
            history = tuple(Round.read(line) for line in content["history"])
            every = content.get("metrics", {"accuracy": content["accuracy"]})
            state, _ = codec.read_file(folder / "state.safetensors")
            groups = {name: GroupResult.read(entry) for name, entry in content.get("groups", {}).items()}
            shared = folder / "models" / "global.safetensors"
            return cls(
                method=content["method"],
                settings=content["settings"],
                clients=clients,
                history=history,
                seconds=Seconds(**content["seconds"]),
                data=content["data"],
                models=_SavedModels(folder / "models", tuple(clients), read),
                shared=read(shared) if shared.exists() else None,
                state=state,
                server=content.get("server", {}),
                task=content.get("task", {}),
                metrics={name: Spread(**spread) for name, spread in every.items()},
                baseline=content.get("baseline", {}),
                confusion=tuple(tuple(row) for row in content.get("confusion", [])),
                warnings=tuple(content.get("warnings", ())),
                groups=groups,
                group_models=_SavedModels(folder / "groups", tuple(groups), read),
            )
        except OSError as error:
            raise DataError(f"{folder} holds no result: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{folder / 'result.json'} is damaged: {type(error).__name__}: {error}") from error


def _create(folder: Path, models: Iterable[tuple[str, Model]]) -> None:
    """A new folder with one file for each model."""
    folder.mkdir(0o700)
    for name, model in models:
        disk.create(folder / f"{name}.safetensors", codec.sealed(model.arrays, model.metadata()))


class _SavedModels(Mapping[str, Model]):
    """Models on disk, by client or by group."""

    def __init__(self, folder: Path, names: tuple[str, ...], read: Callable[[Path], Model]) -> None:
        self._folder, self._names, self._read = folder, names, read

    def __getitem__(self, name: str) -> Model:
        if name not in self._names:
            raise KeyError(name)
        return self._read(self._folder / f"{name}.safetensors")

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def replaceable(target: Path) -> bool:
    """Whether a place may be written over: an empty folder, an earlier result or a checkpoint."""
    if not target.is_dir():
        return False
    names = disk.contents(target)
    if names <= {CHECKPOINT}:
        return True
    folders = [target / name for name in ("models", "groups") if (target / name).is_dir()]
    strange = any(Path(name).suffix != ".safetensors" for folder in folders for name in disk.contents(folder))
    if strange or not names <= {"result.json", "state.safetensors", "models", "groups", CHECKPOINT, REPORT}:
        return False
    try:
        return bool(json.loads((target / "result.json").read_text())["format"] in FORMATS)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that computed the result, by name."""
    packages = ("fedsolve", "numpy", "scipy", "scikit-learn")
    used = ("torch",) if "torch" in sys.modules else ()
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in (*packages, *used)}
