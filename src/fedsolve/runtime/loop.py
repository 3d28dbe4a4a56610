"""The round loop, once: `drive` on the server's side, `handle` on the client's, bytes between them.

A transport carries requests to clients and answers back; in process and over a network differ only there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, cast, get_args

import numpy as np

from fedsolve import arrays as named
from fedsolve.arrays import Array, Arrays, Layout
from fedsolve.codec import Bytes, decode, encode, read
from fedsolve.data.federation import Client, Samples, Task
from fedsolve.errors import DataError, ParameterError
from fedsolve.features.maps import difference
from fedsolve.method import Fold, Method
from fedsolve.parameters import whole
from fedsolve.progress import Progress as Progress
from fedsolve.result import Accuracy, ClientResult, Round
from fedsolve.rng import derive

LARGEST_PACE = 1e6
Kind: TypeAlias = Literal["update", "evaluate"]
Report: TypeAlias = Callable[[Round, int], None]  # a round that is over, of how many
Keep: TypeAlias = Callable[[str, Arrays], object]  # told of every reply before it is folded; it may refuse one
Tick: TypeAlias = Callable[[int], None]  # how many are done


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


class Transport(Protocol):
    """Carries bytes to named clients and puts what they answer into an inbox."""

    def clients(self) -> Sequence[str]:
        """The clients that are there now."""
        ...

    def ask(self, requests: Iterable[tuple[str, Bytes]], inbox: Inbox, tick: Tick) -> None:
        """Put an answer to each request into the inbox, and call `tick` with how many are in it now and then.

        Requests are drawn as they are sent, not all at once, and answers are not kept.
        """
        ...


# --- the client's side ---


@dataclass(frozen=True, slots=True)
class Request:
    """What the server asks of a client."""

    kind: Kind
    round: int
    seed: int
    space: str  # the feature space in words
    message: Arrays
    accepted: bool = True  # whether the reply to the client's last update arrived
    pace: float = 1.0  # how much more the client should take on at a time than at first

    def write(self) -> Bytes:
        """As bytes."""
        numbers = {"round": self.round, "seed": self.seed, "accepted": int(self.accepted), "pace": repr(self.pace)}
        words = {name: str(number) for name, number in numbers.items()}
        return encode(self.message, {"kind": self.kind, "space": self.space, **words})

    def carries(self, message: Arrays) -> bool:
        """Whether it has these very arrays as its message."""
        mine = self.message
        return mine.keys() == message.keys() and all(mine[name] is message[name] for name in message)

    @classmethod
    def read(cls, data: Bytes) -> Request:
        """From bytes."""
        message, head = read(data, "request")
        try:
            if head["kind"] not in get_args(Kind):
                raise ValueError(f"nobody knows how to {head['kind']!r}")
            kind, accepted, pace = cast("Kind", head["kind"]), head["accepted"] == "1", float(head["pace"])
            if not 1 <= pace < np.inf:
                raise ValueError(f"a pace of {pace}")
            return cls(kind, int(head["round"]), int(head["seed"]), head["space"], message, accepted, pace)
        except (KeyError, ValueError) as error:
            raise DataError(f"request without a proper head: {error}") from error


def correct(method: Method, model: Arrays, test: Samples) -> int:
    """How many test samples a model gets right."""
    return int((np.argmax(method.predict(model, test.inputs), axis=1) == test.labels).sum())


def handle(
    method: Method,
    task: Task,
    client: Client,
    memory: Arrays | None,
    request: Request,
    count: Callable[[Method, Arrays, Samples], int] = correct,
) -> tuple[Arrays, Bytes]:
    """What a client does with a request: its new memory, and its answer. `count` is how it evaluates a model.

    The memory holds the method's private state under "private", what an update made of it under "pending", and the
    client's model under "model"; it stays with the client. An update whose reply was lost on the way never happened:
    the next request says so, and what is pending is dropped. `None` is a client that has not been asked anything yet.
    """
    if request.space != task.described:
        raise DataError(
            f"its features are not the server's: {difference(task.described, request.space)}; nothing was computed"
        )
    if memory is None:
        rng = derive(request.seed, "client", client.name)
        memory = named.under("private", method.init_client(task, client.train, rng))
    private = named.take("pending" if "updated" in memory and request.accepted else "private", memory)
    if request.kind == "update":
        rng = derive(request.seed, "update", client.name, request.round)
        message, head = request.message, {"space": f"{task.space:x}"}
        started = time.perf_counter()
        if method.paced:
            message = {**message, "pace": np.array(request.pace)}
        pending, reply = method.update(private, message, task, client.train, rng)
        if method.paced:  # beside the reply, so that replies stay the same bits
            head["seconds"] = f"{time.perf_counter() - started:015.6f}"
        memory = named.under("private", private) | named.under("pending", pending) | {"updated": np.array(True)}
        return memory, encode(reply, head)
    model = method.personalize(private, request.message, task, client.train)
    tally = _evaluate(method, model, request.message, client, count)
    return named.under("private", private) | named.under("model", model), encode(tally)


def needed(memory: Arrays) -> dict[str, Array]:
    """What `handle` looks at of a client's memory: all but its model, which is made anew."""
    return {name: array for name, array in memory.items() if not name.startswith("model/")}


