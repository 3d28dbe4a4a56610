"""The client's side of a secure sum: what it answers to open, mask and unmask, and what it keeps in between.

All that it keeps is named arrays. The secrets of a session are among them from its opening until it is unmasked;
digests of the sessions it has opened and rosters of the sums it has unmasked stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fedsolve import arrays as named
from fedsolve.arrays import Array, Arrays
from fedsolve.codec import Bytes, allot, encode
from fedsolve.errors import DataError, brief
from fedsolve.privacy import keys, packing, protocol, shares
from fedsolve.privacy.journal import Journal
from fedsolve.privacy.protocol import Introduction, Member, Opening, Private, Session

Phase: TypeAlias = Literal["open", "mask", "unmask"]
STAYS = ("seen", "journal")  # of what a site keeps, when a session is over


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, by what a secure sum is bound to."""

    phase: Phase
    words: Arrays
    about: str  # the digest of round, run and feature space
    content: Callable[[], str]  # the digest of the method's message


def answer(
    asked: Asked, kept: Arrays, member: Member, compute: Callable[[str], Arrays]
) -> tuple[dict[str, Array], Bytes]:
    """What a site keeps from now on, and its answer; `compute` gives its part of a sum, by what is summed."""
    if asked.phase == "open":
        return _open(asked, kept, member)
    session = _under_way(asked, kept, member)
    if asked.phase == "mask":
        return _mask(session, asked, kept, member, compute)
    counted = _array(asked.words, "counted", (len(session.roster),), np.bool_)
    names = [name for name, is_in in zip(session.roster, counted, strict=True) if is_in]
    told, journal = protocol.unmask(session, member, _private(session, member, kept), names, _journal(kept))
    rest = {name: kept[name] for name in STAYS if name in kept} | {"journal": to_array(journal.to_text().encode())}
    near = session.near(member.name)
    places = [place for place, name in enumerate(near) if name in told]
    return rest, encode({"places": np.array(places, np.int64), "shares": rows(told[near[p]] for p in places)})


def _open(asked: Asked, kept: Arrays, member: Member) -> tuple[dict[str, Array], Bytes]:
    text = to_bytes(_array(asked.words, "session", None))
    session = Session.from_text(text)
    _same(session, asked, member)
    seen = [row.tobytes() for row in kept.get("seen", ())]
    private, opening = protocol.open_session(session, member, seen)
    stays = {"seen": rows([*seen, session.id])} | {name: kept[name] for name in ("journal",) if name in kept}
    secret = {"session": to_array(text), "key": to_array(private.key), "seed": to_array(private.seed)}
    sealed = rows(opening.sealed[name] for name in session.near(member.name))
    said = {"key": to_array(opening.key), "check": to_array(opening.check), "signature": to_array(opening.signature)}
    return stays | secret, encode({**said, "sealed": sealed})


def _mask(
    session: Session, asked: Asked, kept: Arrays, member: Member, compute: Callable[[str], Arrays]
) -> tuple[dict[str, Array], Bytes]:
    """Everybody is checked before anything is computed of the site's data, and so is the message.

    A server could send all others a model that makes nothing of their data, and the sum would be one site's part.
    """
    private = _private(session, member, kept)
    private, cover = protocol.meet(session, member, private, _introduced(session, member, asked.words))
    if asked.content() != session.content:
        raise DataError("the message is not the one that the secure sum is about: all its sites must be sent the same")
    part = compute(session.purpose)
    layout = named.layout(part)
    masked = allot((("masked", "<u8", (2, packing.size(layout))),))["masked"]  # in its message from the start
    cover.over(packing.pack(part, session.fraction, len(session.roster), masked))
    held = private.held or {}
    near = session.near(member.name)
    after = {
        **kept,
        "places": np.array([place for place, name in enumerate(near) if name in held], np.int64),
        "held": rows(b"".join(held[name]) for name in sorted(held)),
    }
    return after, encode({"masked": masked}, {"layout": packing.to_text(layout)})


def _under_way(asked: Asked, kept: Arrays, member: Member) -> Session:
    """The session that the site has opened, which must be the one that it is asked about."""
    if "session" not in kept:
        raise DataError("no secure sum is under way at this site: it was never opened, or is over")
    session = Session.from_text(to_bytes(kept["session"]))
    if to_bytes(_array(asked.words, "id", (keys.KEY,))) != session.id:
        raise DataError("the server asks about another secure sum than the one that is under way at this site")
    _same(session, asked, member)
    return session


def _same(session: Session, asked: Asked, member: Member) -> None:
    if session.about != protocol.bound(asked.about, member.terms):
        raise DataError(
            "the secure sum is said to be about another round, method or feature space than the request is about"
        )


