from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsolve import arrays
from fedsolve.errors import DataError


def test_accumulate_copies_the_first_and_adds_the_rest_in_place() -> None:
    first = {"a": np.arange(3.0), "n": np.array(1)}
    total = arrays.accumulate(None, first)
    again = arrays.accumulate(total, first)
    assert again is total
    np.testing.assert_array_equal(total["a"], [0, 2, 4])
    assert isinstance(total["n"], np.ndarray)  # 0-d stays an array
    assert total["n"] == 2
    np.testing.assert_array_equal(first["a"], [0, 1, 2])


@pytest.mark.parametrize(
    ("right", "text"),
    [
        ({"b": np.zeros(2)}, "'a', 'b'"),
        ({"a": np.zeros(3)}, "float64[2] and float64[3]"),
        ({"a": np.zeros(2, np.float32)}, "float64[2] and float32[2]"),
    ],
)
def test_accumulate_refuses_what_does_not_match(right: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(DataError) as error:
        arrays.accumulate({"a": np.zeros(2)}, right)
    assert text in str(error.value)


def test_under_and_take_are_inverse_even_with_slashes() -> None:
    inner = {"w/0": np.zeros(1), "w": np.ones(1)}
    outer = {**arrays.under("a", inner), **arrays.under("ab", inner)}
    assert arrays.same(arrays.take("a", outer), inner)
    assert arrays.take("nobody", outer) == {}


def test_same_is_about_bits() -> None:
    assert arrays.same({"a": np.array([np.nan])}, {"a": np.array([np.nan])})
    assert not arrays.same({"a": np.array([0.0])}, {"a": np.array([-0.0])})
    assert not arrays.same({"a": np.zeros(2)}, {"a": np.zeros((2, 1))})
    assert not arrays.same({"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_refuses_values_that_are_not_finite(bad: float) -> None:
    with pytest.raises(DataError, match="who: 'w' has values that are not finite"):
        arrays.check({"w": np.array([1.0, bad])}, "who")


def test_check_accepts_finite_values_whose_sum_overflows() -> None:
    arrays.check({"w": np.array([1e308, 1e308])}, "who")


@pytest.mark.parametrize("size", [1, arrays.FEW, arrays.FEW + 1])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_one_value_that_is_not_finite_is_found_among_few_and_many(size: int, dtype: type) -> None:
    values: Any = np.full((1, size), np.finfo(dtype).max, dtype=dtype)  # sums and squares overflow, without a warning
    assert arrays.finite(values) and arrays.finite(values.T) and arrays.finite(values[:, ::2])
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = values.copy()
        spoilt[0, size // 2] = bad
        assert not arrays.finite(spoilt) and not arrays.finite(spoilt.T)
    assert arrays.finite(np.zeros((0, 3), dtype=dtype)) and arrays.finite(np.zeros((), dtype=dtype))


@pytest.mark.parametrize("bad", [1.0, [1.0], np.array(["a"]), np.array([object()]), np.float64(1)])
def test_check_refuses_what_is_no_numeric_array(bad: object) -> None:
    with pytest.raises(DataError, match="'w' must be a numeric array"):
        arrays.check({"w": bad}, "who")  # type: ignore[dict-item]


def test_softmax_and_its_logarithm_are_those_of_scipy() -> None:
    from scipy import special

    scores = np.random.default_rng(0).normal(0, 300, (40, 7))  # some probabilities are zero, no logarithm is
    for axis in (0, 1):
        np.testing.assert_array_equal(arrays.softmax(scores, axis), special.softmax(scores, axis=axis))
        np.testing.assert_array_equal(arrays.log_softmax(scores, axis), special.log_softmax(scores, axis=axis))
    assert np.isfinite(arrays.log_softmax(scores)).all() and not arrays.softmax(scores).all()
