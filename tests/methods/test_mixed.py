"""mixed is statsmodels' MixedLM of the pooled table, from sums over sites."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.families.statistics import effects, likelihood
from fedsolve.families.statistics.effects import Structure
from fedsolve.summary import Summary

sm = pytest.importorskip("statsmodels.api")
Table = tuple[Any, Any, Any]


def relative(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-300)).max())


def made(sites: int = 30, seed: int = 0) -> Table:
    """Sites of different sizes, with an intercept and a first slope of their own."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(sites), rng.integers(3, 40, size=sites))
    x = rng.normal(size=(len(owner), 3)) * [1.0, 5.0, 0.2] + [2.0, 30.0, 0.0]
    own = rng.normal(size=(sites, 2)) * [1.5, 0.7]
    y = 3.0 + x @ [1.0, 0.2, -2.0] + own[owner, 0] + own[owner, 1] * x[:, 0] + rng.normal(size=len(owner))
    return x, y, owner


def federation(table: Table, test: Table | None = None) -> fs.Federation:
    x, y, owner = table
    clients = {}
    for k in np.unique(owner):
        clients[f"c{k:04d}"] = {"train": (x[owner == k], y[owner == k])}
        if test is not None:
            clients[f"c{k:04d}"]["test"] = (test[0][test[2] == k], test[1][test[2] == k])
    found = fs.Federation.from_arrays(clients, target=fs.Numbers("y"))
    names = tuple(f"x{place}" for place in range(x.shape[1]))
    return dataclasses.replace(found, task=dataclasses.replace(found.task, feature_names=names))


def exog(x: Any) -> Any:
    return np.column_stack([x, np.ones(len(x))])


def fitted(method: fs.Mixed, members: fs.Federation) -> tuple[fs.Result, Summary]:
    result = fs.run(method, members, evaluate_every=100)
    summary = method.inference(result.state, members.task)
    assert summary is not None
    return result, summary


@pytest.fixture(scope="module")
def tables(request: pytest.FixtureRequest) -> dict[str, Table]:
    found = {"made": made()}
    try:
        schools: ModuleType = request.getfixturevalue("real_data")
    except pytest.skip.Exception:
        return found
    data = schools.federated("school_math")
    return {**found, "schools": (data["x"].astype(float), data["y"].astype(float), data["client"])}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of its optimisers
@pytest.mark.parametrize(
    ("kind", "slope"),
    [
        ("reml", 0),
        ("ml", None),
        *(pytest.param(*each, marks=pytest.mark.long) for each in [("reml", None), ("ml", 0), ("reml", 2), ("ml", 2)]),
    ],
)
def test_equals_statsmodels(tables: dict[str, Table], kind: str, slope: int | None) -> None:
    for name, (x, y, owner) in tables.items():
        slopes = "none" if slope is None else f"x{slope}"
        method = fs.Mixed(slopes=slopes, covariance="full", likelihood=kind)
        result, found = fitted(method, federation((x, y, owner)))
        rows = exog(x)
        random = rows[:, [-1] if slope is None else [slope, -1]]
        wanted = sm.MixedLM(y, rows, groups=owner, exog_re=random).fit(
            reml=kind == "reml", method=["bfgs", "lbfgs", "powell"], gtol=1e-9
        )
        assert result.rounds <= 25, name
        assert found.figures["log-likelihood"] > wanted.llf - 1e-6, name
        if found.figures["log-likelihood"] > wanted.llf + 0.01:
            assert (name, slope) == ("schools", 0)  # statsmodels stops short of the top, at a lower likelihood
            continue
        assert relative(found.figures["log-likelihood"], wanted.llf) < 1e-6, name
        assert relative(found.columns()["value"], wanted.fe_params) < 1e-6, name
        components = list(found.components.values())
        covariance = np.asarray(wanted.cov_re)
        there = [*np.diagonal(covariance), *([] if slope is None else [covariance[1, 0]]), wanted.scale]
        assert relative(components, there) < 1e-4, name


def dense(x: Any, y: Any, owner: Any, result: fs.Result, members: fs.Federation) -> tuple[Any, Any, Any, float]:
    """Generalised least squares with the whole covariance of y, at the variances that were found."""
    state = result.state
    middle, spread = state["origin"], state["spread"]
    rows = exog((x - middle) / spread)
    lower = np.diag(state["free"])
    same = owner[:, None] == owner[None, :]
    whole = np.eye(len(y)) + same * (rows @ lower @ lower.T @ rows.T)
    weights = np.linalg.inv(whole)
    inverse = np.linalg.inv(rows.T @ weights @ rows)
    coefficients = inverse @ rows.T @ weights @ (y - state["centre"][0])
    return rows, weights, coefficients, float(state["variance"])


