from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve import moments as module
from fedsolve.errors import DataError


@st.composite
def samples(draw: st.DrawFn, features: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 9))
    return 10.0 ** draw(st.integers(-3, 3)) * rng.normal(size=(count, features)), rng.integers(classes, size=count)


def of(data: tuple[np.ndarray, np.ndarray], **options: object) -> fs.Moments:
    return fs.Moments.of(*data, classes=3, **options)  # type: ignore[arg-type]


def close(a: fs.Moments, b: fs.Moments) -> None:
    scale = max(np.abs(a.triangle).max(initial=0), np.abs(b.triangle).max(initial=0), 1e-300)
    assert np.abs(a.triangle - b.triangle).max(initial=0) <= 1e-13 * scale
    assert np.abs(a.cross - b.cross).max(initial=0) <= 1e-13 * max(np.abs(a.cross).max(initial=0), scale**0.5, 1e-300)
    assert (a.count, a.space) == (b.count, b.space)


@given(samples(), samples(), samples(), st.booleans())
def test_commutative_monoid_with_subtraction(a, b, c, intercept: bool) -> None:  # type: ignore[no-untyped-def]
    x, y, z = (of(data, intercept=intercept, space=7) for data in (a, b, c))
    zero = fs.Moments.zero(4 + intercept, 3, space=7)
    np.testing.assert_array_equal((x + zero).triangle, x.triangle)
    np.testing.assert_array_equal((zero + x).cross, x.cross)
    np.testing.assert_array_equal((x + y).triangle, (y + x).triangle)
    close((x + y) + z, x + (y + z))
    close((x - x), zero)
    both = x + y
    assert np.abs((both - y).triangle - x.triangle).max(initial=0) <= 1e-13 * np.abs(both.triangle).max(initial=1e-300)
    assert (both - y).count == x.count


@given(samples(), samples(), st.booleans())
def test_the_sum_is_the_moments_of_the_union(a, b, intercept: bool) -> None:  # type: ignore[no-untyped-def]
    union = np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])
    close(of(a, intercept=intercept) + of(b, intercept=intercept), of(union, intercept=intercept))


@given(samples(), st.booleans(), st.sampled_from(["f8", "f4", "i4", "u1"]), st.integers(1, 200))
def test_against_the_definition_for_every_type_and_block(  # type: ignore[no-untyped-def]
    a, intercept: bool, dtype: str, block: int
) -> None:
    x, y = np.clip(a[0], 0, 200).astype(dtype), a[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        found = fs.Moments.of(x, y, classes=3, intercept=intercept)
        by_targets = fs.Moments.of(x, np.eye(3)[y], intercept=intercept)
    f = np.column_stack([x, np.ones(len(x))]) if intercept else x
    f = f.astype(np.float64)
    np.testing.assert_allclose(found.gram, f.T @ f, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found.cross, f.T @ np.eye(3)[y], rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(by_targets.cross, found.cross, rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(found.gram, found.gram.T)
    np.testing.assert_array_equal(found.diagonal(), np.diagonal(found.gram))


@pytest.mark.parametrize("layout", ["C", "F", "strided", "images"])
def test_the_memory_layout_of_inputs_does_not_matter(layout: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 6)), np.arange(20) % 3
    same = {"C": x, "F": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=0)[::2], "images": x.reshape(20, 2, 3)}
    close(fs.Moments.of(same[layout], y, classes=3), fs.Moments.of(x, y, classes=3))


def test_float32_inputs_are_summed_in_float64() -> None:
    """With sums in float32, one part in 1e7 of each of 1e5 rows would be lost."""
    x = np.full((100_000, 1), 1.0001, dtype=np.float32)
    exact = 100_000 * float(x[0, 0]) ** 2
    assert abs(fs.Moments.of(x, np.zeros(100_000, int)).gram[0, 0] / exact - 1) < 1e-12


def test_scaling_is_linear_and_keeps_the_count() -> None:
    a = fs.Moments.of(np.eye(3), [0, 1, 2], classes=3)
    close(a.scaled(2.0) - a, a.scaled(1.0) - fs.Moments.zero(3, 3) - fs.Moments(0 * a.triangle, 0 * a.cross, a.samples))
    assert a.scaled(5.0).count == 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: m + fs.Moments.zero(3, 3, space=5), "different spaces"),
        (lambda m: m + fs.Moments.zero(4, 3), "different spaces"),
        (lambda m: m - fs.Moments.zero(3, 2), "different spaces"),
        (lambda m: fs.Moments.zero(3, 3) - m, "more was taken out"),
        (lambda m: fs.Moments.of(np.eye(3), [0, 1]), "3 samples and 2 labels"),
        (lambda m: fs.Moments.of(np.eye(3), [0, 1, 3], classes=3), r"0..2; got 0..3"),
        (lambda m: fs.Moments.of(np.eye(3), [0, 1, -1]), r"got -1..1"),
        (lambda m: fs.Moments.of(np.eye(3), [0.0, 1.0, 2.0]), "labels must be integers"),
        (lambda m: fs.Moments.of([[1.0, np.nan]], [0]), "got nan in row 0, column 1"),
        (lambda m: fs.Moments.of([[1.0], [np.inf]], [0, 0]), "got inf in row 1, column 0"),
        (lambda m: fs.Moments.of([[1e200]], [0]), "overflow float64"),
        (lambda m: fs.Moments.of([["a"]], [0]), "features must be numbers"),
        (lambda m: fs.Moments.from_gram(np.array([[1.0, 2.0], [0.0, 1.0]]), np.zeros((2, 1)), 1), "symmetric"),
        (lambda m: fs.Moments.of(np.eye(2), [[np.nan], [1.0]]), "targets must be finite"),
        (lambda m: fs.Moments(np.zeros(6, np.float32), np.zeros((3, 1)), np.array(1)), "float64, always"),
        (lambda m: fs.Moments(np.zeros(5), np.zeros((3, 1)), np.array(1)), "6 numbers"),
    ],
)
def test_what_does_not_fit_is_refused(call, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=text):
        call(fs.Moments.of(np.eye(3), [0, 1, 2], classes=3))


