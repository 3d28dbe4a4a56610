"""A contribution: what one client sends, once, with all it takes to know whether it fits. One file, or bytes."""

from __future__ import annotations

import hashlib
import reprlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fedsolve import codec, disk
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.data.federation import check_name
from fedsolve.errors import DataError, ParameterError, StorageError
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.validate import content

FORMAT = "2"
LAST = 2**63 - 1  # the largest number that the file of a ledger holds
_SEALED = ("fedsolve", "client", "digest", "sequence", "terms")
LONGEST_NAME = 100  # characters that are kept of the name in a file that is refused


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """Moments of a client's data, whose they are, and a number by which later ones are told from earlier ones.

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
    sequence: int  # above that of the client's contributions before; files of format 1 have none, and count as 0
    signature: str = ""  # by the client's key, where it has one, of `words`

    def __repr__(self) -> str:
        return f"Contribution({reprlib.repr(self.client)}, {self.digest})"

    @classmethod
    def of(cls, client: str, arrays: Arrays, sequence: int | None = None) -> Contribution:
        """From what a method's `update` replied. Without a `sequence`, it is the time in nanoseconds since 1970."""
        check_name(client)
        sequence = time.time_ns() if sequence is None else sequence
        if not 0 <= sequence <= LAST:
            raise ParameterError(f"the number of a contribution must be between 0 and {LAST}; got {sequence!r}")
        return cls(client, arrays, content(arrays), sequence)

    def signed(self, terms: Terms, key: Path) -> Contribution:
        """The same with a signature by the private key in a file, for the federation of those terms."""
        from fedsolve.ledger.signing import sign

        return replace(self, signature=sign(self.words(terms), key))

    def words(self, terms: Terms) -> bytes:
        """What a signature is of: whose statistics, which, the how manieth, and for which federation."""
        return _words(self._sealed(terms))

    def _sealed(self, terms: Terms) -> dict[str, str]:
        metadata = {"fedsolve": FORMAT, "made": "contribution", "client": self.client, "digest": self.digest}
        return metadata | {"sequence": str(self.sequence)} | terms.labels()

    def write(self, terms: Terms) -> Bytes:
        """As bytes that say which federation they are for."""
        metadata = self._sealed(terms)
        signature = {"signature": self.signature} if self.signature else {}
        return codec.encode(self.arrays, {**metadata, "seal": _seal(metadata), **signature})

    def save(self, path: Path, terms: Terms) -> None:
        """Write a file that `load_contribution` and `Ledger.offer_files` read."""
        disk.write_bytes(path, self.write(terms))

    @classmethod
    def read(cls, data: Bytes, terms: Terms, source: str) -> Contribution:
        """From bytes; refused where they are damaged or made for another federation."""
        arrays, metadata = codec.read(data, source)
        if not all(_is_text(key) and _is_text(value) for key, value in metadata.items()):
            raise DataError(f"{source} is damaged: what stands beside its arrays is not text")
        if metadata.get("made") != "contribution" or metadata.get("fedsolve") not in ("1", FORMAT):
            raise DataError(f"{source} is not a contribution of format 1 or {FORMAT}")
        reason = terms.refusal(metadata)
        if reason:
            raise DataError(reason)
        contribution = cls.of(metadata.get("client", ""), arrays, _sequence(metadata, source))
        if contribution.digest != metadata.get("digest") or _seal(metadata) != metadata.get("seal"):
            raise DataError(f"{source} is damaged: its content is not what was written")
        return replace(contribution, signature=metadata.get("signature", ""))


def _is_text(value: object) -> bool:
    """Whether a value of foreign JSON is a text that can be written down."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _sequence(metadata: dict[str, str], source: str) -> int:
    if metadata["fedsolve"] == "1":
        return 0
    text = metadata.get("sequence", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LAST)) and int(text) <= LAST):
        raise DataError(f"{source} is damaged: its number is {reprlib.repr(text)}")
    return int(text)


def _seal(metadata: dict[str, str]) -> str:
    """A digest of what stands beside the arrays: a name that was damaged on the way is another client's."""
    return hashlib.sha256(_words(metadata)).hexdigest()[:16]


def _words(metadata: dict[str, str]) -> bytes:
    keys = ("client", "digest", "terms") if metadata.get("fedsolve") == "1" else _SEALED
    return "\n".join(f"{key} {metadata.get(key)}" for key in keys).encode()


def read_bytes(path: Path) -> bytes:
    """The content of a file, or a `DataError` that names it; a `StorageError` where the machine is to blame."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


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
