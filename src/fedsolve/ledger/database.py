"""The SQLite file of a ledger: its schema, connections and transactions, and what goes wrong with a file.

`entries` has the rows and their seals, `sums` the running total, `upgrade` makes files of format 1 ones of format 2.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedsolve import codec
from fedsolve.errors import DataError, FedsolveError, StorageError
from fedsolve.ledger import entries, sums
from fedsolve.ledger.records import Event
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.total import Total
from fedsolve.ledger.upgrade import TABLES, seal_terms, upgrade

APPLICATION = 0x66736C64  # "fsld", in the header of the file
VERSION = 2
PAGE = 16384  # bytes; contributions are large
CACHE = 32  # MB of pages that a process keeps; the total of 1000 features and 100 classes takes ten
PATIENCE = 60.0  # seconds to wait for another process
GLANCE = 2.0  # the same, for who only looks on

_SCHEMA = (
    """
CREATE TABLE terms (
    one INTEGER PRIMARY KEY CHECK (one = 1), keeps INTEGER NOT NULL, data BLOB NOT NULL, digest TEXT NOT NULL);
CREATE TABLE member (
    number INTEGER PRIMARY KEY, client TEXT NOT NULL UNIQUE, digest TEXT NOT NULL UNIQUE, samples INTEGER NOT NULL,
    classes INTEGER NOT NULL, bytes INTEGER NOT NULL, at TEXT NOT NULL, sequence INTEGER NOT NULL, seal TEXT NOT NULL);
CREATE TABLE part (number INTEGER PRIMARY KEY REFERENCES member (number), data BLOB NOT NULL);
CREATE TABLE total (
    one INTEGER PRIMARY KEY CHECK (one = 1), upto INTEGER NOT NULL, high BLOB NOT NULL, low BLOB NOT NULL);
CREATE TABLE journal (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, event TEXT NOT NULL, client TEXT NOT NULL, digest TEXT NOT NULL,
    bytes INTEGER NOT NULL, reason TEXT NOT NULL, seal TEXT NOT NULL);
