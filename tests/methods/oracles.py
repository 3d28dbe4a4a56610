"""The papers' own recursions, corrected (see docs/architecture.md): slow, and derived differently from what ships."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]  # features, one-hot targets


def afl_pairwise(clients: Sequence[Pair], gamma: float) -> np.ndarray:
    """AFL (9), (10) with the sign of the third term put right, then (16) to take the ridge out again."""
    identity = np.eye(clients[0][0].shape[1])
    weights, total = None, None
    for f, y in clients:
        own = f.T @ f + gamma * identity  # (15)
        local = np.linalg.solve(own, f.T @ y)  # (13)
        if weights is None or total is None:
            weights, total = local, own
            continue
        both = np.linalg.inv(total + own)
        keep = identity - np.linalg.inv(total) @ own @ (identity - both @ own)  # (10), corrected
        take = identity - np.linalg.inv(own) @ total @ (identity - both @ total)
        weights, total = keep @ weights + take @ local, total + own  # (9)
    assert weights is not None
    assert total is not None
    return np.linalg.solve(total - len(clients) * gamma * identity, total @ weights)  # (16)


def fedhip_recursion(clients: Sequence[Pair], beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """FedHiP (9) to (12): cumulative Gram, fusion matrix and global model."""
    width, classes = clients[0][0].shape[1], clients[0][1].shape[1]
    identity = np.eye(width)
    s: np.ndarray = np.zeros((width, width))
    m: np.ndarray = np.zeros((width, classes))
    for f, y in clients:
        own = f.T @ f + beta * identity  # (6)
        local = np.linalg.solve(own, f.T @ y)  # (7)
        after = s + own  # (9)
        m = np.linalg.solve(after, s @ m + own @ local)  # (10), (11)
        s = after
    return s, m, np.linalg.solve(s - (len(clients) - 1) * beta * identity, s @ m)  # (12)


def fedhip_personal(clients: Sequence[Pair], k: int, alpha: float, beta: float) -> np.ndarray:
    """FedHiP (13), (14)."""
    s, m, _ = fedhip_recursion(clients, beta)
    f, y = clients[k]
    identity = np.eye(f.shape[1])
    weighted = alpha * f.T @ f + beta * identity  # (13)
    return np.linalg.solve(s + weighted - len(clients) * beta * identity, s @ m + alpha * f.T @ y)  # (14)


def stacked(rows: Sequence[tuple[float, np.ndarray, np.ndarray]], ridge: float, intercept: bool = False) -> np.ndarray:
    """The minimiser of a weighted sum of squares and a ridge, by SVD on stacked rows; the last row is the intercept."""
    f = np.vstack([np.sqrt(w) * (np.column_stack([x, np.ones(len(x))]) if intercept else x) for w, x, _ in rows])
    y = np.vstack([np.sqrt(w) * t for w, _, t in rows])
    penalty = np.sqrt(ridge) * np.eye(f.shape[1])
    penalty = penalty[:-1] if intercept else penalty
    targets = np.vstack([y, np.zeros((len(penalty), y.shape[1]))])
    return np.asarray(np.linalg.lstsq(np.vstack([f, penalty]), targets, rcond=None)[0])
