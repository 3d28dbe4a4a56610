"""Where answers go: checked as they come, and folded, so that no more than a sum is held."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from fedsolve import arrays as named
from fedsolve import metrics, thin
from fedsolve.arrays import Array, Arrays, Layout
from fedsolve.codec import Bytes, decode, read
from fedsolve.data.target import Target
from fedsolve.errors import DataError, plain
from fedsolve.method import Plan
from fedsolve.records import ClientResult

Witness: TypeAlias = Callable[[str, Arrays], object]
"""Told of every client's reply before it is folded; a DataError that it raises refuses the reply."""

SumWitness: TypeAlias = Callable[[frozenset[str], Arrays], object]
"""Told of the sum over clients, where nobody sees replies; a DataError that it raises ends the run."""


class Keeper(Protocol):
    """Keeps what comes in a run: every reply, or, where nobody sees replies, every sum."""

    def keep(self, client: str, reply: Arrays) -> object:
        """Keep a client's reply, or refuse it with a DataError."""
        ...

    def add_cohort(self, clients: frozenset[str], total: Arrays) -> object:
        """Keep the sum over clients, or refuse it with a DataError."""
        ...


Look: TypeAlias = Callable[[Arrays], object]
"""Looks at a reply and raises where it cannot be one."""

LARGEST = {"<f8": 1e150, "<f4": 1e15}
"""The largest number that a client elsewhere may send, by type: sums over all clients, and squares of these, stay
finite. Features up to 1e75 have moments within it."""
LONGEST_TIME = 1e9  # seconds that a client may say it took: thirty years
MOST_UNSURE = 2**16  # features that a client's model may be unsure of: each stands in a result
MOST_CHOSEN = 1000  # settings that may be chosen for a client


@dataclass(frozen=True, slots=True)
class Failure:
    """A client that did not answer, and why."""

    reason: str


