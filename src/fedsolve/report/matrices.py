"""Matrices as colours, their rows and columns named where there are few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsolve.report.plots import svg


def heat(
    values: np.ndarray[Any, Any], x: str, y: str, names: Sequence[str], bar: str, columns: Sequence[str] = ()
) -> str:
    """A matrix as colours, its rows and columns named where there are few."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        image = axes.imshow(values, cmap="viridis", aspect="auto", interpolation="nearest")
        axes.grid(visible=False)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for axis in (axes.xaxis, axes.yaxis):  # clients and classes have whole numbers
            axis.get_major_locator().set_params(integer=True)
        if 0 < len(names) <= 20:
            axes.set_yticks(range(len(names)), names, size=7.5)
        if 0 < len(columns) <= 20:
            upright = max(map(len, columns)) <= max(2, 30 // len(columns))
            axes.set_xticks(range(len(columns)), columns, size=7.5, rotation=0 if upright else 90)
        _colour_bar(figure, axes, image, bar)

    return svg(1.7 + 0.135 * max(8, min(len(values), 28)), draw)


def named(
    values: np.ndarray[Any, Any], x: str, y: str, names: Sequence[str], written: Sequence[Sequence[str]], bar: str
) -> str:
    """A square matrix as colours, its rows and columns named; what is `written` stands in its cells."""
    upright = max(map(len, names)) <= max(2, 30 // len(names))

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        image = axes.imshow(values, cmap="viridis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
        axes.grid(visible=False)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_yticks(range(len(names)), names, size=8)
        axes.set_xticks(range(len(names)), names, size=8, rotation=0 if upright else 90)
        for row, line in enumerate(written):
            for column, text in enumerate(line):
                ink = "black" if values[row, column] > 60 else "white"  # viridis begins dark and ends bright
                axes.text(column, row, text, ha="center", va="center", size=8, color=ink)
        _colour_bar(figure, axes, image, bar)

    return svg(1.8 + 0.24 * max(5, min(len(values), 12)), draw)


def blocks(parts: Mapping[str, Mapping[str, np.ndarray[Any, Any]]], x: str, y: str, bar: str) -> str:
    """Rows of shares as colours, in named blocks with a gap between them; rows are named where there are few."""
    rows = [name for block in parts.values() for name in block]
    # A gap is to be seen between many rows as well, and gaps should not take more room than a third of the rows do.
    gap = min(1 + len(rows) // 40, max(1, len(rows) // (3 * len(parts))))
    ends = np.cumsum([len(block) + gap for block in parts.values()])
    starts = dict(zip(parts, [0, *ends[:-1].tolist()], strict=True))
    width = len(next(iter(next(iter(parts.values())).values())))
    values = np.full((ends[-1] - gap, width), np.nan)
    for name, block in parts.items():
        values[starts[name] : starts[name] + len(block)] = np.stack(list(block.values()))
    middles = [starts[name] + (len(block) - 1) / 2 for name, block in parts.items()]
    places = [starts[name] + i for name, block in parts.items() for i in range(len(block))]

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        image = axes.imshow(values, cmap="viridis", vmin=0, aspect="auto", interpolation="nearest")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(x)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(rows) <= 20:
            axes.set_yticks(places, rows, size=7.5)
        else:
            axes.set_yticks([])
            axes.set_ylabel(y)
        shown = _apart(middles, len(values) / 24)
        right = axes.secondary_yaxis("right")
        right.spines[:].set_visible(False)
        right.set_yticks([middles[i] for i in shown], [list(parts)[i] for i in shown], size=8.5, weight="bold")
        right.tick_params(length=0)
        _colour_bar(figure, axes, image, bar)

    return svg(1.7 + 0.135 * max(8, min(len(values), 40)), draw)


def _apart(places: Sequence[float], least: float) -> list[int]:
    """Which of ascending places are labelled, so that no two labels are nearer than `least`.

    >>> _apart([0.0, 1.0, 5.0], 2.0)
    [0, 2]
    """
    kept: list[int] = []
    for number, place in enumerate(places):
        if not kept or place - places[kept[-1]] >= least:
            kept.append(number)
    return kept


def _colour_bar(figure: Any, axes: Any, image: Any, label: str) -> None:
    """What colours stand for, below the axes and as wide as they are."""
    bar = figure.colorbar(image, ax=axes, location="bottom", fraction=0.05, pad=0.04, aspect=40, label=label)
    bar.outline.set_visible(False)
