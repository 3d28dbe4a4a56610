from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsolve import blas
from fedsolve.errors import DataError, ParameterError, UnknownNameError
from fedsolve.features import maps
from fedsolve.features.lengths import Clip, unit_rows
from fedsolve.method import Rows
from fedsolve.moments import Moments
from fedsolve.privacy import noise
from fedsolve.privacy.account import membership_bound, mu_of
from fedsolve.privacy.gaussian import Source, discrete_gaussian, whole_deviation
from fedsolve.privacy.noise import Noise, Release, sensitivity

LEAST = 1e-5  # a p-value below it is no chance


def seeded(seed: int) -> Source:
    return np.random.default_rng(seed).bytes


def moments_of(rows: np.ndarray, targets: np.ndarray, ones: bool) -> Moments:
    numbers = targets.ndim == 2
    return Moments.of(rows, targets, classes=None if numbers else 3, intercept=ones, squares=numbers)


def whitened(release: Release, one: Moments, two: Moments) -> float:
    """How far two moments are apart, in deviations of the noise, each number by itself: mu by its definition.

    The square of the constant feature is told by the number of samples, so it is no number of its own.
    """
    each = release.deviations(one)
    apart = np.abs(two.triangle - one.triangle) / each.triangle
    if release.rows.ones:
        apart[blas.packed_diagonal(one.features)[-1]] = 0.0
    count = np.array([(two.count - one.count) / each.count])
    parts = [apart, ((two.cross - one.cross) / each.cross).ravel(), count]
    if one.squares is not None and two.squares is not None and each.squares is not None:
        parts.append((two.squares - one.squares) / each.squares)
    return float(np.linalg.norm(np.concatenate(parts)))


@settings(deadline=None)
@given(
    st.integers(0, 10**6), st.floats(0.01, 100.0), st.booleans(), st.booleans(), st.sampled_from([0.3, 1.0, 8.0]),
    st.sampled_from(["axis", "even", "random", "short"]),
)  # fmt: skip
def test_no_record_moves_the_release_further_than_is_promised(
    seed: int, longest: float, ones: bool, numbers: bool, epsilon: float, kind: str
) -> None:
    """Rows along an axis have all their length in one number of F'F, even ones in as many as there are."""
    rng, m = np.random.default_rng(seed), 6
    row = {"axis": np.eye(m)[0], "even": np.ones(m), "random": rng.normal(size=m), "short": np.zeros(m)}[kind]
    row = longest * unit_rows(row[None])
    target = 50.0 * unit_rows(rng.normal(size=(1, 2))) if numbers else np.array([1])
    release = Release(Noise(epsilon), Rows(longest, ones), 50.0 if numbers else 1.0)
    rows = longest * unit_rows(rng.normal(size=(4, m)))
    others = 50.0 * unit_rows(rng.normal(size=(4, 2))) if numbers else np.array([0, 1, 2, 2])
    without = moments_of(rows, others, ones)
    mu = whitened(release, without, without + moments_of(row, target, ones))
    assert mu <= mu_of(epsilon, 1e-5)
    if kind != "short":  # nor is there much more noise than it takes
        assert mu >= 0.98 * mu_of(epsilon, 1e-5)


def test_a_longer_row_would_break_the_promise() -> None:
    """The check above notices rows that are not what they are said to be."""
    release = Release(Noise(1.0), Rows(1.0))
    rows = unit_rows(np.ones((1, 6)))
    zero = Moments.zero(6, 3)
    assert whitened(release, zero, moments_of(1.1 * rows, np.array([1]), False)) > release.noise.mu


@pytest.mark.parametrize("ones", [False, True])
def test_noise_has_the_variance_that_is_said(ones: bool) -> None:
    """Chi-square: twice as much on the diagonal as beside it, and each share adds its part."""
    m, release = 60, Release(Noise(1.0), Rows(1.0, ones))
    zero = Moments.zero(m, 5)
    each = release.deviations(zero)
    gram = replace(zero, triangle=each.triangle).gram
    plain = slice(0, m - ones)
    assert gram[0, 0] ** 2 == pytest.approx(2 * gram[0, 1] ** 2)
    draws = [Moments.from_arrays(_signed(release.noisy(zero.arrays(), sites=4, source=seeded(k)))) for k in range(8)]
    both = [one + two + three + four for one, two, three, four in (draws[:4], draws[4:])]
    for total in both:
        found = total.gram[plain, plain] / gram[plain, plain]
        for values in (np.diag(found), found[np.tril_indices(len(found), -1)], (total.cross / each.cross).ravel()):
            share = stats.chi2.cdf(np.square(values).sum(), len(values))
            assert LEAST < share < 1 - LEAST
            assert stats.kstest(values, "norm").pvalue > LEAST