def test_named_arrays_and_back() -> None:
    a = fs.Moments.of(np.eye(3), [0, 1, 2], classes=3, space=9)
    close(fs.Moments.from_arrays(a.arrays(), 9), a)
    close(fs.Moments.from_gram(a.gram, a.cross, a.count, 9), a)


def test_peak_memory_does_not_grow_with_the_samples() -> None:
    x = np.zeros((60_000, 64), np.uint8)  # 3.8 MB of bytes, 31 MB in float64
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", 2**20)
        tracemalloc.start()
        fs.Moments.of(x, np.zeros(60_000, int))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 6e6


@given(samples(), st.lists(st.integers(0, 9), max_size=4))
def test_rows_in_blocks_are_the_rows_at_once(data: tuple[np.ndarray, np.ndarray], cuts: list[int]) -> None:
    x, y = data
    blocks = zip(np.split(x, sorted(cuts)), np.split(y, sorted(cuts)), strict=True)
    close(fs.Moments.over(((a, b) for a, b in blocks if len(a)), features=4, classes=3, space=5), of(data, space=5))


@given(samples(), st.lists(st.integers(0, 9), max_size=4), st.booleans())
def test_rows_of_numbers_in_blocks_are_the_rows_at_once(
    data: tuple[np.ndarray, np.ndarray], cuts: list[int], squares: bool
) -> None:
    x, y = data[0], data[0][:, :3] * 2.0 - 1.0
    blocks = zip(np.split(x, sorted(cuts)), np.split(y, sorted(cuts)), strict=True)
    found = fs.Moments.over((pair for pair in blocks if len(pair[0])), features=4, classes=3, squares=squares)
    whole = fs.Moments.of(x, y, squares=squares)
    close(found, whole)
    if squares:
        assert found.squares is not None
        assert whole.squares is not None
        np.testing.assert_allclose(found.squares, whole.squares, rtol=1e-9, atol=1e-12)
    else:
        assert found.squares is None


def test_blocks_with_nan_or_strange_labels_are_refused() -> None:
    good, bad = (np.eye(2), np.array([0, 1])), (np.array([[1.0, np.nan]]), np.array([0]))
    with pytest.raises(DataError, match="finite"):
        fs.Moments.over([good, bad], features=2, classes=2)
    with pytest.raises(DataError, match="labels"):
        fs.Moments.over([good], features=2, classes=1)


@pytest.mark.parametrize(
    "samples, classes", [(50, 100), (20, 10), (40, 1000), (37, 101), (256, 300), (300, 256), (500, 2)]
)
def test_class_sums_are_the_samples_added_up_one_after_the_other(samples: int, classes: int) -> None:
    """Whichever product takes least; of fewer samples than classes to the last bit, also in classes without any."""
    rng = np.random.default_rng(samples)
    rows = rng.normal(size=(samples, 30)) * 10.0 ** rng.integers(-8, 8, size=(samples, 1))
    labels = rng.integers(classes, size=samples)
    wanted = np.zeros((30, classes))
    for row, label in zip(rows, labels, strict=True):
        wanted[:, label] += row
    found = fs.Moments.of(rows, labels, classes=classes).cross
    if samples < classes:
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(rows).sum())
