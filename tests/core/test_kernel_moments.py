"""Laws of the statistics beyond the monoid: which triangles are sums of squares, blocks, overflow, refusals."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve import blas
from fedsolve import moments as module
from fedsolve.errors import DataError

SEEDS = st.integers(0, 2**32)


# --- the factor: just the matrices that samples can have pass


@given(SEEDS, st.integers(1, 12), st.sampled_from([1.0, 1e-8, 1e8]))
def test_the_factor_is_that_of_the_sum_of_squares(seed: int, count: int, unit: float) -> None:
    """Whatever the samples, also fewer than features, with a feature that is always zero, and in whatever units."""
    x = np.random.default_rng(seed).normal(size=(count, 5)) * unit * [1e-3, 1.0, 0.0, 1e3, 1.0]
    found = fs.Moments.of(x, np.zeros(count, int), classes=1)
    lower = found.factor()
    assert not np.triu(lower, 1).any()
    spread = np.sqrt(np.outer(found.diagonal(), found.diagonal()))
    assert (np.abs(lower @ lower.T - found.gram) <= 3e-9 * np.maximum(spread, 1e-3 * unit**2)).all()


def test_the_factor_of_nothing_and_of_zeros_is_small_but_there() -> None:
    assert fs.Moments.zero(0, 1).factor().shape == (0, 0)
    assert np.abs(fs.Moments.zero(3, 1).factor()).max() < 1e-8


@pytest.mark.parametrize(
    ("gram", "words"),
    [
        ([[1.0, 0.0], [0.0, -1e-3]], r"the squares of feature 1 sum to -0\.001"),
        ([[np.nan, 0.0], [0.0, 1.0]], "feature 0 sum to nan"),
        ([[1.0, 1.01], [1.01, 1.0]], "not positive semi-definite"),
        ([[1.0, 1.0 + 1e-7], [1.0 + 1e-7, 1.0]], "not positive semi-definite"),
        ([[1e-8, 1.01e-8], [1.01e-8, 1e-8]], "not positive semi-definite"),
        ([[0.0, 1e-3], [1e-3, 1.0]], "not positive semi-definite"),  # an entry beside a zero diagonal
        ([[0.0, 1e-3], [1e-3, 0.0]], "not positive semi-definite"),
        ([[1e-6, 0.0, 1e-6], [0.0, 4.0, 0.0], [1e-6, 0.0, 0.0]], "not positive semi-definite"),
    ],
)
def test_what_no_samples_can_have_has_no_factor(gram: list[list[float]], words: str) -> None:
    lower = np.array(gram)
    triangle = blas.pack(lower)
    moments = fs.Moments(triangle, np.zeros((len(lower), 1)), np.array(3))
    with pytest.raises(DataError, match=words):
        moments.factor()


def test_rounding_in_the_sums_is_no_reason_to_refuse() -> None:
    """Two features that are always equal, summed over many clients: F'F is singular but for rounding."""
    rng = np.random.default_rng(0)
    total = fs.Moments.zero(3, 1)
    for _ in range(200):
        x = rng.normal(size=(50, 1)) * 1e3
        total = total + fs.Moments.of(np.column_stack([x, x, -x / 3]), np.zeros(50, int))
    total.factor()
    nearly = total.gram
    nearly[0, 1] = nearly[1, 0] = nearly[0, 0] * (1 + 1e-11)
    fs.Moments.from_gram(nearly, total.cross, 3).factor()


# --- arrays that are moments


def good() -> dict[str, np.ndarray]:
    return fs.Moments.of(np.eye(3), [0, 1, 1]).arrays()


