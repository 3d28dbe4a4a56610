"""Tables that are larger than memory: whatever the blocks, sums are those of the whole table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.data import parts
from fedsolve.data.large import Large, stream
from fedsolve.data.parts import Choice
from fedsolve.data.stream import Stream
from fedsolve.features import fitting
from fedsolve.features.cells import Cells
from fedsolve.method import Site
from fedsolve.privacy.disclose import report
from fedsolve.rng import derive
from fedsolve.runtime.client import Request, handle

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROWS = 700


def written(folder: Path, rows: int = ROWS, group: int = 100, **more: Any) -> Path:
    rng = np.random.default_rng(3)
    age = rng.normal(54.0, 9.0, rows)
    age[rng.random(rows) < 0.1] = np.nan
    columns = {
        "age": pa.array(age, from_pandas=True),
        "town": rng.choice(np.array(["Rome", "Oslo", "Bern", None]), rows, p=[0.5, 0.3, 0.195, 0.005]),
        "smoker": rng.random(rows) > 0.5,
        "visits": rng.integers(0, 9, rows),
        "patient": [f"p{number // 3}" for number in range(rows)],
        "pressure": rng.normal(120.0, 15.0, rows),
        "ill": np.where(np.nan_to_num(age, nan=54.0) + rng.normal(0, 9, rows) > 54, "yes", "no"),
        **more,
    }
    path = folder / "ward.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def ward(path: Path, monkeypatch: pytest.MonkeyPatch, block: int = 64, **words: Any) -> Large:
    """A stream with blocks of so many rows, or a few more where fewer columns are read."""
    monkeypatch.setattr(parts, "BLOCK_BYTES", 8 * 6 * block)
    return stream(path, **{"label": "ill", "drop": ["patient", "pressure"], **words})


def whole(path: Path, **words: Any) -> fs.Table:
    reading = fs.Reading(**{"label": ("ill",), "drop": ("patient", "pressure"), **words})
    return fs.load(str(path), reading=reading)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=st.integers(30, 900), group=st.integers(30, 900))
def test_columns_are_the_same_bits_for_any_blocks_and_moments_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, group: int
) -> None:
    path = written(tmp_path, group=group)
    table = whole(path)
    assert isinstance(table.inputs, Cells)
    features: Any = fitting.fit("columns", [table.inputs])
    streamed = ward(path, monkeypatch, block).fitted("columns")
    assert str(streamed.task.features) == str(features)
    assert streamed.task.target == table.target
    found = streamed.moments(intercept=True)
    wanted = fs.Moments.of(features(table.inputs), table.labels, classes=2, intercept=True, space=streamed.task.space)
    assert found.count == wanted.count == ROWS
    scale = np.abs(wanted.triangle).max()
    np.testing.assert_allclose(found.triangle, wanted.triangle, rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(found.cross, wanted.cross, rtol=1e-12, atol=1e-12 * scale)


def test_a_folder_of_files_is_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    table = pq.read_table(path)
    (tmp_path / "parts").mkdir()
    for number, start in enumerate((0, 150, 400)):
        stop = (150, 400, ROWS)[number]
        pq.write_table(table.slice(start, stop - start), tmp_path / "parts" / f"{number}.parquet")
    one, several = ward(path, monkeypatch), ward(tmp_path / "parts", monkeypatch)
    assert str(one.fitted().task.features) == str(several.fitted().task.features)
    for held in (True, False):
        choice = Choice(held, 0.3, 7)
        assert len(one.samples(choice)) == len(several.samples(choice))


def rows_of(samples: fs.Samples) -> list[tuple[float, ...]]:
    return samples.fold(lambda part: [tuple(row) for row in part.inputs.tolist()], lambda left, right: left + right)


def test_train_and_test_are_all_rows_and_the_same_for_any_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, row=np.arange(float(ROWS)))
    found = []
    for block in (17, 300):
        table = ward(path, monkeypatch, block, drop=["patient", "pressure", "age", "town", "smoker"], columns="numbers")
        client = table.client_of("ward-a", test=0.25, seed=1)
        train, held = ({row[1] for row in rows_of(part)} for part in (client.train, client.test))
        assert len(train) == len(client.train) and len(held) == len(client.test)
        assert not train & held and train | held == set(range(ROWS))
        assert 0.18 < len(held) / ROWS < 0.32
        found.append(held)
    assert found[0] == found[1]
    other = table.client_of("ward-a", test=0.25, seed=2)
    assert {row[1] for row in rows_of(other.test)} != found[0]


def test_rows_that_are_added_later_leave_the_split_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (written(tmp_path / str(rows), rows, row=np.arange(float(rows))) for rows in folders(tmp_path))
    held = []
    for path in (few, many):
        table = ward(path, monkeypatch, drop=["patient", "pressure", "age", "town", "smoker"], columns="numbers")
        held.append({row[1] for row in rows_of(table.client_of("a", test=0.3).test)})
    assert held[0] == {row for row in held[1] if row < 500}


def folders(tmp_path: Path) -> tuple[int, int]:
    for rows in (500, 600):
        (tmp_path / str(rows)).mkdir()
    return 500, 600


def test_persons_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, row=np.arange(float(ROWS)))
    dropped = ["pressure", "age", "town", "smoker"]
    table = ward(path, monkeypatch, 50, drop=dropped, person="patient", columns="numbers")
    client = table.client_of("ward-a", test=0.3)
    persons = [{row[1] // 3 for row in rows_of(part)} for part in (client.train, client.test)]
    assert not persons[0] & persons[1] and len(persons[1]) > 20
    assert table.persons(5) == 5 and table.persons(10_000) == len(persons[0] | persons[1])


def test_numbers_are_predicted_with_the_units_of_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    words: dict[str, Any] = {"label": "pressure", "drop": ["patient", "ill"]}
    streamed = ward(path, monkeypatch, **words)
    table = whole(path, label=("pressure",), drop=("patient", "ill"))
    assert streamed.task.target == table.target.fitted([table.labels])
    found = streamed.fitted().moments()
    assert found.squares is not None
    np.testing.assert_allclose(found.squares, np.square(table.labels).sum(0), rtol=1e-12)


@pytest.mark.parametrize("method", [fs.AFL(), fs.AFL(ridge=1.0, intercept=False), fs.FedHiP(alpha=3.0)])
@pytest.mark.parametrize("label", ["ill", "pressure"])
def test_a_client_answers_from_a_stream_as_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: fs.Method, label: str
) -> None:
    path = written(tmp_path)
    drop = ["patient", {"ill": "pressure", "pressure": "ill"}[label]]
    table = ward(path, monkeypatch, 90, label=label, drop=drop).fitted("columns")
    client = table.client_of("ward-a", test=0.3)
    assert isinstance(client.train, Stream)
    known = fs.Client("ward-a", in_memory(client.train), in_memory(client.test))
    answers = []
    for each in (client, known):
        memory, answer = handle(method, table.task, each, None, Request("update", 1, 0, table.task.described, {}))
        reply = fs.Moments.from_arrays(decoded(answer))
        server = fs.Server(table.task, 1, derive(0, "x"))
        state = method.aggregate({}, reply.arrays(), server)
        sent = method.message(state, "ward-a", "personalize")
        _, figures = handle(method, table.task, each, memory, Request("evaluate", 1, 0, table.task.described, sent))
        answers.append((reply, decoded(figures)))
    (first, tally), (second, exact) = answers
    np.testing.assert_allclose(first.triangle, second.triangle, rtol=1e-12, atol=1e-9)
    assert {name for name in exact if not name.endswith("/auc")} == set(tally)
    for name, array in tally.items():
        np.testing.assert_allclose(array, exact[name], rtol=1e-8, atol=1e-9, err_msg=name)


def in_memory(samples: fs.Samples) -> fs.Samples:
    pairs = samples.fold(lambda part: [(part.inputs, part.labels)], lambda left, right: left + right)
    return fs.Samples(np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs]))


def decoded(answer: Any) -> Any:
    from fedsolve import codec

    return codec.decode(answer)


@pytest.mark.parametrize("method", [fs.FedHiP(), fs.FedPrior(), fs.APFL(), fs.Local()])
def test_who_needs_all_rows_is_told_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: fs.Method
) -> None:
    table = ward(written(tmp_path), monkeypatch).fitted()
    site = Site(table.task, table.samples(), 1, derive(0, "x"))
    _, sent = method.update({}, method.message({}, "a", "update") or first_message(method, table), site)
    state = method.aggregate(method.init_server(fs.Server(table.task, 0, derive(0, "s"))), sent, server_of(table))
    with pytest.raises(fs.DataError, match=r"streamed and never all in memory.*afl, fedhip with an alpha that is set"):
        method.personalize({}, method.message(state, "a", "personalize"), site)


def server_of(table: Large) -> fs.Server:
    return fs.Server(table.task, 1, derive(0, "s"))


def first_message(method: fs.Method, table: Large) -> Any:
    state = method.init_server(fs.Server(table.task, 0, derive(0, "s")))
    return method.message(state, "a", "update")


def test_what_sums_disclose_is_found_in_blocks_as_in_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = np.zeros(ROWS)
    rare[[11, 402]] = 1.0
    alone = np.zeros(ROWS)
    alone[650] = 30.0
    nearly = np.ones(ROWS)
    nearly[5] = 0.0
    path = written(tmp_path, rare=rare, alone=alone, nearly=nearly, always=np.full(ROWS, 4.0))
    words = {"drop": ["patient", "pressure", "age", "town", "smoker"], "columns": "numbers"}
    table = ward(path, monkeypatch, 60, **words)
    samples = table.samples()
    for ones in (False, True):
        found = report(samples, table.task.target, ones=ones, names=table.task.columns)
        wanted = report(in_memory(samples), table.task.target, ones=ones, names=table.task.columns)
        assert found == wanted
        assert found.sole == ("alone",) and set(found.rare) == {"rare", "alone"} and found.nearly_all == ("nearly",)
        assert found.alone > 0


def test_a_feature_that_changes_between_blocks_alone_is_not_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, late=(np.arange(ROWS) >= 300).astype(float))  # 300 is where a row group begins
    table = ward(path, monkeypatch, 50, drop=["patient", "pressure", "age", "town", "smoker"], columns="numbers")
    found = report(table.samples(), table.task.target)
    assert found == report(in_memory(table.samples()), table.task.target)
    assert not found.exact_counts


@pytest.mark.parametrize(
    ("changes", "words", "refusal"),
    [
        ({"ill": ["yes"] * 699 + [None]}, {}, r"the label 'ill' is empty, first in row 700"),
        ({"age": [1.0] * 650 + [np.inf] * 50}, {}, r"column 'age' must hold finite numbers; got inf in row 651"),
        ({"age": [1.0] * 650 + [None] * 50}, {"columns": "numbers", "drop": ["town", "smoker", "patient", "pressure"]},
         r"column 'age' must hold a number in every row; it is empty in row 651"),
        ({"ill": [float(row) for row in range(699)] + [0.5]}, {"task": "classes"}, r"say --task numbers"),
        ({"ill": list(range(700))}, {}, r"700 different whole numbers; say --task classes"),
        ({}, {"label": "sick"}, r"there is no column 'sick'"),
        ({}, {"drop": ["patient", "pressure", "weight"]}, r"there is no column 'weight' \(--drop\)"),
        ({"note": [f"note {row}" for row in range(700)]}, {}, r"column 'note' has .* different texts.*names or notes"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_stream_is_said_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: dict[str, Any], refusal: str
) -> None:
    monkeypatch.setattr(parts, "FIRST", 600)  # what comes later is found when it is read
    path = written(tmp_path, **changes)
    with pytest.raises(fs.DataError, match=refusal):
        ward(path, monkeypatch, 100, **words).samples().fold(len, lambda left, right: left + right)


def test_only_parquet_streams(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    for place in (tmp_path / "a.csv", tmp_path, tmp_path / "absent.parquet"):
        with pytest.raises(fs.DataError, match=r"ends in \.parquet, or a folder"):
            fs.stream(place)
    (tmp_path / "b.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(fs.DataError, match=r"b\.parquet is damaged, or not a table in Parquet"):
        fs.stream(tmp_path / "b.parquet")


def test_a_stream_fits_columns_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ward(written(tmp_path), monkeypatch)
    assert table.fitted("columns+random:8").task.width == 8
    for text in ("standardise", "columns+standardise", "unit"):
        with pytest.raises(fs.ParameterError, match="to a stream columns is fitted"):
            table.fitted(text)
