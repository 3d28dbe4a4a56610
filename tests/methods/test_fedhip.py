from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.families.ridge import choice, linear, personal, screening
from fedsolve.solver import cross_validated_ridge, whiten
from tests.conftest import pooled, relative
from tests.contexts import site
from tests.methods.oracles import fedhip_personal, fedhip_recursion, stacked


def federation(sizes: tuple[int, ...] = (30, 12, 80, 5), features: int = 15, seed: int = 0) -> fs.Federation:
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(4, features))
    clients = {}
    for number, size in enumerate(sizes):
        y = rng.choice(4, p=rng.dirichlet(np.full(4, 0.5)), size=size)
        clients[f"c{number}"] = {"train": (centres[y] + rng.normal(size=(size, features)), y)}
    return fs.Federation.from_arrays(clients, classes=4)


def pairs(fed: fs.Federation) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(c.train.inputs, np.eye(4)[c.train.labels]) for c in fed.clients.values()]


@pytest.mark.parametrize("alpha", [0.0, 1.0, 20.0, 200.0])
@pytest.mark.parametrize("beta", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_personal_models_minimise_the_objective(alpha: float, beta: float, intercept: bool) -> None:
    fed = federation()
    result = fs.run(fs.FedHiP(alpha=alpha, beta=beta, intercept=intercept), fed)
    for name, own in zip(fed.clients, pairs(fed), strict=True):
        wanted = stacked([(1.0, *pooled(fed)), (alpha, *own)], beta, intercept)  # FedHiP (1)
        model = result.models[name].arrays
        found = np.vstack([model["weight"], model["intercept"]]) if intercept else model["weight"]
        assert relative(found, wanted) < 1e-9


def test_against_the_papers_recursion() -> None:
    fed = federation()
    result = fs.run(fs.FedHiP(alpha=7.0, beta=2.0, intercept=False), fed)
    assert result.shared is not None
    assert relative(result.shared.arrays["weight"], fedhip_recursion(pairs(fed), 2.0)[2]) < 1e-10
    for k, name in enumerate(fed.clients):
        assert relative(result.models[name].arrays["weight"], fedhip_personal(pairs(fed), k, 7.0, 2.0)) < 1e-10


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 9, 60]))
def test_re_splitting_the_others_changes_nothing(seed: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(90, 7)), rng.integers(4, size=90)
    mine = {"me": {"train": (x[:20], y[:20])}}

    def personal(count: int, order: np.ndarray) -> np.ndarray:
        rest = {f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(np.array_split(order, count))}
        return (
            fs.run(
                fs.FedHiP(alpha=5.0, beta=1.0, intercept=False), fs.Federation.from_arrays({**mine, **rest}, classes=4)
            )
            .models["me"]
            .arrays["weight"]
        )

    assert relative(personal(others, 20 + rng.permutation(70)), personal(5, np.arange(20, 90))) < 1e-9


def test_alpha_zero_is_the_global_model_and_large_alpha_is_training_alone() -> None:
    fed = federation()
    result = fs.run(fs.FedHiP(alpha=0.0, beta=1.0, intercept=False), fed)
    assert result.shared is not None
    for model in result.models.values():
        assert relative(model.arrays["weight"], result.shared.arrays["weight"]) < 1e-12
    alone = fs.run(fs.Local(ridge=1e-6, intercept=False), fed).models["c2"].arrays["weight"]
    with pytest.warns(fs.PrecisionWarning, match="model of c1 "):  # few samples, beside which all others are rounding
        own = fs.run(fs.FedHiP(alpha=1e9, beta=1.0, intercept=False), fed).models["c2"].arrays["weight"]
    assert relative(own, alone) < 1e-4


