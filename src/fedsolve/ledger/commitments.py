"""Commitments to the names of a cohort's members: sha256(salt, name), beside the salt.

Whoever asks for a name finds out whether it is in; whoever reads the digests learns no name, but can try those that
come to mind.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from fedsolve.errors import DataError

SALT = 32  # bytes
_DIGITS = 64  # of a digest


class Commitment(NamedTuple):
    """A client's name under a salt.

    >>> mine, again = Commitment.to("ward-b"), Commitment.to("ward-b")
    >>> mine.is_to("ward-b"), mine.is_to("ward-c"), mine.digest == again.digest
    (True, False, False)
    """

    salt: bytes
    digest: str  # hexadecimal

    @classmethod
    def to(cls, client: str) -> Commitment:
        """A new one to that name: no other is like it."""
        salt = secrets.token_bytes(SALT)
        return cls(salt, _digest(salt, client))

    def is_to(self, client: str) -> bool:
        """Whether it is to that name."""
        return _digest(self.salt, client) == self.digest

    @property
    def is_one(self) -> bool:
        """Whether what a file holds can be a commitment."""
        salt, digest = self
        is_salt = isinstance(salt, bytes) and len(salt) == SALT
        return is_salt and isinstance(digest, str) and len(digest) == _DIGITS and set(digest) <= set("0123456789abcdef")


def _digest(salt: bytes, client: str) -> str:
    return hashlib.sha256(salt + client.encode()).hexdigest()  # the salt has one length, so where it ends is known


def to_text(commitments: Iterable[Commitment]) -> str:
    """Commitments as a text, for a message."""
    return " ".join(f"{salt.hex()}:{digest}" for salt, digest in commitments)


def from_text(text: str, source: str) -> list[Commitment]:
    """The commitments in a text, which may be a stranger's."""
    found = []
    for word in text.split():
        salt, _, digest = word.partition(":")
        try:
            commitment = Commitment(bytes.fromhex(salt), digest)
        except ValueError:
            commitment = Commitment(b"", "")
        if not commitment.is_one:
            raise DataError(f"{source} is damaged: what it has of the members of cohorts are no commitments")
        found.append(commitment)
    return found
