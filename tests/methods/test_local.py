from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.families.ridge import choice
from tests.conftest import relative
from tests.methods.oracles import stacked


@given(st.integers(0, 2**32), st.sampled_from([0.1, 10.0]), st.booleans(), st.sampled_from([3, 30]))
def test_is_ridge_on_the_clients_own_data(seed: int, ridge: float, intercept: bool, size: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(size, 6)) + 1.0, rng.integers(3, size=size)
    fed = fs.Federation.from_arrays({"a": {"train": (x, y)}, "b": {"train": (x[:1], y[:1])}}, classes=3)
    model = fs.run(fs.Local(ridge=ridge, intercept=intercept), fed).models["a"].arrays
    found = np.vstack([model["weight"], model["intercept"]]) if intercept else model["weight"]
    assert relative(found, stacked([(1.0, x, np.eye(3)[y])], ridge, intercept)) < 1e-8


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(40, 6), (8, 20)])
def test_auto_looks_at_exact_leave_one_out_scores(
    intercept: bool, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=shape) + 0.5, rng.integers(3, size=shape[0])
    seen: list[tuple[float, np.ndarray]] = []

    def best(candidates: list[float], predictions: list[np.ndarray], labels: np.ndarray) -> float:
        seen.extend(zip(candidates, predictions, strict=True))
        return candidates[0]

    monkeypatch.setattr(choice, "best", best)
    fs.run(fs.Local(intercept=intercept), fs.Federation.from_arrays({"a": {"train": (x, y)}}, classes=3))
    for ridge, scores in seen:
        for i in range(0, shape[0], 3):
            keep = np.arange(shape[0]) != i
            weights = stacked([(1.0, x[keep], np.eye(3)[y[keep]])], ridge, intercept)
            row = np.append(x[i], 1.0) if intercept else x[i]
            np.testing.assert_allclose(scores[i], row @ weights, rtol=1e-5, atol=1e-6)


def test_auto_shrinks_more_where_there_is_more_noise() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=80)
    clear = np.column_stack([np.where(y, 5.0, -5.0), rng.normal(size=(80, 40))])
    noise = rng.normal(size=(80, 41))
    chosen = {}
    for name, x in (("clear", clear), ("noise", noise)):
        fed = fs.Federation.from_arrays({"a": {"train": (x, y)}}, classes=2)
        unit = float(np.square(x).sum()) / x.shape[1]
        chosen[name] = fs.run(fs.Local(intercept=False), fed).clients["a"].chosen["ridge"] / unit
    assert chosen["noise"] > chosen["clear"]


@pytest.mark.parametrize("size", [20, 400])
def test_the_best_candidate_is_the_one_with_fewest_smoothed_errors(size: int) -> None:
    labels = np.arange(size) % 3
    right = np.eye(3)[labels]
    wrong = np.roll(right, 1, axis=1)
    assert choice.best([1.0, 2.0, 3.0], [wrong, right, 0.5 * right + 0.5 * wrong], labels) == 2.0
    assert choice.best([1.0, 2.0], [right, right + 1e-13], labels) == 1.0  # equals: the first


def test_many_samples_are_judged_by_errors_and_few_by_squares() -> None:
    """One candidate is right by a hair everywhere, the other right by far but for one in ten: who wins depends on n."""
    for size, winner in ((500, "hair"), (60, "far")):
        labels = np.zeros(size, dtype=np.int64)
        hair = np.tile([0.35, 0.05], (size, 1))  # margin 0.3: right, but far from (1, 0)
        far = np.tile([1.0, 0.0], (size, 1))
        far[::10] = [0.4, 0.6]  # a tenth wrong
        assert choice.best(["hair", "far"], [hair, far], labels) == winner


def test_offsets_of_the_features_do_not_matter_with_an_intercept() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=150)
    x = rng.normal(size=(150, 10)) + 1.5 * np.eye(3, 10)[y]
    chosen = [
        fs.run(fs.Local(intercept=True), fs.Federation.from_arrays({"a": {"train": (x + shift, y)}}))
        .clients["a"]
        .chosen
        for shift in (0.0, 1e4)
    ]
    assert chosen[0]["ridge"] == pytest.approx(chosen[1]["ridge"], rel=1e-3)
