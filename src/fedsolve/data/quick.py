"""Text files without quotes, read by pyarrow where it is installed: the same columns as by `csv`, in far less time.

Without quotes a row is a line and a cell what stands between two separators, so that there is one way to read it. What
pyarrow cannot make numbers of goes the slow way, cell by cell; where anything else is odd about a file, all of it does.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.arrays import Float
from fedsolve.data.dialect import Dialect, marked
from fedsolve.data.gathering import EMPTY_WORDS, Numbers, Unknown, Words
from fedsolve.threads import side_by_side

BLOCK = 2**21  # bytes that are read at a time
FIRST = 2**18  # bytes of rows that tell which columns begin with numbers
SMALL = 2**20  # bytes of a file that is not worth it


def readable(path: Path, encoding: str) -> bool:
    """Whether a file can be read so: large enough, in UTF-8, without a quote, and pyarrow is there."""
    if encoding or path.stat().st_size < SMALL or find_spec("pyarrow") is None or not marked(path).startswith("utf-8"):
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') < 0 and content.find(b"\0") < 0


def begins_with_numbers(path: Path, dialect: Dialect, names: Sequence[str]) -> set[str]:
    """The columns whose first cells are numbers and nothing else, as far as pyarrow reads at once."""
    import pyarrow as pa
    from pyarrow import csv

    kinds = dict.fromkeys(map(str, range(len(names))), pa.string())
    try:
        with csv.open_csv(path, **_options(dialect, FIRST, kinds)) as reader:
            first = next(iter(reader), None)
    except (pa.ArrowException, OSError):
        return set()
    if first is None:
        return set()
    found = {name: _numbers(first.column(str(place)), dialect.comma) for place, name in enumerate(names)}
    return {name for name, values in found.items() if values is not None and not np.isnan(values).all()}


def gather(
    path: Path,
    dialect: Dialect,
    names: Sequence[str],
    columns: Mapping[str, Unknown | Numbers | Words],
    numeric: set[str],
) -> int | None:
    """Each block of rows to the columns, and how many rows there are; None where others have to look at the file.

    The `numeric` columns are read as numbers at once. After None, columns hold a part of the file: begin anew.
    """
    import pyarrow as pa
    from pyarrow import csv

    places = {str(place): name for place, name in enumerate(names)}
    as_numbers = {
        place for place, name in places.items() if name in numeric and not isinstance(columns.get(name), Words)
    }
    try:
        kinds = {place: pa.float64() if place in as_numbers else pa.string() for place in places}
        wanted = [place for place, name in places.items() if name in columns]
        table = csv.read_csv(path, **_options(dialect, BLOCK, kinds, wanted))
        rows, waiting = table.num_rows, list(zip(wanted, table.columns, strict=True))
        del table

        def taken(job: tuple[str, Any]) -> bool:
            return _take(columns[places[job[0]]], job[1], job[0] in as_numbers, dialect.comma)

        # Columns that are taken in are let go: no more are there twice than are worked on.
        every = all(side_by_side(taken, (waiting.pop() for _ in wanted)))
    except (pa.ArrowException, OSError):
        return None
    pa.default_memory_pool().release_unused()
    return rows if every else None


def _take(column: Unknown | Numbers | Words, chunks: Any, as_numbers: bool, comma: bool) -> bool:
    """All rows of a column; false where others have to look at it."""
    for cells in chunks.chunks:
        if not as_numbers:
            _add(column, cells, comma)
            continue
        values = np.asarray(cells.to_numpy(zero_copy_only=False), dtype=np.float64)
        if np.isinf(values).any():
            return False
        _numbers_of(column).add_values(values)
    return True


def _options(dialect: Dialect, block: int, kinds: Mapping[str, Any], wanted: Sequence[str] = ()) -> dict[str, Any]:
    """How a file is read, with columns called by their places."""
    from pyarrow import csv

    return {
        "read_options": csv.ReadOptions(block_size=block, column_names=list(kinds), skip_rows=1),
        "parse_options": csv.ParseOptions(delimiter=dialect.separator, quote_char=False, ignore_empty_lines=True),
        "convert_options": csv.ConvertOptions(
            column_types=dict(kinds),
            include_columns=list(wanted),
            null_values=[*EMPTY_WORDS],
            strings_can_be_null=True,
            decimal_point="," if dialect.comma else ".",
        ),
    }


def _numbers_of(column: Unknown | Numbers | Words) -> Numbers:
    if isinstance(column, Unknown):
        column = column.as_numbers()
    if not isinstance(column, Numbers):
        raise TypeError("a column of texts was read as numbers")
    return column


def _add(column: Unknown | Numbers | Words, cells: Any, comma: bool) -> None:
    if isinstance(column, Unknown):
        if column.found is None:
            column.add(cells.fill_null("").to_pylist())
            return
        column = column.found
    if isinstance(column, Words):
        coded = cells.dictionary_encode()
        places = np.append(column.coded([text or "" for text in coded.dictionary.to_pylist()]), np.int32(-1))
        column.add_coded(places[coded.indices.fill_null(len(places) - 1).to_numpy()].astype(np.int32))
        return
    values = _numbers(cells, comma)
    if values is None:
        column.add(cells.fill_null("").to_pylist())
    else:
        column.add_values(values)


def _numbers(cells: Any, comma: bool) -> Float | None:
    """Cells as finite numbers, NaN where they are empty; None where one of them is something else."""
    import pyarrow as pa
    from pyarrow import compute

    try:
        if comma:
            if compute.any(compute.match_substring(cells, ".")).as_py():
                return None
            cells = compute.replace_substring(cells, ",", ".")
        values = np.asarray(cells.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowException:
        return None
    return None if np.isinf(values).any() else values
