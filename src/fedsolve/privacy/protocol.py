"""A sum that nobody sees the parts of, as pure functions of both sides: open, mask, unmask.

Each pair of neighbours agrees on a mask, which one adds and the other takes off, so that all of them vanish in the sum;
and each site adds a mask of its own, since a site that seemed to be gone may turn up late (Bonawitz et al. 2017). Both
secrets of a site are shared among its neighbours. Afterwards these tell the server, for each neighbour, one of two
things and never both: the own mask of a site that is in the sum, or the key of one that is not.

Every site knows the others' public keys before anything begins, so that keys and shares travel in one message and
nobody can stand in between. What a site trusts is its own machine, the keys that it knows, and its neighbours but for a
few (`graph`): not the server's word on who is there, whose keys are whose, how many are enough, or what was before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from fedsolve.errors import DataError, brief
from fedsolve.privacy import graph, keys, shares
from fedsolve.privacy.fixed import FRACTION, LARGEST_FRACTION, Words
from fedsolve.privacy.graph import LEAST
from fedsolve.privacy.journal import Journal
from fedsolve.privacy.keys import Identity, MaskKey, Peer
from fedsolve.texts import read_json

PURPOSES = ("update", "evaluate")  # what may be summed: replies, and figures on test samples
_HEX = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Session:
    """What all agree on before anything secret is made; every key, signature and share is bound to its digest."""

    run: str  # 64 random hexadecimal digits, never used twice
    about: str  # the digest of what is asked: which round of which run, in which feature space
    content: str  # the digest of what all sites are sent
    purpose: str  # what is summed
    roster: tuple[str, ...]  # in order
    keys: str  # the digest of the roster's public keys
    neighbours: int
    threshold: int
    quorum: int  # fewest sites in a sum
    fraction: int  # bits behind the point

    @classmethod
    def new(
        cls, about: str, content: str, purpose: str, peers: Mapping[str, Peer], quorum: int, fraction: int
    ) -> Session:
        """A session of these sites that was never before."""
        roster = tuple(sorted(peers))
        least = max(quorum, LEAST)
        if len(roster) < least:
            raise DataError(f"a secure sum takes at least {least} clients; there are {len(roster)}")
        degree = graph.degree(len(roster))
        digest = roster_digest(peers, roster)
        run = keys.new_secret().hex()
        degrees = degree.neighbours, degree.threshold
        return cls(run, about, content, purpose, roster, digest, *degrees, quorum, fraction)

    def to_text(self) -> str:
        """The session as a text, which `from_text` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str | bytes) -> Session:
        """The inverse of `to_text`, for texts that anybody may have written."""
        content = read_json(text, "the session")
        names = {item.name for item in fields(cls)}
        if not isinstance(content, dict) or content.keys() != names:
            raise DataError(f"a session must have {', '.join(sorted(names))}; got {brief(content)}")
        for name in ("run", "about", "content", "keys"):
            _must(isinstance(content[name], str) and bool(_HEX.fullmatch(content[name])), name, content)
        for name in ("neighbours", "threshold", "quorum", "fraction"):
            _must(type(content[name]) is int and 0 <= content[name] < 2**31, name, content)
        _must(content["fraction"] <= LARGEST_FRACTION, "fraction", content)
        _must(content["purpose"] in PURPOSES, "purpose", content)
        roster = content["roster"]
        _must(isinstance(roster, list) and all(isinstance(name, str) for name in roster), "roster", content)
        _must(roster == sorted(set(roster)), "roster", content)
        return cls(**{**content, "roster": tuple(roster)})

    @property
    def id(self) -> bytes:
        """The digest that everything is bound to."""
        return _identity(self)

    @property
    def graph(self) -> Mapping[str, tuple[str, ...]]:
        """The neighbours of each site, in order."""
        return _neighbours(self)

    def near(self, site: str) -> tuple[str, ...]:
        """The neighbours of a site, in order."""
        return self.graph[site]

    @property
    def points(self) -> Mapping[str, int]:
        """Where the shares of each site lie."""
        return _points(self.roster)