def test_personal_models_are_the_best_linear_predictors_and_know_what_they_do_not_know() -> None:
    """Against Henderson's equations for all sites at once, whose inverse is the covariance of b and u."""
    x, y, owner = made(sites=8)
    members = federation((x, y, owner))
    result, found = fitted(fs.Mixed(tol=1e-7), members)
    rows, _, coefficients, variance = dense(x, y, owner, result, members)
    np.testing.assert_allclose(result.state["coefficients"], coefficients, rtol=1e-8)
    lower = np.diag(result.state["free"])
    sites = 8
    beside = np.zeros((len(y), 4 * sites))
    for row, site in enumerate(owner):
        beside[row, 4 * site : 4 * site + 4] = rows[row] @ lower
    design = np.column_stack([rows, beside])
    system = design.T @ design + np.diag([0.0] * 4 + [1.0] * (4 * sites))
    solved = np.linalg.solve(system, design.T @ (y - result.state["centre"][0]))
    inverse = variance * np.linalg.inv(system)
    spread, middle = result.state["spread"], result.state["origin"]
    back = np.diag(np.append(1.0 / spread, 1.0))
    back[-1, :-1] = -middle / spread
    for site in range(sites):
        pick = np.zeros((4, 4 + 4 * sites))
        pick[:, :4] = np.eye(4)
        pick[:, 4 + 4 * site : 8 + 4 * site] = lower
        model = result.models[f"c{site:04d}"].arrays
        values = back @ pick @ solved
        values[-1] += result.state["centre"][0]
        np.testing.assert_allclose(np.append(model["weight"][:, 0], model["intercept"]), values, rtol=1e-7)
        np.testing.assert_allclose(model["covariance"], back @ pick @ inverse @ pick.T @ back.T, rtol=1e-6, atol=1e-12)
    errors = np.sqrt(np.diagonal(back @ inverse[:4, :4] @ back.T))
    assert relative(found.columns()["error"], errors) < 1e-8


