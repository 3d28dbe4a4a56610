"""A run that was stopped goes on: everything it takes, in one file that is there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fedsolve import codec, disk
from fedsolve.arrays import take, under
from fedsolve.errors import DataError
from fedsolve.parameters import whole
from fedsolve.records import Times
from fedsolve.result import CHECKPOINT, Round, versions
from fedsolve.runtime.client import Memory
from fedsolve.runtime.drive import Snapshot
from fedsolve.runtime.pace import Pace

FORMAT = "2"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run keeps its state, and how often."""

    folder: Path
    every: int = 0  # rounds between two; 0: none is written
    resume: bool = False  # go on from the one that is there
    identity: Mapping[str, Any] = field(default_factory=dict)  # what must be the same to go on
    settings: Mapping[str, Any] = field(default_factory=dict)  # that the experiment was asked for with, to ask again

    def __post_init__(self) -> None:
        whole("checkpoint", self.every, 0)
        if self.resume and not self.path.is_file():
            raise DataError(f"there is nothing to resume in {self.folder}: it holds no {CHECKPOINT}")

    @property
    def path(self) -> Path:
        """The one file in the folder that holds the checkpoint."""
        return Path(self.folder) / CHECKPOINT

    def about(self, settings: Mapping[str, Any], fingerprint: str, absent: Collection[str]) -> Checkpoint:
        """The same, for a run with these settings on these data."""
        identity = {**settings, "data": fingerprint, "absent": sorted(absent), "versions": versions() | _torch()}
        return replace(self, identity=json.loads(json.dumps(identity)))

    def keep(self, snapshot: Snapshot, memory: Mapping[str, Memory]) -> None:
        """Write all of it, if it is time."""
        if not self.every or snapshot.round % self.every:
            return
        arrays = under("server", snapshot.state)
        for client, client_memory in memory.items():
            arrays |= under(f"client/{client}", client_memory.arrays())
        head = {
            "fedsolve-checkpoint": FORMAT,
            "identity": json.dumps(self.identity),
            "settings": json.dumps(dict(self.settings)),
            "every": str(self.every),
            "round": str(snapshot.round),
            "history": json.dumps([line.json() for line in snapshot.history]),
            "lost": json.dumps(sorted(snapshot.lost)),
            "seconds": json.dumps(dict(snapshot.seconds)),
            "spent": json.dumps({client: asdict(times) for client, times in snapshot.spent.items()}),
            "pace": json.dumps(asdict(snapshot.pace) if snapshot.pace else None),
            "clients": json.dumps(sorted(memory)),
        }
        disk.private_folder(self.path.parent)
        codec.write_file(self.path, arrays, head)

    def asked_for(self) -> tuple[dict[str, Any], int]:
        """The settings that the run in the file was asked for with, and the rounds between two checkpoints.

        Empty and 0 where the file does not say: a run from Python has no settings of an experiment.
        """
        _, head = codec.read_file(self.path)
        try:
            return dict(json.loads(head.get("settings", "{}"))), int(head.get("every", "0"))
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{self.path} is damaged: {type(error).__name__}: {error}") from error

    def resumed(self) -> tuple[Snapshot | None, dict[str, Memory]]:
        """What the server knew and what clients remembered, if that is asked for and the run is the same."""
        if not self.resume:
            return None, {}
        arrays, head = codec.read_file(self.path)
        try:
            if head.get("fedsolve-checkpoint") != FORMAT:
                raise DataError(f"{self.path} is not a checkpoint of format {FORMAT}")
            self._compare(json.loads(head["identity"]))
            lines = json.loads(head["history"])
            snapshot = Snapshot(
                round=int(head["round"]),
                state=take("server", arrays),
                history=tuple(map(Round.read, lines)),
                lost=frozenset(json.loads(head["lost"])),
                seconds=json.loads(head["seconds"]),
                spent={name: Times(**each) for name, each in json.loads(head.get("spent", "{}")).items()},
                pace=Pace.read(**written) if (written := json.loads(head.get("pace", "null"))) else None,
            )
            return snapshot, {
                name: Memory.from_arrays(take(f"client/{name}", arrays)) for name in json.loads(head["clients"])
            }
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.path} is damaged: {type(error).__name__}: {error}") from error

    def _compare(self, identity: Mapping[str, Any]) -> None:
        """Refuse to go on with something else, and say what differs."""
        before, now = _flat(identity), _flat(self.identity)
        differences = [
            f"{name} was {before.get(name, 'absent')!r} and is {now.get(name, 'absent')!r}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        if differences:
            raise DataError(f"{self.path} belongs to another run: {'; '.join(differences[:3])}")


def _torch() -> dict[str, str]:
    try:
        return {"torch": metadata.version("torch")}  # looked up, not loaded
    except metadata.PackageNotFoundError:
        return {}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= _flat(value, f"{above}{name} ") if isinstance(value, Mapping) else {above + name: value}
    return result
