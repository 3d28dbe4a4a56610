"""Figures for papers: values to a drawing, and the drawing to SVG and PDF, with its fonts in it.

A panel is a value: lines, rows of figures with intervals, or stacked bars. What it shows was computed elsewhere.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fedsolve import disk
from fedsolve.report.looks import COLOURS, Look, look

ROW = 0.2  # inches of a row of figures
COLUMN, WIDE, PAGE = 3.4, 5.0, 7.0  # inches: one column of a paper, one and a half, and both
MANY = 10  # lines beyond which a column has no room for their names
INK, FAINT = "#1b1f24", "#d9dde2"
PRINT: dict[Any, Any] = {
    "text.parse_math": False,  # names are shown as they are, whatever signs they hold
    "svg.fonttype": "path",  # letters as outlines: the same wherever it is looked at
    "svg.hashsalt": "fedsolve",
    "pdf.fonttype": 42,  # TrueType, in the file, as publishers want them
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 7.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,  # for marks over the right edge
}
LONGEST = 20  # characters beside an axis, before a name goes on in a further line
STATED = "hollow: the paper's"
FAR = 20.0  # times the least that the greatest is, from which an axis is logarithmic


@dataclass(frozen=True)
class Line:
    """A curve, or a single point."""

    name: str
    method: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    variant: int = 0
    low: tuple[float, ...] = ()  # of an interval about each point, where there are some
    high: tuple[float, ...] = ()
    done: bool = False  # nothing would come after its last point: a thin level line behind it says so

    @property
    def look(self) -> Look:
        """How it is drawn."""
        return look(self.method, self.variant)


@dataclass(frozen=True)
class Mark:
    """A figure that a paper states: at its place, or at the right edge where that is not on the axis."""

    name: str
    method: str
    y: float
    x: float | None = None
    variant: int = 0


@dataclass(frozen=True)
class Curves:
    """Lines over an axis, and what a paper states beside them."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    ticks: tuple[float, ...] = ()  # the only places on the axis that there are, if they are few
    unit: str = ""  # of numbers along the axis: "" or "bytes"
    unit_up: str = ""  # and of those upwards

    @property
    def names(self) -> list[str]:
        """What the legend lists."""
        return list(dict.fromkeys([*(line.name for line in self.lines), *(mark.name for mark in self.marks)]))


@dataclass(frozen=True)
class Row:
    """A figure with its interval."""

    name: str
    method: str
    value: float
    low: float
    high: float
    variant: int = 0


@dataclass(frozen=True)
class Rows:
    """Figures with intervals, one row each, the first on top."""

    title: str
    x: str
    rows: tuple[Row, ...]
    zero: bool = False  # whether a line stands at zero


@dataclass(frozen=True)
class Bars:
    """Sums by their parts, one bar each, the first on top."""

    title: str
    x: str
    parts: tuple[str, ...]
    bars: Mapping[str, tuple[float, ...]]  # a number for each part
    beside: Mapping[str, str]  # words behind a bar


Panel: TypeAlias = Curves | Rows | Bars


def save(panels: Sequence[Panel], folder: Path, name: str) -> tuple[Path, Path]:
    """Write a figure as NAME.svg and NAME.pdf; each is there whole or not at all."""
    contents = render(panels)  # both, before one is written
    places = (folder / f"{name}.svg", folder / f"{name}.pdf")
    for place in places:
        disk.write_bytes(place, contents[place.suffix[1:]], public=True)  # made to be handed on
    return places


def render(panels: Sequence[Panel]) -> dict[str, bytes]:
    """A figure as `svg` and `pdf`. matplotlib must be there.

    The same values give the same bytes.
    """
    import matplotlib

    contents = {}
    with matplotlib.rc_context(PRINT):
        figure = drawing(panels)
        for ending, blank in (("svg", ("Date", "Creator")), ("pdf", ("CreationDate", "Creator", "Producer"))):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, metadata=dict.fromkeys(blank))
            contents[ending] = buffer.getvalue()
    return contents