def _evaluate(
    method: Method,
    model: Arrays,
    message: Arrays,
    client: Client,
    count: Callable[[Method, Arrays, Samples], int],
) -> dict[str, Array]:
    """Counts on the client's test samples, for its model and the global one, and what was chosen for it."""
    tally: dict[str, Array] = {"train": np.array(len(client.train)), "test": np.array(len(client.test))}
    tally |= named.under("chosen", {name: array for name, array in model.items() if array.ndim == 0})
    shared = method.shared(message)
    if len(client.test):
        tally["correct"] = np.array(count(method, model, client.test))
        if shared:
            same = shared.keys() <= model.keys() and all(shared[name] is model[name] for name in shared)
            tally["shared"] = tally["correct"] if same else np.array(count(method, shared, client.test))
    return tally


# --- the server's side ---


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What the server knows at the end."""

    state: Arrays
    shared: Arrays | None
    clients: Mapping[str, ClientResult]
    history: tuple[Round, ...]
    seconds: Mapping[str, float]
    failed: Mapping[str, str] = field(default_factory=dict)  # clients that were left out, and why: the last reason


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All the server knows between two rounds: a run goes on from here as if it had never stopped."""

    round: int  # the last one that is over
    state: Arrays
    history: tuple[Round, ...]
    lost: frozenset[str]  # clients whose last reply did not arrive
    seconds: Mapping[str, float]


def drive(
    method: Method,
    task: Task,
    transport: Transport,
    *,
    seed: int = 0,
    participation: float = 1.0,
    tolerate: bool = False,
    min_clients: int = 1,
    progress: Progress | None = None,
    report: Report | None = None,
    evaluate_every: int = 1,
    resume: Snapshot | None = None,
    keep: Callable[[Snapshot], None] | None = None,
    on_reply: Keep | None = None,
) -> Outcome:
    """Run a method over a transport: its rounds, and after each an evaluation on every client's own test data.

    `participation` is the share of clients asked in a round. With `tolerate`, a client that fails or answers
    nonsense is left out and listed as missing; without, the run stops and names it. A round that fewer than
    `min_clients` answered does not count: the run stops. Clients are evaluated after each
    round whose number `evaluate_every` divides, and after the last. `report` is told of each round that is over, `keep`
    is given all it takes to go on behind it, and `resume` is what `keep` was given once.
    """
    if not 0 < participation <= 1:
        raise ParameterError(f"participation must be a share above 0 and at most 1; got {participation!r}")
    whole("eval-every", evaluate_every, 1)
    start = resume or Snapshot(0, method.init_server(task, derive(seed, "server")), (), frozenset(), {})
    clock = _Clock(start.seconds)
    state, history, lost = start.state, list(start.history), set(start.lost)
    pace = Pace()
    failed: dict[str, str] = {}
    results: dict[str, ClientResult] = {}
    for number in range(start.round + 1, method.rounds + 1):
        started = time.perf_counter()
        present = transport.clients()
        plan = method.plan(state, _draw(present, participation, derive(seed, "participation", number)))
        post = _Post(method, task, state, seed, number, "update", frozenset(lost), pace)
        replies = Replies(plan.fold, task.space, tolerate, on_reply)
        clock.lap("server")
        tick = _ticker(progress, number, "clients answering", plan.clients)
        transport.ask(post.requests(plan.clients), replies, tick)
        clock.lap("clients")
        folded = replies.folded()
        failed |= replies.failed
        if len(replies.answered) < max(1, min_clients):
            reasons = "; ".join(f"{client}: {reason}" for client, reason in sorted(replies.failed.items())[:3])
            few = f"only {len(replies.answered)} of {len(plan.clients)} clients" if replies.answered else "no client"
            wanted = f", fewer than the {min_clients} that are wanted" if replies.answered else ""
            raise DataError(f"{few} answered in round {number}{wanted}" + (f" ({reasons})" if reasons else ""))
        lost = (lost | set(plan.clients)) - replies.answered
        pace = pace.after(replies.seconds)
        state = method.aggregate(state, folded)
        clock.lap("server")
        # The state goes out once more, for personalisation; in between it goes out with the next update.
        final = _Post(method, task, state, seed, number, "evaluate", frozenset(lost), Pace())
        tallies = Tallies(tolerate)
        if number % evaluate_every == 0 or number == method.rounds:
            transport.ask(final.requests(present), tallies, _ticker(progress, number, "personal models", present))
        results = tallies.clients
        failed |= {client: reason for client, reason in tallies.failed.items() if client not in replies.failed}
        clock.lap("evaluate")
        history.append(
            Round(
                round=number,
                accuracy=Accuracy.of(results).mean,
                bytes_up=replies.received,
                bytes_down=post.sent + (final.sent if number == method.rounds else 0),
                seconds=round(time.perf_counter() - started, 6),
                missing=tuple(sorted(set(present) - replies.answered)),
                loss=float(state["loss"]) if "loss" in state else None,
            )
        )
        if report:
            report(history[-1], method.rounds)
        if keep:
            keep(Snapshot(number, state, tuple(history), frozenset(lost), dict(clock.seconds)))
    shared = method.shared(method.message(state, min(results, default="")))
    ordered = {name: results[name] for name in sorted(results)}
    return Outcome(state, shared, ordered, tuple(history), clock.seconds, failed)


