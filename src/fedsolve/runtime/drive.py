"""The round loop, once: `drive` on the server's side, `client.handle` on the client's, bytes between them.

A transport carries requests to clients and answers back; in process and over a network differ only there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from fedsolve import digits, thin
from fedsolve.arrays import Arrays, finite
from fedsolve.codec import Bytes
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.grouping import groups_of
from fedsolve.method import Method, Server
from fedsolve.metrics import calibration, figures
from fedsolve.model import Model
from fedsolve.parameters import whole
from fedsolve.privacy.noise import Noise, Release
from fedsolve.progress import Progress, Tick
from fedsolve.records import ClientResult, Round, Seconds, Times, spreads
from fedsolve.result import PLAIN, Result
from fedsolve.rng import derive
from fedsolve.runtime import examiner
from fedsolve.runtime.client import Kind, Request
from fedsolve.runtime.devices import Device, lap
from fedsolve.runtime.gather import Gathering, Plain, Transport
from fedsolve.runtime.inbox import Replies, Tallies, Witness
from fedsolve.runtime.pace import Pace
from fedsolve.runtime.stopwatch import Watch, Work
from fedsolve.runtime.turnout import Participation, Turnout
from fedsolve.threads import threads_for

OnRound: TypeAlias = Callable[[Round, int], None]  # a round that is over, of how many


def together(*listeners: OnRound | None) -> OnRound | None:
    """One listener for those that there are.

    >>> heard: list[int] = []
    >>> both = together(lambda line, of: heard.append(of), None, lambda line, of: heard.append(-of))
    >>> both(Round(1, 0, 0, 0.0), 3) if both else None
    >>> heard, together(None) is None
    ([3, -3], True)
    """
    there = [each for each in listeners if each is not None]

    def on_round(line: Round, of: int) -> None:
        for each in there:
            each(line, of)

    return on_round if there else None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What the server knows at the end."""

    state: Arrays
    shared: Arrays | None
    clients: Mapping[str, ClientResult]
    history: tuple[Round, ...]
    seconds: Mapping[str, float]
    failed: Mapping[str, str] = field(default_factory=dict)  # clients that were left out, and why: the last reason
    tallies: Mapping[str, Arrays] = field(default_factory=dict)  # of all test samples together, by whose model
    privacy: Mapping[str, Any] = field(default_factory=dict)  # how replies were gathered

    def result(
        self,
        method: Method,
        task: Task,
        *,
        settings: Mapping[str, Any],
        data: Mapping[str, Any],
        models: Mapping[str, Model],
        seconds: float,
    ) -> Result:
        """The result of the run: with its settings and data, personal models where they are here, and all seconds."""
        personal = self.tallies.get("personal", {})
        unsure = {name: client.unsure for name, client in self.clients.items()}
        groups, group_models = groups_of(method, task, self.state, tuple(self.clients))
        return Result(
            method=method.name,
            settings=settings,
            clients=self.clients,
            history=self.history,
            seconds=Seconds(**self.seconds, total=seconds),
            data=data,
            models=models,
            shared=Model(method, task, self.shared, "global") if self.shared else None,
            state=self.state,
            server=method.figures(self.state),
            task=task.target.words(),
            metrics=spreads(self.clients, tally=personal),
            baseline=figures(self.tallies.get("baseline", {})),
            pooled={"shared": figures(self.tallies["shared"])} if "shared" in self.tallies else {},
            confusion=tuple(map(tuple, personal["confusion"].tolist())) if "confusion" in personal else (),
            calibration=calibration.curve(personal),
            warnings=(*method.warnings(self.state, task), *digits.at_clients(unsure, task.columns)),
            groups=groups,
            group_models=group_models,
            privacy=self.privacy or PLAIN,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All the server knows between two rounds: a run goes on from here as if it had never stopped."""

    round: int  # the last one that is over
    state: Arrays
    history: tuple[Round, ...]
    lost: frozenset[str]  # clients whose last reply did not arrive
    seconds: Mapping[str, float]
    spent: Mapping[str, Times] = field(default_factory=dict)  # by client, where it is watched
    pace: Pace | None = None


def drive(
    method: Method,
    task: Task,
    transport: Transport,
    *,
    seed: int = 0,
    participation: Participation = 1.0,
    tolerate: bool = False,
    min_clients: int = 1,
    progress: Progress | None = None,
    on_round: OnRound | None = None,
    evaluate_every: int = 1,
    resume: Snapshot | None = None,
    keep: Callable[[Snapshot], None] | None = None,
    on_reply: Witness | None = None,
    gathering: Gathering | None = None,
    noise: Noise | None = None,
    evaluate: bool = True,
    watch: Watch | None = None,
    devices: Mapping[str, Device] | None = None,
) -> Outcome:
    """Run a method over a transport: its rounds, and after each an evaluation on every client's own test data.

    The last round is the one after which the method says that it is `done`, and at the latest that of `method.rounds`.

    `participation` is the share of clients asked in a round, or "0.6-1" where it is drawn anew for each. With
    `tolerate`, a client that fails or answers nonsense is left out and listed as missing; without, the run stops and
    names it. A round that fewer than `min_clients` answered does not count: the run stops. Clients are evaluated after
    each round whose number `evaluate_every` divides, and after the last. `on_round` is told of each round that is over,
    `keep` is given all it takes to go on behind each but the last, and `resume` is what `keep` was given once.
    `gathering` says how replies reach the server; by default it sees each of them. With `noise`, their sum is repaired,
    and the server adds the noise if sites do not. Without `evaluate`, clients are asked for updates alone. `watch`
    tells what clients did since it was last asked; with `devices`, one per client, rounds take the seconds of these.
    """
    _serves(method, task)
    turnout = Turnout.of(participation)
    whole("eval-every", evaluate_every, 1)
    gathering = gathering or Plain()
    gathering.check(participation)
    if thin.asked(method):
        thin.check_alone(secure=bool(gathering.words().get("secure")), noise=noise is not None)
    start = resume or Snapshot(0, method.init_server(Server(task, 0, derive(seed, "server"))), (), frozenset(), {})
    clock = _Clock(start.seconds)
    state, history, lost = start.state, list(start.history), set(start.lost)
    pace = start.pace or Pace(rule=method.pacing)
    spent = _Spent(watch or dict, devices, dict(start.spent))
    failed: dict[str, str] = {}
    tallies = Tallies(task.target, tolerate)
    for number in range(start.round + 1, method.rounds + 1):
        started, server = time.perf_counter(), clock.seconds["server"]
        present = transport.clients()
        plan = method.plan(state, turnout.draw(present, derive(seed, "participation", number)))
        post = _Post(method, task, state, seed, number, "update", frozenset(lost), pace)
        form = partial(_form, method, task, state, plan.clients, number, seed)
        first = min(plan.clients, default="")
        release = Release.of(noise, method, method.message(state, first, "update"), task) if noise else None
        blurred = release is not None and release.noise.by == "sites"  # so that replies are moments of no samples
        look = None if blurred else examiner.Examiner(form, thorough=tolerate).look
        turned = None
        if thin.asked(method):
            turned = examiner.turned(method, task, method.message(state, first, "update"), number, seed)
        replies = Replies(plan, task.space, tolerate, on_reply, look, turned)
        clock.lap("server")
        tick = _ticker(progress, number, "clients answering", plan.clients)
        gathering.gather(transport, post.requests(plan.clients), replies, tick)
        clock.lap("clients")
        times = spent.lap()
        enough = partial(_enough, replies, plan.clients, min_clients, number)
        state = _aggregate(method, state, replies, partial(_server, task, seed, number), enough, tolerate, release)
        failed |= replies.failed
        lost = (lost | set(plan.clients)) - replies.answered
        busy = {client: each.busy for client, each in times.items()} if devices and method.paced else replies.seconds
        pace = pace.after(busy)
        last = number == method.rounds or method.done(state)
        clock.lap("server")
        # The state goes out once more, for personalisation; in between it goes out with the next update.
        final = _Post(method, task, state, seed, number, "evaluate", frozenset(lost), Pace())
        tallies = Tallies(task.target, tolerate)
        if evaluate and (last or number % evaluate_every == 0):
            tick = _ticker(progress, number, "personal models", present)
            gathering.evaluate(transport, final.requests(present), tallies, tick)
            spent.lap("personal" if last else "")  # what clients do to evaluate in between, they do for us
        failed |= {client: reason for client, reason in tallies.failed.items() if client not in replies.failed}
        clock.lap("evaluate")
        emulated = spent.elapsed() + clock.seconds["server"] - server
        history.append(
            Round(
                round=number,
                bytes_up=replies.received,
                bytes_down=post.sent + replies.sent + (final.sent if last else 0),
                seconds=round(emulated if devices else time.perf_counter() - started, 6),
                missing=tuple(sorted(set(present) - replies.answered)),
                loss=method.figures(state).get("loss"),
                metrics=_over_clients(tallies),
            )
        )
        if on_round:
            on_round(history[-1], method.rounds)
        if last:
            break
        if keep:
            seconds, clients = dict(clock.seconds), dict(spent.clients)
            keep(Snapshot(number, state, tuple(history), frozenset(lost), seconds, clients, pace))
    # Under a secure sum a client's figures stay with it, and its seconds say how many samples it has.
    told = {} if gathering.words().get("secure") else spent.clients
    results = {name: replace(tallies.clients[name], seconds=told.get(name)) for name in sorted(tallies.clients)}
    shared = method.shared(method.message(state, min(results, default=""), "personalize"))
    return Outcome(state, shared, results, tuple(history), clock.seconds, failed, tallies.sums, gathering.words())


def _server(task: Task, seed: int, number: int) -> Server:
    return Server(task, number, derive(seed, "aggregate", number))


def _form(
    method: Method, task: Task, state: Arrays, clients: Sequence[str], number: int, seed: int
) -> examiner.Form | None:
    """What moments look like in this round, by what a method makes of two samples."""
    return examiner.form(method, task, method.message(state, clients[0], "update"), number, seed)


def _aggregate(
    method: Method,
    state: Arrays,
    replies: Replies,
    server: Callable[[], Server],
    enough: Callable[[], None],
    tolerate: bool,
    release: Release | None = None,
) -> Arrays:
    """The next state, of finite numbers, from those that answered, who must be `enough`.

    With `tolerate`, collected replies that the method can do nothing with are left out where most are laid out
    otherwise. Which of several summed replies spoilt a sum, nobody can tell: the largest are named.
    """
    folded = replies.folded()
    enough()
    if release is not None:
        folded = release.settled(folded, len(replies.answered))
    try:
        with threads_for(max((array.size for array in folded.values()), default=0)):
            following = method.aggregate(state, folded, server())
        spoilt = [name for name, array in following.items() if array.dtype.kind == "f" and not finite(array)]
        if not spoilt:
            return following
        reason, cause = f"the server's {spoilt[0]!r} is not finite after it", None
    except Exception as error:
        if not tolerate or (isinstance(error, FedsolveError) and not replies.collected):
            raise
        reason, cause = f"{type(error).__name__}: {error}", error
    if tolerate and replies.without_odd():
        return _aggregate(method, state, replies, server, enough, tolerate, release)
    largest = sorted(replies.sizes, key=lambda client: (-replies.sizes[client], client))[:3]
    suspects = ", ".join(f"{client} ({replies.sizes[client]:.3g})" for client in largest)
    hint = f"the largest numbers came from {suspects}; leave one out" if suspects else "scale the features down"
    raise DataError(f"what came of round {server().round} cannot be used: {reason}; {hint}, and run again") from cause


def _serves(method: Method, task: Task) -> None:
    """Refuse a task whose target the method does not learn."""
    if task.target.kind not in method.targets:
        raise ParameterError(
            f"method {method.name!r} learns {' or '.join(method.targets)}; the target of this task is "
            f"{task.target.kind}: choose a method whose targets include {task.target.kind!r}"
        )


def _enough(replies: Replies, clients: Sequence[str], least: int, number: int) -> None:
    """Refuse a round that too few clients answered."""
    if len(replies.answered) >= max(1, least):
        return
    reasons = "; ".join(f"{client}: {reason}" for client, reason in sorted(replies.failed.items())[:3])
    few = f"only {len(replies.answered)} of {len(clients)} clients" if replies.answered else "no client"
    threshold = f", fewer than the {least} that are wanted" if replies.answered else ""
    raise DataError(f"{few} answered in round {number}{threshold}" + (f" ({reasons})" if reasons else ""))


def _over_clients(tallies: Tallies) -> dict[str, dict[str, float | None]]:
    """Mean over clients and figure of all samples together, of each metric."""
    every = spreads(tallies.clients, tally=tallies.sums.get("personal"))
    return {name: {"mean": spread.mean, "pooled": spread.pooled} for name, spread in every.items()}


def _ticker(progress: Progress | None, number: int, what: str, clients: Sequence[str]) -> Tick:
    def tick(done: int) -> None:
        if progress:
            progress(f"round {number}: {what}", done, len(clients))

    return tick


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
            message = self.method.message(self.state, client, "update" if self.kind == "update" else "personalize")
            accepted, pace = client not in self.lost, self.pace.of(client)
            if last is None or not last.carries(message) or (last.accepted, last.pace) != (accepted, pace):
                last = Request(self.kind, self.number, self.seed, self.task.described, message, accepted, pace)
                data = last.write()
            self.sent += len(data) if message else 0  # a bare request carries nothing of the method's
            yield client, data


@dataclass(slots=True)
class _Spent:
    """The seconds of clients, each on a device of its own, from what a watch tells of them."""

    watch: Watch
    devices: Mapping[str, Device] | None
    clients: dict[str, Times]
    _elapsed: float = 0.0

    def lap(self, what: Literal["update", "personal", ""] = "update") -> Mapping[str, Times]:
        """Book what clients did since the last lap, at the same time; nothing of what is not theirs to do.

        Figures on test samples, which they send behind their personal model, are not.
        """
        work = self.watch()
        if what == "personal":
            work = {client: Work(done.seconds, done.down) for client, done in work.items()}
        times, taken = lap(work, self.devices)
        if what:
            before = self.clients
            self.clients |= {name: before[name] + each if name in before else each for name, each in times.items()}
            self._elapsed += taken
        return times

    def elapsed(self) -> float:
        """The seconds of the laps since this was last asked."""
        elapsed, self._elapsed = self._elapsed, 0.0
        return elapsed


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
