"""Accuracy under noise of a stated epsilon, and a membership attack on noisy sums against the stated bound.

    FEDSOLVE_DATA=... python -m benchmarks noise

$FEDSOLVE_DATA holds cifar100-features.npz: 1280 features of a public network. Global: unit length, the official test
set, three draws of the noise. Personal: 100 clients, Dirichlet 0.1, a fifth of each client's own samples to test on;
with all features, and with 256 principal directions of the first 5000 training samples, which count as public and are
then left out.

The attack knows everything but one record: the noisy sums less all others are the record's or nobody's, in noise, and
the likelihood ratio of the two is the best test there is. Its area under the curve is what the account bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve import blas
from fedsolve.data.federation import Federation
from fedsolve.data.table import Table
from fedsolve.features import maps
from fedsolve.features.lengths import unit_rows
from fedsolve.method import Rows
from fedsolve.moments import Moments
from fedsolve.privacy.account import membership_bound
from fedsolve.privacy.noise import Noise, Release

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DRAWS = 3
PUBLIC = 5000  # samples that the public directions are of
DIRECTIONS = 256
TRIALS = 4000  # of the attack


def measure() -> list[dict[str, Any]]:
    """Accuracy under noise on CIFAR-100 features, global and personal, and a membership attack on noisy sums."""
    table = fs.load("cifar100-features")
    return [*overall(table), *personal(table), *attack(table)]


def overall(table: Table) -> Iterator[dict[str, Any]]:
    """One solve of the sums of all, by epsilon: mean and least of the draws, in per cent."""
    federation = table.with_features(maps.parse("unit")).split(fs.iid(), clients=10, test="global")
    method = fs.AFL(intercept=False)
    yield {"what": "global", "epsilon": "none", "mean": _accuracy(fs.run(method, federation))}
    for epsilon in EPSILONS:
        draws = [_accuracy(fs.run(method, federation, noise=Noise(epsilon, by="server"))) for _ in range(DRAWS)]
        yield _told({"what": "global", "epsilon": epsilon, "mean": float(np.mean(draws)), "least": min(draws)})


def personal(table: Table) -> Iterator[dict[str, Any]]:
    """Personal models from noisy sums and own exact rows, by method, features and epsilon: mean over clients."""
    for features, federation in ((1280, _split(table)), (DIRECTIONS, _split(_projected(table)))):
        alone = _accuracy(fs.run(fs.Local(), federation))
        for method, epsilon in product((fs.FedHiP(), fs.FedPrior()), (None, *EPSILONS[1::3])):
            result = fs.run(method, federation, noise=None if epsilon is None else Noise(epsilon, by="server"))
            shared = round(100 * (result.spread("shared").mean or 0.0), 2)
            figures = {"mean": _accuracy(result), "global": shared, "alone": alone}
            yield _told({"what": f"{method.name}, {features} features", "epsilon": epsilon or "none", **figures})


def _told(row: dict[str, Any]) -> dict[str, Any]:
    print(row, flush=True)
    return row


def _split(table: Table) -> Federation:
    return table.with_features(maps.parse("unit")).split(fs.dirichlet(0.1), clients=100)


def _projected(table: Table) -> Table:
    """The table without its first samples, in the principal directions of those."""
    inputs = np.asarray(table.inputs, dtype=np.float64)
    public, rows = inputs[:PUBLIC], inputs[PUBLIC:]
    directions = np.linalg.svd(public - public.mean(0), full_matrices=False)[2][:DIRECTIONS]
    return fs.Table("projected", (rows - public.mean(0)) @ directions.T, table.labels[PUBLIC:], table.target)


def _accuracy(result: fs.Result) -> float:
    return round(100 * (result.accuracy.mean or 0.0), 2)


def attack(table: Table, features: int = 64) -> Iterator[dict[str, Any]]:
    """The area under the curve of the likelihood ratio, by epsilon, and the bound that was stated."""
    rows = unit_rows(np.asarray(table.inputs, dtype=np.float64)[:1001, :features])
    labels = table.labels[:1001] % 10
    others = Moments.of(rows[:-1], labels[:-1], classes=10, intercept=True)
    record = Moments.of(rows[-1:], labels[-1:], classes=10, intercept=True)
    for epsilon in EPSILONS:
        release = Release(Noise(epsilon), Rows(1.0, ones=True))
        each, scores = release.deviations(others), []
        for trial in range(TRIALS):
            there = trial % 2 == 1
            noisy = release.noisy((others + record if there else others).arrays())
            scores.append((_ratio(noisy, others, record, each), there))
        ins, outs = ([score for score, there in scores if there == which] for which in (True, False))
        area = float((np.subtract.outer(ins, outs) > 0).mean())
        bound = membership_bound(release.noise.mu)
        figures = {"area": round(area, 4), "bound": round(bound, 4), "over": round(area - bound, 4)}
        yield _told({"what": "membership", "epsilon": epsilon, **figures})


def _ratio(noisy: Any, others: Moments, record: Moments, each: Moments) -> float:
    """The logarithm of the likelihood ratio, up to a constant: every number over the variance of its noise."""
    score = float(((noisy["cross"] - others.cross) * record.cross / each.cross**2).sum())
    apart = noisy["triangle"] - others.triangle
    diagonal = blas.packed_diagonal(others.features)[-1]
    apart[diagonal] = 0.0  # the number of samples once more
    score += float((apart * record.triangle / each.triangle**2).sum())
    return score + float((noisy["count"] - others.count) * record.count) / each.count**2
