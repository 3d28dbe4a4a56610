"""The start of a run: every node is asked who it is and what its data look like, until all expected sites are there.

Flower starts a new process for each message, which takes seconds. Hence the hello of a method with one round carries
its first message, and a site answers the first request with it, as if all sites had data like its own. Where that turns
out to be so, the answer counts; where not, the site is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsolve import codec
from fedsolve.arrays import Arrays, same
from fedsolve.data.task import Classes, Task
from fedsolve.errors import DataError
from fedsolve.method import Method, Server
from fedsolve.rng import derive
from fedsolve.runtime.flower.messages import HELLO, failure, packed, unpacked
from fedsolve.runtime.flower.transport import POLL, WINDOW, Early, window
from fedsolve.runtime.inbox import Failure
from fedsolve.runtime.sites import VERSION, Description, Job, Rules, from_text, to_text

SPOOL = 4_000_000_000  # bytes of early answers that may wait on the server's disk
AGAIN = 10.0  # seconds before a site that failed to say hello is asked once more
Say = Callable[[str], None]


@dataclass(frozen=True)
class Opening:
    """A first request that travels with the hello, to nodes that are known by their keys."""

    message: Arrays
    features: str  # the identity of the server's feature map
    folder: Path  # where early answers wait

    @classmethod
    def of(cls, method: Method, job: Job, rules: Rules, folder: Path) -> Opening | None:
        """Where the method has one round, begins with the same message whatever the task, and all sites have keys."""
        keys = bool(rules.sites) and all(name in rules.keys for name in rules.sites)
        if method.rounds > 1 or not keys or rules.participation < 1:
            return None
        first, second = (
            _first_message(method, task, job, rules) for task in (Task(Classes(2), (3,)), Task(Classes(3), (5,)))
        )
        if first is None or second is None or not same(first, second):
            return None
        return cls(first, job.identity, folder)


def _first_message(method: Method, task: Task, job: Job, rules: Rules) -> Arrays | None:
    """What a method sends first under a task; nothing where it takes no such task."""
    try:
        return method.message(method.init_server(Server(task, 0, derive(job.seed, "server"))), rules.sites[0], "update")
    except Exception:  # noqa: BLE001  (a network of the user's own may refuse such inputs with any error)
        return None


class Present(NamedTuple):
    """Who is there when a run starts."""

    nodes: dict[str, int]  # the node of each site
    descriptions: dict[str, Description]  # who failed at an opening has none
    early: dict[str, Early | Failure]  # what came of an opening


def meet(grid: Grid, job: Job, rules: Rules, say: Say, opening: Opening | None = None) -> Present:
    """Ask every node for its name and its data until all expected sites are there, or until the time is over.

    Nodes that are not expected are left alone. Two nodes with one name, another version of fedsolve, or another key
    than the site's own stop the run. With an `opening`, sites are asked the first request in the same message; who
    fails at that is there, but without a description.
    """
    started, last, pause = time.monotonic(), "", POLL[0]
    greeter = _Greeter(grid, job, rules, opening)
    guests = greeter.guests
    least = min(rules.min_clients, len(rules.sites)) if rules.sites else rules.min_clients
    while True:
        now = time.monotonic()
        greeter.ask({node.node_id: node.public_key.decode(errors="replace").strip() for node in grid.get_nodes()})
        heard = greeter.listen()
        described = _by_name(guests, rules)
        nodes = {name: node for name, (node, _) in described.items()}
        nodes |= {guest.name: node for node, guest in guests.items() if guest.early and not guest.description}
        waiting = any(guest.identity is not None or not guest.asked for guest in guests.values())
        missing = [name for name in rules.sites if name not in nodes]
        over = now - started >= rules.wait and not (opening and waiting)
        if (not missing and not waiting and len(nodes) >= least) or over:
            break
        line = f"{len(nodes)} sites are there" + (f", waiting for {', '.join(missing)}" if missing else "")
        if line != last:
            say(line)
            last = line
        # Each look costs the SuperLink one request per node, so looks get rarer while nobody answers.
        pause = POLL[0] if heard else min(1.5 * pause, POLL[1])
        time.sleep(pause)
    failures = {guest.name or f"node {node}": guest.why() for node, guest in guests.items() if guest.why()}
    reasons = "".join(f"; {name}: {reason}" for name, reason in sorted(failures.items()))
    if len(nodes) < max(1, least) or not described:
        number = f"{len(rules.sites)} expected" if rules.sites else f"{least} needed"
        absent = f", without {', '.join(missing)}" if missing else ""
        raise DataError(f"{len(described)} of {number} sites are there after {now - started:.0f} s{absent}{reasons}")
    if missing:
        say(f"starting without {', '.join(missing)}{reasons}")
    early = {name: answer for name, node in nodes.items() if (answer := guests[node].early)}
    return Present(nodes, {name: description for name, (_, description) in described.items()}, early)


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


class _Greeter:
    """Nodes on their way in: whom to ask when, and what they said."""

    def __init__(self, grid: Grid, job: Job, rules: Rules, opening: Opening | None) -> None:
        self.guests: dict[int, _Guest] = {}
        self._names = {key.strip(): name for name, key in rules.keys.items() if name in rules.sites}
        self._grid, self._rules, self._opening = grid, rules, opening
        self._head = {"version": VERSION, "job": to_text(job)}
        self._body = packed(codec.encode(opening.message)) if opening else None
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
            busy = guest.description or guest.early or guest.identity is not None
            if busy or (guest.asked and time.monotonic() - guest.asked <= AGAIN):
                continue
            flight = sum(guest.identity is not None for guest in self.guests.values())
            if self._opening and flight >= (window(self._largest) if self._largest else WINDOW[0]):
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
        guest.reason = failure(reply, self._rules.timeout)
        if guest.reason and reply.has_error() and self._opening:
            guest.early, guest.reason = Failure(guest.reason), ""
        elif guest.reason:
            record = None if reply.has_error() else reply.content.config_records.get("failure")
            if record:
                guest.name, guest.version = str(record.get("client", "")), str(record.get("version", ""))
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
            data = unpacked(content)
        except DataError as error:
            return Failure(str(error))
        path.write_bytes(data)
        self._largest, self._kept = max(self._largest, len(data)), self._kept + len(data)
        return Early(assumed, path)


def _by_name(guests: Mapping[int, _Guest], rules: Rules) -> dict[str, tuple[int, Description]]:
    """The expected sites that answered: node and description of each name."""
    sites: dict[str, tuple[int, Description]] = {}
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
        if guest.name in sites:
            raise DataError(f"two nodes say that they are site {guest.name!r}; give each site a name of its own")
        sites[guest.name] = (node, guest.description)
    return sites
