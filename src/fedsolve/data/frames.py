"""Data frames (pandas, polars or pyarrow, none of them imported here) as arrays, with their columns taken by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsolve.arrays import Array
from fedsolve.errors import DataError


def in_columns(inputs: Any, names: Sequence[str], whose: str) -> Array:
    """Inputs as one array, and the columns of a frame in the order of `names`, whatever their order in the frame.

    A frame must have each of these columns once and no other; `whose` begins the sentence that says what is wrong.
    Anything without columns, or with no names to go by, is taken as it is. Columns that are not all numbers give an
    array of objects.
    """
    columns = _columns(inputs)
    if columns is None or not names:
        try:
            return np.asarray(inputs)
        except ValueError as error:
            raise DataError(f"{whose}: inputs must form one array; got rows of different lengths ({error})") from error
    counts, expected = Counter(columns), set(names)
    faults = {
        "missing": [name for name in names if name not in counts],
        "not among them": [column for column in counts if column not in expected],
        "more than once": [column for column, count in counts.items() if column in expected and count > 1],
    }
    if any(faults.values()):
        text = "; ".join(f"{fault}: {', '.join(map(str, which))}" for fault, which in faults.items() if which)
        raise DataError(f"{whose} must have the {len(names)} columns that were trained on, in any order; {text}")
    # Column by column: numbers of several types stay numbers, where pandas makes objects of truth values and floats.
    parts = [np.asarray(inputs[name]) for name in names]
    if not all(part.dtype.kind in "biuf" for part in parts):
        parts = [part.astype(object) for part in parts]
    return np.column_stack(parts)


def _columns(inputs: Any) -> list[Any] | None:
    """The names of the columns; None for what is not a frame."""
    if hasattr(type(inputs), "column_names"):  # pyarrow, whose `columns` are the values
        return list(inputs.column_names)
    return list(inputs.columns) if hasattr(inputs, "columns") else None
