"""Columns from sums alone: the map that `columnsums` fits, for any split, and what hostile words come to."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from fedsolve.arrays import Arrays
from fedsolve.errors import DataError
from fedsolve.features import columnsums, vocabulary
from fedsolve.features.cells import Cells, Texts

NAMES = ("age", "sex", "ward", "gone")


def tables(count: int, seed: int = 0) -> list[Cells]:
    """Clients with numbers, texts, holes, a column that some have empty, and one that is empty everywhere."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        rows = int(rng.integers(5, 40))
        age = np.where(rng.random(rows) < 0.2, np.nan, rng.normal(60, 10, rows))
        sex = Texts.of([None if value < 0.1 else "fmx"[int(3 * value)] for value in rng.random(rows)])
        wards = Texts.of([f"w{place}" for place in rng.integers(4, size=rows)])
        found.append(Cells(NAMES, (age, sex, wards if number % 3 else np.full(rows, np.nan), np.full(rows, np.nan))))
    return found


def summed(parts: Iterable[Arrays]) -> Arrays:
    listed = list(parts)
    return {name: np.sum([part[name] for part in listed], axis=0) for name in listed[0]}


@pytest.mark.parametrize("seed", range(5))
def test_the_map_is_that_of_sums_with_levels(seed: int) -> None:
    clients = tables(4, seed)
    wanted = columnsums.fit(clients, 3)
    told = {str(place): vocabulary.named(cells, 1) for place, cells in enumerate(clients)}
    words = vocabulary.words(vocabulary.joined(told, NAMES))
    total = vocabulary.total(words, summed(vocabulary.counted(cells, words) for cells in clients))
    origin = columnsums.means(total)
    squares = summed(vocabulary.squared(cells, origin) for cells in clients)
    found = columnsums.fitted(NAMES, total, {"squares": squares["squares"][:, None]}, 3)
    assert found.names == wanted.names
    for cells in clients:
        np.testing.assert_allclose(found(cells), wanted(cells), rtol=1e-12, atol=1e-12)


def test_levels_that_nobody_names_are_counted_together() -> None:
    clients = tables(4)
    told = {str(place): vocabulary.named(cells, 1000) for place, cells in enumerate(clients)}
    words = vocabulary.words(vocabulary.joined(told, NAMES))
    assert words == (None, (), (), None)
    total = vocabulary.total(words, summed(vocabulary.counted(cells, words) for cells in clients))
    levels = columnsums.levels_in(total)
    assert sum(levels.values()) == 2 * sum(map(len, clients))


def test_numbers_here_and_texts_there_are_told_by_name() -> None:
    numbers, texts = Cells(("age",), (np.ones(5),)), Cells(("age",), (Texts.of(["a"] * 5),))
    told = {"ward-a": vocabulary.named(numbers, 1), "ward-b": vocabulary.named(texts, 1)}
    with pytest.raises(DataError, match="column 'age' holds numbers at 'ward-a' and texts at 'ward-b'"):
        vocabulary.joined(told, ("age",))
    for cells, text in ((numbers, '[["a"]]'), (texts, "[null]")):
        with pytest.raises(DataError, match="column 'age' holds"):
            vocabulary.counted(cells, vocabulary.words(text))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[3]", '[["a", "a"]]', '[[""]]', "[[1]]", f'[["{"x" * 10_000}"]]', "[" * 100_000],
    ids=lambda text: text[:12],
)
def test_a_hostile_vocabulary_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        vocabulary.words(text)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"age": [3, []]}', '{"age": [1]}', '{"sex": [1, []]}', '{"age": [2, [1]]}']
)
def test_a_client_that_tells_something_else_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        vocabulary.joined({"ward-a": text}, ("age",))


def test_sums_of_other_columns_are_refused() -> None:
    (cells,) = tables(1)
    words = vocabulary.words(vocabulary.joined({"a": vocabulary.named(cells, 1)}, NAMES))
    told = vocabulary.counted(cells, words)
    for name in told:
        if told[name].ndim:
            with pytest.raises(DataError):
                vocabulary.total(words, {**told, name: told[name][:-1]})
    with pytest.raises(DataError, match="2 columns"):
        vocabulary.counted(cells, (None, None))