class Inbox(Protocol):
    """Takes answers as they come. Inboxes merge, so that a transport may gather answers in several places at once."""

    def empty(self) -> Inbox:
        """A new inbox of the same kind."""
        ...

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Take the answer of a client, or note that there is none."""
        ...

    def merge(self, other: Inbox) -> None:
        """Take over all that another inbox of the same kind holds."""
        ...


class Replies:
    """Replies to an update, folded as they come. Associative: merging folds like putting.

    Every reply is checked when it is put: one value that is not finite would spoil the sum of all. Thin replies, of so
    many features and targets as `turned` says, become moments here, many at once where nobody looks at each. Replies
    add up only if they have the same names, types and shapes. Sums are kept apart by that layout until all are there;
    then most clients decide which layout is right, so that it does not matter who came first.
    """

    def __init__(
        self, plan: Plan, space: int, tolerate: bool, witness: Witness | None = None, look: Look | None = None,
        turned: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.failed: dict[str, str] = {}
        self.received = 0  # bytes
        self.sent = 0  # bytes that a gathering sent beside the requests it was given
        self.seconds: dict[str, float] = {}  # that clients say they took, where the method asks for it
        self.sizes: dict[str, float] = {}  # the largest number of each reply, where clients are elsewhere
        self.plan, self.tolerate = plan, tolerate
        self._space, self._witness, self._look, self._turned = space, witness, look, turned
        piles = not tolerate and witness is None and plan.fold == "sum" and not plan.each
        self._pile = thin.Pile(turned[1]) if turned and piles else None
        self._sums: dict[tuple[str, Layout], dict[str, Array]] = {}
        self._each: dict[str, dict[str, Array]] = {}  # by client: what is not added up
        self._members: dict[Layout, set[str]] = {}
        self._collected: dict[str, Layout] = {}  # by client: the layout of what is not added up to anybody's

    @property
    def answered(self) -> set[str]:
        """The clients whose replies are in."""
        return set().union(*self._members.values())

    @property
    def collected(self) -> bool:
        """Whether there are replies that are not added up to anybody's."""
        return bool(self._collected)

    def empty(self) -> Replies:
        """A new inbox for replies to the same plan."""
        return Replies(self.plan, self._space, self.tolerate, self._witness, self._look, self._turned)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Check a reply and add it to its sum."""
        try:
            with at_fault(self.tolerate):
                reply, seconds = self._read(client, answer)
            if self._witness:  # what goes wrong at a witness beside a refusal, as a full disk, is nobody's fault here
                self._witness(client, reply)
        except DataError as error:
            self._fail(client, str(error))
            return
        fold = self.plan.fold
        group = "" if fold == "sum" else client if fold == "collect" else fold[client]
        waits = self._pile is not None and thin.are(reply)  # others are moments by now
        layout = thin.layout(reply, self._turned[1]) if waits and self._turned else named.layout(reply)
        if fold == "collect":  # each may have a layout of its own
            self._collected[client], layout = layout, ()
        added = reply
        if self.plan.each:
            starts = tuple(f"{prefix}/" for prefix in self.plan.each)
            apart = {name for name in reply if name in self.plan.each or name.startswith(starts)}
            self._each[client] = {name: reply[name] for name in apart}
            added = {name: array for name, array in reply.items() if name not in apart}
        if waits:
            self._wait(layout, [reply])
        else:
            self._sums[group, layout] = named.accumulate(self._sums.get((group, layout)), added)
        self._members.setdefault(layout, set()).add(client)
        if seconds is not None:
            self.seconds[client] = seconds
        if isinstance(answer, bytes | memoryview) and reply:  # an empty reply carries nothing of the method's
            self.received += len(answer)

    def _wait(self, layout: Layout, replies: list[Arrays], *, last: bool = False) -> None:
        """Put thin replies beside those that wait; what comes of the pile is added to the sum."""
        part = self._pile.put(layout, replies, last=last) if self._pile else None
        if part is not None:
            self._sums["", layout] = named.accumulate(self._sums.get(("", layout)), part)

    def put_sum(self, clients: Iterable[str], total: dict[str, Array]) -> None:
        """Take the sum over these clients, which nobody saw the parts of, and look at it as at a reply.

        Moments add up to moments, so what no samples have is found in the sum, too, but not whose it is.
        """
        try:
            named.check(total, "the sum")
            if self._look:
                self._look(total)
        except DataError as error:
            raise DataError(
                f"the secure sum is none of replies that can be ({error}); nobody can tell whose it is: run again with "
                "fewer clients, at least a quorum of them"
            ) from error
        layout = named.layout(total)
        self._sums["", layout] = total
        self._members[layout] = set(clients)

    def leave_out(self, client: str, reason: str) -> None:
        """Note that a client is not in the sum, and why."""
        self._fail(client, reason)

    def _read(self, client: str, answer: Bytes | Failure) -> tuple[Arrays, float | None]:
        """The reply in an answer, and how long the client says it took; refused where it cannot be a reply."""
        if isinstance(answer, Failure):
            raise DataError(answer.reason)
        reply, head = read(answer, "its reply")
        if head.get("space") != f"{self._space:x}":
            raise DataError(f"its feature space is {head.get('space')}, not the server's {self._space:x}")
        seconds = _seconds(head)
        named.check(reply, "its reply")
        if self._turned and thin.are(reply):
            thin.check(reply, *self._turned)
            if self._pile:
                return reply, seconds
            reply = thin.moments([reply], self._turned[1]).arrays()
        if self._look:
            self._look(reply)
        if self.tolerate:
            self.sizes[client] = _largest(reply, len(self.plan.clients))
        return reply, seconds

    def merge(self, other: Inbox) -> None:
        """Add the sums of another inbox, which is used up."""
        if not isinstance(other, Replies):
            raise TypeError(f"cannot merge {type(other).__name__} into Replies")
        for key, part in other._sums.items():
            self._sums[key] = named.accumulate(self._sums[key], part) if key in self._sums else part
        for layout, waiting in other._pile.waiting.items() if other._pile else ():
            self._wait(layout, waiting)
        for layout, members in other._members.items():
            self._members.setdefault(layout, set()).update(members)
        self._each |= other._each
        self._collected |= other._collected
        self.failed |= other.failed
        self.seconds |= other.seconds
        self.sizes |= other.sizes
        self.received += other.received

    def folded(self) -> dict[str, Array]:
        """What `aggregate` is given: the sums of those that agree, and what stays per client; the others failed."""
        for layout in self._pile.waiting if self._pile else ():
            self._wait(layout, [], last=True)
        if self._members:
            right = max(self._members, key=lambda layout: (len(self._members[layout]), layout))
            for layout in [layout for layout in self._members if layout != right]:
                for client in sorted(self._members.pop(layout)):
                    self._each.pop(client, None)
                    self._fail(
                        client, f"its reply has {named.words(layout)} where those of most have {named.words(right)}"
                    )
                self._sums = {key: total for key, total in self._sums.items() if key[1] != layout}
        parts = {f"{key[0]}/" if key[0] else "": total for key, total in sorted(self._sums.items())}
        folded = {start + name: array for start, total in parts.items() for name, array in total.items()}
        for client in sorted(self._each):
            folded |= named.under(client, self._each[client])
        return folded

    def without_odd(self) -> bool:
        """Leave out collected replies that are not laid out as those of most; whether there were some.

        For an aggregate that could do nothing with them. Where replies are added up, `folded` has left them out.
        """
        votes = Counter(self._collected.values())
        right = max(votes, key=lambda layout: (votes[layout], layout), default=())
        odd = sorted(client for client, layout in self._collected.items() if layout != right)
        for client in odd:
            words = named.words(self._collected.pop(client))
            del self._sums[client, ()]
            self._each.pop(client, None)
            self._members[()].discard(client)
            self._fail(client, f"its reply has {words} where those of most have {named.words(right)}")
        return bool(odd)

    def _fail(self, client: str, reason: str) -> None:
        if not self.tolerate:
            raise DataError(f"client {client!r}: {reason}")
        self.failed[client] = plain(reason)


@contextmanager
def at_fault(tolerate: bool) -> Iterator[None]:
    """Inside, whatever goes wrong is the fault of the client whose answer is read, where clients are elsewhere.

    A client elsewhere can send any bytes. Readers refuse with a DataError what they know to be wrong; bytes that
    somebody made to find what they do not know must cost that client its place, and nobody else the run.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if not tolerate:
            raise
        raise DataError(f"its answer cannot be read: {type(error).__name__}: {error}") from error


