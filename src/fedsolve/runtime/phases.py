"""The server's side of a secure sum: three questions to every client, and what their answers come to.

Nothing here sees a client's part. Who is lost on the way is left out of the sum; where too many are, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from fedsolve import arrays as named
from fedsolve.arrays import Array, Arrays, Layout
from fedsolve.codec import Bytes, read
from fedsolve.errors import DataError, ParameterError, plain
from fedsolve.privacy import fixed, packing, protocol
from fedsolve.privacy.fixed import Words
from fedsolve.privacy.keys import Peer
from fedsolve.privacy.protocol import Session
from fedsolve.progress import Tick
from fedsolve.runtime import masking
from fedsolve.runtime.client import Kind, Request
from fedsolve.runtime.inbox import Failure, Inbox, at_fault

Ask: TypeAlias = Callable[[Iterable[tuple[str, Bytes]], Inbox, Tick], None]
"""What a transport does with requests."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum, who is in it, why others are not, and how many bytes it took."""

    total: dict[str, Array]
    counted: frozenset[str]
    failed: Mapping[str, str]
    received: int
    sent: int  # beside the requests that were given


def secure_sum(
    ask: Ask,
    requests: Iterable[tuple[str, Bytes]],
    purpose: str,
    peers: Mapping[str, Peer],
    quorum: int,
    fraction: int,
    terms: str,
    tolerate: bool,
    tick: Tick,
) -> Sum:
    """Ask every client for its part of a sum, under masks, and take these off the sum.

    Clients that fail are left out, with `tolerate`; without, the first stops it. Below the quorum or the threshold
    there is no sum, and a DataError says why.
    """
    asked = dict(_each_once(requests))
    strange = sorted(asked.keys() - peers.keys())
    if strange:
        raise DataError(f"a secure sum needs the public key of every client, and {strange[0]!r} has none")
    about, content = _in_common(asked.values())
    asking = protocol.bound(about, terms), content, purpose
    session = Session.new(*asking, {name: peers[name] for name in asked}, quorum, fraction)
    post = _Post(asked)

    opened = _Answers(lambda site, data: masking.read_opening(session, site, read(data, "its opening")[0]), tolerate)
    ask(post.bare("open", asked, masking.opening_words(session)), opened, _no_tick)

    parts, openings = _Parts(session, tolerate), opened.answers
    _enough(len(openings), session, opened.failed)

    def introduced() -> Iterator[tuple[str, Arrays]]:
        for name in openings:
            yield name, masking.masking_words(session, name, protocol.introductions(session, openings, name))

    ask(post.full("mask", introduced()), parts, tick)
    failed = opened.failed | parts.failed
    layout, total, counted, odd = parts.most()
    failed |= odd
    _enough(len(counted), session, failed)

    told = _Answers(lambda site, data: masking.read_shares(session, site, read(data, "its shares")[0]), tolerate)
    ask(post.bare("unmask", sorted(counted), masking.unmasking_words(session, counted)), told, _no_tick)
    try:
        protocol.remove_masks(session, openings, counted, total, told.answers)
    except DataError as error:
        raise DataError(f"{error}{_reasons(told.failed)}") from error
    received = opened.received + parts.received + told.received
    return Sum(packing.unpack(total, layout, session.fraction), frozenset(counted), failed, received, post.sent)


def _in_common(requests: Iterable[Request]) -> tuple[str, str]:
    """What all clients are asked, as digests."""
    distinct = {id(request): request for request in requests}.values()
    found = {(request.about, request.content) for request in distinct}
    if len(found) > 1:
        raise ParameterError(
            "clients of a secure sum are all sent the same, and the method sends each its own; run it without"
        )
    return next(iter(found), ("", ""))


def _each_once(requests: Iterable[tuple[str, Bytes]]) -> Iterator[tuple[str, Request]]:
    """Requests of the same bytes are read once, however many clients they are for."""
    last: tuple[Bytes, Request] | None = None
    for client, data in requests:
        if last is None or (last[0] is not data and last[0] != data):
            last = data, Request.read(data)
        yield client, last[1]


def _enough(count: int, session: Session, failed: Mapping[str, str]) -> None:
    if count < session.quorum:
        raise DataError(
            f"only {count} of {len(session.roster)} clients took part in the secure sum, fewer than the quorum of "
            f"{session.quorum}{_reasons(failed)}"
        )


def _reasons(failed: Mapping[str, str]) -> str:
    reasons = "; ".join(f"{client}: {reason}" for client, reason in sorted(failed.items())[:3])
    return f" ({reasons})" if reasons else ""


def _no_tick(done: int) -> None:
    """Progress is that of the parts, which take the time."""


