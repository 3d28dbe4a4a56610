"""The server's work in the papers, pair by pair with inversions, against one sum and one solve."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.codec import encode
from fedsolve.method import Plan
from fedsolve.runtime.inbox import Replies

from .timing import seconds

CLIENTS, SAMPLES, FEATURES, CLASSES, RIDGE = 100, 300, 768, 10, 1.0


def measure() -> list[dict[str, Any]]:
    """Aggregation of 100 clients, m = 768: seconds on the server, and error against the pooled solution (by QR)."""
    rng = np.random.default_rng(0)
    spectrum = np.geomspace(1.0, 1e-2, FEATURES)  # features of a backbone are far from white
    mixing = np.linalg.qr(rng.standard_normal((FEATURES, FEATURES)))[0]
    x = rng.standard_normal((CLIENTS * SAMPLES, FEATURES)) * spectrum @ mixing
    y = rng.integers(CLASSES, size=len(x))
    targets = np.eye(CLASSES)[y]
    parts = list(zip(np.split(x, CLIENTS), np.split(targets, CLIENTS), strict=True))
    identity = np.eye(FEATURES)
    uploads = []
    for f, t in parts:
        own = f.T @ f + RIDGE * identity
        uploads.append((own, np.linalg.solve(own, f.T @ t)))
    ours = [encode(fs.Moments.of(f, t).arrays(), {"space": "0"}) for f, t in parts]

    def afl_pairwise() -> np.ndarray:
        total, weights = uploads[0]
        for own, local in uploads[1:]:
            both = np.linalg.inv(total + own)
            keep = identity - np.linalg.inv(total) @ own @ (identity - both @ own)  # AFL (10), sign corrected
            take = identity - np.linalg.inv(own) @ total @ (identity - both @ total)
            weights, total = keep @ weights + take @ local, total + own
        return np.asarray(np.linalg.inv(total - CLIENTS * RIDGE * identity) @ (total @ weights))  # (16)

    def fedhip_recursion() -> np.ndarray:
        s, m = np.zeros((FEATURES, FEATURES)), np.zeros((FEATURES, CLASSES))
        for own, local in uploads:
            after = np.linalg.inv(s + own)
            m = after @ s @ m + after @ own @ local  # FedHiP (10), (11)
            s = s + own
        return np.linalg.inv(s - (CLIENTS - 1) * RIDGE * identity) @ (s @ m)  # (12)

    def summed(ridge: float) -> np.ndarray:
        replies = Replies(Plan(()), 0, tolerate=True)
        for number, data in enumerate(ours):
            replies.put(str(number), data)
        return fs.solve(fs.Moments.from_arrays(replies.folded()), ridge).weights

    def pooled(ridge: float) -> np.ndarray:
        stacked = np.vstack([x, np.sqrt(ridge) * identity]) if ridge else x
        q, r = np.linalg.qr(stacked)
        return np.linalg.solve(r, q[: len(x)].T @ targets)

    rows = []
    for name, theirs, ridge, bar in (("afl", afl_pairwise, 0.0, 50.0), ("fedhip", fedhip_recursion, RIDGE, "")):
        wanted = pooled(ridge)
        mine = sorted(seconds(partial(summed, ridge)) for _ in range(7))[3]
        slow = sorted(seconds(theirs) for _ in range(3))[1]
        errors = [float(np.linalg.norm(w - wanted) / np.linalg.norm(wanted)) for w in (theirs(), summed(ridge))]
        rows.append(
            {
                "method": name,
                "recursion s": slow,
                "sum and solve s": mine,
                "times faster": slow / mine,
                "bar": bar,
                "recursion error": errors[0],
                "our error": errors[1],
                "digits gained": float(np.log10(errors[0] / errors[1])),
            }
        )
    return rows