def _seconds(head: Mapping[str, object]) -> float | None:
    """How long a client says it took, where it says so."""
    if "seconds" not in head:
        return None
    text = head["seconds"]
    try:
        seconds = float(text) if isinstance(text, str) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_TIME:
        raise DataError(f"it says that it took {text!r} seconds")
    return seconds


def _largest(reply: Arrays, clients: int) -> float:
    """The largest number of a reply from elsewhere; refused where the sum over all clients might not hold it."""
    limits = {**LARGEST, "<i8": 2.0**62 / max(clients, 1)}
    largest = 0.0
    for name, array in reply.items():
        size = max(abs(float(array.max(initial=0))), abs(float(array.min(initial=0))))
        limit = limits.get(array.dtype.str, math.inf)  # narrower types are summed by nobody
        if not size <= limit:
            raise DataError(f"its reply: {name!r} has the value {size:.3g}, and sums hold values up to {limit:.3g}")
        largest = max(largest, size)
    return largest


class Tallies:
    """Figures of the clients, by name, and the sums of their tallies: those of all test samples together."""

    def __init__(self, target: Target, tolerate: bool) -> None:
        self.clients: dict[str, ClientResult] = {}
        self.sums: dict[str, dict[str, Array]] = {}  # by whose: "personal", "shared", "baseline"
        self.failed: dict[str, str] = {}
        self.tolerate = tolerate
        self._target = target

    def empty(self) -> Tallies:
        """A new inbox for figures of the same target."""
        return Tallies(self._target, self.tolerate)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Read the figures of a client, and add its tallies to those of the others."""
        try:
            with at_fault(self.tolerate):
                if isinstance(answer, Failure):
                    raise DataError(answer.reason)
                result, tallies = _read_tally(decode(answer, "its figures"), self._target)
        except DataError as error:
            if not self.tolerate:
                raise DataError(f"client {client!r}: {error}") from error
            self.failed[client] = plain(str(error))
            return
        self.clients[client] = result
        self._add(tallies)

    def put_sum(self, clients: Iterable[str], total: Arrays) -> None:
        """Take the sum of tallies over these clients; figures of each of them stay with it."""
        for whose in ("personal", "shared", "baseline"):
            tally = named.take(whose, total)
            if int(tally["count"]):
                self._target.check(tally, "the sum of figures")
                self._add({whose: tally})
        self.clients |= {client: ClientResult(None, None) for client in clients}

    def merge(self, other: Inbox) -> None:
        """Take over the figures of another inbox."""
        if not isinstance(other, Tallies):
            raise TypeError(f"cannot merge {type(other).__name__} into Tallies")
        self.clients |= other.clients
        self.failed |= other.failed
        self._add(other.sums)

    def _add(self, tallies: Mapping[str, Arrays]) -> None:
        for whose, tally in tallies.items():
            self.sums[whose] = named.accumulate(self.sums.get(whose), tally)


def _unsure(answer: Arrays) -> tuple[int, ...]:
    """The features that a client's model is unsure of, by number."""
    if "unsure" not in answer:
        return ()
    features = answer["unsure"]
    if features.dtype != np.int64 or features.ndim != 1 or features.size > MOST_UNSURE or not (features >= 0).all():
        raise ValueError(f"wanted features by number; got {features.dtype}{list(features.shape)}")
    return tuple(features.tolist())