def _introduced(session: Session, member: Member, words: Arrays) -> dict[str, Introduction]:
    """The neighbours that a site is told of, by name."""
    near, places = session.near(member.name), _array(words, "places", None, np.int64)
    if not _are_places(places, len(near)):
        raise DataError(f"introductions must be of neighbours, in order and each once; got {brief(places.tolist())}")
    sides = {"keys": keys.KEY, "checks": keys.KEY, "sealed": protocol.SHARE, "signatures": keys.SIGNATURE}
    columns = [_array(words, name, (len(places), side)) for name, side in sides.items()]
    each = zip(*columns, strict=True)
    return {near[place]: Introduction(*map(to_bytes, row)) for place, row in zip(places, each, strict=True)}


def _private(session: Session, member: Member, kept: Arrays) -> Private:
    key, seed = (to_bytes(_array(kept, name, (keys.KEY,))) for name in ("key", "seed"))
    if "held" not in kept:
        return Private(key, seed)
    near, places = session.near(member.name), _array(kept, "places", None, np.int64)
    both = _array(kept, "held", (len(places), 2 * shares.SIZE))
    if not _are_places(places, len(near)):
        raise DataError("what this site remembers of a secure sum is damaged")
    halves = [(to_bytes(row[: shares.SIZE]), to_bytes(row[shares.SIZE :])) for row in both]
    return Private(key, seed, {near[place]: half for place, half in zip(places, halves, strict=True)})


def _journal(kept: Arrays) -> Journal:
    return Journal.from_text(to_bytes(kept["journal"])) if "journal" in kept else Journal()


# --- what a server sends and reads, in the same form ---


def opening_words(session: Session) -> dict[str, Array]:
    """What a site is asked to open."""
    return {"session": to_array(session.to_text().encode())}


def masking_words(session: Session, site: str, introduced: Mapping[str, Introduction]) -> dict[str, Array]:
    """What a site is told before it masks its part: who of its neighbours opened, and how."""
    near = session.near(site)
    some = [introduced[name] for name in sorted(introduced)]
    return {
        "id": to_array(session.id),
        "places": np.array([place for place, name in enumerate(near) if name in introduced], np.int64),
        "keys": rows((each.key for each in some), keys.KEY),
        "checks": rows((each.check for each in some), keys.KEY),
        "sealed": rows((each.sealed for each in some), protocol.SHARE),
        "signatures": rows((each.signature for each in some), keys.SIGNATURE),
    }


def unmasking_words(session: Session, counted: Collection[str]) -> dict[str, Array]:
    """What a site is told before it tells shares: who is in the sum."""
    return {"id": to_array(session.id), "counted": np.array([name in counted for name in session.roster])}


def read_opening(session: Session, site: str, said: Arrays) -> Opening:
    """The opening in a site's answer."""
    key, check = (to_bytes(_array(said, name, (keys.KEY,))) for name in ("key", "check"))
    near = session.near(site)
    sealed = _array(said, "sealed", (len(near), protocol.SHARE))
    signature = to_bytes(_array(said, "signature", (keys.SIGNATURE,)))
    return Opening(key, check, {name: to_bytes(row) for name, row in zip(near, sealed, strict=True)}, signature)


def read_shares(session: Session, site: str, said: Arrays) -> dict[str, bytes]:
    """The shares in a site's answer, by whose they are."""
    near, places = session.near(site), _array(said, "places", None, np.int64)
    told = _array(said, "shares", (len(places), shares.SIZE))
    if not _are_places(places, len(near)):
        raise DataError(f"shares must be of neighbours, in order and each once; got {brief(places.tolist())}")
    return {near[place]: to_bytes(row) for place, row in zip(places, told, strict=True)}


def _are_places(places: Array, count: int) -> bool:
    return bool((places >= 0).all() and (places < count).all() and (np.diff(places) > 0).all())


def _array(arrays: Arrays, name: str, shape: tuple[int, ...] | None, kind: type = np.uint8) -> Array:
    """An array of a stranger's that must be there, of that type and shape; without a shape, any row of values."""
    array = arrays.get(name)
    if array is None or array.dtype != kind or (array.ndim != 1 if shape is None else array.shape != shape):
        wanted = f"{np.dtype(kind)}{'' if shape is None else list(shape)}"
        got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise DataError(f"a message of a secure sum must have {name!r}, {wanted}; got {got}")
    return array


def to_array(data: bytes) -> Array:
    """Bytes as an array."""
    return np.frombuffer(data, np.uint8)


def to_bytes(array: Array) -> bytes:
    """The inverse of `to_array`."""
    return array.tobytes()


def rows(parts: Iterable[bytes], width: int = 0) -> Array:
    """Bytes of one length as the rows of an array; `width` is that of no rows at all."""
    listed = list(parts)
    return np.frombuffer(b"".join(listed), np.uint8).reshape(len(listed), len(listed[0]) if listed else width)
