"""Cohorts in a ledger: one contribution for all members, who are committed to, counted once, and leave together."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec
from fedsolve.ledger import commitments, entries
from fedsolve.ledger.commitments import Commitment
from fedsolve.ledger.records import Answer, Check
from fedsolve.ledger.store import Ledger
from tests.core.test_ledger import METHODS, TASK, contribution, raw, state_of

WARDS = ("ward-a", "ward-b", "ward-c")
AFL = fs.AFL(ridge=0.1, intercept=False)


def total_of(ledger: Ledger, numbers: range) -> Any:
    """The sum over samples of those numbers, as a secure sum gives it: nobody's part is told."""
    parts = [fs.Moments.from_arrays(contribution(ledger.terms, number).arrays) for number in numbers]
    return sum(parts[1:], parts[0]).arrays()


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    made = Ledger.create(tmp_path / "fed.db", AFL, TASK)
    yield made
    with suppress(fs.DataError):  # a test closed it
        made.close()


# --- sums ---


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: f"{method.name}{'-1' * getattr(method, 'intercept', False)}"
)
def test_cohorts_and_single_clients_solve_what_one_run_over_all_solves(tmp_path: Path, method: fs.Method) -> None:
    with Ledger.create(tmp_path / "fed.db", method, TASK, seed=3) as ledger:
        ledger.add(contribution(ledger.terms, 0))
        assert ledger.add_cohort(WARDS, total_of(ledger, range(1, 4))) == Answer("cohort-1", "added")
        assert ledger.add_cohort(["d", "e", "f", "g"], total_of(ledger, range(4, 8))) == Answer("cohort-2", "added")
        solved, wanted = ledger.solve(), state_of(ledger.terms, list(range(8)))
        for name in wanted:
            np.testing.assert_allclose(solved.state[name], wanted[name], rtol=1e-9, atol=1e-10)
        assert (solved.clients, solved.samples, len(solved.digests)) == (8, 320, 3)
        assert [(m.client, m.cohort, m.heads, m.samples) for m in ledger.members()] == [
            ("cohort-1", 3, 3, 120), ("cohort-2", 4, 4, 160), ("site-0000", 0, 1, 40),
        ]  # fmt: skip
        assert ledger.verify() == Check(8, 320, 0.0, ())
        assert [(e.event, e.client, e.reason) for e in ledger.journal()][2:] == [
            ("added", "cohort-1", "the sum over 3 clients"), ("added", "cohort-2", "the sum over 4 clients"),
        ]  # fmt: skip


def test_what_is_in_of_a_cohort_is_its_sum_and_its_influence_is_of_the_whole(ledger: Ledger) -> None:
    total = total_of(ledger, range(3))
    ledger.add_cohort(WARDS, total)
    for number in (5, 6):
        ledger.add(contribution(ledger.terms, number))
    [kept] = [part for member, part in ledger.parts() if member.client == "cohort-1"]
    assert all(np.array_equal(kept[name], total[name]) for name in total)
    assert {each.client: each.samples for each in ledger.influence()}["cohort-1"] == 120


def test_a_removed_cohort_was_never_there(ledger: Ledger) -> None:
    for number in range(4):
        ledger.add(contribution(ledger.terms, number))
    ledger.settle()
    members, [(_, *before)] = raw(ledger)
    ledger.add_cohort(WARDS, total_of(ledger, range(10, 13)))
    ledger.settle()
    assert raw(ledger)[1][0][1:] != tuple(before)
    assert ledger.remove("cohort-1") == Answer("cohort-1", "removed")
    assert (raw(ledger)[0], [*raw(ledger)[1][0][1:]]) == (members, before)
    assert rows(ledger.path, "SELECT * FROM commitment") == []
    assert ledger.cohort_of("ward-a") is None and ledger.verify() == Check(4, 160, 0.0, ())
    assert ledger.add(contribution(ledger.terms, 20, "ward-b")).event == "added"  # it may come by itself now
    ledger.add_cohort(["x", "y", "z"], total_of(ledger, range(10, 13)))
    assert ledger.cohort_of("y") == "cohort-2"  # a name is nobody else's, even when it is free again


# --- members ---