def _read_tally(answer: Arrays, target: Target) -> tuple[ClientResult, dict[str, Arrays]]:
    """The figures of a client, checked, and its tallies."""
    try:
        chosen = {name: _number(array) for name, array in named.take("chosen", answer).items()}
        train, test = (_samples(answer[name]) for name in ("train", "test"))
        if len(chosen) > MOST_CHOSEN:
            raise ValueError(f"{len(chosen)} settings were chosen for it, and no client needs more than {MOST_CHOSEN}")
        unsure = _unsure(answer)
        figures: dict[str, dict[str, float]] = {}
        tallies: dict[str, Arrays] = {}
        for whose in ("personal", "shared", "baseline"):
            tally = named.take(whose, answer)
            if tally:
                target.check(tally, "its figures")
                exact = {"auc": _number(tally.pop("auc"))} if "auc" in tally else {}
                if int(tally["count"]) != test:
                    raise ValueError(f"{int(tally['count'])} of {test} samples")
                figures[whose], tallies[whose] = metrics.figures(tally) | exact, tally
        if test and "personal" not in tallies:
            raise ValueError(f"{test} test samples, and none of them counted")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"its figures are incomplete or cannot be: {error}") from error
    personal, shared, constant = (figures.get(whose, {}) for whose in ("personal", "shared", "baseline"))
    client = ClientResult(train, test, personal, shared, chosen=chosen, unsure=unsure, constant_metrics=constant)
    return client, tallies


def _number(array: Array) -> float:
    """One finite number: whatever stands in a result is one."""
    value = float(array) if array.shape == () else math.nan
    if not math.isfinite(value):
        raise ValueError(f"wanted a finite number; got {np.array2string(array, threshold=4)}")
    return value


def _samples(array: Array) -> int:
    """A number of samples that somebody can have."""
    if array.shape != () or array.dtype.kind not in "iu" or not 0 <= int(array) <= metrics.LARGEST_COUNT:
        raise ValueError(f"wanted a number of samples; got {np.array2string(array, threshold=4)}")
    return int(array)