def drawing(panels: Sequence[Panel]) -> Any:
    """The panels side by side as a matplotlib figure: one as wide as a column, several as wide as a page."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for panel in panels if isinstance(panel, Curves) for name in panel.names))
    marked = any(panel.marks for panel in panels if isinstance(panel, Curves))
    width = PAGE if len(panels) > 1 else COLUMN if len(names) <= MANY else WIDE
    labels = [folded(name, width) for name in [*names, *([STATED] if marked else [])]]
    widest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    columns = max(1, min(len(labels), int(width / (0.062 * widest + 0.5))))
    legend = 0.145 * -(-sum(label.count("\n") + 1 for label in labels) // columns) + 0.1 if names else 0.0
    figure = Figure(figsize=(width, max(map(_height, panels)) + legend))
    every: dict[str, Any] = {}
    for number, (axes, panel) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)):
        axes.set_title(panel.title, loc="left")
        if isinstance(panel, Curves):
            for name, handle in curves(axes, panel, number).items():
                if name not in every or handle.get_linestyle() != "None":  # a line rather than a paper's figure alone
                    every[name] = handle
        elif isinstance(panel, Rows):
            _rows(axes, panel)
        else:
            _bars(axes, panel)
    if names:
        handles = [*(every[name] for name in names), *([_stated()] if marked else [])]
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.0, handlelength=2.6)
    return figure


def folded(name: str, width: float) -> str:
    """A name in lines that a legend of that many inches has room for."""
    return "\n".join(textwrap.wrap(name, int((width - 0.6) / 0.062))) or name


def _height(panel: Panel) -> float:
    """Inches of a panel without the legend."""
    if isinstance(panel, Curves):
        return 2.1
    names = [row.name for row in panel.rows] if isinstance(panel, Rows) else list(panel.bars)
    return 0.75 + ROW * sum(map(_lines, names)) + (0.2 if isinstance(panel, Bars) else 0.0)


# --- lines ---


def curves(axes: Any, panel: Curves, number: int = 0) -> dict[str, Any]:
    """Draw lines and marks; what stands for each name in a legend."""
    handles: dict[str, Any] = {}
    places = [x for line in panel.lines for x in line.x] + [mark.x for mark in panel.marks if mark.x is not None]
    _scale(axes, panel, places)
    for line in panel.lines:
        style = line.look.line()
        every = max(1, len(line.x) // 8)
        if line.done and line.x[-1] < max(places):
            axes.plot([line.x[-1], max(places)], [line.y[-1]] * 2, color=style["color"], lw=0.8)
        (drawn,) = axes.plot(line.x, line.y, markevery=every, label=line.name, **style)
        drawn.set_gid(f"line-{number}-{_word(line.name)}")
        handles[line.name] = drawn
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=style["color"], alpha=0.15, lw=0)
    for mark in panel.marks:
        (drawn,) = _mark(axes, mark)
        drawn.set_gid(f"paper-{number}-{_word(mark.name)}-{mark.y:g}")
        handles.setdefault(mark.name, _sample(mark))
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if not panel.lines:
        _nothing(axes)
    return handles


def _nothing(axes: Any) -> None:
    """Says that a panel has nothing to show."""
    axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center")


def _mark(axes: Any, mark: Mark) -> Any:
    """A hollow marker: at its place, or half over the right edge."""
    style = look(mark.method, mark.variant)
    common = {"color": style.colour, "mfc": "white", "mew": 0.9, "ls": "none", "zorder": 4}
    if mark.x is not None:
        return axes.plot([mark.x], [mark.y], marker=style.marker, ms=5, **common)
    return axes.plot([1.0], [mark.y], marker="<", ms=5, transform=axes.get_yaxis_transform(), clip_on=False, **common)


def _sample(mark: Mark) -> Any:
    """What stands in a legend for a line of which a paper's figure is all there is."""
    from matplotlib.lines import Line2D

    style = look(mark.method, mark.variant)
    return Line2D([], [], color=style.colour, marker=style.marker, mfc="white", ls="none", label=mark.name)


