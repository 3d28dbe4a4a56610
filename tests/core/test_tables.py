"""Tables as their owners have them: dialects, kinds of columns, faults all at once, frames; for people, not for us."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.data.labels import target_of
from fedsolve.data.reading import Reading
from fedsolve.features.cells import Cells, Texts
from fedsolve.features.columns import Columns

HEART = """age;sex;chol;smoker;hospital;disease
61;male;233,5;TRUE;north;yes
45;female;NA;false;north;no
52;male;210,1;True;south;yes
47;;190,0;FALSE;south;no
66;female;250;TRUE;south;yes
39;male;180,2;False;north;no
"""
READING = Reading(label=("disease",), client="hospital")


def written(folder: Path, text: str, encoding: str = "utf-8") -> str:
    (folder / "t.csv").write_bytes(text.encode(encoding))
    return str(folder / "t.csv")


def cells(table: fs.Table) -> dict[str, list[Any]]:
    """The columns of a table, texts as they are, None for empty cells."""
    assert isinstance(table.inputs, Cells)
    found: dict[str, list[Any]] = {}
    for name, column in zip(table.inputs.names, table.inputs.columns, strict=True):
        if isinstance(column, Texts):
            found[name] = [[*column.levels, None][code] for code in column.codes]
        else:
            found[name] = [None if np.isnan(value) else value for value in column.tolist()]
    return found


WANTED = {
    "age": [61, 45, 52, 47, 66, 39],
    "sex": ["male", "female", "male", None, "female", "male"],
    "chol": [233.5, None, 210.1, 190, 250, 180.2],
    "smoker": ["true", "false", "true", "false", "true", "false"],
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_raw_table_is_read_however_it_is_written(tmp_path: Path, encoding: str, separator: str, newline: str) -> None:
    text = HEART.replace(",", ".") if separator == "," else HEART
    text = text.replace(";", separator).replace("\n", newline)
    table = fs.load(written(tmp_path, text, encoding), reading=READING)
    assert cells(table) == WANTED and table.class_names == ("no", "yes")
    assert table.client is not None and sorted(set(table.client.tolist())) == ["north", "south"]


def test_a_file_in_another_encoding_says_where_and_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path, HEART.replace("north", "Köln"), "latin-1")
    with pytest.raises(fs.DataError, match=r"not text in UTF-8: byte 0xf6 in line 2; say .* --encoding latin-1"):
        fs.load(path, reading=READING)
    table = fs.load(path, reading=Reading(label=("disease",), client="hospital", encoding="latin-1"))
    assert table.client is not None and "Köln" in table.client
    with pytest.raises(fs.ParameterError, match="unknown encoding 'klingon'"):
        fs.load(path, reading=Reading(encoding="klingon"))


def test_a_file_with_eight_faults_names_all_eight(tmp_path: Path) -> None:
    lines = [f"{number},{40 + number % 9},60.5,2026-01-{1 + number % 28:02},w,fine,yes" for number in range(150)]
    lines = [f"p{line}" for line in lines]
    lines[10] = "p10,4o,60.5,2026-01-02,w,fine,no"  # a letter for a digit
    lines[20] = "p20,41,inf,2026-01-02,w,fine,no"
    lines[30] = "p30,41,60.5,2026-01-02,,fine,no"  # no owner
    lines[40] = "p40,41,60.5,2026-01-02,w,fine,"  # no label
    lines[50] = "p50,41,60.5,2026-01-02,w"  # cells are missing
    path = written(tmp_path, "\n".join(["id,age,weight,seen,ward,note,disease", *lines]) + "\n")
    reading = Reading(label=("disease",), client="ward", drop=("nmae",), person="patient", varied=True)
    with pytest.raises(fs.DataError) as caught:
        fs.load(path, reading=reading)
    told = str(caught.value).splitlines()
    assert told[0].endswith("t.csv: 9 things are wrong with it:") and len(told) == 10
    for words in (
        "there is no column 'patient' (--person)",
        "there is no column 'nmae' (--drop)",
        "line 52 has 5 fields, the header 7",
        "column 'id' has 149 different texts in 149 rows: names or notes, and no levels; leave it out with --drop id",
        "column 'age' must hold numbers; got '4o' in line 12; mend or empty it, or leave it out with --drop age",
        "column 'weight' must hold finite numbers; got 'inf' in line 22",
        "column 'seen' holds dates; leave it out with --drop seen, or take all dates as days since 1970",
        "the label 'disease' is empty, first in line 42; remove such rows",
        "the client 'ward' is empty, first in line 32",
    ):
        assert f"- {words}" in str(caught.value), words


@pytest.mark.parametrize(
    ("text", "reading", "words"),
    [
        ("a,b,a\n1,2,3\n", Reading(label=("b",)), "column names must differ; 'a' stands 2 times"),
        ("age,sex\n1,m\n", Reading(label=("diseas",)), "there is no column 'diseas' to predict (--label)"),
        ("age,disease\n1,m\n", Reading(label=("diseas",)), "did you mean 'disease'?"),
        ("age,sex\n1,m\n", Reading(), "which column is to be predicted? Say so with --label NAME; it has age, sex"),
        ("age,y\n1,m\n2,m\n", Reading(varied=True), "the label y: all are equal ('m')"),
        ("age,y\n1,m\n2,f\n", Reading(label=("y",), drop=("y",)), "column 'y' is named twice among"),
        (",age,y\n0,1,m\n1,2,f\n", Reading(), "column 1 has no name; give it one, or leave it out with --drop"),
        ("a,y\n" + "".join(f"{n},{n}\n" for n in range(30)), Reading(), "30 different whole numbers; say --task"),
        ("a,y\n1,2\n2,x\n", Reading(task="numbers"), "the label y"),
        ("a,y,z\n1,2,3\n2,x,4\n", Reading(label=("y", "z")), "several labels must all be numbers; 'y' holds texts"),
        ("when,y\n03/04/2026,a\n05/06/2026,b\n", Reading(date_as="days"), "which may be day or month first"),
        ("when,y\n2026-02-30,a\n2026-01-01,b\n", Reading(date_as="days"), "dates; got '2026-02-30' in line 2"),
        ("note,y\n" + "x" * 300 + ",a\nb,b\n", Reading(), "column 'note' has a text of 300 characters in line 2"),
        ("a\tb\ty\n1,5\tu\tm\n1.5\tv\tf\n2,5\tv\tf\n", Reading(columns="numbers"), "numbers; got '1.5'"),
    ],
)  # fmt: skip
def test_each_fault_has_its_sentence(tmp_path: Path, text: str, reading: Reading, words: str) -> None:
    with pytest.raises(fs.DataError) as caught:
        fs.load(written(tmp_path, text), reading=reading)
    assert words in str(caught.value)


def test_dates_become_days_where_that_is_asked_for(tmp_path: Path) -> None:
    text = "iso,dots,slashes,y\n1970-01-02,02.01.1970,1/31/1970,a\n1970-01-01 12:00,01.02.1970,2/1/1970,b\n,,,a\n"
    table = fs.load(written(tmp_path, text), reading=Reading(date_as="days"))
    assert cells(table) == {"iso": [1, 0.5, None], "dots": [1, 31, None], "slashes": [30, 31, None]}


def test_texts_that_begin_like_numbers_are_texts(tmp_path: Path) -> None:
    """The first block of rows holds numbers alone; most of the rest does not."""
    values = [str(number % 7) for number in range(5000)] + [f"{number % 9}a" for number in range(20000)]
    text = "code,y\n" + "".join(f"{value},{place % 2}\n" for place, value in enumerate(values))
    assert cells(fs.load(written(tmp_path, text)))["code"] == values


@given(
    st.lists(
        st.tuples(st.sampled_from(["1", " 2.5", "", "NA", "?", "1e3"]), st.sampled_from(["a", "b ", "null"])),
        min_size=1,
    )
)
def test_cells_are_what_they_say(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.getbasetemp()
    text = "number,word,y\n" + "".join(f"{number},{word},{place % 2}\n" for place, (number, word) in enumerate(rows))
    found = cells(fs.load(written(folder, text)))
    empty = {"", "NA", "?", "null"}
    assert found["number"] == [None if cell.strip() in empty else float(cell) for cell, _ in rows]
    words = [None if cell.strip() in empty else cell.strip() for _, cell in rows]
    assert found["word"] == words or set(words) == {None}


# --- targets ---


@pytest.mark.parametrize(
    ("labels", "task", "kind", "found"),
    [
        (["b", "a", "b"], "auto", "classes", [1, 0, 1]),
        ([0, 2, 1], "auto", "classes", [0, 2, 1]),
        ([0.0, 2.0, 1.0], "auto", "classes", [0, 2, 1]),
        ([-1, 1, 1], "auto", "classes", [0, 1, 1]),
        ([0.5, 2.0], "auto", "numbers", [[0.5], [2.0]]),
        ([0, 2], "numbers", "numbers", [[0.0], [2.0]]),
        ([0.5, 1.5], "classes", "classes", [0, 1]),
        ([[0.5, 1.0], [2.0, 3.0]], "auto", "numbers", [[0.5, 1.0], [2.0, 3.0]]),
        (list(range(50)), "classes", "classes", list(range(50))),
    ],
)
def test_a_target_follows_from_its_labels(labels: list[Any], task: str, kind: str, found: list[Any]) -> None:
    names = ("u", "v") if isinstance(labels[0], list) else ("u",)
    target, read = target_of(np.array(labels), task, "a.csv", names)
    assert (target.kind, read.tolist()) == (kind, found)
    assert target.kind == "classes" or target.names == names


def test_several_numbers_are_predicted_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = "a,b,low,high\n" + "".join(f"{a},{b},{a + b},{a - b}\n" for a, b in rng.normal(size=(80, 2)).round(6))
    table = fs.load(written(tmp_path, text), reading=Reading(label=("low", "high")))
    federation = table.split("iid", clients=3)
    assert federation.task.target.names == ("low", "high")
    assert (fs.run(fs.AFL(ridge=0.0), federation).metrics["r2"].mean or 0.0) > 0.99


# --- frames ---


def frames() -> list[Any]:
    columns: dict[str, list[Any]] = {
        "age": [61, None, 45, 52, 66, 39] * 5,
        "sex": ["f", "m", None, "f", "m", "m"] * 5,
        "smoker": [True, False, None, True, False, False] * 5,
        "ward": ["a", "a", "b", "b", "b", "a"] * 5,
        "ill": [True, False, False, True, True, False] * 5,
    }
    made = []
    for name, make in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")):
        try:
            made.append(getattr(__import__(name), make)(columns))
        except ImportError:
            continue
    if not made:
        pytest.skip("no library of data frames is installed")
    return made


def test_frames_of_every_library_give_one_federation() -> None:
    federations = [fs.Federation.from_frame(frame, label="ill", client="ward", seed=3) for frame in frames()]
    words = {str(federation.task.features) for federation in federations}
    assert len(words) == len({federation.fingerprint for federation in federations}) == 1
    assert federations[0].task.class_names == ("false", "true")
    assert federations[0].task.columns[:2] == ("age", "age (empty)")
    assert "smoker=true" in federations[0].task.columns


def test_a_model_predicts_from_frames_by_name_and_refuses_what_is_missing() -> None:
    for frame in frames():
        federation = fs.Federation.from_frame(frame, label="ill", client="ward")
        model = fs.run(fs.FedHiP(intercept=True), federation).models["a"]
        names = ["sex", "ward", "age", "smoker"]  # another order, and one too many
        other = frame.select(names) if hasattr(frame, "select") else frame[names]
        np.testing.assert_array_equal(model.scores(other), model.scores(frame))
        less = ["sex", "ward", "age"]
        with pytest.raises(fs.DataError, match="it lacks smoker and has ward besides"):
            model.predict(frame.select(less) if hasattr(frame, "select") else frame[less])


def test_unknown_levels_are_said_once_a_column() -> None:
    pd = pytest.importorskip("pandas")
    frame = next(frame for frame in frames() if isinstance(frame, pd.DataFrame))
    model = fs.run(fs.FedHiP(), fs.Federation.from_frame(frame, label="ill", client="ward")).models["a"]
    new = frame.assign(sex=["divers"] * 10 + ["f"] * 20)
    with pytest.warns(fs.errors.LevelWarning, match="column 'sex' has 10 cells of levels that had no column") as told:
        model.predict(new)
    assert len(told) == 1


def test_frames_are_refused_with_all_that_is_wrong() -> None:
    pd = pytest.importorskip("pandas")
    day = datetime.date(2026, 1, 1)
    frame = pd.DataFrame(
        {"when": [day] * 4, "mixed": [1, "a", 2, 3], "made": [{}] * 4, "ill": [1, 0, None, 1], "ward": "a"}
    )
    with pytest.raises(fs.DataError) as caught:
        fs.Federation.from_frame(frame, label="ill", client="ward", drop=["id"])
    for words in (
        "there is no column 'id' (--drop)",
        "column 'when' holds dates",
        "column 'mixed' holds numbers and texts; got 'a' in row 2",
        "column 'made' holds dict",
        "the label 'ill' is empty, first in row 3",
    ):
        assert words in str(caught.value), words
    with pytest.raises(fs.DataError, match="wanted a data frame of pandas, polars or pyarrow; got list"):
        fs.Federation.from_frame([1], label="a", client="b")


def test_an_array_stands_for_a_table_of_numbers_alone(tmp_path: Path) -> None:
    text = "a,b,y\n" + "".join(f"{n % 7},{n % 5},{(n % 7 > 3) * 1}\n" for n in range(70))
    table = fs.load(written(tmp_path, text))
    model = fs.run(fs.FedHiP(), table.split("iid", clients=2)).models["client-00"]
    assert isinstance(model.task.features, Columns)
    np.testing.assert_array_equal(model.scores(np.asarray(table.inputs)), model.scores(table.inputs))
    with pytest.raises(fs.DataError, match="columns was made for 2 columns"):
        model.predict(np.zeros((3, 4)))
