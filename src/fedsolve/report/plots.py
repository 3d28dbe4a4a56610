"""Plots as SVG, their text as text and their colours as variables of the page, so that they follow its theme.

Each is as wide as a phone, and a wider screen shows several side by side.
"""

from __future__ import annotations

import html
import io
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.course import Axis
from fedsolve.metrics import words
from fedsolve.report import charts
from fedsolve.report.gather import Group, gains, per_client
from fedsolve.report.looks import look
from fedsolve.report.runfile import RunFile, figure_of

WIDTH = 4.4  # inches of a plot: 422 pixels, a phone held upright
LEGEND = 0.85 * WIDTH  # as charts count them, whose letters are smaller
INK, FAINT = "#010203", "#040506"  # stand for variables of the page

STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # names are shown as they are, whatever signs they hold
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsolve",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}


def colour(group: Group) -> str:
    """The colour that a group has wherever it is drawn: that of its method."""
    return look(group.method, group.variant).colour


def marker(group: Group) -> str:
    """The marker that tells groups of one colour apart."""
    return look(group.method, group.variant).marker


def clients(groups: Sequence[Group], constant: float | None = None) -> str:
    """Each client's figure as a dot, one row per method, with its global model and training alone below it.

    The best constant answer is a line, unless it is so far away that the dots would be pressed together.
    """
    rows = client_rows(groups)
    if not rows:
        return ""
    metric = groups[0].metric

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, told = _rows(figure, [row.name for row in rows]), {}
        for place, row in enumerate(rows):
            points = axes.scatter(
                [words.scaled(metric, value) for value in row.clients.values()],
                _spread(row.clients, place),
                s=14,
                color=row.colour,
                alpha=0.45,
                lw=0,
            )
            points.set_gid(f"clients-{place}")
            told[f"clients-{place}"] = [f"{name}: {words.text(metric, value)}" for name, value in row.clients.items()]
            if row.means:
                means = [words.scaled(metric, value) for value in row.means]
                middle = statistics.fmean(means)
                spread = [[max(0.0, middle - min(means))], [max(0.0, max(means) - middle)]]  # rounding may go below
                axes.errorbar(middle, place, xerr=spread, fmt="|", ms=20, mew=2.4, color=INK, capsize=3, elinewidth=1.4)
        if constant is not None and near(constant, rows):
            _mark(axes, words.scaled(metric, constant), "constant answer")
        axes.set_xlabel(axis_label(metric, f"{words.title(metric)} on own test data"))
        return told

    return svg(1.0 + _height([row.name for row in rows], 0.52), draw)


def near(constant: float, rows: Sequence[Row]) -> bool:
    """Whether a figure is no farther from all figures of rows than these are from each other."""
    values = [value for row in rows for value in (*row.clients.values(), *row.means)]
    width = max(values) - min(values)
    return min(values) - width <= constant <= max(values) + width


def _mark(axes: Any, value: float, name: str) -> None:
    """A thin vertical line with a name on top."""
    axes.axvline(value, color=INK, lw=0.8, ls=(0, (2, 2)))
    low, high = axes.get_xlim()
    side = "left" if value < low + (high - low) / 3 else "right" if value > high - (high - low) / 3 else "center"
    axes.annotate(
        name, (value, 1), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points", ha=side, size=8
    )


def axis_label(metric: str, name: str) -> str:
    """What stands beside an axis, with the unit, and which way is better where that is down."""
    return f"{name}, %" if words.is_share(metric) else f"{name} (less is better)" * words.less_is_better(metric) or name


@dataclass(frozen=True)
class Row:
    """One row of the plot of clients."""

    name: str
    colour: str
    clients: Mapping[str, float]
    means: Sequence[float]  # over clients, of each run


def client_rows(groups: Sequence[Group]) -> list[Row]:
    """The methods, each followed by its global model, and training alone: one last row where it is the same for all.

    A global model that is the method's own model, and training alone that is `local`, have no second row.
    """
    distinct = [per_client(group) for group in groups if group.method == "local"]
    alones: list[tuple[Group, Mapping[str, float]]] = []
    for group in groups:
        before = per_client(group, "alone")
        if group.beside("alone") and before not in distinct:
            alones.append((group, before))
            distinct.append(before)
    rows = []
    for group in groups:
        clients, shared = per_client(group), per_client(group, "global")
        if clients or group.means():
            rows.append(Row(group.name, colour(group), clients, group.means()))
        if group.beside("global") and shared != clients:
            rows.append(Row(f"{group.name}: global model", colour(group), shared, group.beside("global")))
        if len(alones) > 1:
            names = [(f"{group.name}: training alone", before) for other, before in alones if other is group]
            rows += [Row(name, colour(group), before, group.beside("alone")) for name, before in names]
    if len(alones) == 1:
        rows.append(Row("training alone", INK, alones[0][1], alones[0][0].beside("alone")))
    return rows


