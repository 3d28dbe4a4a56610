"""Ledgers of format 1, which version 0.1.0 wrote: made one of format 2 in one transaction, when they are opened.

Format 1 has no digests but those of contributions, rounds its total, and forgets who left. A ledger of format 2 becomes
one of format 3 when the first cohort comes in, so that versions that know nothing of cohorts do not open it.
"""

from __future__ import annotations

import sqlite3

from fedsolve.ledger import entries, sums
from fedsolve.ledger.total import Total

COLUMNS = """
ALTER TABLE terms ADD COLUMN digest TEXT NOT NULL DEFAULT '';
ALTER TABLE member ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE member ADD COLUMN seal TEXT NOT NULL DEFAULT '';
ALTER TABLE journal ADD COLUMN seal TEXT NOT NULL DEFAULT '';
"""
TABLES = """
CREATE TABLE departed (
    client TEXT PRIMARY KEY, digest TEXT NOT NULL, sequence INTEGER NOT NULL, at TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE key (client TEXT PRIMARY KEY, public TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1), members TEXT NOT NULL, journal TEXT NOT NULL, high TEXT NOT NULL,
    low TEXT NOT NULL);
INSERT INTO head VALUES (1, '00000000000000000000000000000000', '', '', '');
"""

COMMITMENTS = """
CREATE TABLE commitment (
    client TEXT NOT NULL, salt BLOB NOT NULL, digest TEXT NOT NULL UNIQUE, seal TEXT NOT NULL);
"""


def upgrade(db: sqlite3.Connection, shape: tuple[int, int], *, total_only: bool) -> None:
    """Bring a ledger of format 1 to format 2, inside a transaction.

    Single contributions wait to be summed again, exactly. Where only the total is kept, it stays the rounded one.
    """
    for statement in (COLUMNS + TABLES).split(";"):
        db.execute(statement)
    seal_terms(db)
    removed = "SELECT client, digest, max(number) FROM journal WHERE event = 'removed' GROUP BY client"
    for client, content_digest, _ in db.execute(removed).fetchall():
        if not db.execute("SELECT 1 FROM member WHERE client = ?", (client,)).fetchone():
            db.execute("INSERT INTO departed VALUES (?, ?, 0, ?, '')", (client, content_digest, entries.now()))
    entries.seal_all(db)
    if total_only:
        sums.seal_total(db)
    else:
        sums.write_total(db, Total.zero(*shape), 0)


def hold_cohorts(db: sqlite3.Connection) -> None:
    """Make room for the members of cohorts, inside a transaction."""
    db.execute(COMMITMENTS)
    db.execute(f"PRAGMA user_version = {entries.COHORTS}")


def seal_terms(db: sqlite3.Connection) -> None:
    """Give terms their digest."""
    keeps, data = db.execute("SELECT keeps, data FROM terms").fetchone()
    db.execute("UPDATE terms SET digest = ?", (entries.digest(keeps, data),))
