"""FedPAC's weights: whose heads a client is given, and how much of each. Needs no torch.

Xu et al., ICLR 2023. A client tells two things of its n samples: h_c, the share of class c times the mean feature of
the class, and V = (E|z|^2 - sum_c |h_c|^2) / n, the variance of h where it is found from n samples. For client i the
heads of all are mixed by the weights a on the simplex that minimise

    a' (diag(V) + D_i) a,  D_i[j, l] = sum_c <h_ic - h_jc, h_ic - h_lc>,

the variance of the mixture plus the square of its bias.
"""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array, Float
from fedsolve.errors import DataError

LEAST = 1e-3  # of a weight that is kept, as in the authors' code
TIE = 1e-10  # added to eigenvalues, in units of the largest: of solutions that are as good, the evenest


def statistics(points: Array, means: Float, counts: Array) -> dict[str, Array]:
    """A client's V and h, of its features, their class means and the number of samples behind each."""
    count = len(points)
    shape = means * (counts / count)[:, None]
    length = float(np.square(points, dtype=np.float64).sum()) / count
    # Below zero by rounding alone: E|z|^2 is at least sum_c p_c |m_c|^2, and p_c at least its square.
    spread = max(0.0, length - float(np.square(shape).sum())) / count
    return {"spread": np.array(spread), "shape": shape.astype(np.float32)}


def weights(spread: Float, shapes: Float) -> Float:
    """A row of weights per client, of everybody's V, and h as rows. Weights below 0.001 are dropped.

    With P = R'R, the minimum over a >= 0 of a'Pa + (1 - sum a)^2 lies on the ray of the one that is wanted: along a ray
    its least value grows with a'Pa where a sums to one. That is least squares of [R; 1'] a = [0; 1], where all that is
    constrained are signs.
    """
    from scipy.optimize import nnls  # slow to load

    if not (np.isfinite(shapes).all() and (spread >= 0).all() and np.isfinite(spread).all()):
        raise DataError("what clients tell of their features must be finite, and no spread below zero")
    count = len(spread)
    rows = np.empty((count, count))
    aim = np.append(np.zeros(count), 1.0)
    for i in range(count):
        away = shapes - shapes[i]
        values, vectors = np.linalg.eigh(np.diag(spread) + away @ away.T)
        largest = float(values[-1])
        scaled = np.maximum(values, 0.0) / largest if largest > 0 else np.zeros(count)
        root = np.sqrt(scaled + TIE)[:, None] * vectors.T
        found = nnls(np.vstack([root, np.ones(count)]), aim, maxiter=30 * (count + 1))[0]
        found /= found.sum()
        kept = np.where(found < LEAST, 0.0, found)
        rows[i] = kept / kept.sum() if kept.any() else found  # of more than a thousand alike, all are small
    return rows
