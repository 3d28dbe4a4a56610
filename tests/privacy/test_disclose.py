from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.errors import ParameterError
from fedsolve.privacy.disclose import Report, Rules, exposed, report

CLASSES = fs.Classes(3, ("healthy", "ill", "unknown"))


def looked_at(rows: np.ndarray, labels: list[int], **settings: object) -> Report:
    return report(fs.Samples(np.asarray(rows, dtype=float), np.array(labels)), CLASSES, **settings)  # type: ignore[arg-type]


def many(n: int, m: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, m))


def test_sums_of_many_samples_break_no_rule() -> None:
    found = looked_at(many(300, 5), [0, 1, 2] * 100, ones=True)
    assert found.refusals() == ()
    assert (found.samples, found.features, found.rank) == (300, 6, 6)
    assert not found.separable
    assert found.exact_counts


@pytest.mark.parametrize("cell", [2, 5])
def test_small_classes_are_named(cell: int) -> None:
    found = looked_at(many(300, 5), [0] * 295 + [1] * 4 + [2], rules=Rules(cell=cell))
    assert found.single == ("unknown",)
    assert found.small == (("ill", "unknown") if cell == 5 else ("unknown",))
    assert any(f"with fewer than {cell} samples" in words for words in found.refusals())
    assert any("(unknown) with one sample: F'Y is its row" in words for words in found.sentences())


def test_a_feature_of_one_sample_shows_that_sample() -> None:
    """The law behind the sentence: its row of F'F is the sample's whole row, times its value."""
    rows = np.column_stack([many(300, 4), np.zeros((300, 2))])
    rows[7, 4], rows[:3, 5] = 2.0, 1.0
    found = looked_at(rows, [0, 1, 2] * 100, names=("a", "b", "c", "d", "rare disease", "rarer"))
    assert found.sole == ("rare disease",)
    assert found.rare == ("rare disease", "rarer")
    np.testing.assert_allclose((rows.T @ rows)[4] / 2.0, rows[7])


def test_a_yes_or_no_that_all_but_a_few_have() -> None:
    rows = np.column_stack([many(300, 4), np.ones(300)])
    rows[:2, 4] = 0.0
    assert looked_at(rows, [0, 1, 2] * 100, names=("a", "b", "c", "d", "alive")).nearly_all == ("alive",)


@given(st.integers(0, 1000), st.integers(2, 30), st.integers(1, 12), st.booleans())
def test_leverage_and_rank_by_their_definition(seed: int, n: int, m: int, ones: bool) -> None:
    rows = many(n, m, seed)
    rows[:, m // 2] = 2 * rows[:, 0]  # a feature that is told by another
    design = np.column_stack([rows, np.ones(n)]) if ones else rows
    hat = design @ np.linalg.pinv(design)
    found = looked_at(rows, [k % 3 for k in range(n)], ones=ones)
    assert found.rank == np.linalg.matrix_rank(design)
    assert found.half == pytest.approx((np.diag(hat) > 0.5).mean())
    assert found.alone == pytest.approx((np.diag(hat) > 0.9).mean())


def test_fewer_samples_than_features_can_be_separated() -> None:
    found = looked_at(np.abs(many(10, 20)), [0, 1] * 5)
    assert found.separable
    assert found.reconstructible
    assert "recovered one by one" in found.sentences()[1]
    signed = looked_at(many(10, 20), [0, 1] * 5)
    assert signed.separable
    assert not signed.reconstructible
    assert "with certainty" in signed.sentences()[1]


def test_class_counts_are_exact_with_a_constant_feature_or_few_samples() -> None:
    rows = many(300, 5)
    assert not looked_at(rows, [0, 1, 2] * 100).exact_counts
    assert looked_at(np.column_stack([rows, np.full(300, 2.0)]), [0, 1, 2] * 100).exact_counts
    assert looked_at(many(5, 9), [0, 1, 2, 0, 0]).exact_counts


def test_numbers_have_no_classes() -> None:
    samples = fs.Samples(many(300, 5), many(300, 1))
    found = report(samples, fs.Numbers(("pressure",)))
    assert found.refusals() == ()
    assert not any("class" in words for words in found.sentences())


def test_rules_can_be_taken_back_one_by_one() -> None:
    rows, labels = np.abs(many(10, 20)), [0, 1] * 4 + [2, 2]
    every = looked_at(rows, labels)
    assert len(every.refusals()) == 3
    off = looked_at(rows, labels, rules=Rules(cell=None, persons=None, parameters=None, leverage=None), persons=1)
    assert off.refusals() == ()
    assert looked_at(many(300, 5), [0, 1, 2] * 100, persons=4).refusals() == ("4 persons, and 5 is the least",)


def test_no_samples_disclose_nothing_but_that() -> None:
    found = report(fs.Samples(np.zeros((0, 4)), np.zeros(0, dtype=np.int64)), CLASSES)
    assert (found.samples, found.rank, found.half) == (0, 0, 0.0)
    assert found.sentences()


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 12))
def test_the_quick_look_sees_nothing_that_the_report_does_not(seed: int, n: int, m: int) -> None:
    labels = np.random.default_rng(seed).integers(3, size=n)
    rules = Rules(leverage=None)
    full = looked_at(many(n, m, seed), labels.tolist(), rules=rules).refusals()
    assert exposed(labels, CLASSES, m, rules) == bool(full)


@pytest.mark.parametrize(
    "values", [{"cell": 0}, {"persons": 0}, {"parameters": 0.0}, {"leverage": 1.5}, {"leverage": 0.0}]
)
def test_no_rules(values: dict[str, float]) -> None:
    with pytest.raises(ParameterError, match=f"the rule {next(iter(values))} must be"):
        Rules(**values)  # type: ignore[arg-type]


def test_a_report_has_no_rows_in_it() -> None:
    rows = 1000 * np.abs(many(10, 20)).round(3)
    words = repr(looked_at(rows, [0, 1] * 5))
    assert not any(f"{value:g}" in words for value in rows.ravel())
