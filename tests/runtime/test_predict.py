"""Predictions for files and frames whose columns have names: features by name, everything else passed through."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from tests.runtime.test_cli import FAST, Command, listing, mistake

ROWS = 60
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 3)) * [1.0, 10.0, 100.0]
KINDS = np.where(X[:, 0] + X[:, 2] / 100 > 0, "setosa", "virginica")
NAMES = [f"patient {number}, ward {number % 3}" for number in range(ROWS)]  # a comma needs quotes


def table(path: Path, columns: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def features(names: str = "abc") -> dict[str, Any]:
    return {name: X[:, "abc".index(name)].tolist() for name in names}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    data = fs.load(str(table(folder / "t.csv", {**features(), "y": KINDS.tolist()})))
    fs.run(fs.FedHiP(beta=1.0, intercept=False), data.split("iid", clients=2)).models["client-00"].save(
        folder / "m.safetensors"
    )
    return folder / "m.safetensors"


def read(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    return head, rows


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_that_are_no_features_stand_first_as_they_were(
    command: Command, tmp_path: Path, model: Path, ending: str
) -> None:
    columns = {"b": X[:, 1].tolist(), "id": [f"{n:03}" for n in range(ROWS)], **features("ca"), "name": NAMES}
    path = table(tmp_path / f"new.{ending}", {**columns, "client": ["w"] * ROWS})
    done = command("predict", str(model), "--data", path.name, "--out", "p.csv")
    assert (done.code, done.err) == (0, "")
    head, rows = read(tmp_path / "p.csv")
    classes = ("setosa", "virginica")
    assert head[:4] == ["id", "name", "client", "label"]
    assert head[4:] == [*(f"score_{name}" for name in classes), *(f"probability_{name}" for name in classes)]
    assert [row[:3] for row in rows] == [[f"{n:03}", NAMES[n], "w"] for n in range(ROWS)]
    loaded = fs.load_model(model)
    assert [row[3] for row in rows] == [classes[label] for label in loaded.predict(X)]
    np.testing.assert_array_equal(np.array([row[4:6] for row in rows], dtype=float), loaded.scores(X))
    np.testing.assert_array_equal(np.array([row[6:] for row in rows], dtype=float), loaded.predict_proba(X))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("label", ["y", "label"])
def test_labels_are_compared_and_not_passed_on(
    command: Command, tmp_path: Path, model: Path, ending: str, label: str
) -> None:
    path = table(tmp_path / f"new.{ending}", {"id": NAMES, label: KINDS.tolist(), **features()})
    done = command("predict", str(model), "--data", path.name, "--out", "p.csv")
    share = np.mean(np.array(["setosa", "virginica"])[fs.load_model(model).predict(X)] == KINDS)
    assert done.out.splitlines()[1] == f"accuracy {share:.4f} on {ROWS} samples"
    assert read(tmp_path / "p.csv")[0][:2] == ["id", "label"]


def test_classes_without_names_are_numbers(command: Command, tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", {**features(), "y": (KINDS == "setosa").astype(int).tolist()})
    assert command(*FAST, "--data", "t.csv", "--clients", "2", "--out", "out").code == 0
    done = command("predict", "out/models/global.safetensors", "--data", path.name, "--out", "p.csv")
    assert done.code == 0
    assert read(tmp_path / "p.csv")[0] == ["label", "score_0", "score_1", "probability_0", "probability_1"]
    assert "accuracy " in done.out


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"a": [1.0], "b": [2.0], "id": ["x"]},
            "new.csv: it lacks c and has id besides; the model takes",
        ),
        ({"a": [1.0], "client": ["x"]}, "new.csv: it lacks b, c; the model takes the columns a, b, c"),
        ({"a": [1.0], "b": ["two"], "c": [3.0]}, "new.csv: column 'b' must hold numbers"),
        ({"a": ["inf"], "b": [1.0], "c": [3.0]}, "new.csv: column 'a' must hold finite numbers; got 'inf' in line 2"),
        ({"a": [1.0], "b": [1.0], "c": [3.0], "y": [""]}, "new.csv: the label 'y' is empty, first in line 2"),
        ({"a": [1.0], "b": [1.0], "c": [3.0], "y": ["rose"]}, "new.csv: unknown class 'rose'"),
        ({"a": [1.0], "b": [1.0], "c": [3.0], "y": ["setosa"], "label": ["setosa"]}, "which is the label?"),
        ({"a": [1.0], "b": [1.0], "c": [3.0], "score_setosa": [1]}, "column 'score_setosa' of the data has the name"),
    ],
)
def test_files_that_cannot_be_are_refused_by_name(
    command: Command, tmp_path: Path, model: Path, columns: dict[str, Any], words: str
) -> None:
    path = table(tmp_path / "new.csv", columns)
    before = listing(tmp_path)
    mistake(command("predict", str(model), "--data", path.name, "--out", "p.csv"), before, tmp_path, words)


def test_lines_of_another_length_and_names_twice_are_refused(command: Command, tmp_path: Path, model: Path) -> None:
    for text, words in (
        ("a,b,c\n1,2,3\n1,2\n", "new.csv: line 3 has 2 fields, the header 3"),
        ("a,b,c,id,id\n1,2,3,4,5\n", "new.csv: column names must differ"),
    ):
        (tmp_path / "new.csv").write_text(text)
        before = listing(tmp_path)
        mistake(command("predict", str(model), "--data", "new.csv"), before, tmp_path, words)


def test_a_model_takes_the_columns_of_a_frame_by_name(model: Path) -> None:
    pd = pytest.importorskip("pandas")
    loaded, frame = fs.load_model(model), pd.DataFrame(features())
    turned = frame[["c", "b", "a"]]
    for function in (loaded.scores, loaded.predict, loaded.predict_proba):
        np.testing.assert_array_equal(function(turned), function(X))
    assert len(set(loaded.predict(X).tolist())) == 2
    assert not np.array_equal(loaded.predict(turned.to_numpy()), loaded.predict(X))  # an array has no names
    with pytest.raises(fs.DataError, match="it lacks b; the model takes the columns a, b, c"):
        loaded.predict(frame[["a", "c"]])
