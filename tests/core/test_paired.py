"""Paired comparisons: against SciPy, against exact values, and what must not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsolve.errors import ParameterError
from fedsolve.study.paired import Difference, difference, holm, ranks


def drawn(
    rng: np.random.Generator, shift: float = 0.0, seeds: int = 3, clients: int = 12
) -> dict[int, dict[str, float]]:
    return {s: {f"c{i}": float(shift + rng.normal()) for i in range(clients)} for s in range(seeds)}


def test_the_mean_is_over_seeds_of_means_over_clients() -> None:
    mine = {0: {"a": 1.0}, 1: {"a": 2.0, "b": 4.0, "c": 6.0}}
    theirs = {0: {"a": 0.0}, 1: {"a": 2.0, "b": 2.0, "c": 2.0, "d": 9.0}, 2: {"a": 5.0}}
    found = difference(mine, theirs)
    assert found.mean == pytest.approx((1.0 + 2.0) / 2)
    assert found.pairs == 4


def test_the_interval_has_the_width_of_the_mean_and_turns_with_the_sign() -> None:
    rng = np.random.default_rng(1)
    one, other = drawn(rng, 0.3, clients=200), drawn(rng, clients=200)
    found, turned = difference(one, other), difference(other, one)
    values = [np.array([one[s][c] - other[s][c] for c in one[s]]) for s in one]
    error = math.sqrt(sum(v.var() / len(v) for v in values)) / len(values)  # of a mean over seeds of means
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.08)
    assert (turned.mean, turned.low, turned.high) == pytest.approx((-found.mean, -found.high, -found.low))
    assert turned.p == pytest.approx(found.p)


def test_intervals_cover_what_they_should() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
        found = difference(drawn(rng, 0.5, clients=20), drawn(rng, clients=20), draws=400)
        covered += found.low <= 0.5 <= found.high
    assert 0.90 < covered / 300 < 0.98


def test_the_p_value_is_wilcoxons_and_one_where_nothing_differs() -> None:
    rng = np.random.default_rng(3)
    one, other = drawn(rng, 0.4), drawn(rng)
    values = [one[s][c] - other[s][c] for s in one for c in one[s]]
    assert difference(one, other).p == pytest.approx(stats.wilcoxon(values).pvalue)
    same = difference(one, one)
    assert (same.mean, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)


def test_names_and_order_of_clients_do_not_matter_beyond_the_draws() -> None:
    rng = np.random.default_rng(4)
    one, other = drawn(rng), drawn(rng)
    turned = [{s: dict(reversed(each.items())) for s, each in figures.items()} for figures in (one, other)]
    assert difference(*turned) == difference(one, other)


def test_methods_without_common_clients_are_refused() -> None:
    with pytest.raises(ParameterError, match="clients and seeds that both have"):
        difference({0: {"a": 1.0}}, {0: {"b": 1.0}, 1: {"a": 1.0}})


def test_holm_rejects_what_stepping_down_rejects() -> None:
    """By the definition: reject the smallest while p <= level / (how many are left)."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        values = {f"m{i}": float(p) for i, p in enumerate(rng.random(6) ** 3)}
        found = holm({name: Difference(0.0, 0.0, 0.0, p, 9) for name, p in values.items()})
        rejected = set()
        for left, name in zip(range(6, 0, -1), sorted(values, key=values.__getitem__), strict=True):
            if values[name] > 0.05 / left:
                break
            rejected.add(name)
        assert {name for name, each in found.items() if each.adjusted <= 0.05} == rejected
        assert all(each.adjusted >= each.p for each in found.values())


def test_ranks_against_scipy_and_the_published_table() -> None:
    rng = np.random.default_rng(6)
    tables = [{name: float(rng.normal() + 0.2 * place) for place, name in enumerate("abcd")} for _ in range(14)]
    found = ranks(tables)
    columns = [[table[name] for table in tables] for name in "abcd"]
    assert found.p == pytest.approx(stats.friedmanchisquare(*columns).pvalue)
    assert found.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), rel=1e-3)  # q of four at 5 %
    assert sum(found.means.values()) == pytest.approx(10.0)
    turned = ranks(tables, larger=False)
    assert all(turned.means[name] == pytest.approx(5 - mean) for name, mean in found.means.items())


def test_ties_share_ranks() -> None:
    found = ranks([{"a": 1.0, "b": 1.0, "c": 0.0}] * 3)
    assert found.means == {"a": 1.5, "b": 1.5, "c": 3.0}
    assert ranks([{"a": 1.0, "b": 1.0}] * 2).p == 1.0


def test_groups_that_cannot_be_told_apart() -> None:
    tables = [{"best": 0.9 + 0.001 * i, "next": 0.8, "worst": 0.1} for i in range(20)]
    found = ranks(tables)
    assert found.critical < 1.0 and found.alike() == ()
    few = ranks(tables[:2])
    assert few.alike() == (("best", "next", "worst"),)


@pytest.mark.parametrize("tables", [[], [{"a": 1.0, "b": 2.0}], [{"a": 1.0}] * 3, [{"a": 1.0, "b": 2.0}, {"a": 1.0}]])
def test_ranks_need_a_whole_table(tables: list[dict[str, float]]) -> None:
    with pytest.raises(ParameterError, match="two or more methods"):
        ranks(tables)
