"""Plots as SVG, their text as text and their colours as variables of the page, so that they follow its theme.

Each is as wide as a phone, and a wider screen shows several side by side.
"""

from __future__ import annotations

import html
import io
import re
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.report.gather import Group, RunFile, gains, per_client

WIDTH = 4.4  # inches of a plot: 422 pixels, a phone held upright
# Okabe and Ito's colours, which colour-blind readers tell apart, without the two that vanish on white or on black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
INK, FAINT = "#010203", "#040506"  # stand for variables of the page
LONGEST_LABEL = 20  # characters beside an axis, before a name goes on in a further line

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
    """The colour that a group has in every plot of a page."""
    return COLOURS[group.look % len(COLOURS)]


def marker(group: Group) -> str:
    """The marker that tells groups of one colour apart."""
    return MARKERS[group.look // len(COLOURS) % len(MARKERS)]


def accuracy(groups: Sequence[Group]) -> str:
    """Each client's accuracy as a dot, one row per method, with its global model and training alone below it."""
    rows = accuracy_rows(groups)
    if not rows:
        return ""

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, words = _rows(figure, [row.name for row in rows]), {}
        for place, row in enumerate(rows):
            points = axes.scatter(
                [100 * value for value in row.clients.values()],
                _spread(row.clients, place),
                s=14,
                color=row.colour,
                alpha=0.45,
                lw=0,
            )
            points.set_gid(f"clients-{place}")
            words[f"clients-{place}"] = [f"{name}: {100 * value:.1f} %" for name, value in row.clients.items()]
            if row.means:
                means = [100 * value for value in row.means]
                middle = statistics.fmean(means)
                spread = [[middle - min(means)], [max(means) - middle]]
                axes.errorbar(middle, place, xerr=spread, fmt="|", ms=20, mew=2.4, color=INK, capsize=3, elinewidth=1.4)
        axes.set_xlabel("accuracy on own test data, %")
        return words

    return svg(1.0 + _height([row.name for row in rows], 0.52), draw)


@dataclass(frozen=True)
class Row:
    """One row of the plot of accuracies."""

    name: str
    colour: str
    clients: Mapping[str, float]
    means: Sequence[float]  # over clients, of each run


def accuracy_rows(groups: Sequence[Group]) -> list[Row]:
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
    names = [group.name for group, _ in rows]

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, words = _rows(figure, names), {}
        axes.axvline(0, color=INK, lw=1)
        for place, (group, values) in enumerate(rows):
            heights = _spread(values, place)
            points = axes.scatter(list(values.values()), heights, s=14, color=colour(group), alpha=0.6, lw=0)
            points.set_gid(f"gains-{place}")
            words[f"gains-{place}"] = [f"{name}: {value:+.1f} points" for name, value in values.items()]
            better, worse = sum(v > 0 for v in values.values()), sum(v < 0 for v in values.values())
            text = f"{better} {'gains' if better == 1 else 'gain'}, {worse} {'loses' if worse == 1 else 'lose'}"
            axes.text(1.0, place - 0.34, text, transform=axes.get_yaxis_transform(), ha="right", size=8)
        axes.set_xlabel("points of accuracy over training alone")
        return words

    return svg(1.0 + _height(names, 0.55), draw)


def against(
    groups: Sequence[Group],
    cost: Callable[[Group], float | None],
    words_of: Callable[[float], str],
    label: str,
    title: str,
) -> str:
    """Accuracy against what it costs, one point per method; nothing where there are not two to compare."""
    costs = [(group, cost(group), group.accuracy()) for group in groups]
    points = [(group, x, y) for group, x, y in costs if x is not None and y is not None]
    if len(points) < 2:
        return ""
    from matplotlib.ticker import LogLocator

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, words = figure.add_subplot(), {}
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
            mark = axes.scatter(
                max(x, least), 100 * y, s=46, color=colour(group), marker=marker(group), lw=0, label=group.name
            )
            mark.set_gid(f"{title}-{number}")
            words[f"{title}-{number}"] = [f"{group.name}: {100 * y:.1f} %, {words_of(x)}"]
        axes.set_xlabel(label + (" (left edge: none)" if any(x <= 0 for _, x, _ in points) else ""))
        axes.set_ylabel("mean accuracy, %")
        _legend(figure, [group.name for group, _, _ in points], handletextpad=0.2)
        return words

    return svg(2.7 + _legend_height([group.name for group, _, _ in points]), draw)


def convergence(groups: Sequence[Group]) -> str:
    """Mean accuracy after each round, one line per method; nothing where no method takes a second round."""
    if max((group.mean("rounds") or 0 for group in groups), default=0) <= 1:
        return ""
    last = max(int(group.mean("rounds") or 1) for group in groups)
    lines = []
    for group in groups:
        rounds: dict[int, list[float]] = {}
        for run in group.runs:
            for number, value in run.history().items():
                rounds.setdefault(number, []).append(100 * value)
        if rounds:
            name = group.name if len(rounds) > 1 else f"{group.name}, {_when(group, *rounds)}"
            lines.append((group, name, sorted(rounds), [statistics.fmean(rounds[number]) for number in sorted(rounds)]))
    if not any(len(x) > 1 for _, _, x, _ in lines):
        return ""  # points alone are no course of things

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for group, name, x, y in lines:
            if len(x) > 1 or (group.mean("rounds") or 1) > 1:
                every = max(1, len(x) // 8)
                axes.plot(x, y, color=colour(group), marker=marker(group), markevery=every, ms=4, label=name)
            else:  # one round only: a level line
                axes.plot([x[0], last], [y[0], y[0]], color=colour(group), ls=(0, (4, 3)), lw=1.2, label=name)
        axes.set_xlabel("round")
        axes.set_ylabel("mean accuracy, %")
        _legend(figure, [name for _, name, _, _ in lines])

    return svg(2.8 + _legend_height([name for _, name, _, _ in lines]), draw)


def _when(group: Group, number: int) -> str:
    """In words, of a method that was evaluated after this round alone."""
    return "1 round" if (group.mean("rounds") or 1) <= 1 else f"after round {number}"


def heat(values: np.ndarray[Any, Any], x: str, y: str, names: Sequence[str], bar: str) -> str:
    """A matrix as colours, its rows named where there are few."""

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
        _colour_bar(figure, axes, image, bar)

    return svg(1.7 + 0.135 * max(8, min(len(values), 28)), draw)


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
    axes.set_yticks(range(len(names)), [_wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return axes


def _colour_bar(figure: Any, axes: Any, image: Any, label: str) -> None:
    """What colours stand for, below the axes and as wide as they are."""
    bar = figure.colorbar(image, ax=axes, location="bottom", fraction=0.05, pad=0.04, aspect=40, label=label)
    bar.outline.set_visible(False)


def _wrapped(name: str) -> str:
    """The name in lines that fit beside an axis, broken after a space or a sign where that is possible."""
    lines = [""]
    for part in re.findall(r"[^\s,=:]+[\s,=:]*", name):
        for piece in textwrap.wrap(part, LONGEST_LABEL, drop_whitespace=False):
            if len((lines[-1] + piece).rstrip()) > LONGEST_LABEL:
                lines.append("")
            lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines if line)


def _height(names: Sequence[str], least: float) -> float:
    """Inches of all rows: room for the name with the most lines in each."""
    lines = max((_wrapped(name).count("\n") + 1 for name in names), default=1)
    return len(names) * max(least, 0.17 * lines + 0.06)


def _spread(values: Mapping[str, float], row: int) -> np.ndarray[Any, Any]:
    """Heights around a row, so that points do not hide each other: the same each time."""
    return np.asarray(row + 0.16 * np.sin(2.4 * np.arange(len(values)) + 1.0))


def _legend(figure: Any, names: Sequence[str], **options: float) -> None:
    columns = _legend_columns(names)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=8.5, columnspacing=1.0, **options)


def _legend_columns(names: Sequence[str]) -> int:
    return 2 if max(map(len, names), default=0) <= 26 else 1


def _legend_height(names: Sequence[str]) -> float:
    return 0.22 * -(-len(names) // _legend_columns(names))
