"""What a ledger answers with: plain records of its members, its journal, a check, and a solved model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedsolve import arrays as named
from fedsolve import codec, disk
from fedsolve.arrays import Arrays
from fedsolve.errors import DataError
from fedsolve.ledger.commitments import Commitment, to_text
from fedsolve.ledger.terms import Terms
from fedsolve.model import Model


class Member(NamedTuple):
    """A client whose contribution is in the sum, or a cohort, whose sum is one contribution."""

    client: str
    samples: int
    classes: int  # how many classes it has samples of
    bytes: int  # of its contribution
    at: str  # when it came, UTC
    digest: str  # of its contribution
    cohort: int = 0  # how many clients it is the sum over, where it is a cohort

    @property
    def heads(self) -> int:
        """How many clients it stands for."""
        return self.cohort or 1


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the journal."""

    at: str  # when it happened, UTC
    event: str  # "created", "added", "replaced", "removed", "rejected", "rebuilt", "readmitted", "trusted"
    client: str
    digest: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a contribution that was offered, or of a client that was to be taken out."""

    client: str
    event: str  # "added", "replaced", "unchanged", "rejected" or "removed"
    reason: str = ""  # of a refusal; after a removal, where statistics are still to be found


@dataclass(frozen=True, slots=True)
class Check:
    """What `Ledger.verify` came to."""

    members: int  # clients, those of cohorts too
    samples: int
    drift: float | None  # of the total from the sum of the parts, relative; None where there are no parts to sum
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The exact model of the members of a ledger."""

    terms: Terms
    state: Arrays
    digests: tuple[str, ...]  # of the members' contributions, sorted
    samples: int
    clients: int  # how many are in, those of cohorts too
    commitments: tuple[Commitment, ...] = ()  # to the members of cohorts

    @property
    def message(self) -> Arrays:
        """What every client is sent, to make its own model from."""
        return self.terms.method.message(self.state, "", "personalize")

    @property
    def shared(self) -> Model | None:
        """The one global model, where the method has one."""
        arrays = self.terms.method.shared(self.message)
        return Model(self.terms.method, self.terms.task, arrays, "global") if arrays else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What not to trust, one sentence each: features whose digits were lost in the sums."""
        return self.terms.method.warnings(self.state, self.terms.task)

    def save(self, directory: Path) -> Path:
        """Write the global model, the state and the message for clients, each file whole or not at all."""
        if directory.exists() and not directory.is_dir():
            raise DataError(f"{directory} is a file; name a folder")
        disk.private_folder(directory / "models")
        if self.shared is not None:
            self.shared.save(directory / "models" / "global.safetensors")
        metadata = self.terms.metadata() | self.terms.labels() | {"made": "message"}
        metadata["members"] = " ".join(self.digests)
        if self.commitments:
            metadata["commitments"] = to_text(self.commitments)
        arrays = named.under("message", self.message) | named.under("sent", self.terms.message)
        codec.write_file(directory / "message.safetensors", arrays, metadata)
        codec.write_file(directory / "state.safetensors", self.state)
        return directory