def _stated() -> Any:
    """What stands in a legend for figures of the paper."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=INK, marker="<", mfc="white", mew=0.9, ms=5, ls="none")


def _scale(axes: Any, panel: Curves, places: Sequence[float]) -> None:
    """A logarithmic axis where places are far apart; whole numbers where these are counted."""
    if panel.unit_up == "bytes":
        axes.yaxis.set_major_formatter(lambda value, _: size(value))
    if panel.ticks:
        axes.set_xscale("log" if min(panel.ticks) > 0 and max(panel.ticks) > 5 * min(panel.ticks) else "linear")
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
        axes.minorticks_off()
        axes.margins(x=0.12)
    elif not places:
        axes.set_xticks([])
    elif panel.x.startswith("round"):
        axes.xaxis.get_major_locator().set_params(integer=True)
    else:
        positive = [place for place in places if place > 0]
        if positive and max(positive) > FAR * min(positive):
            none = {"linthresh": min(positive)} if len(positive) < len(places) else {}
            axes.set_xscale("symlog" if none else "log", **none)
        else:
            axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter(lambda value, _: size(value) if panel.unit == "bytes" else f"{value:g}")
        axes.xaxis.set_minor_formatter("")


def size(value: float) -> str:
    """Bytes beside an axis.

    >>> size(2_000_000), size(0)
    ('2 MB', '0')
    """
    if value <= 0:
        return "0"
    power = min(3, max(0, int(math.log10(value) // 3)))
    return f"{value / 1000**power:.3g} {('B', 'KB', 'MB', 'GB')[power]}"


def _word(name: str) -> str:
    """A name as part of an identifier."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# --- rows and bars ---


def wrapped(name: str) -> str:
    """The name in lines that fit beside an axis, broken after a space or a sign where that is possible."""
    lines = [""]
    for part in re.findall(r"[^\s,=:]+[\s,=:]*", name):
        for piece in textwrap.wrap(part, LONGEST, drop_whitespace=False):
            if len((lines[-1] + piece).rstrip()) > LONGEST:
                lines.append("")
            lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines if line)


def _lines(name: str) -> float:
    """How many rows of figures a name takes beside an axis: one, or as many lines as it has, which are narrower."""
    return max(1.0, 0.65 * (wrapped(name).count("\n") + 1) + 0.15)


def _named(axes: Any, names: Sequence[str]) -> list[float]:
    """A row for each name, the first on top: where they are."""
    places, end = [], 0.0
    for lines in map(_lines, names):
        places.append(end + lines / 2)
        end += lines
    axes.set_yticks(places, [wrapped(name) for name in names])
    axes.set_ylim(end or 1.0, 0.0)
    if not names:
        _nothing(axes)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return places


def _rows(axes: Any, panel: Rows) -> None:
    places = _named(axes, [row.name for row in panel.rows])
    if panel.zero:
        axes.axvline(0, color=INK, lw=0.8)
    for place, row in zip(places, panel.rows, strict=True):
        style = look(row.method, row.variant)
        spread = [[max(0.0, row.value - row.low)], [max(0.0, row.high - row.value)]]
        drawn = axes.errorbar(row.value, place, xerr=spread, fmt=style.marker, color=style.colour, ms=4.5, capsize=2)
        drawn.lines[0].set_gid(f"row-{_word(row.name)}")
    axes.set_xlabel(panel.x)


def _bars(axes: Any, panel: Bars) -> None:
    places = _named(axes, list(panel.bars))
    ends = [0.0] * len(panel.bars)
    shown = [number for number in range(len(panel.parts)) if any(bar[number] for bar in panel.bars.values())]
    for number in shown:
        widths = [bar[number] for bar in panel.bars.values()]
        hatch = ("", "////", "....")[number % 3]
        drawn = axes.barh(
            places, widths, left=ends, height=0.6, color=COLOURS[number], hatch=hatch, edgecolor="white",
            lw=0, label=panel.parts[number],
        )  # fmt: skip
        for name, patch in zip(panel.bars, drawn, strict=True):
            patch.set_gid(f"bar-{_word(name)}-{_word(panel.parts[number])}")
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, name, end in zip(places, panel.bars, ends, strict=True):
        axes.annotate(panel.beside.get(name, ""), (end, place), (3, 0), textcoords="offset points", va="center", size=6)
    axes.margins(x=0.3 if any(panel.beside.values()) else 0.05)
    axes.set_xlabel(panel.x)
    if len(shown) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(shown), borderpad=0, handlelength=1.2)
        axes.set_title(panel.title, loc="left", pad=16)