def _signed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**arrays, "count": np.abs(arrays["count"])}


def test_noise_is_the_same_in_every_direction() -> None:
    """Rotated noise has the same variances, which it has not where those beside the diagonal are as large."""
    release, m = Release(Noise(1.0), Rows(1.0)), 3
    direction = unit_rows(np.array([[1.0, 2.0, -2.0]]))[0]
    zero = Moments.zero(m, 1)
    sigma = release.sigma(zero)
    draws = [Moments.from_arrays(_signed(release.noisy(zero.arrays(), source=seeded(k)))).gram for k in range(600)]
    along = np.array([direction @ gram @ direction for gram in draws]) / sigma
    assert LEAST < stats.chi2.cdf(np.square(along).sum(), len(along)) < 1 - LEAST


def test_values_are_on_the_lattice_of_the_noise() -> None:
    """Digits below it would be the data's own."""
    rng = np.random.default_rng(0)
    rows = unit_rows(rng.normal(size=(50, 8)))
    release = Release(Noise(1.0), Rows(1.0))
    moments = moments_of(rows, rng.integers(3, size=50), False)
    each, noisy = release.deviations(moments), release.noisy(moments.arrays())
    for values, sigmas in ((noisy["triangle"], each.triangle), (noisy["cross"], each.cross)):
        for sigma in np.unique(sigmas):
            steps = values[sigmas == sigma] / whole_deviation(float(sigma))[1]
            assert np.array_equal(steps, np.rint(steps))
    assert not np.array_equal(moments.triangle * 2**20, np.rint(moments.triangle * 2**20))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([0.5, 4.0]))
