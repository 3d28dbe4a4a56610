"""The plots of a page as files for papers: one figure each, as SVG and PDF, as wide as a column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedsolve import disk
from fedsolve.course import AXES
from fedsolve.metrics import words
from fedsolve.report import charts, plots
from fedsolve.report.charts import Panel, Row, Rows
from fedsolve.report.differences import leads, signed_figures
from fedsolve.report.gather import Group, Section
from fedsolve.study.paired import difference


def save(parts: Sequence[Section], folder: Path) -> list[Path]:
    """Write what there is of each section into a folder, which is made; nothing is written unless all can be drawn.

    Names are `accuracy`, or the metric shown, then `rounds`, `seconds` and `bytes` for courses, and `differences`;
    where there are several sections, each behind the name of its own.
    """
    contents = {name: charts.render([panel]) for name, panel in panels(parts).items()}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, endings in contents.items():
        for ending, content in endings.items():
            written.append(folder / f"{name}.{ending}")
            disk.write_bytes(written[-1], content, public=True)
    return written


def panels(parts: Sequence[Section]) -> dict[str, Panel]:
    """The figures of sections, by the name of their file."""
    found: dict[str, Panel] = {}
    every = {id(lead.section): lead for lead in leads(parts)}
    for part in parts:
        start, metric = f"{_word(part.name)}-" if len(parts) > 1 else "", words.title(part.metric)
        rows = [row for group in part.groups if (row := _row(group)) is not None]
        if rows:
            label = plots.axis_label(part.metric, f"mean {metric} over clients")
            found[f"{start}{_word(metric)}"] = Rows(part.name, label, tuple(rows))
        for axis in AXES:
            panel = plots.course_of(part.groups, axis)
            if panel is not None:
                found[f"{start}{axis}"] = panel
        lead = every.get(id(part))
        if lead is not None:
            behind = {group.name: group for group in part.groups}
            rows = [
                Row(name, behind[name].method, -each.mean, -each.high, -each.low, behind[name].variant)
                for name, each in lead.over.items()
            ]
            unit = f"points of {metric}" if words.is_share(part.metric) else metric
            found[f"{start}differences"] = Rows(part.name, f"{unit} behind {lead.best.name}", tuple(rows), zero=True)
    return found


def _row(group: Group) -> Row | None:
    """The mean of a group and the interval that covers 95 %: clients are drawn again within their seeds."""
    mine = signed_figures(group)
    if not any(mine.values()):
        return None
    sign = -1.0 if words.less_is_better(group.metric) else 1.0
    each = difference(mine, {seed: dict.fromkeys(figures, 0.0) for seed, figures in mine.items()})
    low, high = sorted((sign * each.low, sign * each.high))
    return Row(group.name, group.method, sign * each.mean, low, high, group.variant)


def _word(name: str) -> str:
    """A name as part of a file's.

    >>> _word("digits, clients 10")
    'digits-clients-10'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