def gain(groups: Sequence[Group], runs: Sequence[RunFile]) -> str:
    """How much each client gains over training alone, one row per method that can be held against it."""
    rows = [(group, gains(group, runs)) for group in groups if group.method != "local"]
    rows = [(group, values) for group, values in rows if values]
    if not rows:
        return ""
    names, metric = [group.name for group, _ in rows], groups[0].metric
    unit = " points" if words.is_share(metric) else ""

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, told = _rows(figure, names), {}
        axes.axvline(0, color=INK, lw=1)
        for place, (group, values) in enumerate(rows):
            heights = _spread(values, place)
            points = axes.scatter(list(values.values()), heights, s=14, color=colour(group), alpha=0.6, lw=0)
            points.set_gid(f"gains-{place}")
            lines = [f"{name}: {words.gain_text(metric, value)}{unit}" for name, value in values.items()]
            told[f"gains-{place}"] = lines
            better, worse = sum(v > 0 for v in values.values()), sum(v < 0 for v in values.values())
            text = f"{better} {'gains' if better == 1 else 'gain'}, {worse} {'loses' if worse == 1 else 'lose'}"
            axes.text(1.0, place - 0.34, text, transform=axes.get_yaxis_transform(), ha="right", size=8)
        what = f"points of {words.title(metric)}" if unit else words.title(metric)
        axes.set_xlabel(f"{what} {words.beyond(metric)} training alone")
        return told

    return svg(1.0 + _height(names, 0.55), draw)


def against(
    groups: Sequence[Group],
    cost: Callable[[Group], float | None],
    words_of: Callable[[float], str],
    label: str,
    title: str,
) -> str:
    """A figure against what it costs, one point per method; nothing where there are not two to compare."""
    costs = [(group, cost(group), group.figure()) for group in groups]
    points = [(group, x, y) for group, x, y in costs if x is not None and y is not None]
    if len(points) < 2:
        return ""
    from matplotlib.ticker import LogLocator

    metric = groups[0].metric

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, told = figure.add_subplot(), {}
        positive = [x for _, x, _ in points if x > 0]
        least = min(positive, default=1.0) / 3
        axes.set_xscale("log")
        low, high = least if len(positive) < len(points) else min(positive), max(positive, default=1.0)
        margin = max(1.15, (6 * low / high) ** 0.5)  # at least a factor of six, so that there are two numbers to read
        axes.set_xlim(low / margin, high * margin)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
        axes.xaxis.set_major_formatter(lambda value, _: words_of(value))
        axes.xaxis.set_minor_formatter("")
        for number, (group, x, y) in enumerate(points):
            look: dict[str, Any] = {"color": colour(group), "marker": marker(group), "label": group.name}
            mark = axes.scatter(max(x, least), words.scaled(metric, y), s=46, lw=0, **look)
            mark.set_gid(f"{title}-{number}")
            told[f"{title}-{number}"] = [f"{group.name}: {words.text(metric, y)}, {words_of(x)}"]
        axes.set_xlabel(label + (" (left edge: none)" if any(x <= 0 for _, x, _ in points) else ""))
        axes.set_ylabel(axis_label(metric, f"mean {words.title(metric)}"))
        legend(figure, [group.name for group, _, _ in points], handletextpad=0.2)
        return told

    return svg(2.7 + legend_height([group.name for group, _, _ in points]), draw)


def course(groups: Sequence[Group], axis: Axis) -> str:
    """The mean of the metric after each round, one line per method, against rounds or what they had cost.

    Nothing where no method was evaluated after two of its rounds.
    """
    panel = course_of(groups, axis)
    if panel is None:
        return ""

    def draw(figure: Any) -> None:
        charts.curves(figure.add_subplot(), panel)
        legend(figure, panel.names)

    return svg(2.8 + legend_height(panel.names), draw)


