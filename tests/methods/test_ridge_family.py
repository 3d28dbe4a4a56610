"""Laws of what the closed-form methods share: sharpness, choices by leave-one-out, the linear model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

import fedsolve as fs
from fedsolve.families.ridge import alone, calibration, choice, fits, knowledge, linear
from fedsolve.features.maps import RandomProjection
from tests.contexts import site
from tests.methods.oracles import stacked

SEEDS = st.integers(0, 2**32)


def overlapping(seed: int, count: int = 60, classes: int = 3, width: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=count)
    return rng.normal(size=(count, width)) + rng.normal(size=(classes, width))[y] + 0.5, y


def make_site(x: np.ndarray, y: np.ndarray, classes: int = 3) -> fs.Site:
    federation = fs.Federation.from_arrays({"a": {"train": (x, y)}}, classes=classes)
    return site(federation.task, federation.clients["a"].train)


# --- sharpness of left-out predictions


def penalised_loss(scores: np.ndarray, labels: np.ndarray, prior: float) -> tuple[float, float]:
    """The stated minimum, found by a bracketing search on the logarithm: a second derivation, and the loss there."""
    rows = np.arange(len(labels))

    def loss(log: float) -> float:
        entropy = -log_softmax(np.exp(log) * scores, axis=1)[rows, labels].sum()
        return float(entropy + 0.5 * (log - np.log(prior)) ** 2)

    best = minimize_scalar(loss, bounds=(-20.0, 20.0), method="bounded", options={"xatol": 1e-10})
    return float(np.exp(best.x)), float(best.fun)


@given(SEEDS, st.sampled_from([2, 3, 10]), st.sampled_from([2, 10, 300]), st.sampled_from([-0.3, 0.0, 0.5, 2.0]))
def test_the_sharpness_is_the_minimiser_of_the_penalised_log_loss(
    seed: int, classes: int, count: int, signal: float
) -> None:
    """Also of scores that tell nothing, or point the wrong way, where the best sharpness is small."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    scores = signal * np.eye(classes)[labels] + rng.normal(scale=0.3, size=(count, classes))
    found = calibration.sharpness(scores, labels, float(classes))
    assert found == pytest.approx(penalised_loss(scores, labels, float(classes))[0], rel=0.02)


@pytest.mark.parametrize(("prior", "best"), [(1.0, 90.0), (10.0, 90.0), (3000.0, 90.0), (2.0, 3000.0)])
def test_a_sharpness_far_from_its_prior_is_reached_in_the_steps_there_are(prior: float, best: float) -> None:
    """Labels are right as often as softmax with a sharpness of `best` says."""
    rng = np.random.default_rng(0)
    margin = rng.uniform(0, 9.0 / best, size=4000)
    labels = (rng.uniform(size=4000) < expit(best * margin)).astype(int)
    scores = np.column_stack([np.zeros(4000), margin])
    found = calibration.sharpness(scores, labels, prior)
    assert found == pytest.approx(penalised_loss(scores, labels, prior)[0], rel=1e-3)
    assert found == pytest.approx(best, rel=0.1)


def test_no_samples_and_no_margin_leave_the_prior() -> None:
    assert calibration.sharpness(np.empty((0, 3)), np.empty(0, int), 3.0) == pytest.approx(3.0)
    assert calibration.sharpness(np.zeros((9, 3)), np.zeros(9, int), 3.0) == pytest.approx(3.0)


def test_few_samples_stay_near_the_prior_and_many_leave_it() -> None:
    """One sample moves the logarithm by one at most; samples all told apart do not let it grow without end."""
    apart = np.eye(2)
    moved = [calibration.sharpness(np.tile(apart, (n, 1)), np.tile([0, 1], n), 2.0) for n in (1, 10, 1000)]
    assert 2.0 < moved[0] < 2.0 * np.exp(1.0)
    assert moved == sorted(moved)
    assert np.isfinite(moved[2])
    wrong = [calibration.sharpness(np.tile(apart, (n, 1)), np.tile([1, 0], n), 2.0) for n in (1, 10, 1000)]
    assert wrong[0] < 2.0
    assert wrong == sorted(wrong, reverse=True)
    assert wrong[2] > 0


