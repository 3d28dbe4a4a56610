"""glm is statsmodels' GLM of the pooled table, whatever the split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.families.statistics import personal, scoring
from fedsolve.families.statistics.distributions import Categorical, Gaussian, Poisson
from fedsolve.families.statistics.units import Roles
from fedsolve.features.standard import Standardise
from fedsolve.summary import Summary

sm = pytest.importorskip("statsmodels.api")
FAMILIES = {"binomial": sm.families.Binomial, "poisson": sm.families.Poisson, "gaussian": sm.families.Gaussian}
Table = tuple[Any, Any, Any]


def relative(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-300)).max())


def made(family: str, count: int = 400, seed: int = 0) -> Table:
    """Columns in units of their own, a target that follows from them, and an owner of each row."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)) @ rng.normal(size=(4, 4)) * [1.0, 10.0, 0.1, 1.0] + [0.0, 50.0, 3.0, -1.0]
    inner = ((x - x.mean(0)) / x.std(0)) @ [0.6, -0.4, 0.3, 0.0] + 0.4
    y = {
        "gaussian": lambda: inner + rng.normal(size=count),
        "poisson": lambda: rng.poisson(np.exp(inner)).astype(float),
        "binomial": lambda: (rng.random(count) < 1 / (1 + np.exp(-inner))).astype(int),
    }[family]()
    return x, y, rng.integers(9, size=count)


def federation(table: Table, split: str | int = "by client", names: tuple[str, ...] = ()) -> fs.Federation:
    x, y, owner = table
    if not isinstance(split, str):
        owner = np.random.default_rng(split).permutation(np.arange(len(y)) % split)
    clients = {f"c{k:03d}": {"train": (x[owner == k], y[owner == k])} for k in np.unique(owner)}
    target = fs.Numbers("y") if y.dtype.kind == "f" else None
    found = fs.Federation.from_arrays(clients, None if target else int(y.max()) + 1, target=target)
    return dataclasses.replace(found, task=dataclasses.replace(found.task, feature_names=names)) if names else found


def fitted(method: fs.Method, members: fs.Federation) -> tuple[fs.Result, Summary]:
    result = fs.run(method, members, evaluate_every=100)
    summary = method.inference(result.state, members.task)
    assert summary is not None
    return result, summary


def exog(x: Any) -> Any:
    return np.column_stack([x, np.ones(len(x))])


def statsmodels(table: Table, family: str, **options: Any) -> Any:
    x, y, _ = table
    settings = {name: options.pop(name) for name in ("offset", "var_weights") if name in options}
    return sm.GLM(y, exog(x), family=FAMILIES[family](), **settings).fit(tol=1e-14, maxiter=100, **options)


@pytest.fixture(scope="module")
def heart(real_data: ModuleType) -> Table:
    data = real_data.federated("heart_disease")
    x = data["x"][:, :10].astype(float)
    whole = np.isfinite(x).all(1)
    return x[whole], data["y"][whole].astype(int), data["client"][whole]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", ["by client", 1, 3, 160])
def test_equals_statsmodels(family: str, split: str | int) -> None:
    table = made(family)
    result, found = fitted(fs.GLM(family=family), federation(table, split))
    wanted = statsmodels(table, family)
    columns = found.columns()
    assert result.rounds <= 8
    assert relative(columns["value"], wanted.params) < 1e-9
    assert relative(columns["error"], wanted.bse) < 1e-9
    if family != "gaussian":  # there statsmodels' GLM has z where t belongs; test_inference holds OLS to it
        assert relative(columns["p_value"], wanted.pvalues) < 1e-8
        assert relative(np.column_stack([columns["low"], columns["high"]]), wanted.conf_int()) < 1e-8
    assert relative(found.figures["deviance"], wanted.deviance) < 1e-10
    assert relative(found.figures["null deviance"], wanted.null_deviance) < 1e-10
    assert relative(found.figures["log-likelihood"], wanted.llf) < 1e-10
    assert relative(found.figures["AIC"], wanted.aic) < 1e-10
    assert relative(found.figures["BIC"], wanted.bic_llf) < 1e-10
    assert result.warnings == ()


@pytest.mark.parametrize("split", ["by client", 1, 40])
def test_heart_disease(heart: Table, split: str | int) -> None:
    result, found = fitted(fs.GLM(), federation(heart, split))
    wanted = statsmodels(heart, "binomial")
    assert result.rounds <= 10
    assert relative(found.columns()["value"], wanted.params) < 1e-9
    assert relative(found.columns()["error"], wanted.bse) < 1e-9
    assert relative(found.figures["deviance"], wanted.deviance) < 1e-10


