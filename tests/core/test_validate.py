"""Each check of a contribution by moments that break this one alone: just within its slack they pass, beyond not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import census
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.validate import Census, content, examine

EXPLAINED, EXACT, MOST_SAMPLES = 1e-4, 1e-9, 2**40  # what is promised; wider is laxer, narrower refuses rounding
NEAR, BEYOND = 0.5, 2.0  # shares of the slack of a check
COUNTS = [10.0, 10.0, 10.0]  # of the three classes, where a feature is always one


def terms(features: int = 1, classes: int = 2, *, ones: bool = False, bound: float | None = None) -> Terms:
    found = Terms.make(fs.AFL(intercept=ones, ridge=0.0), fs.Task(fs.Classes(classes), (features,)), bound=bound)
    assert found.ones == (features if ones else None)
    return found


def moments(gram: Any, cross: Any, count: int) -> Any:
    return fs.Moments.from_gram(np.array(gram, dtype=float), np.array(cross, dtype=float), count).arrays()


def with_ones(square: float, cross: list[float], *, total: float = 0.0, counts: list[float] = COUNTS) -> Any:
    """One feature that sums to `total`, and the feature that is always one; three classes of ten."""
    return moments([[square, total], [total, 30.0]], [cross, counts], 30)


def test_what_some_samples_have_passes_and_is_counted() -> None:
    assert examine(terms(), moments([[10.0]], [[6.0, 0.0]], 10)) == Census(samples=10, classes=1)
    assert examine(terms(classes=3, ones=True), with_ones(30.0, [5.0, -5.0, 0.0])) == Census(samples=30, classes=3)
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2 * 3
    sent = fs.Moments.of(x, y, classes=5).arrays()
    assert examine(terms(3, 5), sent) == Census(samples=20, classes=2)


@pytest.mark.parametrize("name", ["triangle", "cross"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_are_finite(name: str, value: float) -> None:
    sent = moments([[10.0]], [[6.0, 0.0]], 10)
    with pytest.raises(fs.DataError, match=f"it: {name!r} has values that are not finite"):
        examine(terms(), sent | {name: np.full_like(sent[name], value)})


def test_content_is_names_types_shapes_and_values() -> None:
    array = np.arange(6.0)
    same = content({"a": array, "b": array})
    assert same == content({"b": array.copy(), "a": np.arange(12.0)[:6]})
    for other in ({"a": array, "c": array}, {"a": array, "b": array.reshape(2, 3)}, {"a": array, "b": array.view("i8")},
                  {"a": array, "b": -array}, {"a": array}):  # fmt: skip
        assert content(other) != same


# --- without a feature that is always one ---


@pytest.mark.parametrize("count", [0, -1, MOST_SAMPLES + 1])
def test_counts_that_cannot_be_are_refused(count: int) -> None:
    assert examine(terms(), moments([[0.0]], [[0.0, 0.0]], MOST_SAMPLES)).samples == MOST_SAMPLES
    assert examine(terms(), moments([[0.0]], [[0.0, 0.0]], 1)).samples == 1
    sent = moments([[0.0]], [[0.0, 0.0]], 1) | {"count": np.array(count)}
    with pytest.raises(fs.DataError, match=f"it says that it has {count} samples"):
        examine(terms(), sent)


@pytest.mark.parametrize("ones", [False, True])
def test_squares_do_not_sum_to_less_than_nothing(ones: bool) -> None:
    sent = with_ones(-1e-6, [0.0, 0.0, 0.0]) if ones else moments([[-1e-6]], [[0.0, 0.0, 0.0]], 30)
    with pytest.raises(fs.DataError, match="the squares of feature 0 sum to -1e-06"):
        examine(terms(classes=3, ones=ones), sent)


def test_the_constant_is_not_explained_by_more_than_all_samples() -> None:
    # The classes: 2 * 6^2 / 10 = 7.2 of 10 samples. Their sum, which is one for every sample: 12^2 / 10 = 14.4.
    with pytest.raises(fs.DataError, match=r"its features explain 14.4 samples, and it says that it has 10:"):
        examine(terms(), moments([[10.0]], [[6.0, 6.0]], 10))
    near, beyond = (np.sqrt(25.0 * (1 + share * EXPLAINED)) for share in (NEAR, BEYOND))
    assert examine(terms(), moments([[10.0]], [[near, near]], 10)).samples == 10
    with pytest.raises(fs.DataError, match="its features explain"):
        examine(terms(), moments([[10.0]], [[beyond, beyond]], 10))


def test_the_classes_are_not_explained_by_more_than_all_samples() -> None:
    # The sum of the classes is explained by none here: only the classes one by one are, 2 * 8^2 / 10 = 12.8.
    with pytest.raises(fs.DataError, match=r"its features explain 12.8 samples, and it says that it has 10:"):
        examine(terms(), moments([[10.0]], [[8.0, -8.0]], 10))
    near, beyond = (np.sqrt(50.0 * (1 + share * EXPLAINED)) for share in (NEAR, BEYOND))
    assert examine(terms(), moments([[10.0]], [[near, -near]], 10)).samples == 10
    with pytest.raises(fs.DataError, match="its features explain"):
        examine(terms(), moments([[10.0]], [[beyond, -beyond]], 10))


def test_a_sum_of_products_is_within_the_sums_of_squares() -> None:
    near, beyond = (np.sqrt(100.0 * (1 + share * EXPLAINED)) for share in (NEAR, BEYOND))
    assert examine(terms(), moments([[10.0]], [[near, 0.0]], 10)).samples == 10
    with pytest.raises(fs.DataError, match="its F'Y is larger than its F'F and its counts allow"):
        examine(terms(), moments([[10.0]], [[beyond, 0.0]], 10))
    with pytest.raises(fs.DataError, match="its F'Y is larger than its F'F and its counts allow"):
        examine(terms(2), moments([[10.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [1e-12, 0.0]], 10))


# --- with one ---


@pytest.mark.parametrize("share", [1.0, 1.0 - 1e-6, 1.0 + 1e-6, 1.5])
def test_the_feature_that_is_one_counts_the_samples(share: float) -> None:
    sent = moments([[30.0, 0.0], [0.0, 30.0 * share]], [[0.0, 0.0, 0.0], COUNTS], 30)
    if share == 1.0:
        assert examine(terms(classes=3, ones=True), sent).samples == 30
        return
    with pytest.raises(fs.DataError, match="it says that it has 30 samples, but its column of ones sums to"):
        examine(terms(classes=3, ones=True), sent)


@pytest.mark.parametrize("counts", [[-1.0, 21.0, 10.0], [10.5, 9.5, 10.0], [10.0, 10.0, 9.0], [10.0, 10.0, 11.0]])
def test_class_counts_are_counts_of_all_samples(counts: list[float]) -> None:
    with pytest.raises(fs.DataError, match=r"its class counts sum to .* of 30 samples, or are not counts"):
        examine(terms(classes=3, ones=True), with_ones(30.0, [0.0, 0.0, 0.0], counts=counts))


@pytest.mark.parametrize(("total", "slack"), [(0.0, EXACT * 30.0), (30.0, EXACT * 60.0)])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sums_over_classes_are_sums_over_samples(total: float, slack: float, sign: float) -> None:
    def sent(share: float) -> Any:
        return with_ones(30.0, [total / 3 + sign * share * slack, total / 3, total / 3], total=total)

    assert examine(terms(classes=3, ones=True), sent(NEAR)).samples == 30
    with pytest.raises(fs.DataError, match="its sums over classes are not its sums over samples"):
        examine(terms(classes=3, ones=True), sent(BEYOND))


def test_no_class_is_explained_by_more_than_its_samples() -> None:
    # Along (1, -1, 0) / sqrt 2 the classes have 10 samples, and 2 a^2 / 30 are explained; all together stays below 30.
    with pytest.raises(fs.DataError, match="its features explain more samples of some classes than it has of them"):
        examine(terms(classes=3, ones=True), with_ones(30.0, [14.8, -14.8, 0.0]))
    slack = EXPLAINED + EXPLAINED / 10.0  # in a class of ten: a share of its samples, and one of a sample
    near, beyond = (np.sqrt(150.0 * (1 + share * slack)) for share in (0.95, 1.05))
    assert examine(terms(classes=3, ones=True), with_ones(30.0, [near, -near, 0.0])).samples == 30
    with pytest.raises(fs.DataError, match="its features explain more samples of some classes than it has of them"):
        examine(terms(classes=3, ones=True), with_ones(30.0, [beyond, -beyond, 0.0]))


def test_a_class_without_samples_has_no_sums() -> None:
    sent = with_ones(30.0, [3.0, -3.0, 0.0], counts=[15.0, 15.0, 0.0])
    assert examine(terms(classes=3, ones=True), sent) == Census(samples=30, classes=2)
    with pytest.raises(fs.DataError, match="its F'Y is larger than its F'F and its counts allow"):
        examine(terms(classes=3, ones=True), with_ones(30.0, [3.0, -2.0, -1.0], counts=[15.0, 15.0, 0.0]))


# --- whatever the units ---


@pytest.mark.parametrize("scale", [1e-150, 1e-75, 1.0, 1e75, 1e150])
@pytest.mark.parametrize("intercept", [False, True])
def test_samples_in_any_units_pass(scale: float, intercept: bool) -> None:
    """Squares of large features are near the end of float64, those of small ones near its beginning."""
    rng = np.random.default_rng(3)
    x, y = scale * rng.normal(size=(40, 4)), rng.integers(3, size=40)
    sent = fs.Moments.of(x, y, classes=3, intercept=intercept).arrays()
    ones = 4 if intercept else None
    with np.errstate(all="raise", under="ignore"):
        assert census.glance(sent, ones=ones)[0].count == 40
        assert census.examine(sent, ones=ones) == Census(samples=40, classes=3)


def test_no_samples_have_no_moments() -> None:
    """A client may have none in a run; a ledger takes no such contribution."""
    assert census.examine(fs.Moments.zero(3, 2).arrays()) == Census(samples=0, classes=0)
    with pytest.raises(fs.DataError, match=r"it says that it has \[0 0\] samples"):
        census.examine(moments([[1.0]], [[1.0]], 1) | {"count": np.array([0, 0])})
    with pytest.raises(fs.DataError, match="its F'Y is larger than its F'F and its counts allow"):
        census.examine(moments([[1.0]], [[1.0]], 0))


# --- with a declared bound ---


@pytest.mark.parametrize("ones", [False, True])
def test_samples_are_no_longer_than_the_bound(ones: bool) -> None:
    def sent(share: float) -> Any:
        square = 120.0 * (1 + share * EXACT) ** 2
        return with_ones(square, [0.0, 0.0, 0.0]) if ones else moments([[square]], [[0.0, 0.0, 0.0]], 30)

    agreed = terms(classes=3, ones=ones, bound=2.0)
    assert examine(agreed, sent(NEAR)).samples == 30  # the feature that is one adds no length
    with pytest.raises(fs.DataError, match=r"its samples have a length of 2 .*, and the declared bound is 2"):
        examine(agreed, sent(BEYOND))


def test_class_sums_are_no_longer_than_samples_within_the_bound_allow() -> None:
    agreed = terms(classes=3, ones=True, bound=2.0)
    near, beyond = (20.0 * (1 + share * EXACT) for share in (NEAR, BEYOND))
    assert examine(agreed, with_ones(120.0, [near, -near, 0.0])).samples == 30
    with pytest.raises(fs.DataError, match="its class sums are longer than samples within the declared bound 2 allow"):
        examine(agreed, with_ones(120.0, [beyond, -beyond, 0.0]))


# --- F'F of samples is positive semi-definite ---


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("eigenvalue", [-1e-1, -1e-5, -1e-8])
def test_an_indefinite_sum_is_refused(eigenvalue: float, scale: float) -> None:
    # At unit diagonal the eigenvalues are those of [[1, r], [r, 1]]: 1 + r and 1 - r.
    product = (1.0 - eigenvalue) * scale
    gram = [[1.0, product], [product, scale**2]]
    with pytest.raises(fs.DataError, match="its F'F is not positive semi-definite"):
        fs.Moments.from_gram(np.array(gram), np.zeros((2, 2)), 10).factor()
    with pytest.raises(fs.DataError, match="its F'F is not positive semi-definite"):
        examine(terms(2), moments(gram, [[0.0, 0.0], [0.0, 0.0]], 10))


def test_rounding_in_the_sums_of_samples_is_accepted() -> None:
    smallest = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(2000, 5)) @ rng.normal(size=(5, 60)) * np.geomspace(1e-6, 1e6, 60)
        found = fs.Moments.zero(60, 3)
        for rows in np.array_split(x, 100):
            found = found + fs.Moments.of(rows, rng.integers(3, size=len(rows)), classes=3)
        size = np.sqrt(found.diagonal())
        unit = found.gram / size / size[:, None]
        smallest.append(np.linalg.eigvalsh(unit)[0])
        factor = found.factor() / size[:, None]
        np.testing.assert_allclose(factor @ factor.T, unit, atol=1e-8)
        assert examine(terms(60, 3), found.arrays()).samples == 2000
    assert min(smallest) < -1e-15  # rounding did make them indefinite


@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_a_product_beside_a_feature_that_is_always_zero_is_refused(scale: float) -> None:
    def gram(product: float) -> Any:
        return np.array([[1.0, 0.0, product], [0.0, scale, 0.0], [product, 0.0, 0.0]])

    assert fs.Moments.from_gram(gram(0.0), np.zeros((3, 2)), 10).factor()[0, 0] == pytest.approx(1.0)
    for product in (1e-3, 1e-6, -1e-8):
        with pytest.raises(fs.DataError, match="its F'F is not positive semi-definite"):
            fs.Moments.from_gram(gram(product), np.zeros((3, 2)), 10).factor()


def test_squares_that_sum_to_less_than_nothing_have_no_factor() -> None:
    with pytest.raises(fs.DataError, match="the squares of feature 1 sum to -1e-12"):
        fs.Moments.from_gram(np.diag([1.0, -1e-12]), np.zeros((2, 2)), 10).factor()
