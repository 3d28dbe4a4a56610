from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

import fedsolve as fs
from fedsolve.families.ridge import fits
from fedsolve.families.ridge.knowledge import Knowledge, class_shares
from fedsolve.methods import fedprior
from tests.conftest import relative
from tests.methods.oracles import stacked
from tests.methods.test_fedhip import federation, pairs


def scatter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sums of squares within classes."""
    centred = np.concatenate([x[y == c] - x[y == c].mean(0) for c in np.unique(y)])
    return np.asarray(centred.T @ centred)


def direct(x: np.ndarray, y: np.ndarray, classes: int, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights and offsets of the discriminant, and weights of centred least squares, from the data."""
    weight, offset = np.zeros((x.shape[1], classes)), np.zeros(classes)
    for c in np.unique(y):
        apart = x[y == c].mean(0) - x.mean(0)
        weight[:, c] = len(x) * np.linalg.solve(scatter(x, y) + ridge * np.eye(x.shape[1]), apart)
        offset[c] = -0.5 * apart @ weight[:, c] - x.mean(0) @ weight[:, c]
    return weight, offset, stacked([(1.0, x - x.mean(0), np.eye(classes)[y])], ridge)


def samples(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=count)
    y[y == 3] = 0  # a class that nobody has
    return rng.normal(size=(count, 5)) + rng.normal(size=(4, 5))[y] + 2.0, y


