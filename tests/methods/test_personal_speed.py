"""The quick paths of personal models hold to the direct solves, and share what follows from a message."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

import fedsolve as fs
from fedsolve import threads
from fedsolve.anchor import Anchor
from fedsolve.arrays import Arrays
from fedsolve.families.ridge import alone, choice, linear, personal, refinement, screening
from fedsolve.runtime.derived import Derived
from fedsolve.sides import dual, ridge_weights, smaller_gram
from fedsolve.solver import RidgePath, left_out, solution_of
from tests.conftest import relative
from tests.contexts import site

SEEDS = st.integers(0, 2**32)


def rows_of(seed: int, count: int, width: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, width)) + 0.5
    if kind == "zeros":
        rows[:, 1] = 0.0
    if kind == "constant":
        rows[:, 1] = 7.0
    if kind == "repeats":
        rows[:, 1] = rows[:, 0]
        rows[1::2] = rows[: len(rows[1::2])]
    return rows


def targets_of(seed: int, count: int, numbers: bool) -> np.ndarray:
    rng = np.random.default_rng(seed + 1)
    return rng.normal(size=(count, 2)) if numbers else rng.integers(3, size=count)


@given(
    SEEDS,
    st.sampled_from([1, 2, 5, 12, 13, 40, 130]),
    st.sampled_from(["plain", "zeros", "constant", "repeats"]),
    st.sampled_from(["auto", 0.0, 0.3, 20.0, 1e6]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_model_by_the_anchor_is_that_of_the_whole_system(
    seed: int, count: int, kind: str, alpha: float | str, intercept: bool, numbers: bool, counted: bool, inverse: bool
) -> None:
    """With fewer samples than features, as many and more; the same alpha, weights, and doubts."""
    x, y = rows_of(seed, 200, 12, kind), targets_of(seed, 200, numbers)
    mine = slice(0, count)
    everybody = slice(0 if counted else count, 200)

    def sums(rows: slice) -> fs.Moments:
        return fs.Moments.of(x[rows], y[rows], classes=2 if numbers else 3, intercept=intercept, squares=numbers)

    total = sums(everybody)
    shared = linear.global_model(total, 0.5, intercept=intercept)

    def own(anchor: Anchor | None) -> personal.Own:
        return personal.own_model(
            total,
            0.5,
            shared,
            x[mine],
            y[mine],
            alpha=alpha,
            counted=counted,
            intercept=intercept,
            anchor=anchor,
            own_moments=lambda: sums(mine),
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedsolve.triangle.SMALL", 1024 if inverse else 0)
        anchor = Anchor.of(total, 0.5, intercept=intercept)
    assert anchor is None or anchor.factor.inverse == inverse
    quick, whole = own(anchor), own(None)
    assert quick.alpha == whole.alpha
    assert quick.unsure == whole.unsure
    assert quick.model.keys() == whole.model.keys()
    for name in whole.model:
        np.testing.assert_allclose(quick.model[name], whole.model[name], rtol=1e-8, atol=1e-9)


def test_an_anchor_is_none_where_digits_depend_on_the_further_samples() -> None:
    """Singular sums, and features that look constant: then each system is solved by itself."""
    x, y = rows_of(0, 60, 5, "repeats"), targets_of(0, 60, False)
    assert Anchor.of(fs.Moments.of(x, y), 0.0, intercept=False) is None
    assert Anchor.of(fs.Moments.of(x, y), 1.0, intercept=False) is not None
    constant = fs.Moments.of(rows_of(0, 60, 5, "constant"), y, intercept=True)
    assert Anchor.of(constant, 1.0, intercept=True) is None


def test_an_anchor_is_not_sure_of_samples_that_dwarf_everybodys() -> None:
    x, y = rows_of(0, 60, 5, "plain"), targets_of(0, 60, False)
    anchor = Anchor.of(fs.Moments.of(x, y), 1.0, intercept=False)
    assert anchor is not None
    squares, targets, weights = np.square(x[:4]).sum(0), np.eye(3)[y[:4]], np.ones((5, 3))
    assert anchor.sure(squares, x[:4], targets, 20.0, weights)
    assert not anchor.sure(squares, x[:4], targets, 1e18, 1e8 * weights)


@given(SEEDS, st.sampled_from([3, 4, 11, 12, 40, 120]), st.booleans(), st.sampled_from(["plain", "zeros", "repeats"]))
def test_ridge_alone_is_that_of_the_whole_system(seed: int, count: int, intercept: bool, kind: str) -> None:
    x, y = rows_of(seed, count, 12, kind), targets_of(seed, count, False)
    federation = fs.Federation.from_arrays({"a": {"train": (x, y)}}, classes=3)
    found = alone.own_ridge(site(federation.task, federation.clients["a"].train), "auto", intercept=intercept)
    own = fs.Moments.of(x, y, classes=3, intercept=intercept)
    wanted = solution_of(own, found.ridge, intercept=intercept, solver="auto", one_hot=True)
    assert found.unsure == wanted.unsure
    np.testing.assert_allclose(found.model["weight"], wanted.weights, rtol=1e-6, atol=1e-8)
    if intercept:
        assert wanted.intercept is not None
        np.testing.assert_allclose(found.model["intercept"], wanted.intercept, rtol=1e-6, atol=1e-8)


@given(SEEDS, st.sampled_from([3, 20, 99, 100, 150]), st.booleans(), st.sampled_from([0.01, 0.3, 3.0]))
def test_screened_candidates_give_the_choice_of_all(seed: int, count: int, numbers: bool, noise: float) -> None:
    """Whatever the losses look like: the candidate, and its predictions, are those that all of them give."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(count, 30)) * np.logspace(0, -3, 30)
    labels = targets_of(seed, count, numbers)
    prior = noise * rng.normal(size=(count, 2 if numbers else 3))
    targets = (labels if numbers else np.eye(3)[labels]) - prior
    path = RidgePath.of(design, targets)
    ridges = [10.0**power for power in np.arange(3, -8, -0.5)]

    def predicted(ridge: float) -> np.ndarray:
        gain = path.ridge(ridge)
        return prior + left_out(path.targets, path.fitted(gain), path.leverage(gain))

    gains = np.column_stack([path.ridge(ridge) for ridge in ridges])
    found, predictions = screening.best_fit(path, ridges, gains, gains, prior, labels)
    assert found == choice.best(ridges, map(predicted, ridges), labels)
    np.testing.assert_allclose(predictions, predicted(found), rtol=1e-12, atol=1e-12)


