from __future__ import annotations

import gc
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.data import catalog
from fedsolve.data.reading import Reading
from fedsolve.errors import DataError, FedsolveError, ParameterError, UnknownNameError
from tests.conftest import numbers

X = np.array([[1.5, -2.0], [0.25, 1e300], [3.0, 4.0], [5.0, 6.0]])
Y = np.array([0, 2, 1, 0])


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path / "d.npz", **arrays)
    return str(path / "d.npz")


def csv(path: Path, text: str, encoding: str = "utf-8") -> str:
    (path / "d.csv").write_bytes(text.encode(encoding))
    return str(path / "d.csv")


def parquet(path: Path, **columns: Any) -> str:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path / "d.parquet")
    return str(path / "d.parquet")


def refused(name: str, *wanted: str, kind: type[FedsolveError] = DataError) -> None:
    """One sentence, in one line, with all that is wanted."""
    with pytest.raises(kind) as error:
        fs.load(name)
    text = str(error.value)
    assert "\n" not in text
    for part in wanted:
        assert part in text


# --- data sets by name ---


def test_digits_are_1797_images_of_ten_classes() -> None:
    table = fs.load("digits")
    assert numbers(table).shape == (1797, 64)
    assert table.classes == 10
    assert np.bincount(table.labels).min() == 174
    assert numbers(table).sum() == 561718
    assert table.test is None
    assert table.client is None


def test_synthetic_has_natural_clients_sixty_features_and_ten_classes() -> None:
    table = fs.load("synthetic:0.5,0.5")
    assert numbers(table).shape[1] == 60
    assert table.classes == 10
    assert table.client is not None
    assert np.unique(table.client).tolist() == list(range(20))
    assert np.bincount(table.client).min() >= 50
    federation = table.split(fs.by_client())
    assert len(federation.clients) == 20
    assert federation.task.classes == 10


