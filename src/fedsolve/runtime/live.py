"""What a run under way tells of itself: one small file, written anew as it goes on, for whoever looks on.

It says who was asked and who has answered, how many bytes that took, which round it is and how long the rest may take.
Nothing depends on it: where it cannot be written, the run goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fedsolve import disk
from fedsolve.data.target import target_words
from fedsolve.errors import FedsolveError, plain
from fedsolve.records import Round
from fedsolve.runtime.job import Description

FILE = "live.json"
OFTEN = 0.5  # seconds between two files, at least
LINES = 40  # of what was said, the last ones


def now() -> str:
    """The time, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages of one node: how many were sent and have come, and their bytes."""

    sent: int = 0
    came: int = 0
    down: int = 0  # bytes to the site
    up: int = 0  # bytes from the site
    since: str = ""  # when it was last asked, or last answered

    def asked(self, count: int) -> Traffic:
        """After one more message to it."""
        return replace(self, sent=self.sent + 1, down=self.down + count, since=now())

    def answered(self, count: int) -> Traffic:
        """After one more message from it."""
        return replace(self, came=self.came + 1, up=self.up + count, since=now())


def described(description: Description) -> dict[str, object]:
    """What a site told of itself, in a few words.

    >>> from fedsolve.data.task import Classes, Task
    >>> described(Description("ward-a", "0.2.0", Task(Classes(2), (30,)), 61))["samples"]
    61
    """
    return {
        "version": plain(description.version, 40),
        "samples": description.samples,
        "target": plain(target_words(description.task.target), 120),
        "columns": description.task.width,
        "policy": plain(description.policy, 120),
        "at": now(),
    }


class Live:
    """The file of a run under way."""

    def __init__(
        self, path: Path, run: str, owners: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`owners` says whose each public key is."""
        self._path, self._run, self._owners, self._clock = path, run, dict(owners or {}), clock
        self._traffic: Mapping[int, Traffic] = {}
        self._keys: Mapping[int, str] = {}
        self._nodes: dict[str, int] = {}
        self._told: dict[str, dict[str, object]] = {}
        self._left_out: dict[str, str] = {}
        self._phase, self._done, self._of = "waiting for the sites", 0, 0
        self._rounds: tuple[int, int] = 0, 0
        self._seconds = 0.0  # of the rounds that are over
        self._said: list[str] = []
        self._written = float("-inf")

    def watch(self, traffic: Mapping[int, Traffic], keys: Mapping[int, str]) -> None:
        """Where messages are counted, and the keys of the nodes that were seen."""
        self._traffic, self._keys = traffic, keys

    def say(self, line: str) -> None:
        """Something was said to whoever started the run."""
        self._said = [*self._said, f"{now()} {plain(line)}"][-LINES:]
        self.write()

    def progress(self, what: str, done: int, total: int) -> None:
        """So much of something is done."""
        fresh = what != self._phase
        self._phase, self._done, self._of = what, done, total
        self.write(at_once=fresh or done == total)

    def met(
        self, nodes: Mapping[str, int], descriptions: Mapping[str, Description], left_out: Mapping[str, str]
    ) -> None:
        """The sites that take part, what they told of themselves, and who is left out, and why."""
        self._nodes = dict(nodes)
        self._told = {name: described(description) for name, description in descriptions.items()}
        self.leave_out(left_out)

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Sites that take part no longer, and why."""
        self._left_out |= {name: plain(reason) for name, reason in reasons.items()}
        self.write(at_once=True)

    def round_over(self, outcome: Round, rounds: int) -> None:
        """A round is over, of at most so many."""
        self._rounds, self._seconds = (outcome.round, rounds), self._seconds + outcome.seconds
        self.write(at_once=True)

    def content(self) -> dict[str, object]:
        """All that is known."""
        over, rounds = self._rounds
        left = round(self._seconds / over * (rounds - over), 1) if over and rounds else None
        return {
            "run": self._run,
            "at": now(),
            "phase": self._phase,
            "done": self._done,
            "of": self._of,
            "round": over,
            "rounds": rounds,
            "left": left,  # seconds, by the rounds that are over
            "up": sum(each.up for each in self._traffic.values()),
            "down": sum(each.down for each in self._traffic.values()),
            "sites": self._sites(),
            "said": self._said,
        }

    def _sites(self) -> dict[str, dict[str, object]]:
        names = {node: name for name, node in self._nodes.items()}
        names |= {node: self._owners[key] for node, key in self._keys.items() if key in self._owners}
        sites: dict[str, dict[str, object]] = {name: {"told": told} for name, told in self._told.items()}
        for node, traffic in self._traffic.items():
            site = sites.setdefault(names.get(node, f"node {node}"), {})
            site |= {**asdict(traffic), "waiting": traffic.sent > traffic.came}
        for name, reason in self._left_out.items():
            sites.setdefault(name, {})["left_out"] = reason
        return sites

    def write(self, *, at_once: bool = False) -> None:
        """Write the file, unless that was done a moment ago."""
        moment = self._clock()
        if not at_once and moment - self._written < OFTEN:
            return
        self._written = moment
        with suppress(FedsolveError):
            disk.write_bytes(self._path, json.dumps(self.content()).encode())