@pytest.mark.parametrize("split", ["by client", 1, 160])
def test_least_squares_of_columns_that_nearly_repeat_each_other(real_data: ModuleType, split: str | int) -> None:
    """Parkinson's voice measures: sums of squares alone have lost what the ninth digit takes."""
    data = real_data.federated("parkinsons_updrs")
    x, y = data["x"].astype(float), data["motor_updrs"].astype(float)
    result, found = fitted(fs.GLM(personal=False), federation((x, y, data["client"]), split))
    middle, scale = x.mean(0), x.std(0)
    wanted = sm.OLS(y, exog((x - middle) / scale)).fit()
    columns = found.columns()
    assert result.rounds <= 3
    assert relative(np.array(columns["value"])[:-1] * scale, wanted.params[:-1]) < 1e-9
    assert relative(np.array(columns["error"])[:-1] * scale, wanted.bse[:-1]) < 1e-9
    assert relative(columns["p_value"][:-1], wanted.pvalues[:-1]) < 1e-9
    assert relative(found.figures["R2"], wanted.rsquared) < 1e-9
    assert relative(found.figures["adjusted R2"], wanted.rsquared_adj) < 1e-9
    assert relative(found.figures["AIC"], wanted.aic) < 1e-9
    assert relative(found.tests[0].statistic, wanted.fvalue) < 1e-9


@pytest.mark.parametrize("family", ["poisson", "gaussian"])
def test_offset_and_weights(family: str) -> None:
    x, y, owner = made(family)
    rng = np.random.default_rng(5)
    offset, weights = rng.normal(size=len(y)), rng.uniform(0.5, 3.0, size=len(y))
    names = ("a", "b", "exposure", "c", "heavy", "d")
    rows = np.column_stack([x[:, :2], offset, x[:, 2], weights, x[:, 3]])
    method = fs.GLM(family=family, offset="exposure", weights="heavy")
    result, found = fitted(method, federation((rows, y, owner), names=names))
    wanted = statsmodels((x, y, owner), family, offset=offset, var_weights=weights)
    assert found.columns()["name"] == ["a", "b", "c", "d", "intercept"]
    assert relative(found.columns()["value"], wanted.params) < 1e-8
    assert relative(found.columns()["error"], wanted.bse) < 1e-8
    assert relative(found.figures["deviance"], wanted.deviance) < 1e-10
    assert relative(found.figures["null deviance"], wanted.null_deviance) < 1e-9
    assert relative(found.figures["log-likelihood"], wanted.llf) < 1e-9
    assert result.shared is not None
    assert relative(result.shared.scores(rows)[:, 0], wanted.predict(exog(x), offset=offset)) < 1e-9
    with pytest.raises(fs.FedsolveError, match="column for the offset: 'exposure'"):
        fs.run(method, federation((x, y, owner)))


def test_shares_with_weights_are_trials() -> None:
    x, _, owner = made("binomial")
    rng = np.random.default_rng(2)
    trials = rng.integers(1, 9, size=len(x)).astype(float)
    y = rng.binomial(trials.astype(int), 0.4) / trials
    members = federation((np.column_stack([x, trials]), y, owner), names=("a", "b", "c", "d", "trials"))
    _, found = fitted(fs.GLM(family="binomial", weights="trials"), members)
    wanted = statsmodels((x, y, owner), "binomial", var_weights=trials)
    assert relative(found.columns()["value"], wanted.params) < 1e-8
    assert relative(found.columns()["error"], wanted.bse) < 1e-8
    assert relative(found.figures["deviance"], wanted.deviance) < 1e-10


