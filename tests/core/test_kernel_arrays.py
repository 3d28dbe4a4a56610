"""Laws of named arrays that the rest of the kernel stands on: layouts, rows, softmax."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from fedsolve import arrays
from fedsolve.errors import DataError


def test_a_layout_is_names_types_and_shapes_in_sorted_order() -> None:
    named = {"b": np.zeros((2, 3), np.float32), "a": np.array(1)}
    wanted = (("a", "<i8", ()), ("b", "<f4", (2, 3)))
    assert arrays.layout(named) == wanted
    assert arrays.layout(dict(reversed(named.items()))) == wanted
    assert arrays.layout({}) == ()


def test_a_layout_in_words_names_every_array_or_says_that_there_is_none() -> None:
    assert arrays.words(arrays.layout({"b": np.zeros((2, 3)), "a": np.array(1)})) == "a <i8[], b <f8[2, 3]"
    assert arrays.words(()) == "nothing"


@pytest.mark.parametrize("shape", [(4,), (4, 6), (4, 1), (4, 2, 3), (4, 2, 3, 5), (0, 2, 3), (4, 0)])
def test_flat_rows_hold_the_numbers_of_each_sample_in_order(shape: tuple[int, ...]) -> None:
    inputs = np.arange(np.prod(shape)).reshape(shape)
    rows = arrays.flat(inputs)
    assert rows.ndim == 2
    assert len(rows) == len(inputs)
    for sample, row in zip(inputs, rows, strict=True):
        np.testing.assert_array_equal(np.ravel(sample), row)
    assert np.shares_memory(rows, inputs) or not inputs.size


@given(st.integers(0, 2**32), st.sampled_from(["f4", "f8"]), st.sampled_from([1.0, 1e4]))
def test_softmax_is_scipys_in_float64_whatever_the_size_of_scores(seed: int, dtype: str, size: float) -> None:
    scores = (size * np.random.default_rng(seed).normal(size=(5, 3))).astype(dtype)
    kept = scores.copy()
    found = arrays.softmax(scores)
    assert found.dtype == np.float64
    # A power errs by what its exponent does: half a unit in the last place of a difference, up to 745 where it counts.
    rtol = 1e-4 if dtype == "f4" else 1e-12
    np.testing.assert_allclose(found, softmax(scores.astype(np.float64), axis=1), rtol=rtol)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-14)
    np.testing.assert_array_equal(scores, kept)


def test_softmax_does_not_round_like_its_input() -> None:
    """Shares of float32 scores differ by less than float32 can tell from one."""
    found = arrays.softmax(np.array([[0.0, -20.0]], np.float32))
    assert 0 < 1.0 - found[0, 0] < 1e-8


@pytest.mark.parametrize("kind", ["?", "i1", "i8", "u2", "f2", "f4", "f8"])
def test_every_kind_of_number_passes_the_check(kind: str) -> None:
    arrays.check({"a": np.ones(3, kind), "b": np.ones((), kind), "c": np.ones((0, 2), kind)}, "who")


def test_infinities_of_both_signs_are_refused_without_a_warning() -> None:
    with pytest.raises(DataError, match="not finite"):
        arrays.check({"w": np.array([np.inf, -np.inf])}, "who")


@pytest.mark.parametrize("kind", ["c16", "U1", "S1", "M8[s]", "O"])
def test_no_other_kind_passes_and_the_error_says_which_it_was(kind: str) -> None:
    bad = np.zeros(2, kind)
    with pytest.raises(DataError) as error:
        arrays.check({"a": np.ones(1), "b": bad}, "who")
    assert str(error.value) == f"who: 'b' must be a numeric array; got {bad.dtype}[2]"
    with pytest.raises(DataError, match="got list"):
        arrays.check({"b": [1.0]}, "who")  # type: ignore[dict-item]


def test_arrays_of_other_names_are_not_the_same() -> None:
    one = {"a": np.zeros(1), "b": np.zeros(1)}
    assert arrays.same(one, dict(reversed(one.items())))
    assert not arrays.same(one, {"a": np.zeros(1)})
    assert not arrays.same({"a": np.zeros(1)}, one)
    assert arrays.same({}, {})