def test_a_member_is_found_by_its_name_and_a_stranger_is_not(ledger: Ledger) -> None:
    assert ledger.cohort_of("ward-a") is None
    ledger.add_cohort(WARDS, total_of(ledger, range(3)))
    assert [ledger.cohort_of(name) for name in (*WARDS, "ward-d", "", "cohort-1")] == ["cohort-1"] * 3 + [None] * 3
    with Ledger(ledger.path) as other:  # whoever opens the file
        assert other.cohort_of("ward-b") == "cohort-1"


def test_the_file_names_no_member(ledger: Ledger) -> None:
    ledger.add_cohort(WARDS, total_of(ledger, range(3)))
    with pytest.raises(fs.DataError, match="'ward-b' is a member of 'cohort-1'"):
        ledger.add_cohort(["x", "y", "ward-b"], total_of(ledger, range(4, 7)))
    with pytest.raises(fs.DataError):
        ledger.remove("ward-c")
    assert (
        ledger.journal()[-1].reason
        == "a member is a member of 'cohort-1', and would be counted twice; remove 'cohort-1' first"
    )
    ledger.close()
    kept = b"".join(path.read_bytes() for path in ledger.path.parent.iterdir())
    assert b"cohort-1" in kept and b"ward-" not in kept


def test_the_same_members_twice_have_other_commitments(tmp_path: Path) -> None:
    found = set()
    for name in ("one.db", "two.db"):
        with Ledger.create(tmp_path / name, AFL, TASK) as ledger:
            ledger.add_cohort(WARDS, total_of(ledger, range(3)))
        kept = rows(tmp_path / name, "SELECT salt, digest FROM commitment")
        assert [digest for _, digest in kept] == sorted(digest for _, digest in kept)  # an order that names nobody
        found |= {piece for row in kept for piece in row}
    assert len(found) == 12


def test_a_single_member_is_not_taken_out_with_or_without_its_contribution(ledger: Ledger) -> None:
    ledger.add_cohort(WARDS, total_of(ledger, range(3)))
    before = raw(ledger)
    reason = (
        r"^'ward-b' is a member of 'cohort-1', of which the sum alone is known: a total with it less one without it "
        r"would disclose its statistics; remove 'cohort-1' as a whole$"
    )
    for given in (None, contribution(ledger.terms, 1, "ward-b")):
        with pytest.raises(fs.DataError, match=reason):
            ledger.remove("ward-b", given)
    with pytest.raises(fs.FedsolveError, match="unknown client 'ward-x'"):
        ledger.remove("ward-x")
    assert raw(ledger) == before


