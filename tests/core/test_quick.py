"""A text file read by pyarrow holds what the standard library reads cell by cell, faults included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsolve.data import quick
from fedsolve.data.files import read_content
from fedsolve.data.reading import Reading
from fedsolve.errors import DataError
from fedsolve.features.cells import Cells, Texts

pytest.importorskip("pyarrow")

NUMBERS = ["1", "-2.5", "3e2", "0.1", "7", "1e-300", "12345678901234567890", ".5", "5.", "+4"]
ODD = ["", "NA", " 3 ", "nan", "?", "inf", "-Infinity", "1_000", "old", "٣", "0x10", "1e999", "NULL", "true", "(empty)"]
WORDS = ["red", " blue", "blue", "", "NA", "7", "ﬁ", "a b"]


def read(path: Path, **options: Any) -> Any:
    """What a file holds, by plain values; or the message of the error."""
    try:
        found = read_content(path, Reading(label=("y",), **options))
    except DataError as error:
        return str(error)
    assert isinstance(found.inputs, Cells)
    columns: list[Any] = []
    for column in found.inputs.columns:
        if isinstance(column, Texts):
            columns.append([*map([*column.levels, None].__getitem__, column.codes)])
        else:
            columns.append(column.view(np.uint64).tolist() if not np.isnan(column).any() else repr(column.tolist()))
    assert found.labels is not None
    return columns, found.names, found.labels.tolist(), None if found.client is None else found.client.tolist()


def both(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, Any]:
    """What both ways read."""
    with monkeypatch.context() as patch:
        patch.setattr(quick, "SMALL", 0)
        patch.setattr(quick, "BLOCK", 200)
        patch.setattr(quick, "FIRST", 100)
        assert quick.readable(path, "")
        fast = read(path, **options)
        patch.setattr(quick, "readable", lambda *_: False)
        return fast, read(path, **options)


def mostly(first: list[str], others: list[str]) -> st.SearchStrategy[str]:
    return st.integers(0, 30).flatmap(lambda n: st.sampled_from(others if n == 0 else first))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            mostly(NUMBERS, ODD),
            st.sampled_from(NUMBERS),
            st.sampled_from(WORDS),
            mostly(["a", "b"], ["", "x y"]),
            st.sampled_from(["no", "yes"]),
        ),
        min_size=1,
        max_size=60,
    ),
    separator=st.sampled_from([",", ";", "\t"]),
    mark=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_both_ways_read_the_same(
    rows: list[tuple[str, ...]], separator: str, mark: bool, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [separator.join(row) for row in [("n", "m", "t", "client", "y"), *rows]]
    path = tmp_path / "t.csv"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + end.join([*lines, ""]).encode())
    fast, slow = both(path, monkeypatch)
    assert fast == slow


def test_a_decimal_comma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n;m;y\n" + "".join(f"{i},5;{-i};{'ab'[i % 2]}\n" for i in range(100)))
    fast, slow = both(path, monkeypatch)
    assert fast == slow and fast[0][0] == (np.arange(100) + 0.5).view(np.uint64).tolist()


@pytest.mark.parametrize("line", ["1,2\n", "1,2,a,4\n", "\n", '"1",2,a\n'])
def test_lines_that_are_not_like_the_others(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n,m,y\n" + "1,2,a\n3,4,b\n" * 50 + line + "1,2,a\n" * 50)
    if '"' in line:
        assert not quick.readable(path, "")
        return
    fast, slow = both(path, monkeypatch)
    assert fast == slow


def test_numbers_that_turn_into_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n,y\n" + "1,a\n2,b\n" * 30 + "low,a\nhigh,b\n" * 300)
    fast, slow = both(path, monkeypatch)
    assert fast == slow and set(fast[0][0]) == {"1", "2", "low", "high"}