def test_repaired_sums_are_sums_of_samples(seed: int, ones: bool, numbers: bool, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    rows = unit_rows(rng.normal(size=(3000, 12)))
    targets = np.clip(rng.normal(size=(3000, 2)), -0.7, 0.7) if numbers else rng.integers(3, size=3000)
    release = Release(Noise(epsilon), Rows(1.0, ones))
    noisy = release.noisy(moments_of(rows, targets, ones).arrays(), source=seeded(seed))
    total = Moments.from_arrays(release.repaired(noisy))
    assert np.linalg.eigvalsh(total.gram).min() > 0
    if ones:
        assert total.gram[-1, -1] == total.count
    if numbers:  # the whole of (F, Y) is positive, too
        assert total.squares is not None
        explained = np.einsum("ij,ij->j", total.cross, np.linalg.solve(total.gram, total.cross))
        assert (total.squares >= explained * (1 - 1e-9)).all()
    assert np.array_equal(release.repaired(noisy)["triangle"], total.triangle)  # no data, no draws


def test_repair_by_its_definition() -> None:
    rng = np.random.default_rng(5)
    rows, labels = unit_rows(rng.normal(size=(400, 7)) * (np.arange(7) < 3)), rng.integers(3, size=400)
    release = Release(Noise(2.0), Rows(1.0))
    moments = moments_of(rows, labels, False)
    noisy = Moments.from_arrays(release.noisy(moments.arrays(), source=seeded(1)))
    values, vectors = np.linalg.eigh(noisy.gram)
    assert values.min() < 0  # there is something to repair
    wanted = (vectors * np.maximum(values, 0)) @ vectors.T
    wanted += 0.5 * release.sigma(moments) * math.sqrt(2 * 7) * np.eye(7)
    found = Moments.from_arrays(release.repaired(noisy.arrays()))
    np.testing.assert_allclose(found.gram, wanted, atol=1e-9)
    np.testing.assert_array_equal(found.cross, noisy.cross)
    more = Moments.from_arrays(release.repaired(noisy.arrays(), times=9.0))
    apart = 0.5 * release.sigma(moments) * math.sqrt(2 * 7) * 2
    np.testing.assert_allclose(more.gram - found.gram, apart * np.eye(7), atol=1e-9)


def test_noise_that_drowns_the_sums_is_said() -> None:
    release = Release(Noise(1.0), Rows(1.0))
    arrays = {**Moments.zero(2, 3).arrays(), "count": np.array(-4)}
    with pytest.raises(DataError, match="drowns the sums"):
        release.repaired(arrays)


def test_the_sensitivity_is_that_of_the_sums() -> None:
    rng = np.random.default_rng(0)
    for longest, target in ((1.0, 1.0), (3.0, 0.5)):
        row, goal = longest * unit_rows(rng.normal(size=(1, 5)))[0], target * unit_rows(rng.normal(size=(1, 2)))[0]
        moved = np.concatenate([np.outer(row, row).ravel(), np.outer(row, goal).ravel()])
        assert sensitivity(longest, target) == pytest.approx(np.linalg.norm(moved))
        assert sensitivity(longest, target) == pytest.approx(math.sqrt(longest**4 + target**2 * longest**2))


@given(st.integers(0, 1000), st.floats(0.1, 10.0))
def test_clipped_targets_are_no_longer_than_promised(seed: int, bound: float) -> None:
    targets = 5 * np.random.default_rng(seed).normal(size=(20, 3))
    clipped = Release(Noise(1.0), Rows(1.0), bound).clipped(targets)
    lengths = np.linalg.norm(targets, axis=1)
    assert (np.linalg.norm(clipped, axis=1) <= bound * (1 + 1e-12)).all()
    np.testing.assert_array_equal(clipped[lengths <= bound], targets[lengths <= bound])
    np.testing.assert_allclose(unit_rows(clipped), unit_rows(targets))


@given(st.integers(0, 1000), st.floats(0.1, 10.0))
def test_clipped_rows_are_no_longer_than_promised(seed: int, bound: float) -> None:
    rows = 3 * np.random.default_rng(seed).normal(size=(20, 3))
    clipped = Clip(bound)(rows)
    lengths = np.linalg.norm(rows, axis=1)
    assert (np.linalg.norm(clipped, axis=1) <= bound * (1 + 1e-12)).all()
    np.testing.assert_array_equal(clipped[lengths < bound * (1 - 1e-12)], rows[lengths < bound * (1 - 1e-12)])
    np.testing.assert_allclose(unit_rows(clipped), unit_rows(rows))
    assert not Clip(bound)(np.zeros((2, 3))).any()


@pytest.mark.parametrize("text", ["clip", "clip:", "clip:0", "clip:-1", "clip:nan", "clip:inf", "clip:a", "clip:1,2"])
def test_no_clip(text: str) -> None:
    with pytest.raises(ParameterError, match="clip:R"):
        maps.parse(text)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must be"),
        ({"epsilon": 1.0, "honest": 0}, "honest"),
        ({"epsilon": 1.0, "by": "server", "honest": 2}, "the server adds it"),
        ({"epsilon": 1.0, "target_bound": -1.0}, "target_bound"),
        ({"epsilon": 1.0, "target_bound": math.nan}, "target_bound"),
    ],
)
def test_no_noise(values: dict[str, float], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Noise(**values)  # type: ignore[arg-type]


def test_no_place_for_noise() -> None:
    with pytest.raises(UnknownNameError, match="place for noise"):
        Noise(1.0, by="nobody")


def attacked(release: Release, believed: Release, trials: int = 20_000) -> float:
    """The area under the curve of the best test for a record, by somebody who knows all others and the noise.

    The likelihood ratio of two Gaussians is linear in what is seen; the record is the worst one, as long as is allowed.
    Trials are drawn side by side, by the function that draws the noise of one release.
    """
    record, zero = moments_of(np.array([[0.6, 0.8, 0.0]]), np.array([1]), False), Moments.zero(3, 3)
    each, thought = release.deviations(zero), believed.deviations(zero)
    scores = []
    for moments in (record, zero):
        score = np.zeros(trials)
        for part in ("triangle", "cross"):
            values, sigmas, weights = (np.ravel(getattr(one, part)) for one in (moments, each, thought))
            seen = noise._blurred(np.tile(values, (trials, 1)), np.tile(sigmas, (trials, 1)), seeded(moments.count))
            score += seen @ (np.ravel(getattr(record, part)) / weights**2)
        counts = moments.count + discrete_gaussian(each.count, trials, seeded(7 + moments.count))
        scores.append(score + counts / thought.count**2)
    return float(stats.mannwhitneyu(scores[0], scores[1]).statistic) / trials**2


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_best_attack_reaches_the_stated_bound_and_no_more(epsilon: float) -> None:
    release = Release(Noise(epsilon), Rows(1.0))
    assert attacked(release, release) == pytest.approx(membership_bound(release.noise.mu), abs=0.012)


def test_the_attack_notices_too_little_noise() -> None:
    """A defect that is planted: rows longer than was said, for which there would have to be three times the noise."""
    stated = Release(Noise(1.0), Rows(1.0))
    assert attacked(Release(Noise(1.0), Rows(0.6)), stated) > membership_bound(stated.noise.mu) + 0.06