def test_nobody_is_counted_twice(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add(contribution(ledger.terms, 0))
    ledger.add_cohort(WARDS, total_of(ledger, range(1, 4)))
    before = raw(ledger)
    late = contribution(ledger.terms, 9, "ward-b")
    with pytest.raises(
        fs.DataError, match=r"'ward-b' is a member of 'cohort-1', and would be counted twice; remove the"
    ):
        ledger.add(late)
    late.save(tmp_path / "late.safetensors", ledger.terms)
    [answer] = ledger.offer_files([tmp_path / "late.safetensors"])
    assert answer.event == "rejected" and "counted twice" in answer.reason
    with pytest.raises(
        fs.DataError, match=r"^the cohort is refused: 'site-0000' is in by itself, and would be counted"
    ):
        ledger.add_cohort(["x", "y", "site-0000"], total_of(ledger, range(4, 7)))
    with pytest.raises(fs.DataError, match=r"^the cohort is refused: 'ward-c' is a member of 'cohort-1'"):
        ledger.add_cohort(["x", "y", "ward-c"], total_of(ledger, range(4, 7)))
    with pytest.raises(fs.DataError, match="'cohort-1' is the name of a cohort; choose another one"):
        ledger.add(contribution(ledger.terms, 9, "cohort-1"))
    with pytest.raises(fs.DataError, match="'cohort-1' is the name of a cohort"):
        ledger.readmit("cohort-1")
    with pytest.raises(fs.DataError, match="a replay: 'cohort-1' has the very same statistics"):
        ledger.add_cohort(["x", "y", "z"], total_of(ledger, range(1, 4)))
    assert raw(ledger) == before
    again = ledger.add_cohort(WARDS, total_of(ledger, range(1, 4)))
    assert (again.client, again.event) == ("cohort-1", "unchanged")  # a run that was run again
    assert raw(ledger) == before


def test_a_cohort_takes_no_name_that_is_somebodys(ledger: Ledger) -> None:
    ledger.add(contribution(ledger.terms, 0, "cohort-1"))
    ledger.add_cohort(["cohort-2", "b", "c"], total_of(ledger, range(1, 4)))
    assert ledger.cohort_of("b") == "cohort-3"
    ledger.add_cohort(["d", "e", "f"], total_of(ledger, range(4, 7)))
    assert ledger.cohort_of("d") == "cohort-4"
    with pytest.raises(fs.DataError, match="'cohort-2' is a member of 'cohort-3'"):
        ledger.remove("cohort-2")
    assert ledger.remove("cohort-1").event == "removed"
    assert [member.cohort for member in ledger.members()] == [3, 3]


def test_what_can_be_no_cohort_is_refused_and_leaves_a_plain_ledger(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "fed.db", AFL, TASK) as ledger:
        total = total_of(ledger, range(3))
        for clients, change, reason in (
            (WARDS[:2], {}, "a cohort has at least 3 members, since of two each knows the other's part; got 2"),
            (("ward-a", "ward-a", "ward-b"), {}, "at least 3 members"),
            (("ward-a", "ward-b", "../ward"), {}, "client names become file names"),
            (WARDS, {"count": np.array(0)}, "0 samples"),
            (WARDS, {"triangle": -total["triangle"]}, "the squares of feature . sum to -"),
        ):
            with pytest.raises(fs.DataError, match=f"^the cohort is refused: .*{reason}"):
                ledger.add_cohort(clients, {**total, **change})
        assert rows(ledger.path, "PRAGMA user_version") == [(2,)]
        assert {event.event for event in ledger.journal()} == {"created", "rejected"}
    refused = pytest.raises(fs.DataError, match="only the total is kept, and a cohort has no file")
    with Ledger.create(tmp_path / "total.db", AFL, TASK, total_only=True) as ledger, refused:
        ledger.add_cohort(WARDS, total)


# --- the file ---


def test_a_plain_ledger_is_as_before(tmp_path: Path) -> None:
    """Format 2 and its tables, and not a byte that changes when it is opened and read."""
    path = tmp_path / "fed.db"
    with Ledger.create(path, AFL, TASK) as ledger:
        for number in range(5):
            ledger.add(contribution(ledger.terms, number))
        ledger.remove("site-0003")
        ledger.solve().save(tmp_path / "solved")
        with pytest.raises(fs.FedsolveError, match="unknown client"):
            ledger.remove("ward-b")
    tables = {"terms", "member", "part", "total", "journal", "departed", "key", "head"}
    assert {name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")} == tables
    assert rows(path, "PRAGMA user_version") == [(2,)]
    assert "commitments" not in codec.read_file(tmp_path / "solved" / "message.safetensors")[1]
    before = path.read_bytes()
    with Ledger(path) as ledger:
        assert ledger.cohort_of("site-0001") is None and len(ledger.members()) == 4
        ledger.solve()
        [*ledger.parts()]
    assert path.read_bytes() == before


def test_a_plain_ledger_is_of_format_3_with_its_first_cohort(ledger: Ledger) -> None:
    assert rows(ledger.path, "PRAGMA user_version") == [(2,)]
    with Ledger(ledger.path) as other:  # open all the while
        ledger.add_cohort(WARDS, total_of(ledger, range(3)))
        assert rows(ledger.path, "PRAGMA user_version") == [(3,)]  # which older versions do not open
        with pytest.raises(fs.DataError, match="counted twice"):
            other.add(contribution(ledger.terms, 9, "ward-b"))
        assert other.add_cohort(["d", "e", "f"], total_of(ledger, range(3, 6))).client == "cohort-2"
    assert [member.cohort for member in ledger.members()] == [3, 3]


SEALED = "the entry of 'cohort-1' is damaged"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("UPDATE commitment SET digest = '0' || substr(digest, 2)", SEALED),
        ("UPDATE commitment SET salt = zeroblob(32)", SEALED),
        ("UPDATE commitment SET salt = 7", SEALED),
        ("UPDATE commitment SET seal = 7", SEALED),
        ("UPDATE commitment SET client = 'cohort-2'", "the entry of 'cohort-2' is damaged"),
        ("DELETE FROM commitment", "the list of members is damaged"),
        ("DROP TABLE commitment", "the list of cohorts is damaged"),
        ("PRAGMA user_version = 2", "the list of cohorts is damaged"),
    ],
)
def test_damaged_commitments_are_refused(ledger: Ledger, edit: str, words: str) -> None:
    ledger.add_cohort(WARDS, total_of(ledger, range(3)))
    ledger.close()
    one = " WHERE rowid = 2" if edit.startswith(("UPDATE", "DELETE")) else ""
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(edit + one)
    acts = (Ledger.members, Ledger.solve, lambda again: again.remove("nobody"))
    for act in acts:
        with pytest.raises(fs.DataError, match="damaged"), Ledger(ledger.path) as again:
            act(again)
    with pytest.raises(fs.DataError, match=words), Ledger(ledger.path) as again:
        raise fs.DataError("; ".join(again.verify().faults))