def test_moments_are_known_by_names_types_and_shapes() -> None:
    assert fs.Moments.are(good()) is True
    assert fs.Moments.are(fs.Moments.zero(0, 2).arrays())
    for name in good():
        assert not fs.Moments.are({other: array for other, array in good().items() if other != name})
        assert not fs.Moments.are({**good(), name + "s": np.zeros(1)})
    for name, other in {
        "triangle": [np.zeros(5), np.zeros(7), np.zeros((6, 1)), np.zeros(6, np.float32), np.array(0.0)],
        "cross": [np.zeros((2, 2)), np.zeros(3), np.zeros((3, 2), np.float32), np.zeros((3, 2, 1)), np.array(0.0)],
    }.items():
        for array in other:
            changed: dict[str, Any] = {**good(), name: array}
            assert not fs.Moments.are(changed)
    # Nor where F'F and F'Y have the same wrong type.
    assert not fs.Moments.are({name: array.astype(np.float32) for name, array in good().items()})
    for size in range(3):
        assert not fs.Moments.are({"triangle": np.zeros(size), "cross": np.zeros(size), "count": np.array(0)})


# --- what is refused, and what just passes


@pytest.mark.parametrize(
    ("triangle", "cross"),
    [
        (np.zeros(6, np.float32), np.zeros((3, 1))),
        (np.zeros(6), np.zeros((3, 1), np.float32)),
        (np.zeros(7), np.zeros((3, 1))),
        (np.zeros((1, 6)), np.zeros((3, 1))),
        (np.zeros(6), np.zeros((3, 1, 1))),
    ],
)
def test_sums_of_the_wrong_type_or_shape_are_refused(triangle: np.ndarray, cross: np.ndarray) -> None:
    with pytest.raises(DataError, match="moments"):
        fs.Moments(triangle, cross, np.array(1))


def test_the_count_is_an_integer_array_of_at_least_zero() -> None:
    made = fs.Moments(np.zeros(1), np.zeros((1, 1)), 0)  # type: ignore[arg-type]
    assert isinstance(made.samples, np.ndarray)
    assert made.samples.dtype == np.int64
    assert fs.Moments(np.zeros(1), np.zeros((1, 1)), np.array(7, np.uint8)).samples.dtype == np.int64
    with pytest.raises(DataError, match="-1 samples"):
        fs.Moments(np.zeros(1), np.zeros((1, 1)), np.array(-1))


def test_a_full_matrix_is_taken_if_it_is_square_and_symmetric_up_to_rounding() -> None:
    gram = np.array([[4, 2], [2, 3]])  # integers are fine
    found = fs.Moments.from_gram(gram, np.array([[1], [2]]), 5)
    np.testing.assert_array_equal(found.gram, gram)
    np.testing.assert_array_equal(found.cross, [[1.0], [2.0]])
    assert (found.count, found.space) == (5, 0)
    assert found.cross.dtype == np.float64
    assert fs.Moments.from_gram(np.zeros((0, 0)), np.zeros((0, 2)), 0).features == 0
    for shape in [(2, 3), (3, 2), (4,), (2, 2, 2)]:
        with pytest.raises(DataError, match=r"square; got shape"):
            fs.Moments.from_gram(np.zeros(shape), np.zeros((2, 1)), 1)


@pytest.mark.parametrize("unit", [1e-20, 1.0, 1e20])
def test_symmetry_is_judged_by_the_largest_entry_whatever_the_unit(unit: float) -> None:
    def made(small: float, large: float) -> fs.Moments:
        gram = unit * np.array([[1.0, 0.0, 1e-9], [0.0, 1.0, 0.5], [1e-9 + small, 0.5 + large, 1.0]])
        return fs.Moments.from_gram(gram, np.zeros((3, 1)), 1)

    made(1e-14, 1e-14)
    for difference in ((1e-11, 0.0), (0.0, 1e-11)):
        with pytest.raises(DataError, match="symmetric"):
            made(*difference)


