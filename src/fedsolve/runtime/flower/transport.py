"""The round loop's way to sites behind a Flower grid, with a bound on what is in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.codec import Bytes
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.progress import Tick
from fedsolve.runtime.flower.messages import REQUEST, failure, packed, unpacked
from fedsolve.runtime.inbox import Failure, Inbox
from fedsolve.runtime.job import Job, shared_text, to_text
from fedsolve.runtime.sites import assumption, terms

IN_FLIGHT = 256_000_000  # bytes that may lie at the SuperLink at once, about
WINDOW = (4, 64)  # messages in flight, at least and at most, whatever their size
POLL = (0.05, 1.0)  # seconds between two looks for an answer, at first and at most
GRACE = 600.0  # seconds that an answer is kept beyond its time, until its turn to be folded


def window(largest: int) -> int:
    """How many messages may be in flight, by the bytes of the largest.

    >>> window(1_000), window(10_000_000), window(10**9)
    (64, 25, 4)
    """
    low, high = WINDOW
    return max(low, min(high, IN_FLIGHT // max(largest, 1)))


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

    @property
    def terms(self) -> str:
        """The digest of what all sites are told beside requests."""
        return terms(self._head["job"], self._head["task"])

    def clients(self) -> Sequence[str]:
        """All that agreed; who is gone by now fails when asked."""
        return sorted(self._nodes)

    def ask(self, requests: Iterable[tuple[str, Bytes]], inbox: Inbox, tick: Tick) -> None:
        """Push within a window, pull in order, fold and drop."""
        connected = set(self._grid.get_node_ids())
        flight: deque[_Sent] = deque()
        done = 0

        def settle() -> None:
            nonlocal done
            sent = flight.popleft()
            inbox.put(sent.client, self._wait(sent))
            tick(done := done + 1)

        for client, data in requests:
            while len(flight) >= window(max(self._largest, len(data))):
                settle()
            flight.append(self._send(client, data, connected))
        self._last = None
        while flight:
            settle()
        self._early.clear()

    def _send(self, client: str, data: Bytes, connected: set[int]) -> _Sent:
        deadline = time.monotonic() + self._timeout
        early = self._early.pop(client, None)
        if isinstance(early, Failure) or (early and early.assumed == assumption(self._head["task"], data)):
            return _Sent(client, None, deadline, early)
        if self._nodes[client] not in connected:
            return _Sent(client, None, deadline)
        if self._last is None or self._last[0] is not data:
            self._last = (data, packed(data))  # once for all that are sent the same
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
        try:
            reason = failure(reply, self._timeout)
            if reason:
                return Failure(reason)
            data = unpacked(reply.content)
        except DataError as error:
            return Failure(str(error))
        except Exception as error:  # noqa: BLE001  (a site can put anything into a message; it is its own fault)
            return Failure(f"its answer cannot be read: {type(error).__name__}: {error}")
        self._largest = max(self._largest if self._measured else 0, len(data))
        self._measured = True
        return data
