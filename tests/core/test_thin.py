"""Thin replies: the sums they stand for, what they tell of rows, and what is refused of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve import census, thin
from fedsolve.arrays import layout
from fedsolve.errors import DataError


def drawn(n: int, m: int, classes: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, m)) * np.exp(rng.normal(size=m)), rng.integers(classes, size=n)


@settings(max_examples=40)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 30),
    classes=st.integers(1, 6),
    seed=st.integers(0, 99),
    intercept=st.booleans(),
    numbers=st.booleans(),
)
def test_the_sums_are_those_of_the_rows(
    n: int, m: int, classes: int, seed: int, intercept: bool, numbers: bool
) -> None:
    x, y = drawn(n, m, classes, seed)
    targets = np.random.default_rng(seed).normal(size=(n, classes)) if numbers else y
    wanted = fs.Moments.of(x, targets, classes=classes, intercept=intercept, squares=numbers)
    reply = thin.of(x, targets, classes=classes, intercept=intercept)
    assert thin.are(reply) and not fs.Moments.are(reply)
    thin.check(reply, m + intercept, classes)
    found = thin.moments([reply], classes)
    scale = np.sqrt(np.outer(wanted.diagonal(), wanted.diagonal())) + 1e-300
    assert (np.abs(found.gram - wanted.gram) <= 1e-12 * scale).all()
    np.testing.assert_allclose(found.cross, wanted.cross, rtol=0, atol=1e-12 * np.abs(x).max(initial=1.0) * n)
    assert found.count == n
    assert thin.layout(reply, classes) == layout(wanted.arrays())
    if numbers:
        assert found.squares is not None and wanted.squares is not None
        np.testing.assert_allclose(found.squares, wanted.squares, rtol=1e-12)
    else:
        census.examine(found.arrays(), ones=m if intercept else None)
    if intercept:  # whoever reads counts need not round
        assert found.gram[-1, -1] == n
        assert numbers or (found.cross[-1] == wanted.cross[-1]).all()


def test_many_at_once_are_the_sum_of_each() -> None:
    parts = [drawn(n, 20, 4, seed) for seed, n in enumerate((3, 7, 1, 5))]
    replies = [thin.of(x, y, classes=4, intercept=True) for x, y in parts]
    one_by_one = [thin.moments([reply], 4) for reply in replies]
    total = one_by_one[0] + one_by_one[1] + one_by_one[2] + one_by_one[3]
    found = thin.moments(replies, 4)
    np.testing.assert_allclose(found.gram, total.gram, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.cross, total.cross, rtol=1e-12, atol=1e-12)
    assert found.count == total.count == 16


def test_rotations_are_uniform_and_never_the_same() -> None:
    """Haar: entries of Q have mean 0 and variance 1 / n, whichever they are, and so has the trace its own."""
    n, many = 5, 4000
    source = np.random.default_rng(5).bytes
    drawn_ones = np.array([thin.rotation(n, source) for _ in range(many)])
    np.testing.assert_allclose(
        drawn_ones @ drawn_ones.transpose(0, 2, 1), np.broadcast_to(np.eye(n), (many, n, n)), atol=1e-12
    )
    assert np.abs(drawn_ones.mean(0)).max() < 5 / np.sqrt(n * many)
    assert np.abs((n * drawn_ones**2).mean(0) - 1).max() < 5 * np.sqrt(2 / many)
    traces = np.trace(drawn_ones, axis1=1, axis2=2)  # of mean 0 and variance 1 (Diaconis and Shahshahani)
    assert abs(traces.mean()) < 5 / np.sqrt(many) and abs(traces.var() - 1) < 5 * np.sqrt(2 / many)
    assert (np.linalg.det(drawn_ones) > 0).mean() == pytest.approx(0.5, abs=0.05)


def test_no_row_can_be_read_off_a_reply() -> None:
    """No row of the reply is near a row of the data, nor near a multiple of one; labels are mixed over all rows."""
    rng = np.random.default_rng(3)
    x, y = np.abs(rng.normal(size=(12, 60))), rng.integers(3, size=12)
    x[:, 0] = 0.0  # a QR factorisation in place of a random rotation would leave the first row as it is
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    reply = thin.of(x, y, classes=3)
    found = reply["turned"] / np.linalg.norm(reply["turned"], axis=1, keepdims=True)
    assert np.abs(found @ unit.T).max() < 0.99
    assert np.abs(reply["targets"]).min() > 1e-6  # every row has a part of every class
    shortcut = np.asarray(np.linalg.qr(x, mode="r"))[0]
    assert abs(shortcut @ unit[0]) / np.linalg.norm(shortcut) > 0.99


def test_what_is_sent_does_not_depend_on_the_run_s_seed() -> None:
    x, y = drawn(6, 40, 3)
    site = fs.Site(fs.Task(fs.Classes(3), (40,)), fs.Samples(x, y), 1, np.random.default_rng(0))
    method = fs.AFL(thin=True)
    first, second = (method.update({}, {}, site)[1] for _ in range(2))
    assert thin.are(first) and not np.allclose(first["turned"], second["turned"])


def test_the_source_of_a_rotation_is_the_operating_system() -> None:
    import inspect
    import os

    assert inspect.signature(thin.of).parameters["source"].default is os.urandom
    first, second = (thin.rotation(4, lambda size: bytes(range(size))) for _ in range(2))
    np.testing.assert_array_equal(first, second)  # nothing else is drawn from


SPOILT: dict[str, Any] = {
    "2000000 features, and 31 are wanted": lambda r: {**r, "turned": np.broadcast_to(0.0, (9, 1_999_999))},
    "counts": lambda r: {**r, "targets": 1.01 * r["targets"]},
    "labels under a rotation": lambda r: {**r, "targets": r["targets"] + 0.1},
    "column of ones": lambda r: {**r, "ones": 2 * r["ones"]},
    "sums over samples": lambda r: {**r, "ones": r["ones"][::-1].copy()},
    "each once and in order": lambda r: {**r, "classes": r["classes"][::-1].copy()},
    "from 0 to 3": lambda r: {**r, "classes": r["classes"] + 2},
}


@pytest.mark.parametrize("words", SPOILT)
def test_what_no_samples_have_is_refused(words: str) -> None:
    x, y = drawn(9, 30, 3)
    reply = thin.of(x, np.concatenate([[0, 1, 2], y[3:]]), classes=4, intercept=True)
    thin.check(reply, 31, 4)
    with pytest.raises(DataError, match=words):
        thin.check(SPOILT[words](reply), 31, 4)


def test_rows_left_out_of_the_targets_are_refused() -> None:
    x, y = drawn(9, 30, 3)
    reply = thin.of(x, y, classes=3)
    first = np.flatnonzero(np.bincount(y, minlength=3))[0]
    kept = reply["classes"] != first
    with pytest.raises(DataError, match=r"class counts sum to \d of 9 samples"):
        thin.check({**reply, "classes": reply["classes"][kept], "targets": reply["targets"][:, kept]}, 30, 3)
    numbers = thin.of(x, np.ones((9, 2)))
    with pytest.raises(DataError, match="2 targets, and the task 3"):
        thin.check(numbers, 30, 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200, 1e-200])
def test_what_moments_refuse_is_refused_with_the_same_words(bad: float) -> None:
    x, y = drawn(4, 20, 3)
    x[:, 5] = bad
    with pytest.raises(DataError) as wanted:
        fs.Moments.of(x, y, classes=3)
    with pytest.raises(DataError, match=re.escape(str(wanted.value))):
        thin.of(x, y, classes=3)
    with pytest.raises(DataError, match=r"labels must lie in 0\.\.2"):
        thin.of(np.ones((2, 9)), np.array([0, 3]), classes=3)


@pytest.mark.parametrize(
    "change",
    [
        {"turned": np.zeros((3, 4), np.float32)},
        {"turned": np.zeros(3)},
        {"targets": np.zeros((2, 2))},
        {"classes": np.zeros(3, np.int64)},
        {"classes": np.zeros(2)},
        {"ones": np.zeros(4)},
        {"more": np.zeros(1)},
    ],
    ids=str,
)
def test_other_arrays_are_no_thin_reply(change: dict[str, Any]) -> None:
    reply = {"turned": np.zeros((3, 4)), "targets": np.zeros((3, 2)), "classes": np.arange(2)}
    assert thin.are(reply)
    assert not thin.are({**reply, **change})
    assert thin.as_moments({"a": np.zeros(1)}, 2).keys() == {"a"}
