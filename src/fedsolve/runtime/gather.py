"""Between the loop and the transport: how the replies of a round are gathered.

`Plain` puts every reply into the inbox as it is. Another gathering may run phases of its own over the same transport,
for sums that nobody but all together can open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fedsolve.codec import Bytes
from fedsolve.progress import Tick
from fedsolve.runtime.inbox import Inbox, Replies


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


class Gathering(Protocol):
    """How the replies to an update reach the inbox."""

    def gather(self, transport: Transport, requests: Iterable[tuple[str, Bytes]], replies: Replies, tick: Tick) -> None:
        """Ask the clients over the transport, and put what they reply into the inbox, or the sum of it."""
        ...


class Plain:
    """The server sees every client's reply, and adds them up itself."""

    def gather(self, transport: Transport, requests: Iterable[tuple[str, Bytes]], replies: Replies, tick: Tick) -> None:
        """One question and one answer per client."""
        transport.ask(requests, replies, tick)
