"""Fitting `columns` where nobody sees what a client counts: which levels there are is told first, then sums add up.

Levels of texts are no numbers, and cannot be added under masks. So each client names those that enough of its rows
have, without saying how many; all names together are the vocabulary, and the counts of a client are a row of numbers
in its order, which adds up like the sums of the columns of numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from fedsolve.arrays import Array, Arrays, Float
from fedsolve.errors import DataError, brief
from fedsolve.features import columnsums, exact
from fedsolve.features.cells import Cells
from fedsolve.features.columns import EMPTY, LONGEST_TEXT, OTHER
from fedsolve.features.columnsums import MOST_TOLD, NUMBERS, TEXTS
from fedsolve.texts import read_json

Words: TypeAlias = tuple[tuple[str, ...] | None, ...]
"""By column: the levels in order, or None where it holds numbers, or nothing."""


def named(cells: Cells, cell: int) -> str:
    """What a client says of its columns, by name: their kind, and levels that at least `cell` of its rows have.

    >>> from fedsolve.features.cells import Texts
    >>> named(Cells(("sex", "age"), (Texts.of(["f", "m", "f", "f"]), np.array([1.0, 2.0, 3.0, 4.0]))), 3)
    '{"sex": [2, ["f"]], "age": [1, []]}'
    """
    return named_in(columnsums.counted(cells, cell), cells.names)


def named_in(told: Arrays, names: Sequence[str]) -> str:
    """The same from what `columnsums` counts of its columns, which may have come in parts."""
    levels: list[list[str]] = [[] for _ in names]
    for place, text in columnsums.levels_in(told):
        if text not in (EMPTY, OTHER):
            levels[place].append(text)
    return json.dumps(dict(zip(names, zip(told["kinds"].tolist(), levels, strict=True), strict=True)))


def joined(told: Mapping[str, str], names: Sequence[str]) -> str:
    """The vocabulary of all clients, from what each says, as a text that `words` reads; columns in this order."""
    every = {client: _read(text, f"client {client!r}", names) for client, text in sorted(told.items())}
    found: list[list[str] | None] = []
    for name in names:
        kinds = {client: kind for client, said in every.items() if (kind := said[name][0])}
        if len(set(kinds.values())) > 1:
            one, other = (next(c for c, kind in kinds.items() if kind == which) for which in (NUMBERS, TEXTS))
            raise DataError(
                f"column {name!r} holds numbers at {one!r} and texts at {other!r}; write it alike at all, or drop it"
            )
        texts = sorted({text for said in every.values() for text in said[name][1]})
        found.append(texts if TEXTS in kinds.values() else None)
    return json.dumps(found)


def _read(text: str, whose: str, names: Sequence[str]) -> dict[str, tuple[int, list[str]]]:
    content = read_json(text, whose)
    if not isinstance(content, dict) or content.keys() != set(names):
        raise DataError(f"{whose} must tell the kind and the levels of {len(names)} columns; got {brief(content)}")
    for each in content.values():
        if not (isinstance(each, list) and len(each) == 2 and type(each[0]) is int and each[0] in (0, NUMBERS, TEXTS)):
            raise DataError(f"{whose} must tell of a column whether it holds numbers or texts; got {brief(each)}")
        _check_levels(each[1], whose)
    return {name: (each[0], each[1]) for name, each in content.items()}


def words(text: str) -> Words:
    """The vocabulary in a text of `joined`, which anybody may have written."""
    content = read_json(text, "a vocabulary")
    if not isinstance(content, list):
        raise DataError(f"a vocabulary must be a list of levels by column; got {brief(content)}")
    for some in content:
        if some is not None:
            _check_levels(some, "a vocabulary")
    return tuple(None if some is None else tuple(some) for some in content)


def _check_levels(some: object, whose: str) -> None:
    if not isinstance(some, list) or not all(isinstance(text, str) and 0 < len(text) <= LONGEST_TEXT for text in some):
        raise DataError(f"{whose}: levels must be texts of 1 to {LONGEST_TEXT} characters; got {brief(some)}")
    if len(some) > MOST_TOLD or len(set(some)) != len(some) or {EMPTY, OTHER} & set(some):
        raise DataError(f"{whose}: levels must differ, and be at most {MOST_TOLD}; got {brief(some)}")


def counted(cells: Cells, vocabulary: Words) -> dict[str, Array]:
    """What a client tells first, in the order of the vocabulary; arrays that add up."""
    return counted_in(columnsums.counted(cells), cells.names, vocabulary)


def counted_in(told: Arrays, names: Sequence[str], vocabulary: Words) -> dict[str, Array]:
    """The same from what `columnsums` counts of its columns, which may have come in parts."""
    if len(vocabulary) != len(names):
        raise DataError(f"a vocabulary of {len(vocabulary)} columns is not that of {len(names)}")
    for place, (name, levels) in enumerate(zip(names, vocabulary, strict=True)):
        if int(told["kinds"][place]) == (TEXTS if levels is None else NUMBERS):
            here, there = ("texts", "numbers") if levels is None else ("numbers", "texts")
            raise DataError(f"column {name!r} holds {here} here and {there} at others; write it alike, or drop it")
    mine = columnsums.levels_in(told)
    rows = int(told["rows"])
    numbers = [
        number
        for place, levels in enumerate(vocabulary)
        if levels is not None
        for number in _numbers({text: n for (at, text), n in mine.items() if at == place} or {EMPTY: rows}, levels)
    ]
    return {
        "rows": np.array(rows, dtype=np.int64),
        "counts": np.where([levels is None for levels in vocabulary], told["counts"], 0).astype(np.int64),
        "sums": exact.totals(told["sums"]),
        "levels": np.array(numbers, dtype=np.int64),
    }


def _numbers(mine: Mapping[str, int], levels: tuple[str, ...]) -> Iterable[int]:
    """Rows of each level of the vocabulary, then of empty cells, then of all else."""
    known = [mine.get(text, 0) for text in (*levels, EMPTY)]
    return [*known, sum(mine.values()) - sum(known)]


def total(vocabulary: Words, sums: Arrays) -> Arrays:
    """The sum over clients as `columnsums` has it, checked."""
    names = [
        (place, text)
        for place, levels in enumerate(vocabulary)
        if levels is not None
        for text in (*levels, EMPTY, OTHER)
    ]
    width, rows = len(vocabulary), int(sums["rows"])
    if sums["levels"].shape != (len(names),) or sums["counts"].shape != (width,) or sums["sums"].shape != (width,):
        raise DataError("the sums over columns are not of the columns and levels that were told")
    found = {name: number for name, number in zip(names, sums["levels"].tolist(), strict=True) if number}
    kinds = [
        (NUMBERS if count else 0) if levels is None else TEXTS
        for levels, count in zip(vocabulary, sums["counts"], strict=True)
    ]
    counts = np.where(np.array(kinds) == TEXTS, rows, sums["counts"])
    told: dict[str, Array] = {
        "rows": np.array(rows, dtype=np.int64),
        "kinds": np.array(kinds, dtype=np.uint8),
        "counts": counts.astype(np.int64),
        "sums": sums["sums"][:, None],
        **columnsums.with_levels(found),
    }
    columnsums.check(told, width)
    return told


def squared(cells: Cells, origin: Float) -> dict[str, Array]:
    """What a client tells then: sums of squares about the means of all."""
    return squared_in(columnsums.squared(cells, origin))


def squared_in(told: Arrays) -> dict[str, Array]:
    """The same from what `columnsums` sums of its columns, which may have come in parts."""
    return {"squares": exact.totals(told["squares"])}