def test_several_classes_are_one_multinomial_model() -> None:
    x, _, owner = made("binomial", count=600)
    rng = np.random.default_rng(3)
    inner = np.column_stack([np.zeros(600), *(((x - x.mean(0)) / x.std(0)) @ rng.normal(size=4) for _ in range(2))])
    shares = np.exp(inner) / np.exp(inner).sum(1, keepdims=True)
    y = np.array([rng.choice(3, p=share) for share in shares])
    for split in ("by client", 50):
        result, found = fitted(fs.GLM(), federation((x, y, owner), split))
        wanted = sm.MNLogit(y, exog(x)).fit(disp=0, method="newton")
        assert relative(found.columns()["value"], np.asarray(wanted.params).T.ravel()) < 1e-8
        assert relative(found.columns()["error"], np.asarray(wanted.bse).T.ravel()) < 1e-8
        assert relative(found.figures["log-likelihood"], wanted.llf) < 1e-10
        assert found.columns()["of"] == ["1"] * 5 + ["2"] * 5
        assert result.shared is not None
        assert relative(result.shared.predict_proba(x), wanted.predict(exog(x))) < 1e-8


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("errors", ["robust", "sites"])
def test_robust_errors_take_one_round_more(family: str, errors: str) -> None:
    table = made(family)
    plain, _ = fitted(fs.GLM(family=family), federation(table))
    result, found = fitted(fs.GLM(family=family, errors=errors), federation(table))
    # statsmodels' GLM has no factor for HC1, which its OLS and R have
    kind: Mapping[str, Any] = {"cov_type": "HC0"}
    if errors == "sites":
        kind = {"cov_type": "cluster", "cov_kwds": {"groups": table[2]}}
    wanted = statsmodels(table, family, **kind)
    assert result.rounds == plain.rounds + 1
    factor = np.sqrt(400 / 395) if errors == "robust" else 1.0
    assert relative(found.columns()["error"], factor * wanted.bse) < 1e-8
    if errors == "sites":
        assert relative(found.columns()["p_value"], wanted.pvalues) < 1e-6


def test_coefficients_are_in_the_units_of_the_table() -> None:
    table = made("binomial")
    x = table[0]
    members = federation(table, names=("a", "b", "c", "d"))
    plain = fitted(fs.GLM(), members)[1].columns()
    scaled = Standardise(tuple(x.mean(0).tolist()), tuple(x.std(0).tolist()))
    task = dataclasses.replace(members.task, features=scaled)
    clients = {
        name: fs.Client(name, fs.Samples(scaled(c.train.inputs), c.train.labels), c.test)
        for name, c in members.clients.items()
    }
    moved = dataclasses.replace(members, task=task, clients=clients)
    found = fitted(fs.GLM(), moved)[1].columns()
    assert found["name"] == plain["name"] == ["a", "b", "c", "d", "intercept"]
    assert relative(found["value"], plain["value"]) < 1e-9
    assert relative(found["error"], plain["error"]) < 1e-9


def test_an_offset_beside_a_small_spread_costs_no_digits() -> None:
    x, y, owner = made("gaussian")
    far = x.copy()
    far[:, 0] += 1e7
    result, found = fitted(fs.GLM(personal=False), federation((far, y, owner)))
    middle = far.mean(0)
    wanted = sm.OLS(y, exog(far - middle)).fit()
    assert relative(found.columns()["value"][:-1], wanted.params[:-1]) < 1e-8
    assert relative(found.columns()["error"][:-1], wanted.bse[:-1]) < 1e-8
    assert result.rounds <= 4  # the first is taken again, about the means


def test_columns_that_repeat_others_have_no_coefficient() -> None:
    x, y, owner = made("binomial")
    rows = np.column_stack([x, x[:, 0] - 2 * x[:, 1], np.full(len(x), 0.3)])
    names = ("a", "b", "c", "d", "both", "same")
    result, found = fitted(fs.GLM(), federation((rows, y, owner), names=names))
    wanted = statsmodels((x, y, owner), "binomial")
    columns = found.columns()
    assert columns["value"][4:6] == columns["error"][4:6] == [None, None]
    assert relative(np.delete(columns["value"], [4, 5]).astype(float), wanted.params) < 1e-8
    assert "repeated by columns before them: 'both', 'same'" in str(found)
    assert result.warnings == ()


def test_separation_is_said_with_the_column() -> None:
    x, y, owner = made("binomial")
    apart = np.where(np.arange(len(y)) < 40, 1.0, 0.0)  # whoever has it is of class 1: coefficients run away
    for rows, labels in (
        (np.column_stack([x[:, :2], y + 0.1 * x[:, 0]]), y),
        (np.column_stack([x[:, :2], apart]), np.where(apart > 0, 1, y)),
    ):
        members = federation((rows, labels, owner), names=("a", "b", "marker"))
        with pytest.warns(fs.PrecisionWarning, match="told apart without error, most of all by 'marker'"):
            result, found = fitted(fs.GLM(), members)
        assert result.rounds < 25
        assert all((error is None) == (labels is y) for error in found.columns()["error"])  # of overlap, there are some
        assert np.isfinite(result.state["weight"]).all()
        result, found = fitted(fs.GLM(ridge=1.0), members)
        assert result.warnings == ()
        assert "a ridge draws the coefficients" in str(found)


