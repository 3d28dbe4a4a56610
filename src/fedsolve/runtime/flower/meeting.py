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
from fedsolve.errors import DataError, plain
from fedsolve.method import Method, Server
from fedsolve.rng import derive
from fedsolve.runtime.flower.messages import HELLO, failure, packed, unpacked
from fedsolve.runtime.flower.transport import POLL, WINDOW, Early, window
from fedsolve.runtime.inbox import Failure
from fedsolve.runtime.job import VERSION, Description, Job, Rules, from_text, to_text

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
        keys = bool(rules.expected) and all(name in rules.keys for name in rules.expected)
        if method.rounds > 1 or not keys or rules.participation != 1.0:
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
        return method.message(
            method.init_server(Server(task, 0, derive(job.seed, "server"))), rules.expected[0], "update"
        )
    except Exception:  # noqa: BLE001  (a network of the user's own may refuse such inputs with any error)
        return None


class Present(NamedTuple):
    """Who is there when a run starts."""

    nodes: dict[str, int]  # the node of each site
    descriptions: dict[str, Description]  # who failed at an opening has none
    early: dict[str, Early | Failure]  # what came of an opening
    left_out: dict[str, str]  # expected sites that are not there or were refused, and nodes that were, and why


def meet(grid: Grid, job: Job, rules: Rules, say: Say, opening: Opening | None = None) -> Present:
    """Ask every node for its name and its data until all expected sites are there, or until the time is over.

    Nodes that are not expected are left alone. A site with another version of fedsolve, a node with another key than
    the site whose name it gives, and all of several nodes with one name are refused, and the others meet without them.
    With an `opening`, sites are asked the first request in the same message; who fails at that is there, but without a
    description.
    """
    started, last, pause = time.monotonic(), "", POLL[0]
    greeter = _Greeter(grid, job, rules, opening)
    guests, expected = greeter.guests, rules.expected
    least = min(rules.min_clients, len(expected)) if expected else rules.min_clients
    while True:
        now = time.monotonic()
        greeter.ask({node.node_id: node.public_key.decode(errors="replace").strip() for node in grid.get_nodes()})
        heard = greeter.listen()
        described, refused = _by_name(guests, rules)
        nodes = {name: node for name, (node, _) in described.items()}
        nodes |= {guest.name: node for node, guest in guests.items() if guest.early and not guest.description}
        waiting = any(guest.identity is not None or not guest.asked for guest in guests.values())
        missing = [name for name in expected if name not in nodes and name not in refused]
        over = now - started >= rules.wait and not (opening and waiting)
        if (not missing and not waiting and (len(nodes) >= least or (expected and refused))) or over:
            break
        line = f"{len(nodes)} sites are there" + (f", waiting for {', '.join(missing)}" if missing else "")
        if line != last:
            say(line)
            last = line
        # Each look costs the SuperLink one request per node, so looks get rarer while nobody answers.
        pause = POLL[0] if heard else min(1.5 * pause, POLL[1])
        time.sleep(pause)
    owners = _owners(rules)
    whys = {owners.get(guest.key, guest.name) or f"node {node}": guest.why() for node, guest in guests.items()}
    failures = {plain(name): plain(reason) for name, reason in (whys | refused).items() if reason}
    reasons = "".join(f"; {name}: {reason}" for name, reason in sorted(failures.items()))
    if len(nodes) < max(1, least) or not described:
        number = f"{len(expected)} expected" if expected else f"{least} needed"
        absent = f", without {', '.join(missing)}" if missing else ""
        raise DataError(f"{len(described)} of {number} sites are there after {now - started:.0f} s{absent}{reasons}")
    if missing:
        say(f"starting without {', '.join(missing)}{reasons}")
    early = {name: answer for name, node in nodes.items() if (answer := guests[node].early)}
    left_out = {name: failures.get(name, f"it was not there within {rules.wait:g} s") for name in missing}
    left_out |= {plain(name): plain(reason) for name, reason in refused.items()}
    return Present(nodes, {name: description for name, (_, description) in described.items()}, early, left_out)


@dataclass
class _Guest:
    """A node that was asked for its name."""

    key: str
    identity: str | None = None  # of the question
    description: Description | None = None
    name: str = ""  # as it says, or as its key says
    reason: str = ""  # why it could not answer
    final: bool = False  # whether it would say so again: its own rules forbid it
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
        self._names = {key: name for key, name in _owners(rules).items() if name in rules.expected}
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
            busy = guest.description or guest.early or guest.identity is not None or guest.final
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
        """Take in what a node says; whatever goes wrong with that is the node's fault, and no reason to stop."""
        try:
            self._read(node, guest, reply)
        except Exception as error:  # noqa: BLE001  (it can say anything)
            guest.description, guest.early = None, None
            guest.reason = f"its hello cannot be read: {type(error).__name__}: {error}"

    def _read(self, node: int, guest: _Guest, reply: Message) -> None:
        guest.reason = failure(reply, self._rules.timeout)
        if guest.reason and reply.has_error() and self._opening:
            guest.early, guest.reason = Failure(guest.reason), ""
        elif guest.reason:
            record = None if reply.has_error() else reply.content.config_records.get("failure")
            if record:
                guest.name, guest.version = str(record.get("client", "")), str(record.get("version", ""))
                guest.final = record.get("final") is True
        else:
            head = reply.content.config_records["head"]
            description: Description = from_text(Description, str(head["description"]))
            guest.name, guest.version = description.name, description.version
            if "failed" in head:
                guest.early = Failure(str(head["failed"]))
            elif self._opening and "assumed" in head:
                path = self._opening.folder / f"{node}.safetensors"
                guest.early = self._keep(path, str(head["assumed"]), reply.content)
            guest.description = description

    def _keep(self, path: Path, assumed: str, content: RecordDict) -> Early | Failure:
        """Put an early answer aside."""
        try:
            data = unpacked(content)
        except DataError as error:
            return Failure(str(error))
        path.write_bytes(data)
        self._largest, self._kept = max(self._largest, len(data)), self._kept + len(data)
        return Early(assumed, path)


def _owners(rules: Rules) -> dict[str, str]:
    """Whose each key is."""
    return {key.strip(): name for name, key in rules.keys.items()}


def _by_name(guests: Mapping[int, _Guest], rules: Rules) -> tuple[dict[str, tuple[int, Description]], dict[str, str]]:
    """The expected sites that answered, node and description of each name; and who is refused, and why.

    Where sites have keys, a node is the site whose key it has, whatever it says. One without such a key that gives a
    site's name is refused by its number, and costs that site nothing.
    """
    owners = _owners(rules)
    sites: dict[str, tuple[int, Description]] = {}
    refused: dict[str, str] = {}
    for node, guest in sorted(guests.items()):
        name = owners.get(guest.key, guest.name)
        if name in rules.exclude or (rules.sites and name not in rules.sites):
            continue
        if name in rules.keys and guest.key not in owners:
            refused[f"node {node}"] = f"it has another key than site {name!r}, and says that it is that site"
        elif guest.version != VERSION:
            refused[name] = guest.reason or f"it has fedsolve {guest.version}, the server {VERSION}"
        elif guest.description is None:
            if guest.final and name:
                refused[name] = guest.reason
        elif guest.name != name:
            refused[name] = f"its node says that it is site {guest.name!r}"
        elif name in sites:
            refused[name] = f"two nodes say that they are site {name!r}; give each site a name of its own"
        else:
            sites[name] = (node, guest.description)
    return {name: site for name, site in sites.items() if name not in refused}, refused
