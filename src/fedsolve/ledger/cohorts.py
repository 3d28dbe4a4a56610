"""Cohorts: clients of a secure sum, who are in a ledger as one contribution, the sum over all of them.

The file keeps no names of members, but a commitment to each. A client counts once: by itself, or in one cohort. The
functions take a connection inside a transaction, which `Database.change` or `snapshot` opens.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator

from fedsolve.census import Census
from fedsolve.codec import Bytes
from fedsolve.data.federation import check_name
from fedsolve.errors import DataError
from fedsolve.ledger import entries, sums
from fedsolve.ledger.commitments import Commitment
from fedsolve.ledger.records import Answer
from fedsolve.ledger.upgrade import hold_cohorts
from fedsolve.privacy.graph import LEAST


def read(db: sqlite3.Connection) -> Iterator[tuple[str, Commitment]]:
    """Every member of every cohort: the cohort's name, and the commitment; refused where a row is damaged."""
    if not entries.has_cohorts(db):
        return
    for seal, *values in db.execute(f"SELECT seal, {entries.COMMITMENT} FROM commitment"):
        cohort, *kept = values
        commitment = Commitment(*kept)
        if not commitment.is_one or entries.digest(*values) != seal:
            raise DataError(f"the members of {cohort!r} are damaged; `fedsolve ledger verify` says what else is")
        yield cohort, commitment


def sizes(db: sqlite3.Connection) -> Counter[str]:
    """How many members each cohort has, by its name."""
    return Counter(cohort for cohort, _ in read(db))


def places(db: sqlite3.Connection, clients: Collection[str]) -> dict[str, str]:
    """The cohorts that clients are in, by client; those in none are not there."""
    return {client: cohort for cohort, commitment in read(db) for client in clients if commitment.is_to(client)}


def check_apart(db: sqlite3.Connection, client: str) -> None:
    """Refuse a contribution of a client that is counted in a cohort, or under a cohort's name."""
    for cohort, commitment in read(db):
        if cohort == client:
            raise DataError(f"{client!r} is the name of a cohort; choose another one for the client")
        if commitment.is_to(client):
            raise DataError(
                f"{client!r} is a member of {cohort!r}, and would be counted twice; remove the cohort as a whole first"
            )


def admit(db: sqlite3.Connection, roster: frozenset[str], census: Census, content: str, data: Bytes) -> Answer:
    """Take in the sum over a roster, whose digest is `content`: a new member, under a name of its own."""
    for client in roster:
        check_name(client)
    if len(roster) < LEAST:
        raise DataError(
            f"a cohort has at least {LEAST} members, since of two each knows the other's part; got {len(roster)}"
        )
    if entries.keys(db):
        raise DataError("the ledger has keys and takes what is signed alone, and nobody can sign the sum over others")
    found, owner = places(db, roster), entries.owner(db, content)
    if owner is not None and sizes(db)[owner] == len(roster) and [*found.values()] == [owner] * len(roster):
        return Answer(owner, "unchanged", "the very same sum over these members is in already")
    for client in sorted(roster):
        if client in found or entries.entry(db, client) is not None:
            where = f"a member of {found[client]!r}" if client in found else "in by itself"
            holder = found.get(client, client)
            raise DataError(f"{client!r} is {where}, and would be counted twice; remove {holder!r} first")
    if owner is not None:
        raise DataError(f"a replay: {owner!r} has the very same statistics")
    name = _free_name(db, roster)
    number = entries.insert(db, name, content, census.samples, census.classes, len(data), time.time_ns())
    if not entries.has_cohorts(db):
        hold_cohorts(db)
    for commitment in sorted(map(Commitment.to, roster), key=lambda each: each.digest):  # an order that names nobody
        entries.commit(db, name, *commitment)
    sums.wait(db, number, data)
    entries.note(db, "added", name, content, len(data), f"the sum over {len(roster)} clients")
    return Answer(name, "added")


def unnamed(reason: str, roster: frozenset[str]) -> str:
    """The reason for a refusal as the journal keeps it, which names no members of cohorts."""
    for client in roster:
        reason = reason.replace(repr(client), "a member")
    return reason


def _free_name(db: sqlite3.Connection, roster: frozenset[str]) -> str:
    """cohort-1, cohort-2, ...: the first that the file has never named, and that is nobody's own."""
    tables = ("member", "departed", "journal")
    taken = {name for table in tables for (name,) in db.execute(f"SELECT client FROM {table}")} | roster
    number = 1
    while f"cohort-{number}" in taken or places(db, [f"cohort-{number}"]):
        number += 1
    return f"cohort-{number}"


def check_whole(db: sqlite3.Connection, client: str) -> None:
    """Refuse to take a single member out of a cohort."""
    cohort = places(db, [client]).get(client)
    if cohort is not None:
        raise DataError(
            f"{client!r} is a member of {cohort!r}, of which the sum alone is known: a total with it less one without "
            f"it would disclose its statistics; remove {cohort!r} as a whole"
        )