def test_intervals_of_personal_coefficients_hold_what_they_promise() -> None:
    """Over many sites, 95 % intervals of b + u_k hold about 95 % of the true ones."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(400), 8)
    x = rng.normal(size=(3200, 1))
    own = rng.normal(size=(400, 2)) * [1.0, 0.5]
    y = own[owner, 0] + (2.0 + own[owner, 1]) * x[:, 0] + rng.normal(size=3200)
    result = fs.run(fs.Mixed(), federation((x, y, owner)), evaluate_every=100)
    inside = []
    for site in range(400):
        model = result.models[f"c{site:04d}"].arrays
        error = np.sqrt(model["covariance"][0, 0])
        inside.append(abs(model["weight"][0, 0] - 2.0 - own[site, 1]) < 1.96 * error)
    assert 0.92 < np.mean(inside) < 0.98


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("reml", [True, False])
def test_derivatives_are_those_of_the_likelihood(full: bool, reml: bool) -> None:
    x, y, owner = made(sites=10)
    rows = np.column_stack([exog((x - x.mean(0)) / x.std(0)), y - y.mean()])
    grams = [rows[owner == k].T @ rows[owner == k] for k in range(10)]
    structure = Structure(np.array([0, 2, 3]), full)
    places = structure.places
    free = np.where(places[0] == places[1], 0.6, 0.1) + 0.05 * np.arange(len(places[0]))

    def at(values: Any, told: dict[str, Any]) -> likelihood.Likelihood:
        message = {**told, "free": values, "reml": np.array(reml)}
        parts = [effects.sums(gram, structure, message) for gram in grams]
        total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in parts[0]}
        return likelihood.Likelihood.of(total, structure, values, len(y), reml=reml)

    told = {"coefficients": np.zeros(4), "inverse": np.zeros((4, 4)), "variance": np.array(1e300)}
    first = at(free, told)
    told = {
        "coefficients": first.coefficients,
        "inverse": first.inverse,
        "variance": np.array(first.variance),
    }
    found, small = at(free, told), 1e-5
    slope = [(at(free + d, told).value - at(free - d, told).value) / (2 * small) for d in small * np.eye(len(free))]
    np.testing.assert_allclose(found.gradient, slope, rtol=1e-5, atol=1e-5)
    # and the value is that of the whole covariance of y
    lower = structure.factor(free)
    z = rows[:, structure.columns]
    whole = np.eye(len(y)) + (owner[:, None] == owner[None, :]) * (z @ lower @ lower.T @ z.T)
    weights = np.linalg.inv(whole)
    squared = rows[:, :-1].T @ weights @ rows[:, :-1]
    left = y - y.mean() - rows[:, :-1] @ found.coefficients
    freedom = len(y) - 4 * reml
    wanted = np.linalg.slogdet(whole)[1] + freedom * np.log(left @ weights @ left)
    wanted += reml * np.linalg.slogdet(squared)[1]
    assert found.value == pytest.approx(wanted, rel=1e-12)


def test_near_the_end_the_curvature_is_the_exact_one() -> None:
    x, y, owner = made(sites=25)
    result = fs.run(fs.Mixed(slopes="x0", covariance="full", tol=1e-2), federation((x, y, owner)), evaluate_every=100)
    more = fs.run(fs.Mixed(slopes="x0", covariance="full", tol=1e-7), federation((x, y, owner)), evaluate_every=100)
    assert more.rounds <= result.rounds + 3  # digits double with every step
    rows = np.column_stack([exog((x - more.state["origin"]) / more.state["spread"]), y - more.state["centre"][0]])
    grams = [rows[owner == k].T @ rows[owner == k] for k in range(25)]
    structure = Structure(np.array([0, 3]), True)
    told = {name: more.state[name] for name in ("coefficients", "inverse", "variance")}

    def at(values: Any) -> likelihood.Likelihood:
        parts = [effects.sums(gram, structure, {**told, "free": values, "reml": np.array(True)}) for gram in grams]
        total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in parts[0]}
        return likelihood.Likelihood.of(total, structure, values, len(y), reml=True)

    free, small = more.state["free"], 1e-5
    wanted = [(at(free + d).gradient - at(free - d).gradient) / (2 * small) for d in small * np.eye(3)]
    np.testing.assert_allclose(at(free).curvature, wanted, rtol=1e-4, atol=1e-3)


def test_a_variance_of_zero_is_found() -> None:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 15)
    x = rng.normal(size=(300, 2))
    y = 1.0 + x @ [1.0, -1.0] + rng.normal(size=300)  # all sites alike
    result, found = fitted(fs.Mixed(), federation((x, y, owner)))
    assert result.warnings == ()
    assert min(found.components.values()) < 1e-6
    pooled = np.linalg.lstsq(exog(x), y, rcond=None)[0]
    assert np.abs(np.array(found.columns()["value"]) - pooled).max() < 0.05


def test_a_site_far_from_the_others_keeps_its_own_and_a_small_one_is_drawn() -> None:
    x, y, owner = made()
    result = fs.run(fs.Mixed(), federation((x, y, owner)), evaluate_every=100)
    assert result.shared is not None
    shared = result.shared.arrays["weight"][0, 0]
    sizes = np.bincount(owner)
    small, large = f"c{sizes.argmin():04d}", f"c{sizes.argmax():04d}"
    spread = {name: float(result.models[name].arrays["covariance"][0, 0]) for name in (small, large)}
    assert spread[small] > spread[large]
    alone = np.linalg.lstsq(exog(x[owner == sizes.argmax()]), y[owner == sizes.argmax()], rcond=None)[0][0]
    assert abs(result.models[large].arrays["weight"][0, 0] - alone) < abs(shared - alone)


def test_what_it_cannot_do_is_refused_in_a_sentence() -> None:
    x, y, owner = made(sites=4)
    with pytest.raises(fs.FedsolveError, match="column for a random slope: 'age'"):
        fs.run(fs.Mixed(slopes="age"), federation((x, y, owner)))
    with pytest.raises(fs.DataError, match="choose slopes=none"):
        fs.run(fs.Mixed(), federation((np.ones((len(y), 300)), y, owner)))
    with pytest.raises(fs.ParameterError, match="'mixed' learns numbers"):
        fs.run(fs.Mixed(), fs.load("digits").split("iid", clients=3))
    with pytest.warns(fs.PrecisionWarning, match="mixed had not converged after 2 rounds"):
        fs.run(fs.Mixed(rounds=2), federation((x, y, owner)))


def test_replies_are_sums_of_a_size_that_says_nothing_of_the_site() -> None:
    x, y, owner = made(sites=5)
    method, sizes = fs.Mixed(), set[int]()
    fs.run(
        method, federation((x, y, owner)), on_reply=lambda client, reply: sizes.add(sum(a.size for a in reply.values()))
    )
    assert len(sizes) == 2  # of the first round, and of all others
    assert method.plan({}, ["a", "b"]).fold == "sum"
