"""Fitting `columns` from sums over clients, in two rounds: the same map for any split, order and absence of others.

First each client tells how many of its cells are filled, the sums of its numbers, and its levels with their counts;
then, about the means that follow, sums of squares. Sums are told without rounding (`exact`), counts and levels are
whole numbers: what is added up does not depend on who adds what first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Arrays, Float
from fedsolve.errors import DataError, ParameterError, plain
from fedsolve.features import exact
from fedsolve.features.cells import Cells, Texts
from fedsolve.features.columns import EMPTY, LONGEST_TEXT, NAME, OTHER, WIDEST, Columns, Levels, Number, Part, reference
from fedsolve.threads import side_by_side

NUMBERS, TEXTS = 1, 2  # what a column holds, as bits that add by "or"
LARGEST = 1e150  # of a number: its square, and sums of many, are finite
MOST_TOLD = 2**16  # levels of a column that a client may have
EPS = float(np.finfo(np.float64).eps)
ROUNDS = 2

Found = dict[tuple[int, str], int]  # rows of each level, by column and text


def counted(cells: Cells, cell: int = 1) -> Arrays:
    """What a client tells first. Levels of fewer than `cell` of its rows are told as one, and named by nobody."""
    kinds, counts, sums = [], [], []
    levels: Found = {}
    for place, (name, column) in enumerate(zip(cells.names, cells.columns, strict=True)):
        if isinstance(column, Texts):
            kinds.append(TEXTS)
            counts.append(len(column))
            sums.append([0.0])
            levels |= {(place, level): rows for level, rows in _levels(column, name).items()}
            continue
        values = _filled(column, name)
        kinds.append(NUMBERS if len(values) else 0)
        counts.append(len(values))
        sums.append(exact.pieces(values))
    told: dict[str, NDArray[Any]] = {
        "rows": np.array(len(cells), dtype=np.int64),
        "kinds": np.array(kinds, dtype=np.uint8),
        "counts": np.array(counts, dtype=np.int64),
        "sums": exact.rows(sums),
        **with_levels(levels),
    }
    return merged(told, cell)


def merged(told: Arrays, cell: int) -> Arrays:
    """What a client tells first, with levels of fewer than `cell` of its rows as one; its rows may have come in parts.

    >>> parts = [counted(Cells(("sex",), (Texts.of(texts),))) for texts in (["f", "m"], ["f", "f"])]
    >>> levels_in(merged(added(*parts), 3))
    {(0, '(other)'): 1, (0, 'f'): 3}
    """
    if cell <= 1:
        return told
    kept = Counter[tuple[int, str]]()
    for (place, level), rows in levels_in(told).items():
        kept[place, level if rows >= cell else OTHER] += rows
    return {**told, **with_levels(kept)}


def _levels(column: Texts, name: str) -> Mapping[str, int]:
    counts = Counter(column.counts())
    if empty := column.empty():
        counts[EMPTY] += empty
    if len(counts) > MOST_TOLD:
        raise DataError(f"column {name!r} has {len(counts)} different texts; at most {MOST_TOLD} can be told: drop it")
    long = next((level for level in counts if len(level) > LONGEST_TEXT), None)
    if long is not None:
        raise DataError(f"column {name!r} has a text of {len(long)} characters; at most {LONGEST_TEXT} are a level")
    return counts


def _filled(column: Float, name: str) -> Float:
    values = column[~np.isnan(column)]
    if len(values) and not np.abs(values).max() <= LARGEST:
        raise DataError(f"column {name!r} must hold finite numbers up to {LARGEST:g}; scale it down, or drop it")
    return values


def squared(cells: Cells, origin: Float) -> Arrays:
    """What a client tells then: sums of squares about the means of all."""
    sums = []
    for place, (name, column) in enumerate(zip(cells.names, cells.columns, strict=True)):
        values = np.empty(0) if isinstance(column, Texts) else _filled(column, name)
        with np.errstate(under="ignore"):
            sums.append(exact.pieces(np.square(values - origin[place])))
    return {"squares": exact.rows(sums)}


def added(left: Arrays, right: Arrays) -> dict[str, NDArray[np.generic]]:
    """What two clients tell in one round, as if they were one. It commutes and associates, bit for bit."""
    if left.keys() != right.keys():
        raise DataError(f"cannot add: {sorted(left.keys() ^ right.keys())} are on one side only")
    if "squares" in left:
        return {"squares": exact.added(left["squares"], right["squares"])}
    levels = Counter(levels_in(left)) + Counter(levels_in(right))
    if len(levels) > MOST_TOLD:
        check_levels(levels)
    return {
        "rows": np.array(left["rows"] + right["rows"]),
        "kinds": left["kinds"] | right["kinds"],
        "counts": left["counts"] + right["counts"],
        "sums": exact.added(left["sums"], right["sums"]),
        **with_levels(levels),
    }


def check_levels(levels: Mapping[tuple[int, str], int]) -> None:
    """Refuse more levels of a column than can be told."""
    place, number = max(Counter(place for place, _ in levels).items(), key=lambda each: each[1])
    if number > MOST_TOLD:
        raise DataError(f"column {place + 1} has {number} different texts; at most {MOST_TOLD} can be told: drop it")


def check(reply: Arrays, columns: int) -> None:
    """Refuse what no client with so many columns tells in either round."""
    kinds = {name: (array.dtype.str, array.ndim) for name, array in reply.items()}
    if kinds not in (_FIRST, _SECOND):
        raise DataError(f"it does not tell what fitting {NAME} takes; got {', '.join(sorted(map(plain, reply)))}")
    for name in ("kinds", "counts", "sums", "squares"):
        if name in reply and len(reply[name]) != columns:
            raise DataError(f"it tells {name} of {len(reply[name])} columns; there are {columns}")
    if "squares" in reply:
        if not (np.isfinite(reply["squares"]).all() and (exact.totals(reply["squares"]) >= 0).all()):
            raise DataError("it tells squares that are not finite, or below zero")
        return
    rows, counts = int(reply["rows"]), reply["counts"]
    if rows < 0 or (counts < 0).any() or (counts > rows).any() or (reply["kinds"] > (NUMBERS | TEXTS)).any():
        raise DataError("it tells counts that no rows have")
    if not np.isfinite(reply["sums"]).all():
        raise DataError("it tells sums that are not finite")
    per_column = np.zeros(columns, dtype=np.int64)
    for (place, _), number in levels_in(reply).items():
        if not (0 <= place < columns and 0 < number <= rows):
            raise DataError("it tells levels that no rows have")
        per_column[place] += number
    if (per_column != np.where(reply["kinds"] & TEXTS, rows, 0)).any():
        raise DataError("it tells levels whose counts are not those of its rows")


_LEVELS = {"levels/columns": ("<i8", 1), "levels/counts": ("<i8", 1), "levels/lengths": ("<i8", 1)}
_FIRST = {
    "rows": ("<i8", 0), "kinds": ("|u1", 1), "counts": ("<i8", 1), "sums": ("<f8", 2), **_LEVELS,
    "levels/texts": ("|u1", 1),
}  # fmt: skip
_SECOND = {"squares": ("<f8", 2)}


def with_levels(levels: Mapping[tuple[int, str], int]) -> dict[str, NDArray[np.generic]]:
    """Levels as arrays, sorted by column and text; texts are bytes, one behind the other."""
    order = sorted(levels)
    texts = [text.encode() for _, text in order]
    return {
        "levels/columns": np.array([place for place, _ in order], dtype=np.int64),
        "levels/counts": np.array([levels[each] for each in order], dtype=np.int64),
        "levels/lengths": np.array([len(text) for text in texts], dtype=np.int64),
        "levels/texts": np.frombuffer(b"".join(texts), dtype=np.uint8),
    }


def levels_in(told: Arrays) -> Found:
    """The levels in arrays of `with_levels`."""
    places, counts, lengths = (told[f"levels/{name}"].tolist() for name in ("columns", "counts", "lengths"))
    texts = told["levels/texts"].tobytes()
    if not len(places) == len(counts) == len(lengths) or min(lengths, default=1) < 1 or sum(lengths) != len(texts):
        raise DataError("levels must be told with as many counts and lengths; those told do not fit together")
    found, end = Found(), 0
    for place, count, length in zip(places, counts, lengths, strict=True):
        start, end = end, end + length
        try:
            text = texts[start:end].decode()
        except UnicodeDecodeError:
            raise DataError("levels must be texts in UTF-8; one of those told is not") from None
        if (place, text) in found or len(text) > LONGEST_TEXT:
            raise DataError(f"a level is told twice, or has more than {LONGEST_TEXT} characters")
        found[place, text] = count
    return found


def means(total: Arrays) -> Float:
    """The mean of each column of numbers, from what all told first; zero for the others."""
    counts = total["counts"]
    return np.where(total["kinds"] == NUMBERS, exact.totals(total["sums"]) / np.maximum(counts, 1), 0.0)


def fitted(names: Sequence[str], total: Arrays, squares: Arrays, cell: int) -> Columns:
    """The map, from what all told in both rounds."""
    rows, kinds, counts, origin = int(total["rows"]), total["kinds"], total["counts"], means(total)
    if not rows:
        raise DataError(f"{NAME} needs training samples, and there are none")
    both = [name for name, kind in zip(names, kinds, strict=True) if kind == NUMBERS | TEXTS]
    if both:
        raise DataError(
            f"column {both[0]!r} holds numbers at some clients and texts at others; write it alike at all, or drop it"
        )
    deviation = np.sqrt(exact.totals(squares["squares"]) / np.maximum(counts, 1))
    # A mean of equal numbers may be off by its last bit, and then they have a deviation.
    scale = np.where(deviation > 4 * EPS * np.abs(origin), deviation, 0.0).tolist()
    levels: list[dict[str, int]] = [{} for _ in names]
    for (place, text), number in levels_in(total).items():
        levels[place][text] = number
    parts: list[Part] = []
    for place, name in enumerate(names):
        if kinds[place] == TEXTS:
            if unseen := rows - sum(levels[place].values()):  # clients whose cells are all empty do not know the kind
                levels[place][EMPTY] = levels[place].get(EMPTY, 0) + unseen
            parts.append(Levels(name, reference(levels[place], cell)))
        else:
            holes = 0 < counts[place] < rows
            parts.append(Number(name, float(origin[place]), scale[place], bool(holes)))
    width = sum(len(part.names) for part in parts)
    if not 0 < width <= WIDEST:
        raise DataError(
            f"{NAME} would give {width} features, and 1 to {WIDEST} are possible; "
            + ("every column is the same in all rows" if not width else "drop columns with many levels")
        )
    try:
        return Columns(tuple(parts))
    except ParameterError as error:
        raise DataError(str(error)) from error


def fit(clients: Iterable[Cells | Array], cell: int) -> Columns:
    """The map that all rows of the clients give; they are gone through twice. Columns of arrays are called by place.

    >>> wards = [Cells(("age",), (np.array([61.0, np.nan]),)), Cells(("age",), (np.array([59.0]),))]
    >>> str(fit(wards, 3))
    'columns:age:60.0/1.0/empty'
    """
    names: list[tuple[str, ...]] = []

    def first(part: Cells) -> Arrays:
        names.append(part.names)
        if part.names != names[0]:
            raise DataError(f"clients must have the same columns in the same order; got {part.names} and {names[0]}")
        return counted(part)

    total = _total(clients, first)
    origin = means(total)
    return fitted(names[0], total, _total(clients, lambda part: squared(part, origin)), cell)


def _total(clients: Iterable[Cells | Array], tell: Callable[[Cells], Arrays]) -> Arrays:
    total: Arrays | None = None
    cells = (part if isinstance(part, Cells) else Cells.numbered(part) for part in clients if len(part))
    for told in side_by_side(tell, cells):
        total = told if total is None else added(total, told)
    if total is None:
        raise DataError(f"{NAME} needs training samples, and there are none")
    return total
