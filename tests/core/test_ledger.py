"""The ledger: laws of the running sum, removal, refusal, restarts."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays as named
from fedsolve import codec
from fedsolve.features.maps import parse
from fedsolve.ledger import sums, validate
from fedsolve.ledger.contribution import Contribution
from fedsolve.ledger.database import APPLICATION
from fedsolve.ledger.records import Check
from fedsolve.ledger.store import Ledger
from fedsolve.ledger.sums import FOLD
from fedsolve.ledger.terms import Terms, load_terms, reply
from fedsolve.ledger.total import Total
from tests.conftest import relative
from tests.contexts import site

FEATURES, CLASSES = 12, 4
TASK = fs.Task(fs.Classes(CLASSES), (FEATURES,))
METHODS = [
    fs.AFL(ridge=0.1, intercept=False),
    fs.AFL(intercept=True, ridge=0.0),
    fs.FedHiP(beta=1.0, intercept=False),
    fs.APFL(d_primary=24, d_refine=8),
    fs.FedPrior(),
]


def data(number: int, samples: int = 40) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    x = rng.normal(rng.normal(size=FEATURES), rng.uniform(0.1, 3.0, FEATURES), (samples, FEATURES))
    return x, rng.integers(CLASSES, size=samples)


def contribution(terms: Terms, number: int, client: str = "", samples: int = 40) -> Contribution:
    x, y = data(number, samples)
    train = fs.Samples(x, y)
    _, reply = terms.method.update({}, terms.message, site(terms.task, train))
    return Contribution.of(client or f"site-{number:04d}", reply)


def state_of(terms: Terms, numbers: list[int]) -> Any:
    """A second derivation: one sum over all samples."""
    pairs = [data(number) for number in numbers]
    x, y = np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
    _, reply = terms.method.update({}, terms.message, site(terms.task, fs.Samples(x, y)))
    return terms.aggregate(reply)


def raw(ledger: Ledger) -> Any:
    """Everything that decides the sum, bit for bit."""
    with closing(sqlite3.connect(ledger.path)) as db, db:
        members = db.execute("SELECT client, digest, data FROM member LEFT JOIN part USING (number)").fetchall()
        return members, db.execute("SELECT upto, high, low FROM total").fetchall()


@pytest.fixture(params=METHODS, ids=lambda method: f"{method.name}{'-1' * getattr(method, 'intercept', False)}")
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with Ledger.create(tmp_path / "fed.db", request.param, TASK, seed=3) as made:
        yield made


# --- what it computes ---


def test_it_solves_what_one_run_over_all_solves(ledger: Ledger) -> None:
    numbers = list(range(2 * FOLD + 5))
    for number in numbers:
        assert ledger.add(contribution(ledger.terms, number)).event == "added"
    wanted = state_of(ledger.terms, numbers)
    assert relative(ledger.solve().state["weight"], wanted["weight"]) < 1e-9


def test_the_order_of_arrival_leaves_no_trace(tmp_path: Path) -> None:
    totals = []
    for seed in range(3):
        with Ledger.create(tmp_path / f"{seed}.db", fs.FedHiP(beta=1.0, intercept=False), TASK) as ledger:
            for number in np.random.default_rng(seed).permutation(30):
                ledger.add(contribution(ledger.terms, int(number)))
            totals.append(ledger.total())
    assert named.same(totals[0], totals[1]) and named.same(totals[0], totals[2])


def test_a_removed_client_was_never_there(ledger: Ledger) -> None:
    for number in range(20):
        ledger.add(contribution(ledger.terms, number))
    ledger.remove("site-0007")
    wanted = state_of(ledger.terms, [number for number in range(20) if number != 7])
    assert relative(ledger.solve().state["weight"], wanted["weight"]) < 1e-9
    assert "site-0007" not in {member.client for member in ledger.members()}


@pytest.mark.parametrize("total_only", [False, True])
def test_a_thousand_changes_leave_no_drift(tmp_path: Path, total_only: bool) -> None:
    rng = np.random.default_rng(5)
    with Ledger.create(tmp_path / "fed.db", fs.AFL(ridge=0.0, intercept=False), TASK, total_only=total_only) as ledger:
        ledger._database.connection.execute("PRAGMA synchronous = OFF")  # the disk is not what is tested here
        inside: set[int] = set()
        for _ in range(1000):
            number = int(rng.integers(40))
            mine = contribution(ledger.terms, number)
            if number in inside and len(inside) > 1:
                ledger.remove(mine.client, mine if total_only else None)
                inside.remove(number)
            elif number not in inside:
                ledger.add(mine)
                inside.add(number)
        wanted = state_of(ledger.terms, sorted(inside))
        assert relative(ledger.solve().state["weight"], wanted["weight"]) < 1e-10
        assert sorted(m.client for m in ledger.members()) == [f"site-{number:04d}" for number in sorted(inside)]
        check = ledger.verify()
    assert not check.faults
    assert (check.drift is None) == total_only
    assert check.drift is None or check.drift == 0.0


def test_a_client_that_comes_again_replaces_itself(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        ledger.add(contribution(ledger.terms, number))
    answer = ledger.add(contribution(ledger.terms, 9, client="site-0002"))
    assert answer.event == "replaced"
    wanted = state_of(ledger.terms, [1, 3, 9])
    assert relative(ledger.solve().state["weight"], wanted["weight"]) < 1e-9
    assert len(ledger.members()) == 3
    ledger.settle()
    assert ledger.add(contribution(ledger.terms, 2)).event == "replaced"
    assert relative(ledger.solve().state["weight"], state_of(ledger.terms, [1, 2, 3])["weight"]) < 1e-9


def test_the_same_again_changes_nothing(ledger: Ledger) -> None:
    ledger.add(contribution(ledger.terms, 1))
    before = raw(ledger)
    assert ledger.add(contribution(ledger.terms, 1)).event == "unchanged"
    assert raw(ledger) == before


def test_a_feature_that_only_the_removed_client_had_is_exactly_gone(tmp_path: Path) -> None:
    # Rounding left in such a column would be brought to unit diagonal by the solver, and count as a feature.
    with Ledger.create(tmp_path / "fed.db", fs.AFL(ridge=0.0, intercept=False), TASK) as ledger:
        for number in range(20):
            x, y = data(number)
            if number != 4:
                x[:, 3] = 0.0
            moments = fs.Moments.of(x, y, classes=CLASSES)
            ledger.add(Contribution.of(f"site-{number}", moments.arrays()))
        ledger.settle()
        ledger.remove("site-4")
        left = fs.Moments.from_arrays(ledger.total())
        assert not left.gram[3].any() and not left.cross[3].any()
        assert not ledger.solve().state["weight"][3].any()


def test_a_giant_that_leaves_takes_no_digits_along(tmp_path: Path) -> None:
    with (
        Ledger.create(tmp_path / "fed.db", fs.AFL(ridge=0.0, intercept=False), TASK) as ledger,
        Ledger.create(tmp_path / "other.db", fs.AFL(ridge=0.0, intercept=False), TASK) as other,
    ):
        x, y = data(99)
        ledger.add(Contribution.of("giant", fs.Moments.of(1e11 * x, y, classes=CLASSES).arrays()))
        for number in range(5):
            ledger.add(contribution(ledger.terms, number))
            other.add(contribution(other.terms, number))
        ledger.settle()
        ledger.add(contribution(ledger.terms, 5))  # which waits, and is not summed twice
        other.add(contribution(other.terms, 5))
        ledger.remove("giant")
        assert named.same(ledger.total(), other.total())
        wanted = state_of(ledger.terms, list(range(6)))
        assert relative(ledger.solve().state["weight"], wanted["weight"]) < 1e-9


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_removed_and_replaced_statistics_are_not_in_the_file(tmp_path: Path, way: str) -> None:
    path = tmp_path / "fed.db"
    with Ledger.create(path, fs.FedHiP(beta=1.0, intercept=False), TASK) as ledger:
        mine = contribution(ledger.terms, 1)
        ledger.add(mine)
        for number in range(2, 20):
            ledger.add(contribution(ledger.terms, number))
        needle = np.asarray(mine.arrays["cross"]).tobytes()
        files = [path, path.with_name("fed.db-wal")]
        assert any(needle in file.read_bytes() for file in files)
        if way == "removed":
            ledger.remove(mine.client)
        else:
            ledger.add(contribution(ledger.terms, 99, client=mine.client))
        assert not any(needle in file.read_bytes() for file in files if file.exists())


# --- what it refuses ---


def test_a_replay_under_another_name_is_refused_and_kept_in_the_journal(ledger: Ledger) -> None:
    ledger.add(contribution(ledger.terms, 1))
    before = raw(ledger)
    with pytest.raises(fs.DataError, match="replay: 'site-0001'"):
        ledger.add(contribution(ledger.terms, 1, client="somebody"))
    assert raw(ledger) == before
    last = ledger.journal()[-1]
    assert (last.event, last.client) == ("rejected", "somebody") and "replay" in last.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": "site-0002"}, "its content is not what was written"),
        ({"digest": 32 * "0"}, "its content is not what was written"),
        ({"seal": 16 * "0"}, "its content is not what was written"),
        ({"made": "message"}, "file is not a contribution of format 1 or 2"),
        ({"fedsolve": "0"}, "file is not a contribution of format 1 or 2"),
        ({"terms": "other"}, "it was made for another federation"),
    ],
    ids=str,
)
def test_a_contribution_with_one_changed_word_is_refused(change: dict[str, str], words: str) -> None:
    terms = Terms.make(fs.AFL(ridge=0.0, intercept=False), TASK)
    arrays, metadata = codec.read(contribution(terms, 1).write(terms))
    assert Contribution.read(codec.encode(arrays, metadata), terms, "file").client == "site-0001"
    with pytest.raises(fs.DataError, match=words):
        Contribution.read(codec.encode(arrays, metadata | change), terms, "file")


@pytest.mark.parametrize("method", [fs.Local(intercept=False)], ids=["local"])
def test_methods_that_send_no_moments_are_refused(tmp_path: Path, method: fs.Method) -> None:
    with pytest.raises(fs.ParameterError, match="a ledger keeps moments"):
        Ledger.create(tmp_path / "fed.db", method, TASK)
    assert not list(tmp_path.iterdir())


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fs.DataError, match="there is no ledger"):
        Ledger(tmp_path / "none.db")
    (tmp_path / "other.db").write_bytes(b"something else" * 1000)
    with pytest.raises(fs.DataError, match="not a ledger"):
        Ledger(tmp_path / "other.db")
    with closing(sqlite3.connect(tmp_path / "sql.db")) as db, db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(fs.DataError, match="not a ledger of format"):
        Ledger(tmp_path / "sql.db")
    Ledger.create(tmp_path / "fed.db", fs.AFL(ridge=0.0, intercept=False), TASK).close()
    with pytest.raises(fs.DataError, match="exists"):
        Ledger.create(tmp_path / "fed.db", fs.AFL(ridge=0.0, intercept=False), TASK)
    assert (tmp_path / "fed.db").stat().st_mode & 0o777 == 0o600  # for its owner alone
    for pragma in ("user_version = 4", "application_id = 7"):
        Ledger.create(tmp_path / f"{pragma}.db", fs.AFL(ridge=0.0, intercept=False), TASK).close()
        with closing(sqlite3.connect(tmp_path / f"{pragma}.db")) as db, db:
            db.execute(f"PRAGMA {pragma}")
        db.close()
        with pytest.raises(fs.DataError, match="is not a ledger of format 1, 2 or 3"):
            Ledger(tmp_path / f"{pragma}.db")


def test_nobody_in_is_nothing_to_solve(ledger: Ledger) -> None:
    with pytest.raises(fs.DataError, match="nobody is in"):
        ledger.solve()
    with pytest.raises(fs.FedsolveError, match="unknown client"):
        ledger.remove("site-1")


def test_only_the_total_is_kept_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "fed.db"
    with Ledger.create(path, fs.FedHiP(beta=1.0, intercept=False), TASK, total_only=True) as ledger:
        first, second = contribution(ledger.terms, 1), contribution(ledger.terms, 2)
        ledger.add(first)
        ledger.add(second)
        with pytest.raises(fs.DataError, match="replay"):
            ledger.add(contribution(ledger.terms, 1, client="somebody"))
        assert ledger.add(first).event == "unchanged"
        with pytest.raises(fs.DataError, match="in already and only the total is kept"):
            ledger.add(contribution(ledger.terms, 3, client=first.client))
        with pytest.raises(fs.DataError, match="its contribution is needed again"):
            ledger.remove(first.client)
        with pytest.raises(fs.DataError, match="not what 'site-0001' contributed"):
            ledger.remove(first.client, second)
        with pytest.raises(fs.DataError, match="no single contributions"):
            list(ledger.parts())
        needle = np.asarray(first.arrays["cross"]).tobytes()
        assert needle not in path.read_bytes() + path.with_name("fed.db-wal").read_bytes()
        ledger.remove(first.client, first)
        assert relative(ledger.solve().state["weight"], state_of(ledger.terms, [2])["weight"]) < 1e-9
        assert not ledger.verify().faults
        ledger._database.connection.execute("UPDATE member SET samples = samples + 1")
        assert ledger.verify().faults == ("the entry of 'site-0002' is damaged",)


def test_verify_finds_a_changed_contribution_and_a_wrong_total(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "fed.db", fs.FedHiP(beta=1.0, intercept=False), TASK) as ledger:
        for number in range(5):
            ledger.add(contribution(ledger.terms, number))
        ledger.settle()
        total = Total(codec.decode(ledger._database.rows("SELECT high FROM total")[0][0]))
        total.add(contribution(ledger.terms, 9).arrays)
        sums.write_total(ledger._database.connection, total)  # with proper digests
        check = ledger.verify()
        assert any("not the sum of its parts" in fault for fault in check.faults)
        assert not ledger.verify().faults  # it was rebuilt
        assert ledger.journal()[-1].event == "rebuilt"
        wrong = codec.encode(contribution(ledger.terms, 8).arrays)
        ledger._database.connection.execute(
            "UPDATE part SET data = ? WHERE number = (SELECT number FROM member WHERE client = 'site-0002')", (wrong,)
        )
        kept = ledger.total()
        assert any("'site-0002' is damaged" in fault for fault in ledger.verify().faults)
        assert named.same(ledger.total(), kept)  # the total knows what the file has lost


@pytest.mark.parametrize("half", ["high", "low"])
@pytest.mark.parametrize("change", ["one ulp", "not a number", "cut off", "nothing"])
def test_a_damaged_total_is_not_solved_and_verify_sums_the_parts_again(tmp_path: Path, half: str, change: str) -> None:
    """0.1.0 solved it in silence, but for what cannot be read."""
    with Ledger.create(tmp_path / "fed.db", fs.FedHiP(beta=1.0, intercept=False), TASK) as ledger:
        for number in range(5):
            ledger.add(contribution(ledger.terms, number))
        ledger.settle()
        wanted, connection = ledger.total(), ledger._database.connection
        [(kept,)] = ledger._database.rows(f"SELECT {half} FROM total")
        arrays = dict(codec.decode(kept))
        if change == "one ulp":
            arrays["cross"] = np.nextafter(arrays["cross"], np.inf)
        elif change == "not a number":
            arrays["triangle"] = np.full_like(arrays["triangle"], np.nan)
        written = {"cut off": kept[:-9], "nothing": b""}.get(change, codec.encode(arrays))
        connection.execute(f"UPDATE total SET {half} = ?", (written,))
        with pytest.raises(fs.DataError, match="the total is not what was written"):
            ledger.solve() if half == "high" else ledger.remove("site-0002")
        check = ledger.verify()
        assert any("the total was not the sum of its parts, and is now" in fault for fault in check.faults)
        assert ledger.journal()[-1].event == "rebuilt" and named.same(ledger.total(), wanted)
        assert ledger.verify() == Check(5, 200, 0.0, ())


def test_a_client_whose_contribution_is_damaged_can_leave_or_send_another(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "fed.db", fs.FedHiP(beta=1.0, intercept=False), TASK) as ledger:
        for number in range(6):
            ledger.add(contribution(ledger.terms, number))
        ledger.settle()
        for number, way in ((2, "removed"), (4, "replaced")):
            wrong = codec.encode(contribution(ledger.terms, 8).arrays)
            query = "UPDATE part SET data = ? WHERE number = (SELECT number FROM member WHERE client = ?)"
            ledger._database.connection.execute(query, (wrong, f"site-{number:04d}"))
            with pytest.raises(fs.DataError, match=f"'site-{number:04d}' is damaged"):
                list(ledger.parts())
            if way == "removed":
                ledger.remove("site-0002")
            else:
                ledger.add(contribution(ledger.terms, 9, client="site-0004"))
        assert not ledger.verify().faults
        assert relative(ledger.solve().state["weight"], state_of(ledger.terms, [0, 1, 3, 5, 9])["weight"]) < 1e-9


# --- honest ones pass ---


@pytest.mark.parametrize("samples", [1, 2, 5, 200])
def test_honest_contributions_of_any_size_pass(ledger: Ledger, samples: int) -> None:
    for number in range(10):
        ledger.add(contribution(ledger.terms, number, samples=samples))


def test_honest_contributions_with_constant_zero_and_wild_features_pass(tmp_path: Path) -> None:
    scales = np.geomspace(1e-8, 1e8, FEATURES)
    scales[5] = 0.0
    for method in (fs.AFL(ridge=0.0, intercept=False), fs.FedPrior()):
        terms = Terms.make(method, TASK)
        for number in range(10):
            x, y = data(number, samples=int(3 * 4 ** (number % 4)))
            x[:, 2] = 1.0
            _, reply = method.update({}, {}, site(TASK, fs.Samples(x * scales, y % (1 + number % CLASSES))))
            assert validate.examine(terms, reply).samples == len(y)


def test_terms_know_the_column_of_ones() -> None:
    assert Terms.make(fs.AFL(ridge=0.0, intercept=False), TASK).ones is None
    assert Terms.make(fs.FedPrior(), TASK).ones == FEATURES
    with_ones = fs.Federation.from_arrays({"a": {"train": data(0)}}, classes=CLASSES)
    from fedsolve.features.maps import Ones

    assert Terms.make(fs.AFL(ridge=0.0, intercept=False), with_ones.with_features(Ones()).task).ones == FEATURES


def format_1(terms: Terms) -> dict[str, str]:
    """What version 0.1.0 wrote of terms, beside the arrays."""
    task, texts = terms.task, terms.metadata()
    return {key: value for key, value in texts.items() if key != "task"} | {
        "fedsolve": "1",
        "classes": str(task.classes),
        "class_names": json.dumps(task.class_names),
        "feature_names": json.dumps(task.feature_names),
        "inputs": json.dumps(task.inputs),
        "features": str(task.features),
        "identity": task.features.identity,
        "width": json.dumps(task.shape),
    }


SCHEMA_1 = """
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


