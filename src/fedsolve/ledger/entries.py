"""The rows of a ledger: members, those who left, keys, members of cohorts, single contributions, and the journal.

Every row has a seal, a digest of what stands in it. The table `head` has the sum of the seals of all members, of all
who left, of all keys and of all in cohorts, and the seal of the last line of the journal, which covers the lines before
it. So a row that is changed, lost or put in by damage shows. The functions take a connection inside a transaction,
which `Database.change` or `snapshot` opens.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.errors import DataError
from fedsolve.ledger.validate import content

LONGEST = 500  # characters of a reason that are kept: strangers have a say in it
_DIGITS = 32  # of a seal
_MEMBER = "number, client, digest, samples, classes, bytes, at, sequence"
_DEPARTED = "client, digest, sequence, at"
_KEY = "client, public"
COMMITMENT = "client, salt, digest"  # the cohort's name, and a member's
COHORTS = 3  # the format of a ledger with cohorts: a plain one has no table for them, and stays of format 2
_TABLES = (("member", _MEMBER), ("departed", _DEPARTED), ("key", _KEY))
_LINE = "number, at, event, client, digest, bytes, reason"


def digest(*pieces: object) -> str:
    """The digest of values: bytes as they are, others as Python writes them."""
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece if isinstance(piece, bytes | memoryview) else f"{piece!r}\n".encode())
    return hashed.hexdigest()[:_DIGITS]


# --- members, and who left ---


class Entry(NamedTuple):
    """A member as it stands in the file."""

    number: int
    digest: str
    size: int  # of its contribution, in bytes
    sequence: int  # of its contribution, by the client's own count
    is_summed: bool  # in the total; otherwise its part waits


class Departed(NamedTuple):
    """What is remembered of a client that was taken out: no statistics."""

    client: str
    digest: str
    sequence: int
    at: str


def entry(db: sqlite3.Connection, client: str) -> Entry | None:
    """The member of that name, if there is one."""
    query = f"SELECT number <= (SELECT upto FROM total), seal, {_MEMBER} FROM member WHERE client = ?"
    row = db.execute(query, (client,)).fetchone()
    if row is None:
        return None
    is_summed, seal, *values = row
    if digest(*values) != seal:
        raise DataError(f"the entry of {client!r} is damaged; `fedsolve ledger verify` says what else is")
    number, _, content_digest, _, _, size, _, sequence = values
    return Entry(number, content_digest, size, sequence, bool(is_summed))


def departed(db: sqlite3.Connection, client: str) -> Departed | None:
    """What is remembered of a client of that name that was taken out, if one was."""
    row = db.execute(f"SELECT {_DEPARTED} FROM departed WHERE client = ?", (client,)).fetchone()
    return Departed._make(row) if row else None


def owner(db: sqlite3.Connection, content_digest: str) -> str | None:
    """The client whose contribution has that digest, if one is in."""
    row = db.execute("SELECT client FROM member WHERE digest = ?", (content_digest,)).fetchone()
    return row[0] if row else None


def insert(
    db: sqlite3.Connection, client: str, content_digest: str, samples: int, classes: int, size: int, sequence: int
) -> int:
    """Add a member, and return its number, which is above all that are in or summed."""
    (number,) = db.execute(
        "SELECT 1 + max((SELECT upto FROM total), (SELECT coalesce(max(number), 0) FROM member))"
    ).fetchone()
    values = (number, client, content_digest, samples, classes, size, now(), sequence)
    db.execute(f"INSERT INTO member ({_MEMBER}, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, digest(*values)))
    _count(db, digest(*values), 1)
    forget(db, client)
    return int(number)


def delete(db: sqlite3.Connection, number: int) -> None:
    """Delete a member and its part; the total is left as it is."""
    db.execute("DELETE FROM part WHERE number = ?", (number,))
    _uncount(db, "member", "number", number)
    db.execute("DELETE FROM member WHERE number = ?", (number,))


def remember(db: sqlite3.Connection, client: str, content_digest: str, sequence: int) -> None:
    """Remember a client that was taken out: its old contributions are not let in again."""
    values = (client, content_digest, sequence, now())
    db.execute(f"INSERT INTO departed ({_DEPARTED}, seal) VALUES (?, ?, ?, ?, ?)", (*values, digest(*values)))
    _count(db, digest(*values), 1)


def forget(db: sqlite3.Connection, client: str) -> None:
    """Forget that a client of that name was taken out, if one was."""
    _uncount(db, "departed", "client", client)
    db.execute("DELETE FROM departed WHERE client = ?", (client,))


def renumber(db: sqlite3.Connection, client: str, sequence: int) -> None:
    """Put another number of its last contribution to a member."""
    _uncount(db, "member", "client", client)
    db.execute("UPDATE member SET sequence = ? WHERE client = ?", (sequence, client))
    values = db.execute(f"SELECT {_MEMBER} FROM member WHERE client = ?", (client,)).fetchone()
    db.execute("UPDATE member SET seal = ? WHERE client = ?", (digest(*values), client))
    _count(db, digest(*values), 1)


def trust(db: sqlite3.Connection, client: str, public: str) -> None:
    """Keep the public key of a client in place of the one it had."""
    _uncount(db, "key", "client", client)
    seal = digest(client, public)
    db.execute(f"INSERT OR REPLACE INTO key ({_KEY}, seal) VALUES (?, ?, ?)", (client, public, seal))
    _count(db, seal, 1)


def keys(db: sqlite3.Connection) -> dict[str, str]:
    """The public keys of clients; where there are any, contributions must be signed."""
    public: dict[str, str] = {}
    for seal, *values in db.execute(f"SELECT seal, {_KEY} FROM key"):
        if digest(*values) != seal:
            raise DataError(f"the key of {values[0]!r} is damaged; `fedsolve ledger verify` says what else is")
        public[values[0]] = values[1]
    return public


def has_cohorts(db: sqlite3.Connection) -> bool:
    """Whether there are, or were, cohorts in the file."""
    version, found = db.execute(  # one query, since it may be asked outside a transaction
        "SELECT user_version, EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'commitment') FROM pragma_user_version"
    ).fetchone()
    if bool(found) != (version == COHORTS):
        raise DataError("the list of cohorts is damaged; put a backup in its place")
    return bool(found)


def commit(db: sqlite3.Connection, cohort: str, salt: bytes, commitment: str) -> None:
    """Keep the commitment to a member of a cohort."""
    seal = digest(cohort, salt, commitment)
    db.execute(f"INSERT INTO commitment ({COMMITMENT}, seal) VALUES (?, ?, ?, ?)", (cohort, salt, commitment, seal))
    _count(db, seal, 1)


def dissolve(db: sqlite3.Connection, cohort: str) -> None:
    """Delete the commitments to the members of a cohort, if it is one."""
    if has_cohorts(db):
        _uncount(db, "commitment", "client", cohort)
        db.execute("DELETE FROM commitment WHERE client = ?", (cohort,))


def headcount(db: sqlite3.Connection) -> int:
    """How many clients are in, those of cohorts too."""
    (count,) = db.execute("SELECT count(*) FROM member").fetchone()
    if has_cohorts(db):
        count += db.execute("SELECT count(*) - count(DISTINCT client) FROM commitment").fetchone()[0]
    return int(count)


def faults(db: sqlite3.Connection) -> list[str]:
    """What is wrong with members, who left, keys and cohorts: one sentence each, none where all is well."""
    wrong: list[str] = []
    count = 0
    try:
        tables = (*_TABLES, ("commitment", COMMITMENT)) if has_cohorts(db) else _TABLES
    except DataError as error:
        return [str(error)]
    for table, columns in tables:
        for seal, client, *values in db.execute(f"SELECT seal, client, {columns} FROM {table}"):
            if digest(*values) != seal:
                wrong.append(f"the entry of {client!r} is damaged")
            else:
                count += int(seal, 16)
    if not wrong and _text(count) != head(db, "members"):
        wrong.append("the list of members is damaged: one is missing, or more are there than were let in")
    return wrong


def head(db: sqlite3.Connection, column: str) -> str:
    """A digest in the one row of the table `head`."""
    row = db.execute(f"SELECT {column} FROM head").fetchone()
    if row is None or not isinstance(row[0], str):
        raise DataError("the digests of the ledger are damaged; put a backup in its place")
    return row[0]


def _count(db: sqlite3.Connection, seal: str, sign: int) -> None:
    try:
        count = int(head(db, "members"), 16) + sign * int(seal, 16)
    except (ValueError, TypeError):
        raise DataError("the digests of the ledger are damaged; put a backup in its place") from None
    db.execute("UPDATE head SET members = ?", (_text(count),))


def _uncount(db: sqlite3.Connection, table: str, column: str, value: object) -> None:
    for (seal,) in db.execute(f"SELECT seal FROM {table} WHERE {column} = ?", (value,)).fetchall():
        _count(db, seal, -1)


def _text(count: int) -> str:
    return f"{count % 16**_DIGITS:0{_DIGITS}x}"


# --- single contributions ---


def insert_part(db: sqlite3.Connection, number: int, data: Bytes) -> None:
    """Keep the contribution of a member; it waits to be summed."""
    db.execute("INSERT INTO part VALUES (?, ?)", (number, data))


def part(db: sqlite3.Connection, number: int) -> Arrays:
    """The contribution of a member; refused where it is not the one that was let in."""
    row = db.execute("SELECT client, digest FROM member WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise DataError(f"contribution {number} is nobody's: the list of members is damaged")
    client, wanted = row
    try:
        arrays = codec.decode(blob(db, "part", "data", number), "it")
        if content(arrays) != wanted:
            raise DataError("its content is not what was let in")
    except (DataError, sqlite3.OperationalError) as error:
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise  # it is there, and the machine cannot read it
        raise DataError(f"the contribution of {client!r} is damaged: {error}") from error
    return arrays


def blob(db: sqlite3.Connection, table: str, column: str, number: int) -> bytes:
    """A large value, without the copy that a query makes."""
    with db.blobopen(table, column, number, readonly=True) as value:
        return value.read()


# --- the journal ---


def note(
    db: sqlite3.Connection, event: str, client: str = "", content_digest: str = "", size: int = 0, reason: str = ""
) -> None:
    """Write a line of the journal, sealed together with all before it."""
    (number,) = db.execute("SELECT 1 + coalesce(max(number), 0) FROM journal").fetchone()
    values = (number, now(), event, client, content_digest, size, reason[:LONGEST])
    seal = digest(head(db, "journal"), *values)
    db.execute(f"INSERT INTO journal ({_LINE}, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*values, seal))
    db.execute("UPDATE head SET journal = ?", (seal,))


def journal_faults(db: sqlite3.Connection) -> list[str]:
    """Where the journal was changed first, as a sentence; none where it was not."""
    last = ""
    for seal, *values in _lines(db):
        if digest(last, *values) != seal:
            return [f"the journal was changed at line {values[0]!r}"]
        last = seal
    return [] if last == head(db, "journal") else [f"the journal was changed: its last lines are missing after {last}"]


def seal_all(db: sqlite3.Connection) -> None:
    """Give every row of members, of those who left and of the journal its seal, as if just written."""
    count = 0
    for table, columns in _TABLES:
        for row, *values in db.execute(f"SELECT rowid, {columns} FROM {table}").fetchall():
            db.execute(f"UPDATE {table} SET seal = ? WHERE rowid = ?", (digest(*values), row))
            count += int(digest(*values), 16)
    last = ""
    for _, *values in _lines(db):
        last = digest(last, *values)
        db.execute("UPDATE journal SET seal = ? WHERE number = ?", (last, values[0]))
    db.execute("UPDATE head SET members = ?, journal = ?", (_text(count), last))


def _lines(db: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    return iter(db.execute(f"SELECT seal, {_LINE} FROM journal ORDER BY number").fetchall())


def now() -> str:
    """The time, UTC, as it stands in the file."""
    return datetime.now(UTC).isoformat(timespec="seconds")