# --- sharpness of sums


@given(SEEDS, st.booleans(), st.sampled_from([1e-6, 0.1, 5.0, 200.0]), st.sampled_from([6, 60]))
def test_the_sharpness_of_sums_is_that_of_the_rows(seed: int, intercept: bool, ridge: float, count: int) -> None:
    """The sum of (s_y - mean s) over the sum of var s, from the scores of every training sample."""
    x, y = overlapping(seed, count)
    y[:2] = 0, 1  # two classes at least, so that scores differ
    total = fs.Moments.of(x, y, classes=3, intercept=intercept)
    solution = fs.solve(total, ridge, intercept=intercept)
    scores = x @ solution.weights + (0.0 if solution.intercept is None else solution.intercept)
    rise = (scores[np.arange(len(y)), y] - scores.mean(1)).sum()
    spread = scores.var(axis=1).sum()
    assert calibration.sharpness_of_sums(total, solution) == pytest.approx(rise / spread, rel=1e-6)
    assert rise > 0


def test_the_sharpness_of_sums_is_a_newton_step_from_zero() -> None:
    """Slope and curvature of the training log-loss at t = 0, by finite differences."""
    x, y = overlapping(1, count=200)
    total = fs.Moments.of(x, y, classes=3)
    solution = fs.solve(total, 1.0)
    scores = x @ solution.weights

    def loss(t: float) -> float:
        return float(-log_softmax(t * scores, axis=1)[np.arange(len(y)), y].sum())

    h = 1e-3
    slope, curvature = (loss(h) - loss(-h)) / (2 * h), (loss(h) - 2 * loss(0.0) + loss(-h)) / h**2
    assert calibration.sharpness_of_sums(total, solution) == pytest.approx(-slope / curvature, rel=1e-4)


def test_scores_that_tell_nothing_have_the_sharpness_of_plain_least_squares() -> None:
    """All features zero, or classes whose means are alike: there is no rise, or no spread."""
    nothing = fs.Moments.of(np.zeros((6, 2)), np.arange(6) % 3, classes=3)
    assert calibration.sharpness_of_sums(nothing, fs.solve(nothing, 1.0)) == 3.0
    even = fs.Moments.of(np.ones((6, 1)), np.arange(6) % 3, classes=3)
    assert calibration.sharpness_of_sums(even, fs.solve(even, 1.0)) == 3.0


@given(SEEDS, st.floats(0.01, 100))
def test_probabilities_sum_to_one_and_sharpness_sharpens(seed: int, t: float) -> None:
    scores = np.random.default_rng(seed).normal(size=(7, 4))
    found = calibration.probabilities({"sharpness": np.array(t)}, scores)
    np.testing.assert_allclose(found.sum(1), 1.0)
    np.testing.assert_allclose(found, softmax(t * scores, axis=1), rtol=1e-9)
    sharper = calibration.probabilities({"sharpness": np.array(1.5 * t)}, scores)
    assert (sharper.max(1) >= found.max(1)).all()
    assert (sharper.argmax(1) == scores.argmax(1)).all()


def test_a_model_without_a_sharpness_has_that_of_plain_least_squares() -> None:
    scores = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    plain = calibration.probabilities({}, scores)
    assert plain.dtype == np.float64
    np.testing.assert_array_equal(plain, calibration.probabilities({"sharpness": np.array(4.0)}, scores))
    np.testing.assert_array_equal(plain, calibration.probabilities({}, scores.astype(np.float64)))


# --- choices


def squares(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.square(scores - np.eye(scores.shape[1])[labels]).sum())


def smooth_errors(scores: np.ndarray, labels: np.ndarray) -> float:
    """The sum of 1 / (1 + exp(20 margin)), the margin being the true class over the best other one."""
    total = 0.0
    for row, label in zip(scores, labels, strict=True):
        margin = row[label] - max(score for other, score in enumerate(row) if other != label)
        total += float(expit(-20.0 * margin))
    return total


