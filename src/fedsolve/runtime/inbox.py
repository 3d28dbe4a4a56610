"""Where answers go: checked as they come, and folded, so that no more than a sum is held."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from fedsolve import arrays as named
from fedsolve import metrics
from fedsolve.arrays import Array, Arrays, Layout
from fedsolve.codec import Bytes, decode, read
from fedsolve.errors import DataError
from fedsolve.method import Plan
from fedsolve.result import ClientResult

Witness: TypeAlias = Callable[[str, Arrays], object]
"""Told of every client's reply before it is folded; a DataError that it raises refuses the reply."""


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

    Every reply is checked when it is put: one value that is not finite would spoil the sum of all. Replies add up only
    if they have the same names, types and shapes. Sums are kept apart by that layout until all are there; then most
    clients decide which layout is right, so that it does not matter who came first.
    """

    def __init__(self, plan: Plan, space: int, tolerate: bool, witness: Witness | None = None) -> None:
        self.failed: dict[str, str] = {}
        self.received = 0  # bytes
        self.seconds: dict[str, float] = {}  # that clients say they took, where the method asks for it
        self._plan, self._space, self._tolerate, self._witness = plan, space, tolerate, witness
        self._sums: dict[tuple[str, Layout], dict[str, Array]] = {}
        self._each: dict[str, dict[str, Array]] = {}  # by client: what is not added up
        self._members: dict[Layout, set[str]] = {}

    @property
    def answered(self) -> set[str]:
        """The clients whose replies are in."""
        return set().union(*self._members.values())

    def empty(self) -> Replies:
        """A new inbox for replies to the same plan."""
        return Replies(self._plan, self._space, self._tolerate, self._witness)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Check a reply and add it to its sum."""
        try:
            if isinstance(answer, Failure):
                raise DataError(answer.reason)
            reply, head = read(answer, "its reply")
            if head.get("space") != f"{self._space:x}":
                raise DataError(f"its feature space is {head.get('space')}, not the server's {self._space:x}")
            seconds = _seconds(head)
            named.check(reply, "its reply")
            if self._witness:
                self._witness(client, reply)
        except DataError as error:
            self._fail(client, str(error))
            return
        fold = self._plan.fold
        group = "" if fold == "sum" else client if fold == "collect" else fold[client]
        layout = () if fold == "collect" else named.layout(reply)
        added = reply
        if self._plan.each:
            starts = tuple(f"{prefix}/" for prefix in self._plan.each)
            apart = {name for name in reply if name in self._plan.each or name.startswith(starts)}
            self._each[client] = {name: reply[name] for name in apart}
            added = {name: array for name, array in reply.items() if name not in apart}
        self._sums[group, layout] = named.accumulate(self._sums.get((group, layout)), added)
        self._members.setdefault(layout, set()).add(client)
        if seconds is not None:
            self.seconds[client] = seconds
        self.received += len(answer) if reply else 0  # an empty reply carries nothing of the method's

    def merge(self, other: Inbox) -> None:
        """Add the sums of another inbox, which is used up."""
        if not isinstance(other, Replies):
            raise TypeError(f"cannot merge {type(other).__name__} into Replies")
        for key, part in other._sums.items():
            self._sums[key] = named.accumulate(self._sums[key], part) if key in self._sums else part
        for layout, members in other._members.items():
            self._members.setdefault(layout, set()).update(members)
        self._each |= other._each
        self.failed |= other.failed
        self.seconds |= other.seconds
        self.received += other.received

    def folded(self) -> dict[str, Array]:
        """What `aggregate` is given: the sums of those that agree, and what stays per client; the others failed."""
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

    def _fail(self, client: str, reason: str) -> None:
        if not self._tolerate:
            raise DataError(f"client {client!r}: {reason}")
        self.failed[client] = reason


def _seconds(head: Mapping[str, str]) -> float | None:
    """How long a client says it took, where it says so."""
    if "seconds" not in head:
        return None
    try:
        seconds = float(head["seconds"])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise DataError(f"it says that it took {head['seconds']!r} seconds")
    return seconds


class Tallies:
    """Figures of the clients, by name, and the sums of their tallies: those of all test samples together."""

    def __init__(self, classes: int, tolerate: bool) -> None:
        self.clients: dict[str, ClientResult] = {}
        self.sums: dict[str, dict[str, Array]] = {}  # by whose: "personal", "shared", "baseline"
        self.failed: dict[str, str] = {}
        self._classes, self._tolerate = classes, tolerate

    def empty(self) -> Tallies:
        """A new inbox for figures of the same classes."""
        return Tallies(self._classes, self._tolerate)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Read the figures of a client, and add its tallies to those of the others."""
        try:
            if isinstance(answer, Failure):
                raise DataError(answer.reason)
            self.clients[client], tallies = _read_tally(decode(answer, "its figures"), self._classes)
        except DataError as error:
            if not self._tolerate:
                raise DataError(f"client {client!r}: {error}") from error
            self.failed[client] = str(error)
            return
        self._add(tallies)

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
    if features.dtype != np.int64 or features.ndim != 1 or not (features >= 0).all():
        raise ValueError(f"features by number; got {features.dtype}{list(features.shape)}")
    return tuple(features.tolist())


def _read_tally(answer: Arrays, classes: int) -> tuple[ClientResult, dict[str, Arrays]]:
    """The figures of a client, checked, and its tallies."""
    try:
        chosen = {name: float(array) for name, array in named.take("chosen", answer).items()}
        unsure = _unsure(answer)
        train, test = int(answer["train"]), int(answer["test"])
        figures: dict[str, dict[str, float]] = {}
        tallies: dict[str, Arrays] = {}
        for whose in ("personal", "shared", "baseline"):
            tally = named.take(whose, answer)
            if tally:
                exact = {"auc": float(tally.pop("auc"))} if "auc" in tally else {}
                metrics.check(tally, classes, "its figures")
                if int(tally["count"]) != test or not all(0 <= value <= 1 for value in exact.values()):
                    raise ValueError(f"{int(tally['count'])} of {test} samples, area {exact.get('auc')}")
                figures[whose], tallies[whose] = metrics.figures(tally) | exact, tally
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"its figures are incomplete or cannot be: {error}") from error
    personal, shared = figures.get("personal", {}), figures.get("shared", {})
    client = ClientResult(train, test, personal, shared, chosen=chosen, unsure=unsure)
    return client, tallies