def _ticker(progress: Progress | None, number: int, what: str, clients: Sequence[str]) -> Tick:
    def tick(done: int) -> None:
        if progress:
            progress(f"round {number}: {what}", done, len(clients))

    return tick


def _draw(clients: Sequence[str], share: float, rng: np.random.Generator) -> list[str]:
    """A random share of the clients, at least one, in sorted order."""
    names = sorted(clients)
    if share == 1.0 or not names:
        return names
    count = max(1, round(share * len(names)))
    return [names[i] for i in np.sort(rng.choice(len(names), count, replace=False))]


@dataclass(frozen=True, slots=True)
class Pace:
    """How much more slow clients should take on at a time: FedACnnL (7), in a form that settles.

    (7) sets a client's block to its first one times how slow it is *now*; with the larger block it is fast, so the next
    one is small again. Here the factor of a client grows by the root of how many times longer than the median it took,
    and never shrinks: it only stops growing, when the client keeps up or has reached its own limit.
    """

    factors: Mapping[str, float] = field(default_factory=dict)

    def of(self, client: str) -> float:
        """The factor of a client; 1 for those that keep up."""
        return self.factors.get(client, 1.0)

    def after(self, seconds: Mapping[str, float]) -> Pace:
        """The factors after a round in which clients took that long."""
        if not seconds:
            return self
        median = float(np.median(list(seconds.values())))
        behind = {name: taken / median for name, taken in seconds.items() if taken > median > 0}
        grown = {name: min(self.of(name) * math.sqrt(times), LARGEST_PACE) for name, times in behind.items()}
        return Pace({**self.factors, **grown})


@dataclass(slots=True)
class _Post:
    """Requests of one kind, encoded once for all clients that are sent the same arrays."""

    method: Method
    task: Task
    state: Arrays
    seed: int
    number: int
    kind: Kind
    lost: frozenset[str]
    pace: Pace
    sent: int = 0  # bytes

    def requests(self, clients: Sequence[str]) -> Iterator[tuple[str, Bytes]]:
        last: Request | None = None
        data: Bytes = b""
        for client in clients:
            message, accepted = self.method.message(self.state, client), client not in self.lost
            pace = self.pace.of(client)
            if last is None or not last.carries(message) or (last.accepted, last.pace) != (accepted, pace):
                last = Request(self.kind, self.number, self.seed, self.task.described, message, accepted, pace)
                data = last.write()
            self.sent += len(data) if message else 0  # a bare request carries nothing of the method's
            yield client, data