def test_synthetic_is_seeded_and_clients_do_not_depend_on_each_other() -> None:
    first, again, other = (fs.load("synthetic:1,1,3", seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert not np.array_equal(numbers(first), numbers(other))
    more = fs.load("synthetic:1,1,5", seed=0)
    np.testing.assert_array_equal(more.inputs[: len(first.inputs)], first.inputs)


def test_synthetic_inputs_have_the_variances_of_the_paper() -> None:
    table = fs.load("synthetic:1,1,40")
    assert table.client is not None
    own = [numbers(table)[table.client == k] for k in range(40)]
    deviations = np.sqrt(np.mean([x.var(0) for x in own], axis=0))
    np.testing.assert_allclose(deviations, np.arange(1, 61) ** -0.6, rtol=0.1)


def test_synthetic_clients_differ_more_for_a_larger_b() -> None:
    def spread(b: float) -> float:
        table = fs.load(f"synthetic:0,{b},40")
        assert table.client is not None
        return float(np.std([numbers(table)[table.client == k].mean() for k in range(40)]))

    assert spread(0) < 0.2 < spread(1.0) < spread(25.0)


@pytest.mark.parametrize(
    "name",
    ["synthetic", "synthetic:", "synthetic:x", "synthetic:1", "synthetic:1,y", "synthetic:1,1,2.5", "synthetic:-1,1",
     "synthetic:nan,1", "synthetic:1,inf", "synthetic:1,1,0", "synthetic:1,1,2,3"],
)  # fmt: skip
def test_bad_arguments_of_synthetic_are_refused(name: str) -> None:
    refused(name, "synthetic:A,B,CLIENTS", repr(name), kind=ParameterError)


def test_digits_are_those_of_scikit_learn() -> None:
    """Its file is read without it: to import it takes longer than a run."""
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    table = fs.load("digits")
    for found, wanted in ((table.inputs, inputs), (table.labels, labels)):
        assert isinstance(found, np.ndarray) and found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_digits_take_no_argument() -> None:
    refused("digits:3", "'digits' takes no argument", "'digits:3'", kind=ParameterError)


@pytest.mark.parametrize(
    ("name", "hint"), [("digit", "'digits'"), ("synthetik", "'synthetic'"), ("zzz", "known: "), ("", "digits")]
)
def test_an_unknown_data_set_is_named_with_near_matches(name: str, hint: str) -> None:
    refused(name, f"unknown data set {name!r}", hint, kind=UnknownNameError)


@pytest.mark.parametrize("name", ["cifar100-features", "a folder of photos", "FILE"])
def test_near_matches_are_names_that_can_be_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    np.savez(tmp_path / "cifar10-features.npz", x=np.ones((2, 1)), y=np.arange(2))
    with pytest.raises(UnknownNameError) as refusal:
        catalog.load(name)
    near, _, rest = str(refusal.value).partition(" Or give ")
    assert "folder of pictures" not in near
    assert "FILE." not in near
    assert "a file (.npz, .csv, .parquet), a folder of pictures" in rest
    if name.startswith("cifar"):
        assert "'cifar10-features'" in near


def test_what_is_absent_is_told_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    assert "put my-set.npz (x, y, x_test, y_test) or a folder my-set of pictures" in catalog.absent("my-set")
    assert "FEDSOLVE_DATA is not set" in catalog.absent("cifar10")
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    assert f"{tmp_path} holds neither" in catalog.absent("cifar10")
    for name in ("my-set", "cifar10"):
        (tmp_path / f"{name}.npz").write_bytes(b"not looked into")
        assert catalog.absent(name) == ""
    assert catalog.absent("digits") == catalog.absent("synthetic:0.5,0.5") == ""


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet", "NPZ"])
def test_a_missing_file_is_named(tmp_path: Path, ending: str) -> None:
    path = str(tmp_path / f"nothing.{ending}")
    refused(path, f"there is no file {path}")
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"cannot read .*nothing\."):
        catalog.read_columns(Path(path))


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_a_folder_is_not_a_file(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"d.{ending}").mkdir()
    refused(str(tmp_path / f"d.{ending}"), f"d.{ending}")
    with pytest.raises(DataError, match=f"d.{ending}"):
        catalog.read_columns(tmp_path / f"d.{ending}")


def test_other_endings_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d\.txt: wanted a file that ends in \.npz, \.csv, \.parquet"):
        catalog.read_columns(tmp_path / "d.txt")


# --- npz ---


def test_npz_gives_back_its_arrays_and_their_types(tmp_path: Path) -> None:
    images = np.arange(48, dtype=np.uint8).reshape(4, 3, 4)
    name = npz(tmp_path, x=images, y=Y, x_test=images[:2], y_test=[3, 0], client=["a", "b", "a", "b"], extra=[1])
    table = fs.load(name)
    np.testing.assert_array_equal(table.inputs, images)
    assert numbers(table).dtype == np.uint8
    np.testing.assert_array_equal(table.labels, Y)
    assert table.classes == 4
    assert table.test is not None
    np.testing.assert_array_equal(table.test.labels, [3, 0])
    assert table.client is not None
    assert table.client.tolist() == ["a", "b", "a", "b"]
    assert table.name == name


def test_npz_with_texts_as_labels_numbers_them_in_sorted_order(tmp_path: Path) -> None:
    table = fs.load(npz(tmp_path, x=X, y=["cat", "dog", "ant", "cat"], x_test=X[:2], y_test=["dog", "ant"]))
    assert table.class_names == ("ant", "cat", "dog")
    assert table.labels.tolist() == [1, 2, 0, 1]
    assert table.test is not None
    assert table.test.labels.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("arrays", "wanted"),
    [
        ({"x": X}, "needs an array 'y'; it holds x"),
        ({"y": Y}, "needs an array 'x'; it holds y"),
        ({}, "needs an array 'x'; it holds nothing"),
        ({"x": X, "y": Y, "x_test": X}, "must hold both 'x_test' and 'y_test', or neither"),
        ({"x": X, "y": Y, "y_test": Y}, "must hold both 'x_test' and 'y_test', or neither"),
        ({"x": X, "y": Y[:2]}, "4 inputs but 2 labels"),
        ({"x": np.where(X == 3, np.nan, X), "y": Y}, "inputs must be finite; got nan in row 2, column 0"),
        ({"x": X, "y": [0, 1, np.inf, 1]}, "labels must be integers; got inf in row 2"),
        ({"x": X, "y": Y.astype("S1")}, "labels must be one integer per sample"),
        ({"x": X.astype(str), "y": Y}, "inputs must be an array of numbers"),
        ({"x": X, "y": ["a", "b", "a", "b"], "x_test": X, "y_test": ["a", "b", "a", "c"]}, "test: unknown class 'c'"),
        ({"x": X, "y": ["a", "b", "a", "b"], "x_test": X, "y_test": [0, 1, 0, 7]}, "test"),
        ({"x": X, "y": Y, "x_test": X, "y_test": ["a", "b", "a", "b"]}, "test: labels must be"),
        ({"x": X, "y": Y, "client": [1, 2]}, "'client' must name the owner of each of 4 rows"),
        ({"x": 3.0, "y": 1}, "inputs must be an array of numbers"),
    ],
)
def test_a_bad_npz_is_refused(tmp_path: Path, arrays: dict[str, Any], wanted: str) -> None:
    refused(npz(tmp_path, **arrays), "d.npz", wanted)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    objects = np.empty(4, dtype=object)
    objects[:] = [Bomb()] * 4
    refused(npz(tmp_path, x=X, y=objects), "d.npz is damaged or not an .npz file of plain arrays")
    assert not (tmp_path / "exploded").exists()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off", b"\x80\x04N.", bytes(100), _npy()])
