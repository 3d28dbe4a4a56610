"""A contribution: what one client sends, once, with all it takes to know whether it fits. One file, or bytes."""

from __future__ import annotations

import hashlib
import reprlib
from dataclasses import dataclass
from pathlib import Path

from fedsolve import codec, disk
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.data.federation import check_name
from fedsolve.errors import DataError
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.validate import content

FORMAT = "1"
LONGEST_NAME = 100  # characters that are kept of the name in a file that is refused


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """Moments of a client's data, and whose they are.

    >>> import fedsolve as fs
    >>> from fedsolve.ledger.terms import Terms
    >>> terms = Terms.make(fs.AFL(), fs.Task(fs.Classes(2), (3,)))
    >>> moments = fs.Moments.of([[1.0, 2.0, 3.0], [0.5, 0.0, 1.0]], [0, 1], classes=2)
    >>> contribution = Contribution.of("ward-a", moments.arrays())
    >>> again = Contribution.read(contribution.write(terms), terms, "ward-a.safetensors")
    >>> again.client, again.digest == contribution.digest
    ('ward-a', True)
    """

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
        metadata = {"fedsolve": FORMAT, "made": "contribution", "client": self.client, "digest": self.digest}
        metadata |= terms.labels()
        return codec.encode(self.arrays, {**metadata, "seal": _seal(metadata)})

    def save(self, path: Path, terms: Terms) -> None:
        """Write a file that `load_contribution` and `Ledger.offer_files` read."""
        disk.write_bytes(path, self.write(terms))

    @classmethod
    def read(cls, data: Bytes, terms: Terms, source: str) -> Contribution:
        """From bytes; refused where they are damaged or made for another federation."""
        arrays, metadata = codec.read(data, source)
        if not all(_is_text(key) and _is_text(value) for key, value in metadata.items()):
            raise DataError(f"{source} is damaged: what stands beside its arrays is not text")
        if metadata.get("made") != "contribution" or metadata.get("fedsolve") != FORMAT:
            raise DataError(f"{source} is not a contribution of format {FORMAT}")
        reason = terms.refusal(metadata)
        if reason:
            raise DataError(reason)
        contribution = cls.of(metadata.get("client", ""), arrays)
        if contribution.digest != metadata.get("digest") or _seal(metadata) != metadata.get("seal"):
            raise DataError(f"{source} is damaged: its content is not what was written")
        return contribution


def _is_text(value: object) -> bool:
    """Whether a value of foreign JSON is a text that can be written down."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _seal(metadata: dict[str, str]) -> str:
    """A digest of what stands beside the arrays: a name that was damaged on the way is another client's."""
    words = "\n".join(f"{key} {metadata.get(key)}" for key in ("client", "digest", "terms"))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def read_bytes(path: Path) -> bytes:
    """The content of a file, or a `DataError` that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def sender(data: Bytes, default: str) -> str:
    """The client that bytes say they are from, or `default` where that cannot be read."""
    try:
        client: object = codec.read(data)[1].get("client")
    except DataError:
        return default
    return client[:LONGEST_NAME] if isinstance(client, str) and _is_text(client) else default


def load_contribution(path: Path, terms: Terms) -> Contribution:
    """The contribution in a file; refused where it is damaged or made for another federation."""
    return Contribution.read(read_bytes(path), terms, str(path))
