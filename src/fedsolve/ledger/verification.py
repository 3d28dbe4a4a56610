"""Whether the file of a ledger is what was written, looked at row by row."""

from __future__ import annotations

import sqlite3

from fedsolve.arrays import Arrays
from fedsolve.errors import FedsolveError
from fedsolve.ledger import entries, sums
from fedsolve.ledger.records import Check
from fedsolve.ledger.total import Total


def verify(db: sqlite3.Connection, zero: Arrays, *, total_only: bool) -> Check:
    """All that is wrong, inside a transaction that writes; a wrong total is put right where the parts are there.

    `zero` are the moments of nobody.
    """
    faults = [text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
    faults += entries.faults(db)
    is_listed = not faults
    faults += entries.journal_faults(db)
    rebuilt, is_whole = Total(zero), not total_only
    rows = db.execute("SELECT number, samples FROM member ORDER BY number").fetchall()
    for number, _ in [] if total_only else rows:
        try:
            rebuilt.add(entries.part(db, number))
        except FedsolveError as error:
            faults.append(str(error))
            is_whole = False
    samples = sum(count for _, count in rows) if is_listed else 0
    drift = None
    try:
        sums.fold(db)
        total = sums.read_total(db)
        drift = total.distance(rebuilt) if is_whole else None
        if is_listed and int(total.high["count"]) != samples:
            faults.append(f"the total counts {int(total.high['count'])} samples, its members {samples}")
    except FedsolveError as error:
        faults.append(str(error))
    if is_whole and is_listed and drift != 0:
        faults.append("the total was not the sum of its parts, and is now")
        sums.write_total(db, rebuilt, max((number for number, _ in rows), default=0))
        entries.note(db, "rebuilt", reason="the total was not the sum of its parts")
    return Check(entries.headcount(db) if is_listed else len(rows), samples, drift, tuple(faults))
