"""The SQLite file of a ledger: its schema, connections and transactions, and the running total in it.

A contribution first waits beside the total: its number is then above `total.upto`, the last number that is summed. A
few of them are summed together (`fold`), so that an addition writes the contribution and little else. All functions
that take a connection run inside a transaction, which `Database.change` or `Database.snapshot` opens.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.errors import DataError
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.total import Total

APPLICATION = 0x66736C64  # "fsld", in the header of the file
VERSION = 1
PAGE = 16384  # bytes; contributions are large
CACHE = 32  # MB of pages that a process keeps; the total of 1000 features and 100 classes takes ten
FOLD = 32  # contributions that wait at most to be summed
LONGEST = 500  # characters of a reason that are kept: strangers have a say in it
PATIENCE = 60.0  # seconds to wait for another process

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


class Database:
    """The file of a ledger, opened. Threads share one connection; processes wait for one another."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"there is no ledger {path}; make one with `fedsolve ledger create`")
        self.path = path
        self.connection = _connect(path)
        self._lock = threading.RLock()
        try:
            (application,) = self.connection.execute("PRAGMA application_id").fetchone()
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION or version != VERSION:
                raise DataError(f"{path} is not a ledger of format {VERSION}")
            keeps, data = self.connection.execute("SELECT keeps, data FROM terms").fetchone()
            self.total_only = not keeps
            self.terms = Terms.read(*codec.read(data, str(path)), str(path))
        except (sqlite3.DatabaseError, TypeError) as error:
            self.connection.close()
            raise DataError(f"{path} is damaged or not a ledger ({error})") from error
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """Close the file once no other thread uses it."""
        with self._lock:
            self.connection.close()

    def rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows that a single query gives."""
        with self._lock:
            try:
                return self.connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise DataError(f"{self.path}: {error}") from error

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction that writes: all of it happens, or nothing."""
        with self._lock:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self.connection
                    self.connection.execute("COMMIT")
                except BaseException:
                    if self.connection.in_transaction:
                        self.connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise DataError(f"{self.path} was not changed: {error}") from error

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One moment of the file, whatever others write meanwhile. Inside a transaction, it is that one's."""
        with self._lock:
            try:
                if self.connection.in_transaction:
                    yield self.connection
                    return
                self.connection.execute("BEGIN")
                try:
                    yield self.connection
                finally:
                    self.connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise DataError(f"cannot read {self.path}: {error}") from error

    def empty_log(self) -> None:
        """Empty the write-ahead log, so that it does not hold what was taken out of the file."""
        self.rows("PRAGMA wal_checkpoint(TRUNCATE)")


