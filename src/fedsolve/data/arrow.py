"""Tables of pyarrow, from Parquet files or from memory: columns by type, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.arrays import Array
from fedsolve.data import kinds
from fedsolve.data.gathering import Words
from fedsolve.data.kinds import Told
from fedsolve.data.reading import DAYS, NUMBERS, TEXTS, Fault, Reading, refuse, roles
from fedsolve.data.sheets import Sheet, texts_of
from fedsolve.errors import DataError, plain
from fedsolve.features.cells import Texts

GROUP = 8  # columns that are read at a time, side by side
Fetch = Callable[[Sequence[str]], Iterable[Any]]  # columns by their names, in this order


def read_parquet(path: Path, reading: Reading, check_size: Callable[[int], None], *, wanted: bool) -> Sheet:
    """The columns of a Parquet file; `check_size` is told how many bytes the file announces, before it is read."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow: pip install 'fedsolve[data]'") from error
    try:
        with pq.ParquetFile(path) as file:
            announced, schema = file.metadata, file.schema_arrow
            check_size(8 * announced.num_rows * announced.num_columns)
        words = [field.name for field in schema if is_text(pa.types, field.type)]
        with pq.ParquetFile(path, read_dictionary=words, pre_buffer=False) as file:
            found = sheet(str(path), schema.names, announced.num_rows, partial(_fetched, file), reading, wanted=wanted)
        pa.default_memory_pool().release_unused()
        return found
    except (pa.ArrowException, ValueError, TypeError, KeyError, OverflowError, MemoryError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        reason = plain(str(error)) or type(error).__name__
        raise DataError(f"{path} is damaged or not a Parquet file ({reason})") from error


def _fetched(file: Any, names: Sequence[str]) -> Iterator[Any]:
    for start in range(0, len(names), GROUP):
        group = names[start : start + GROUP]
        table = file.read(columns=list(group))
        yield from (table.column(name) for name in group)


def sheet(source: str, names: Sequence[str], rows: int, fetch: Fetch, reading: Reading, *, wanted: bool) -> Sheet:
    """The columns of a table, each fetched when it is its turn."""
    faults: list[Fault] = []
    parts = roles(names, reading, faults, wanted=wanted)
    if len(set(names)) != len(names):
        refuse(source, faults)
    told = {
        name: column(name, values, reading) for name, values in zip(parts.features, fetch(parts.features), strict=True)
    }
    special = {}
    owned = sorted(parts.text_columns() - set(parts.others))
    for name, values in zip(owned, fetch(owned), strict=True):
        try:
            special[name] = plain_values(name, values)
        except DataError as error:
            faults.append(Fault(str(error)))
    others = {
        name: ["" if value is None else str(value) for value in values.to_pylist()]
        for name, values in zip(parts.others, fetch(parts.others), strict=True)
    }
    return Sheet(source, parts, rows, told, special, others, faults)


def column(name: str, values: Any, reading: Reading) -> Told:
    """A column as numbers or texts, by its type."""
    import pyarrow as pa

    types, (values, kind) = pa.types, _undressed(values)
    if types.is_boolean(kind):
        truth = values.cast(pa.int8()).fill_null(-1).to_numpy().astype(np.int32)
        return Told(truth.astype(np.float64) if reading.columns == NUMBERS and truth.min(initial=0) >= 0 else
                    Texts(("false", "true"), truth), "booleans")  # fmt: skip
    if _is_number(types, kind):
        numbers = values.cast(pa.float64(), safe=False).to_numpy().astype(np.float64, copy=False)
        return finite(name, numbers)
    if is_text(types, kind):
        found = texts(values)
        if reading.kinds.get(name) == TEXTS:
            return Told(found, TEXTS)
        return kinds.judged(name, found, reading, spelt=False)
    if types.is_timestamp(kind) or types.is_date(kind):
        if reading.date_as != DAYS:
            return Told(np.empty(len(values)), "dates", (kinds.date_fault(name),))
        return Told(kinds.days_of(values.cast(pa.timestamp("s"), safe=False).to_numpy()), NUMBERS)
    if types.is_null(kind):
        return Told(np.full(len(values), np.nan), NUMBERS)
    fault = Fault(f"column {name!r} holds {plain(str(kind), 40)}; leave it out with --drop {name}")
    return Told(np.empty(len(values)), TEXTS, (fault,))


def _undressed(values: Any) -> tuple[Any, Any]:
    """A column and the type of its values; those of a dictionary of anything but texts are looked up."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        return values, values.type
    kind = values.type.value_type
    return values if is_text(pa.types, kind) else values.cast(kind), kind


def finite(name: str, numbers: Array) -> Told:
    """A column of numbers, in which infinite ones are a fault."""
    faults = [
        Fault(f"column {name!r} must hold finite numbers; got", row, str(numbers[row]))
        for row in np.flatnonzero(np.isinf(numbers))[:1].tolist()
    ]
    return Told(numbers, NUMBERS, tuple(faults))


def texts(values: Any) -> Texts:
    """A column of texts by codes; levels are cleaned as those of files are."""
    import pyarrow as pa

    coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    chunks = coded.chunks if hasattr(coded, "chunks") else [coded]
    words, codes = Words(endless=True), []
    for chunk in chunks:
        known = chunk.dictionary.to_pylist()
        places = words.coded([text or "" for text in known])
        codes.append(np.append(places, -1)[chunk.indices.fill_null(len(known)).to_numpy()])
    return Texts.coded(words.texts, np.concatenate([np.empty(0, dtype=np.int32), *codes]))


def plain_values(name: str, values: Any) -> Array:
    """Labels, clients or persons: integers, floats with NaN, or texts with ""."""
    import pyarrow as pa

    types, (values, kind) = pa.types, _undressed(values)
    if types.is_boolean(kind):
        truth = values.cast(pa.int8()).fill_null(2).to_numpy()
        return np.asarray(np.array(["false", "true", ""])[truth])
    if types.is_integer(kind) and not values.null_count:
        return np.asarray(values.to_numpy())
    if _is_number(types, kind):
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    if is_text(types, kind):
        return texts_of(texts(values))
    raise DataError(f"column {name!r} must hold numbers or texts; got {plain(str(kind), 40)}")


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def is_text(types: Any, kind: Any) -> bool:
    """Whether a type of pyarrow is one of texts."""
    views = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or views(kind))