@pytest.mark.parametrize("salt", [b"short", "a" * 32, 7, 2.5, b"\0" * 33])
@pytest.mark.parametrize("digest", ["", "g" * 64, 7, b"a" * 64])
def test_commitments_with_forged_seals_are_refused_if_they_cannot_be(ledger: Ledger, salt: Any, digest: Any) -> None:
    ledger.add_cohort(WARDS, total_of(ledger, range(3)))
    with ledger._database.change() as db:
        entries.commit(db, "cohort-1", salt, digest)
    late = contribution(ledger.terms, 9, "ward-d")
    for act in (ledger.members, ledger.solve, lambda: ledger.cohort_of("ward-d"), lambda: ledger.add(late)):
        with pytest.raises(fs.DataError, match=r"'cohort-1' (are|is) damaged"):
            act()


def test_commitments_of_a_stranger_are_read_or_refused() -> None:
    made = [Commitment.to(name) for name in WARDS]
    assert commitments.from_text(commitments.to_text(made), "it") == made
    assert commitments.from_text("", "it") == []
    word = commitments.to_text(made[:1])
    for damaged in (":", "a", word[1:], word[:-1], word + "a", word.replace(":", ""), word[:64] + ":" + "G" * 64, "\0"):
        with pytest.raises(
            fs.DataError, match=r"^it is damaged: what it has of the members of cohorts are no commitments"
        ):
            commitments.from_text(damaged, "it")


def test_a_sequence_of_changes_leaves_no_drift(ledger: Ledger) -> None:
    """Cohorts and single clients come and go; what is in is always the sum of who is in."""
    rng, plain, groups, number = np.random.default_rng(0), set[str](), dict[str, range](), 100
    for _ in range(60):
        choice = rng.integers(4)
        if choice == 0 and plain:
            ledger.remove(name := sorted(plain)[0])
            plain.discard(name)
        elif choice == 1 and groups:
            ledger.remove(name := sorted(groups)[0])
            del groups[name]
        elif choice == 2:
            numbers = range(number, number := number + 3)
            groups[ledger.add_cohort([f"member-{each}" for each in numbers], total_of(ledger, numbers)).client] = (
                numbers
            )
        else:
            name = f"site-{number:04d}"
            ledger.add(contribution(ledger.terms, number))
            plain.add(name)
            number += 1
    check = ledger.verify()
    assert (check.members, check.drift, check.faults) == (len(plain) + 3 * len(groups), 0.0, ())
    wanted = state_of(
        ledger.terms, [int(name[5:]) for name in plain] + [each for group in groups.values() for each in group]
    )
    np.testing.assert_allclose(ledger.solve().state["weight"], wanted["weight"], rtol=1e-9, atol=1e-10)
    assert all(ledger.cohort_of(f"member-{each}") == name for name, group in groups.items() for each in group)


def test_where_clients_have_keys_there_are_no_cohorts(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from tests.security.test_ledger_attacks import key_pair

    _, public = key_pair(tmp_path, "ward-a")
    refused = pytest.raises(fs.DataError, match="nobody can sign the sum over others")
    with Ledger.create(tmp_path / "fed.db", AFL, TASK, keys={"ward-a": public}) as ledger, refused:
        ledger.add_cohort(WARDS, total_of(ledger, range(3)))