def test_a_file_that_is_not_an_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d.npz").write_bytes(content)
    refused(str(tmp_path / "d.npz"), "d.npz is damaged or not an .npz file")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_npz_is_refused_or_read_but_never_crashes(tmp_path: Path, compressed: bool) -> None:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, x=X, y=Y)
    path, whole = tmp_path / "spoilt.npz", file.getvalue()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        try:
            found = catalog.read_columns(path)
        except DataError as error:
            assert "spoilt.npz" in str(error)
        else:
            assert set(found) <= {"x", "y"}


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_truncated_npz_is_refused_and_closed(tmp_path: Path, kept: float) -> None:
    whole = Path(npz(tmp_path, x=X, y=Y)).read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[: int(kept * len(whole))])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        refused(str(tmp_path / "d.npz"), "d.npz is damaged or not an .npz file")
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


# --- csv ---


def test_csv_gives_back_its_numbers(tmp_path: Path) -> None:
    lines = [f"{a!r},{label},{b!r}" for (a, b), label in zip(X.tolist(), Y.tolist(), strict=True)]
    table = fs.load(csv(tmp_path, "\n".join(["one,y,two", *lines])))
    np.testing.assert_array_equal(table.inputs, X)
    np.testing.assert_array_equal(table.labels, Y)
    assert table.class_names == ()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_csv_loses_no_digit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.getbasetemp() / "exact.csv"
    path.write_text("\n".join(["a,y", *(f"{value!r},0" for value in values)]))
    assert catalog.read_columns(path)["x"][:, 0].tobytes() == np.array(values).tobytes()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_csv_byte_order_mark_line_ends_and_blanks_do_not_matter(
    tmp_path: Path, encoding: str, newline: str, final: bool
) -> None:
    text = newline.join(["label, a ,client", "dog,1,ward a", "cat, 2.5 ,b", "dog,3,b"]) + newline * final
    table = fs.load(csv(tmp_path, text, encoding))
    assert numbers(table).tolist() == [[1.0], [2.5], [3.0]]
    assert table.class_names == ("cat", "dog")
    assert table.labels.tolist() == [1, 0, 1]
    assert table.client is not None
    assert list(table.split(fs.by_client()).clients) == ["b", "ward a"]


def test_csv_quoted_fields_may_hold_commas_quotes_and_numbers(tmp_path: Path) -> None:
    text = '"a","b, c","label"\n"1.5",2,"red, green"\n3,"4","say ""hi"""\n5,6,#7\n'
    table = fs.load(csv(tmp_path, text))
    assert numbers(table).tolist() == [[1.5, 2], [3, 4], [5, 6]]
    assert table.class_names == ("#7", "red, green", 'say "hi"')


def test_csv_clients_keep_their_names_and_whole_floats_are_labels(tmp_path: Path) -> None:
    table = fs.load(csv(tmp_path, "a,y,client\n1,0.0,007\n2,2.0,9\n"))
    assert table.labels.tolist() == [0, 2]
    assert list(table.split("by-client").clients) == ["007", "9"]


@pytest.mark.parametrize("field", ["1_000", "\u0661", "\uff11", "0x10", "1,5", ""])
def test_csv_takes_no_other_numbers_than_plain_ones(tmp_path: Path, field: str) -> None:
    text = f'a,b,client,y\n1,2,w_é,0\n3,"{field}",w_é,1\n'
    cells = "it is empty in line 3" if not field else f"got {field!r} in line 3"
    with pytest.raises(DataError, match=re.escape(cells)):
        fs.load(csv(tmp_path, text), reading=Reading(columns="numbers"))


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=5), st.permutations(range(5)))
def test_csv_is_what_numpy_reads(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[float]], order: list[int]
) -> None:
    """The one pass of the reader against `loadtxt`, whatever the place of the label and the client."""
    path = tmp_path_factory.getbasetemp() / "same.csv"
    names = [["a", "b", "c", "label", "client"][i] for i in order]
    fields = [[*map(repr, row), f"k{number % 2}", f"w_{number}"] for number, row in enumerate(rows)]
    path.write_text("\n".join([",".join(names), *(",".join(row[i] for i in order) for row in fields)]))
    columns = catalog.read_columns(path)
    features = [name for name in names if name in "abc"]
    read = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, usecols=[names.index(name) for name in features])
    assert columns["feature_names"].tolist() == features
    assert columns["x"].tobytes() == read.tobytes()
    assert columns["y"].tolist() == [row[3] for row in fields]
    assert columns["client"].tolist() == [row[4] for row in fields]


