"""Laws of the solves: what rcond means, features that are zero or constant, cross-validation, freedom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import lapack

import fedsolve as fs
from fedsolve.errors import SingularError
from fedsolve.solver import RidgePath, cross_validated_ridge, freedom, left_out, whiten

SEEDS = st.integers(0, 2**32)
UNITS = np.array([1e-9, 1.0, 1e3, 1e9])


def intercept_of(solution: fs.Solution) -> Any:
    assert solution.intercept is not None
    return solution.intercept


def unit_diagonal(h: np.ndarray) -> np.ndarray:
    scale = 1.0 / np.sqrt(np.diag(h))
    return h * scale * scale[:, None]


# --- how far to trust a solution


@given(SEEDS, st.sampled_from([0.0, 0.7]), st.booleans())
def test_rcond_is_that_of_the_matrix_at_unit_diagonal(seed: int, ridge: float, intercept: bool) -> None:
    """In the 1-norm for Cholesky, as LAPACK estimates it, in the 2-norm for eigenvalues; less what centring costs."""
    rng = np.random.default_rng(seed)
    f, y = rng.normal(size=(30, 4)) + rng.normal(size=4), rng.normal(size=(30, 2))
    centred = f - f.mean(0) if intercept else f
    h = unit_diagonal(centred.T @ centred + ridge * np.eye(4))
    digits = (np.square(centred).sum(0) / np.square(f).sum(0)).min()
    moments = fs.Moments.of(f, y, intercept=intercept)
    by_cholesky = fs.solve(moments, ridge, intercept=intercept).rcond
    factor, _ = lapack.dpotrf(h, lower=1)
    estimate, _ = lapack.dpocon(factor, np.abs(h).sum(0).max(), uplo="L")
    assert by_cholesky == pytest.approx(digits * estimate, rel=0.006)  # three digits of it
    by_values = fs.solve(moments, ridge, intercept=intercept, solver="eigen").rcond
    assert by_values == pytest.approx(digits / np.linalg.cond(h, 2), rel=1e-9)


def test_the_best_condition_is_one() -> None:
    orthogonal = fs.Moments.of(np.eye(4) * UNITS, np.arange(4))
    for solver in ("cholesky", "eigen"):
        assert fs.solve(orthogonal, solver=solver).rcond == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("solver", ["eigen", "auto"])
def test_rcond_is_zero_and_the_rank_short_where_anything_is_missing(solver: str) -> None:
    """A feature that is always zero beside a full rest; and one that repeats another, with none that is zero."""
    f = np.random.default_rng(0).normal(size=(30, 4))
    y = np.arange(30) % 2
    zero, repeated = f.copy(), f.copy()
    zero[:, 2] = 0.0
    repeated[:, 2] = repeated[:, 0]
    for rows in (zero, repeated):
        found = fs.solve(fs.Moments.of(rows, y), solver=solver)
        assert (found.rcond, found.rank, found.solver) == (0.0, 3, "eigen")
        assert found.residual < 1e-12
    nothing = fs.solve(fs.Moments.of(np.zeros((5, 3)), np.arange(5) % 2), solver=solver)
    assert (nothing.rcond, nothing.rank) == (0.0, 0)
    assert not nothing.weights.any()
    assert nothing.residual == 0.0


@pytest.mark.parametrize("size", [0.0, 1e-12, 1.0])
def test_the_residual_is_relative_to_the_targets_and_zero_where_they_are(size: float) -> None:
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(30, 4)), size * rng.normal(size=(30, 2))
    found = fs.solve(fs.Moments.of(f, y), 0.3)
    assert found.residual == 0.0 if size == 0.0 else 0 < found.residual < 1e-14


# --- features that are constant, and units, beside an intercept


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-7, 1e7])
def test_a_constant_feature_has_no_weight_at_all_and_changes_nothing_else(
    ridge: float, place: int, value: float
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 3)) + 1.0, rng.normal(size=(70, 2))
    wide = np.insert(x, place, value, axis=1)
    parts = zip(np.array_split(wide, 7), np.array_split(y, 7), strict=True)
    total = fs.Moments.zero(5, 2)
    for part in parts:
        total = total + fs.Moments.of(*part, intercept=True)
    found = fs.solve(total, ridge, intercept=True, solver="auto")
    plain = fs.solve(fs.Moments.of(x, y, intercept=True), ridge, intercept=True)
    assert not found.weights[place].any()
    np.testing.assert_allclose(np.delete(found.weights, place, axis=0), plain.weights, rtol=1e-9)
    np.testing.assert_allclose(intercept_of(found), intercept_of(plain), rtol=1e-9)


def test_nothing_but_constants_leaves_the_means_of_the_targets() -> None:
    y = np.arange(10.0).reshape(10, 1)
    for rows in (np.full((10, 2), 3.0), np.zeros((10, 2)), np.empty((10, 0))):
        found = fs.solve(fs.Moments.of(rows, y, intercept=True), 1.0, intercept=True)
        assert found.rcond == 1.0
        assert not found.weights.any()
        np.testing.assert_allclose(intercept_of(found), [4.5])


@pytest.mark.parametrize("solver", ["cholesky", "eigen"])
def test_units_cost_no_digits_beside_an_intercept_either(solver: str) -> None:
    rng = np.random.default_rng(1)
    f, y = rng.normal(size=(50, 4)) + 1.0, rng.normal(size=(50, 1))
    plain, scaled = (
        fs.solve(fs.Moments.of(rows, y, intercept=True), intercept=True, solver=solver) for rows in (f, f * UNITS)
    )
    np.testing.assert_allclose(scaled.weights * UNITS[:, None], plain.weights, rtol=1e-9)
    np.testing.assert_allclose(intercept_of(scaled), intercept_of(plain), rtol=1e-9)
    assert scaled.rcond == pytest.approx(plain.rcond, rel=1e-2)


def test_ridge_of_zero_is_the_default_and_no_intercept() -> None:
    f, y = np.random.default_rng(0).normal(size=(20, 3)) + 1.0, np.arange(20) % 2
    moments = fs.Moments.of(f, y)
    found = fs.solve(moments)
    assert (found.ridge, found.intercept, found.solver) == (0.0, None, "cholesky")
    np.testing.assert_allclose(found.weights, np.linalg.lstsq(f, np.eye(2)[y], rcond=None)[0], rtol=1e-9)
    with pytest.raises(SingularError, match="2 features is singular at ridge 0"):
        fs.solve(fs.Moments.of(np.ones((4, 2)), np.zeros(4, int)))


# --- leave-one-out and whitening


def test_a_path_has_no_intercept_unless_asked() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(12, 3)) + 2.0, rng.normal(size=(12, 2)) + 5.0
    path = RidgePath.of(f, y)
    hat = f @ np.linalg.solve(f.T @ f + 0.5 * np.eye(3), f.T)
    np.testing.assert_allclose(path.fitted(path.ridge(0.5)), hat @ y, rtol=1e-9)
    np.testing.assert_allclose(path.leverage(path.ridge(0.5)), np.diag(hat), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_that_only_itself_predicts_is_unknown_and_the_others_are_those_of_refits(seed: int) -> None:
    """Leverage one: whatever the target, the fit goes through it, and residual over one less leverage was 0 / 0."""
    rng = np.random.default_rng(seed)
    f = np.column_stack([rng.normal(size=(12, 3)), np.zeros(12)])
    f[4, 3] = rng.normal()  # a feature that nobody else has
    y = rng.normal(size=(12, 2))
    path = RidgePath.of(f, y)
    gain = path.ridge(0.0)
    found = left_out(path.targets, path.fitted(gain), path.leverage(gain))
    assert np.flatnonzero(np.isnan(found).any(1)).tolist() == [4]
    for row in set(range(12)) - {4}:
        rest = np.arange(12) != row
        np.testing.assert_allclose(found[row], f[row] @ np.linalg.lstsq(f[rest], y[rest], rcond=None)[0], atol=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_whitening_is_the_same_whatever_the_units(ridge: float, unit: float) -> None:
    """A feature twice and one that is zero: H has a pseudo-inverse, and rows in its range keep their products."""
    f = np.random.default_rng(0).normal(size=(20, 3))
    wide = np.column_stack([f, f[:, 0], np.zeros(20)]) * unit
    moments = fs.Moments.of(wide, np.zeros((20, 1)))
    found = whiten(moments, ridge * unit**2, wide[:4])
    h = wide.T @ wide + ridge * unit**2 * np.eye(5)
    wanted = wide[:4] @ np.linalg.pinv(h, rcond=1e-12, hermitian=True) @ wide[:4].T
    np.testing.assert_allclose(found @ found.T, wanted, rtol=1e-8, atol=1e-12)


# --- generalised cross-validation and freedom


def generalised(f: np.ndarray, t: np.ndarray, ridge: float, used: int) -> float:
    """n RSS / (n - freedom)^2 without the n, with the hat matrix in full; `used` is what the intercept takes."""
    hat = f @ np.linalg.solve(f.T @ f + ridge * np.eye(f.shape[1]), f.T)
    return float(np.square(t - hat @ t).sum() / (len(f) - used - np.trace(hat)) ** 2)


@given(SEEDS, st.booleans(), st.sampled_from([(12, 8), (40, 5), (8, 12)]))
def test_the_ridge_is_the_one_of_least_generalised_cross_validation(
    seed: int, intercept: bool, size: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=size[0])
    f = rng.normal(size=size) + 0.7 * rng.normal(size=(3, size[1]))[labels] + rng.normal(size=size[1])
    t = np.eye(3)[labels]
    moments = fs.Moments.of(f, t, intercept=intercept)
    if intercept:
        f, t = f - f.mean(0), t - t.mean(0)
    factors = np.geomspace(30.0, 1e-4, 60)
    grid = factors * np.square(f).sum() / size[1]
    errors = [generalised(f, t, ridge, int(intercept)) for ridge in grid]
    found = cross_validated_ridge(moments, factors.tolist(), intercept=intercept)
    chosen = int(np.abs(np.log(grid / found)).argmin())
    assert found == pytest.approx(grid[chosen], rel=1e-9)
    assert errors[chosen] <= min(errors) * (1 + 1e-7)


def test_of_equal_ridges_the_first_is_taken() -> None:
    """Orthogonal rows, as many as features: every ridge has the same error, but for rounding."""
    moments = fs.Moments.of(7.3 * np.eye(6), np.arange(6) % 3)
    for factors in ([1.0, 0.3, 3.0, 0.1, 7.0], [0.1, 7.0, 0.3], [3.0, 0.7, 0.9, 1.1, 1e-2]):
        assert cross_validated_ridge(moments, factors) == pytest.approx(factors[0] * 7.3**2)


def test_features_that_are_all_zero_are_measured_by_one() -> None:
    moments = fs.Moments.of(np.zeros((6, 2)), np.arange(6) % 3)
    assert cross_validated_ridge(moments, [0.5, 0.1]) == 0.5


def test_a_ridge_at_which_the_system_is_singular_is_not_taken() -> None:
    f = np.random.default_rng(0).normal(size=(20, 3))
    f[:, 1] = 0.0
    moments = fs.Moments.of(f, np.arange(20) % 2)
    unit = np.square(f).sum() / 3
    assert cross_validated_ridge(moments, [0.0, 1e-6]) == pytest.approx(1e-6 * unit)


@pytest.mark.parametrize("unit", [0.01, 1.0, 1e3])
@pytest.mark.parametrize("ridge", [0.0, 1e-17])
def test_the_freedom_of_a_singular_system_is_its_rank_whatever_the_unit(unit: float, ridge: float) -> None:
    f = np.random.default_rng(0).normal(size=(30, 4))
    wide = unit * np.column_stack([f, f[:, :2]])
    moments = fs.Moments.of(wide, np.zeros(30, int))
    assert freedom(moments, ridge * unit**2) == pytest.approx(4.0, rel=1e-9)


def test_a_ridge_at_which_nothing_is_left_over_is_taken_wherever_it_stands() -> None:
    """Features that are the targets themselves: without a ridge the fit is exact."""
    labels = np.arange(12) % 3
    moments = fs.Moments.of(np.eye(3)[labels], labels)
    assert cross_validated_ridge(moments, [1.0, 0.5, 0.0]) == 0.0


def test_a_ridge_counts_for_the_freedom_of_a_singular_system_too() -> None:
    """Two large features that are equal, and a small one that the ridge shrinks."""
    rng = np.random.default_rng(0)
    large, small = 1e8 * rng.normal(size=30), 10.0 * rng.normal(size=30)
    rows, ridge = np.column_stack([large, large, small]), 300.0
    moments = fs.Moments.of(rows, np.zeros(30, int))
    with pytest.raises(SingularError):
        fs.solve(moments, ridge)
    squares = np.linalg.svd(rows, compute_uv=False)[:2] ** 2
    assert freedom(moments, ridge) == pytest.approx((squares / (squares + ridge)).sum(), rel=0.02)


def test_every_feature_is_penalised_in_whitening_unless_the_last_is_the_intercept() -> None:
    f = np.random.default_rng(0).normal(size=(20, 3))
    moments = fs.Moments.of(f, np.zeros((20, 1)))
    found = whiten(moments, 5.0, f[:4])
    np.testing.assert_allclose(found @ found.T, f[:4] @ np.linalg.solve(f.T @ f + 5.0 * np.eye(3), f[:4].T), rtol=1e-9)


def test_a_repr_shows_how_it_was_solved_and_no_weights() -> None:
    solution = fs.solve(fs.Moments.of(np.eye(2), [0, 1], classes=2), ridge=1.0)
    assert repr(solution) == "Solution(2 features, 2 targets, ridge 1, cholesky, rank 2, rcond 1)"
