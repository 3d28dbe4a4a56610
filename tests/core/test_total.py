"""The running total: exact sums, what is left of a feature, and the distance of two totals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.ledger.total import BLOCK, Total


def part(squares: Any, cross: Any = 0.0, count: int = 1) -> Any:
    """Moments of features that are orthogonal, and one class."""
    squares = np.atleast_1d(np.asarray(squares, dtype=float))
    column = np.broadcast_to(np.asarray(cross, dtype=float), squares.shape)[:, None].copy()
    return fs.Moments.from_gram(np.diag(squares), column, count).arrays()


def test_exact_sums_are_exact() -> None:
    # 1 + 1e20 - 1e20 is 1: a plain sum says 0.
    total = Total(part(1.0, 1.0))
    total.add(part(1e20, -1e20))
    total.take(part(1e20, -1e20))
    assert total.high["triangle"][0] == 1.0 and total.high["cross"][0, 0] == 1.0 and total.high["count"] == 1


def test_a_sum_is_rounded_once_whatever_its_length() -> None:
    rng = np.random.default_rng(0)
    moments = fs.Moments.of(rng.normal(size=(3, 130)), [0, 0, 0], classes=1)
    assert moments.triangle.size > BLOCK
    parts = [moments.scaled(10.0**power).arrays() for power in rng.uniform(-3, 3, size=20)]
    total = Total.zero(130, 1)
    for each in parts:
        total.add(each)
    for each in parts[:10]:
        assert total.take(each)
    for name in ("triangle", "cross"):
        exact = [math.fsum(numbers) for numbers in zip(*(each[name].flat for each in parts[10:]), strict=True)]
        assert exact == total.high[name].reshape(-1).tolist()
    assert total.high["count"] == 30


@pytest.mark.parametrize(
    ("share", "whole", "is_left"),
    [
        (1e-9, True, True),
        (2e-12, True, True),
        (5e-13, False, True),
        (4e-24, False, True),
        (0.0, True, False),
    ],
)
def test_what_is_left_of_a_feature_is_whole_or_summed_again_or_nothing(
    share: float, whole: bool, is_left: bool
) -> None:
    total = Total(part([share, 1.0], 1.0))
    total.add(part([1.0, 1.0], 1.0))
    assert total.take(part([1.0, 1.0], 1.0)) == whole
    left = fs.Moments.from_arrays(total.high)
    assert left.gram.tolist() == [[share, 0.0], [0.0, 1.0]]
    assert left.cross[:, 0].tolist() == [1.0 if is_left else 0.0, 1.0]


def test_rounding_that_is_left_of_a_feature_is_nothing() -> None:
    total = Total(part([2.5e-25, 1.0], 1e-30))
    total.add(part([1.0, 1.0], 1.0))
    assert total.take(part([1.0, 1.0], 1.0))
    left = fs.Moments.from_arrays(total.high)
    assert left.diagonal().tolist() == [0.0, 1.0] and left.cross[0, 0] == 0.0
    # What comes later is measured by its own size, not by what was there once.
    total.add(part([1e-20, 1.0]))
    total.add(part([1e-20, 1.0]))
    assert total.take(part([1e-20, 1.0]))
    assert fs.Moments.from_arrays(total.high).diagonal()[0] == 1e-20


def test_a_total_remembers_how_large_its_features_were() -> None:
    total = Total.zero(1, 1)
    for square in (1.0, 1e-6, 1e-13):
        total.add(part(square))
    assert total.take(part(1.0))
    total = Total(total.high, total.low)  # as from a file
    total.add(part(1e-6))
    assert total.take(part(1e-6))
    assert not total.take(part(1e-6))


def test_more_taken_out_than_was_put_in_is_no_feature_that_is_gone() -> None:
    assert not Total(part(1.0)).take(part(1.0 + 1e-13))


def test_a_feature_that_is_gone_leaves_nothing_in_either_half() -> None:
    halves = part([1.0, 1.0], 1.0)
    total = Total(halves, {"triangle": np.zeros(3), "cross": np.full((2, 1), 1e-20)})
    total.take(part([1.0, 0.0], 0.5))
    assert total.high["cross"].tolist() == [[0.0], [0.5]] and total.low["cross"].tolist() == [[0.0], [1e-20]]


def test_the_distance_of_totals_is_relative_and_sees_every_number() -> None:
    total = Total(part([4.0, 9e8], [1.0, 1.0], count=100))
    assert total.distance(Total(total.high, total.low)) == 0.0
    assert total.distance(Total(part([5.0, 9e8], [1.0, 1.0], count=100))) == pytest.approx(0.2)
    assert total.distance(Total(part([4.0, 10e8], [1.0, 1.0], count=100))) == pytest.approx(0.1)
    assert total.distance(Total(part([4.0, 9e8], [3.0, 1.0], count=100))) == pytest.approx(2.0 / (10.0 * 2.0))
    assert total.distance(Total(part([4.0, 9e8], [1.0, 1.0], count=103))) == 3.0
    beside = Total(total.high, {**total.low, "triangle": part([1e-20, 0.0])["triangle"]})
    assert total.distance(beside) == beside.distance(total) == pytest.approx(1e-20 / 4.0, abs=0.0)
    few, many = Total(part(4.0, 1e9, count=1)), Total(part(4.0, 0.0, count=10000))
    assert few.distance(many) == many.distance(few) == pytest.approx(1e9 / (100.0 * 2.0))
    nobody = Total.zero(2, 1)
    assert nobody.distance(nobody) == 0.0
    for name in ("triangle", "cross"):
        broken = dict(total.high) | {name: np.full_like(total.high[name], np.nan)}
        assert np.isnan(total.distance(Total(broken)))
