"""The round loop over Flower: a transport on a `Grid`, and the two apps. The only module that imports flwr.

Two kinds of message: "query.hello", to which a site answers with its name and what its data look like, and
"query.request", which carries a `loop.Request` and the terms that all sites agreed on. Nothing else is kept between
messages: Flower starts a new process for each.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsolve import codec, parameters
from fedsolve.codec import Bytes
from fedsolve.data.federation import Federation, Task
from fedsolve.errors import DataError, FedsolveError
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.result import Result, Seconds
from fedsolve.runtime.inprocess import cores
from fedsolve.runtime.loop import Failure, Inbox, Outcome, Progress, Tick, drive
from fedsolve.runtime.sites import (
    VERSION,
    Description,
    FileSite,
    Job,
    Rules,
    Site,
    SplitSite,
    Terms,
    agree,
    forget,
    from_text,
    respond,
    to_text,
)

HELLO, REQUEST = "hello", "request"
IN_FLIGHT = 256_000_000  # bytes that may lie at the SuperLink at once, about
WINDOW = (4, 64)  # messages in flight, at least and at most, whatever their size
POLL = (0.05, 1.0)  # seconds between two looks for an answer, at first and at most
GRACE = 600.0  # seconds that an answer is kept beyond its time, until its turn to be folded
AGAIN = 10.0  # seconds before a site that failed to say hello is asked once more
Say = Callable[[str], None]

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
        return _answered(message, context, lambda: _describe(find(context), message))

    @app.query(REQUEST)
    def request(message: Message, context: Context) -> Message:
        return _answered(message, context, lambda: _respond(find(context), message, context))

    return app


def _describe(site: Site, message: Message) -> RecordDict:
    head = message.content.config_records["head"]
    version = str(head.get("version"))
    if version != VERSION:  # the rest of the message may be of another shape
        raise DataError(f"it has fedsolve {VERSION}, the server {version}; install the same everywhere")
    forget(site)
    description = site.describe(from_text(Job, str(head["job"])))
    return RecordDict({"head": ConfigRecord({"description": to_text(description)})})


def _respond(site: Site, message: Message, context: Context) -> RecordDict:
    head = message.content.config_records["head"]
    job, terms = from_text(Job, str(head["job"])), from_text(Terms, str(head["terms"]))
    data = _unpacked(message.content)
    return RecordDict({"body": _packed(respond(site, job, terms, data, f"{context.run_id:x}"))})


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
class _Sent:
    """A message on its way; no identity means that it could not be sent."""

    client: str
    identity: str | None
    deadline: float


class FlowerTransport:
    """A transport to the sites behind a grid.

    Answers are folded in the order of the requests, so that sums have the same bits whoever is faster. What waits for
    its turn lies at the SuperLink, so the window bounds its memory; the server holds one answer at a time.
    """

    def __init__(self, grid: Grid, nodes: Mapping[str, int], job: Job, terms: Terms, task: Task, timeout: float):
        self._grid, self._nodes, self._timeout = grid, dict(nodes), timeout
        self._head = {"job": to_text(job), "terms": to_text(terms)}
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

    def _window(self, request: int) -> int:
        low, high = WINDOW
        return max(low, min(high, IN_FLIGHT // max(self._largest, request, 1)))

    def _send(self, client: str, data: Bytes, there: set[int]) -> _Sent:
        deadline = time.monotonic() + self._timeout
        if self._nodes[client] not in there:
            return _Sent(client, None, deadline)
        if self._last is None or self._last[0] is not data:
            self._last = (data, _packed(data))  # once for all that are sent the same
        content = RecordDict({"head": ConfigRecord(dict(self._head)), "body": self._last[1]})
        # An answer may have to wait for its turn behind one that never comes: at most as long as it may take itself.
        message = Message(content, self._nodes[client], f"query.{REQUEST}", ttl=self._timeout + GRACE)
        return _Sent(client, next(iter(self._grid.push_messages([message])), None), deadline)

    def _wait(self, sent: _Sent) -> Bytes | Failure:
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

    identity: str | None = None  # of the question
    description: Description | None = None
    name: str = ""
    reason: str = ""  # why it could not answer
    version: str = VERSION
    asked: float = 0.0


def meet(grid: Grid, job: Job, rules: Rules, say: Say) -> tuple[dict[str, int], dict[str, Description]]:
    """Ask every node for its name and its data until all expected sites are there, or until the time is over.

    Nodes that are not expected are left alone. Two nodes with one name, another version of fedsolve, or another key
    than the site's own stop the run.
    """
    started, told = time.monotonic(), ""
    guests: dict[int, _Guest] = {}
    least = min(rules.min_clients, len(rules.sites)) if rules.sites else rules.min_clients
    while True:
        now = time.monotonic()
        keys = {node.node_id: node.public_key for node in grid.get_nodes()}
        for node in set(guests) - set(keys):
            del guests[node]  # it left before it answered
        for node in keys:
            guest = guests.setdefault(node, _Guest())
            if guest.identity is None and not guest.description and (not guest.asked or now - guest.asked > AGAIN):
                _greet(grid, node, guest, job, rules)
        _listen(grid, guests)
        found = _named(guests, keys, rules)
        waiting = [guest for guest in guests.values() if guest.identity is not None]
        missing = [name for name in rules.sites if name not in found]
        over = now - started >= rules.wait
        if (not missing and not waiting and len(found) >= least) or over:
            break
        line = f"{len(found)} sites are there" + (f", waiting for {', '.join(missing)}" if missing else "")
        if line != told:
            say(line)
            told = line
        time.sleep(POLL[1] if missing else POLL[0])
    failed = {guest.name or f"node {node}": guest.reason for node, guest in guests.items() if guest.reason}
    reasons = "".join(f"; {name}: {reason}" for name, reason in sorted(failed.items()))
    if len(found) < max(1, least):
        wanted = f"{len(rules.sites)} expected" if rules.sites else f"{least} needed"
        absent = f", without {', '.join(missing)}" if missing else ""
        raise DataError(f"{len(found)} of {wanted} sites are there after {now - started:.0f} s{absent}{reasons}")
    if missing:
        say(f"starting without {', '.join(missing)}{reasons}")
    return {name: node for name, (node, _) in found.items()}, {name: told for name, (_, told) in found.items()}


def _greet(grid: Grid, node: int, guest: _Guest, job: Job, rules: Rules) -> None:
    head = ConfigRecord({"version": VERSION, "job": to_text(job)})
    message = Message(RecordDict({"head": head}), node, f"query.{HELLO}", ttl=max(rules.wait, rules.timeout))
    guest.identity, guest.asked = next(iter(grid.push_messages([message])), None), time.monotonic()


def _listen(grid: Grid, guests: Mapping[int, _Guest]) -> None:
    open_questions = {guest.identity: guest for guest in guests.values() if guest.identity is not None}
    if not open_questions:
        return
    for reply in grid.pull_messages(list(open_questions)):
        guest = open_questions[reply.metadata.reply_to_message_id]
        guest.identity, guest.reason = None, _failure(reply, 0)
        if guest.reason:
            failure = None if reply.has_error() else reply.content.config_records.get("failure")
            if failure:
                guest.name, guest.version = str(failure.get("client", "")), str(failure.get("version", ""))
            continue
        try:
            guest.description = from_text(Description, str(reply.content.config_records["head"]["description"]))
            guest.name, guest.version = guest.description.name, guest.description.version
        except (KeyError, DataError) as error:
            guest.reason = f"its hello cannot be read: {error}"


def _named(guests: Mapping[int, _Guest], keys: Mapping[int, bytes], rules: Rules) -> dict[str, tuple[int, Description]]:
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
        if guest.name in rules.keys and keys[node].decode(errors="replace").strip() != rules.keys[guest.name].strip():
            raise DataError(f"a node with another key says that it is site {guest.name!r}; it is refused")
        if guest.name in found:
            raise DataError(f"two nodes say that they are site {guest.name!r}; give each site a name of its own")
        found[guest.name] = (node, guest.description)
    return found


def serve(
    grid: Grid, job: Job, rules: Rules, say: Say, progress: Progress | None = None
) -> tuple[Outcome, Task, Method]:
    """The whole server side: meet the sites, agree on the task, run the method on whoever stays."""
    method = job.create()
    nodes, descriptions = meet(grid, job, rules, say)
    task, terms = agree(descriptions, job)
    samples = sum(site.samples for site in descriptions.values())
    say(f"{len(nodes)} sites agree: {samples} samples, {task.classes} classes, features {task.described}")
    if method.rounds > 1:
        say(f"{method.rounds} rounds; each starts a new process at every site, which takes seconds")
    outcome = drive(
        method,
        task,
        FlowerTransport(grid, nodes, job, terms, task, rules.timeout),
        seed=job.seed,
        participation=rules.participation,
        tolerate=True,
        min_clients=min(rules.min_clients, len(nodes)) if not rules.sites else min(rules.min_clients, len(rules.sites)),
        progress=progress,
        evaluate_every=rules.evaluate_every or method.rounds,
    )
    for name, reason in sorted(outcome.failed.items()):
        say(f"left out: {name}: {reason}")
    return outcome, task, method


def make_server_app(act: Callable[[Grid, Context], None] | None = None) -> ServerApp:
    """The server app. By default the run's configuration says what to do, and the result is written to a folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        (act or _deployed)(grid, context)

    return app