class Replies:
    """Replies to an update, folded as they come. Associative: merging folds like putting.

    Replies add up only if they have the same names, types and shapes. Sums are kept apart by that layout until all
    are there; then most clients decide which layout is right, so that it does not matter who came first.
    """

    def __init__(self, fold: Fold, space: int, tolerate: bool, on_reply: Keep | None = None) -> None:
        self.failed: dict[str, str] = {}
        self.received = 0  # bytes
        self.seconds: dict[str, float] = {}  # that clients say they took, where the method asks for it
        self._fold, self._space, self._tolerate = fold, space, tolerate
        self._on_reply = on_reply
        self._sums: dict[tuple[str, Layout], dict[str, Array]] = {}
        self._members: dict[Layout, set[str]] = {}

    @property
    def answered(self) -> set[str]:
        """The clients whose replies are in."""
        return set().union(*self._members.values())

    def empty(self) -> Replies:
        """A new one."""
        return Replies(self._fold, self._space, self._tolerate, self._on_reply)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Check a reply and add it to its sum."""
        try:
            if isinstance(answer, Failure):
                raise DataError(answer.reason)
            reply, head = read(answer, "its reply")
            if head.get("space") != f"{self._space:x}":
                raise DataError(f"its feature space is {head.get('space')}, not the server's {self._space:x}")
            seconds = _seconds(head)
            if self._tolerate:  # to leave it out, it must be looked at before it is added
                named.check(reply, "its reply")
            if self._on_reply:
                self._on_reply(client, reply)
        except DataError as error:
            self._fail(client, str(error))
            return
        group = "" if self._fold == "sum" else client if self._fold == "collect" else self._fold[client]
        layout = () if self._fold == "collect" else named.layout(reply)
        self._sums[group, layout] = named.accumulate(self._sums.get((group, layout)), reply)
        self._members.setdefault(layout, set()).add(client)
        if seconds is not None:
            self.seconds[client] = seconds
        self.received += len(answer) if reply else 0  # an empty reply carries nothing of the method's

    def merge(self, other: Inbox) -> None:
        """Add the sums of another inbox, which is used up."""
        if not isinstance(other, Replies):
            raise TypeError(f"cannot merge {type(other).__name__} into Replies")
        for key, part in other._sums.items():
            if not self._tolerate:  # a bad reply stops the run anyway: the sum is checked, not every addend
                named.check(part, f"reply of {' or '.join(sorted(other._members[key[1]]))}")
            self._sums[key] = named.accumulate(self._sums[key], part) if key in self._sums else part
        for layout, members in other._members.items():
            self._members.setdefault(layout, set()).update(members)
        self.failed |= other.failed
        self.seconds |= other.seconds
        self.received += other.received

    def folded(self) -> dict[str, Array]:
        """What `aggregate` is given: the sums of those that agree, the others failed."""
        if self._members:
            right = max(self._members, key=lambda layout: (len(self._members[layout]), layout))
            for layout in [layout for layout in self._members if layout != right]:
                for client in sorted(self._members.pop(layout)):
                    self._fail(
                        client, f"its reply has {named.words(layout)} where those of most have {named.words(right)}"
                    )
                self._sums = {key: total for key, total in self._sums.items() if key[1] != layout}
        if self._fold == "sum":
            return next(iter(self._sums.values()), {})
        groups = sorted(self._sums)
        return {name: array for key in groups for name, array in named.under(key[0], self._sums[key]).items()}

    def _fail(self, client: str, reason: str) -> None:
        if not self._tolerate:
            raise DataError(f"client {client!r}: {reason}")
        self.failed[client] = reason


def _seconds(head: Mapping[str, str]) -> float | None:
    """How long a client says it took."""
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
    """Figures of the clients, by name."""

    def __init__(self, tolerate: bool) -> None:
        self.clients: dict[str, ClientResult] = {}
        self.failed: dict[str, str] = {}
        self._tolerate = tolerate

    def empty(self) -> Tallies:
        """A new one."""
        return Tallies(self._tolerate)

    def put(self, client: str, answer: Bytes | Failure) -> None:
        """Read the figures of a client."""
        try:
            if isinstance(answer, Failure):
                raise DataError(answer.reason)
            self.clients[client] = _read_tally(decode(answer, "its figures"))
        except DataError as error:
            if not self._tolerate:
                raise DataError(f"client {client!r}: {error}") from error
            self.failed[client] = str(error)

    def merge(self, other: Inbox) -> None:
        """Take over the figures of another inbox."""
        if not isinstance(other, Tallies):
            raise TypeError(f"cannot merge {type(other).__name__} into Tallies")
        self.clients |= other.clients
        self.failed |= other.failed


def _read_tally(tally: Arrays) -> ClientResult:
    try:
        counts = {name: int(array) for name, array in tally.items() if "/" not in name}
        chosen = {name: float(array) for name, array in named.take("chosen", tally).items()}
        train, test = counts.pop("train"), counts.pop("test")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"its figures are incomplete: {error}") from error
    if not all(0 <= count <= test and test > 0 for count in counts.values()):
        raise DataError(f"its figures cannot be: {counts} right of {test}")
    shares = {name: count / test for name, count in counts.items()}
    return ClientResult(train, test, shares.get("correct"), shares.get("shared"), chosen=chosen)


class _Clock:
    """Seconds by what they were spent on."""

    def __init__(self, before: Mapping[str, float]) -> None:
        self.seconds = {"clients": 0.0, "server": 0.0, "evaluate": 0.0, **before}
        self._last = time.perf_counter()

    def lap(self, what: str) -> None:
        """Book the time since the last lap."""
        now = time.perf_counter()
        self.seconds[what] += now - self._last
        self._last = now