@given(SEEDS, st.sampled_from([3, 20, 99, 100, 150]), st.booleans(), st.sampled_from(["plain", "repeats"]))
def test_beta_and_lam_are_those_of_the_whole_grid(seed: int, count: int, numbers: bool, kind: str) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = rows_of(seed, count, 30, kind), targets_of(seed, count, numbers)
    wanted = labels if numbers else np.eye(3)[labels]
    targets = wanted - 0.5 * rng.normal(size=wanted.shape)
    prior = wanted - 1.2 * targets
    pair, _ = refinement.choose_beta_and_lam(prior, rows, targets, labels, 0.0, beta="auto", lam="auto")
    path, unit = RidgePath.of(rows, targets), np.square(rows).sum() / 30
    betas, lams = [unit * factor for factor in choice.RIDGES], (0.0, *refinement.LAMBDAS)
    pairs = [(beta, lam) for lam in lams for beta in betas]
    gains = {beta: path.ridge(beta) for beta in betas}
    second = {beta: left_out(targets, path.fitted(gain), path.leverage(gain)) for beta, gain in gains.items()}
    best = choice.best(pairs, (prior + lam * second[beta] for beta, lam in pairs), labels)
    assert pair == pytest.approx(best, rel=1e-9)
    refined = refinement.refined(prior, rows, targets, labels, 0.0, beta="auto", lam="auto")
    whole = solution_of(fs.Moments.of(rows, targets), pair[0], solver="auto").weights
    np.testing.assert_allclose(refined.weights, whole, rtol=1e-6, atol=1e-7)


