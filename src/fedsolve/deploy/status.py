"""How a federation fares, seen from the server: its sites, the run under way, past runs, and what wants attention.

All of it is read: from the server's folder, from the SuperLink's own list of nodes, and from what runs left behind.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsolve.deploy import certificates, records
from fedsolve.deploy.certificates import SOON, days_left
from fedsolve.deploy.files import read_env
from fedsolve.deploy.invite import known_peers
from fedsolve.deploy.join import sites_of
from fedsolve.deploy.records import DONE, LOST, RUNNING, Record
from fedsolve.deploy.run import connect, is_open, link_of, unlike
from fedsolve.errors import FedsolveError
from fedsolve.ledger.database import last_events
from fedsolve.runtime.job import VERSION
from fedsolve.runtime.live import now

if TYPE_CHECKING:
    from fedsolve.runtime.flower.control import Control, Node

SHOWN = 20  # past runs
EVENTS = 40  # of the ledger's journal
FRESH = 1.5  # seconds for which one look serves all who ask
UNSEEN, UNKNOWN, GONE = "not seen yet", "unknown", "removed"  # states of a site beside online and offline


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """A site, as the server knows it."""

    name: str
    expected: bool  # whether SITES names it
    state: str  # online, offline, or one of the above
    since: str = ""  # when it came to that, UTC
    key: str = ""  # fingerprint of its node's key
    peer: str = ""  # and of its keys for secure sums
    version: str = ""
    samples: int | None = None
    target: str = ""
    columns: int | None = None
    policy: str = ""
    told: str = ""  # when it told that, UTC
    left_out: str = ""  # why, in the run under way or the last one


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of the server's folder."""

    what: str
    until: str
    days: int