def test_spaces_are_zero_unless_named_and_travel_with_every_way_to_make_moments() -> None:
    x, y = np.eye(2), np.array([0, 1])
    plain = fs.Moments.of(x, y)
    blocks = [(x, y)]
    assert {
        plain.space,
        fs.Moments.zero(2, 2).space,
        fs.Moments.from_arrays(plain.arrays()).space,
        fs.Moments.from_gram(plain.gram, plain.cross, 2).space,
        fs.Moments.over(blocks, features=2, classes=2).space,
    } == {0}
    assert {
        fs.Moments.of(x, y, space=5).space,
        fs.Moments.of(x[:0], y[:0], classes=2, space=5).space,
        fs.Moments.zero(2, 2, 5).space,
        fs.Moments.from_arrays(plain.arrays(), 5).space,
        fs.Moments.from_gram(plain.gram, plain.cross, 2, 5).space,
        fs.Moments.over(blocks, features=2, classes=2, space=5).space,
        fs.Moments.over([], features=2, classes=2, space=5).space,
        fs.Moments.of(x, y, space=5).scaled(2.0).space,
    } == {5}


@pytest.mark.parametrize("labels", [[], [[], []]])
def test_no_samples_are_the_zero_of_their_size(labels: list[object]) -> None:
    found = fs.Moments.of(np.empty((0, 3)), np.empty(0, int), intercept=True)
    assert (found.features, found.targets, found.count) == (4, 0, 0)
    rows = fs.Moments.of(np.empty((0, 3)), np.empty((0, 2)))
    assert (rows.features, rows.targets, rows.count) == (3, 2, 0)


# --- numbers too large, or none


def large(value: float, count: int) -> np.ndarray:
    return np.full((count, 1), value)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("block", [8, 2**20])
