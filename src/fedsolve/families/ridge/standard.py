"""Features at mean 0 and deviation 1, known from their sums: nobody has to send anything more for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas, digits
from fedsolve.arrays import Float
from fedsolve.moments import Moments
from fedsolve.solver import solution_of


def origin_and_scale(total: Moments) -> tuple[Float, Float]:
    """The mean of each feature and one over its deviation, 0 where it is constant up to rounding.

    The last feature of `total` is the constant one, which is left out.

    >>> origin, scale = origin_and_scale(Moments.of([[1.0, 7.0], [5.0, 7.0]], [0, 1], intercept=True))
    >>> origin.tolist(), scale.tolist()
    ([3.0, 7.0], [0.5, 0.0])
    """
    gram = total.lower()
    origin, squares = gram[-1, :-1] / total.count, np.diagonal(gram)[:-1] / total.count
    spread = squares - np.square(origin)
    varies = spread > 16 * digits.EPS * max(total.features, np.sqrt(total.count)) * squares
    return origin, np.where(varies, 1.0 / np.sqrt(np.where(varies, spread, 1.0)), 0.0)


def standardised(total: Moments, origin: Float, scale: Float) -> Moments:
    """The moments of (features - origin) * scale, beside the constant one; `origin` are the means of these features."""
    lower, means = total.lower(), origin * scale
    # Scaled before anything is squared, so that sums near the end of numbers do not leave it.
    lower[:-1, :-1] = lower[:-1, :-1] * scale[:, None] * scale - total.count * np.multiply.outer(means, means)
    lower[-1, :-1] = 0.0
    cross = np.vstack([total.cross[:-1] * scale[:, None] - np.multiply.outer(means, total.cross[-1]), total.cross[-1]])
    return Moments(blas.pack(lower), cross, total.samples, squares=total.squares)


def hidden(total: Moments, scale: Float) -> NDArray[np.int64]:
    """The features that look constant, so that their scale is 0, and are not; `total` are sums that tell."""
    constant = np.flatnonzero(scale == 0)
    unsure = solution_of(total, intercept=True, solver="auto").unsure if len(constant) else ()
    return np.intersect1d(np.asarray(unsure, dtype=np.int64), constant)
