"""Between the loop and the transport: how the replies of a round are gathered.

`Plain` puts every reply into the inbox as it is. `Secure` runs three phases over the same transport, and puts in the
sum of the replies, which nobody saw one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from fedsolve.codec import Bytes
from fedsolve.errors import DataError, ParameterError
from fedsolve.parameters import whole
from fedsolve.privacy.fixed import FRACTION, LARGEST_FRACTION
from fedsolve.privacy.graph import LEAST
from fedsolve.progress import Tick
from fedsolve.result import PLAIN
from fedsolve.runtime.inbox import Inbox, Replies, SumWitness, Tallies
from fedsolve.runtime.turnout import Participation

if TYPE_CHECKING:
    from fedsolve.privacy.keys import Peer
    from fedsolve.runtime.phases import Sum


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
    """How the replies to an update reach the inbox, and the figures of an evaluation."""

    def check(self, participation: Participation) -> None:
        """Refuse a run that replies cannot be gathered for in this way."""
        ...

    def gather(self, transport: Transport, requests: Iterable[tuple[str, Bytes]], replies: Replies, tick: Tick) -> None:
        """Ask the clients over the transport, and put what they reply into the inbox, or the sum of it."""
        ...

    def evaluate(
        self, transport: Transport, requests: Iterable[tuple[str, Bytes]], tallies: Tallies, tick: Tick
    ) -> None:
        """The same for figures on the clients' test samples."""
        ...

    def words(self) -> dict[str, Any]:
        """What a result says of it, under "privacy"."""
        ...


class Plain:
    """The server sees every client's reply, and adds them up itself."""

    def check(self, participation: Participation) -> None:
        """Nothing is refused."""

    def gather(self, transport: Transport, requests: Iterable[tuple[str, Bytes]], replies: Replies, tick: Tick) -> None:
        """One question and one answer per client."""
        transport.ask(requests, replies, tick)

    def evaluate(
        self, transport: Transport, requests: Iterable[tuple[str, Bytes]], tallies: Tallies, tick: Tick
    ) -> None:
        """One question and one answer per client."""
        transport.ask(requests, tallies, tick)

    def words(self) -> dict[str, Any]:
        """The server sees every reply as it is."""
        return dict(PLAIN)


@dataclass(frozen=True, slots=True)
class Secure:
    """Replies and figures are added up under masks: the server sees sums over at least `quorum` clients, and no part.

    Sums are exact to 2^-fraction and the same in any order. They work for methods whose replies are added up. Figures
    of each client stay with it. `peers` are the public keys of all clients, by name; a run in one process makes them.
    `on_sum` is called with each sum of replies and the names of those whose sum it is; a DataError that it raises
    ends the run.

    >>> import fedsolve as fs
    >>> federation = fs.load("digits").split(fs.dirichlet(0.1), clients=5, seed=0)
    >>> result = fs.run(fs.AFL(), federation, secure=fs.Secure(quorum=3))
    >>> result.privacy["secure"], result.accuracy.mean, 0.9 < result.accuracy.pooled < 1
    (True, None, True)
    """

    quorum: int = LEAST
    fraction: int = FRACTION
    peers: Mapping[str, Peer] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    terms: str = field(default="", repr=False, compare=False)  # a digest of what clients are told beside requests
    on_sum: SumWitness | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole("quorum", self.quorum, LEAST)
        if whole("fraction", self.fraction, 0) > LARGEST_FRACTION:
            raise ParameterError(f"fraction must be at most {LARGEST_FRACTION} bits; got {self.fraction}")

    def check(self, participation: Participation) -> None:
        """Rounds over different clients are refused: their differences would disclose who is in one of them alone."""
        if participation != 1.0:
            raise ParameterError(
                f"a secure sum is over all clients in every round, since sums over different ones disclose those in "
                f"between; got participation={participation!r}: leave it at 1"
            )

    def gather(self, transport: Transport, requests: Iterable[tuple[str, Bytes]], replies: Replies, tick: Tick) -> None:
        """Three questions and answers per client, and the sum over those that were not lost on the way."""
        plan = replies.plan
        if plan.fold != "sum" or plan.each:
            apart = "some of its replies apart" if plan.fold == "sum" else "the reply of each client or group apart"
            raise ParameterError(
                f"a secure sum shows the server nothing but the sum over all clients, and the method needs {apart}; "
                "choose one that adds up replies, as afl, fedhip or fedavg do, or run it without"
            )
        found = self._sum(transport, requests, "update", replies.tolerate, tick)
        for client, reason in sorted(found.failed.items()):
            replies.leave_out(client, reason)
        replies.put_sum(found.counted, found.total)
        if self.on_sum:
            self.on_sum(found.counted, found.total)
        replies.received += found.received
        replies.sent += found.sent

    def evaluate(
        self, transport: Transport, requests: Iterable[tuple[str, Bytes]], tallies: Tallies, tick: Tick
    ) -> None:
        """The sum of tallies. Where clients are elsewhere and too few answer, there are no figures, and a reason."""
        asked = list(requests)
        try:
            found = self._sum(transport, asked, "evaluate", tallies.tolerate, tick)
        except DataError as error:
            if not tallies.tolerate:
                raise
            tallies.failed |= {client: str(error) for client, _ in asked}
            return
        tallies.failed |= found.failed
        tallies.put_sum(found.counted, found.total)

    def words(self) -> dict[str, Any]:
        """That sums were secure, and of what kind."""
        told = {"secure": True, "quorum": self.quorum, "fraction": self.fraction, "figures": "pooled"}
        return {**PLAIN, **told}

    def _sum(
        self, transport: Transport, requests: Iterable[tuple[str, Bytes]], purpose: str, tolerate: bool, tick: Tick
    ) -> Sum:
        from fedsolve.runtime.phases import secure_sum  # needs a package that not everybody has

        standards = self.quorum, self.fraction, self.terms
        return secure_sum(transport.ask, requests, purpose, self.peers, *standards, tolerate, tick)
