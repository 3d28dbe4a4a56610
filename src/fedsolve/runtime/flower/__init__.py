"""The round loop over Flower: a transport on a `Grid`, and the two apps. The only module that imports flwr.

Two kinds of message: "query.hello", to which a site answers with its name and what its data look like, and
"query.request", which carries a `loop.Request` and the task that all sites agreed on. Nothing else is kept between
messages: Flower starts a new process for each, which takes seconds. Hence the hello of a method with one round carries
its first message, and a site answers the first request with it, as if all sites had data like its own. Where that turns
out to be so, the answer counts; where not, the site is asked again.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsolve import codec, parameters
from fedsolve.arrays import Arrays, same
from fedsolve.codec import Bytes
from fedsolve.data.federation import Federation
from fedsolve.data.task import Classes, Task
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import maps
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.moments import Moments
from fedsolve.progress import Progress
from fedsolve.result import Result, Seconds
from fedsolve.rng import derive
from fedsolve.runtime.inprocess import cores
from fedsolve.runtime.loop import Failure, Inbox, Keep, Outcome, Tick, drive
from fedsolve.runtime.sites import (
    VERSION,
    Description,
    FileSite,
    Job,
    Rules,
    Site,
    SplitSite,
    agree,
    assumption,
    forget,
    from_text,
    opening,
    respond,
    shared_text,
    to_text,
)

HELLO, REQUEST = "hello", "request"
IN_FLIGHT = 256_000_000  # bytes that may lie at the SuperLink at once, about
WINDOW = (4, 64)  # messages in flight, at least and at most, whatever their size
POLL = (0.05, 1.0)  # seconds between two looks for an answer, at first and at most
GRACE = 600.0  # seconds that an answer is kept beyond its time, until its turn to be folded
SPOOL = 4_000_000_000  # bytes of early answers that may wait on the server's disk
AGAIN = 10.0  # seconds before a site that failed to say hello is asked once more
Say = Callable[[str], None]
Keeping = Callable[[Method, Task], AbstractContextManager[Keep]]  # who is told of the replies of such a run

_log = logging.getLogger("flwr")  # Flower streams what is said here to whoever started the run


# --- bytes in messages ---


def _packed(data: Bytes) -> ArrayRecord:
    """Bytes as an array, since Flower cuts arrays into pieces, and nothing else; not through NumPy's format."""
    whole = bytes(data)
    return ArrayRecord({"bytes": Array("uint8", (len(whole),), "safetensors", whole)})


def _unpacked(content: RecordDict) -> bytes:
    try:
        return content.array_records["body"]["bytes"].data
    except KeyError:
        raise DataError("its answer has no content") from None


# --- the client's side ---


def make_client_app(site_of: Callable[[Context], Site] | None = None) -> ClientApp:
    """The client app. `site_of` finds the site of a node; by default its configuration says where the data are."""
    app = ClientApp()
    find: Callable[[Context], Site] = site_of or (lambda context: FileSite.of(context.node_config))

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        return _answered(message, context, lambda: _describe(find(context), message, _run(context)))

    @app.query(REQUEST)
    def request(message: Message, context: Context) -> Message:
        return _answered(message, context, lambda: _respond(find(context), message, context))

    return app


def _describe(site: Site, message: Message, run: str) -> RecordDict:
    head = message.content.config_records["head"]
    version = str(head.get("version"))
    if version != VERSION:  # the rest of the message may be of another shape
        raise DataError(f"it has fedsolve {VERSION}, the server {version}; install the same everywhere")
    forget(site)
    job = from_text(Job, str(head["job"]))
    description = site.describe(job)
    told = {"description": to_text(description)}
    task = description.task
    wanted = maps.in_words(str(head.get("features", "")), task.inputs)
    if "body" not in message.content or task.described != wanted:  # with other features it says no more than that
        return RecordDict({"head": ConfigRecord(dict(told))})
    request = opening(job, task.described, codec.decode(_unpacked(message.content)))
    told["assumed"] = assumption(shared_text(task, job), request)
    try:
        answer = respond(site, job, task, request, run)
    except (FedsolveError, OSError) as error:
        return RecordDict({"head": ConfigRecord({**told, "failed": str(error)})})
    return RecordDict({"head": ConfigRecord(dict(told)), "body": _packed(answer)})


def _run(context: Context) -> str:
    return f"{context.run_id:x}"