def _must(right: bool, name: str, content: Mapping[str, Any]) -> None:
    if not right:
        raise DataError(f"a session cannot have {brief(content[name])} as its {name}")


@lru_cache(maxsize=16)
def _identity(session: Session) -> bytes:
    return keys.digest(b"session", session.to_text().encode())


@lru_cache(maxsize=16)
def _neighbours(session: Session) -> dict[str, tuple[str, ...]]:
    return graph.neighbours(session.roster, session.neighbours, session.id)


@lru_cache(maxsize=16)
def _points(roster: tuple[str, ...]) -> dict[str, int]:
    return {name: number for number, name in enumerate(roster, start=1)}


def bound(about: str, terms: str) -> str:
    """The digest of what is asked and of the terms: who is told others than the rest cannot be in the same sum.

    A server could else have all sites but one work by a method, or on features, that make nothing of their data.
    """
    return keys.digest(b"about", about.encode(), terms.encode()).hex()


def roster_digest(peers: Mapping[str, Peer], roster: Collection[str]) -> str:
    """The digest of the public keys of these sites, in hexadecimal digits."""
    parts = [part for name in sorted(roster) for part in (name.encode(), peers[name].sign, peers[name].seal)]
    return keys.digest(b"roster", *parts).hex()


@dataclass(frozen=True, slots=True)
class Member:
    """What a site brings along: its name and keys, the keys of its peers, and what it insists on."""

    name: str
    identity: Identity
    peers: Mapping[str, Peer] = field(repr=False)  # its own among them
    quorum: int = LEAST
    fraction: int = FRACTION  # bits behind the point: whether numbers fit would tell a server who chose them their size
    data: str = ""  # a digest of its data, by which it keeps rosters
    terms: str = ""  # a digest of what it was told beside the request: the job, and the task that all share


