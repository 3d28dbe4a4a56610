"""A site that comes later: the server's invitation, from which one command at the site makes its folder and its keys.

An invitation has no secret: the server's address, the authority of its certificate, and the public keys of the sites so
far. The new site pins those at once, and gives its card to the server, for `add`; the others pin the newcomer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsolve import disk
from fedsolve.deploy import certificates
from fedsolve.deploy.files import NAME, NODE_PORT, env_text, read_env, split_address
from fedsolve.errors import DataError, ParameterError, brief
from fedsolve.privacy import credentials
from fedsolve.privacy.credentials import PEERS
from fedsolve.privacy.keys import Peer
from fedsolve.runtime.job import VERSION
from fedsolve.texts import read_json

INVITATION = "invitation.json"  # in the server's folder
FORMAT = 1
PORTS = 1000  # from the first one on, among which a node's is chosen


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a new site has to know of the server and of the sites that are there."""

    address: str
    authority: str  # certificates, as PEM
    version: str  # of fedsolve at the server
    peers: Mapping[str, Peer] = field(default_factory=dict)

    def to_text(self) -> str:
        """The invitation as a text, which `from_text` reads."""
        peers = {name: credentials.to_words(self.peers[name]) for name in sorted(self.peers)}
        words = {"format": FORMAT, "address": self.address, "authority": self.authority}
        words |= {"version": self.version, "peers": peers}
        return json.dumps(words, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str | bytes, whose: str) -> Invitation:
        """The inverse of `to_text`, for texts that anybody may have written."""
        content = read_json(text, whose)
        words = content if isinstance(content, dict) and content.get("format") == FORMAT else {}
        texts, peers = [words.get(name) for name in ("address", "authority", "version")], words.get("peers")
        if not all(isinstance(text, str) for text in texts) or not isinstance(peers, dict):
            raise DataError(
                f"{whose} is not an invitation, as `fedsolve deploy add` writes it at the server; got {brief(content)}"
            )
        address, authority, version = map(str, texts)
        split_address(address)
        certificates.check_certificates(authority, whose)
        if strange := [name for name in peers if not NAME.fullmatch(name)]:
            raise DataError(f"{whose}: {brief(strange[0])} is no name of a site")
        known = {name: credentials.of_words(each, f"{whose}, {name}") for name, each in peers.items()}
        return cls(address, authority, version, known)


def write_invitation(folder: Path) -> Path:
    """At the server: write the invitation anew, after whatever changed."""
    settings = read_env(folder / "server.env")
    invitation = Invitation(settings.get("ADDRESS", ""), read_text(folder / "ca.crt"), VERSION, known_peers(folder))
    path = folder / INVITATION
    disk.write_bytes(path, invitation.to_text().encode(), public=True)
    return path


def place_port(folder: Path, port: int | None = None) -> int:
    """At a site: the port of its node, as it is given or as site.env has it; else the first that is free here.

    Free is a port that nobody listens on and that no site in a neighbouring folder has.
    """
    settings = read_env(folder / "site.env")
    told = settings.get("PORT", "")
    if port is None and told.isdigit():
        return int(told)
    if port is None:
        near = (read_env(path).get("PORT", "") for path in folder.resolve().parent.glob("*/site.env"))
        taken = {int(text) for text in near if text.isdigit()}
        port = next(
            (each for each in range(NODE_PORT, NODE_PORT + PORTS) if each not in taken and _is_free(each)), None
        )
        if port is None:
            raise DataError(f"no port from {NODE_PORT} to {NODE_PORT + PORTS - 1} is free here; give one with --port")
    if not 0 < port < 65536:
        raise ParameterError(f"a port is a number from 1 to 65535; got {port}")
    text = env_text({**settings, "PORT": str(port)})
    disk.write_bytes(folder / "site.env", text.encode(), public=True)
    return port


def known_peers(folder: Path) -> dict[str, Peer]:
    """The keys of sites for secure sums that a server knows; none where no card was added yet."""
    path = folder / PEERS
    return credentials.read_peers(path) if path.exists() else {}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def read_text(path: Path) -> str:
    """The text in a file that somebody names."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