def _respond(site: Site, message: Message, context: Context) -> RecordDict:
    head = message.content.config_records["head"]
    job, task = from_text(Job, str(head["job"])), Task.from_text(str(head["task"]))
    data = _unpacked(message.content)
    return RecordDict({"body": _packed(respond(site, job, task, data, _run(context)))})


def _answered(message: Message, context: Context, work: Callable[[], RecordDict]) -> Message:
    """A reply; what a user can mend comes back as a sentence, not as a traceback."""
    try:
        content = work()
    except (FedsolveError, OSError) as error:
        named = context.node_config.get("client", "")
        told = {"reason": str(error), "client": str(named), "version": VERSION}
        content = RecordDict({"failure": ConfigRecord(dict(told))})
    return Message(content, reply_to=message)


# --- the server's side ---


@dataclass(frozen=True, slots=True)
class Early:
    """The answer to a first request that came with a hello."""

    assumed: str  # the digest of the task and the request that it answers
    path: Path  # where it waits for its turn


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message on its way; no identity means that it could not be sent, or that the answer is already there."""

    client: str
    identity: str | None
    deadline: float
    early: Early | Failure | None = None


class FlowerTransport:
    """A transport to the sites behind a grid.

    Answers are folded in the order of the requests, so that sums have the same bits whoever is faster. What waits for
    its turn lies at the SuperLink, so the window bounds its memory; the server holds one answer at a time.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[str, int],
        job: Job,
        task: Task,
        timeout: float,
        early: Mapping[str, Early | Failure] | None = None,
    ):
        self._grid, self._nodes, self._timeout = grid, dict(nodes), timeout
        self._early = dict(early or {})
        self._head = {"job": to_text(job), "task": shared_text(task, job)}
        self._largest = 4 * task.width**2  # bytes of an answer: half a Gram matrix, until one is there
        self._measured = False
        self._last: tuple[Bytes, ArrayRecord] | None = None

    def clients(self) -> Sequence[str]:
        """All that agreed; who is gone by now fails when asked."""
        return sorted(self._nodes)

    def ask(self, requests: Iterable[tuple[str, Bytes]], inbox: Inbox, tick: Tick) -> None:
        """Push within a window, pull in order, fold and drop."""
        there = set(self._grid.get_node_ids())
        flight: deque[_Sent] = deque()
        done = 0

        def settle() -> None:
            nonlocal done
            sent = flight.popleft()
            inbox.put(sent.client, self._wait(sent))
            tick(done := done + 1)

        for client, data in requests:
            while len(flight) >= self._window(len(data)):
                settle()
            flight.append(self._send(client, data, there))
        self._last = None
        while flight:
            settle()
        self._early.clear()

    def _window(self, request: int) -> int:
        return _window(max(self._largest, request))

    def _send(self, client: str, data: Bytes, there: set[int]) -> _Sent:
        deadline = time.monotonic() + self._timeout
        early = self._early.pop(client, None)
        if isinstance(early, Failure) or (early and early.assumed == assumption(self._head["task"], data)):
            return _Sent(client, None, deadline, early)
        if self._nodes[client] not in there:
            return _Sent(client, None, deadline)
        if self._last is None or self._last[0] is not data:
            self._last = (data, _packed(data))  # once for all that are sent the same
        content = RecordDict({"head": ConfigRecord(dict(self._head)), "body": self._last[1]})
        # An answer may have to wait for its turn behind one that never comes: at most as long as it may take itself.
        message = Message(content, self._nodes[client], f"query.{REQUEST}", ttl=self._timeout + GRACE)
        return _Sent(client, next(iter(self._grid.push_messages([message])), None), deadline)

    def _wait(self, sent: _Sent) -> Bytes | Failure:
        if isinstance(sent.early, Failure):
            return sent.early
        if sent.early:
            data = sent.early.path.read_bytes()
            sent.early.path.unlink()
            return data
        if sent.identity is None:
            return Failure("its node is not connected")
        pause, longest = POLL
        while True:
            late = time.monotonic() >= sent.deadline
            for reply in self._grid.pull_messages([sent.identity]):
                return self._read(reply)
            if late:
                return Failure(f"no answer within {self._timeout:g} s")
            time.sleep(pause)
            pause = min(1.5 * pause, longest)

    def _read(self, reply: Message) -> Bytes | Failure:
        reason = _failure(reply, self._timeout)
        if reason:
            return Failure(reason)
        try:
            data = _unpacked(reply.content)
        except DataError as error:
            return Failure(str(error))
        self._largest = max(self._largest if self._measured else 0, len(data))
        self._measured = True
        return data