@given(SEEDS, st.sampled_from([5, 12, 30]), st.sampled_from([1e-3, 1.0, 1e3]))
def test_both_sides_of_a_design_have_the_same_ridge(seed: int, count: int, strength: float) -> None:
    x, y = rows_of(seed, count, 12, "plain"), np.random.default_rng(seed).normal(size=(count, 2))
    wanted = np.linalg.solve(x.T @ x + strength * np.eye(12), x.T @ y)
    gram = smaller_gram(x)
    weights, inner = ridge_weights(x, gram, y, strength), dual(x, gram, y, strength)
    assert weights is not None
    assert inner is not None
    assert relative(weights, wanted) < 1e-9
    assert relative(x.T @ inner, wanted) < 1e-9
    assert dual(np.zeros((3, 5)), np.zeros((3, 3)), np.ones((3, 1)), 0.0) is None


@pytest.mark.parametrize(
    "method", [fs.FedHiP(), fs.FedHiP(alpha=3.0, beta=1.0), fs.Local(), fs.APFL(d_primary=9, d_refine=9)]
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_samples_that_cannot_be_summed_are_refused_when_a_model_is_made_of_them(
    method: fs.Method, value: float
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)), rng.integers(2, size=40)
    federation = fs.Federation.from_arrays({n: {"train": (x, y)} for n in "ab"}, classes=2)
    state = fs.run(method, federation).state
    spoilt = x[:3].copy()
    spoilt[1, 2] = value
    samples = fs.Samples(spoilt, y[:3])
    with pytest.raises(fs.DataError, match="finite"):
        method.personalize({}, method.message(state, "a", "personalize"), site(federation.task, samples))


def test_what_follows_from_a_message_is_computed_once_for_all_clients_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": {"train": (rng.normal(size=(9, 20)), rng.integers(2, size=9))} for i in range(12)}
    federation = fs.Federation.from_arrays(clients, classes=2)
    plain, calls = Anchor.of, list[int]()

    def spy(*given: Any, **named: Any) -> Anchor | None:
        calls.append(1)
        return plain(*given, **named)

    monkeypatch.setattr(Anchor, "of", spy)
    result = fs.run(fs.FedHiP(), federation)
    assert len(calls) == 1
    method, state = fs.FedHiP(), result.state
    for name, client in federation.clients.items():  # as at a site, where nothing is shared
        own = method.personalize(
            {}, method.message(state, name, "personalize"), site(federation.task, client.train, counted=True)
        )
        np.testing.assert_allclose(own.model["weight"], result.models[name].arrays["weight"], rtol=1e-12)
    assert len(calls) == 13


def test_derived_values_belong_to_one_message() -> None:
    message = {"a": np.arange(3.0)}
    once, calls = Derived(message), list[int]()

    def total(arrays: Arrays) -> float:
        calls.append(1)
        return float(arrays["a"].sum())

    threads = [threading.Thread(target=once, args=(total, message)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert once(total, message) == 3.0
    assert len(calls) == 1
    assert once(total, {"a": np.ones(2)}) == 2.0
    assert len(calls) == 2


@pytest.mark.parametrize(("limit", "wanted"), [(2**21, 1), (0, 2)])
def test_small_sums_are_solved_by_one_thread_and_large_ones_by_all(
    limit: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait for each other by spinning take many times longer on a busy machine."""
    rng = np.random.default_rng(0)
    federation = fs.Federation.from_arrays({n: {"train": (rng.normal(size=(9, 3)), np.arange(9) % 2)} for n in "ab"})
    seen: list[int] = []
    plain = linear.global_model

    def spy(*given: Any, **named: Any) -> Any:
        seen.append(max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"))
        return plain(*given, **named)

    monkeypatch.setattr(linear, "global_model", spy)
    monkeypatch.setattr(threads, "SMALL", limit)
    with threadpool_limits(2, user_api="blas"):
        fs.run(fs.AFL(), federation)
    assert seen == [wanted]