@dataclass(frozen=True, slots=True)
class Opening:
    """What a site says first: the public half of its mask key, the digest of its own seed, and shares of both."""

    key: bytes
    check: bytes
    sealed: Mapping[str, bytes] = field(repr=False)  # by neighbour
    signature: bytes


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a site is told of a neighbour: its opening, with the share that is for this site."""

    key: bytes
    check: bytes
    sealed: bytes = field(repr=False)
    signature: bytes


@dataclass(frozen=True, slots=True)
class Private:
    """The secrets of a session at a site. They stay there, and are gone once it is unmasked."""

    key: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    held: Mapping[str, tuple[bytes, bytes]] | None = field(
        default=None, repr=False
    )  # shares of key and seed, once masked


SHARE = 2 * shares.SIZE + keys.OVERHEAD  # bytes of a sealed pair of shares


# --- a site ---


def open_session(session: Session, member: Member, seen: Collection[bytes]) -> tuple[Private, Opening]:
    """The first answer: new secrets, and shares of them for the neighbours. Refused below this site's standards.

    `seen` are the sessions that the site has opened before: of one that is opened again, old secrets may be known.
    """
    me, digest = member.name, session.id
    if digest in seen:
        raise DataError("this session was opened before; a sum needs a session of its own")
    if me not in session.roster:
        raise DataError(f"{me!r} is not in the session's roster")
    strange = [name for name in session.roster if name not in member.peers]
    if strange:
        raise DataError(f"the session names {brief(strange[0])}, whose key this site does not know")
    if roster_digest(member.peers, session.roster) != session.keys or member.peers[me] != member.identity.public:
        raise DataError("the server has other keys of the sites than this site has; compare their fingerprints")
    degree = graph.degree(len(session.roster))
    if (session.neighbours, session.threshold) != (degree.neighbours, degree.threshold):
        raise DataError(
            f"the session has a threshold of {session.threshold} of {session.neighbours} neighbours; for "
            f"{len(session.roster)} sites it is {degree.threshold} of {degree.neighbours}"
        )
    if session.quorum < max(member.quorum, LEAST):
        raise DataError(
            f"the session allows sums over {session.quorum} sites; this site wants at least {member.quorum}"
        )
    if session.fraction != member.fraction:
        raise DataError(f"the session has {session.fraction} bits behind the point; this site has {member.fraction}")
    if session.quorum > len(session.roster):
        raise DataError(f"the session names {len(session.roster)} sites, fewer than the {session.quorum} it wants")
    key, seed = keys.new_secret(), keys.new_secret()
    near, places = session.near(me), session.points
    points = [places[name] for name in near]
    of_key, of_seed = (shares.split(secret, session.threshold, points) for secret in (key, seed))
    sealed = {
        name: keys.seal(member.identity, member.peers[name], of_key[point] + of_seed[point], *_way(digest, me, name))
        for name, point in zip(near, points, strict=True)
    }
    public, check = keys.public_half(keys.mask_key(key)), _check(seed)
    signature = keys.signed(member.identity, *_statement(digest, me, public, check))
    return Private(key, seed), Opening(public, check, sealed, signature)


def _way(session: bytes, sender: str, reader: str) -> tuple[bytes, ...]:
    return session, sender.encode(), reader.encode()


def _check(seed: bytes) -> bytes:
    return keys.digest(b"seed", seed)


def _statement(session: bytes, site: str, key: bytes, check: bytes) -> tuple[bytes, ...]:
    """What a site signs. Its shares are sealed with keys that only it and the reader have."""
    return b"opening", session, site.encode(), key, check


@dataclass(frozen=True, slots=True)
class Cover:
    """The masks of a site's part, by their seeds."""

    added: tuple[bytes, ...] = field(repr=False)
    taken: tuple[bytes, ...] = field(repr=False)

    def over(self, words: Words) -> None:
        """Put the masks on, in place."""
        keys.apply_masks(words, self.added, self.taken)


def meet(
    session: Session, member: Member, private: Private, introduced: Mapping[str, Introduction]
) -> tuple[Private, Cover]:
    """Before the second answer: the neighbours that opened, each checked, and the masks that follow.

    Nothing is computed of a site's data before this.
    """
    if private.held is not None:
        raise DataError("this session was masked before; a site sends its part once")
    me, near, digest = member.name, session.near(member.name), session.id
    strange = sorted(set(introduced) - set(near))
    if strange:
        raise DataError(f"{brief(strange[0])} was introduced, and is no neighbour of this site")
    if len(introduced) < session.threshold:
        raise DataError(
            f"only {len(introduced)} neighbours opened, and {session.threshold} of {len(near)} are needed; nothing was "
            "sent"
        )
    own, held = keys.mask_key(private.key), dict[str, tuple[bytes, bytes]]()
    added, taken = [keys.derived(private.seed, b"own", digest)], list[bytes]()
    for name, each in sorted(introduced.items()):
        peer = member.peers[name]
        if not keys.is_signed(peer, each.signature, *_statement(digest, name, each.key, each.check)):
            raise DataError(f"the opening of {name!r} is not signed by it for this session")
        both = keys.unseal(member.identity, peer, each.sealed, *_way(digest, name, me))
        if both is None or len(both) != 2 * shares.SIZE:
            raise DataError(f"the share from {name!r} is not what it sealed for this site")
        held[name] = both[: shares.SIZE], both[shares.SIZE :]
        (added if name < me else taken).append(_pair(digest, own, me, name, each.key))
    return replace(private, held=held), Cover(tuple(added), tuple(taken))


def _pair(session: bytes, key: MaskKey, me: str, other: str, public: bytes) -> bytes:
    first, second = sorted((me, other))
    return keys.agreed(key, public, session, first.encode(), second.encode())