def test_a_step_that_makes_it_worse_is_halved() -> None:
    """Counts with one giant: the first steps of Poisson regression overshoot, and it still arrives."""
    x, y, owner = made("poisson", count=120)
    x = np.exp(1.5 * (x - x.mean(0)) / x.std(0))
    y = y.copy()
    y[np.argmax(x[:, 0])] = 4000.0
    result, found = fitted(fs.GLM(family="poisson"), federation((x, y, owner)))
    assert result.warnings == ()
    rows = exog((x - x.mean(0)) / x.std(0))
    wanted = sm.GLM(y, rows, family=sm.families.Poisson()).fit(tol=1e-14, maxiter=500)
    assert relative(found.figures["deviance"], wanted.deviance) < 1e-9


def test_ridge_is_the_penalised_minimiser() -> None:
    from scipy.optimize import minimize

    x, y, owner = made("binomial")
    x = (x - x.mean(0)) / x.std(0)
    result, _ = fitted(fs.GLM(ridge=3.0), federation((x, y, owner)))

    def loss(b: Any) -> float:
        inner = x @ b[:-1] + b[-1]
        return float(np.logaddexp(0, inner).sum() - y @ inner + 1.5 * b[:-1] @ b[:-1])

    wanted = minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(np.append(result.state["weight"][:, 1], result.state["intercept"][1]), wanted, atol=1e-6)


def test_sites_that_differ_are_told() -> None:
    """Chow's F for numbers; for classes Rao's statistic, near that of the likelihood ratio where sites are large."""
    x, y, owner = made("gaussian", count=900)
    _, alike = fitted(fs.GLM(), federation((x, y, owner)))
    _, apart = fitted(fs.GLM(), federation((x, y + 0.5 * owner * (x[:, 0] - x[:, 0].mean()), owner)))
    assert alike.tests[1].p_value > 0.01
    assert apart.tests[1].p_value < 1e-10
    common = sm.OLS(y, exog(x)).fit()
    own = sum(sm.OLS(y[owner == k], exog(x[owner == k])).fit().ssr for k in range(9))
    assert relative(alike.tests[1].statistic, (common.ssr - own) / 40 / (own / (900 - 45))) < 1e-8
    x, y, owner = made("binomial", count=4000)
    _, found = fitted(fs.GLM(), federation((x, y, owner)))
    parts = [statsmodels((x[owner == k], y[owner == k], owner), "binomial").llf for k in range(9)]
    ratio = 2 * (sum(parts) - statsmodels((x, y, owner), "binomial").llf)
    assert found.tests[1].freedom == (40,)
    assert relative(found.tests[1].statistic, ratio) < 0.05


@pytest.mark.parametrize("family", [Gaussian(), Poisson(), Categorical(2), Categorical(3)], ids=str)
@pytest.mark.parametrize("counted", [True, False])
def test_left_out_predictions_are_those_of_a_fit_without_the_sample(family: Any, counted: bool) -> None:
    rng = np.random.default_rng(0)
    name = "binomial" if isinstance(family, Categorical) else family.name
    x, y, _ = made(name, count=60)
    if isinstance(family, Categorical) and family.count == 3:
        y = y + (rng.random(60) < 0.3)
    z = exog((x - x.mean(0)) / x.std(0))
    targets = family.targets(np.asarray(y))
    block = scoring.Block(z, targets, np.zeros((60, 1)), np.ones(60))
    shared = 0.1 * rng.normal(size=(5, targets.shape[1]))
    mean = family.mean(z @ shared)
    metric = 5.0 * scoring._curvature(z, family.variance(mean)) + 0.1 * np.eye(shared.size)
    at = personal._minimiser(family, block, metric, shared, shared, 2.0)
    assert at is not None
    found = personal._left_out(family, block, metric, shared, at, 2.0, counted=counted)
    exact = 0.0
    for left in range(60):
        rest = scoring.Block(*(np.delete(part, left, axis=0) for part in block))
        one = scoring.Block(*(part[[left]] for part in block))
        centre, around = shared, metric
        if counted:  # out of the federation's quadratic, too
            around = metric - scoring._curvature(one.rows, family.variance(mean[[left]]))
            score = (one.rows.T @ (targets[[left]] - mean[[left]])).T.ravel()
            centre = shared - np.linalg.solve(around, score).reshape(shared.shape[::-1]).T
        without = personal._minimiser(family, rest, around, centre, centre, 2.0)
        assert without is not None
        exact += float(family.deviance(targets[[left]], one.rows @ without)[0])
    assert relative(found, exact) < (1e-9 if isinstance(family, Gaussian) else 0.02)