class _Post:
    """Requests of the phases, made from those of a round; the method's message goes out with one of them."""

    def __init__(self, asked: Mapping[str, Request]) -> None:
        self._asked, self.sent = asked, 0

    def bare(self, kind: Kind, clients: Iterable[str], words: Arrays) -> Iterator[tuple[str, Bytes]]:
        """The same words for all of them, without the message."""
        written: dict[tuple[bool, float], Bytes] = {}
        for client in clients:
            request = self._asked[client]
            key = request.accepted, request.pace
            if key not in written:
                written[key] = replace(request, kind=kind, message={}, words=words).write()
            self.sent += len(written[key])
            yield client, written[key]

    def full(self, kind: Kind, each: Iterable[tuple[str, Arrays]]) -> Iterator[tuple[str, Bytes]]:
        """The message, and words of its own for each of them."""
        for client, words in each:
            self.sent += sum(array.nbytes for array in words.values())
            yield client, replace(self._asked[client], kind=kind, words=words).write()


class _Answers(Generic[T]):
    """An inbox of answers, each read when it is put."""

    def __init__(self, read: Callable[[str, Bytes], T], tolerate: bool) -> None:
        self.answers: dict[str, T] = {}
        self.failed: dict[str, str] = {}
        self.received = 0
        self._read, self._tolerate = read, tolerate

    def empty(self) -> _Answers[T]:
        """A new inbox of the same kind."""
        return _Answers(self._read, self._tolerate)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Read an answer, or note why there is none."""
        try:
            with at_fault(self._tolerate):
                if isinstance(answer, Failure):
                    raise DataError(answer.reason)
                self.answers[client] = self._read(client, answer)
                self.received += len(answer)
        except DataError as error:
            _lost(client, error, self._tolerate, self.failed)

    def merge(self, other: Inbox) -> None:
        """Take over the answers of another inbox."""
        if not isinstance(other, _Answers):
            raise TypeError(f"cannot merge {type(other).__name__} into answers of a secure sum")
        self.answers |= other.answers
        self.failed |= other.failed
        self.received += other.received


class _Parts:
    """An inbox of masked parts, added up as they come; sums of other layouts are kept apart, and most decide."""

    def __init__(self, session: Session, tolerate: bool) -> None:
        self.failed: dict[str, str] = {}
        self.received = 0
        self._session, self._tolerate = session, tolerate
        self._sums: dict[Layout, tuple[Words, set[str]]] = {}

    def empty(self) -> _Parts:
        """A new inbox for parts of the same sum."""
        return _Parts(self._session, self._tolerate)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Check that a part has the layout that it says, and add it."""
        try:
            with at_fault(self._tolerate):
                if isinstance(answer, Failure):
                    raise DataError(answer.reason)
                said, head = read(answer, "its part")
                layout = packing.from_text(head.get("layout", ""))
                masked = said.get("masked")
                if masked is None or masked.dtype != np.uint64 or masked.shape != (2, packing.size(layout)):
                    raise DataError(f"its part does not have the numbers that it says: {named.words(layout)}")
        except DataError as error:
            _lost(client, error, self._tolerate, self.failed)
            return
        self._add(layout, masked, {client})
        self.received += len(answer)

    def merge(self, other: Inbox) -> None:
        """Add the sums of another inbox, which is used up."""
        if not isinstance(other, _Parts):
            raise TypeError(f"cannot merge {type(other).__name__} into parts of a secure sum")
        for layout, (part, members) in other._sums.items():
            self._add(layout, part, members)
        self.failed |= other.failed
        self.received += other.received

    def most(self) -> tuple[Layout, Words, set[str], dict[str, str]]:
        """The sum of those that agree on a layout and are most, who they are, and why the others are not in it."""
        if not self._sums:
            return (), np.zeros((2, 0), np.uint64), set(), {}
        right = max(self._sums, key=lambda layout: (len(self._sums[layout][1]), layout))
        odd: dict[str, str] = {}
        for layout, (_, members) in self._sums.items():
            if layout != right:
                reason = f"its part has {named.words(layout)} where those of most have {named.words(right)}"
                for client in members:
                    _lost(client, DataError(reason), self._tolerate, odd)
        total, members = self._sums[right]
        return right, total if total.flags.writeable else total.copy(), members, odd

    def _add(self, layout: Layout, part: Words, members: set[str]) -> None:
        if layout not in self._sums:
            self._sums[layout] = part, set(members)
            return
        total, known = self._sums[layout]
        if not total.flags.writeable:  # the first one, as it came
            total = total.copy()
        fixed.add(total, part)
        self._sums[layout] = total, known | members


def _lost(client: str, error: DataError, tolerate: bool, failed: dict[str, str]) -> None:
    if not tolerate:
        raise DataError(f"client {client!r}: {error}") from error
    failed[client] = plain(str(error))
