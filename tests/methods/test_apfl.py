from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.families.ridge import choice, screening
from fedsolve.features.maps import RandomProjection
from fedsolve.solver import cross_validated_ridge
from tests.conftest import pooled, relative
from tests.contexts import site
from tests.methods.oracles import stacked
from tests.methods.test_fedhip import federation, pairs

SMALL: dict[str, Any] = {"d_primary": 12, "d_refine": 9}


@pytest.mark.parametrize("gamma", [1e-3, 2.0])
@pytest.mark.parametrize("beta", [1e-2, 5.0])
@pytest.mark.parametrize(("primary", "refine"), [("relu", "relu"), ("tanh", "hardswish")])
def test_both_streams_minimise_their_objectives(gamma: float, beta: float, primary: str, refine: str) -> None:
    fed = federation()
    method = fs.APFL(**SMALL, act_primary=primary, act_refine=refine, gamma=gamma, beta=beta, lam=0.3)
    result = fs.run(method, fed)
    seeds = result.state["seeds"]
    phi, psi = RandomProjection(12, primary, int(seeds[0])), RandomProjection(9, refine, int(seeds[1]))
    x, y = pooled(fed)
    shared = stacked([(1.0, phi(x), y)], gamma)  # (2)
    assert result.shared is not None
    assert relative(result.shared.arrays["weight"], shared) < 1e-9
    for name, (own_x, own_y) in zip(fed.clients, pairs(fed), strict=True):
        wanted = stacked([(1.0, psi(own_x), own_y - phi(own_x) @ shared)], beta)  # (12)
        model = result.models[name]
        assert relative(model.arrays["refine"], wanted) < 1e-9
        scores = phi(own_x) @ shared + 0.3 * psi(own_x) @ wanted  # (14)
        np.testing.assert_allclose(model.scores(own_x), scores, rtol=1e-8, atol=1e-9)


def test_numbers_have_an_intercept_in_the_shared_stream() -> None:
    """(2) about the means of everybody's random features and numbers; gamma and the leverage from the data."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(90, 7))
    y = np.array([50.0, -3.0]) + x[:, :2] * [4.0, 0.1] + rng.normal(size=(90, 2)) * [1.0, 0.05]
    parts = {f"c{i}": {"train": (x[i::3], y[i::3])} for i in range(3)}
    fed = fs.Federation.from_arrays(parts, target=fs.Numbers(("a", "b")))
    result = fs.run(fs.APFL(**SMALL, beta=2.0, lam=0.5), fed)
    phi, psi = (RandomProjection(d, "relu", int(s)) for d, s in zip((12, 9), result.state["seeds"], strict=True))
    rows, units = phi(x) - phi(x).mean(0), (y - y.mean(0)) / y.std(0)
    gram = rows.T @ rows
    hats = {
        gamma: rows @ np.linalg.solve(gram + gamma * np.eye(12), rows.T)
        for gamma in (factor * np.trace(gram) / 12 for factor in choice.SHARED_RIDGES)
    }
    gamma = min(hats, key=lambda g: np.square(units - hats[g] @ units).sum() / (89 - np.trace(hats[g])) ** 2)
    assert result.state["gamma"] == pytest.approx(gamma)
    assert result.state["leverage"] == pytest.approx((1 + np.trace(hats[gamma])) / 90)
    shared = stacked([(1.0, rows, y - y.mean(0))], gamma)
    own_x, own_y = x[1::3], y[1::3]
    prior = y.mean(0) + (phi(own_x) - phi(x).mean(0)) @ shared
    refined = stacked([(1.0, psi(own_x), own_y - prior)], 2.0)  # (12)
    np.testing.assert_allclose(result.models["c1"].predict(own_x), prior + 0.5 * psi(own_x) @ refined, rtol=1e-8)
    assert "sharpness" not in result.models["c1"].arrays


def test_against_the_papers_recursion() -> None:
    """APFL (7) to (10), started from the first client's primary stream."""
    fed, gamma = federation(), 0.5
    result = fs.run(fs.APFL(**SMALL, gamma=gamma, beta=1.0, lam=1.0), fed)
    phi = RandomProjection(12, "relu", int(result.state["seeds"][0]))
    identity = np.eye(12)
    total, fused = None, None
    for x, y in pairs(fed):
        own = phi(x).T @ phi(x) + gamma * identity  # (6)
        local = np.linalg.solve(own, phi(x).T @ y)  # (5)
        if total is None or fused is None:
            total, fused = own, local
            continue
        after = np.linalg.inv(total + own)
        keep = identity - np.linalg.inv(total) @ own @ (identity - after @ own)  # (9)
        take = identity - np.linalg.inv(own) @ total @ (identity - after @ total)
        total, fused = total + own, keep @ fused + take @ local  # (7), (8)
    assert total is not None
    assert fused is not None
    wanted = np.linalg.solve(total - (len(fed.clients) - 1) * gamma * identity, total @ fused)  # (10)
    assert relative(result.state["weight"], wanted) < 1e-8


