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
from fedsolve.solver import cross_validated_ridge

RIDGE = 0.5


def clients(number: int = 30, seed: int = 0) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(6, 3))
    made = []
    for _ in range(number):
        x = rng.normal(0.3 * rng.normal(size=6), 1.0, (int(rng.integers(20, 60)), 6))
        made.append((x, np.argmax(x @ weights + rng.normal(size=(len(x), 3)), axis=1)))
    return made


def moments(pairs: list[tuple[Any, Any]], classes: int) -> tuple[list[tuple[str, fs.Moments]], fs.Moments]:
    parts = [(f"c{i:03d}", fs.Moments.of(x, y, classes=classes)) for i, (x, y) in enumerate(pairs)]
    return parts, sum((part for _, part in parts[1:]), parts[0][1])


def report(pairs: list[tuple[Any, Any]], classes: int, ridge: float | None = None) -> list[Influence]:
    parts, total = moments(pairs, classes)
    return influence(lambda: parts, total, ridge)


@pytest.mark.parametrize("ridge", [RIDGE, 0.0])
def test_it_is_what_leaving_clients_out_gives(ridge: float) -> None:
    pairs = clients()
    found = {each.client: each for each in report(pairs, 3, ridge)}

    def fit(*without: int) -> Any:
        kept = [pair for i, pair in enumerate(pairs) if i not in without]
        x, y = np.concatenate([x for x, _ in kept]), np.eye(3)[np.concatenate([y for _, y in kept])]
        return np.linalg.solve(x.T @ x + ridge * np.eye(6), x.T @ y)

    def error(number: int, weights: Any) -> float:
        x, y = pairs[number]
        return float(np.square(np.eye(3)[y] - x @ weights).sum())

    everything = np.concatenate([x for x, _ in pairs])
    harms = []
    for i, (x, _) in enumerate(pairs):
        mine, others = found[f"c{i:03d}"], [j for j in range(len(pairs)) if j != i]
        assert mine.misfit == pytest.approx(error(i, fit(i)) / len(x), rel=1e-9)
        moved = np.square(everything @ (fit() - fit(i))).sum() / len(everything)
        assert mine.moved == pytest.approx(np.sqrt(moved), rel=1e-9)
        gain = sum(error(j, fit(j)) - error(j, fit(i, j)) for j in others)
        harms.append((mine.harm, gain / sum(len(pairs[j][0]) for j in others)))
    estimated, true = np.array(harms).T
    # Right to first order in a client's share, which is a thirtieth here.
    assert np.corrcoef(estimated, true)[0, 1] > 0.98
    assert np.abs(estimated - true).max() < 0.25 * np.abs(true).max()


def test_harm_is_the_sum_over_all_pairs_to_first_order() -> None:
    # The equations of the module, client by client and pair by pair.
    pairs = clients(7)
    found = {each.client: each.harm for each in report(pairs, 3, RIDGE)}
    grams = [x.T @ x for x, _ in pairs]
    crosses = [x.T @ np.eye(3)[y] for x, y in pairs]
    hessian = sum(grams) + RIDGE * np.eye(6)
    everybody = np.linalg.solve(hessian, sum(crosses))
    without = [np.linalg.solve(hessian - g, sum(crosses) - c) for g, c in zip(grams, crosses, strict=True)]
    for i, (x, _) in enumerate(pairs):
        harm = 0.0
        for j, (gram, cross) in enumerate(zip(grams, crosses, strict=True)):
            if j != i:
                gap = everybody - without[i]
                change = gap + np.linalg.solve(hessian, grams[i] @ (everybody - without[j]))
                harm -= 2.0 * np.sum(change * (cross - gram @ without[j])) + np.sum(gap * (gram @ gap))
        others = sum(len(rows) for rows, _ in pairs) - len(x)
        assert found[f"c{i:03d}"] == pytest.approx(harm / others, rel=1e-4, abs=1e-7)


