"""Targets, tasks, their one text form, and files that are brought to a task."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.data.align import align
from fedsolve.data.samples import Samples
from fedsolve.data.table import Table
from fedsolve.data.task import Classes, Target, Task
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import maps
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.parameters import whole

LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"])  # names of classes have no controls
NAMES = st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=6, unique=True).map(tuple)
MAPS = st.sampled_from(["identity", "unit", "ones", "random:7,tanh,3", "unit+random:4,relu,1"]).map(maps.parse)


# --- targets ---


@given(st.integers(1, 9), st.data())
def test_rows_of_classes_are_one_hot(count: int, data: Any) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), dtype=np.int64)
    target = Classes(count)
    rows = target.rows(labels)
    assert rows.shape == (len(labels), target.width) and rows.dtype == np.float64
    assert (rows.sum(1) == 1).all() and rows.size == count * len(labels)
    np.testing.assert_array_equal(rows.argmax(1), labels)
    assert isinstance(target, Target)


@given(NAMES, st.data())
def test_named_classes_are_read_by_name(names: tuple[str, ...], data: Any) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=9))
    names = tuple(name.replace("\0", "0") for name in names)  # NumPy cuts texts that end in a zero character
    if len(set(names)) < len(names):
        return
    assert Classes(len(names), names).read([names[i] for i in numbers], "f").tolist() == numbers


def test_names_that_look_like_numbers_are_still_names() -> None:
    target = Classes(3, ("-1", "2020", "other"))
    assert target.read(np.array([2020, -1]), "f").tolist() == [1, 0]
    assert target.read(np.array([2020.0, -1.0]), "f").tolist() == [1, 0]


@pytest.mark.parametrize(
    ("names", "labels", "wanted"),
    [
        (("a", "b"), ["a", "c", "d"], "f: unknown class 'c'; known: a, b"),
        (("a", "b"), [["a"]], "f: labels must be one class per sample"),
        ((), [0, 2], "f: labels must be integers from 0 to 1; got 2 in row 1"),
        ((), [0, -1], "f: labels must be integers from 0 on; got -1 in row 1"),
        ((), [0.5], "f: labels must be integers; got 0.5 in row 0"),
        ((), ["a"], "f: labels must be integers from 0 to 1, since the classes have no names; got 'a' in row 0"),
    ],
)
def test_labels_of_no_class_are_refused(names: tuple[str, ...], labels: Any, wanted: str) -> None:
    with pytest.raises(DataError) as error:
        Classes(2, names).read(labels, "f")
    assert wanted in str(error.value)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3", None, float("nan")])
def test_the_number_of_classes_is_checked(count: Any) -> None:
    with pytest.raises(ParameterError, match="classes must be an integer of at least 1; got"):
        Classes(count)


def test_a_task_wants_a_target() -> None:
    with pytest.raises(ParameterError, match=r"as in Task\(Classes\(2\), \(3,\)\); got 2"):
        Task(2, (3,))  # type: ignore[arg-type]


# --- the text form ---


@given(st.integers(1, 9), st.booleans(), st.integers(1, 5), st.booleans(), MAPS)
def test_a_text_gives_the_task_back(count: int, named: bool, width: int, columns: bool, features: Any) -> None:
    names = tuple(f"class {i}" for i in range(count)) if named else ()
    task = Task(Classes(count, names), (width,), features, tuple(f"x{i}" for i in range(width)) if columns else ())
    assert Task.from_text(task.to_text(), features) == task
    remote = Task.from_text(task.to_text())
    assert (remote.target, remote.inputs, remote.feature_names) == (task.target, task.inputs, task.feature_names)
    assert (remote.shape, remote.width, remote.described) == (task.shape, task.width, task.described)
    assert remote.space == task.space
    assert remote.to_text() == task.to_text()


def test_another_map_than_the_texts_is_refused_in_words() -> None:
    text = Task(Classes(2), (3,), maps.parse("random:9,relu,1")).to_text()
    with pytest.raises(DataError, match="not the federation's: random:9,relu,2 here, random:9,relu,1 there"):
        Task.from_text(text, maps.parse("random:9,relu,2"))


def test_a_map_that_is_elsewhere_computes_nothing() -> None:
    task = Task.from_text(Task(Classes(2), (3,), maps.parse("unit")).to_text())
    assert task.features == Elsewhere("unit", "unit", (3,))
    with pytest.raises(
        DataError, match="its features come from 'unit', which is not opened because a file or a message names it"
    ):
        task.features(np.ones((1, 3)))


@pytest.mark.parametrize("text", ["", "{", "7", "[]", "{}", "null", "[" * 10**5, '{"target": null}'])
def test_a_text_that_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="the text of its task is damaged"):
        Task.from_text(text)


@given(st.data())
def test_a_spoilt_text_is_refused_or_a_task(data: Any) -> None:
    text = Task(Classes(2, ("a", "b")), (3,), feature_names=("x", "y", "z")).to_text()
    at = data.draw(st.integers(0, len(text) - 1))
    try:
        task = Task.from_text(text[:at] + data.draw(st.characters(max_codepoint=126)) + text[at + 1 :])
    except DataError:
        return
    assert Task.from_text(task.to_text()) == task


def test_the_text_is_plain_json() -> None:
    assert json.loads(Task(Classes(2), (3,)).to_text())["target"] == {"kind": "classes", "count": 2, "names": []}


# --- files brought to a task ---


COLUMNS = ("age", "pulse", "weight")
TASK = Task(Classes(3, ("ill", "unsure", "well")), (3,), feature_names=COLUMNS)


@given(st.permutations(COLUMNS), st.permutations(["ill", "well", "unsure"]), st.integers(1, 3), st.integers(0, 99))
def test_order_of_columns_and_classes_does_not_matter(
    columns: list[str], classes: list[str], count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    classes = classes[:count]  # a site need not have all
    x, y = rng.normal(size=(8, 3)), rng.integers(count, size=8)
    order = [COLUMNS.index(name) for name in columns]
    own = Table.make(
        "f", x[:, order], y, test=(x[:2][:, order], y[:2]), class_names=classes, feature_names=columns, client=[1] * 8
    )
    aligned = align(own, TASK, "f")
    np.testing.assert_array_equal(aligned.inputs, x)
    assert [TASK.class_names[i] for i in aligned.labels] == [classes[i] for i in y]
    assert isinstance(aligned.test, Samples)
    np.testing.assert_array_equal(aligned.test.inputs, x[:2])
    np.testing.assert_array_equal(aligned.test.labels, aligned.labels[:2])
    assert aligned.task == TASK
    assert aligned.client is not None


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            {"feature_names": ("age", "size", "shoe")},
            "f: it lacks pulse, weight and has shoe, size besides; wanted the columns age, pulse, weight",
        ),
        ({"inputs": np.ones((2, 2)), "feature_names": ("age", "pulse")}, "f: it lacks weight; wanted"),
        ({"inputs": np.ones((2, 2)), "feature_names": ()}, "f: inputs have shape (2,); wanted shape (3,)"),
        ({"class_names": ("ill", "dead")}, "f: unknown class 'dead'; known: ill, unsure, well"),
        ({"class_names": ()}, "f: unknown class '0'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(options: dict[str, Any], wanted: str) -> None:
    made: dict[str, Any] = {
        "inputs": np.ones((2, 3)),
        "class_names": ("ill", "well"),
        "feature_names": COLUMNS,
    } | options
    own = Table.make("f", made.pop("inputs"), [0, 1], **made)
    with pytest.raises(DataError) as error:
        align(own, TASK, "f")
    assert wanted in str(error.value)


def test_more_classes_than_the_task_has_are_refused_also_in_the_test_set() -> None:
    task = Task(Classes(2), (3,))
    for labels, test in (([0, 2], [0, 1]), ([0, 1], [0, 2])):
        own = Table.make("f", np.ones((2, 3)), labels, test=(np.ones((2, 3)), test))
        with pytest.raises(DataError, match="f: labels must be integers from 0 to 1; got 2 in row 1"):
            align(own, task, "f")


def test_pictures_of_any_size_have_three_channels() -> None:
    task = Task(Classes(2), (-1, -1, 3), Elsewhere("net", "net", (4,)))
    pictures = Table.make("f", np.zeros((2, 5, 4, 3), np.uint8), [0, 1])
    assert align(pictures, task, "f").raw == (5, 4, 3)
    with pytest.raises(DataError, match=r"f: inputs have shape \(5, 4\); wanted pictures \(height, width, 3\)"):
        align(Table.make("f", np.zeros((2, 5, 4), np.uint8), [0, 1]), task, "f")


# --- whole numbers ---


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_whole_numbers_keep_their_value(value: int, low: int) -> None:
    for kind in (int, np.int64, np.int8):
        if value < low:
            with pytest.raises(ParameterError, match=f"n must be an integer of at least {low}; got"):
                whole("n", kind(value), low)
        else:
            assert whole("n", kind(value), low) == value
            assert type(whole("n", kind(value), low)) is int


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), "1", None, float("nan")])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match="n must be an integer of at least 0; got"):
        whole("n", value, 0)


def test_classes_are_public() -> None:
    assert fs.Classes is Classes
