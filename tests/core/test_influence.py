"""The influence report: against the slow way, and on poisoned federations."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import fedsolve as fs
from fedsolve.data.table import Table
from fedsolve.features.maps import parse
from fedsolve.ledger.influence import SUSPECT, Influence, influence

RIDGE = 0.5


def clients(number: int = 30, seed: int = 0) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(6, 3))
    made = []
    for _ in range(number):
        x = rng.normal(0.3 * rng.normal(size=6), 1.0, (int(rng.integers(20, 60)), 6))
        made.append((x, np.argmax(x @ weights + rng.normal(size=(len(x), 3)), axis=1)))
    return made


def report(pairs: list[tuple[Any, Any]], classes: int, ridge: float | None = None) -> list[Influence]:
    parts = [(f"c{i:03d}", fs.Moments.of(x, y, classes=classes)) for i, (x, y) in enumerate(pairs)]
    total = parts[0][1]
    for _, part in parts[1:]:
        total = total + part
    return influence(lambda: parts, total, ridge)


def test_it_is_what_leaving_clients_out_gives() -> None:
    pairs = clients()
    found = {each.client: each for each in report(pairs, 3, RIDGE)}

    def fit(*without: int) -> Any:
        kept = [pair for i, pair in enumerate(pairs) if i not in without]
        x, y = np.concatenate([x for x, _ in kept]), np.eye(3)[np.concatenate([y for _, y in kept])]
        return np.linalg.solve(x.T @ x + RIDGE * np.eye(6), x.T @ y)

    def error(number: int, weights: Any) -> float:
        x, y = pairs[number]
        return float(np.square(np.eye(3)[y] - x @ weights).sum())

    everything = np.concatenate([x for x, _ in pairs])
    harms = []
    for i, (x, _) in enumerate(pairs):
        mine, others = found[f"c{i:03d}"], [j for j in range(len(pairs)) if j != i]
        assert mine.misfit == pytest.approx(error(i, fit(i)) / len(x))
        moved = np.square(everything @ (fit() - fit(i))).sum() / len(everything)
        assert mine.moved == pytest.approx(np.sqrt(moved))
        gain = sum(error(j, fit(j)) - error(j, fit(i, j)) for j in others)
        harms.append((mine.harm, gain / sum(len(pairs[j][0]) for j in others)))
    estimated, true = np.array(harms).T
    # Right to first order in a client's share, which is a thirtieth here.
    assert np.corrcoef(estimated, true)[0, 1] > 0.98
    assert np.abs(estimated - true).max() < 0.25 * np.abs(true).max()


def test_three_clients_are_needed() -> None:
    with pytest.raises(fs.DataError, match="it takes three"):
        report(clients(2), 3)


def poisoned(x: Any, y: Any, number: int, alpha: float, attack: str, seed: int) -> tuple[list[tuple[Any, Any]], Any]:
    federation = Table.make("table", x, y).split(fs.dirichlet(alpha), clients=number, seed=seed, test=0.0)
    rng, top = np.random.default_rng(seed), int(y.max()) + 1
    bad = rng.choice(number, number // 10, replace=False)
    pairs = []
    for i, client in enumerate(federation.clients.values()):
        rows, labels = client.train.inputs, client.train.labels
        if i in bad and attack == "next":
            labels = (labels + 1) % top
        if i in bad and attack == "random":
            labels = rng.integers(top, size=len(labels))
        if i in bad and attack == "scaled":
            rows = rows * 3.0
        pairs.append((rows, labels))
    return pairs, np.isin(np.arange(number), bad)


def area(found: list[Influence], bad: Any) -> float:
    score = {each.client: each.suspicion for each in found}
    return float(roc_auc_score(bad, [score[name] for name in sorted(score)]))


@pytest.mark.parametrize("attack", ["next", "random", "scaled"])
def test_poisoners_of_digits_stand_first(attack: str) -> None:
    table = fs.load("digits")
    pairs, bad = poisoned(table.inputs, table.labels, 20, 1.0, attack, seed=1)
    found = report(pairs, 10)
    assert area(found, bad) >= 0.95
    assert found[0].suspicion > SUSPECT


@pytest.mark.long
@pytest.mark.parametrize("attack", ["next", "random", "scaled"])
@pytest.mark.parametrize(("number", "alpha", "seed"), [(50, 0.1, 11), (100, 0.1, 12), (100, 1.0, 13), (50, 1.0, 14)])
@pytest.mark.parametrize("kind", ["fashion-mnist", "cifar100"])
def test_poisoners_of_real_data_stand_first(
    real_data: ModuleType, kind: str, number: int, alpha: float, seed: int, attack: str
) -> None:
    if kind == "cifar100":
        x, y, _, _ = real_data.cifar_features("cifar100")
        x, y = real_data.project(x, 256), y.astype(np.int64)
    else:
        x, y, _, _ = real_data.mnist("fashion_mnist")
        x, y = parse("random:300,relu,0")(x[:30000]), y[:30000].astype(np.int64)
    pairs, bad = poisoned(x, y, number, alpha, attack, seed)
    found = area(report(pairs, int(y.max()) + 1), bad)
    print(kind, number, alpha, attack, found)
    assert found >= 0.95
