"""What a run leaves: figures per client, totals, models and the server's last state, in memory and on disk."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.errors import DataError
from fedsolve.method import Method
from fedsolve.model import Model, load_model

FORMAT = 1
CHECKPOINT = "checkpoint.safetensors"  # of a run that is not over; a result takes its place


@dataclass(frozen=True, slots=True)
class ClientResult:
    """How one client fares. Accuracies are on its own test samples; None where it has none."""

    train: int
    test: int
    accuracy: float | None
    shared: float | None = None  # accuracy of the one global model
    alone: float | None = None  # accuracy of training alone
    chosen: Mapping[str, float] = field(default_factory=dict)  # hyper-parameters chosen for this client

    def json(self) -> dict[str, Any]:
        """As it stands in result.json; the global model's accuracy is called "global" there."""
        known: dict[str, Any] = {"train": self.train, "test": self.test, "accuracy": self.accuracy}
        if self.shared is not None:
            known["global"] = self.shared
        if self.alone is not None:
            known["alone"] = self.alone
        return known | ({"chosen": dict(self.chosen)} if self.chosen else {})


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy over clients. `mean` counts clients alike, `pooled` counts test samples alike: papers mix them up."""

    mean: float | None
    pooled: float | None
    std: float | None  # over clients
    worst_decile: float | None  # mean over the worst tenth of the clients, at least one

    @classmethod
    def of(cls, clients: Mapping[str, ClientResult]) -> Accuracy:
        """The summary over the clients that have test samples."""
        tested = [(c.accuracy, c.test) for c in clients.values() if c.accuracy is not None]
        if not tested:
            return cls(None, None, None, None)
        values = sorted(accuracy for accuracy, _ in tested)
        # Exact sums: clients that all have the same accuracy have that mean, to the last digit.
        return cls(
            mean=statistics.mean(values),
            pooled=sum(round(accuracy * count) for accuracy, count in tested) / sum(count for _, count in tested),
            std=statistics.pstdev(values),
            worst_decile=statistics.mean(values[: -(-len(values) // 10)]),
        )


@dataclass(frozen=True, slots=True)
class Round:
    """One line of the history."""

    round: int
    accuracy: float | None  # mean over clients, where it was evaluated
    bytes_up: int
    bytes_down: int
    seconds: float
    missing: tuple[str, ...] = ()  # clients that were not part of it
    loss: float | None = None  # mean training loss, where clients send it

    def json(self) -> dict[str, Any]:
        """As it stands in result.json, without a loss where there is none."""
        return {name: value for name, value in asdict(self).items() if name != "loss" or value is not None}


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where the time went."""

    features: float = 0.0
    clients: float = 0.0
    server: float = 0.0
    evaluate: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The outcome of a run, at its last round."""

    method: str
    settings: Mapping[str, Any]  # enough to run it again
    clients: Mapping[str, ClientResult]
    history: tuple[Round, ...]
    seconds: Seconds
    data: Mapping[str, Any]  # name, fingerprint, and how many samples a split had to move
    models: Mapping[str, Model]
    shared: Model | None  # the one global model, where the method has one
    state: Arrays  # the server's

    def __repr__(self) -> str:
        mean = self.accuracy.mean
        accuracy = "no accuracy" if mean is None else f"mean accuracy {mean:.4f}"
        return f"Result({self.method!r}, {len(self.clients)} clients, {self.rounds} rounds, {accuracy})"

    @property
    def accuracy(self) -> Accuracy:
        """Accuracy over clients, at the last round."""
        return Accuracy.of(self.clients)

    @property
    def rounds(self) -> int:
        """How many rounds were run."""
        return len(self.history)

    @property
    def bytes_up(self) -> int:
        """Bytes that clients sent."""
        return sum(line.bytes_up for line in self.history)

    @property
    def bytes_down(self) -> int:
        """Bytes that clients received."""
        return sum(line.bytes_down for line in self.history)

    def with_alone(self, alone: Result) -> Result:
        """The same result with each client's accuracy from training alone beside it."""
        clients = {name: replace(c, alone=alone.clients[name].accuracy) for name, c in self.clients.items()}
        return replace(self, clients=clients)

    def figures(self, which: str) -> dict[str, ClientResult]:
        """The clients with the accuracy of training `alone`, or of the `shared` model, in place of their own."""
        return {name: replace(c, accuracy=getattr(c, which)) for name, c in self.clients.items()}

    def json(self) -> dict[str, Any]:
        """The content of result.json."""
        server = {name: array.item() for name, array in self.state.items() if array.ndim == 0}
        return {
            "format": FORMAT,
            "method": self.method,
            "settings": dict(self.settings),
            "clients": {name: client.json() for name, client in self.clients.items()},
            "accuracy": asdict(self.accuracy),
            "rounds": self.rounds,
            "bytes": {"up": self.bytes_up, "down": self.bytes_down},
            "seconds": {name: round(value, 6) for name, value in asdict(self.seconds).items()},
            "history": [line.json() for line in self.history],
            "server": server,
            "versions": versions(),
            "data": dict(self.data),
        }

    def save(self, directory: str | Path) -> Path:
        """Write `result.json`, `models/` and `state.safetensors`: all of it appears at once, or nothing.

        An earlier result in the same place is replaced; any other content is left alone and refused.
        """
        target = Path(directory).resolve()  # through links, so that what is replaced is the folder
        if target.exists() and not replaceable(target):
            raise DataError(
                f"{directory} exists and is not a result of fedsolve; name another place, or remove it first"
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        except OSError as error:
            raise DataError(f"cannot write to {directory}: {error.strerror or error}") from error
        try:
            (temporary / "models").mkdir()
            for name, model in self.models.items():
                model.save(temporary / "models" / f"{name}.safetensors")
            if self.shared is not None:
                self.shared.save(temporary / "models" / "global.safetensors")
            codec.write_file(temporary / "state.safetensors", self.state)
            text = json.dumps(self.json(), indent=1, allow_nan=False)
            codec.write_bytes(temporary / "result.json", text.encode() + b"\n")
            temporary.chmod(0o777 & ~codec.umask())
            if target.exists():
                retired = temporary.with_name(temporary.name + ".old")
                os.rename(target, retired)
                try:
                    os.rename(temporary, target)
                except BaseException:
                    os.rename(retired, target)
                    raise
                shutil.rmtree(retired)
            else:
                os.rename(temporary, target)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                raise DataError(f"cannot write to {directory}: {error.strerror or error}") from error
            raise
        return Path(directory)

    @classmethod
    def load(cls, directory: str | Path, kind: type[Method] | None = None) -> Result:
        """A result from disk. Its models are read when they are asked for.

        `kind` is the class of its method, where that is not of the catalogue.
        """
        folder = Path(directory)
        try:
            found = json.loads((folder / "result.json").read_text())
            if found["format"] != FORMAT:
                raise DataError(f"{folder} holds a result of format {found['format']}; this version reads {FORMAT}")
            clients = {}
            for name, c in found["clients"].items():
                accuracies = (c["accuracy"], c.get("global"), c.get("alone"))
                clients[name] = ClientResult(c["train"], c["test"], *accuracies, c.get("chosen", {}))
            history = tuple(Round(**{**line, "missing": tuple(line["missing"])}) for line in found["history"])
            state, _ = codec.read_file(folder / "state.safetensors")
            shared = folder / "models" / "global.safetensors"
            return cls(
                method=found["method"],
                settings=found["settings"],
                clients=clients,
                history=history,
                seconds=Seconds(**found["seconds"]),
                data=found["data"],
                models=_SavedModels(folder / "models", tuple(clients), kind),
                shared=load_model(shared, kind) if shared.exists() else None,
                state=state,
            )
        except OSError as error:
            raise DataError(f"{folder} holds no result: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{folder / 'result.json'} is damaged: {type(error).__name__}: {error}") from error


class _SavedModels(Mapping[str, Model]):
    """Models on disk, by client."""

    def __init__(self, folder: Path, names: tuple[str, ...], kind: type[Method] | None) -> None:
        self._folder, self._names, self._kind = folder, names, kind

    def __getitem__(self, name: str) -> Model:
        if name not in self._names:
            raise KeyError(name)
        return load_model(self._folder / f"{name}.safetensors", self._kind)

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def replaceable(target: Path) -> bool:
    """Whether a place may be written over: an empty folder, an earlier result or a checkpoint."""
    if not target.is_dir():
        return False
    held = {path.name for path in target.iterdir()}
    if held <= {CHECKPOINT}:
        return True
    models = target / "models"
    strange = [path for path in models.iterdir() if path.suffix != ".safetensors"] if models.is_dir() else []
    if strange or not held <= {"result.json", "state.safetensors", "models", CHECKPOINT}:
        return False
    try:
        return bool(json.loads((target / "result.json").read_text())["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def versions() -> dict[str, str]:
    """What computed the result."""
    packages = ("fedsolve", "numpy", "scipy", "scikit-learn", "safetensors")
    used = ("torch",) if "torch" in sys.modules else ()
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in (*packages, *used)}
