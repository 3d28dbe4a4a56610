"""The ledger: one SQLite file with contributions, their running total and a journal. Every change is one transaction.

The contributions are the truth. The total is what is summed of them so far: a new contribution waits beside it and is
summed with others a few at a time (`FOLD`), when a ledger is closed, and before a solve. So an addition writes the
contribution and little else, and a process that dies leaves nothing half done. A ledger that keeps only the total
has no contributions to wait: each is summed as it comes, and its digest alone is remembered.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from fedsolve import arrays as named
from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError, unknown
from fedsolve.ledger.contribution import Contribution, claimed, read_bytes
from fedsolve.ledger.influence import Influence, influence
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.total import Total
from fedsolve.ledger.validate import Finding, content, examine
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.moments import Moments

APPLICATION = 0x66736C64  # "fsld", in the header of the file
VERSION = 1
PAGE = 16384  # bytes; contributions are large
CACHE = 32  # MB of pages that a process keeps; the total of 1000 features and 100 classes takes ten
FOLD = 32  # contributions that wait at most to be summed
LONGEST = 500  # characters of a reason that are kept: strangers have a say in it
PATIENCE = 60.0  # seconds to wait for another process
DAMAGE = 1e-9  # a total that is further off than this was not moved by rounding

_SCHEMA = """
CREATE TABLE terms (one INTEGER PRIMARY KEY CHECK (one = 1), keeps INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE member (
    number INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL UNIQUE, digest TEXT NOT NULL UNIQUE,
    samples INTEGER NOT NULL, classes INTEGER NOT NULL, bytes INTEGER NOT NULL, at TEXT NOT NULL);
CREATE TABLE part (number INTEGER PRIMARY KEY REFERENCES member (number), data BLOB NOT NULL);
CREATE TABLE total (
    one INTEGER PRIMARY KEY CHECK (one = 1), upto INTEGER NOT NULL, high BLOB NOT NULL, low BLOB NOT NULL);
CREATE TABLE journal (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, event TEXT NOT NULL, client TEXT NOT NULL,
    digest TEXT NOT NULL, bytes INTEGER NOT NULL, reason TEXT NOT NULL);
"""


class Member(NamedTuple):
    """A client that is in."""

    client: str
    samples: int
    classes: int  # of which it has samples
    bytes: int
    at: str  # when it came, UTC
    digest: str  # of its contribution


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the journal."""

    at: str
    event: str  # "created", "added", "replaced", "removed", "rejected", "rebuilt"
    client: str
    digest: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of something that was offered."""

    client: str
    event: str  # "added", "replaced", "unchanged" or "rejected"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What `verify` found."""

    members: int
    samples: int
    drift: float | None  # of the total to the sum of the parts, relative; None where only the total is kept
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The exact model of those who are in."""

    terms: Terms
    state: Arrays
    digests: tuple[str, ...]  # of the contributions that are in, sorted
    samples: int

    @property
    def message(self) -> Arrays:
        """What a client is sent."""
        return self.terms.method.message(self.state, "")

    @property
    def shared(self) -> Model | None:
        """The one global model, where the method has one."""
        arrays = self.terms.method.shared(self.message)
        return Model(self.terms.method, self.terms.task, arrays, "global") if arrays else None

    def save(self, directory: Path) -> Path:
        """Write the global model, the state and the message for clients, each file whole or not at all."""
        if directory.exists() and not directory.is_dir():
            raise DataError(f"{directory} is a file; name a folder")
        (directory / "models").mkdir(parents=True, exist_ok=True)
        if self.shared is not None:
            self.shared.save(directory / "models" / "global.safetensors")
        told = self.terms.metadata() | self.terms.labels() | {"made": "message"}
        told["members"] = " ".join(self.digests)
        sent = named.under("message", self.message) | named.under("sent", self.terms.message)
        codec.write_file(directory / "message.safetensors", sent, told)
        codec.write_file(directory / "state.safetensors", self.state)
        return directory


class Ledger:
    """One file, opened. Several processes and threads may have it open at once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise DataError(f"there is no ledger {path}; make one with `fedsolve ledger create`")
        self._lock = threading.RLock()
        self._db = _connect(self.path)
        try:
            (application,) = self._db.execute("PRAGMA application_id").fetchone()
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION or version != VERSION:
                raise DataError(f"{path} is not a ledger of format {VERSION}")
            (keeps, data) = self._db.execute("SELECT keeps, data FROM terms").fetchone()
            self.total_only = not keeps
            start, told = codec.read(data, str(path))
            self.terms = Terms.read(start, told, str(path))
        except (sqlite3.DatabaseError, TypeError) as error:
            self._db.close()
            raise DataError(f"{path} is damaged or not a ledger ({error})") from error
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def create(
        cls,
        path: str | Path,
        method: Method,
        task: Task,
        *,
        seed: int = 0,
        bound: float | None = None,
        total_only: bool = False,
    ) -> Ledger:
        """A new file for a federation that nobody is in yet. It can be read by its owner alone."""
        terms, place = Terms.make(method, task, seed=seed, bound=bound), Path(path)
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise DataError(f"{path} exists; name another file, or remove it first") from None
        except OSError as error:
            raise DataError(f"cannot make {path}: {error.strerror or error}") from error
        try:
            with _closing(_connect(place)) as db:
                db.execute(f"PRAGMA page_size = {PAGE}")
                db.execute("PRAGMA journal_mode = WAL")
                total = Total.zero(*terms.shape)
                db.executescript(
                    f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
                )
                db.execute("INSERT INTO terms VALUES (1, ?, ?)", (not total_only, terms.write()))
                db.execute("INSERT INTO total VALUES (1, 0, ?, ?)", (codec.encode(total.high), codec.encode(total.low)))
                _note(db, "created")
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise DataError(f"cannot make {path}: {error}") from error
        return cls(place)

    @classmethod
    def join(cls, path: str | Path, method: Method, task: Task, *, seed: int = 0) -> Ledger:
        """The ledger in a file, for a run of that method on that task; a new one where there is no file."""
        if not Path(path).exists():
            return cls.create(path, method, task, seed=seed)
        ledger = cls(path)
        refused = ledger.terms.refusal(Terms.make(method, task, seed=seed).labels())
        if refused:
            ledger.close()
            raise DataError(f"this run cannot contribute to {path}: {refused}")
        return ledger

    @classmethod
    @contextmanager
    def keeping(
        cls, path: str | Path, method: Method, task: Task, *, seed: int = 0
    ) -> Iterator[Callable[[str, Arrays], object]]:
        """What puts each reply of such a run, given with its client, into the ledger of a file."""
        with cls.join(path, method, task, seed=seed) as ledger:
            yield lambda client, reply: ledger.add(Contribution.of(client, reply))

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Sum what waits, and close the file."""
        with self._lock:
            try:
                self.settle()
            finally:
                self._db.close()

    # --- who is in ---

    def members(self) -> tuple[Member, ...]:
        """Everybody that is in, by name."""
        rows = self._all("SELECT client, samples, classes, bytes, at, digest FROM member ORDER BY client")
        return tuple(map(Member._make, rows))

    def journal(self) -> tuple[Event, ...]:
        """All that happened, the oldest first."""
        rows = self._all("SELECT at, event, client, digest, bytes, reason FROM journal ORDER BY number")
        return tuple(Event(*row) for row in rows)

    def add(self, contribution: Contribution) -> Answer:
        """Take a contribution in, or put it in the place of the client's old one. Refusals are raised, and kept."""
        try:
            return self._insert(contribution, examine(self.terms, contribution.arrays))
        except DataError as error:
            self._reject(contribution.client, contribution.digest, 0, str(error))
            raise DataError(f"{contribution.client!r} is refused: {error}") from error

    def offer(self, data: Bytes, source: str = "contribution") -> Answer:
        """The same for the bytes of a contribution file; a refusal is an answer, too."""
        return self._finish(data, source, self._examine(data, source))

    def offer_files(self, paths: Iterable[Path]) -> Iterator[Answer]:
        """The same for files. One is looked at while another is written."""
        pool = ThreadPoolExecutor(2, thread_name_prefix="fedsolve-ledger")
        with pool, threadpool_limits(1, user_api="blas"):  # side by side, one BLAS thread each
            waiting: deque[tuple[Path, Future[tuple[Bytes, Contribution | str, Finding | None]]]] = deque()
            for path in paths:
                waiting.append((path, pool.submit(self._read, path)))
                if len(waiting) > 3:
                    yield self._take(*waiting.popleft())
            while waiting:
                yield self._take(*waiting.popleft())

    def remove(self, client: str, contribution: Contribution | None = None) -> None:
        """Take a client out, exactly, and its statistics from the file.

        Where only the total is kept, that takes its contribution again.
        """
        with self._change() as db:
            row = db.execute(
                "SELECT number, digest, bytes, number <= (SELECT upto FROM total), data "
                "FROM member LEFT JOIN part USING (number) WHERE client = ?",
                (client,),
            ).fetchone()
            if row is None:
                raise unknown("client", client, [member.client for member in self.members()])
            number, digest, size, summed, data = row
            if data is None:
                if contribution is None:
                    raise DataError(
                        f"{self.path} keeps only the total: to take {client!r} out, its contribution is needed again"
                    )
                if contribution.digest != digest:
                    raise DataError(f"that is not what {client!r} contributed: the digests differ")
            elif contribution is not None and contribution.digest != digest:
                raise DataError(f"that is not what {client!r} contributed: the digests differ")
            _drop(db, number)
            if summed:
                self._subtract(db, codec.decode(data) if contribution is None else contribution.arrays)
            _note(db, "removed", client, digest, size)
        self._forget()

    # --- the sum ---

    def total(self) -> Arrays:
        """The sum over all members, correctly rounded."""
        with self._lock, self._reading() as db:
            waiting = _waiting(db)
            if not waiting:
                return codec.decode(_blob(db, "total", "high", 1))
            total = _total(db)
            _add(db, total, waiting)
            return total.high

    def settle(self) -> None:
        """Sum what waits."""
        if self._all("SELECT 1 FROM part WHERE number > (SELECT upto FROM total) LIMIT 1"):
            with self._change() as db:
                _fold(db)

    def solve(self) -> Solved:
        """The exact model of those who are in."""
        self.settle()
        with self._lock, self._reading():
            digests = tuple(digest for (digest,) in self._all("SELECT digest FROM member ORDER BY digest"))
            total = self.total()
        if not digests:
            raise DataError(f"nobody is in {self.path} yet; take contributions in with `fedsolve ledger add`")
        state = self.terms.method.aggregate(self.terms.start, total)
        return Solved(self.terms, state, digests, int(total["count"]))

    def parts(self) -> Iterator[tuple[Member, Arrays]]:
        """Each member with its statistics, by name."""
        if self.total_only:
            raise DataError(f"{self.path} keeps only the total: there are no single contributions to look at")
        for member in self.members():
            found = self._all("SELECT data FROM member JOIN part USING (number) WHERE digest = ?", (member.digest,))
            if found:  # nobody took it out meanwhile
                yield member, codec.decode(found[0][0])

    def influence(self) -> list[Influence]:
        """What each client does to the predictions of all, the most suspicious first."""
        self.settle()
        total = Moments.from_arrays(self.total())

        def parts() -> Iterator[tuple[str, Moments]]:
            for member, arrays in self.parts():
                yield member.client, Moments.from_arrays(arrays)

        return influence(parts, total)

    def verify(self) -> Check:
        """Whether the file is whole, its contributions unchanged, and the total their sum; a drifted one is rebuilt."""
        with self._change() as db:
            faults = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
            _fold(db)
            kept, rebuilt, samples, members = _total(db), Total.zero(*self.terms.shape), 0, 0
            query = "SELECT client, digest, samples, data FROM member LEFT JOIN part USING (number) ORDER BY number"
            for client, digest, count, data in db.execute(query):
                samples, members = samples + count, members + 1
                if data is None:
                    continue
                try:
                    part = codec.decode(data, client)
                    if content(part) != digest:
                        raise DataError("its content is not what was accepted")
                    rebuilt.add(part)
                except FedsolveError as error:
                    faults.append(f"the contribution of {client!r} is damaged: {error}")
            if int(kept.high["count"]) != samples:
                faults.append(f"the total counts {int(kept.high['count'])} samples, its members {samples}")
            if self.total_only:
                return Check(members, samples, None, tuple(faults))
            drift = kept.apart(rebuilt)
            if not drift <= DAMAGE:
                faults.append(f"the total was not the sum of its parts: {drift:.2g} apart")
            if drift > 0 and not any("damaged" in fault for fault in faults):
                _store(db, rebuilt)
                _note(db, "rebuilt", reason=f"the total was {drift:.2g} from the sum of its parts")
            return Check(members, samples, drift, tuple(faults))

    # --- inside ---

    def _read(self, path: Path) -> tuple[Bytes, Contribution | str, Finding | None]:
        try:
            data = read_bytes(path)
        except DataError as error:
            return b"", str(error), None
        return data, *self._examine(data, str(path))

    def _take(self, path: Path, future: Future[tuple[Bytes, Contribution | str, Finding | None]]) -> Answer:
        data, found, finding = future.result()
        return self._finish(data, str(path), (found, finding))

    def _examine(self, data: Bytes, source: str) -> tuple[Contribution | str, Finding | None]:
        """The contribution in bytes and what it says of itself; or why it is refused."""
        try:
            contribution = Contribution.read(data, self.terms, source)
            return contribution, examine(self.terms, contribution.arrays)
        except FedsolveError as error:
            return str(error), None

    def _finish(self, data: Bytes, source: str, found: tuple[Contribution | str, Finding | None]) -> Answer:
        contribution, finding = found
        if isinstance(contribution, Contribution) and finding is not None:
            try:
                return self._insert(contribution, finding)
            except DataError as error:
                client, digest, reason = contribution.client, contribution.digest, str(error)
        else:
            client, digest, reason = claimed(data, Path(source).stem), "", str(contribution)
        self._reject(client, digest, len(data), reason)
        return Answer(client, "rejected", reason)

    def _insert(self, contribution: Contribution, finding: Finding) -> Answer:
        client, digest = contribution.client, contribution.digest
        data = codec.encode(contribution.arrays)
        with self._change() as db:
            row = db.execute("SELECT client FROM member WHERE digest = ?", (digest,)).fetchone()
            if row is not None and row[0] == client:
                return Answer(client, "unchanged", "these very statistics are in already")
            if row is not None:
                raise DataError(f"a replay: {row[0]!r} contributed the very same statistics")
            old = db.execute(
                "SELECT number, digest, number <= (SELECT upto FROM total), data "
                "FROM member LEFT JOIN part USING (number) WHERE client = ?",
                (client,),
            ).fetchone()
            if old is not None:
                if self.total_only:
                    raise DataError(
                        f"{client!r} is in already and only the total is kept: take it out first, with its old "
                        "contribution"
                    )
                _drop(db, old[0])
                if old[2]:
                    self._subtract(db, codec.decode(old[3]))
            inserted = db.execute(
                "INSERT INTO member (client, digest, samples, classes, bytes, at) VALUES (?, ?, ?, ?, ?, ?)",
                (client, digest, finding.samples, finding.classes, len(data), _now()),
            )
            if not self.total_only:
                db.execute("INSERT INTO part VALUES (?, ?)", (inserted.lastrowid, data))
            if self.total_only:
                total = _total(db)
                total.add(contribution.arrays)
                _store(db, total, inserted.lastrowid)
            elif len(_waiting(db)) >= FOLD:
                _fold(db)
            event = "added" if old is None else "replaced"
            _note(db, event, client, digest, len(data), "" if old is None else f"in place of {old[1]}")
        if old is not None or self.total_only:  # two totals, one after the other, would show what came between
            self._forget()
        return Answer(client, event)

    def _subtract(self, db: sqlite3.Connection, part: Arrays) -> None:
        """Take a part from the total, whose row is gone already."""
        total = _total(db)
        if not total.take(part) and not self.total_only:
            total = Total.zero(*self.terms.shape)  # digits were lost: sum what is left anew
            left = db.execute("SELECT number FROM part WHERE number <= (SELECT upto FROM total) ORDER BY number")
            _add(db, total, [number for (number,) in left])
        _store(db, total)

    def _reject(self, client: str, digest: str, size: int, reason: str) -> None:
        with self._change() as db:
            _note(db, "rejected", client, digest, size, reason[:LONGEST])

    def _forget(self) -> None:
        """Empty the write-ahead log, so that what was taken out is not in there either."""
        with self._lock:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _all(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise DataError(f"{self.path}: {error}") from error

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise DataError(f"{self.path} was not changed: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One moment of the file, whatever others write meanwhile."""
        if self._db.in_transaction:
            yield self._db
            return
        try:
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise DataError(f"cannot read {self.path}: {error}") from error


@contextmanager
def _closing(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield db
    finally:
        db.close()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA synchronous = FULL")  # acknowledged is on the disk
        db.execute("PRAGMA secure_delete = ON")  # removed is not
        db.execute(f"PRAGMA cache_size = {-1024 * CACHE}")  # in KB where it is negative
    except sqlite3.DatabaseError as error:
        db.close()
        raise DataError(f"{path} is damaged or not a ledger ({error})") from error
    return db


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _note(
    db: sqlite3.Connection, event: str, client: str = "", digest: str = "", size: int = 0, reason: str = ""
) -> None:
    db.execute(
        "INSERT INTO journal (at, event, client, digest, bytes, reason) VALUES (?, ?, ?, ?, ?, ?)",
        (_now(), event, client, digest, size, reason),
    )


def _total(db: sqlite3.Connection) -> Total:
    return Total(*(codec.decode(_blob(db, "total", column, 1)) for column in ("high", "low")))


def _store(db: sqlite3.Connection, total: Total, upto: int | None = None) -> None:
    """Keep a total; `upto` is the last member that is in it, where that is another one than before."""
    high, low = codec.encode(total.high), codec.encode(total.low)
    db.execute("UPDATE total SET high = ?, low = ?, upto = coalesce(?, upto)", (high, low, upto))


def _drop(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM part WHERE number = ?", (number,))
    db.execute("DELETE FROM member WHERE number = ?", (number,))


def _blob(db: sqlite3.Connection, table: str, column: str, number: int) -> bytes:
    """A large value, without the copy that a query makes."""
    with db.blobopen(table, column, number, readonly=True) as blob:
        return blob.read()


def _waiting(db: sqlite3.Connection) -> list[int]:
    """The numbers of the contributions that are not in the total yet."""
    query = "SELECT number FROM part WHERE number > (SELECT upto FROM total) ORDER BY number"
    return [number for (number,) in db.execute(query)]


def _add(db: sqlite3.Connection, total: Total, numbers: Iterable[int]) -> None:
    """Add contributions to a total."""
    for number in numbers:
        total.add(codec.decode(_blob(db, "part", "data", number)))


def _fold(db: sqlite3.Connection) -> None:
    """Sum the contributions that wait."""
    waiting = _waiting(db)
    if waiting:
        total = _total(db)
        _add(db, total, waiting)
        _store(db, total, waiting[-1])
