from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

import fedsolve as fs
from fedsolve.methods import fedprior
from fedsolve.methods.fedprior import class_shares, discriminant
from tests.conftest import relative
from tests.methods.oracles import stacked
from tests.methods.test_fedhip import federation, pairs


@given(st.integers(0, 2**32), st.sampled_from([0.01, 1.0]))
def test_the_discriminant_of_sums_is_that_of_the_data(seed: int, shrink: float) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=60)
    y[y == 3] = 0  # a class that nobody has
    x = rng.normal(size=(60, 5)) + rng.normal(size=(4, 5))[y] + 2.0
    weight, offset = discriminant(fs.Moments.of(x, y, classes=4, intercept=True), shrink)
    within = sum((x[y == c] - x[y == c].mean(0)).T @ (x[y == c] - x[y == c].mean(0)) for c in range(3)) / 60
    within = within + shrink * np.trace(within) / 5 * np.eye(5)
    for c in range(3):
        apart = x[y == c].mean(0) - x.mean(0)
        along = np.linalg.solve(within, apart)
        np.testing.assert_allclose(weight[:, c], along, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(offset[c], -0.5 * apart @ along - x.mean(0) @ along, rtol=1e-8, atol=1e-10)
    assert not weight[:, 3].any()


def test_without_scatter_or_samples_scores_are_still_finite() -> None:
    one = fs.Moments.of([[1.0, 2.0]], [0], classes=2, intercept=True)
    for moments in (one, fs.Moments.zero(3, 2), one - one):
        weight, offset = discriminant(moments, 0.02)
        assert np.isfinite(weight).all()
        assert np.isfinite(offset).all()
        assert class_shares(moments).sum() == pytest.approx(1.0)


def personal(fed: fs.Federation, k: int, scale: float, pseudocount: float, strength: float, step: float) -> np.ndarray:
    """The three steps, from the data and by another road: scores on the client's own rows."""
    x, y = pairs(fed)[k]
    labels = y.argmax(1)
    rest = [pair for i, pair in enumerate(pairs(fed)) if i != k]
    others = fs.Moments.of(
        np.vstack([a for a, _ in rest]), np.vstack([b for _, b in rest]).argmax(1), classes=4, intercept=True
    )
    weight, offset = discriminant(others, 0.02)
    everything = np.vstack([a for a, _ in pairs(fed)])
    shares = np.vstack([b for _, b in pairs(fed)]).sum(0) + 1.0
    shares /= shares.sum()

    def own(among: np.ndarray) -> np.ndarray:
        return np.log((np.bincount(among, minlength=4) + pseudocount * shares) / (len(among) + pseudocount))

    known = scale * (x @ weight + offset)
    before = np.stack([known[i] + own(np.delete(labels, i)) for i in range(len(x))])
    rows = x - everything.mean(0)
    unit = np.square(rows).sum(1).mean()
    design = np.column_stack([rows, np.full(len(rows), np.sqrt(unit))])
    correction = stacked([(1.0, design, y - softmax(before, axis=1))], strength * unit)
    return known + own(labels) + step * design @ correction


def test_a_personal_model_is_the_three_steps() -> None:
    fed = federation(sizes=(40, 25, 60, 8))
    result = fs.run(fs.FedPrior(), fed)
    for k, name in enumerate(fed.clients):
        chosen = result.clients[name].chosen
        assert chosen.keys() == {"scale", "pseudocount", "strength", "step"}
        x = pairs(fed)[k][0]
        assert relative(result.models[name].scores(x), personal(fed, k, **chosen)) < 1e-8


def test_choices_are_those_of_least_left_out_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The correction's left-out scores, against refits without each sample."""
    rng = np.random.default_rng(0)
    rows, before, labels = rng.normal(size=(20, 4)), rng.normal(size=(20, 3)), rng.integers(3, size=20)
    seen: list[tuple[tuple[float, float], np.ndarray]] = []

    def choose(candidates, scores, labels):  # type: ignore[no-untyped-def]
        seen.extend((pair, scores(pair)) for pair in candidates)
        return candidates[-1]

    monkeypatch.setattr(fedprior, "_choose", choose)
    fedprior._correction(rows, before, labels)
    unit = np.square(rows).sum(1).mean()
    design = np.column_stack([rows, np.full(20, np.sqrt(unit))])
    residuals = np.eye(3)[labels] - softmax(before, axis=1)
    assert seen[0][0][1] == 0.0
    for (strength, step), scores in seen[::9]:
        for i in range(20):
            keep = np.arange(20) != i
            without = stacked([(1.0, design[keep], residuals[keep])], strength * unit)
            np.testing.assert_allclose(scores[i], before[i] + step * design[i] @ without, rtol=1e-6, atol=1e-7)


def test_a_client_with_its_own_class_shares_uses_them() -> None:
    """Two classes that look alike: whoever only ever sees one of them should say so."""
    rng = np.random.default_rng(1)
    clients = {}
    for number in range(6):
        y = np.full(120, number % 2)
        y[:6] = 1 - number % 2
        clients[f"c{number}"] = {"train": (rng.normal(size=(120, 3)) + 0.2 * y[:, None], y)}
    result = fs.run(fs.FedPrior(), fs.Federation.from_arrays(clients, classes=2))
    x = rng.normal(size=(200, 3)) + 0.1
    assert result.models["c0"].predict(x).mean() < 0.1
    assert result.models["c1"].predict(x).mean() > 0.9
