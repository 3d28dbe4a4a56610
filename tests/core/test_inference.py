"""Inference from sums is statsmodels' on the pooled table, whatever the split."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import inference
from fedsolve.errors import SingularError

sm = pytest.importorskip("statsmodels.api")
BAR = 1e-9


def relative(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-300)).max())


def made(seed: int = 0, count: int = 300, columns: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, columns)) @ rng.normal(size=(columns, columns)) + 3.0 * rng.normal(size=columns)
    return x, x @ rng.normal(size=columns) + 2.0 + rng.normal(size=count)


def tables(real_data: ModuleType | None) -> dict[str, tuple[Any, Any, Any]]:
    """Columns, target and owner of every row, of tables that people have."""
    found = {"made": (*made(), np.arange(300) % 7)}
    stars = sm.datasets.fair.load_pandas().data.iloc[:1600]
    found["fair"] = (stars.drop(columns="affairs").to_numpy(), stars["affairs"].to_numpy(), np.arange(1600) % 13)
    if real_data is not None:
        for name in ("parkinsons_updrs", "school_math"):
            data = real_data.federated(name)
            y = data["motor_updrs" if name == "parkinsons_updrs" else "y"]
            found[name] = (data["x"].astype(float), y.astype(float), data["client"])
    return found


def summed(x: Any, y: Any, owner: Any) -> tuple[Any, Any, float, int]:
    """X'X, X'y, y'y and n, added up over owners, about the means that all share."""
    rows = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
    parts = [(rows[owner == k], y[owner == k] - y.mean()) for k in np.unique(owner)]
    gram, cross = sum(r.T @ r for r, _ in parts), sum(r.T @ t for r, t in parts)
    return gram, cross, float(sum(t @ t for _, t in parts)), len(y)


@pytest.fixture(scope="module")
def every(request: pytest.FixtureRequest) -> dict[str, tuple[Any, Any, Any]]:
    try:
        return tables(request.getfixturevalue("real_data"))
    except pytest.skip.Exception:
        return tables(None)


@pytest.mark.parametrize("split", ["by client", 1, 2, 160])
def test_equals_statsmodels_on_the_pooled_table(every: dict[str, Any], split: str | int) -> None:
    for name, (x, y, owner) in every.items():
        if not isinstance(split, str):
            owner = np.random.default_rng(0).integers(split, size=len(y))
        fit = inference.least_squares(*summed(x, y, owner))
        raw = fit.estimates.through(inference.in_raw_units(x.mean(0), x.std(0)))
        values = raw.values.copy()
        values[-1] += y.mean()  # the target was about its mean
        found = inference.Estimates(values, raw.covariance, raw.freedom)
        # Sums hold squares, so that columns which nearly repeat each other cost twice the digits: Parkinson's do. And
        # statsmodels loses those that raw units cost, so it is given the same columns about the same origin.
        rows = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
        bar = max(BAR, float(np.linalg.cond(rows)) ** 2 * 1e-15)
        assert bar == BAR or name == "parkinsons_updrs"
        wanted, theirs = sm.OLS(y, rows).fit(), sm.OLS(y, np.column_stack([x, np.ones(len(x))])).fit()
        assert relative(fit.estimates.values[:-1], wanted.params[:-1]) < bar, name
        assert relative(fit.estimates.errors, wanted.bse) < bar, name
        assert relative(fit.estimates.interval()[:-1], wanted.conf_int()[:-1]) < 10 * bar, name
        assert relative(fit.estimates.p_values[:-1], wanted.pvalues[:-1]) < 100 * bar, name
        if name != "parkinsons_updrs":
            assert relative(found.values, theirs.params) < bar, name
            assert relative(found.errors, theirs.bse) < bar, name
            assert relative(found.p_values, theirs.pvalues) < 100 * bar, name
        for own, other in (
            (fit.r2, wanted.rsquared),
            (fit.adjusted_r2, wanted.rsquared_adj),
            (fit.test.statistic, wanted.fvalue),
            (fit.log_likelihood, wanted.llf),
            (fit.aic, wanted.aic),
            (fit.bic, wanted.bic),
            (fit.variance, wanted.mse_resid),
        ):
            assert relative(own, other) < bar, name
        if wanted.f_pvalue > 1e-250:
            assert relative(fit.test.p_value, wanted.f_pvalue) < 1e-6, name


