from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from fedsolve.errors import ParameterError
from fedsolve.privacy import account

MU = st.floats(0.01, 8.0)
DELTA = st.floats(-12.0, -1.0).map(lambda power: 10.0**power)
LEVELS = (1e-3, 1e-5, 1e-7)
TABLE = {
    0.1: (0.197534, 0.340669, 0.447078),
    0.2681: (0.643321, 1.0002, 1.273309),
    0.5: (1.352276, 1.993091, 2.490339),
    1.0: (3.138671, 4.377178, 5.349345),
    1.7: (6.133887, 8.197728, 9.827583),
    3.0: (13.088179, 16.675494, 19.51994),
}


@pytest.mark.parametrize("mu", TABLE)
def test_epsilon_is_that_of_dp_accounting(mu: float) -> None:
    """Made by dp-accounting 0.6.0 in an environment of its own, `pip install dp-accounting`:

    from dp_accounting.pld import privacy_loss_distribution as pld
    found = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
    [round(found.get_epsilon_for_delta(delta), 6) for delta in (1e-3, 1e-5, 1e-7)]
    """
    for delta, wanted in zip(LEVELS, TABLE[mu], strict=True):
        assert account.epsilon_of(mu, delta) == pytest.approx(wanted, rel=1e-4)


def test_composition_is_that_of_dp_accounting() -> None:
    """There, `from_gaussian_mechanism(1 / 0.3).compose(from_gaussian_mechanism(1 / 0.4))` at 1e-5."""
    assert account.epsilon_of(account.composed([0.3, 0.4]), 1e-5) == pytest.approx(1.993091415, rel=1e-4)


@given(MU, st.floats(0.0, 20.0))
def test_delta_is_the_integral_of_what_one_density_has_over_the_other(mu: float, epsilon: float) -> None:
    """A second derivation: sup over events P(E) - e^eps Q(E), for P = N(mu, 1) and Q = N(0, 1)."""
    start = epsilon / mu + mu / 2  # where the densities' ratio is e^epsilon

    def excess(x: float) -> float:
        return float(stats.norm.pdf(x - mu) - math.exp(epsilon + stats.norm.logpdf(x)))

    wanted, _ = integrate.quad(
        excess, start, start + 40.0, points=[mu] if start < mu else None, epsabs=1e-14, limit=200
    )
    assert account.delta_of(mu, epsilon) == pytest.approx(wanted, rel=1e-4, abs=1e-12)


@given(MU, DELTA)
def test_epsilon_and_mu_are_inverse(mu: float, delta: float) -> None:
    epsilon = account.epsilon_of(mu, delta)
    if 1e-6 < epsilon < account.LARGEST_EPSILON:
        assert account.mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        assert account.delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)


@given(MU, MU, DELTA)
def test_more_is_told_by_more_releases(one: float, two: float, delta: float) -> None:
    both = account.composed([one, two])
    assert account.epsilon_of(both, delta) >= account.epsilon_of(max(one, two), delta)
    assert both**2 == pytest.approx(one**2 + two**2)
    assert account.composed([both]) == both


def test_the_bound_on_membership_is_the_area_under_the_best_curve() -> None:
    for mu in (0.1, 0.5, 2.0):
        wanted = stats.norm(mu).expect(stats.norm.cdf)
        assert account.membership_bound(mu) == pytest.approx(wanted)
    told = [account.membership_bound(account.mu_of(epsilon, 1e-5)) for epsilon in (0.5, 1, 2, 4, 8)]
    assert told == pytest.approx([0.54, 0.575, 0.64, 0.74, 0.88], abs=0.01)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 101.0])
def test_no_epsilon(epsilon: float) -> None:
    with pytest.raises(ParameterError, match="epsilon must be a number above 0"):
        account.mu_of(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0.0, -1.0, math.nan, 1.0])
def test_no_delta(delta: float) -> None:
    with pytest.raises(ParameterError, match="delta must be a probability"):
        account.mu_of(1.0, delta)
    with pytest.raises(ParameterError, match="delta must be a probability"):
        account.epsilon_of(1.0, delta)