def test_beta_zero_with_singular_statistics_gives_the_minimum_norm() -> None:
    fed = federation(sizes=(4, 3, 5), features=15)
    result = fs.run(fs.FedHiP(alpha=3.0, beta=0.0, intercept=False), fed)
    for name, own in zip(fed.clients, pairs(fed), strict=True):
        wanted = stacked([(1.0, *pooled(fed)), (3.0, *own)], 0.0)
        assert relative(result.models[name].arrays["weight"], wanted) < 1e-9


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
def test_leave_one_out_of_alpha_against_leaving_one_out(
    counted: bool, intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores that alpha=auto looks at, against refits without each sample, in the sum and in the client's part."""
    fed = federation(sizes=(25, 12, 40))
    me, rest = pairs(fed)[1], [pairs(fed)[0], pairs(fed)[2]]
    seen: list[np.ndarray] = []

    def first(candidates: Any, predictions: Any, labels: Any) -> Any:
        seen.extend(predictions)
        return candidates[0]

    monkeypatch.setattr(choice, "best", first)
    monkeypatch.setattr(screening, "NEARLY_ALL", np.inf)  # so that all of them are looked at
    method = fs.FedHiP(beta=0.7, intercept=intercept)
    absent = [] if counted else ["c1"]
    state = fs.run(fs.FedHiP(alpha=0.0, beta=0.7, intercept=intercept), fed, absent=absent).state
    seen.clear()
    method.personalize(
        {}, method.message(state, "c1", "personalize"), site(fed.task, fed.clients["c1"].train, counted=counted)
    )
    assert len(seen) == len(personal.ALPHAS)
    for alpha, scores in list(zip(personal.ALPHAS, seen, strict=True))[::4]:
        for i in range(len(me[0])):
            keep = np.arange(len(me[0])) != i
            own = (me[0][keep], me[1][keep])
            weights = stacked([(1.0, *r) for r in rest] + [(counted + alpha, *own)], 0.7, intercept)
            row = np.append(me[0][i], 1.0) if intercept else me[0][i]
            np.testing.assert_allclose(scores[i], row @ weights, rtol=1e-6, atol=1e-7)


def test_auto_chooses_alpha_per_client_and_says_so() -> None:
    """A client whose labels are swapped against everybody's must lean to itself."""
    rng = np.random.default_rng(3)
    centres = np.array([[3.0, 0.0], [-3.0, 0.0]])

    def draw(size: int, swap: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        y = rng.integers(2, size=size)
        x = centres[1 - y if swap else y] + rng.normal(size=(size, 2))
        return {"train": (x, y)}

    clients = {f"plain-{i}": draw(150, False) for i in range(6)} | {"odd": draw(150, True)}
    result = fs.run(fs.FedHiP(beta=1.0, intercept=False), fs.Federation.from_arrays(clients, classes=2))
    assert result.clients["odd"].chosen["alpha"] > 5
    x, y = clients["odd"]["train"]
    assert (result.models["odd"].predict(x) == y).mean() > 0.95
    assert result.shared is not None
    assert (result.shared.predict(x) == y).mean() < 0.05


def test_one_sample_leans_to_the_global_model() -> None:
    result = fs.run(fs.FedHiP(beta=1.0, intercept=False), federation(sizes=(30, 1)))
    assert result.clients["c1"].chosen["alpha"] == 0.0


def test_a_client_that_did_not_take_part_still_gets_a_personal_model() -> None:
    fed = federation(sizes=(30, 20, 25, 40, 35))
    result = fs.run(fs.FedHiP(alpha=4.0, beta=1.0, intercept=False), fed, participation=0.6)
    missing = result.history[0].missing
    assert len(missing) == 2
    inside = [(1.0, *p) for n, p in zip(fed.clients, pairs(fed), strict=True) if n not in missing]
    for name, own in zip(fed.clients, pairs(fed), strict=True):
        assert relative(result.models[name].arrays["weight"], stacked([*inside, (4.0, *own)], 1.0)) < 1e-9


def test_whitened_rows_and_moments_agree_on_the_space() -> None:
    fed = federation()
    total = fs.Moments.from_arrays(fs.run(fs.FedHiP(beta=1.0, intercept=False), fed).state)
    rows = fed.clients["c0"].train.inputs
    q = whiten(total, 1.0, rows)
    np.testing.assert_allclose(q @ q.T, rows @ np.linalg.solve(total.gram + np.eye(15), rows.T), rtol=1e-9)


def test_auto_beta_is_the_servers_and_clients_use_it() -> None:
    fed = federation()
    auto = fs.run(fs.FedHiP(alpha=3.0, beta="auto", intercept=False), fed)
    beta = float(auto.state["beta"])
    assert auto.json()["server"]["beta"] == beta
    total = fs.Moments.of(np.vstack([x for x, _ in pairs(fed)]), np.vstack([y for _, y in pairs(fed)]).argmax(1))
    assert beta == pytest.approx(cross_validated_ridge(total, choice.SHARED_RIDGES), rel=1e-9)
    fixed = fs.run(fs.FedHiP(alpha=3.0, beta=beta, intercept=False), fed)
    for name in fed.clients:
        assert relative(auto.models[name].arrays["weight"], fixed.models[name].arrays["weight"]) < 1e-12


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("method", "name"), [(fs.FedHiP(beta=1.0, intercept=False), "alpha"), (fs.APFL(d_primary=9, d_refine=9), "lam")]
)
def test_a_client_with_too_few_samples_to_choose_keeps_the_global_model(
    method: fs.Method, name: str, size: int
) -> None:
    fed = federation(sizes=(40, size, 60))
    result = fs.run(method, fed)
    assert result.clients["c1"].chosen[name] == 0.0
    assert result.shared is not None
    x = pairs(fed)[0][0]
    np.testing.assert_allclose(result.models["c1"].scores(x), result.shared.scores(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [3.0, "auto"])
@pytest.mark.parametrize("samples", [4, 40])
def test_moments_are_computed_once(samples: int, alpha: float | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with many samples keep them; the others, and those who choose alpha, need them no more."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(samples, 12)), rng.integers(2, size=samples)
    clients = {name: {"train": (x + shift, y)} for shift, name in enumerate("abc")}
    plain, calls = linear.moments, []

    def spy(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return plain(*arguments, **options)

    monkeypatch.setattr(linear, "moments", spy)
    fs.run(fs.FedHiP(alpha=alpha, beta=1.0, intercept=False), fs.Federation.from_arrays(clients, classes=2))
    assert len(calls) == 3
