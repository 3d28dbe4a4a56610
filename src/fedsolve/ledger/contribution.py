"""A contribution: what one client sends, once, with all it takes to know whether it fits. One file, or bytes."""

from __future__ import annotations

import hashlib
import reprlib
from dataclasses import dataclass
from pathlib import Path

from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.data.federation import check_name
from fedsolve.errors import DataError
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.validate import content

FORMAT = "1"


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """Moments of a client's data, and whose they are."""

    client: str
    arrays: Arrays
    digest: str  # of the arrays

    def __repr__(self) -> str:
        return f"Contribution({reprlib.repr(self.client)}, {self.digest})"

    @classmethod
    def of(cls, client: str, arrays: Arrays) -> Contribution:
        """From what a method's `update` replied."""
        check_name(client)
        return cls(client, arrays, content(arrays))

    def write(self, terms: Terms) -> Bytes:
        """As bytes that say which federation they are for."""
        told = {"fedsolve": FORMAT, "made": "contribution", "client": self.client, "digest": self.digest}
        labels = terms.labels()
        return codec.encode(self.arrays, {**told, **labels, "seal": _seal(told | labels)})

    def save(self, path: Path, terms: Terms) -> None:
        """Write a file that `read` reads."""
        codec.write_bytes(path, self.write(terms))

    @classmethod
    def read(cls, data: Bytes, terms: Terms, source: str) -> Contribution:
        """From bytes; refused where they are damaged or made for another federation."""
        arrays, told = codec.read(data, source)
        if not all(_is_text(key) and _is_text(value) for key, value in told.items()):
            raise DataError(f"{source} is damaged: what stands beside its arrays is not text")
        if told.get("made") != "contribution" or told.get("fedsolve") != FORMAT:
            raise DataError(f"{source} is not a contribution of format {FORMAT}")
        refused = terms.refusal(told)
        if refused:
            raise DataError(refused)
        found = cls.of(told.get("client", ""), arrays)
        if found.digest != told.get("digest") or _seal(told) != told.get("seal"):
            raise DataError(f"{source} is damaged: its content is not what was written")
        return found


def _is_text(value: object) -> bool:
    """Whether a value of foreign JSON is a text that can be written down."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _seal(told: dict[str, str]) -> str:
    """Of what stands beside the arrays: a name that was damaged on the way is another client's."""
    words = "\n".join(f"{key} {told.get(key)}" for key in ("client", "digest", "terms"))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def read_bytes(path: Path) -> bytes:
    """The content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def claimed(data: Bytes, otherwise: str) -> str:
    """The client that bytes say they are from, as far as they can be read."""
    try:
        found: object = codec.read(data)[1].get("client")
    except DataError:
        found = None
    return found[:100] if isinstance(found, str) and _is_text(found) else otherwise


def load_contribution(path: Path, terms: Terms) -> Contribution:
    """The contribution in a file."""
    return Contribution.read(read_bytes(path), terms, str(path))