def ledger_of_format_1(path: Path, terms: Terms, inside: list[Contribution], left: Contribution, keeps: bool) -> None:
    """The file that version 0.1.0 wrote: the first two of those inside are summed, one was in and left."""
    total = Total.zero(*terms.shape)
    summed = inside[:2] if keeps else inside
    for each in summed:
        total.add(each.arrays)
    peak = fs.Moments.from_arrays(total.high).diagonal()
    written = named.under("start", terms.start) | named.under("sent", terms.message)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"BEGIN; {SCHEMA_1} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1;")
        db.execute("INSERT INTO terms VALUES (1, ?, ?)", (keeps, codec.encode(written, format_1(terms))))
        low = codec.encode({**total.low, "peak": peak})
        db.execute("INSERT INTO total VALUES (1, ?, ?, ?)", (len(summed), codec.encode(total.high), low))
        line = "INSERT INTO journal (at, event, client, digest, bytes, reason) VALUES ('2025', ?, ?, ?, 9, '')"
        db.execute(line, ("removed", left.client, left.digest))
        for number, each in enumerate(inside, 1):
            samples = int(each.arrays["count"])
            row = (number, each.client, each.digest, samples, CLASSES, 9, "2025")
            db.execute("INSERT INTO member VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            db.execute(line, ("added", each.client, each.digest))
            if keeps:
                db.execute("INSERT INTO part VALUES (?, ?)", (number, codec.encode(each.arrays)))
        db.execute("COMMIT")


@pytest.mark.parametrize("keeps", [True, False])
def test_a_ledger_of_version_0_1_0_still_serves(tmp_path: Path, keeps: bool) -> None:
    terms = Terms.make(fs.FedHiP(beta=1.0, intercept=False), TASK, seed=3)
    inside, left = [contribution(terms, number) for number in range(4)], contribution(terms, 7)
    ledger_of_format_1(tmp_path / "fed.db", terms, inside, left, keeps)
    with Ledger(tmp_path / "fed.db") as ledger:
        assert ledger.terms.digest == terms.digest and ledger.total_only != keeps
        assert [member.client for member in ledger.members()] == [each.client for each in inside]
        assert relative(ledger.solve().state["weight"], state_of(terms, [0, 1, 2, 3])["weight"]) < 1e-9
        assert not ledger.verify().faults
    with Ledger(tmp_path / "fed.db") as ledger:  # and again, now of format 2
        ledger.remove(inside[1].client, None if keeps else inside[1])
        ledger.add(contribution(terms, 5))
        assert relative(ledger.solve().state["weight"], state_of(terms, [0, 2, 3, 5])["weight"]) < 1e-9
        # Who left before does not come back with a file of before, which has no number.
        with pytest.raises(fs.DataError, match="not newer"):
            ledger.add(Contribution.of(left.client, left.arrays, 0))
        assert ledger.add(contribution(terms, 7)).event == "added"
        assert not ledger.verify().faults


def test_an_invitation_of_version_0_1_0_still_serves(tmp_path: Path) -> None:
    target = fs.Classes(CLASSES, tuple("abcd"))
    task = fs.Task(target, (FEATURES,), parse("random:9,relu,1"), tuple(f"x{i}" for i in range(FEATURES)))
    with Ledger.create(tmp_path / "fed.db", fs.FedHiP(beta=1.0, intercept=False), task, seed=3) as ledger:
        terms = ledger.terms
        codec.write_file(tmp_path / "i.st", named.under("sent", terms.message), format_1(terms))
        invited = load_terms(tmp_path / "i.st")
        assert invited.task == task and invited.digest == terms.digest
        x, y = data(1)
        _, sent, _ = reply(invited.method, task, 3, invited.message, "a", fs.Samples(task.features(x), y))
        Contribution.of("a", sent).save(tmp_path / "a.st", invited)
        (answer,) = ledger.offer_files([tmp_path / "a.st"])
        assert answer.event == "added", answer


def test_the_digest_of_terms_is_that_of_version_0_1_0() -> None:
    """Contributions that are on their way must fit the ledger of a newer version."""
    task = fs.Task(fs.Classes(2, ("ill", "well")), (3,), parse("random:9,relu,1"), ("age", "pulse", "weight"))
    assert Terms.make(fs.FedHiP(beta=1.0, intercept=False), task).digest == "0223765e4bfe26acb9bfe2fae2c0578b"


@pytest.mark.parametrize("method", [fs.AFL(), fs.FedHiP(), fs.FedPrior(), fs.APFL(d_primary=16, d_refine=8)])
def test_a_ledger_of_numbers_solves_and_forgets_as_one_of_classes(method: Any, tmp_path: Path) -> None:
    task = fs.Task(fs.Numbers(("pressure", "pulse")), (FEATURES,))

    def of(number: int, message: Any) -> Contribution:
        x, _ = data(number)
        y = 40.0 + x[:, :2] @ np.array([[1.0, 2.0], [0.5, -1.0]]) + 0.1 * x[:, 2:3]
        _, reply = method.update({}, message, site(task, fs.Samples(x, y)))
        return Contribution.of(f"site-{number:04d}", reply)

    with Ledger.create(tmp_path / "fed.db", method, task, seed=3) as made:
        sent = made.terms.message
        for number in (0, 1, 2):
            made.add(of(number, sent))
        whole = made.solve().state
        made.add(of(3, sent))
        made.remove("site-0003")
        assert named.same(made.solve().state, whole)
        direct = sum(of(number, sent).arrays["squares"] for number in (0, 1, 2))
        np.testing.assert_allclose(whole["squares"], direct, rtol=1e-12)
        spoilt = {**of(4, sent).arrays, "squares": np.zeros(2)}
        with pytest.raises(fs.DataError, match="explain more"):
            made.add(Contribution.of("site-0004", spoilt))
