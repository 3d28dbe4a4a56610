from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsolve.data import partition as module
from fedsolve.data.partition import (
    ByClient,
    ClassDraw,
    Dirichlet,
    Neighbours,
    Partition,
    PowerLaw,
    Rows,
    Shards,
    parse,
    top_up,
)
from fedsolve.errors import DataError, ParameterError, UnknownNameError
from fedsolve.rng import derive

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(np.array)
CLIENTS = st.integers(1, 15)
SEEDS = st.integers(0, 2**32)
POSITIVE = st.floats(min_value=1e-3, max_value=1e6, allow_nan=False)
WHOLE = st.integers(1, 5)
DRAWN: st.SearchStrategy[Partition] = st.one_of(
    st.just(module.iid()),
    st.sampled_from([1e-300, 1e-6, 0.1, 1.0, 1e6]).map(module.dirichlet),
    WHOLE.map(module.classes),
    WHOLE.map(module.neighbours),
    WHOLE.map(module.shards),
    st.sampled_from([0.5, 1.0, 3.0]).map(module.power_law),
)


def spread(how: Partition, labels: np.ndarray, clients: int, seed: int) -> list[Rows]:
    return how(labels, clients, derive(seed, "partition"))


def once(parts: list[Rows], count: int) -> None:
    """Every row sits with exactly one client."""
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))


def counts(parts: list[Rows], labels: np.ndarray) -> np.ndarray:
    """Clients x classes."""
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in parts])


@given(DRAWN, LABELS, CLIENTS, SEEDS)
def test_every_row_goes_to_exactly_one_client(how: Partition, labels: np.ndarray, clients: int, seed: int) -> None:
    parts = spread(how, labels, clients, seed)
    assert len(parts) == clients
    once(parts, len(labels))
    for rows in parts:
        assert np.all(np.diff(rows) > 0)


@given(DRAWN, LABELS, CLIENTS, SEEDS)
def test_same_seed_same_parts_and_labels_are_not_written_to(
    how: Partition, labels: np.ndarray, clients: int, seed: int
) -> None:
    before = labels.copy()
    labels.flags.writeable = False
    first, again = (spread(how, labels, clients, seed) for _ in range(2))
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(labels, before)


@pytest.mark.parametrize("text", ["iid", "dirichlet:0.5", "classes:2", "shards:2", "power-law"])
def test_another_seed_gives_other_parts(text: str) -> None:
    labels = np.arange(400) % 10
    first, other = (spread(parse(text), labels, 8, seed) for seed in (0, 1))
    assert any(not np.array_equal(left, right) for left, right in zip(first, other, strict=True))