_AXES: dict[Axis, str] = {
    "rounds": "round",
    "seconds": "seconds so far, evaluations included",
    "bytes": "sent so far, all clients, up and down",
}


def course_of(groups: Sequence[Group], axis: Axis) -> charts.Curves | None:
    """The lines of a course, means over seeds; None where no method has two points: they alone are no course.

    Figures are means over clients, or pooled ones where runs have no others, as under secure sums.
    """
    metric, lines = groups[0].metric if groups else "", []
    part = "mean" if any(run.history(metric) for group in groups for run in group.runs) else "pooled"
    for group in groups:
        rounds: dict[int, list[tuple[float, float]]] = {}
        for run in group.runs:
            for stand in run.course():
                x, y = stand.at(axis), figure_of(stand, metric, part)
                if x is not None and y is not None:
                    rounds.setdefault(stand.round, []).append((x, words.scaled(metric, y)))
        if rounds:
            name = group.name if len(rounds) > 1 else f"{group.name}, {_when(group, *rounds)}"
            means = [tuple(map(statistics.fmean, zip(*rounds[number], strict=True))) for number in sorted(rounds)]
            x_values, y_values = zip(*means, strict=True)
            done = (group.mean("rounds") or 1) <= 1
            lines.append(charts.Line(name, group.method, x_values, y_values, group.variant, done=done))
    if not any(len(line.x) > 1 for line in lines):
        return None
    label = axis_label(metric, f"{part} {words.title(metric)}")
    return charts.Curves("", _AXES[axis], label, tuple(lines), unit="bytes" if axis == "bytes" else "")


def _when(group: Group, number: int) -> str:
    """In words, of a method that was evaluated after this round alone."""
    return "1 round" if (group.mean("rounds") or 1) <= 1 else f"after round {number}"


# --- what plots share ---


def svg(height: float, draw: Callable[[Any], Mapping[str, Sequence[str]] | None]) -> str:
    """A plot as SVG for the page. `draw` may return the words that belong to the points of a named collection."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    words = draw(figure) or {}
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = (
        re.sub(r"<!--.*?-->\s*", "", text[text.index("<svg") :])
        .replace(INK, "var(--ink)")
        .replace(FAINT, "var(--faint)")
    )
    for name, lines in words.items():
        text = _with_titles(text, name, lines)
    return re.sub(r'font: ([\d.]+)px [^;"]+', r"font: \1px var(--sans)", text)


def _with_titles(text: str, name: str, lines: Sequence[str]) -> str:
    """The words that a pointer over each point of a collection shows."""
    start = text.index(f'<g id="{name}">')
    remaining = iter(lines)

    def titled(use: re.Match[str]) -> str:
        line = next(remaining, None)
        return use.group(0) if line is None else f"{use.group(1)}><title>{html.escape(line)}</title></use>"

    return text[:start] + re.sub(r"(<use [^>]*?)/>", titled, text[start:], count=len(lines))


def _rows(figure: Any, names: Sequence[str]) -> Any:
    """Axes with one row per name, the first on top."""
    axes = figure.add_subplot()
    axes.set_yticks(range(len(names)), [charts.wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return axes


def _height(names: Sequence[str], least: float) -> float:
    """Inches of all rows: room for the name with the most lines in each."""
    lines = max((charts.wrapped(name).count("\n") + 1 for name in names), default=1)
    return len(names) * max(least, 0.17 * lines + 0.06)


def _spread(values: Mapping[str, float], row: int) -> np.ndarray[Any, Any]:
    """Heights around a row, so that points do not hide each other: the same each time."""
    return np.asarray(row + 0.16 * np.sin(2.4 * np.arange(len(values)) + 1.0))


def legend(figure: Any, names: Sequence[str], **options: float) -> None:
    """What colours and markers stand for, below everything else; names too long for a line have several."""
    columns = _legend_columns(names)
    drawn = figure.legend(loc="outside lower center", ncols=columns, fontsize=8.5, columnspacing=1.0, **options)
    for text in drawn.get_texts():
        text.set_text(charts.folded(text.get_text(), LEGEND))


def _legend_columns(names: Sequence[str]) -> int:
    return 2 if max(map(len, names), default=0) <= 26 else 1


def legend_height(names: Sequence[str]) -> float:
    """Inches that a legend takes."""
    lines = sum(charts.folded(name, LEGEND).count("\n") + 1 for name in names)
    return 0.22 * -(-lines // _legend_columns(names))
