"""The account of Gaussian noise, exact: what (epsilon, delta) noise of a given size promises, and back.

A sum with Gaussian noise is told by one number, mu: how far one record can move the sum, over the deviation of the
noise. Deciding whether a record is in the sum is then as hard as telling N(0, 1) from N(mu, 1) by one draw. Releases
about the same records compose without loss: mu^2 adds (Dong, Roth and Su, Gaussian Differential Privacy, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

from fedsolve.errors import ParameterError

LARGEST_EPSILON = 100.0  # beyond, nothing is promised that anybody would notice
_SMALLEST, _LARGEST = 1e-12, 1e3  # of mu


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta such that releases of a total mu are (epsilon, delta)-private (Balle and Wang, 2018, (6)).

    >>> round(delta_of(1.0, 1.0), 4)
    0.1269
    """
    from scipy.special import log_ndtr  # slow to load, and most runs never need it

    if not mu > 0:
        return 0.0
    first, second = float(log_ndtr(mu / 2 - epsilon / mu)), epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # Phi(a) - e^epsilon Phi(b), whose logarithms are close where delta is small
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for this delta.

    >>> round(epsilon_of(mu_of(2.0, 1e-5), 1e-5), 9)
    2.0
    """
    _check_delta(delta)
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if not mu <= _LARGEST:
        return math.inf
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2.0
    return _root(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, high)


@lru_cache(maxsize=64)
def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that (epsilon, delta) allows: the noise has a deviation of the sensitivity over it.

    >>> round(mu_of(1.0, 1e-5), 4)
    0.2681
    """
    _check_delta(delta)
    if not 0 < epsilon <= LARGEST_EPSILON:
        raise ParameterError(f"epsilon must be a number above 0 and at most {LARGEST_EPSILON:g}; got {epsilon!r}")
    return _root(lambda mu: delta_of(mu, epsilon) - delta, _SMALLEST, _LARGEST)


def composed(releases: Iterable[float]) -> float:
    """The mu of several releases about the same records, from theirs.

    >>> composed([0.3, 0.4])
    0.5
    """
    return math.hypot(*releases)


def membership_bound(mu: float) -> float:
    """The largest area under the curve that any attack reaches that tells members of the sum from others.

    >>> [round(membership_bound(mu_of(epsilon, 1e-5)), 3) for epsilon in (0.5, 1.0, 8.0)]
    [0.54, 0.575, 0.881]
    """
    return 0.5 * math.erfc(-mu / 2.0)  # Phi(mu / sqrt 2)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a monotone function is zero."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-12))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ParameterError(f"delta must be a probability above 0 and below 1, as in 1e-5; got {delta!r}")