def unmask(
    session: Session, member: Member, private: Private, counted: Sequence[str], journal: Journal
) -> tuple[dict[str, bytes], Journal]:
    """The third answer, once: a share of each neighbour's seed if it is counted, else of its key; and what to remember.

    Who is gone follows from who is counted, so nobody can be both. The secrets of the session are to be forgotten now.
    """
    if private.held is None:
        raise DataError("there is nothing to unmask: this site has sent no part")
    present = set(counted)
    if list(counted) != sorted(present) or not present <= set(session.roster):
        raise DataError("the list of those in the sum must name sites of the session, in order and each once")
    if member.name not in present:
        raise DataError("the sum is said to be without this site, which has sent its part")
    if len(present) < max(session.quorum, member.quorum):
        raise DataError(f"the sum is over {len(present)} sites, fewer than the quorum of {session.quorum}")
    near = session.graph
    for name in counted:  # a site with few neighbours left could be cut off from the others, and its masks with it
        left = len(present.intersection(near[name]))
        if left < session.threshold:
            raise DataError(f"{left} neighbours of {name!r} are in the sum, and {session.threshold} are needed")
    unmet = sorted(present.intersection(near[member.name]) - private.held.keys())
    if unmet:
        raise DataError(f"{unmet[0]!r} is said to be in the sum, and was never introduced to this site")
    what = f"{member.data} {session.purpose}".strip()
    journal.check(what, present, max(session.quorum, member.quorum))
    told = {name: of_seed if name in present else of_key for name, (of_key, of_seed) in private.held.items()}
    return told, journal.noted(what, present)


# --- the server ---


def introductions(session: Session, openings: Mapping[str, Opening], site: str) -> dict[str, Introduction]:
    """What a site is told of its neighbours that opened."""
    near = [name for name in session.near(site) if name in openings]
    return {
        name: Introduction(
            openings[name].key, openings[name].check, openings[name].sealed[site], openings[name].signature
        )
        for name in near
    }


def remove_masks(
    session: Session,
    openings: Mapping[str, Opening],
    counted: Collection[str],
    total: Words,
    told: Mapping[str, Mapping[str, bytes]],
) -> None:
    """The sum of masked parts becomes the sum of the parts, in place; `told` are the shares, by who tells them."""
    present = set(counted)
    if len(present) < session.quorum:
        raise DataError(
            f"only {len(present)} clients sent their part of the sum, fewer than the quorum of {session.quorum}"
        )
    pieces: dict[str, dict[int, bytes]] = {}
    points, edges, digest = session.points, session.graph, session.id
    for teller, some in told.items():
        for name, share in some.items():
            pieces.setdefault(name, {})[points[teller]] = share
    added, taken = list[bytes](), list[bytes]()
    for name in sorted(present):
        seed = _joined(pieces, name, session.threshold)
        if _check(seed) != openings[name].check:
            raise DataError(f"the shares of the mask of {name!r} do not fit together: some site sent a wrong one")
        taken.append(keys.derived(seed, b"own", digest))
    for name in sorted(set(openings) - present):
        near = [other for other in edges[name] if other in present]
        if not near:
            continue
        key = keys.mask_key(_joined(pieces, name, session.threshold))
        if keys.public_half(key) != openings[name].key:
            raise DataError(f"the shares of the key of {name!r} do not fit together: some site sent a wrong one")
        for other in near:  # `other` has added the mask that it has with `name` if name < other, and else taken it off
            (taken if name < other else added).append(_pair(digest, key, name, other, openings[other].key))
    keys.apply_masks(total, added, taken)


def _joined(pieces: Mapping[str, Mapping[int, bytes]], name: str, threshold: int) -> bytes:
    some = pieces.get(name, {})
    if len(some) < threshold:
        raise DataError(
            f"the masks of {name!r} cannot be taken off: {len(some)} of its neighbours told their share, and "
            f"{threshold} are needed; no sum was seen, run again"
        )
    return shares.join(some, threshold)