def test_csv_of_one_row_and_one_column_works(tmp_path: Path) -> None:
    table = fs.load(csv(tmp_path, "a,y\n7,0\n"))
    assert numbers(table).tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "is empty; wanted a line with the names of its columns"),
        ("a,y\n", "no samples"),
        ("y\n1\n", "has no feature columns; its columns are y"),
        ("label,client\n1,a\n", "has no feature columns; its columns are label, client"),
        ("a,b\n1,2\n", "Say so with --label NAME; it has a, b"),
        ("a,b,y\n1,inf,0\n2,3,1\n", "column 'b' must hold finite numbers; got 'inf' in line 2"),
        ("a,b,y\n1,2,0\n1,2\n", "2 "),
        ("a,b,y\n1,2,0\n1,2,0,5\n", "d.csv"),  # a decimal comma, say: one field too many
        ("a,a,y\n1,2,0\n", "column names must differ; 'a' stands 2 times"),
        ("a,y\n1,0\n2,\n", "label"),  # a label is missing
        ("a,y\n1,cat\n2,\n", "label"),
        ("a,y\n1,0\n2,nan\n", "the label 'y' is empty, first in line 3; remove such rows"),
        ("a|y\n1|0\n", "d.csv"),
    ],
)
def test_a_bad_csv_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    refused(csv(tmp_path, text), "d.csv", wanted)


@pytest.mark.parametrize("content", [b"a,y\n\xff,0\n", b"\xe9t\xe9,y\n1,0\n", bytes(range(256)) * 4])
def test_a_csv_that_is_not_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d.csv").write_bytes(content)
    refused(str(tmp_path / "d.csv"), "d.csv")


# --- parquet ---


def test_parquet_gives_back_its_columns(tmp_path: Path) -> None:
    path = parquet(tmp_path, a=X[:, 0], y=Y, b=X[:, 1].tolist(), client=["u", "v", "u", "v"])
    table = fs.load(path, reading=Reading(columns="numbers"))
    np.testing.assert_array_equal(table.inputs, X)
    np.testing.assert_array_equal(table.labels, Y)
    assert list(table.split(fs.by_client()).clients) == ["u", "v"]


def test_parquet_label_may_be_called_label_and_hold_texts(tmp_path: Path) -> None:
    path = parquet(tmp_path, a=[1, 2, 3], flag=[True, False, True], label=["dog", "cat", "dog"])
    table = fs.load(path, reading=Reading(columns="numbers"))
    assert table.class_names == ("cat", "dog")
    assert table.labels.tolist() == [1, 0, 1]
    assert numbers(table).tolist() == [[1, 1], [2, 0], [3, 1]]


def test_parquet_categories_are_texts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = fs.load(parquet(tmp_path, a=[1, 2, 3], y=pa.array(["dog", "cat", "dog"]).dictionary_encode()))
    assert table.class_names == ("cat", "dog")
    assert table.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"a": [[1.0], [2.0]], "y": [0, 1]}, "column 'a' holds list<element: double>; leave it out with --drop a"),
        ({"a": [1.0, np.inf], "y": [0, 1]}, "column 'a' must hold finite numbers; got inf in row 2"),
        ({"a": [1.0, 2.0], "y": [0, None]}, "the label 'y' is empty, first in row 2"),
        ({"a": [1.0, 2.0], "y": ["cat", None]}, "label"),
        ({"a": [1.0, 2.0], "y": ["cat", "dog"], "client": ["u", None]}, "client"),
        ({"a": [1.0, 2.0]}, "which column is to be predicted?"),
        ({"y": [0, 1]}, "has no feature columns"),
        ({"a": [1.0, 2.0], "y": [[0], [1]]}, "column 'y' must hold numbers or texts; got list"),
    ],
)
def test_a_bad_parquet_is_refused(tmp_path: Path, columns: dict[str, Any], wanted: str) -> None:
    refused(parquet(tmp_path, **columns), "d.parquet", wanted)


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"a": ["x", "y"], "y": [0, 1]}, "column 'a' must hold numbers; got 'x' in row 1"),
        ({"a": [1.0, None], "y": [0, 1]}, "column 'a' must hold a number in every row; it is empty in row 2"),
        ({"a": [1, None], "y": [0, 1]}, "column 'a' must hold a number in every row; it is empty in row 2"),
        ({"a": [True, None], "y": [0, 1]}, "column 'a' must hold numbers; got 'true' in row 1"),
    ],
)
def test_where_every_cell_is_a_number_others_are_refused(tmp_path: Path, columns: dict[str, Any], wanted: str) -> None:
    with pytest.raises(DataError, match=re.escape(wanted)):
        fs.load(parquet(tmp_path, **columns), reading=Reading(columns="numbers"))


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "d.parquet").write_bytes(content)
    refused(str(tmp_path / "d.parquet"), "d.parquet")
