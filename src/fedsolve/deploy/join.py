"""Keys that are made where they are used: a site makes its own, shows its card, and pins those of its peers.

at a site     join   makes keys, and a card of their public halves, which goes to the server
at the server add    takes cards in: who may connect, and one file with the keys of all
at a site     pin    takes that file in; then all sites compare its fingerprint by telephone
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsolve import disk
from fedsolve.data.reading import Reading
from fedsolve.deploy import certificates
from fedsolve.deploy.files import NAME, env_text, read_env, template, write, write_site
from fedsolve.deploy.invite import Invitation, known_peers, place_port, read_text, write_invitation
from fedsolve.errors import DataError, ParameterError, brief, unknown
from fedsolve.privacy import credentials
from fedsolve.privacy.credentials import IDENTITY, PEERS
from fedsolve.privacy.keys import Peer
from fedsolve.privacy.policy import Policy
from fedsolve.texts import read_json

CARD = "card.json"  # in a site's folder: what its owner gives to the server's
FORMAT = 1
FIXED = ("NAME", "PORT", "VERSION")  # settings of a site that are not for its owner to write, or have an option


@dataclass(frozen=True, slots=True)
class Card:
    """What a site tells the server of itself: its name, the key of its node, and its keys for secure sums."""

    name: str
    node: str  # in OpenSSH's format
    peer: Peer

    def to_text(self) -> str:
        """The card as a text, which `from_text` reads; nothing in it is secret."""
        words = {"format": FORMAT, "name": self.name, "node": self.node, **credentials.to_words(self.peer)}
        return json.dumps(words, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str, whose: str) -> Card:
        """The inverse of `to_text`, for texts that anybody may have written."""
        content = read_json(text, whose)
        words = content if isinstance(content, dict) and content.get("format") == FORMAT else {}
        name, node = words.get("name"), words.get("node")
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == "global" or not isinstance(node, str):
            raise DataError(
                f"{whose} is not the card of a site, as `fedsolve deploy join` writes it; got {brief(content)}"
            )
        certificates.check_public(node, whose)
        return cls(name, node, credentials.of_words(words, whose))


def join(folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> Card:
    """At a site: make its keys, where it has none, and write its card beside them; its node has this port, or one free.

    A port that site.env has already stays, unless another one is given. `settings` are put into site.env.
    """
    name = read_env(folder / "site.env").get("NAME", "")
    if not NAME.fullmatch(name):
        raise DataError(f"{folder / 'site.env'} does not say the site's NAME; it came with `fedsolve deploy init`")
    if settings:
        _settle(folder, settings)
    place_port(folder, port)
    private, public = folder / "node.key", folder / "node.pub"
    if not private.exists():
        secret, shown = certificates.node_pair()
        write(private, secret, secret=True)
        write(public, shown)
    card = Card(name, certificates.public_line(private), credentials.made(folder / IDENTITY).public)
    write(folder / CARD, card.to_text())
    return card


def accept(
    folder: Path, path: Path, name: str, *, port: int | None = None, settings: Mapping[str, str] | None = None
) -> Card:
    """At a new site: make its folder from an invitation, its keys, its card, and pin the keys of the sites so far."""
    if not NAME.fullmatch(name) or name == "global":
        raise ParameterError(f"sites are named by letters, digits, '.', '_' and '-'; got {name!r}")
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; name a new folder for the site")
    invitation = Invitation.from_text(read_text(path), str(path))
    if name in invitation.peers:
        raise DataError(f"there is a site called {name!r} already; choose another name")
    try:
        write(folder / "ca.crt", invitation.authority)
        write_site(folder, name, invitation.address, len(invitation.peers) + 1, version=invitation.version)
        card = join(folder, port=port, settings=settings)
        credentials.write_peers(folder / PEERS, {**invitation.peers, name: card.peer})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # it was new or empty
        raise
    return card


def _settle(folder: Path, settings: Mapping[str, str]) -> None:
    """At a site: put settings into its site.env, if it has their names, and if all of them can be read together."""
    before = read_env(folder / "site.env")
    for name in settings:
        if name not in before or name in FIXED:
            raise unknown("setting", name, [each for each in before if each not in FIXED])
    after = {**before, **settings}
    lower = {name.lower(): value for name, value in after.items()}
    Policy.of(lower)
    Reading.of(lower)
    disk.write_bytes(folder / "site.env", env_text(after).encode(), public=True)


def add(folder: Path, cards: Sequence[Path]) -> dict[str, Peer]:
    """At the server: let the sites of these cards in; the keys of all sites that are known now.

    Another key of a site that is known is refused, and nothing is changed then.
    """
    sites, known = sites_of(folder), known_peers(folder)
    found = [Card.from_text(read_text(path), str(path)) for path in cards]
    names = [card.name for card in found]
    if len(set(names)) != len(names):
        raise DataError(f"two cards are of one site; got {', '.join(names)}")
    after = {**known, **{card.name: card.peer for card in found}}
    credentials.check_pinned(known, after)
    for card in found:
        place = folder / "keys" / f"{card.name}.pub"
        if place.exists() and certificates.public_pem(place) != certificates.check_public(card.node, card.name):
            raise DataError(f"{card.name!r} is known by another node key; `fedsolve deploy remove` takes it away first")
    for card in found:
        write(folder / "keys" / f"{card.name}.pub", card.node + "\n")
    credentials.write_peers(folder / PEERS, after)
    _expect(folder, [*sites, *(name for name in names if name not in sites)])
    write_invitation(folder)
    return after


def remove(folder: Path, name: str) -> None:
    """At the server: expect a site no longer, and forget its keys."""
    sites, known = sites_of(folder), known_peers(folder)
    key = folder / "keys" / f"{name}.pub"
    if name not in sites and name not in known and not key.exists():
        raise unknown("site", name, sites)
    _expect(folder, [site for site in sites if site != name])
    credentials.write_peers(folder / PEERS, {site: peer for site, peer in known.items() if site != name})
    key.unlink(missing_ok=True)
    write_invitation(folder)


def pin(folder: Path, path: Path) -> dict[str, Peer]:
    """At a site: take the public keys of all sites in. Its own is among them, and none that was pinned may change."""
    name, peers = read_env(folder / "site.env").get("NAME", ""), credentials.read_peers(path)
    own = credentials.read_identity(folder / IDENTITY).public
    if peers.get(name) != own:
        told = peers[name].fingerprint if name in peers else "none"
        raise DataError(
            f"{path} has another key for {name!r}, which is this site ({told} instead of {own.fingerprint}): somebody "
            f"changed it, or the server has an old card; send it {folder / CARD} again"
        )
    before = credentials.read_peers(folder / PEERS) if (folder / PEERS).exists() else {}
    credentials.check_pinned(before, peers)
    credentials.write_peers(folder / PEERS, peers)
    return peers


def trial(folder: Path) -> None:
    """For a trial on one machine: do at all sites of a new federation, and at its server, what each would do itself."""
    sites = sorted((folder / "sites").iterdir())
    for site in sites:
        join(site)
    add(folder / "server", [site / CARD for site in sites])
    for site in sites:
        pin(site, folder / "server" / PEERS)
    write(folder / "start.sh", template("start.sh"), script=True)


def sites_of(folder: Path) -> tuple[str, ...]:
    """The sites that a server's folder names."""
    return tuple(name for name in read_env(folder / "server.env").get("SITES", "").split(",") if name)


def _expect(folder: Path, sites: Sequence[str]) -> None:
    text = env_text({**read_env(folder / "server.env"), "SITES": ",".join(sites)})
    disk.write_bytes(folder / "server.env", text.encode(), public=True)