@given(st.integers(0, 2**32), st.sampled_from([1, 4, 50]))
def test_re_splitting_the_others_changes_nothing(seed: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(90, 7)), rng.integers(4, size=90)

    def personal(count: int, order: np.ndarray) -> dict[str, np.ndarray]:
        rest = {f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(np.array_split(order, count))}
        clients = {"me": {"train": (x[:20], y[:20])}, **rest}
        method = fs.APFL(**SMALL, gamma=1.0, beta=1.0, lam=0.5)
        return dict(fs.run(method, fs.Federation.from_arrays(clients, classes=4)).models["me"].arrays)

    one, two = personal(others, 20 + rng.permutation(70)), personal(5, np.arange(20, 90))
    for name in ("weight", "refine"):
        assert relative(one[name], two[name]) < 1e-9


def test_projections_are_seeds_never_matrices() -> None:
    fed = federation()
    one, same, other = (fs.run(fs.APFL(**SMALL), fed, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.state["seeds"], same.state["seeds"])
    assert not np.array_equal(one.state["seeds"], other.state["seeds"])
    assert one.state["seeds"][0] != one.state["seeds"][1]
    assert all(array.shape != (15, 12) for array in one.state.values())
    sizes = [(12 * 13 // 2 + 12 * 4) * 8 for _ in fed.clients]
    assert one.bytes_up < sum(sizes) + 1200 * len(sizes)


def test_lam_zero_is_the_shared_stream() -> None:
    fed = federation()
    result = fs.run(fs.APFL(**SMALL, lam=0.0), fed)
    assert result.shared is not None
    x = fed.clients["c0"].train.inputs
    for model in result.models.values():
        np.testing.assert_array_equal(model.scores(x), result.shared.scores(x))


@pytest.mark.parametrize("counted", [False, True])
def test_auto_looks_at_leave_one_out_scores(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refinement is refitted without the sample.

    The shared stream cannot be refitted by the client. If it has seen the client's samples, what it leaves over is
    larger without one of them, by one over one minus a leverage; the mean of all samples' stands for it.
    """
    fed = federation(sizes=(25, 14, 40))
    seen: list[tuple[tuple[float, float], np.ndarray]] = []

    def best(candidates: list[tuple[float, float]], predictions: object, labels: np.ndarray) -> tuple[float, float]:
        seen.extend(zip(candidates, predictions, strict=True))  # type: ignore[call-overload]
        return candidates[0]

    monkeypatch.setattr(choice, "best", best)
    monkeypatch.setattr(screening, "near_best", lambda losses, labels: list(range(len(losses))))  # all are looked at
    method = fs.APFL(**SMALL)
    state = fs.run(fs.APFL(**SMALL, beta=1.0, lam=1.0), fed).state
    me = site(fed.task, fed.clients["c1"].train, counted=counted)
    method.personalize({}, method.message(state, "c1", "personalize"), me)
    x, y = pairs(fed)[1]
    phi, psi = (RandomProjection(d, "relu", int(s)) for d, s in zip((12, 9), state["seeds"], strict=True))
    prior = phi(x) @ state["weight"]
    rows = np.vstack([phi(a) for a, _ in pairs(fed)])
    hat = rows @ np.linalg.solve(rows.T @ rows + state["gamma"] * np.eye(12), rows.T)
    assert state["leverage"] == pytest.approx(np.trace(hat) / len(rows))
    unseen = y - (y - prior) / (1 - np.trace(hat) / len(rows)) if counted else prior
    assert seen[0][0][1] == 0.0
    for (beta, lam), scores in seen[::7]:
        for i in range(len(x)):
            keep = np.arange(len(x)) != i
            refined = stacked([(1.0, psi(x[keep]), (y - prior)[keep])], beta)
            np.testing.assert_allclose(
                scores[i], unseen[i] + lam * psi(x[i : i + 1])[0] @ refined, rtol=1e-6, atol=1e-7
            )


@pytest.mark.parametrize("intercept", [False, True])
def test_cross_validation_from_sums_alone_equals_the_formula_on_the_data(intercept: bool) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 8)) + 0.3, rng.integers(3, size=60)
    y = np.eye(3)[labels]
    factors = (10.0, 1.0, 0.1, 1e-2, 1e-3)
    moments = fs.Moments.of(x, labels, classes=3, intercept=intercept)
    found = cross_validated_ridge(moments, factors, intercept=intercept)
    xc, yc = (x - x.mean(0), y - y.mean(0)) if intercept else (x, y)
    unit = np.square(xc).sum() / 8

    def error(ridge: float) -> float:
        hat = xc @ np.linalg.solve(xc.T @ xc + ridge * np.eye(8), xc.T)
        return float(np.square(yc - hat @ yc).sum() / (60 - intercept - np.trace(hat)) ** 2)

    wanted = min(factors, key=lambda factor: error(factor * unit)) * unit
    assert found == pytest.approx(wanted, rel=1e-9)


def test_help_tells_it_from_the_other_apfl() -> None:
    assert "analytic" in (fs.APFL.__doc__ or "").lower()
    assert "2020" in (fs.APFL.__doc__ or "")