"""
    + TABLES
)

# What the machine is to blame for, by SQLite's primary result code, and the way out. All else is damage to the file.
_MACHINE = {
    sqlite3.SQLITE_FULL: "the disk is full; make room and do it again",
    sqlite3.SQLITE_READONLY: "it cannot be written; its owner must be able to write the file and the folder it lies in",
    sqlite3.SQLITE_PERM: "it cannot be written; its owner must be able to write the file and the folder it lies in",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; its owner must be able to write the file and the folder it lies in",
    sqlite3.SQLITE_BUSY: "another process holds it; try again when that one is done",
    sqlite3.SQLITE_LOCKED: "another process holds it; try again when that one is done",
    sqlite3.SQLITE_IOERR: "the disk does not take or give data; look after it, and after limits on the size of files",
    sqlite3.SQLITE_NOMEM: "there is not enough memory; end other programs and do it again",
    sqlite3.SQLITE_TOOBIG: "SQLite holds nothing this large; take fewer features",
}


ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the second where SQLite quotes damaged bytes in its message


def fault(what: str, error: sqlite3.Error | UnicodeDecodeError) -> FedsolveError:
    """The error to raise for one of SQLite: the machine's, which says what to do, or the file's."""
    if isinstance(error, sqlite3.ProgrammingError):  # a ledger that was closed
        return DataError(f"{what}: {error}")
    advice = _MACHINE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if advice is None:
        return DataError(f"{what}: the file is damaged or not a ledger ({error}); put a backup in its place")
    return StorageError(f"{what}: {advice} ({error})")


class Database:
    """The file of a ledger, opened. Threads share one connection; processes wait for one another."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"there is no ledger {path}; make one with `fedsolve ledger create`")
        self.path = path
        self.connection = _connect(path)
        self._lock = threading.RLock()
        try:
            if self._version() == 1:
                with self.change() as db:
                    if self._version() == 1:  # no other process was faster
                        keeps, data = db.execute("SELECT keeps, data FROM terms").fetchone()
                        terms = Terms.read(*codec.read(data, str(path)), str(path))
                        upgrade(db, terms.shape, total_only=not keeps)
                        db.execute(f"PRAGMA user_version = {VERSION}")
            entries.has_cohorts(self.connection)  # refuses where the format is not that of the tables
            keeps, data, digest = self.connection.execute("SELECT keeps, data, digest FROM terms").fetchone()
            if entries.digest(keeps, data) != digest:
                raise DataError(f"the terms in {path} are not what was written: put a backup in its place")
            self.total_only = not keeps
            self.terms = Terms.read(*codec.read(data, str(path)), str(path))
        except ERRORS as error:
            self.connection.close()
            raise fault(f"cannot open {path}", error) from error
        except TypeError as error:
            self.connection.close()
            raise DataError(f"{path} is damaged or not a ledger ({error}); put a backup in its place") from error
        except BaseException:
            self.connection.close()
            raise

    def _version(self) -> int:
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION or version not in (1, VERSION, entries.COHORTS):
            raise DataError(f"{self.path} is not a ledger of format 1, {VERSION} or {entries.COHORTS}")
        return int(version)

    def close(self) -> None:
        """Close the file once no other thread uses it."""
        with self._lock:
            self.connection.close()

    def rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows that a single query gives."""
        with self._lock:
            try:
                return self.connection.execute(query, values).fetchall()
            except ERRORS as error:
                raise fault(f"cannot read {self.path}", error) from error

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
            except ERRORS as error:
                raise fault(f"{self.path} was not changed", error) from error

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
            except ERRORS as error:
                raise fault(f"cannot read {self.path}", error) from error

    def empty_log(self) -> str:
        """Empty the write-ahead log of what was taken out of the file; why that must wait, where it must.

        SQLite waits for others that read, as long as our patience lasts, and then says that it is busy.
        """
        try:
            [(is_busy, _, _)] = self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        except StorageError as error:
            return f"the old statistics are still in {self.path}-wal: {error}"
        if not is_busy:
            return ""
        return (
            f"others read {self.path} all the while: the old statistics are still in its log, {self.path}-wal, and "
            "leave it when the last of them closes the ledger"
        )


def create(path: Path, terms: Terms, *, total_only: bool = False, keys: Mapping[str, str] | None = None) -> None:
    """Write a new file, which its owner alone can read, with terms, keys, a total of zero, and no members.

    It is made in a hidden folder beside its place and linked there when it is whole: a failure leaves no file.
    """
    written: os.stat_result | None = None
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            whole = Path(folder) / path.name
            _write(whole, terms, total_only, keys or {})
            written = whole.stat()
            _link(whole, path)
    except FedsolveError:
        raise
    except FileExistsError:
        raise DataError(f"{path} exists; name another file, or remove it first") from None
    except OSError as error:
        raise StorageError(f"cannot make {path}: {error.strerror or error}") from error
    except ERRORS as error:
        raise fault(f"cannot make {path}", error) from error
    except BaseException:  # an interrupt, maybe after the file got its name
        if written is not None and path.exists() and os.path.samestat(path.stat(), written):
            path.unlink()
        raise


def _write(path: Path, terms: Terms, total_only: bool, keys: Mapping[str, str]) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(_connect(path)) as db:
        db.execute(f"PRAGMA page_size = {PAGE}")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};")
        db.execute("INSERT INTO terms VALUES (1, ?, ?, '')", (not total_only, terms.write()))
        seal_terms(db)
        db.execute("INSERT INTO total VALUES (1, 0, x'', x'')")
        sums.write_total(db, Total(terms.zero))
        for client, public in keys.items():
            entries.trust(db, client, public)
        entries.note(db, "created")
        db.execute("COMMIT")


def _link(source: Path, target: Path) -> None:
    """Give a file its name, unless that is taken."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if target.exists():
            raise FileExistsError(target) from None
        os.rename(source, target)


def last_events(path: Path, most: int) -> tuple[Event, ...]:
    """The last lines of a ledger's journal, the latest first; the file is read, and nothing else."""
    if not path.is_file():
        raise DataError(f"there is no ledger {path}; make one with `fedsolve ledger create`")
    lines = "SELECT at, event, client, digest, bytes, reason FROM journal ORDER BY number DESC LIMIT ?"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", timeout=GLANCE, uri=True)) as db:
            return tuple(Event(*row) for row in db.execute(lines, (most,)))
    except ERRORS as error:
        raise fault(f"cannot read {path}", error) from error


def _connect(path: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    except ERRORS as error:
        raise fault(f"cannot open {path}", error) from error
    try:
        db.execute("PRAGMA synchronous = FULL")  # acknowledged is on the disk
        db.execute("PRAGMA secure_delete = ON")  # removed is not
        db.execute(f"PRAGMA cache_size = {-1024 * CACHE}")  # in KB where it is negative
    except ERRORS as error:
        db.close()
        raise fault(f"cannot open {path}", error) from error
    return db
