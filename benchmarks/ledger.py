"""What a ledger costs over the bare insert of the same bytes, over one Cholesky solve, and over the packed data."""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial, reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

import fedsolve as fs
from fedsolve import codec
from fedsolve.ledger.contribution import Contribution, load_contribution
from fedsolve.ledger.database import PAGE
from fedsolve.ledger.influence import influence
from fedsolve.ledger.store import Ledger

from .timing import ratios, seconds

CLIENTS, FEATURES, CLASSES, SAMPLES = int(os.environ.get("LEDGER_CLIENTS", 1000)), 768, 100, 50
BATCH = 20  # contributions a turn: both sides take turns


def measure() -> list[dict[str, Any]]:
    """1000 contributions of 768 features and 100 classes: add, solve, size, verify and influence."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        return _measure(Path(folder))


def _measure(folder: Path) -> list[dict[str, Any]]:
    task = fs.Task(fs.Classes(CLASSES), (FEATURES,))
    ledger = Ledger.create(folder / "fed.db", fs.AFL(ridge=1.0, intercept=False), task)
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    bare.execute(f"PRAGMA page_size = {PAGE}")  # what is good for the ledger is good for the bare insert
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    bare.execute("CREATE TABLE contribution (number INTEGER PRIMARY KEY, data BLOB)")
    weights = np.random.default_rng(0).standard_normal((FEATURES, CLASSES))

    def batches() -> Iterator[list[Path]]:
        for start in range(0, CLIENTS, BATCH):
            paths = []
            for number in range(start, min(start + BATCH, CLIENTS)):
                rng = np.random.default_rng(number)
                x = rng.standard_normal((SAMPLES, FEATURES))
                moments = fs.Moments.of(x, np.argmax(x @ weights, axis=1), classes=CLASSES)
                paths.append(folder / f"{number}.st")
                Contribution.of(f"client-{number:04d}", moments.arrays()).save(paths[-1], ledger.terms)
            yield paths
            for path in paths:
                path.unlink()

    def insert(paths: list[Path]) -> None:
        for path in paths:
            bare.execute("INSERT INTO contribution (data) VALUES (?)", (path.read_bytes(),))

    def add_each(paths: list[Path]) -> None:
        for path in paths:
            ledger.add(load_contribution(path, ledger.terms))

    def add_all(paths: list[Path]) -> None:
        list(ledger.offer_files(paths))

    turns: dict[str, list[tuple[float, float]]] = {"one by one": [], "as files": []}
    for turn, paths in enumerate(batches()):
        way, call = (("one by one", add_each), ("as files", add_all))[turn % 2]
        base = seconds(partial(insert, paths))
        turns[way].append((base, seconds(partial(call, paths))))
    settle = seconds(ledger.settle)
    if len(ledger.members()) != CLIENTS:
        raise RuntimeError("not everybody is in")
    packed = CLIENTS * 8 * (FEATURES * (FEATURES + 1) // 2 + FEATURES * CLASSES + 1)
    rows = [
        {
            "what": f"add, {way}, over a bare insert",
            "seconds": statistics.median(taken for _, taken in pairs) / BATCH,
            "ratio": statistics.median(taken / base for base, taken in pairs),
            "bar": 3.0,
        }
        for way, pairs in turns.items()
    ]
    rows += _solves(ledger, settle)
    some = [(member.client, fs.Moments.from_arrays(part)) for member, part in islice(ledger.parts(), 100)]
    total = reduce(add, (part for _, part in some))
    taken = seconds(lambda: influence(lambda: some, total))
    rows.append({"what": f"influence of {len(some)} clients", "seconds": taken, "ratio": "", "bar": "60 s"})
    started = time.perf_counter()
    check = ledger.verify()
    rows.append(
        {"what": f"verify, drift {check.drift}", "seconds": time.perf_counter() - started, "ratio": "", "bar": ""}
    )
    if check.faults:
        raise RuntimeError(check.faults[0])
    ledger.close()
    bare.close()
    size = sum(path.stat().st_size for path in folder.glob("fed.db*"))
    rows.append({"what": "file over packed data", "seconds": "", "ratio": size / packed, "bar": 1.1})
    return rows


def _solves(ledger: Ledger, settle: float) -> list[dict[str, Any]]:
    total = fs.Moments.from_arrays(codec.decode(codec.encode(ledger.total())))
    gram = total.gram + np.eye(FEATURES)

    def floor() -> object:
        return cho_solve(cho_factor(gram, lower=True), total.cross)

    found = ratios(floor, {"library": lambda: fs.solve(total, 1.0), "ledger": ledger.solve}, repeats=15)
    own = ratios(lambda: fs.solve(total, 1.0, solver="auto"), {"ledger": ledger.solve}, repeats=15)
    return [
        {"what": "summing what waited", "seconds": settle, "ratio": "", "bar": ""},
        {"what": "one Cholesky solve: LAPACK alone", "seconds": found["base"]["seconds"], "ratio": 1.0, "bar": ""},
        {"what": "fs.solve over LAPACK alone", **found["library"], "bar": ""},
        {"what": "ledger solve over LAPACK alone", **found["ledger"], "bar": 1.3},
        {"what": "ledger solve over fs.solve", **own["ledger"], "bar": 1.3},
    ]
