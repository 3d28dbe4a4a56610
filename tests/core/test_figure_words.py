"""How metrics are shown, and the calibration curve of a tally."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from fedsolve import metrics
from fedsolve.errors import DataError, UnknownNameError
from fedsolve.metrics import calibration, words
from fedsolve.metrics.calibration import Bin
from tests.core.test_metrics import Samples, samples, smooth

NAMES = st.sampled_from(list(metrics.METRICS))
VALUES = st.floats(-1e6, 1e6, allow_nan=False)


@given(NAMES, VALUES, VALUES)
def test_a_gain_is_above_zero_where_the_metric_says_that_it_is_better(name: str, a: float, b: float) -> None:
    better = a > b if metrics.METRICS[name].better == "higher" else a < b
    assert (words.gain(name, a, b) > 0) == better
    assert words.gain(name, a, b) == -words.gain(name, b, a)
    assert words.verdict(name, a, b) == -words.verdict(name, b, a)
    assert words.verdict(name, a, b) in (0, 1 if better else -1)


@given(NAMES, st.dictionaries(st.integers(), st.none() | VALUES, max_size=8))
def test_the_worst_come_first_and_who_has_no_figure_comes_last(name: str, values: dict[int, float | None]) -> None:
    order = words.worst_first(name, values)
    assert sorted(order) == sorted(values)
    figures = [values[key] for key in order]
    some = [value for value in figures if value is not None]
    assert figures[len(some) :] == [None] * (len(values) - len(some))
    assert some == sorted(some, reverse=metrics.METRICS[name].better == "lower")
    best = [values[key] for key in words.best_first(name, values)]
    assert best == some[::-1] + figures[len(some) :]


@given(st.floats(-1e300, 1e300))
def test_numbers_keep_four_digits_and_shares_are_in_percent(value: float) -> None:
    assert float(words.number("rmse", value)) == pytest.approx(value, rel=5.1e-4)
    assert len(words.number("rmse", value)) <= 11
    share = abs(math.fmod(value, 1.0))
    assert float(words.text("accuracy", share).removesuffix(" %")) == pytest.approx(100 * share, abs=0.0501)


@pytest.mark.parametrize("value", [0.0, 1e-300, 9.9999, 999.95, 1000.0, 9_999_999.9, 1e7, -3.0])
def test_numbers_at_the_borders_of_their_forms(value: float) -> None:
    shown = words.number("rmse", value)
    assert not shown.endswith(".")
    assert float(shown) == pytest.approx(value, rel=5e-4)


def test_names_of_another_kind_are_refused_with_those_of_this_one() -> None:
    assert words.check("log_loss", "classes") == "log_loss"
    with pytest.raises(UnknownNameError, match="target that is numbers: 'accuracy'; known: mae, r2, rmse"):
        words.check("accuracy", "numbers")
    with pytest.raises(UnknownNameError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        words.check("acuracy")


@pytest.mark.parametrize("task", [{}, {"kind": []}, {"kind": "colours"}, {"kind": None}])
def test_a_task_that_nobody_knows_has_classes(task: Any) -> None:
    assert words.main(task) == words.main(task, "rmse") == words.main(task, ["auc"]) == "accuracy"


# --- calibration ---


@given(samples(least=1))
def test_a_curve_counts_every_sample_once_and_is_monotone(drawn: Samples) -> None:
    _, probabilities, labels = drawn
    classes = probabilities.shape[1]
    curve = calibration.curve(metrics.classes.tally(*drawn))
    if classes == 1:
        assert curve == ()
        return
    columns = [1] if classes == 2 else list(range(classes))
    assert sum(each.count for each in curve) == len(labels) * len(columns)
    right = sum((labels == column).sum() for column in columns)
    assert sum(each.count * each.share for each in curve) == pytest.approx(right)
    mean = sum(each.count * each.probability for each in curve) / sum(each.count for each in curve)
    assert mean == pytest.approx(probabilities[:, columns].mean(), abs=0.025)
    assert calibration.of_words(calibration.words(curve)) == curve


def test_a_curve_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    chances = rng.choice((np.arange(20) + 0.5) / 20, size=2000)  # in the middle of bins, so that both sort them alike
    labels = (rng.random(2000) < chances**2).astype(int)
    shares = np.column_stack([1 - chances, chances])
    right, mean = calibration_curve(labels, chances, n_bins=20)
    curve = calibration.curve(metrics.classes.tally(shares, shares, labels))
    assert [each.share for each in curve] == pytest.approx(right)
    assert [each.probability for each in curve] == pytest.approx(mean, abs=0.0055)
    assert [each.count for each in curve] == np.unique(chances, return_counts=True)[1].tolist()
    halves = [calibration.curve(metrics.classes.tally(shares[i::2], shares[i::2], labels[i::2])) for i in (0, 1)]
    for one, other in zip(calibration.merged(halves), curve, strict=True):
        assert one.count == other.count
        assert (one.probability, one.share) == pytest.approx((other.probability, other.share))


def test_bins_of_few_classes_are_narrow_and_many_classes_have_no_curve() -> None:
    for classes in range(2, calibration.FEW + 1):
        odds = metrics.classes.edges(classes)
        limits = np.concatenate([[0.0], odds / (1 + odds), [1.0]])
        assert np.diff(limits).max() < (0.011 if classes == 2 else 1 / calibration.BINS)
    assert len(calibration.curve(metrics.classes.tally(*smooth(calibration.FEW, 500, 3.0)))) > 5
    assert calibration.curve(metrics.classes.tally(*smooth(calibration.FEW + 1, 500, 3.0))) == ()
    assert calibration.curve(metrics.numbers.tally([[1.0]], [[2.0]])) == calibration.curve({}) == ()


@pytest.mark.parametrize(
    "values",
    [
        None, {}, "a", [1], [{}], [{"count": 1, "probability": 0.5}],
        [{"count": 0, "probability": 0.5, "share": 0.5}], [{"count": 1.5, "probability": 0.5, "share": 0.5}],
        [{"count": True, "probability": 0.5, "share": 0.5}], [{"count": 1, "probability": math.nan, "share": 0.5}],
        [{"count": 1, "probability": "0.5", "share": 0.5}], [{"count": 1, "probability": 0.5, "share": -0.1}],
        [{"count": 1, "probability": 0.5, "share": 0.5, "x": 1}], [{"count": 10**30, "probability": 0.5, "share": 0.5}],
        [{"count": 1, "probability": 0.5, "share": 0.5}] * 2, [{"count": 1, "probability": 0.5, "share": 0.5}] * 10**5,
    ],
)  # fmt: skip
def test_curves_that_cannot_be_are_refused(values: Any) -> None:
    with pytest.raises(DataError, match="calibration must"):
        calibration.of_words(values)


def test_a_bin_knows_its_place() -> None:
    assert [Bin(1, value, 0.0).place for value in (0.0, 0.049, 0.05, 0.999, 1.0)] == [0, 0, 1, 19, 19]
