"""Runs of a deployment, one file each in the server's folder: those that are over, and the one that is under way.

A run under way holds a lock, so that one whose process was killed is seen to be over. How it goes stands in a file of
the server app, which is taken in when the run ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsolve import disk
from fedsolve.deploy.lock import held, is_held
from fedsolve.errors import DataError, FedsolveError
from fedsolve.runtime import live
from fedsolve.runtime.job import Job, Rules
from fedsolve.texts import read_json

FOLDER = "runs"  # in the server's folder
KEPT = 200  # records; the oldest go first
LARGEST = 5_000_000  # bytes of a record
RUNNING, DONE, FAILED, STOPPED, LOST = "running", "done", "failed", "stopped", "lost"


@dataclass(frozen=True)
class Record:
    """One run: what was asked for, what became of it, and what it told of itself."""

    id: str
    started: str
    method: str
    privacy: str
    out: str
    sites: tuple[str, ...]  # that were expected
    ledger: str = ""
    ended: str = ""
    outcome: str = RUNNING
    error: str = ""
    place: str = ""  # of the file in which it tells how it goes, while it does
    timeout: float = 0.0  # seconds that an answer may take
    told: dict[str, Any] = field(default_factory=dict)  # what that file said

    @classmethod
    def from_text(cls, text: str | bytes, whose: str) -> Record:
        """A record as `to_text` wrote it; any other text is refused."""
        words = read_json(text, whose)
        kinds = {each.name: each.type for each in fields(cls)}
        if not isinstance(words, dict) or set(words) != set(kinds):
            raise DataError(f"{whose} is not the record of a run that this version of fedsolve wrote")
        words["sites"] = tuple(words["sites"]) if isinstance(words["sites"], list) else None
        texts = all(isinstance(words[name], str) for name, kind in kinds.items() if kind == "str")
        names = words["sites"] is not None and all(isinstance(name, str) for name in words["sites"])
        number = isinstance(words["timeout"], int | float) and not isinstance(words["timeout"], bool)
        if not (texts and names and number and isinstance(words["told"], dict)):
            raise DataError(f"{whose} is not the record of a run that this version of fedsolve wrote")
        return cls(**words)

    def to_text(self) -> str:
        """The record as JSON."""
        return json.dumps(asdict(self))

    def told_of(self, site: str) -> dict[str, Any]:
        """What the run knows of a site: its messages, its data in words, and why it was left out, if it was."""
        sites = self.told.get("sites")
        found = sites.get(site) if isinstance(sites, dict) else None
        return found if isinstance(found, dict) else {}


@contextmanager
def under_way(folder: Path, job: Job, rules: Rules, out: Path, ledger: Path | None, scratch: Path) -> Iterator[None]:
    """Inside, a run of these settings is under way; afterwards its record says how it ended."""
    moment = datetime.now(UTC)
    epsilon = f", epsilon {job.noise.get('epsilon')}" if job.noise else ""
    privacy = (f"secure, quorum {job.quorum}" if job.quorum else "plain") + epsilon
    record = Record(
        id=f"{moment:%Y%m%dT%H%M%S}-{os.getpid()}",
        started=moment.isoformat(timespec="milliseconds"),
        method=job.method,
        privacy=privacy,
        out=str(out),
        sites=tuple(rules.expected),
        ledger=str(ledger or ""),
        place=str(scratch / live.FILE),
        timeout=rules.timeout,
    )
    path = disk.private_folder(folder / FOLDER) / f"{record.id}.json"

    def write(outcome: str, error: str = "") -> None:
        ended = "" if outcome == RUNNING else live.now()
        told = {} if outcome == RUNNING else _told(record.place)
        content = replace(record, outcome=outcome, error=error, ended=ended, told=told)
        disk.write_bytes(path, content.to_text().encode())

    with held(path.with_suffix(".lock")):
        write(RUNNING)
        try:
            yield
        except FedsolveError as error:
            write(FAILED, str(error))
            raise
        except (KeyboardInterrupt, SystemExit):
            write(STOPPED)
            raise
        except BaseException as error:
            write(FAILED, f"{type(error).__name__}: {error}")
            raise
        write(DONE)
    _prune(folder / FOLDER)


def read(folder: Path) -> list[Record]:
    """The runs of a server's folder, the last one first; damaged records are left out.

    One that is under way has what it told last. One whose process is gone without a word is `lost`.
    """
    found = []
    for path in sorted((folder / FOLDER).glob("*.json"), reverse=True):
        with suppress(DataError, OSError):
            if path.stat().st_size > LARGEST:
                continue
            record = Record.from_text(path.read_bytes(), str(path))
            if record.outcome == RUNNING:
                alive = is_held(path.with_suffix(".lock"))
                record = replace(record, outcome=RUNNING if alive else LOST, told=_told(record.place))
            found.append(record)
    return found


def of_site(records: Sequence[Record], site: str) -> tuple[Record, dict[str, Any]] | None:
    """What a site told of its data last, and in which run."""
    for record in records:
        told = record.told_of(site).get("told")
        if isinstance(told, dict):
            return record, told
    return None


def _told(place: str) -> dict[str, Any]:
    """What a run said of itself last; nothing where its file is not there, or not whole."""
    with suppress(OSError, FedsolveError):
        content = read_json(Path(place).read_bytes()[:LARGEST], place)
        if isinstance(content, dict):
            return content
    return {}


def _prune(folder: Path) -> None:
    for path in sorted(folder.glob("*.json"), reverse=True)[KEPT:]:
        path.unlink(missing_ok=True)