def _window(largest: int) -> int:
    """How many messages may be in flight, by the bytes of the largest."""
    low, high = WINDOW
    return max(low, min(high, IN_FLIGHT // max(largest, 1)))


def _failure(reply: Message, timeout: float) -> str:
    """Why a reply is none, in words; nothing where it is one."""
    if not reply.has_error():
        failure = reply.content.config_records.get("failure")
        return str(failure.get("reason", "it failed")) if failure else ""
    code, said = reply.error.code, " ".join((reply.error.reason or "").split())
    said = re.sub(r"<class '(?:\w+\.)*(\w+)'>:<'(.*)'>", r"\1: \2", said)  # as Flower writes an exception
    known = {
        1: f"its app cannot be loaded: {said}",
        2: f"it raised {said}",
        3: f"no answer within {timeout:g} s, or it was lost on the way",
        4: f"no answer within {timeout:g} s, or it was lost on the way",
        5: "its node went away",
        8: "its process died",
    }
    return known.get(code, f"Flower reports error {code}: {said}")


@dataclass
class _Guest:
    """A node that was asked for its name."""

    key: str
    identity: str | None = None  # of the question
    description: Description | None = None
    name: str = ""  # as it says, or as its key says
    reason: str = ""  # why it could not answer
    version: str = VERSION
    asked: float = 0.0
    early: Early | Failure | None = None  # what it answered to the first request

    def why(self) -> str:
        """Why it has no description, where it failed to give one."""
        return self.reason or (self.early.reason if isinstance(self.early, Failure) and not self.description else "")


@dataclass(frozen=True)
class Opening:
    """A first request that travels with the hello, to nodes that are known by their keys."""

    message: Arrays
    features: str  # the identity of the server's feature map
    folder: Path  # where early answers wait

    @classmethod
    def of(cls, method: Method, job: Job, rules: Rules, folder: Path) -> Opening | None:
        """Where the method has one round, begins with the same message whatever the task, and all sites have keys."""
        known = bool(rules.sites) and all(name in rules.keys for name in rules.sites)
        if method.rounds > 1 or method.processes or not known or rules.participation < 1:
            return None
        tasks = (Task(Classes(2), (3,)), Task(Classes(3), (5,)))
        first, second = (
            method.message(method.init_server(task, derive(job.seed, "server")), rules.sites[0]) for task in tasks
        )
        return cls(first, maps.parse(job.features).identity, folder) if same(first, second) else None


def meet(
    grid: Grid, job: Job, rules: Rules, say: Say, opening: Opening | None = None
) -> tuple[dict[str, int], dict[str, Description], dict[str, Early | Failure]]:
    """Ask every node for its name and its data until all expected sites are there, or until the time is over.

    Nodes that are not expected are left alone. Two nodes with one name, another version of fedsolve, or another key
    than the site's own stop the run. With an `opening`, sites are asked the first request in the same breath; who
    fails at that is there, but without a description.
    """
    started, told, pause = time.monotonic(), "", POLL[0]
    hall = _Hall(grid, job, rules, opening)
    least = min(rules.min_clients, len(rules.sites)) if rules.sites else rules.min_clients
    while True:
        now = time.monotonic()
        hall.ask({node.node_id: node.public_key.decode(errors="replace").strip() for node in grid.get_nodes()})
        heard = hall.listen()
        found = _named(hall.guests, rules)
        nodes = {name: node for name, (node, _) in found.items()}
        nodes |= {guest.name: node for node, guest in hall.guests.items() if guest.early and not guest.description}
        waiting = any(guest.identity is not None or not guest.asked for guest in hall.guests.values())
        missing = [name for name in rules.sites if name not in nodes]
        over = now - started >= rules.wait and not (opening and waiting)
        if (not missing and not waiting and len(nodes) >= least) or over:
            break
        line = f"{len(nodes)} sites are there" + (f", waiting for {', '.join(missing)}" if missing else "")
        if line != told:
            say(line)
            told = line
        # Each look is a request a node to the SuperLink, which has better things to do.
        pause = POLL[0] if heard else min(1.5 * pause, POLL[1])
        time.sleep(pause)
    failed = {guest.name or f"node {node}": guest.why() for node, guest in hall.guests.items() if guest.why()}
    reasons = "".join(f"; {name}: {reason}" for name, reason in sorted(failed.items()))
    if len(nodes) < max(1, least) or not found:
        wanted = f"{len(rules.sites)} expected" if rules.sites else f"{least} needed"
        absent = f", without {', '.join(missing)}" if missing else ""
        raise DataError(f"{len(found)} of {wanted} sites are there after {now - started:.0f} s{absent}{reasons}")
    if missing:
        say(f"starting without {', '.join(missing)}{reasons}")
    early = {name: answer for name, node in nodes.items() if (answer := hall.guests[node].early)}
    return nodes, {name: told for name, (_, told) in found.items()}, early


class _Hall:
    """Nodes on their way in: whom to ask when, and what they said."""

    def __init__(self, grid: Grid, job: Job, rules: Rules, opening: Opening | None) -> None:
        self.guests: dict[int, _Guest] = {}
        self._names = {key.strip(): name for name, key in rules.keys.items() if name in rules.sites}
        self._grid, self._rules, self._opening = grid, rules, opening
        self._head = {"version": VERSION, "job": to_text(job)}
        self._body = _packed(codec.encode(opening.message)) if opening else None
        self._largest, self._kept = 0, 0  # bytes of an early answer, and of all that wait

    def ask(self, keys: Mapping[int, str]) -> None:
        """Greet who is new, and once more who could not answer; forget who left before more was asked of it."""
        for node in set(self.guests) - set(keys):
            guest = self.guests[node]
            if self._opening and guest.identity is not None:
                guest.identity, guest.early = None, Failure("its node went away")
            elif not guest.early:
                del self.guests[node]
        for node, key in sorted(keys.items()):
            if self._opening and key not in self._names:
                continue
            guest = self.guests.setdefault(node, _Guest(key, name=self._names.get(key, "") if self._opening else ""))
            known = guest.description or guest.early or guest.identity is not None
            if known or (guest.asked and time.monotonic() - guest.asked <= AGAIN):
                continue
            flight = sum(guest.identity is not None for guest in self.guests.values())
            if self._opening and flight >= (_window(self._largest) if self._largest else WINDOW[0]):
                return
            self._greet(node, guest)

    def _greet(self, node: int, guest: _Guest) -> None:
        head, content = dict(self._head), RecordDict()
        if self._opening and self._body is not None and self._kept < SPOOL:
            head["features"], content["body"] = self._opening.features, self._body
        content["head"] = ConfigRecord(dict(head))
        patience = max(self._rules.wait, self._rules.timeout)
        message = Message(content, node, f"query.{HELLO}", ttl=patience)
        guest.identity, guest.asked = next(iter(self._grid.push_messages([message])), None), time.monotonic()

    def listen(self) -> bool:
        """Take in who has answered, and say whether anybody has; one at a time where answers may be large."""
        asked = {guest.identity: node for node, guest in self.guests.items() if guest.identity is not None}
        heard = False
        for identities in [[identity] for identity in asked] if self._opening else [list(asked)] if asked else []:
            for reply in self._grid.pull_messages(identities):
                node = asked[reply.metadata.reply_to_message_id]
                self.guests[node].identity, heard = None, True
                self._hear(node, self.guests[node], reply)
        for guest in self.guests.values() if self._opening else ():
            if guest.identity is not None and time.monotonic() - guest.asked >= self._rules.timeout:
                guest.identity, guest.early = None, Failure(f"no answer within {self._rules.timeout:g} s")
        return heard

    def _hear(self, node: int, guest: _Guest, reply: Message) -> None:
        guest.reason = _failure(reply, self._rules.timeout)
        if guest.reason and reply.has_error() and self._opening:
            guest.early, guest.reason = Failure(guest.reason), ""
        elif guest.reason:
            failure = None if reply.has_error() else reply.content.config_records.get("failure")
            if failure:
                guest.name, guest.version = str(failure.get("client", "")), str(failure.get("version", ""))
        else:
            try:
                head = reply.content.config_records["head"]
                guest.description = from_text(Description, str(head["description"]))
            except (KeyError, DataError) as error:
                guest.reason = f"its hello cannot be read: {error}"
                return
            guest.name, guest.version = guest.description.name, guest.description.version
            if "failed" in head:
                guest.early = Failure(str(head["failed"]))
            elif self._opening and "assumed" in head:
                path = self._opening.folder / f"{node}.safetensors"
                guest.early = self._keep(path, str(head["assumed"]), reply.content)

    def _keep(self, path: Path, assumed: str, content: RecordDict) -> Early | Failure:
        """Put an early answer aside."""
        try:
            data = _unpacked(content)
        except DataError as error:
            return Failure(str(error))
        path.write_bytes(data)
        self._largest, self._kept = max(self._largest, len(data)), self._kept + len(data)
        return Early(assumed, path)


def _named(guests: Mapping[int, _Guest], rules: Rules) -> dict[str, tuple[int, Description]]:
    """The expected sites that answered, by name."""
    found: dict[str, tuple[int, Description]] = {}
    for node, guest in sorted(guests.items()):
        if rules.sites and guest.name not in rules.sites:
            continue
        if guest.version != VERSION:
            reason = guest.reason or f"it has fedsolve {guest.version}, the server {VERSION}"
            raise DataError(f"site {guest.name!r} is refused: {reason}")
        if guest.description is None:
            continue
        if guest.name in rules.keys and guest.key != rules.keys[guest.name].strip():
            raise DataError(f"a node with another key says that it is site {guest.name!r}; it is refused")
        if guest.name in found:
            raise DataError(f"two nodes say that they are site {guest.name!r}; give each site a name of its own")
        found[guest.name] = (node, guest.description)
    return found


def serve(
    grid: Grid,
    job: Job,
    rules: Rules,
    say: Say,
    progress: Progress | None = None,
    *,
    scratch: Path | None = None,
    keeping: Keeping | None = None,
) -> tuple[Outcome, Task, Method]:
    """The whole server side: meet the sites, agree on the task, run the method on whoever stays.

    Early answers wait below `scratch`; without it there are none. `keeping` says who is told of each reply.
    """
    with ExitStack() as stack:
        method, opening = job.create(), None
        if scratch is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".fedsolve-", dir=scratch))
            opening = Opening.of(method, job, rules, Path(folder))
        nodes, descriptions, early = meet(grid, job, rules, say, opening)
        task = agree(descriptions, job)
        samples = sum(site.samples for site in descriptions.values())
        say(f"{len(descriptions)} sites agree: {samples} samples, {task.classes} classes, features {task.described}")
        if method.rounds > 1:
            say(f"{method.rounds} rounds; each starts a new process at every site, which takes seconds")
        keep = stack.enter_context(keeping(method, task)) if keeping else None
        outcome = drive(
            method,
            task,
            FlowerTransport(grid, nodes, job, task, rules.timeout, early),
            seed=job.seed,
            participation=rules.participation,
            tolerate=True,
            min_clients=min(rules.min_clients, len(rules.sites or nodes)),
            progress=progress,
            evaluate_every=rules.evaluate_every or method.rounds,
            on_reply=partial(_examined, keep),
        )
        for name, reason in sorted(outcome.failed.items()):
            say(f"left out: {name}: {reason}")
    return outcome, task, method


