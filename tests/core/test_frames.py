"""Columns of frames are taken by name, whatever their order and whoever made the frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsolve.data.frames import in_columns
from fedsolve.errors import DataError

NAMES = ("age", "pulse", "weight")
VALUES: dict[str, Any] = {"age": [30, 40], "pulse": [60.5, 70.5], "weight": [True, False]}
ROWS = np.array([[30, 60.5, 1], [40, 70.5, 0]])

Maker = Callable[[Mapping[str, Any]], Any]


def of_pandas(values: Mapping[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(dict(values))


def of_polars(values: Mapping[str, Any]) -> Any:
    return pytest.importorskip("polars").DataFrame(dict(values))


def of_pyarrow(values: Mapping[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").table(dict(values))


every_kind = pytest.mark.parametrize("frame_of", [of_pandas, of_polars, of_pyarrow])


@every_kind
@given(order=st.permutations(NAMES))
def test_any_order_of_columns_gives_the_same_array(frame_of: Maker, order: list[str]) -> None:
    array = in_columns(frame_of({name: VALUES[name] for name in order}), NAMES, "X")
    assert array.dtype == np.float64  # whole numbers, fractions and truth values together are numbers
    np.testing.assert_array_equal(array, ROWS)


@every_kind
def test_everything_wrong_is_said_at_once(frame_of: Maker) -> None:
    frame = frame_of({"size": [1, 2], "pulse": [3, 4], "sex": [5, 6]})
    words = "X must have the 3 columns .*; missing: age, weight; not among them: size, sex$"
    with pytest.raises(DataError, match=words):
        in_columns(frame, NAMES, "X")


def test_a_column_that_comes_twice_is_refused() -> None:
    frame = of_pandas(VALUES)
    frame.columns = ["age", "pulse", "age"]
    with pytest.raises(DataError, match=r"missing: weight; more than once: age$"):
        in_columns(frame, NAMES, "X")


def test_columns_without_texts_for_names_are_not_guessed() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match=r"missing: age, pulse, weight; not among them: 0, 1, 2$"):
        in_columns(pandas.DataFrame(ROWS), NAMES, "X")


def test_a_column_named_as_an_attribute_of_other_frames() -> None:
    frame = of_pandas({"column_names": [1.0], "columns": [2.0]})
    np.testing.assert_array_equal(in_columns(frame, ("columns", "column_names"), "X"), [[2.0, 1.0]])


@every_kind
@pytest.mark.parametrize("others", [["f", "m"], np.array(["2024-01-31", "2024-02-29"], dtype="datetime64[ms]")])
def test_what_is_no_number_leaves_the_numbers_beside_it_as_they_are(frame_of: Maker, others: Any) -> None:
    array = in_columns(frame_of({"other": others, "age": [30.25, 40.0]}), ("age", "other"), "X")
    assert array.dtype == object
    assert array[:, 0].tolist() == [30.25, 40.0]


@pytest.mark.parametrize("names", [NAMES, ()])
def test_what_has_no_columns_is_taken_as_it_is(names: tuple[str, ...]) -> None:
    assert in_columns(ROWS, names, "X") is ROWS
    np.testing.assert_array_equal(in_columns(ROWS.tolist(), names, "X"), ROWS)
    with pytest.raises(DataError, match="X: inputs must form one array"):
        in_columns([[1.0], [1.0, 2.0]], names, "X")


@every_kind
def test_a_frame_without_names_to_go_by_keeps_its_order(frame_of: Maker) -> None:
    frame = frame_of({"b": [1.0, 2.0], "a": [3.0, 4.0]})
    np.testing.assert_array_equal(in_columns(frame, (), "X"), [[1.0, 3.0], [2.0, 4.0]])