@given(LABELS, CLIENTS, SEEDS)
def test_iid_sizes_differ_by_at_most_one(labels: np.ndarray, clients: int, seed: int) -> None:
    sizes = [len(rows) for rows in spread(module.iid(), labels, clients, seed)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("make", [ClassDraw, Neighbours])
@given(present=st.integers(1, 12), held=WHOLE, clients=CLIENTS, seed=SEEDS, each=st.integers(1, 20))
def test_a_client_gets_that_many_classes(
    make: Callable[[int], Partition], present: int, held: int, clients: int, seed: int, each: int
) -> None:
    labels = np.repeat(np.arange(present) * 3, each)  # numbers need not be consecutive
    parts = spread(make(held), labels, clients, seed)
    bound = min(max(held, -(-present // clients)), present)
    mine = [len(np.unique(labels[rows])) for rows in parts]
    assert max(mine) <= bound
    if each >= clients:
        assert set(mine) == {bound}


@given(st.integers(1, 12), WHOLE, CLIENTS, SEEDS)
def test_neighbours_follow_each_other(present: int, held: int, clients: int, seed: int) -> None:
    labels = np.repeat(np.arange(present), 40)
    for rows in spread(Neighbours(held), labels, clients, seed):
        mine = np.unique(labels[rows])
        np.testing.assert_array_equal(mine, np.arange(mine[0], mine[0] + len(mine)))


def test_neighbours_of_ten_classes_and_twenty_clients_are_five_pairs() -> None:
    labels = np.arange(1000) % 10
    table = counts(spread(Neighbours(2), labels, 20, 3), labels)
    for client, row in enumerate(table):
        pair = client // 4
        assert row[2 * pair : 2 * pair + 2].tolist() == [25, 25]
        assert row.sum() == 50


def test_classes_are_held_by_equally_many_clients_and_in_even_shares() -> None:
    labels = np.arange(1000) % 10
    table = counts(spread(ClassDraw(2), labels, 20, 3), labels)
    holders = (table > 0).sum(0)
    assert holders.sum() == 40
    assert holders.max() - holders.min() <= 2
    for column in table.T:
        mine = column[column > 0]
        assert mine.max() - mine.min() <= 1


@given(WHOLE, st.integers(1, 10), SEEDS)
def test_shards_hold_few_classes_and_are_of_even_size(per_client: int, clients: int, seed: int) -> None:
    labels = np.repeat(np.arange(5), 20)
    parts = spread(Shards(per_client), labels, clients, seed)
    sizes = [len(rows) for rows in parts]
    assert max(sizes) - min(sizes) <= per_client
    shard = -(-100 // (clients * per_client))
    across = -(-(shard - 1) // 20) + 1  # the most classes one shard can touch
    assert max(len(np.unique(labels[rows])) for rows in parts) <= per_client * across


def test_small_alpha_concentrates_and_huge_alpha_is_even() -> None:
    labels = np.arange(5000) % 10
    largest = {
        alpha: (counts(spread(Dirichlet(alpha), labels, 10, 0), labels).max(0) / 500).mean()
        for alpha in (0.01, 0.1, 1.0, 1e6)
    }
    assert largest[0.01] > 0.9
    assert largest[0.01] > largest[0.1] > largest[1.0] > largest[1e6]
    assert np.abs(counts(spread(Dirichlet(1e6), labels, 10, 0), labels) - 50).max() <= 2


@pytest.mark.parametrize("alpha", [1e-6, 1e-300, 5e-324])
def test_in_the_limit_of_small_alpha_a_class_sits_with_one_client(alpha: float) -> None:
    labels = np.arange(300) % 3
    table = counts(spread(Dirichlet(alpha), labels, 6, 1), labels)
    np.testing.assert_array_equal(table.max(0), [100, 100, 100])


def test_in_the_limit_of_large_alpha_classes_are_even() -> None:
    labels = np.arange(1000) % 2
    table = counts(spread(Dirichlet(1e308), labels, 10, 0), labels)
    np.testing.assert_array_equal(table, np.full((10, 2), 50))


def test_dirichlet_means_are_even_over_seeds() -> None:
    labels = np.zeros(1000, int)
    sizes = np.mean([[len(r) for r in spread(Dirichlet(0.5), labels, 4, seed)] for seed in range(300)], axis=0)
    np.testing.assert_allclose(sizes, 250, atol=50)  # one size has deviation 250 sqrt(0.75 / (3 * 0.25)), over 300: 14


def test_power_law_is_heavy_tailed_and_a_larger_exponent_less_so() -> None:
    labels = np.zeros(10_000, int)

    def largest(exponent: float) -> float:
        return float(np.mean([max(map(len, spread(PowerLaw(exponent), labels, 50, seed))) for seed in range(20)]))

    assert largest(1.0) > 5 * 200 > 3 * 200 > largest(5.0) > 200
    assert largest(1e6) <= 202


@pytest.mark.parametrize("exponent", [1e-300, 1e-3, 1e-2])
def test_a_power_law_of_a_tiny_exponent_still_uses_every_row_once(exponent: float) -> None:
    for seed in range(5):
        parts = spread(PowerLaw(exponent), np.zeros(100, int), 10, seed)
        assert len(parts) == 10
        once(parts, 100)


@given(st.lists(st.sampled_from(["b", "a", "z", "x y"]), min_size=1, max_size=30))
def test_by_client_gives_each_owner_its_rows(owners: list[str]) -> None:
    column = np.array(owners)
    names = np.unique(column)
    parts = spread(ByClient(), column, len(names), 0)
    assert len(parts) == len(names)
    for name, rows in zip(names, parts, strict=True):
        np.testing.assert_array_equal(rows, np.flatnonzero(column == name))


@given(DRAWN, LABELS, CLIENTS, SEEDS, st.integers(0, 4))
def test_top_up_mends_what_can_be_mended_and_refuses_the_rest(
    how: Partition, labels: np.ndarray, clients: int, seed: int, least: int
) -> None:
    parts = spread(how, labels, clients, seed)
    copies = [rows.copy() for rows in parts]
    rng = derive(seed, "top_up")
    if len(labels) < least * clients:
        with pytest.raises(DataError, match=f"need {least * clients} samples, but there are {len(labels)}; use fewer"):
            top_up(parts, least, rng)
        return
    mended, moved = top_up(parts, least, rng)
    once(mended, len(labels))
    assert min(map(len, mended)) >= least
    assert moved == sum(max(0, least - len(rows)) for rows in parts)
    for before, after, copy in zip(parts, mended, copies, strict=True):
        np.testing.assert_array_equal(before, copy)  # nothing given is written to
        if len(before) < least:
            assert len(after) == least
            assert set(before) <= set(after)
        else:
            assert set(after) <= set(before)
    again, _ = top_up(parts, least, derive(seed, "top_up"))
    for left, right in zip(mended, again, strict=True):
        np.testing.assert_array_equal(left, right)


def test_top_up_takes_from_the_largest_and_leaves_the_rest_alone() -> None:
    parts = [np.arange(10), np.arange(10, 14), np.array([], dtype=np.int64), np.array([14])]
    mended, moved = top_up(parts, 2, derive(0))
    assert moved == 3
    assert [len(rows) for rows in mended] == [7, 4, 2, 2]
    np.testing.assert_array_equal(mended[1], parts[1])
    assert 14 in mended[3]


def test_top_up_says_when_a_smaller_minimum_would_do() -> None:
    with pytest.raises(DataError, match="use fewer clients or a smaller min-samples"):
        top_up([np.arange(3), np.arange(3, 5)], 3, derive(0))
    with pytest.raises(DataError, match=r"use fewer clients$"):
        top_up([np.arange(1), np.arange(0)], 3, derive(0))


@given(
    st.one_of(
        st.just(module.iid()),
        st.just(module.by_client()),
        POSITIVE.map(module.dirichlet),
        WHOLE.map(module.classes),
        WHOLE.map(module.neighbours),
        WHOLE.map(module.shards),
        POSITIVE.map(module.power_law),
    )
)
def test_parse_gives_back_what_str_wrote(how: Partition) -> None:
    assert parse(str(how)) == how


@pytest.mark.parametrize(
    "text", ["iid", "dirichlet:0.1", "classes:2", "neighbours:2", "shards:3", "power-law", "by-client"]
)
def test_str_gives_back_what_parse_read(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [("dirichlett:1", "'dirichlet'"), ("class:2", "'classes'"), ("powerlaw", "'power-law'"), ("?", "iid")],
)
def test_an_unknown_partition_is_named_with_near_matches(text: str, hint: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        parse(text)
    assert f"unknown partition {text.partition(':')[0]!r}" in str(error.value)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dirichlet", "'dirichlet:0.1'"),
        ("dirichlet:", "'dirichlet:0.1'"),
        ("dirichlet:x", "'dirichlet:x'"),
        ("dirichlet:0", "alpha of the dirichlet partition must be a finite number above 0; got 0.0"),
        ("dirichlet:-1", "got -1.0"),
        ("dirichlet:nan", "got nan"),
        ("dirichlet:inf", "got inf"),
        ("classes", "'classes:2'"),
        ("classes:0", "classes per client must be an integer of at least 1; got 0"),
        ("classes:-2", "got -2"),
        ("classes:2.5", "'classes:2.5'"),
        ("neighbours:0", "classes per client must be an integer of at least 1; got 0"),
        ("shards:0", "shards per client must be an integer of at least 1; got 0"),
        ("shards:x", "'shards:x'"),
        ("power-law:0", "exponent of the power-law partition must be above 0; got 0.0"),
        ("power-law:nan", "got nan"),
        ("power-law:", "'power-law:'"),
        ("iid:3", "'iid' takes no number; got 'iid:3'"),
        ("by-client:3", "'by-client' takes no number"),
    ],
)
def test_a_bad_number_is_refused_and_named(text: str, wanted: str) -> None:
    with pytest.raises(ParameterError) as error:
        parse(text)
    assert wanted in str(error.value)


@pytest.mark.parametrize("value", [True, 1.0, "2", 0, None])
def test_classes_and_shards_take_integers_alone(value: object) -> None:
    for make in (ClassDraw, Neighbours, Shards):
        with pytest.raises(ParameterError, match="must be an integer of at least 1"):
            make(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["0.1", None, [1.0]])
def test_dirichlet_and_power_law_take_numbers_alone(value: object) -> None:
    for make in (Dirichlet, PowerLaw):
        with pytest.raises(ParameterError, match="must be"):
            make(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("clients", [5, 20, 50])
def test_neighbours_in_uneven_shares(clients: int) -> None:
    """The same classes meet; who holds a class gets a tenth of an even share to all of it, the last what is left."""
    labels = np.arange(30_000) % 10
    even, uneven = (
        module.parse(text)(labels, clients, np.random.default_rng(3))
        for text in ("neighbours:2", "neighbours:2,uneven")
    )
    assert sorted(np.concatenate(uneven).tolist()) == list(range(30_000))
    for one, other in zip(even, uneven, strict=True):
        assert set(labels[one]) == set(labels[other])
    for label in range(10):
        counts = [int((labels[rows] == label).sum()) for rows in uneven if (labels[rows] == label).any()]
        share = 3000 // len(counts)
        assert all(share // 10 <= count <= share for count in counts[:-1])
        assert counts[-1] >= share
    assert str(module.parse("neighbours:2,uneven")) == "neighbours:2,uneven"
    with pytest.raises(ParameterError, match="needs a number"):
        module.parse("neighbours:2,odd")