@given(st.integers(0, 2**32), st.sampled_from([0.01, 1.0]), st.sampled_from([0, 1, 3, 30, 60]))
def test_what_the_others_know_is_that_of_their_data(seed: int, shrink: float, own: int) -> None:
    """Few samples taken out, by Woodbury; many, on the features' side; one, and a class that only the client has."""
    x, y = samples(seed)
    y[:own][y[:own] == 2] = 0
    y[own:][y[own:] == 1] = 0
    known = Knowledge.of(fs.Moments.of(x, y, classes=4, intercept=True), shrink)
    others = known.whitened().without(x[:own], y[:own])
    if own == len(x):
        assert not any(part.any() for part in (*others.discriminant(), others.turn(known.sums)))
        return
    ridge = shrink * np.trace(scatter(x, y)) / 5
    weight, offset, straight = direct(x[own:], y[own:], 4, ridge)
    found, constant = others.discriminant()
    np.testing.assert_allclose(found, weight, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(constant, offset, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found @ others.turn(found), straight, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(others.centre, x[own:].mean(0), rtol=1e-12)


def test_without_scatter_or_samples_scores_are_still_finite() -> None:
    one = fs.Moments.of([[1.0, 2.0]], [0], classes=2, intercept=True)
    for moments in (one, fs.Moments.zero(3, 2), one - one):
        known = Knowledge.of(moments, 0.02)
        for others in (
            known.whitened().everybody(),
            known.whitened().without(np.array([[1.0, 2.0]])[: moments.count], np.zeros(moments.count, int)),
        ):
            assert all(np.isfinite(part).all() for part in (*others.discriminant(), others.turn(known.sums)))
        assert class_shares(known.counts).sum() == pytest.approx(1.0)


def weighed(losses: list[float]) -> np.ndarray:
    weights = [1.0] + [math.exp(max(losses[0] - loss, 0.0)) - 1.0 for loss in losses[1:]]
    return np.array(weights) / sum(weights)


def entropy(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(sum(np.log(np.exp(row).sum()) - row[label] for row, label in zip(scores, labels, strict=True)))


def fitted(
    labels: np.ndarray, known: np.ndarray, scales: tuple[float, ...], shares: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The two steps from a start, candidate by candidate, with a refit for each sample left out.

    Scores on the client's rows: left out, and with all samples.
    """
    count, keep = len(rows), [np.arange(len(rows)) != i for i in range(len(rows))]

    def own(among: np.ndarray, pseudocount: float) -> np.ndarray:
        return np.log((np.bincount(among, minlength=4) + pseudocount * shares) / (len(among) + pseudocount))

    out, full = [], []
    for p in fits.PSEUDOCOUNTS:
        for scale in scales:
            out.append(scale * known + np.stack([own(labels[k], p) for k in keep]))
            full.append(scale * known + own(labels, p))
    weights = weighed([entropy(scores, labels) for scores in out])
    before, after = np.tensordot(weights, out, 1), np.tensordot(weights, full, 1)
    unit = np.square(rows).sum(1).mean()
    design = np.column_stack([rows, np.full(count, np.sqrt(unit))])
    residuals = np.eye(4)[labels] - softmax(before, axis=1)
    out, full = [before], [after]
    for step in fits.STEPS:
        for strength in fits.STRENGTHS:
            without = [stacked([(1.0, design[k], residuals[k])], strength * unit) for k in keep]
            out.append(before + step * np.stack([design[i] @ without[i] for i in range(count)]))
            full.append(after + step * design @ stacked([(1.0, design, residuals)], strength * unit))
    weights = weighed([entropy(scores, labels) for scores in out])
    return np.tensordot(weights, out, 1), np.tensordot(weights, full, 1)


def test_a_personal_model_is_the_average_of_all_candidates() -> None:
    """Against loops over candidates and samples, from the data."""
    fed = federation(sizes=(40, 25, 18, 8))
    result = fs.run(fs.FedPrior(), fed)
    everything = np.vstack([a for a, _ in pairs(fed)])
    shares = np.vstack([b for _, b in pairs(fed)]).sum(0) + 1.0
    ridge = 0.02 * np.trace(scatter(everything, np.vstack([b for _, b in pairs(fed)]).argmax(1))) / everything.shape[1]
    shares /= shares.sum()
    for k in (1, 3):
        x, y = pairs(fed)[k]
        labels = y.argmax(1)
        rest = [pair for i, pair in enumerate(pairs(fed)) if i != k]
        labelled = np.vstack([a for a, _ in rest]), np.vstack([b for _, b in rest]).argmax(1)
        weight, offset, straight = direct(*labelled, 4, ridge)
        constant = -labelled[0].mean(0) @ straight
        starts = [
            (x @ weight + offset, fedprior.SCALES),
            (x @ straight + constant, fedprior.STEEPER),
            (np.zeros(y.shape), (1.0,)),
        ]
        three = [fitted(labels, known, scales, shares, x - everything.mean(0)) for known, scales in starts]
        mixtures = [(a / 8, b / 8, 1 - (a + b) / 8) for a in range(8, -1, -1) for b in range(8 - a, -1, -1)]
        scores = (sum(m * out for m, (out, _) in zip(mix, three, strict=True)) for mix in mixtures)
        losses = [entropy(np.asarray(each), labels) for each in scores]
        mixture = weighed(losses) @ np.array(mixtures)
        wanted = sum(m * full for m, (_, full) in zip(mixture, three, strict=True))
        model, chosen = result.models[f"c{k}"], result.clients[f"c{k}"].chosen
        assert relative(model.scores(x), wanted) < 1e-6
        assert [chosen[n] for n in ("discriminant", "least_squares", "own")] == pytest.approx(list(mixture), abs=1e-7)


@pytest.mark.parametrize("size", [1, 2])
def test_a_client_with_too_few_samples_keeps_the_federations_model(size: int) -> None:
    fed = federation(sizes=(40, size, 60))
    result = fs.run(fs.FedPrior(), fed)
    assert result.clients["c1"].chosen == {
        "discriminant": 1.0, "least_squares": 0.0, "own": 0.0, "pseudocount": 1000.0, "step": 0.0
    }  # fmt: skip
    assert result.shared is not None
    x = pairs(fed)[2][0]
    agree = (result.models["c1"].predict(x) == result.shared.predict(x)).mean()
    assert agree > 0.9


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=6))
def test_weights_sum_to_one_and_ties_stay_with_the_first(levels: list[float]) -> None:
    labels = np.zeros(5, dtype=int)
    scores = [np.column_stack([np.full(5, -level), np.zeros(5)]) for level in levels]
    weights = fits.weights_of(np.array([fits.entropy(each, labels) for each in scores]), 5)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()
    assert fits.weights_of(np.full(3, 0.7), 5).tolist() == [1.0, 0.0, 0.0]
    assert fits.weights_of(np.array([3.0, 0.0]), 2).tolist() == [1.0, 0.0]  # too few samples to weigh by


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