def test_numbers_too_large_end_in_one_sentence_and_no_warning(
    intercept: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one block or in many; sums of products overflow, and infinities of both signs meet."""
    monkeypatch.setattr(module, "BLOCK_BYTES", block)
    x = np.concatenate([large(1e200, 3), large(-1e200, 3)]).astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="squares overflow float64"):
            fs.Moments.of(x, np.zeros(6, int), intercept=intercept)
        with pytest.raises(DataError, match="squares overflow float64"):
            fs.Moments.of(large(1e308, 3), np.zeros(3, int), intercept=intercept)
        for value in (np.nan, np.inf):
            spoilt = np.ones((6, 1))
            spoilt[4] = value
            with pytest.raises(DataError, match=rf"got {value} in row 4, column 0"):
                fs.Moments.of(spoilt, np.zeros(6, int), intercept=intercept)


def test_targets_that_are_not_finite_are_refused_though_the_features_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 8)
    for value in (np.nan, np.inf):
        with pytest.raises(DataError, match="targets must be finite"):
            fs.Moments.of(np.ones((4, 1), np.float32), [[1.0], [1.0], [value], [-value]])


def test_blocks_whose_sums_overflow_are_refused_without_a_warning() -> None:
    top = np.array([[1e308]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="finite"):
            fs.Moments.over([(top, np.zeros(1, int))] * 3, features=1, classes=1)
        for value in (np.nan, np.inf):
            blocks = [(np.array([[value]]), np.zeros(1, int)), (np.array([[-value]]), np.zeros(1, int))]
            with pytest.raises(DataError, match="finite"):
                fs.Moments.over(blocks, features=1, classes=1)


@given(SEEDS, st.integers(1, 4))
def test_blocks_of_single_rows_are_the_rows_at_once(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, 3)), rng.integers(2, size=count)
    blocks = [(x[i : i + 1], y[i : i + 1]) for i in range(count)]
    found, whole = fs.Moments.over(blocks, features=3, classes=2), fs.Moments.of(x, y, classes=2)
    np.testing.assert_allclose(found.gram, whole.gram, rtol=1e-12)
    np.testing.assert_allclose(found.cross, whole.cross, rtol=1e-12, atol=1e-15)
    assert found.count == count


def test_blocks_are_as_large_as_is_said_and_rows_that_need_no_copy_are_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory for rows in float64 is that of a block; C-ordered float64 rows are multiplied where they lie."""

    def peak(x: np.ndarray, intercept: bool = False) -> int:
        y = np.zeros(len(x), int)
        fs.Moments.of(x, y, intercept=intercept)
        tracemalloc.start()
        fs.Moments.of(x, y, intercept=intercept)
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    rows = np.ones((4096, 128), np.float32)
    monkeypatch.setattr(module, "BLOCK_BYTES", 2**20)
    small = peak(rows)
    assert peak(rows.astype(np.float64), intercept=True) < small + 2**20  # a column of ones makes it a copy
    monkeypatch.setattr(module, "BLOCK_BYTES", 2**22)
    assert 2.0 * 2**20 < peak(rows) - small < 4.0 * 2**20
    assert peak(rows.astype(np.float64)) < 2**20


@pytest.mark.parametrize("labels", [np.array([0, 1], np.uint8), np.array([False, True]), np.array([0, 1], np.int16)])
def test_labels_of_every_integer_type_count_alike(labels: np.ndarray) -> None:
    found = fs.Moments.of([[1.0], [2.0]], labels)
    np.testing.assert_array_equal(found.cross, [[1.0, 2.0]])
    np.testing.assert_array_equal(fs.Moments.of([[1.0], [2.0]], labels, classes=3).cross, [[1.0, 2.0, 0.0]])


@pytest.mark.parametrize(("labels", "classes"), [([0, 2], 2), ([-1, 0], 2), ([-1, 0], None), ([0], 0)])
def test_labels_outside_the_classes_are_refused(labels: list[int], classes: int | None) -> None:
    with pytest.raises(DataError, match="labels must lie in 0"):
        fs.Moments.of(np.ones((len(labels), 1)), labels, classes=classes)


def test_one_sample_is_a_row_of_one_number_and_texts_are_none() -> None:
    assert fs.Moments.of(3.0, [0]).gram == 9.0
    assert fs.Moments.of([3.0, 4.0], [0, 0]).gram == 25.0
    for bad in (np.array([["a"]]), np.array([[object()]]), np.array([[1j]]), np.array([["2020-01-01"]], "M8[D]")):
        with pytest.raises(DataError, match="features must be numbers"):
            fs.Moments.of(bad, [0])


def test_a_repr_shows_sizes_and_no_sums() -> None:
    moments = fs.Moments.of([[1234.5, 2.0], [3.0, 4.0]], [0, 2], classes=3, space=7)
    assert repr(moments) == "Moments(2 features, 3 targets, 2 samples, space 7)"


@pytest.mark.parametrize("shape", [(3, 5), (9, 5), (5, 5)])
def test_a_feature_whose_squares_vanish_is_named_whatever_stands_beside_it(shape: tuple[int, int]) -> None:
    rows = np.zeros(shape)
    rows[:, 0] = 1.0
    labels = np.arange(len(rows)) % 2
    assert fs.Moments.of(rows, labels).count == len(rows)  # columns of zeros are features like any other
    assert fs.Moments.of(rows.astype(np.int64), labels).count == len(rows)
    rows[1, 3], rows[2, 3], rows[0, 4] = 3e-170, -7e-170, 2e-165
    with pytest.raises(DataError, match=r"feature 3 is too small: its values are at most 7e-170 in size"):
        fs.Moments.of(rows, labels)
    with pytest.raises(DataError, match=r"feature 3 is too small"):
        fs.Moments.of(rows, labels, intercept=True)


def test_squares_near_the_end_of_float64_are_refused_by_the_first_feature_that_has_them() -> None:
    edge = np.sqrt(module.LARGEST)
    rows = np.diag([1.0, 0.999 * edge, 1.001 * edge, 2.0 * edge])
    assert fs.Moments.of(rows[:2], [0, 1]).count == 2
    with pytest.raises(DataError, match="feature 2 is too large"):
        fs.Moments.of(rows, np.arange(4))
    with pytest.raises(DataError, match="those of feature 2 are not"):
        fs.Moments.over([(rows, np.arange(4))], features=4, classes=4)
    assert module.LARGEST * 2**19 < np.finfo(np.float64).max < module.LARGEST * 2**21  # room for a million clients
