"""What a secure sum costs over a plain one, in CPU seconds of all sites and the server together."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.privacy import keys, packing, protocol

SITES, FEATURES, CLASSES = 10, 1280, 100
ROWS = tuple(int(rows) for rows in os.environ.get("SECURE_ROWS", "500,5000").split(","))
REPEATS = int(os.environ.get("SECURE_REPEATS", 3))


def measure() -> list[dict[str, Any]]:
    """Ten sites with 1280 features and 100 classes: CPU of the secure run over the plain one, and where it goes."""
    rows = []
    for count in ROWS:
        federation = _federation(count)
        method = fs.AFL(ridge=1.0)
        parts = _parts()
        plain, secure = [], []
        for _ in range(REPEATS):
            plain.append(_cpu(partial(fs.run, method, federation)))
            secure.append(_cpu(partial(fs.run, method, federation, secure=fs.Secure())))
        runs = fs.run(method, federation), fs.run(method, federation, secure=fs.Secure())
        weights = [run.state["weight"] for run in runs]
        rows.append(
            {
                "rows per site": count,
                "plain cpu s": statistics.median(plain),
                "secure cpu s": statistics.median(secure),
                "ratio": statistics.median(b / a for a, b in zip(plain, secure, strict=True)),
                "bytes": runs[1].bytes_up / runs[0].bytes_up,
                "difference": float(np.linalg.norm(weights[1] - weights[0]) / np.linalg.norm(weights[0])),
                **parts,
            }
        )
    return rows


def _federation(count: int) -> fs.Federation:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, FEATURES))
    parts = {}
    for site in range(SITES):
        y = rng.integers(CLASSES, size=count)
        x = np.maximum(centres[y] + 2 * rng.standard_normal((count, FEATURES)), 0)
        parts[f"site-{site}"] = {"train": (x, y), "test": (x[:50], y[:50])}
    return fs.Federation.from_arrays(parts, classes=CLASSES)


def _parts() -> dict[str, float]:
    """CPU milliseconds of one site: to encode its part, and for one mask; and of a site's keys and shares."""
    numbers = {"x": np.random.default_rng(0).standard_normal(FEATURES * (FEATURES + 1) // 2 + FEATURES * CLASSES)}
    words = packing.pack(numbers, 60, SITES)
    identities = {f"site-{number}": keys.Identity.make() for number in range(SITES)}
    peers = {name: identity.public for name, identity in identities.items()}
    session = protocol.Session.new("0" * 64, "0" * 64, "update", peers, 3, 60)
    member = protocol.Member("site-0", identities["site-0"], peers)
    return {
        "encode ms": 1e3 * _cpu(lambda: packing.pack(numbers, 60, SITES)),
        "mask ms": 1e3 * _cpu(lambda: keys.apply_masks(words, [bytes(32)])),
        "open ms": 1e3 * _cpu(lambda: protocol.open_session(session, member, ())),
    }


def _cpu(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started
