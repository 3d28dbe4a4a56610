"""A federation from a data frame: labels and owners by the names of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fedsolve.data.catalog import check_target, content_table
from fedsolve.data.federation import Federation
from fedsolve.data.frames import frame_sheet
from fedsolve.data.reading import AUTO, Reading
from fedsolve.data.sheets import content
from fedsolve.data.table import Table


def table_of_frame(
    frame: Any,
    *,
    label: str | Sequence[str],
    client: str = "",
    person: str | None = None,
    drop: Sequence[str] = (),
    task: str = AUTO,
    columns: str = AUTO,
    date_as: str = "",
    name: str = "frame",
) -> Table:
    """The table that a frame of pandas, polars or pyarrow stands for."""
    reading = Reading(
        label=(label,) if isinstance(label, str) else tuple(label),
        client=client,
        person=person or "",
        drop=(drop,) if isinstance(drop, str) else tuple(drop),
        task=task,
        columns=columns,
        date_as=date_as,
        varied=True,
    )
    found = content(frame_sheet(frame, reading, name), reading, partial(check_target, reading))
    return content_table(found, name, reading)


def federation_of_frame(
    frame: Any, *, test: float | str = 0.2, seed: int = 0, features: str = "", **options: Any
) -> Federation:
    """The federation of the owners that a column of a frame names."""
    return table_of_frame(frame, **options).split("by-client", test=test, seed=seed, features=features)