def create(path: Path, terms: Terms, *, total_only: bool = False) -> None:
    """Write a new file, which its owner alone can read, with terms, a total of zero, and no members."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise DataError(f"{path} exists; name another file, or remove it first") from None
    except OSError as error:
        raise DataError(f"cannot make {path}: {error.strerror or error}") from error
    try:
        with closing(_connect(path)) as db:
            db.execute(f"PRAGMA page_size = {PAGE}")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            )
            db.execute("INSERT INTO terms VALUES (1, ?, ?)", (not total_only, terms.write()))
            db.execute("INSERT INTO total VALUES (1, 0, x'', x'')")
            write_total(db, Total.zero(*terms.shape))
            note(db, "created")
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise DataError(f"cannot make {path}: {error}") from error


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


# --- members, their parts, and the journal ---


class Entry(NamedTuple):
    """A member as it stands in the file."""

    number: int
    digest: str
    size: int  # of its contribution, in bytes
    is_summed: bool  # in the total; otherwise its part waits
    part: bytes | None  # its contribution, where single ones are kept


def entry(db: sqlite3.Connection, client: str) -> Entry | None:
    """The member of that name, if there is one."""
    query = """
        SELECT number, digest, bytes, number <= (SELECT upto FROM total), data
        FROM member LEFT JOIN part USING (number) WHERE client = ?"""
    row = db.execute(query, (client,)).fetchone()
    return Entry._make(row) if row else None


def owner(db: sqlite3.Connection, digest: str) -> str | None:
    """The client whose contribution has that digest, if one is in."""
    row = db.execute("SELECT client FROM member WHERE digest = ?", (digest,)).fetchone()
    return row[0] if row else None


def insert(db: sqlite3.Connection, client: str, digest: str, samples: int, classes: int, size: int) -> int:
    """Add a member, and return its number, which is above all before it."""
    query = "INSERT INTO member (client, digest, samples, classes, bytes, at) VALUES (?, ?, ?, ?, ?, ?)"
    db.execute(query, (client, digest, samples, classes, size, _now()))
    (number,) = db.execute("SELECT last_insert_rowid()").fetchone()
    return int(number)


def insert_part(db: sqlite3.Connection, number: int, data: Bytes) -> None:
    """Keep the contribution of a member; it waits to be summed."""
    db.execute("INSERT INTO part VALUES (?, ?)", (number, data))


def delete(db: sqlite3.Connection, number: int) -> None:
    """Delete a member and its part; the total is left as it is."""
    db.execute("DELETE FROM part WHERE number = ?", (number,))
    db.execute("DELETE FROM member WHERE number = ?", (number,))


def note(
    db: sqlite3.Connection, event: str, client: str = "", digest: str = "", size: int = 0, reason: str = ""
) -> None:
    """Write a line of the journal."""
    db.execute(
        "INSERT INTO journal (at, event, client, digest, bytes, reason) VALUES (?, ?, ?, ?, ?, ?)",
        (_now(), event, client, digest, size, reason[:LONGEST]),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- the running total ---


def read_total(db: sqlite3.Connection) -> Total:
    """The total of what is summed so far."""
    return Total(read_high(db), codec.decode(_blob(db, "total", "low", 1)))


def read_high(db: sqlite3.Connection) -> Arrays:
    """The same, correctly rounded, as a method's `aggregate` takes it."""
    return codec.decode(_blob(db, "total", "high", 1))


def write_total(db: sqlite3.Connection, total: Total, upto: int | None = None) -> None:
    """Keep a total; `upto` is the number of the last member in it, where that is another one than before."""
    high, low = codec.encode(total.high), codec.encode(total.low)
    db.execute("UPDATE total SET high = ?, low = ?, upto = coalesce(?, upto)", (high, low, upto))


def backlog(db: sqlite3.Connection) -> list[int]:
    """The numbers of the parts that wait to be summed, the oldest first."""
    query = "SELECT number FROM part WHERE number > (SELECT upto FROM total) ORDER BY number"
    return [number for (number,) in db.execute(query)]


def add_parts(db: sqlite3.Connection, total: Total, numbers: Iterable[int]) -> None:
    """Add the parts of those numbers to a total in memory."""
    for number in numbers:
        total.add(codec.decode(_blob(db, "part", "data", number)))


def fold(db: sqlite3.Connection) -> None:
    """Sum the parts that wait into the kept total."""
    numbers = backlog(db)
    if numbers:
        total = read_total(db)
        add_parts(db, total, numbers)
        write_total(db, total, numbers[-1])


def subtract(db: sqlite3.Connection, part: Arrays, shape: tuple[int, int], *, total_only: bool) -> None:
    """Take a summed part out of the kept total, after its row was deleted.

    Where the subtraction cost digits and single parts are kept, those that are left are summed anew.
    """
    total = read_total(db)
    if not total.take(part) and not total_only:
        total = Total.zero(*shape)
        rows = db.execute("SELECT number FROM part WHERE number <= (SELECT upto FROM total) ORDER BY number")
        add_parts(db, total, [number for (number,) in rows])
    write_total(db, total)


def _blob(db: sqlite3.Connection, table: str, column: str, number: int) -> bytes:
    """A large value, without the copy that a query makes."""
    with db.blobopen(table, column, number, readonly=True) as blob:
        return blob.read()
