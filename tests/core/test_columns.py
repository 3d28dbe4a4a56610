"""`columns`: raw columns as numbers, agreed on from sums, the same bits for any split, order and absence of others."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve import codec
from fedsolve.arrays import same
from fedsolve.features import columns, columnsums, exact, fitting, maps
from fedsolve.features.cells import Cells, Texts
from fedsolve.features.columns import EMPTY, OTHER, Columns, Levels, Number

numbers = st.none() | st.floats(-1e12, 1e12, allow_subnormal=False) | st.integers(-5, 5).map(float)
texts = st.none() | st.sampled_from(["a", "b", "Ä+ö", "c,d|e=f:g/h%", "(other)", "x" * 200])
rows = st.lists(st.tuples(numbers, texts, numbers), min_size=1, max_size=14)


def cells_of(table: list[tuple[Any, ...]]) -> Cells:
    first, words, second = zip(*table, strict=True)
    floats = [np.array([np.nan if value is None else value for value in column]) for column in (first, second)]
    return Cells(("age", "sex", "time"), (floats[0], Texts.of(words), floats[1]))


def parts_of(whole: Cells, data: Any) -> list[Cells]:
    """The rows of a table at some clients, in any order, some of which may have none."""
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(whole), max_size=len(whole))))
    return [whole[np.flatnonzero(owner == client)] for client in data.draw(st.permutations(range(4)))]


# --- sums ---


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=300), st.randoms())
def test_pieces_add_up_exactly_and_do_not_depend_on_the_order(values: list[float], random: Any) -> None:
    found = exact.pieces(np.array(values, dtype=np.float64))
    assert sum(map(Fraction, found), Fraction(0)) == sum(map(Fraction, values), Fraction(0))
    assert found[0] == math.fsum(values)
    random.shuffle(values)
    assert exact.pieces(np.array(values, dtype=np.float64)) == found


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e145])
def test_long_columns_of_any_size_add_up_exactly(scale: float) -> None:
    values = np.random.default_rng(0).normal(size=3000) * scale * 10.0 ** np.arange(-8, 0).repeat(375)
    found = exact.pieces(values)
    assert sum(map(Fraction, found), Fraction(0)) == sum(map(Fraction, values.tolist()), Fraction(0))


@given(rows, st.data())
def test_the_fitted_map_has_the_same_bits_for_any_split_order_and_absent_clients(
    table: list[tuple[Any, ...]], data: Any
) -> None:
    whole = cells_of(table)
    try:
        wanted = str(columnsums.fit([whole], 2))
    except fs.DataError as error:  # nothing differs in any column
        with pytest.raises(fs.DataError, match=str(error)[:40]):
            columnsums.fit(parts_of(whole, data), 2)
        return
    assert str(columnsums.fit(parts_of(whole, data), 2)) == wanted
    present = parts_of(whole, data)[:2]
    rest = [row for part in present for row in part.bits().tolist()]
    if rest:
        joined = Cells(whole.names, tuple(_joined(*(part.columns[place] for part in present)) for place in range(3)))
        assert _fit(present) == _fit([joined])


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, Texts):
        words = [[*column.levels, None][code] for column in (first, second) for code in column.codes]
        return Texts.of(words)
    return np.concatenate([first, second])


def _fit(parts: list[Cells]) -> str:
    try:
        return str(columnsums.fit(parts, 2))
    except fs.DataError as error:
        return str(error)


@given(rows, rows, rows, st.sampled_from([1, 2, 3]))
def test_what_clients_tell_is_added_in_any_order_and_grouping(
    first: list[Any], second: list[Any], third: list[Any], cell: int
) -> None:
    told = [columnsums.counted(cells_of(table), cell) for table in (first, second, third)]
    origin = columnsums.means(columnsums.added(told[0], told[1]))
    for a, b, c in (told, [columnsums.squared(cells_of(table), origin) for table in (first, second, third)]):
        added = columnsums.added
        assert same(added(a, b), added(b, a))
        assert same(added(added(a, b), c), added(a, added(b, c)))
        for reply in (a, b, c, added(a, c)):
            columnsums.check(codec.decode(codec.encode(reply)), 3)


@given(rows, st.sampled_from([1, 2, 3]))
def test_means_deviations_levels_and_holes_are_those_of_all_rows(table: list[tuple[Any, ...]], cell: int) -> None:
    try:
        fitted = columnsums.fit([cells_of(table)], cell)
    except fs.DataError as error:
        assert "every column is the same" in str(error)
        return
    for part, values in zip(fitted.parts, zip(*table, strict=True), strict=True):
        filled = [value for value in values if value is not None]
        if isinstance(part, Levels):
            counts = Counter(EMPTY if value is None else value for value in values)
            kept = {level for level, count in counts.items() if count >= cell and level != OTHER}
            assert set(part.levels) - {OTHER} == kept
            assert (OTHER in part.levels) == (sum(counts[level] for level in kept) < len(values))
            merged = {**{level: counts[level] for level in kept}, OTHER: len(values) - sum(counts[x] for x in kept)}
            assert merged[part.levels[0]] == max(merged[level] for level in part.levels)
            assert list(part.levels[1:]) == sorted(part.levels[1:])
            continue
        assert part.holes == (0 < len(filled) < len(values))
        if filled:
            mean = sum(map(Fraction, filled), Fraction(0)) / len(filled)
            assert abs(Fraction(part.origin) - mean) <= abs(mean) / 2**51
            deviation = math.sqrt(sum((Fraction(value) - mean) ** 2 for value in filled) / len(filled))
            assert part.scale == pytest.approx(deviation, rel=1e-9, abs=1e-14 * abs(float(mean)))


# --- the map ---


@given(rows)
def test_words_decide_the_map(table: list[tuple[Any, ...]]) -> None:
    try:
        fitted = columnsums.fit([cells_of(table)], 1)
    except fs.DataError:
        return
    assert maps.parse(str(fitted)) == fitted
    chain = maps.parse(f"{fitted}+random:4")
    assert isinstance(chain, maps.Chain) and chain.maps[0] == fitted and chain.identity.startswith(fitted.identity)
    found = fitted(cells_of(table))
    assert found.shape == (len(table), *fitted.shape((3,))) and np.isfinite(found).all()
    assert len(fitted.names) == found.shape[1]
    assert fs.Task(fs.Classes(2), (3,), fitted).columns == fitted.names


def test_a_second_derivation_gives_the_same_numbers() -> None:
    rng = np.random.default_rng(1)
    age, sex = rng.normal(60, 10, 200), rng.choice(["f", "m", "x"], 200, p=[0.5, 0.3, 0.2])
    age[:20] = np.nan
    fitted = columnsums.fit([Cells(("age", "sex"), (age, Texts.of(sex.tolist())))], 3)
    assert fitted.names == ("age", f"age {EMPTY}", "sex=m", "sex=x")
    holes = np.isnan(age)
    standard = np.where(holes, 0.0, (age - np.nanmean(age)) / np.nanstd(age))
    wanted = np.column_stack([standard, holes, sex == "m", sex == "x"])
    np.testing.assert_allclose(fitted(Cells(("sex", "age"), (Texts.of(sex.tolist()), age))), wanted, atol=1e-12)


def test_what_is_the_same_in_every_row_gives_no_column() -> None:
    table = Cells(("one", "none", "word", "age"), (
        np.full(9, 0.1), np.full(9, np.nan), Texts.of(["a"] * 9), np.arange(9.0)))  # fmt: skip
    fitted = columnsums.fit([table], 3)
    assert fitted.names == ("age",) and fitted.dropped == ("one", "none", "word")
    with pytest.raises(fs.DataError, match="every column is the same in all rows"):
        columnsums.fit([Cells(("one",), (np.full(9, 0.1),))], 3)


def test_the_commonest_hundred_levels_have_columns() -> None:
    words = [f"street {number:03}" for number in range(150) for _ in range(4 if number < 120 else 5)]
    (part,) = columnsums.fit([Cells(("street",), (Texts.of(words),))], 1).parts
    assert isinstance(part, Levels) and len(part.levels) == 101 and part.levels[0] == OTHER
    assert {f"street {number}" for number in range(120, 150)} < set(part.levels)


def test_levels_that_are_rare_at_a_site_are_not_named() -> None:
    told = columnsums.counted(Cells(("town",), (Texts.of(["Rome"] * 3 + ["Oslo"] * 2 + [None]),)), 3)
    assert told["levels/texts"].tobytes() == b"(other)Rome"
    assert told["levels/counts"].tolist() == [3, 3]


def test_unknown_levels_go_with_the_rare_ones_and_are_told() -> None:
    rare = Columns((Levels("town", ("Rome", OTHER, "Oslo")), Number("age", 1.0, 2.0)))
    new = Cells(("town", "age"), (Texts.of(["Oslo", "Bonn", None]), np.array([1.0, np.nan, 3.0])))
    assert rare(new).tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 1]]
    first, second = rare.strange(new)
    assert "'town' has 2 cells" in first and "'(empty)', 'Bonn'" in first and "as '(other)'" in first
    assert "'age' has 1 empty cells" in second
    without = Columns((Levels("town", ("Rome", "Oslo")),))
    assert without(new).tolist() == [[1], [0], [0]] and "as 'Rome'" in without.strange(new)[0]


def test_numbers_and_texts_of_one_name_are_refused_by_it() -> None:
    number, word = Cells(("x",), (np.arange(3.0),)), Cells(("x",), (Texts.of(["a", "b", "c"]),))
    with pytest.raises(fs.DataError, match="column 'x' holds numbers at some clients and texts at others"):
        columnsums.fit([number, word], 1)
    for fitted, other in ((columnsums.fit([number], 1), word), (columnsums.fit([word], 1), number)):
        with pytest.raises(fs.DataError, match="column 'x' holds"):
            fitted(other)
    empty = Cells(("x",), (np.full(3, np.nan),))
    assert columnsums.fit([word, empty], 1)(empty).shape == (3, 3)


@pytest.mark.parametrize(
    "text",
    ["columns:", "columns:age", "columns:age:1", "columns:age:1.0/-1.0", "columns:age:nan/1.0", "columns:age:1.0/2.0/x",
     "columns:age:1/2", "columns:age:1.0/2.0,age:1.0/2.0", "columns:age:1.0/0.0", "columns:sex=a", "columns:sex=a|a",
     "columns:sex=a|", "columns:sex=a||b", "columns:sex=%ff|a", "columns:sex=%41|b", "columns:=a|b",
     "unit+columns:a=b|",
     "columns:sex=" + "|".join(map(str, range(200))), "columns:" + "x" * 300 + ":1.0/2.0"],
)  # fmt: skip
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(fs.ParameterError, match="columns"):
        maps.parse(text)


def test_it_is_fitted_first_and_other_maps_behind_it() -> None:
    table = cells_of([(1.0, "a", 2.0), (2.0, "b", None), (4.0, "a", 3.0)])
    fitted = fitting.fit("columns:cell=1+standardise+random:8", [table[:1], table[1:]])
    assert isinstance(fitted, maps.Chain) and len(fitted.maps) == 3
    assert fitting.fits("columns+random:8", f"{fitted.maps[0]}+random:8")
    assert fitting.unfitted("columns:cell=9") and fitting.numbered(str(fitted))
    with pytest.raises(fs.ParameterError, match="stands first"):
        fitting.fit("standardise+columns", [np.zeros((2, 2))])
    with pytest.raises(fs.ParameterError, match="columns is fitted to a federation's samples"):
        maps.parse("columns")


@pytest.mark.parametrize("spoil", [
    lambda told: {**told, "rows": np.array(-1)},
    lambda told: {**told, "counts": told["counts"] + 9},
    lambda told: {**told, "levels/counts": told["levels/counts"] + 1},
    lambda told: {**told, "levels/lengths": told["levels/lengths"] + 1},
    lambda told: {**told, "levels/columns": told["levels/columns"] + 7},
    lambda told: {**told, "levels/texts": told["levels/texts"] | 0x80},
    lambda told: {**told, "kinds": told["kinds"] | 8},
    lambda told: {**told, "sums": told["sums"] * np.inf},
    lambda told: {name: array for name, array in told.items() if name != "sums"},
    lambda told: {**told, "more": np.zeros(3)},
])  # fmt: skip
def test_what_no_client_tells_is_refused(spoil: Any) -> None:
    told = columnsums.counted(cells_of([(1.0, "a", 2.0), (2.0, "b", None)]))
    columnsums.check(told, 3)
    with np.errstate(invalid="ignore"), pytest.raises(fs.DataError):
        columnsums.check(spoil(dict(told)), 3)
    with pytest.raises(fs.DataError, match="there are 4"):
        columnsums.check(told, 4)


# --- tables of cells ---


def a_table(count: int = 240, seed: int = 0) -> fs.Table:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, count)
    sex = rng.choice(["f", "m"], count)
    ill = (age + 5 * (sex == "m") > 62).astype(int)
    age[rng.random(count) < 0.1] = np.nan
    table = Cells(("age", "sex"), (age, Texts.of(sex.tolist())))
    return fs.Table.make("ward", table, ill, client=rng.integers(0, 4, count), person=rng.integers(0, 70, count))


@pytest.mark.parametrize(("partition", "clients"), [("by-client", None), ("iid", 5), ("dirichlet:0.3", 3)])
@pytest.mark.parametrize("seed", range(4))
def test_no_person_is_trained_on_anywhere_and_tested_on_anywhere(
    partition: str, clients: int | None, seed: int
) -> None:
    """Inputs are the numbers of rows, so that each row is known again; some persons are at several natural clients."""
    rng, count = np.random.default_rng(seed), 240
    person = rng.integers(0, 70, count)
    owner = np.where(rng.random(count) < 0.1, rng.integers(0, 4, count), person % 4)
    row = np.arange(count, dtype=float)[:, None]
    table = fs.Table.make("p", row, rng.integers(0, 2, count), client=owner, person=person)
    federation = table.split(partition, clients=clients, test=0.3, seed=seed)
    train, held = (
        [person[part.inputs[:, 0].astype(int)] for part in parts]
        for parts in zip(*((client.train, client.test) for client in federation.clients.values()), strict=True)
    )
    assert not set(np.concatenate(train)) & set(np.concatenate(held))
    assert sum(map(len, train)) + sum(map(len, held)) == count and sum(map(len, held)) > 20
    assert [client.persons for client in federation.clients.values()] == [len(set(each)) for each in train]


def test_persons_at_one_client_are_whole_on_either_side() -> None:
    count = 120
    person = np.arange(count) // 4
    table = fs.Table.make(
        "p", np.arange(count, dtype=float)[:, None], np.arange(count) % 2, client=person % 3, person=person
    )
    for test in (0.1, 0.25, 0.5):
        for client in table.split("by-client", test=test).clients.values():
            train, held = ({int(row) // 4 for row in part.inputs[:, 0]} for part in (client.train, client.test))
            assert not train & held and train and held
            assert abs(len(client.test) - test * 40) <= 2
    everywhere = fs.Table.make(
        "p", np.zeros((count, 1)), np.arange(count) % 2, client=np.arange(count) % 3, person=person
    )
    assert all(not len(client.test) for client in everywhere.split("by-client").clients.values())


def test_a_federation_of_cells_is_fitted_when_it_is_split_and_shows_no_rows() -> None:
    table = a_table()
    federation = table.split("by-client")
    assert federation.task.columns == ("age", f"age {EMPTY}", "sex=m") or "sex=f" in federation.task.columns
    for shown in (
        repr(table),
        repr(federation),
        repr(table.inputs),
        repr(federation.clients),
        repr(table.person is None),
    ):
        assert len(shown) < 1000
    raw = table.owned_by("all", test=0.0)
    assert isinstance(raw.clients["all"].train.inputs, Cells)
    assert repr(raw.clients["all"].train) == "Samples(240 samples, inputs cells (2,))"
    fitted = raw.fitted("columns")
    assert fitted.clients["all"].train.inputs.shape == (240, 3)
    assert fs.run(fs.FedHiP(intercept=True), federation).accuracy.mean > 0.8
    assert columns.unfitted("columns") == 3


def test_fingerprints_follow_the_content_of_cells() -> None:
    table = a_table()
    first, again, other = (each.owned_by("a").fingerprint for each in (table, a_table(), a_table(seed=1)))
    assert first == again != other
    codes = table.inputs.columns[1]  # type: ignore[union-attr]
    assert isinstance(codes, Texts)
    turned = Texts(codes.levels[::-1], 1 - codes.codes)  # the same texts by other codes
    assert Cells(("sex",), (turned,)).digest() == Cells(("sex",), (codes,)).digest()
