from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.errors import DataError, ParameterError, SingularError, UnknownNameError
from fedsolve.solver import RidgePath, freedom, left_out, solution_of, whiten
from tests.conftest import relative

SEEDS = st.integers(0, 2**32)


def direct(f: np.ndarray, y: np.ndarray, ridge: float, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ridge as an ordinary least-squares problem on stacked rows, solved by SVD: a second derivation."""
    mean_f, mean_y = (f.mean(0), y.mean(0)) if intercept else (np.zeros(f.shape[1]), np.zeros(y.shape[1]))
    rows = np.vstack([f - mean_f, np.sqrt(ridge) * np.eye(f.shape[1])])
    weights = np.linalg.lstsq(rows, np.vstack([y - mean_y, np.zeros((f.shape[1], y.shape[1]))]), rcond=None)[0]
    return weights, mean_y - mean_f @ weights


@given(SEEDS, st.sampled_from([0.0, 1e-3, 1.0, 100.0]), st.booleans(), st.sampled_from(["cholesky", "eigen", "auto"]))
def test_well_posed_systems_against_stacked_least_squares(
    seed: int, ridge: float, intercept: bool, solver: str
) -> None:
    rng = np.random.default_rng(seed)
    f, y = rng.normal(size=(40, 5)) + 3.0, rng.normal(size=(40, 2))
    found = fs.solve(fs.Moments.of(f, y, intercept=intercept), ridge, intercept=intercept, solver=solver)
    weights, offset = direct(f, y, ridge, intercept)
    assert relative(found.weights, weights) < 1e-9
    assert found.residual < 1e-10
    assert found.rank == 5
    assert found.solver == ("eigen" if solver == "eigen" else "cholesky")
    assert found.weights.flags.c_contiguous
    if intercept:
        assert found.intercept is not None
        np.testing.assert_allclose(found.intercept, offset, rtol=1e-8, atol=1e-9)
    else:
        assert found.intercept is None


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", ["cholesky", "eigen"])
def test_the_residual_is_that_of_the_normal_equations(intercept: bool, solver: str) -> None:
    """At unit diagonal, so that units do not count; and weights that are wrong by a thousandth show."""
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(40, 5)) * [1e-6, 1.0, 1.0, 1e3, 1e6] + 3.0, rng.normal(size=(40, 2))
    found = fs.solve(fs.Moments.of(f, y, intercept=intercept), 0.1, intercept=intercept, solver=solver)
    h, b = f - f.mean(0) if intercept else f, y - y.mean(0) if intercept else y
    h, b = h.T @ h + 0.1 * np.eye(5), h.T @ b
    for weights in (found.weights, found.weights * 1.001):
        scaled = (h @ weights - b) / np.sqrt(np.diag(h))[:, None]
        wanted = np.linalg.norm(scaled) / np.linalg.norm(b / np.sqrt(np.diag(h))[:, None])
        assert replace(found, weights=weights).residual == pytest.approx(wanted, rel=1e-6, abs=1e-12)


@given(SEEDS, st.integers(1, 6), st.booleans(), st.sampled_from([1.0, 1e-6, 1e6]))
def test_singular_systems_give_the_solution_of_minimum_norm(seed: int, rank: int, intercept: bool, unit: float) -> None:
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(30, rank)) @ rng.normal(size=(rank, 8)) * unit
    f[:, 3] = 0.0  # a feature that is never there
    y = rng.normal(size=(30, 2))
    wanted, _ = direct(f, y, 0.0, intercept)
    moments = fs.Moments.of(f, y, intercept=intercept)
    for solver in ("eigen", "auto"):
        # Without a word, since targets that go with no feature at all cannot be told from rounding.
        found = solution_of(moments, intercept=intercept, solver=solver)
        assert relative(found.weights, wanted) < 1e-6
        assert (found.solver, found.rank, found.rcond) == ("eigen", rank, 0.0)
    with pytest.raises(SingularError, match="ridge > 0"):
        fs.solve(moments, intercept=intercept)


def test_fewer_samples_than_features_is_singular_and_ridge_mends_it() -> None:
    f, y = np.random.default_rng(0).normal(size=(5, 20)), np.eye(5)
    moments = fs.Moments.of(f, y)
    with pytest.raises(SingularError, match=r"fewer samples \(5\) than features"):
        fs.solve(moments)
    assert relative(fs.solve(moments, 0.1).weights, direct(f, y, 0.1, False)[0]) < 1e-10
    assert relative(fs.solve(moments, solver="auto").weights, np.linalg.pinv(f) @ y) < 1e-10


def test_cholesky_that_runs_through_on_a_singular_matrix_is_caught() -> None:
    """2 * ones(3, 3): rounding leaves positive pivots, and only the condition number tells."""
    moments = fs.Moments.of(np.sqrt(2) * np.ones((1, 3)), [0])
    with pytest.raises(SingularError):
        fs.solve(moments)


def test_units_of_the_features_cost_no_digits() -> None:
    """Columns in units from 1e-9 to 1e9: F'F has condition 1e36, yet the answer is right to ten digits."""
    rng = np.random.default_rng(1)
    f, y = rng.normal(size=(50, 4)), rng.normal(size=(50, 1))
    units = np.array([1e-9, 1.0, 1e4, 1e9])
    plain, scaled = fs.solve(fs.Moments.of(f, y)), fs.solve(fs.Moments.of(f * units, y))
    np.testing.assert_allclose(scaled.weights * units[:, None], plain.weights, rtol=1e-10)
    assert scaled.rcond == pytest.approx(plain.rcond)


@given(SEEDS, st.floats(0.01, 100))
def test_identities_of_ridge(seed: int, ridge: float) -> None:
    """Every sample twice with twice the ridge is the same; every feature twice with twice the ridge halves weights."""
    rng = np.random.default_rng(seed)
    f, y = rng.normal(size=(20, 4)), rng.normal(size=(20, 2))
    once = fs.solve(fs.Moments.of(f, y), ridge).weights
    stacked = fs.solve(fs.Moments.of(np.vstack([f, f]), np.vstack([y, y])), 2 * ridge).weights
    doubled = fs.solve(fs.Moments.of(np.hstack([f, f]), y), 2 * ridge).weights
    assert relative(stacked, once) < 1e-10
    assert relative(doubled, np.vstack([once, once]) / 2) < 1e-10


@pytest.mark.parametrize("ridge", [-1.0, np.nan, np.inf])
def test_a_ridge_outside_its_domain_is_refused(ridge: float) -> None:
    with pytest.raises(ParameterError, match="ridge must be a finite number of at least 0"):
        fs.solve(fs.Moments.of(np.eye(2), [0, 1]), ridge)


def test_nothing_to_solve_and_unknown_solver() -> None:
    with pytest.raises(DataError, match="no samples"):
        fs.solve(fs.Moments.zero(2, 2), 1.0)
    with pytest.raises(UnknownNameError, match="'cholesky'"):
        fs.solve(fs.Moments.of(np.eye(2), [0, 1]), solver="choleski")


@given(SEEDS, st.sampled_from([0.01, 1.0, 50.0]), st.booleans(), st.sampled_from([(6, 12), (12, 6), (1, 3)]))
def test_leave_one_out_against_leaving_one_out(seed: int, ridge: float, intercept: bool, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    f, y = rng.normal(size=size), rng.normal(size=(size[0], 2))
    if intercept and size[0] == 1:
        return  # nothing is left to take a mean of
    path = RidgePath.of(f, y, intercept=intercept)
    gain = path.ridge(ridge)
    found = left_out(path.targets, path.fitted(gain), path.leverage(gain)) + (y.mean(0) if intercept else 0.0)
    for i in range(len(f)):
        rest = np.arange(len(f)) != i
        if rest.any():
            weights, offset = direct(f[rest], y[rest], ridge, intercept)
            np.testing.assert_allclose(found[i], f[i] @ weights + offset, rtol=1e-7, atol=1e-7)
        else:
            np.testing.assert_allclose(found[i], 0.0, atol=1e-9)


@given(SEEDS, st.booleans(), st.sampled_from([0.0, 2.0]))
def test_whitened_rows_have_the_inner_products_of_the_metric(seed: int, intercept: bool, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    f, rows = rng.normal(size=(30, 4)), rng.normal(size=(3, 4))
    moments = fs.Moments.of(f, rng.normal(size=(30, 1)), intercept=intercept)
    if intercept:
        rows = np.column_stack([rows, np.ones(3)])
    q = whiten(moments, ridge, rows, intercept=intercept)
    penalty = np.full(len(moments.gram), ridge)
    if intercept:
        penalty[-1] = 0.0
    np.testing.assert_allclose(q @ q.T, rows @ np.linalg.solve(moments.gram + np.diag(penalty), rows.T), rtol=1e-9)


def test_whitening_leaves_out_directions_that_nobody_has() -> None:
    f = np.random.default_rng(0).normal(size=(20, 2))
    wide = np.column_stack([f, f])
    q = whiten(fs.Moments.of(wide, np.zeros((20, 1))), 0.0, wide[:3])
    np.testing.assert_allclose(q @ q.T, f[:3] @ np.linalg.solve(f.T @ f, f[:3].T), rtol=1e-9)


@pytest.mark.parametrize("clients", [1, 3, 7, 20])
def test_a_constant_feature_beside_an_intercept_is_no_feature(clients: int) -> None:
    """Centring leaves rounding noise of it, which must not be scaled up to a feature of its own."""
    rng = np.random.default_rng(0)
    x, y = np.column_stack([rng.normal(size=(200, 3)), np.full(200, 0.3)]), rng.integers(2, size=200)
    parts = zip(np.array_split(x, clients), np.array_split(y, clients), strict=True)
    total = fs.Moments.zero(5, 2)
    for part in parts:
        total = total + fs.Moments.of(*part, classes=2, intercept=True)
    found = fs.solve(total, intercept=True, solver="auto")
    assert found.rank == 3
    assert not found.weights[3].any()
    wanted, _ = direct(x[:, :3], np.eye(2)[y], 0.0, True)
    assert relative(found.weights[:3], wanted) < 1e-9


def test_digits_lost_to_centring_show_in_rcond() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    assert fs.solve(fs.Moments.of(x, y, intercept=True), intercept=True).rcond > 0.1
    with pytest.warns(fs.PrecisionWarning, match="features 0 and 1"):
        far = fs.solve(fs.Moments.of(x + 1e5, y, intercept=True), intercept=True)
    assert far.rcond < 1e-9


def test_nearly_equal_features_are_singular() -> None:
    rng = np.random.default_rng(0)
    f = rng.normal(size=(50, 3))
    f[:, 2] = f[:, 1] * (1 + 1e-9 * rng.normal(size=50))
    with pytest.raises(SingularError):
        fs.solve(fs.Moments.of(f, np.zeros(50, int)))


def test_a_collinear_design_has_leverages_of_at_most_one() -> None:
    rng = np.random.default_rng(0)
    f = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 8))
    for design in (f, f[:6]):
        path = RidgePath.of(design, rng.normal(size=(len(design), 1)))
        assert len(path.squares) == 3
        assert path.leverage(path.ridge(1e-12)).max() <= 1 + 1e-6


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 5.0])
@pytest.mark.parametrize("repeated", [False, True])
def test_freedom_is_the_trace_of_the_hat_matrix(ridge: float, repeated: bool) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 6))
    if repeated:
        rows[:, 5] = rows[:, 0]  # singular: the rank is what counts
    hat = rows @ np.linalg.pinv(rows.T @ rows + ridge * np.eye(6), rcond=1e-12) @ rows.T
    labels = np.zeros(30, dtype=int)
    assert freedom(fs.Moments.of(rows, labels), ridge) == pytest.approx(np.trace(hat), rel=1e-9)
    ones = np.column_stack([rows + 1.0, np.ones(30)])
    free = np.diag([*np.full(6, ridge), 0.0])  # the constant has no ridge
    hat = ones @ np.linalg.pinv(ones.T @ ones + free, rcond=1e-12) @ ones.T
    moments = fs.Moments.of(rows + 1.0, labels, intercept=True)
    assert freedom(moments, ridge, intercept=True) == pytest.approx(np.trace(hat), rel=1e-9)
