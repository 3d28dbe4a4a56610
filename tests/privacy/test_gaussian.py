from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsolve.errors import ParameterError
from fedsolve.privacy import gaussian
from fedsolve.privacy.gaussian import discrete_gaussian, whole_deviation

SAMPLES = 200_000
LEAST = 1e-5  # a p-value below it is no chance


def seeded(seed: int) -> gaussian.Source:
    return np.random.default_rng(seed).bytes


def shares(s: int) -> tuple[np.ndarray, np.ndarray]:
    """The values of a discrete Gaussian and their probabilities, by definition."""
    values = np.arange(-40 * s, 40 * s + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * s * s))
    return values, weights / weights.sum()


@pytest.mark.parametrize("s", [1, 2, 3, 7, 20])
def test_each_value_comes_as_often_as_it_should(s: int) -> None:
    draws = discrete_gaussian(s, SAMPLES, seeded(s))
    values, probabilities = shares(s)
    often = probabilities * SAMPLES > 10
    observed = np.array([(draws == value).sum() for value in values[often]])
    rest = SAMPLES - observed.sum()
    expected = np.append(probabilities[often], 1 - probabilities[often].sum()) * SAMPLES
    assert stats.chisquare(np.append(observed, rest), expected).pvalue > LEAST


@pytest.mark.parametrize("s", [1000, 2**16 + 1, 2**24])
def test_on_a_fine_lattice_it_is_the_gaussian(s: int) -> None:
    draws = discrete_gaussian(s, SAMPLES, seeded(s)) / s
    assert stats.kstest(draws, "norm").pvalue > LEAST
    assert draws.std() == pytest.approx(1.0, abs=0.01)
    assert abs(float(stats.kurtosis(draws))) < 0.05


def test_bits_of_a_draw_are_even() -> None:
    """Nothing coarser than the lattice is left in the last digits, as it is in a Gaussian that was rounded."""
    draws = discrete_gaussian(2**24, SAMPLES, seeded(1))
    for bit in range(16):
        ones = int((draws >> bit & 1).sum())
        assert stats.binomtest(ones, SAMPLES).pvalue > LEAST


@given(st.integers(1, 2**24), st.integers(0, 50))
def test_as_many_as_asked_for(s: int, count: int) -> None:
    draws = discrete_gaussian(s, count)
    assert draws.shape == (count,)
    assert draws.dtype == np.int64
    assert (np.abs(draws) < 64 * s).all()


def test_blocks_are_one_stream() -> None:
    draws = discrete_gaussian(5, gaussian.BLOCK + 1000, seeded(3))
    assert draws.std() == pytest.approx(5.0, rel=0.01)
    first, last = draws[:1000], draws[-1000:]
    assert abs(np.corrcoef(first, last)[0, 1]) < 0.15


def test_the_system_is_asked_unless_a_source_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed of NumPy decides the noise."""
    np.random.seed(0)  # noqa: NPY002
    one = discrete_gaussian(2**20, 8)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(one, discrete_gaussian(2**20, 8))
    assert np.array_equal(discrete_gaussian(9, 8, seeded(1)), discrete_gaussian(9, 8, seeded(1)))


@given(st.integers(1, 2**20), st.integers(0, 2**40))
def test_probabilities_are_exact(below: int, above: int) -> None:
    """exp(-above / below), found by whole numbers alone."""
    above %= 4 * below
    trials = 4000
    found = gaussian._exponential(np.full(trials, above), below, seeded(above)).mean()
    wanted = math.exp(-above / below)
    assert abs(found - wanted) < 6 * math.sqrt(wanted * (1 - wanted) / trials) + 1e-12


@pytest.mark.parametrize("bound", [1, 3, 5, 2**16, 2**16 + 1, 3 * 2**61])
def test_uniform_numbers(bound: int) -> None:
    draws = gaussian._below(bound, 60_000, seeded(bound % 1000))
    assert draws.min() >= 0
    assert draws.max() < bound
    few = min(bound, 4)
    parts = np.bincount((draws / bound * few).astype(int).clip(max=few - 1), minlength=few)
    expected = [math.ceil((k + 1) * bound / few) - math.ceil(k * bound / few) for k in range(few)]
    assert stats.chisquare(parts, np.array(expected) / bound * len(draws)).pvalue > LEAST if few > 1 else True


@given(st.floats(1e-300, 1e300))
def test_the_lattice_is_fine_and_no_deviation_is_less_than_asked_for(sigma: float) -> None:
    s, step = whole_deviation(sigma)
    assert gaussian.LARGEST / 2 <= s <= gaussian.LARGEST
    assert math.frexp(step)[0] == 0.5  # a power of two
    assert sigma <= s * step <= sigma * (1 + 4 / gaussian.LARGEST)


@pytest.mark.parametrize("s", [0, -1, 2**24 + 1])
def test_no_deviation(s: int) -> None:
    with pytest.raises(ParameterError, match="discrete Gaussian"):
        discrete_gaussian(s, 1)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_no_noise(sigma: float) -> None:
    with pytest.raises(ParameterError, match="must be a number above 0"):
        whole_deviation(sigma)