def test_without_an_intercept() -> None:
    x, y = made()
    fit, wanted = inference.least_squares(x.T @ x, x.T @ y, y @ y, len(y), intercept=False), sm.OLS(y, x).fit()
    for own, theirs in (
        (fit.estimates.values, wanted.params),
        (fit.estimates.errors, wanted.bse),
        (fit.r2, wanted.rsquared),
        (fit.adjusted_r2, wanted.rsquared_adj),
        (fit.test.statistic, wanted.fvalue),
        (fit.aic, wanted.aic),
    ):
        assert relative(own, theirs) < BAR


def test_inflation_is_one_over_what_the_others_leave() -> None:
    from statsmodels.stats.outliers_influence import variance_inflation_factor

    x, _ = made()
    exog = np.column_stack([x, np.ones(len(x))])
    wanted = [variance_inflation_factor(exog, place) for place in range(x.shape[1])]
    assert relative(inference.inflation(exog.T @ exog), wanted) < BAR


@pytest.mark.parametrize("kind", ["HC0", "HC1", "cluster"])
def test_robust_and_clustered_errors(kind: str) -> None:
    x, y = made()
    exog, owner = np.column_stack([x, np.ones(len(x))]), np.arange(len(y)) % 9
    options = {"cov_kwds": {"groups": owner}} if kind == "cluster" else {}
    wanted = sm.OLS(y, exog).fit(cov_type=kind, **options)
    gram = exog.T @ exog
    error = y - exog @ wanted.params
    bread, rank = inference.inverse_of(gram), exog.shape[1]
    if kind == "cluster":
        scores = np.array([exog[owner == k].T @ error[owner == k] for k in range(9)])
        meat = scores.T @ scores * inference.few_groups(9, len(y), rank)
    else:
        meat = (exog * (error**2)[:, None]).T @ exog * (inference.small_sample(len(y), rank) if kind == "HC1" else 1.0)
    covariance = inference.sandwich(bread, meat)
    assert relative(np.sqrt(np.diagonal(covariance)), wanted.bse) < BAR


@pytest.mark.parametrize("sizes", [(100, 100, 100), (150, 148, 2), (3, 297)])
def test_chow_is_the_f_test_of_the_model_with_all_interactions(sizes: tuple[int, ...]) -> None:
    x, y = made()
    exog, owner = np.column_stack([x, np.ones(len(x))]), np.repeat(np.arange(len(sizes)), sizes)
    common = sm.OLS(y, exog).fit()
    departure, ranks = 0.0, 0
    for k in range(len(sizes)):
        rows, score = exog[owner == k], exog[owner == k].T @ common.resid[owner == k]
        departure += float(score @ np.linalg.pinv(rows.T @ rows) @ score)
        ranks += int(np.linalg.matrix_rank(rows))
    found = inference.differ(departure, common.ssr, len(y), exog.shape[1], ranks)
    apart = [np.linalg.lstsq(exog[owner == k], y[owner == k], rcond=None) for k in range(len(sizes))]
    own = sum(float(np.square(y[owner == k] - exog[owner == k] @ fit[0]).sum()) for k, fit in enumerate(apart))
    below = len(y) - ranks
    wanted = (common.ssr - own) / (ranks - exog.shape[1]) / (own / below)
    assert relative(found.statistic, wanted) < 1e-8
    assert found.freedom == (ranks - exog.shape[1], below)
    from scipy import stats

    assert relative(found.p_value, stats.f.sf(wanted, *found.freedom)) < 1e-8


def test_raw_units_are_another_name_for_the_same_model() -> None:
    x, y = made()
    origin, scale = np.full(x.shape[1], 2.0), np.arange(1.0, 1.0 + x.shape[1])
    moved = np.column_stack([(x - origin) / scale, np.ones(len(x))])
    exog = np.column_stack([x, np.ones(len(x))])
    fit = inference.least_squares(moved.T @ moved, moved.T @ y, y @ y, len(y))
    found, wanted = fit.estimates.through(inference.in_raw_units(origin, scale)), sm.OLS(y, exog).fit()
    assert relative(found.values, wanted.params) < BAR
    assert relative(found.covariance, wanted.cov_params()) < 1e-7


def test_columns_that_repeat_others_are_named() -> None:
    x, y = made()
    exog = np.column_stack([x, x[:, 0] + x[:, 1], np.ones(len(x))])
    with pytest.raises(SingularError, match="columns 4 are constant or repeat"):
        inference.least_squares(exog.T @ exog, exog.T @ y, y @ y, len(y))
    assert inference.independent(exog.T @ exog) == (0, 1, 2, 3, 5)
    with pytest.raises(fs.FedsolveError, match="more samples than coefficients; got 4 and 6"):
        inference.least_squares(exog.T @ exog, exog.T @ y, y @ y, 4)