def _examined(on_reply: Keep | None, client: str, reply: Arrays) -> None:
    """Refuse moments that no samples have; sums of anything else are the method's affair."""
    if Moments.are(reply):
        Moments.from_arrays(reply).factor()
    if on_reply:
        on_reply(client, reply)


def make_server_app(act: Callable[[Grid, Context], None]) -> ServerApp:
    """The server app; `act` is what it does."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        act(grid, context)

    return app


def deployed(keeps: Callable[[Mapping[str, Any], Job], Keeping | None], grid: Grid, context: Context) -> None:
    """A run of a deployment: settings come as texts, the result goes to a folder, its end is told in a small file.

    `keeps` says who is told of the replies under such settings.
    """
    config = context.run_config
    status = Path(str(config["status"]))
    try:
        job = Job(**json.loads(str(config["job"])))
        found = json.loads(str(config["rules"]))
        rules = Rules(**{**found, "sites": tuple(found["sites"])})
        started = time.perf_counter()
        out = Path(str(config["out"]))
        out.parent.mkdir(parents=True, exist_ok=True)
        keeping = keeps(config, job)
        outcome, task, method = serve(grid, job, rules, _log.info, _reporter(), scratch=out.parent, keeping=keeping)
        result = _result(outcome, task, method, job, rules, time.perf_counter() - started)
        result.save(out)
        told = {"out": str(out)}
    except FedsolveError as error:
        _log.error("fedsolve: %s", error)
        told = {"error": str(error)}
    except (OSError, ArithmeticError) as error:
        told = {"error": f"{type(error).__name__}: {error}"}
    codec.write_bytes(status, json.dumps(told).encode())


def _reporter() -> Progress:
    """A line whenever a tenth more is done."""
    last = ""

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        line = f"{what}: {done} of {total}"
        if line != last and (done == total or done % max(1, total // 10) == 0):
            last = line
            _log.info(line)

    return report


def _result(outcome: Outcome, task: Task, method: Method, job: Job, rules: Rules, seconds: float) -> Result:
    """What the server knows: figures, the global model and its state. Personal models stay at the sites."""
    settings = {
        **asdict(job),
        "set": parameters.values(method),
        "rounds": method.rounds,
        "runtime": "flower",
        **{item.name: getattr(rules, item.name) for item in fields(rules) if item.name != "keys"},
    }
    return Result(
        method=method.name,
        settings=settings,
        clients=outcome.clients,
        history=outcome.history,
        seconds=Seconds(**outcome.seconds, total=seconds),
        data={"name": "sites", "fingerprint": "", "left_out": dict(outcome.failed)},
        models={},
        shared=Model(method, task, outcome.shared, "global") if outcome.shared else None,
        state=outcome.state,
    )


# --- everything on one machine ---


def split_site(load: Callable[[], Federation], state: Path, context: Context) -> Site:
    """The site of a simulated node: the client of that number in a federation that every process makes for itself."""
    federation = load()
    name = sorted(federation.clients)[int(context.node_config["partition-id"])]
    return SplitSite(name, federation, state)


def simulate(
    job: Job,
    load: Callable[[], Federation],
    *,
    participation: float = 1.0,
    evaluate_every: int = 1,
    progress: Progress | None = None,
    on_reply: Keep | None = None,
    engine: Callable[[ServerApp, ClientApp, int], None] | None = None,
) -> Result:
    """A method on a federation through Flower's apps, on its simulation engine: worker processes of Ray.

    `load` makes the federation; each worker calls it once. `on_reply` is called with each client and its reply.
    `engine` runs the two apps with that many nodes.
    """
    started = time.perf_counter()
    federation = load()
    names = tuple(sorted(federation.clients))
    rules = Rules(names, len(names), 600.0, 3600.0, participation, evaluate_every)
    found: list[tuple[Outcome, Task, Method]] = []
    errors: list[FedsolveError] = []

    def act(grid: Grid, context: Context) -> None:
        try:
            keeping = (lambda method, task: nullcontext(on_reply)) if on_reply else None
            found.append(serve(grid, job, rules, lambda line: None, progress, keeping=keeping))
        except FedsolveError as error:
            errors.append(error)

    with tempfile.TemporaryDirectory(prefix="fedsolve-") as folder:
        state = Path(folder)
        (engine or _ray)(make_server_app(act), make_client_app(partial(split_site, load, state)), len(names))
        if errors:
            raise errors[0]
        if not found:
            raise DataError("Flower's simulation engine ended before the run did; its log says why")
        outcome, task, method = found[0]
        models = {}
        for name in outcome.clients:
            arrays, _ = codec.read_file(state / "models" / f"{name}.safetensors")
            models[name] = Model(method, task, arrays, name)
    for name, reason in outcome.failed.items():
        raise DataError(f"client {name!r}: {reason}")
    result = _result(outcome, task, method, job, rules, time.perf_counter() - started)
    return replace(result, models=models, data={"name": federation.name, "fingerprint": federation.fingerprint})


def _ray(server: ServerApp, client: ClientApp, nodes: int) -> None:
    from flwr.simulation import run_simulation

    before = _log.level
    _log.setLevel(logging.ERROR)  # it tells much, and that run_simulation is old; `flwr run` needs a SuperLink
    try:
        quiet = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
        config: dict[str, Any] = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": min(cores(), nodes), **quiet},
        }
        run_simulation(server, client, nodes, backend_config=config)
    finally:
        _log.setLevel(before)