@dataclass(frozen=True)
class Status:
    """All that an operator looks at."""

    at: str
    address: str
    version: str
    superlink: bool  # whether it answers
    certificates: tuple[Certificate, ...]
    sites: tuple[SiteStatus, ...]
    run: Record | None  # that is under way
    runs: tuple[Record, ...]  # that are over, the last one first
    journal: tuple[dict[str, Any], ...]  # of the ledgers that runs contributed to, the latest first
    wrong: tuple[str, ...]  # what stands in the way of a run, or of a site
    notes: tuple[str, ...]  # what will, or what should be known

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def words(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def health(self) -> dict[str, Any]:
        """In a few words, for a program that rings a bell."""
        expected = [site for site in self.sites if site.expected]
        return {
            "ok": self.fine,
            "superlink": self.superlink,
            "sites": {"expected": len(expected), "online": sum(site.state == "online" for site in expected)},
            "running": self.run is not None,
            "certificate_days": min((each.days for each in self.certificates), default=None),
            "wrong": list(self.wrong),
        }


class Watch:
    """Looks at a federation whenever it is asked, and not more often than serves anybody.

    A connection to the SuperLink stays open between two looks.
    """

    def __init__(self, folder: Path) -> None:
        read_env(folder / "server.env")  # refuses a folder that is no server's
        self.folder = folder
        self._lock = threading.Lock()
        self._last: Status | None = None
        self._seen = float("-inf")
        self._link: Control | None = None

    def look(self) -> Status:
        """How the federation fares now."""
        with self._lock:
            if self._last is None or time.monotonic() - self._seen > FRESH:
                self._last = status(self.folder, self._nodes())
                self._seen = time.monotonic()
            return self._last

    def close(self) -> None:
        """End the connection."""
        if self._link:
            self._link.close()
            self._link = None

    def _nodes(self) -> list[Node] | None:
        """The nodes that the SuperLink knows; none where it does not answer."""
        try:
            if not is_open(*link_of(self.folder)):
                self.close()
                return None
            self._link = self._link or connect(self.folder)
            return self._link.nodes()
        except FedsolveError:
            self.close()
            return None


def status(folder: Path, nodes: Sequence[Node] | None) -> Status:
    """How a federation fares, by its server's folder and the nodes that its SuperLink knows, if it answers."""
    runs = records.read(folder)
    current = next((record for record in runs if record.outcome == RUNNING), None)
    past = tuple(record for record in runs if record is not current)[:SHOWN]
    sites = _sites(folder, nodes, runs)
    held = _certificates(folder)
    wrong, notes = _findings(folder, nodes is not None, sites, held, past)
    return Status(
        at=now(),
        address=read_env(folder / "server.env").get("ADDRESS", ""),
        version=VERSION,
        superlink=nodes is not None,
        certificates=held,
        sites=sites,
        run=current,
        runs=past,
        journal=_journal(runs),
        wrong=tuple(wrong),
        notes=tuple(notes),
    )


def _sites(folder: Path, nodes: Sequence[Node] | None, runs: Sequence[Record]) -> tuple[SiteStatus, ...]:
    expected, peers = sites_of(folder), known_peers(folder)
    keys = {path.stem: path for path in (folder / "keys").glob("*.pub")}
    known = {node.key.strip(): node for node in nodes or ()}
    found = []
    for name in sorted({*expected, *keys, *peers}):
        pem = ""
        with suppress(FedsolveError):  # a damaged key is no key
            pem = certificates.public_pem(keys[name]) if name in keys else ""
        node = known.get(pem.strip()) if pem else None
        state = UNKNOWN if nodes is None else UNSEEN
        if node is not None:
            state = {"registered": UNSEEN, "unregistered": GONE}.get(node.status, node.status)
        site = SiteStatus(
            name,
            name in expected,
            state,
            since=node.since if node and state in ("online", "offline", GONE) else "",
            key=certificates.fingerprint(pem) if pem else "",
            peer=peers[name].fingerprint if name in peers else "",
            left_out=str(runs[0].told_of(name).get("left_out", "")) if runs else "",
        )
        found.append(_with_data(site, runs))
    return tuple(found)


def _with_data(site: SiteStatus, runs: Sequence[Record]) -> SiteStatus:
    """What the site told of itself in the last run in which it did."""
    last = records.of_site(runs, site.name)
    if last is None:
        return site
    version, target, policy, at = (str(last[1].get(name, "")) for name in ("version", "target", "policy", "at"))
    samples, columns = (
        value if isinstance(value := last[1].get(name), int) else None for name in ("samples", "columns")
    )
    return replace(site, version=version, target=target, policy=policy, told=at, samples=samples, columns=columns)


def _certificates(folder: Path) -> tuple[Certificate, ...]:
    found = []
    for what, file in (("server", "server.crt"), ("authority", "ca.crt")):
        with suppress(FedsolveError, OSError):
            end = certificates.end_of(folder / file)
            found.append(Certificate(what, f"{end:%Y-%m-%d}", days_left(end)))
    return tuple(found)


def _findings(
    folder: Path, up: bool, sites: Sequence[SiteStatus], held: Sequence[Certificate], past: Sequence[Record]
) -> tuple[list[str], list[str]]:
    """What is wrong, and what should be known, as sentences."""
    host, port = link_of(folder)
    wrong, notes = [], unlike(folder)
    if not up:
        wrong.append(f"no SuperLink answers on {host}:{port}; start it with {folder / 'start.sh'}")
    for each in held:
        renew = f"fedsolve deploy rotate {folder}" + " --authority" * (each.what == "authority")
        if each.days < 0:
            wrong.append(f"the certificate of the {each.what} ended on {each.until}: {renew}")
        elif each.days <= SOON:
            notes.append(f"the certificate of the {each.what} ends in {each.days} days, on {each.until}: {renew}")
    if up and not _serves_its_certificate(folder):
        notes.append("the SuperLink still shows its old certificate; stop it and start it when no run is under way")
    down = [site.name for site in sites if site.expected and up and site.state != "online"]
    if down:
        wrong.append(f"not connected: {', '.join(down)}; there, `fedsolve deploy check` says why")
    if past and past[0].outcome not in (DONE, LOST):
        notes.append(f"the last run did not end well: {past[0].error or past[0].outcome}")
    if past and past[0].outcome == LOST:
        notes.append("the last run was killed, and left no word")
    return wrong, notes


def _serves_its_certificate(folder: Path) -> bool:
    """Whether the SuperLink shows the certificate that is in its folder: it reads the file when it starts."""
    host, port = link_of(folder)
    with suppress(OSError, ValueError):
        shown = ssl.get_server_certificate(("127.0.0.1" if host == "0.0.0.0" else host, port), timeout=5)
        return certificates.same_certificate(shown, folder / "server.crt")
    return True  # it cannot be asked


def _journal(runs: Sequence[Record]) -> tuple[dict[str, Any], ...]:
    """The last lines of the journals of all ledgers that runs of this server contributed to."""
    lines: list[dict[str, Any]] = []
    for path in dict.fromkeys(record.ledger for record in runs if record.ledger):
        with suppress(FedsolveError):
            lines += [{"ledger": Path(path).name, **asdict(event)} for event in last_events(Path(path), EVENTS)]
    return tuple(sorted(lines, key=lambda line: str(line["at"]), reverse=True)[:EVENTS])


def ago(moment: str) -> str:
    """How long something is past, in short; nothing where it is not known.

    >>> ago("")
    ''
    """
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