def test_personal_models_lie_between_all_and_alone() -> None:
    x, y, owner = made("gaussian", count=900)
    y = y + 3.0 * (owner == 0) * (x[:, 0] - x[:, 0].mean())
    result = fs.run(fs.GLM(), federation((x, y, owner)))
    chosen = {name: client.chosen["alpha"] for name, client in result.clients.items()}
    assert chosen["c000"] >= 10.0
    alone = np.linalg.lstsq(exog(x[owner == 0]), y[owner == 0], rcond=None)[0]
    assert abs(result.models["c000"].arrays["weight"][0, 0] - alone[0]) < 0.1
    same = fs.run(fs.GLM(personal=False), federation((x, y, owner)))
    assert same.shared is not None
    for model in same.models.values():
        np.testing.assert_array_equal(model.arrays["weight"], same.shared.arrays["weight"])


def test_what_it_cannot_do_is_refused_in_a_sentence() -> None:
    x, y, owner = made("gaussian")
    with pytest.raises(fs.DataError, match="poisson takes targets of at least 0"):
        fs.run(fs.GLM(family="poisson"), federation((x, y, owner)))
    with pytest.raises(fs.DataError, match="binomial takes shares from 0 to 1"):
        fs.run(fs.GLM(family="binomial"), federation((x, y, owner)))
    labels = (y > 0).astype(int)
    with pytest.raises(fs.ParameterError, match="family=poisson predicts numbers"):
        fs.run(fs.GLM(family="poisson"), federation((x, labels, owner)))
    with pytest.raises(fs.DataError, match="at most 2000 coefficients"):
        fs.run(fs.GLM(), federation((np.ones((20, 2000)), labels[:20], owner[:20])))
    with pytest.raises(fs.ParameterError, match="must be two columns"):
        Roles.of(federation((x, y, owner), names=("a", "b", "c", "d")).task, "a", "a")
    two = fs.Federation.from_arrays({"a": {"train": (x, np.column_stack([y, y]))}}, target=fs.Numbers(("y", "z")))
    with pytest.raises(fs.DataError, match="predicts one number; got 2"):
        fs.run(fs.GLM(), two)


def test_what_is_no_linear_map_is_not_exported_as_one() -> None:
    from fedsolve.study.linear import linear_map

    counts = fs.run(fs.GLM(family="poisson"), federation(made("poisson"))).shared
    plain = fs.run(fs.GLM(), federation(made("binomial"))).shared
    assert counts is not None
    assert plain is not None
    with pytest.raises(fs.DataError, match="not one linear map"):
        linear_map(counts)
    assert linear_map(plain)[0].shape == (4, 2)


def test_too_few_rounds_are_said() -> None:
    with pytest.warns(fs.PrecisionWarning, match="glm had not converged after 2 rounds"):
        fs.run(fs.GLM(rounds=2), federation(made("binomial")))


def test_a_raw_table_has_coefficients_in_its_own_units() -> None:
    pd = pytest.importorskip("pandas")
    x, y, owner = made("binomial")
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    frame["sex"] = np.where(np.arange(len(y)) % 3 == 0, "f", "m")
    members = fs.Federation.from_frame(
        frame.assign(ill=np.where(y == 1, "yes", "no"), ward=owner), label="ill", client="ward", test=0.0
    )
    result = fs.run(fs.GLM(personal=False), members, evaluate_every=100)
    columns = result.summary().columns()
    rows = np.column_stack([x, frame["sex"] == "m"]) if "sex=m" in columns["name"] else None
    rows = np.column_stack([x, frame["sex"] == "f"]) if rows is None else rows
    wanted = statsmodels((rows.astype(float), y, owner), "binomial")
    assert columns["name"][:4] == ["a", "b", "c", "d"]
    assert relative(columns["value"], wanted.params) < 1e-8
    assert relative(columns["error"], wanted.bse) < 1e-8
