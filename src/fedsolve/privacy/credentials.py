"""A site's lasting keys, and those of its peers that it has pinned, in files.

Keys are made at the site and stay there. Whom a site takes for whom in a secure sum is what its own file of peers says:
not the server, which would put itself in between.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path

from fedsolve import disk
from fedsolve.errors import DataError, brief
from fedsolve.privacy import keys
from fedsolve.privacy.keys import Identity, Peer
from fedsolve.privacy.protocol import roster_digest
from fedsolve.texts import read_json

IDENTITY, PEERS = "identity.key", "peers.json"  # in a site's folder
FORMAT = 1


def made(path: Path) -> Identity:
    """The identity in a file that its owner alone can read; a new one where there is none."""
    if not path.exists():
        disk.private_folder(path.parent)
        disk.write_bytes(path, Identity.make().to_bytes())
    return read_identity(path)


def read_identity(path: Path) -> Identity:
    """The identity in a file; refused where others than its owner can read it."""
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise DataError(f"others on this machine can read {path}: chmod 600 {path}")
        return Identity.from_bytes(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}, the keys of this site for secure sums: {error.strerror}") from error


def write_peers(path: Path, peers: Mapping[str, Peer]) -> None:
    """Put public keys into a file, by name; nothing in it is secret."""
    content = {"format": FORMAT, "peers": {name: to_words(peers[name]) for name in sorted(peers)}}
    disk.write_bytes(path, json.dumps(content, indent=1).encode() + b"\n", public=True)


def read_peers(path: Path) -> dict[str, Peer]:
    """The public keys in a file, by name."""
    try:
        content = read_json(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"cannot read {path}, the public keys of all sites: {error.strerror}") from error
    known = content.get("peers") if isinstance(content, dict) and content.get("format") == FORMAT else None
    if not isinstance(known, dict):
        raise DataError(f"{path} is not a file of public keys of format {FORMAT}")
    return {name: of_words(words, f"{path}, {name[:80]}") for name, words in known.items()}


def to_words(peer: Peer) -> dict[str, str]:
    """Public keys as texts, which `of_words` reads."""
    return {"sign": peer.sign.hex(), "seal": peer.seal.hex()}


def of_words(words: object, whose: str) -> Peer:
    """The inverse of `to_words`, for what anybody may have written.

    >>> of_words({"sign": "00" * 32, "seal": "ff" * 32}, "ward-a").fingerprint
    'bba9 1ca8 5dc9 14b2 ec3e fb9e 16e7 267b'
    """
    pair = [words.get(name) for name in ("sign", "seal")] if isinstance(words, dict) else [None]
    if not all(isinstance(text, str) and len(text) == 2 * keys.KEY for text in pair):
        raise DataError(
            f"{whose}: wanted two public keys, sign and seal, of {2 * keys.KEY} digits each; got {brief(words)}"
        )
    try:
        return Peer(*(bytes.fromhex(str(text)) for text in pair))
    except ValueError as error:
        raise DataError(f"{whose}: public keys are written in hexadecimal digits") from error


def roster_fingerprint(peers: Mapping[str, Peer]) -> str:
    """A short text that is the same at all sites if all have pinned the same keys: to compare by telephone."""
    digits = roster_digest(peers, peers)[:32]
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def check_pinned(before: Mapping[str, Peer], after: Mapping[str, Peer]) -> None:
    """Refuse other keys for a name that is known; a new name is no reason."""
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    if changed:
        raise DataError(
            f"{changed[0]!r} is known by other keys: {before[changed[0]].fingerprint}, and now it would be "
            f"{after[changed[0]].fingerprint}; ask that site by telephone whether it made new ones, and remove the old "
            "ones here first"
        )