def test_suspicion_counts_spreads_of_misfit_above_and_of_length_on_both_sides() -> None:
    pairs = clients()
    pairs[4] = (0.05 * pairs[4][0], pairs[4][1])
    found = sorted(report(pairs, 3, RIDGE), key=lambda each: each.client)
    squares = np.array([np.square(x).sum() / len(x) for x, _ in pairs])
    np.testing.assert_allclose([each.length for each in found], np.sqrt(squares / np.median(squares)))

    def spreads(values: Any) -> Any:
        distances = values - np.median(values)
        return distances / (1.4826 * np.median(np.abs(distances)))  # a standard deviation, where values are normal

    misfits = spreads(np.array([each.misfit for each in found]))
    lengths = spreads(np.log(squares))
    np.testing.assert_allclose([each.suspicion for each in found], np.maximum(misfits, np.abs(lengths)), rtol=1e-5)
    assert lengths[4] < -SUSPECT < SUSPECT < found[4].suspicion
    assert (np.abs(misfits) > np.maximum(misfits, np.abs(lengths))).any()  # whoever fits better is not suspicious


def test_the_ridge_is_chosen_by_cross_validation_over_six_decades() -> None:
    pairs = clients()
    parts, total = moments(pairs, 3)
    ridge = cross_validated_ridge(total, [10.0**-power for power in range(7)])
    assert ridge < 0.05 * total.diagonal().mean()
    assert influence(lambda: parts, total) == influence(lambda: parts, total, ridge)


def test_three_clients_are_needed() -> None:
    with pytest.raises(fs.DataError, match="it takes three"):
        report(clients(2), 3)
    assert len(report(clients(3), 3)) == 3


def test_clients_that_change_meanwhile_are_refused() -> None:
    parts, total = moments(clients(5), 3)
    renamed = [("other", parts[0][1]), *parts[1:]]
    replaced = [(parts[0][0], parts[0][1] + parts[1][1]), *parts[1:]]
    for later in (parts[:-1], parts[1:], [*parts, parts[0]], renamed, replaced):
        passes = iter([parts, later])
        with pytest.raises(fs.DataError, match="the clients changed while they were compared"):
            influence(lambda passes=passes: next(passes), total)  # type: ignore[misc]
    for other in (parts[:-1], [*parts, ("late", parts[0][1])], [*parts[1:], ("c000", parts[0][1].scaled(10.0))]):
        with pytest.raises(fs.DataError, match="the clients changed while they were compared"):
            influence(lambda other=other: other, total)  # type: ignore[misc]


def test_clients_with_the_same_samples_are_not_suspicious() -> None:
    # Their sums differ by rounding, which is no spread.
    x, y = clients(1)[0]
    pairs = [*[(x, y)] * 5, ((1 + 1e-13) * x, y)]
    assert all(abs(each.suspicion) < 1e-2 for each in report(pairs, 3))
    parts, total = moments([(x, y)] * 4, 3)
    assert [each.client for each in influence(lambda: parts[::-1], total)] == ["c000", "c001", "c002", "c003"]


def test_features_that_are_all_zero_or_all_of_length_one_are_compared() -> None:
    labels = np.arange(20) % 3
    for ridge in (None, 0.0):
        for each in report([(np.zeros((20, 2)), labels)] * 3, 3, ridge):
            assert (each.length, each.suspicion, each.moved, each.misfit) == (0.0, 0.0, 0.0, 1.0)
    for each in report([(np.eye(2)[labels % 2], labels)] * 3, 3):
        assert (each.length, each.suspicion) == (1.0, 0.0)
    pairs = [(np.hstack([x, np.zeros((len(x), 1))]), y) for x, y in clients(5)]
    plain, padded = report(clients(5), 3, 1e-9), report(pairs, 3, 0.0)
    assert [each.moved for each in padded] == pytest.approx([each.moved for each in plain], rel=1e-8)


def test_a_total_that_is_none_of_samples_is_refused() -> None:
    parts, total = moments(clients(4), 3)
    with pytest.raises(fs.DataError, match="the total is not positive definite even with a ridge"):
        influence(lambda: parts, total.scaled(-1.0), RIDGE)


@pytest.mark.parametrize("scale", [1e3, 1e8, 1e9, 1e10, 1e15])
def test_a_giant_beside_which_the_others_are_rounding_is_reported(scale: float) -> None:
    pairs = clients(5)
    pairs = [(scale * pairs[0][0], pairs[0][1]), *pairs[1:]]
    for ridge in (None, 0.0):
        found = report(pairs, 3, ridge)
        assert found[0].client == "c000" and found[0].suspicion > SUSPECT
        assert all(np.isfinite([each.moved, each.harm, each.misfit, each.suspicion]).all() for each in found)


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
