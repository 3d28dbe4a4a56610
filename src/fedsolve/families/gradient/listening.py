"""FedAPA's weights: a row per client of how much it listens to each of the others, learnt by descent. Needs no torch.

With Theta the bodies of all clients as columns, m_i = Theta a_i what client i was sent and D_i = theta_i - m_i what it
made of it, the row a_i descends on |D_i|^2 / 2, and is then clipped, given its own weight and normalised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float


def first_weights(count: int, mu: float, *, even: bool) -> Float:
    """Rows that are mu on oneself and the rest on the others, evenly; where not `even`, all on oneself."""
    if not even or count == 1:
        return np.eye(count)
    return np.where(np.eye(count) > 0, mu, (1.0 - mu) / (count - 1))


def widened(weights: Float, earlier: Float, old: NDArray[Any], *, even: bool) -> Float:
    """First weights, with the rows of those that were there before; newcomers get the share they start with."""
    count, before = len(weights), len(earlier)
    if before == 1:
        return weights  # a client alone had nobody to weigh
    share = (before - 1) / (count - 1) if even else 1.0
    diagonal = np.diag(np.diag(earlier))
    others = (earlier - diagonal).sum(1)
    weights = weights.copy()
    weights[old] = (others * (1.0 - share) / max(1, count - before))[:, None]
    weights[np.ix_(old, old)] = diagonal + share * (earlier - diagonal)
    return weights


def gradient(
    weights: Float,
    places: NDArray[Any],
    bodies: Array,
    mixed: Array,
    trained: Array,
    *,
    centred: bool,
    fixed: bool,
    scaled: bool,
) -> NDArray[np.float64]:
    """Of |D_i|^2 / 2 with respect to the row of each client i that answered: -Theta' D_i.

    `places` are those of the clients' own weights, which are `fixed` or learnt like the others; `bodies`, `mixed` and
    `trained` have one row per client. `centred` descends through the normalisation, `scaled` divides by |D_i|^2.
    """
    change = trained - mixed
    inner = (change @ bodies.T).astype(np.float64)
    if centred:
        # d/da_j of sum_j a_j theta_j / sum_j a_j is theta_j minus that mean, which is over the others where the
        # client's own weight is fixed. For a client that listens to nobody the mean is its own body.
        listened = weights.copy()
        if fixed:
            listened[np.arange(len(places)), places] = 0.0
        total = listened.sum(1, keepdims=True)
        alone = ~(total > 0)
        mean = np.where(alone, inner[np.arange(len(places)), places][:, None], 0.0)
        inner -= np.where(alone, mean, (listened * inner).sum(1, keepdims=True) / np.where(alone, 1.0, total))
    if scaled:
        inner /= np.maximum(np.einsum("ij,ij->i", change, change, dtype=np.float64), 1e-30)[:, None]
    return -inner


def settled(rows: Float, places: NDArray[Any], mu: float | None, *, clip: bool, normalise: str) -> Float:
    """Clipping, own weight, normalisation, as in Algorithm 1 of the paper; without `mu` the own weight stays as it is.

    `exact` scales the others to 1 - mu, `paper` divides the row by its sum, `none` leaves it.
    """
    rows = np.clip(rows, 0.0, 1.0) if clip else rows.copy()
    itself = (np.arange(len(places)), places)
    if mu is not None:
        rows[itself] = mu
    if normalise == "none":
        return rows
    alone = np.zeros_like(rows)
    alone[itself] = 1.0
    if mu is not None and normalise == "exact":
        others = rows * (1.0 - alone)
        total = others.sum(1, keepdims=True)
        scaled = others * ((1.0 - mu) / np.where(total > 0, total, 1.0)) + mu * alone
        return np.where(total > 0, scaled, alone)
    total = rows.sum(1, keepdims=True)
    return np.where(total > 0, rows / np.where(total > 0, total, 1.0), alone)
