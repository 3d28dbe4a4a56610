"""The running total in the file of a ledger.

A contribution first waits beside the total: its number is then above `total.upto`, the last number that is summed. A
few of them are summed together (`fold`), so that an addition writes the contribution and little else. The total is read
only with its digests, and parts only as the contributions that were let in. The functions take a connection inside a
transaction, which `Database.change` or `snapshot` opens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.codec import Bytes
from fedsolve.errors import DataError
from fedsolve.ledger import entries
from fedsolve.ledger.total import Total

FOLD = 32  # contributions that wait at most to be summed


def read_total(db: sqlite3.Connection) -> Total:
    """The total of what is summed so far; refused where it is not what was written."""
    return Total(read_high(db), codec.decode(_checked(db, "low")))


def read_high(db: sqlite3.Connection) -> Arrays:
    """The same, rounded once, as a method's `aggregate` takes it."""
    return codec.decode(_checked(db, "high"))


def write_total(db: sqlite3.Connection, total: Total, upto: int | None = None) -> None:
    """Keep a total; `upto` is the number of the last member in it, where that is another one than before."""
    if upto is None:
        upto = _upto(db)
    high, low = codec.encode(total.high), codec.encode(total.low)
    db.execute("UPDATE total SET high = ?, low = ?, upto = ?", (high, low, upto))
    db.execute("UPDATE head SET high = ?, low = ?", (entries.digest(upto, high), entries.digest(upto, low)))


def seal_total(db: sqlite3.Connection) -> None:
    """Give a total its digests, as if just written."""
    upto = _upto(db)
    digests = [entries.digest(upto, entries.blob(db, "total", half, 1)) for half in ("high", "low")]
    db.execute("UPDATE head SET high = ?, low = ?", digests)


def backlog(db: sqlite3.Connection) -> list[int]:
    """The numbers of the parts that wait to be summed, the oldest first."""
    query = "SELECT number FROM part WHERE number > (SELECT upto FROM total) ORDER BY number"
    return [number for (number,) in db.execute(query)]


def add_parts(db: sqlite3.Connection, total: Total, numbers: Iterable[int]) -> None:
    """Add the parts of those numbers to a total in memory."""
    for number in numbers:
        total.add(entries.part(db, number))


def wait(db: sqlite3.Connection, number: int, data: Bytes) -> None:
    """Keep the part of a new member, which waits to be summed with others."""
    entries.insert_part(db, number, data)
    if len(backlog(db)) >= FOLD:
        fold(db)


def fold(db: sqlite3.Connection) -> None:
    """Sum the parts that wait into the kept total."""
    numbers = backlog(db)
    if numbers:
        total = read_total(db)
        add_parts(db, total, numbers)
        write_total(db, total, numbers[-1])


def take(db: sqlite3.Connection, number: int, part: Arrays | None, zero: Arrays) -> None:
    """Delete a member whose part is summed, and take the part out of the kept total.

    `zero` are the moments of nobody. Without `part`, because the one in the file is damaged, the parts that are left
    are summed anew.
    """
    entries.delete(db, number)
    others = [other for (other,) in db.execute("SELECT number FROM member WHERE number <= (SELECT upto FROM total)")]
    if part is None or not others:
        total = Total(zero)
        add_parts(db, total, others)
    else:
        total = read_total(db)
        total.take(part)
    write_total(db, total)


def _checked(db: sqlite3.Connection, half: str) -> bytes:
    data = entries.blob(db, "total", half, 1)
    if entries.digest(_upto(db), data) != entries.head(db, half):
        raise DataError(
            "the total is not what was written: the file is damaged; where single contributions are kept, `fedsolve "
            "ledger verify` sums them again, otherwise put a backup in its place"
        )
    return data


def _upto(db: sqlite3.Connection) -> int:
    (upto,) = db.execute("SELECT upto FROM total").fetchone()
    return upto  # type: ignore[no-any-return]  # whatever damage made of it, the digests tell