def _deployed(grid: Grid, context: Context) -> None:
    """A run of a deployment: settings come as texts, the result goes to a folder, its end is told in a small file."""
    config = context.run_config
    status = Path(str(config["status"]))
    try:
        job = Job(**json.loads(str(config["job"])))
        found = json.loads(str(config["rules"]))
        rules = Rules(**{**found, "sites": tuple(found["sites"])})
        started = time.perf_counter()
        outcome, task, method = serve(grid, job, rules, _log.info, _reporter())
        result = _result(outcome, task, method, job, rules, time.perf_counter() - started)
        result.save(str(config["out"]))
        told = {"out": str(config["out"])}
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
    engine: Callable[[ServerApp, ClientApp, int], None] | None = None,
) -> Result:
    """A method on a federation through Flower's apps, on its simulation engine: worker processes of Ray.

    `load` makes the federation; each worker calls it once. `engine` runs the two apps with that many nodes.
    """
    started = time.perf_counter()
    federation = load()
    names = tuple(sorted(federation.clients))
    rules = Rules(names, len(names), 600.0, 3600.0, participation, evaluate_every)
    found: list[tuple[Outcome, Task, Method]] = []
    errors: list[FedsolveError] = []

    def act(grid: Grid, context: Context) -> None:
        try:
            found.append(serve(grid, job, rules, lambda line: None, progress))
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