@given(SEEDS, st.sampled_from([3, 50, 99]))
def test_few_samples_choose_by_squared_error(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    candidates = [rng.normal(size=(count, 3)) for _ in range(5)]
    wanted = int(np.argmin([squares(scores, labels) for scores in candidates]))
    assert choice.best(range(5), candidates, labels) == wanted


@given(SEEDS, st.sampled_from([100, 150]))
def test_many_samples_choose_by_the_smoothed_count_of_errors(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    sizes = (0.01, 0.1, 1.0, 10.0, 0.03)  # of the same errors: the count itself would tie, the smoothed one does not
    noise = 0.5 * np.eye(3)[labels] + rng.normal(size=(count, 3))
    candidates = [size * noise for size in sizes]
    kept = [scores.copy() for scores in candidates]
    wanted = int(np.argmin([smooth_errors(scores, labels) for scores in candidates]))
    assert choice.best(range(5), candidates, labels) == wanted
    for before, after in zip(kept, candidates, strict=True):
        np.testing.assert_array_equal(before, after)


@given(SEEDS, st.sampled_from([20, 150]))
def test_samples_of_which_nothing_is_known_have_no_say(seed: int, count: int) -> None:
    """A left-out prediction that is unknown with one candidate is left out for all; the choice is that of the rest."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    candidates = [rng.normal(size=(count, 3)) for _ in range(5)]
    spoilt = [scores.copy() for scores in candidates]
    spoilt[1][4], spoilt[3][11] = np.nan, np.nan
    known = ~np.isin(np.arange(count), (4, 11))
    loss = squares if count < choice.FEW_SAMPLES else smooth_errors
    wanted = int(np.argmin([loss(scores[known], labels[known]) for scores in candidates]))
    assert choice.best(range(5), spoilt, labels) == wanted
    assert choice.best(range(5), [np.full_like(scores, np.nan) for scores in candidates], labels) == 0
    assert calibration.sharpness(spoilt[1], labels, 3.0) == calibration.sharpness(
        candidates[1][np.arange(count) != 4], np.delete(labels, 4), 3.0
    )


@pytest.mark.parametrize("count", [3, 99, 100, 400])
def test_of_equals_the_first_is_chosen(count: int) -> None:
    """Also where rounding makes a later one smaller, and where a worse one comes before them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=count)
    scores = np.eye(3)[labels] + 0.3 * rng.normal(size=(count, 3))
    worse, rounded = rng.normal(size=(count, 3)), scores + 1e-13 * (np.eye(3)[labels] - scores)
    assert choice.best("abcd", [worse, scores, rounded, scores], labels) == "b"
    better = scores + 1e-4 * (np.eye(3)[labels] - scores)
    assert choice.best("abc", [scores, better, scores], labels) == "b"


@pytest.mark.parametrize(("count", "wanted"), [(0, "a"), (1, "a"), (2, "a"), (3, "b")])
def test_below_three_samples_the_first_stands(count: int, wanted: str) -> None:
    labels = np.zeros(count, int)
    right, wrong = np.tile([1.0, 0.0], (count, 1)), np.tile([0.0, 1.0], (count, 1))
    assert choice.best("ab", [wrong, right], labels) == wanted


@given(SEEDS, st.booleans(), st.sampled_from([3, 30, 120]))
def test_the_ridge_of_a_client_is_the_best_by_leaving_one_out(seed: int, intercept: bool, count: int) -> None:
    """Against fits without each sample, and the grid of strengths in units of the mean diagonal of F'F."""
    x, y = overlapping(seed, count)
    targets = np.eye(3)[y]
    centred = x - x.mean(0) if intercept else x
    unit = np.square(centred).sum() / x.shape[1]
    losses, predictions = [], []
    for power in range(2, -6, -1):
        ridge = unit * 10.0**power
        predicted = np.empty((count, 3))
        for i in range(count):
            rest = np.arange(count) != i
            mean_x, mean_y = (x[rest].mean(0), targets[rest].mean(0)) if intercept else (np.zeros(4), np.zeros(3))
            f, t = x[rest] - mean_x, targets[rest] - mean_y
            weights = np.linalg.solve(f.T @ f + ridge * np.eye(4), f.T @ t)
            predicted[i] = (x[i] - mean_x) @ weights + mean_y
        losses.append(squares(predicted, y) if count < 100 else smooth_errors(predicted, y))
        predictions.append(predicted)
    best = int(np.argmin(losses))
    found, sharp = alone.choose_ridge(make_site(x, y), intercept=intercept)[:2]
    chosen = int(np.argmin([abs(np.log(found / (unit * 10.0**power))) for power in range(2, -6, -1)]))
    assert found == pytest.approx(unit * 10.0 ** (2 - chosen), rel=1e-9)
    assert losses[chosen] <= losses[best] + 2e-9 * count
    assert sharp == pytest.approx(calibration.sharpness(predictions[chosen], y, 3.0), rel=1e-5)


def test_features_that_are_all_zero_have_a_ridge_all_the_same() -> None:
    found, sharp = alone.choose_ridge(make_site(np.zeros((6, 2)), np.arange(6) % 3), intercept=False)[:2]
    assert found == 100.0  # the first of the grid, in units of one
    assert sharp == pytest.approx(3.0)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_ridge_of_the_server_is_the_best_of_its_grid_or_as_given(intercept: bool) -> None:
    """Generalised cross-validation from the rows, with the hat matrix in full."""
    for seed in range(6):
        x, y = overlapping(seed, count=25, width=8)
        total = fs.Moments.of(x, y, classes=3, intercept=intercept)
        t = np.eye(3)[y]
        f, t = (x - x.mean(0), t - t.mean(0)) if intercept else (x, t)
        grid = [10.0 ** (-power / 2) * np.square(f).sum() / 8 for power in range(9)]
        errors = []
        for ridge in grid:
            hat = f @ np.linalg.solve(f.T @ f + ridge * np.eye(8), f.T)
            freedom = 25 - intercept - np.trace(hat)
            errors.append(np.square(t - hat @ t).sum() / freedom**2)
        found = choice.server_ridge("auto", total, intercept=intercept)
        assert found == pytest.approx(grid[int(np.argmin(errors))], rel=1e-9)
        assert choice.server_ridge(0.25, total, intercept=intercept) == 0.25


def test_the_grids_end_where_they_say() -> None:
    """Features that are the classes want the least ridge there is, features that are noise the most."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    clear, noise = np.eye(3)[y] + 1e-6 * rng.normal(size=(90, 3)), rng.normal(size=(90, 3))
    for x, shared, own in ((clear, 1e-4, 1e-5), (noise, 1.0, 100.0)):
        unit = np.square(x).sum() / 3
        assert choice.server_ridge("auto", fs.Moments.of(x, y)) == pytest.approx(shared * unit)
        assert alone.choose_ridge(make_site(x, y), intercept=False)[0] == pytest.approx(own * unit)


# --- the linear model


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("rows", [4, 7, 20, 100])
def test_statistics_through_a_feature_map_are_those_of_the_features(
    rows: int, intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks, whole or not, of which none is lost and none counted twice."""
    monkeypatch.setattr(linear, "PREDICT_ROWS", rows)
    x, y = overlapping(0, count=20)
    features = RandomProjection(6, "relu", 3)
    found = linear.moments(make_site(x, y), intercept=intercept, features=features)
    wanted = fs.Moments.of(features(x), y, classes=3, intercept=intercept)
    np.testing.assert_allclose(found.gram, wanted.gram, rtol=1e-12)
    np.testing.assert_allclose(found.cross, wanted.cross, rtol=1e-12)
    assert found.count == 20
    assert linear.moments(make_site(x, y)).space == make_site(x, y).task.space


@pytest.mark.parametrize("rows", [1, 7, 20, 100])
def test_scores_in_blocks_are_the_product(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "PREDICT_ROWS", rows)
    rng = np.random.default_rng(0)
    x, weight, constant = rng.normal(size=(20, 2, 3)).astype(np.float32), rng.normal(size=(6, 4)), rng.normal(size=4)
    product = x.reshape(20, 6).astype(np.float64) @ weight
    np.testing.assert_allclose(linear.scores({"weight": weight}, x), product, rtol=1e-12)
    np.testing.assert_allclose(
        linear.scores({"weight": weight, "intercept": constant}, x), product + constant, rtol=1e-12
    )


@pytest.mark.parametrize("intercept", [False, True])
def test_the_global_model_is_the_minimiser_with_all_that_is_known_of_it(intercept: bool) -> None:
    x, y = overlapping(2)
    total = fs.Moments.of(x, y, classes=3, intercept=intercept)
    found = linear.global_model(total, 0.5, intercept=intercept)
    wanted = stacked([(1.0, x, np.eye(3)[y])], 0.5, intercept)
    np.testing.assert_allclose(found["weight"], wanted[:4], rtol=1e-9)
    assert ("intercept" in found) == intercept
    if intercept:
        np.testing.assert_allclose(found["intercept"], wanted[4], rtol=1e-9)
    shown = linear.figures(found, "weight count", "ridge")
    assert set(shown) == {"count", "sharpness", "rcond", "rank", "minimum_norm"}
    assert (shown["count"], shown["rank"], shown["minimum_norm"]) == (60, 4, False)
    assert 0 < shown["rcond"] <= 1
    assert shown["sharpness"] == calibration.sharpness_of_sums(total, fs.solve(total, 0.5, intercept=intercept))
    singular = linear.global_model(fs.Moments.of(np.column_stack([x, x]), y, classes=3), 0.0)
    assert [singular[name].item() for name in ("rank", "minimum_norm", "rcond")] == [4, True, 0.0]


def test_a_design_has_one_row_per_sample_and_ones_where_asked() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    train = fs.Samples(x, np.array([2, 0]))
    plain, raised = linear.design(train, intercept=False), linear.design(train, intercept=True)
    assert plain.dtype == np.float64
    np.testing.assert_array_equal(plain, x.reshape(2, 6))
    np.testing.assert_array_equal(raised, [[0, 1, 2, 3, 4, 5, 1], [6, 7, 8, 9, 10, 11, 1]])
    np.testing.assert_array_equal(linear.one_hot(train.labels, 3), [[0, 0, 1], [1, 0, 0]])


# --- fedprior's class shares


@given(SEEDS, st.sampled_from([0.1, 5.0, 400.0]), st.sampled_from([3, 12]))
def test_a_client_weighs_class_shares_by_those_among_its_other_samples(seed: int, size: float, count: int) -> None:
    """For every pseudocount and scale; with the shares of all samples, whoever trusts them most would always win."""
    x, y = overlapping(seed, count=count)
    known = knowledge.Knowledge.of(fs.Moments.of(x, y, classes=3, intercept=True), 0.02)
    client = fits.Fitting.of(x, y, known)
    every, scores = knowledge.class_shares(known.counts), size * np.random.default_rng(seed).normal(size=(count, 3))
    wanted = []
    for pseudocount in fits.PSEUDOCOUNTS:
        counts = np.bincount(y, minlength=3) + pseudocount * every
        others = np.array([counts - np.eye(3)[label] for label in y])
        shares = np.log(others / others.sum(1, keepdims=True))
        for scale in (1.0, 0.5, 16.0):
            wanted.append(-log_softmax(scale * scores + shares, axis=1)[np.arange(count), y].sum())
    np.testing.assert_allclose(client._losses_of_pairs(scores, (1.0, 0.5, 16.0)), wanted, rtol=1e-10, atol=1e-10)


@given(SEEDS, st.sampled_from([0.01, 3.0, 1000.0]))
def test_losses_of_sums_of_parts_are_their_cross_entropy(seed: int, size: float) -> None:
    """Also of parts so far from each other that products of their exponentials are zero."""
    rng = np.random.default_rng(seed)
    labels, parts = rng.integers(4, size=9), [size * rng.normal(size=(9, 4)) for _ in range(3)]
    times = [(1, 0, 0), (0, 3, 0), (1, 10, 30), (2, 2, 2)]
    sums = [np.einsum("k,kij->ij", numbers, parts) for numbers in times]
    wanted = [-log_softmax(each, axis=1)[np.arange(9), labels].sum() for each in sums]
    np.testing.assert_allclose(fits.losses_of_powers(parts, times, labels), wanted, rtol=1e-10, atol=1e-10)
