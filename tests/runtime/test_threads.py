"""Clients side by side where that pays, and one after the other where they have little to do."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import threads
from fedsolve.runtime.inprocess import InProcess

SEVERAL, HERE = "several threads", "the calling thread"


@pytest.mark.parametrize(
    ("samples", "features", "method", "where"),
    [
        (20, 8, fs.FedHiP(), {HERE}),  # samples, F'F and the message are all small
        (20, 200, fs.FedHiP(), {HERE, SEVERAL}),  # F'F is not, which the first batch tells
        (100, 200, fs.FedHiP(), {SEVERAL}),  # samples are not, which is known before
        (20, 8, fs.APFL(d_primary=256, d_refine=16), {HERE, SEVERAL}),  # few numbers become many random features
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_threads_are_used_where_clients_have_much_to_do(
    samples: int, features: int, method: fs.Method, where: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever threads there are, the bits are the same."""
    rng, seen, handle = np.random.default_rng(0), set(), InProcess._handle
    parts = {f"c{i:02}": (rng.normal(size=(samples, features)), rng.integers(3, size=samples)) for i in range(40)}
    federation = fs.Federation.from_arrays({name: {"train": part} for name, part in parts.items()}, classes=3)
    caller = threading.get_ident()

    def watched(self: InProcess, *given: Any) -> Any:
        seen.add(HERE if threading.get_ident() == caller else SEVERAL)
        return handle(self, *given)

    monkeypatch.setattr(InProcess, "_handle", watched)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    first = fs.run(method, federation)
    assert seen == where
    for workers in (1, 3):
        again = fs.run(method, federation, workers=workers)
        for name, model in first.models.items():
            assert all(model.arrays[n].tobytes() == array.tobytes() for n, array in again.models[name].arrays.items())
