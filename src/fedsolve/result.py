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
from typing import TYPE_CHECKING, Any

from fedsolve import codec, disk, shown
from fedsolve.arrays import Arrays
from fedsolve.course import Stand, course
from fedsolve.errors import DataError
from fedsolve.grouping import GroupResult
from fedsolve.method import Method
from fedsolve.metrics import calibration, words
from fedsolve.metrics.calibration import Bin
from fedsolve.model import Model, load_model
from fedsolve.records import ClientResult as ClientResult
from fedsolve.records import Round as Round
from fedsolve.records import Seconds as Seconds
from fedsolve.records import Spread as Spread
from fedsolve.records import Whose as Whose
from fedsolve.records import spreads as spreads
from fedsolve.resultfile import FORMATS, digest, read_result
from fedsolve.summary import Summary

if TYPE_CHECKING:
    import pandas

FORMAT = 2
PLAIN: Mapping[str, Any] = {"secure": False, "quorum": None, "epsilon": None}  # the server sees every reply as it is
CHECKPOINT = "checkpoint.safetensors"  # of a run that is not over; a result takes its place
REPORT = "report.html"  # may lie beside a result, and goes when another takes its place


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
    pooled: Mapping[Whose, Mapping[str, float]] = field(default_factory=dict)  # all samples, of models beside these
    calibration: tuple[
        Bin, ...
    ] = ()  # of personal models, all samples pooled, for few classes: see metrics.calibration
    privacy: Mapping[str, Any] = field(default_factory=lambda: dict(PLAIN))  # who could see what, and what was promised

    def __repr__(self) -> str:
        name, mean = self.main, self.spread().mean
        value = f"{mean:.4f}" if words.is_share(name) and mean is not None else words.number(name, mean)
        figure = f"no {words.title(name)}" if mean is None else f"mean {words.title(name)} {value}"
        return f"Result({self.method!r}, {len(self.clients)} clients, {self.rounds} rounds, {figure})"

    @property
    def main(self) -> str:
        """The metric that is shown where there is room for one: accuracy or rmse, or what `--metric` asked for."""
        return words.main(self.task, self.settings.get("metric"))

    @property
    def accuracy(self) -> Spread:
        """Accuracy over clients, at the last round."""
        return self.metrics.get("accuracy", Spread())

    def spread(self, whose: Whose = "personal", metric: str = "") -> Spread:
        """A metric over clients, `main` where none is named, of one of the models that a client may use.

        These are their personal models, the global one, those of training alone, and the best constant answers.
        """
        name = metric or self.main
        if whose == "personal":
            return self.metrics.get(name, Spread())
        found = spreads(self.clients, whose).get(name, Spread())
        pooled = (self.baseline if whose == "constant" else self.pooled.get(whose, {})).get(name, found.pooled)
        return replace(found, pooled=pooled)

    def to_frame(self) -> pandas.DataFrame:
        """Figures as a pandas data frame, one row per client: train, test, and each metric by name.

        Metrics of the global model and of training alone stand behind, as in `global_accuracy` and `alone_accuracy`.

        >>> import fedsolve as fs
        >>> federation = fs.load("wards").split("by-client", test=0.5)
        >>> fs.run(fs.AFL(), federation).to_frame()[["train", "accuracy"]].round(2).loc["trauma"].tolist()
        [20.0, 0.6]
        """
        return shown.frame(self.clients, self.metrics)

    def _repr_html_(self) -> str:
        """Figures as a notebook shows them: over clients, then per client, the worst first."""
        told = "".join(f"<p>warning: {html.escape(sentence)}</p>" for sentence in self.warnings)
        told += f"<p>{html.escape(shown.gathered(self.privacy))}</p>" if self.privacy.get("secure") else ""
        constant = self.spread("constant").mean
        return shown.notebook_table(self.method, self.clients, self.main, self.spread(), constant) + told

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
        pooled = {name: spread.pooled for name, spread in alone.metrics.items() if spread.pooled is not None}
        return replace(self, clients=clients, pooled={**self.pooled, "alone": pooled})

    def course(self) -> tuple[Stand, ...]:
        """After each round: the seconds and bytes so far, and mean and pooled figures where it was evaluated.

        >>> import fedsolve as fs
        >>> federation = fs.load("digits").split(fs.iid(), clients=4)
        >>> (stand,) = fs.run(fs.AFL(), federation).course()
        >>> stand.round, sorted(stand.figures["accuracy"])
        (1, ['mean', 'pooled'])
        """
        return course(line.json() for line in self.history)

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
            "pooled": {"global" if whose == "shared" else whose: dict(each) for whose, each in self.pooled.items()},
            "confusion": [list(row) for row in self.confusion],
            "calibration": calibration.words(self.calibration),
            "privacy": dict(self.privacy),
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
                pooled=_pooled(content.get("pooled", {})),
                calibration=calibration.of_words(content.get("calibration", [])),
                warnings=tuple(content.get("warnings", ())),
                privacy=content.get("privacy", dict(PLAIN)),
                groups=groups,
                group_models=_SavedModels(folder / "groups", tuple(groups), read),
            )
        except OSError as error:
            raise DataError(f"{folder} holds no result: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{folder / 'result.json'} is damaged: {type(error).__name__}: {error}") from error


def _pooled(content: Mapping[str, Mapping[str, float]]) -> dict[Whose, Mapping[str, float]]:
    names: dict[Whose, str] = {"shared": "global", "alone": "alone"}
    return {whose: content[name] for whose, name in names.items() if name in content}


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
