"""A figure of a paper: what its panels show of the runs of a recipe, and what the paper's text says of it.

A figure is a recipe as a table is: its cells are the runs and the paper's figures. A `Drawing` says how they are shown;
`report.charts` draws.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedsolve.course import AXES, Axis, Stand, course
from fedsolve.methods import method_class
from fedsolve.report.charts import Bars, Curves, Line, Mark
from fedsolve.report.charts import Panel as Drawn

if TYPE_CHECKING:
    from fedsolve.reproduce.recipe import Cell

Results: TypeAlias = Callable[["Cell"], Sequence[Mapping[str, Any]]]
"""The result.json of each run of a cell that succeeded."""
Part: TypeAlias = Literal["mean", "pooled"]
LABELS: Mapping[str, str] = {
    "rounds": "round",
    "seconds": "seconds so far",
    "bytes": "sent so far, all clients",
    "mean": "mean accuracy over clients, %",
    "pooled": "accuracy of all test samples, %",
}
PARTS = ("compute", "waiting", "transfer")  # of a client's seconds


@dataclass(frozen=True)
class Course:
    """Each run as a curve over its rounds; with `ends`, its last point alone."""

    title: str
    column: str  # of the cells that it shows
    x: Axis = "rounds"
    y: Part | Axis = "mean"
    ends: bool = False


@dataclass(frozen=True)
class Places:
    """The figures of cells, a line per row: where on the axis a column stands is given."""

    title: str
    x: str
    y: str
    places: Mapping[str, float]  # by column


@dataclass(frozen=True)
class Costs:
    """The seconds of a client by what they were spent on, as the mean over clients; a bar per row."""

    title: str
    column: str


Panel: TypeAlias = Course | Places | Costs


@dataclass(frozen=True)
class Claim:
    """What a paper's text says that one method saves against others, in percent."""

    words: str
    percent: float
    panel: int
    saver: str  # a row
    rivals: tuple[str, ...]
    at: float | None = None  # the round of the rivals; None: their last
    up_to: bool = False  # the greatest saving, not the least
    part: str = ""  # of a client's seconds; empty: all of them


@dataclass(frozen=True)
class Drawing:
    """The panels of a figure, side by side, and what the text says of them."""

    panels: tuple[Panel, ...]
    where: str  # in the paper its figures stand
    claims: tuple[Claim, ...] = ()
    timed: bool = False  # whether the legend has the seconds of runs


@dataclass(frozen=True)
class Filled:
    """A figure with our values."""

    panels: tuple[Drawn, ...]
    claims: tuple[tuple[Claim, float | None], ...] = field(default=())  # with our saving, where there is one

    def json(self) -> dict[str, Any]:
        """For programs."""
        claims = [{**asdict(claim), "ours": ours} for claim, ours in self.claims]
        return {"panels": [asdict(panel) for panel in self.panels], "claims": claims}

    def csv(self) -> str:
        """One line for each point, ours and the paper's."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("panel", "series", "whose", "x", "y"))
        for panel in self.panels:
            points: list[tuple[object, ...]] = []
            if isinstance(panel, Curves):
                points = [
                    (line.name, "ours", x, y) for line in panel.lines for x, y in zip(line.x, line.y, strict=True)
                ]
                points += [(mark.name, "paper", mark.x, mark.y) for mark in panel.marks]
            elif isinstance(panel, Bars):
                bars = panel.bars.items()
                points = [
                    (name, "ours", part, value)
                    for name, values in bars
                    for part, value in zip(panel.parts, values, strict=True)
                ]
            writer.writerows((panel.title, *point) for point in points)
        return text.getvalue()

    def sentences(self) -> list[str]:
        """What the paper's text says, and ours beside it."""
        return [
            f"{claim.saver} saves {'up to' if claim.up_to else 'at least'} {claim.percent:g} % {claim.words}; "
            f"ours: {'-' if ours is None else f'{ours:.1f} %'}"
            for claim, ours in self.claims
        ]


def fill(drawing: Drawing, cells: Sequence[Cell], results: Results) -> Filled:
    """The panels with the values of the runs that there are."""
    names = {cell.row: cell.row + (_times(cell.row, cells, results) if drawing.timed else "") for cell in cells}
    variants = _variants(cells)
    panels: list[Drawn] = []
    for panel in drawing.panels:
        if isinstance(panel, Course):
            panels.append(_course(panel, cells, results, names, variants))
        elif isinstance(panel, Places):
            panels.append(_places(panel, cells, results, variants))
        else:
            panels.append(_costs(panel, cells, results))
    claims = tuple((claim, _saved(claim, drawing, cells, results)) for claim in drawing.claims)
    return Filled(tuple(panels), claims)


def _method(cell: Cell) -> str:
    return cell.settings.method if cell.settings else ""


def _variants(cells: Sequence[Cell]) -> dict[str, tuple[str, int]]:
    """The method of each row, and its number among the rows of that method."""
    found: dict[str, tuple[str, int]] = {}
    for cell in sorted(cells, key=lambda cell: not _method(cell)):  # a row may have cells that are not run
        method = _method(cell)
        if cell.row not in found:
            found[cell.row] = (method, sum(other == method for other, _ in found.values()))
    return found


def _times(row: str, cells: Sequence[Cell], results: Results) -> str:
    """The seconds of the runs of a row, for the legend."""
    times = [
        statistics.fmean(each["seconds"]["total"] for each in found) for found in map(results, _of(row, cells)) if found
    ]
    return f" ({', '.join(f'{seconds:.3g} s' for seconds in times)})" if times else ""


def _of(row: str, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.row == row]


def _course(
    panel: Course,
    cells: Sequence[Cell],
    results: Results,
    names: Mapping[str, str],
    variants: Mapping[str, tuple[str, int]],
) -> Curves:
    shown = [cell for cell in cells if cell.column == panel.column]
    lines, marks = [], []
    for cell in shown:
        (method, variant), points = variants[cell.row], _points(panel, results(cell))
        if points:
            x, y = zip(*points, strict=True)
            done = cell.settings is not None and method_class(cell.settings.method, cell.settings.set).closed_form
            lines.append(Line(names[cell.row], method, x, y, variant, done=done and not panel.ends))
        if cell.paper is not None and panel.y not in AXES:
            marks.append(Mark(names[cell.row], method, cell.paper, None, variant))
    unit, up = ("bytes" if each == "bytes" else "" for each in (panel.x, panel.y))
    return Curves(panel.title, LABELS[panel.x], LABELS[panel.y], tuple(lines), tuple(marks), unit=unit, unit_up=up)


def _points(panel: Course, found: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """A point for each round, as the mean over seeds: those rounds that all of them have."""
    courses = [
        {stand.round: point for stand in course(each["history"]) if (point := _point(panel, stand))} for each in found
    ]
    rounds = sorted(set.intersection(*map(set, courses))) if courses else []
    means = []
    for number in rounds[-1:] if panel.ends else rounds:
        points = [each[number] for each in courses]
        means.append((statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)))
    return means


def _point(panel: Course, stand: Stand) -> tuple[float, float] | None:
    x = stand.at(panel.x)
    if panel.y == "mean" or panel.y == "pooled":
        share = stand.figures.get("accuracy", {}).get(panel.y)
        y = None if share is None else 100 * share
    else:
        y = stand.at(panel.y)
    return None if x is None or y is None else (x, y)


def _places(panel: Places, cells: Sequence[Cell], results: Results, variants: Mapping[str, tuple[str, int]]) -> Curves:
    lines, marks = [], []
    for row, (method, variant) in variants.items():
        shown = [cell for cell in _of(row, cells) if cell.column in panel.places]
        points = [
            (panel.places[cell.column], value) for cell in shown if (value := cell.value(results(cell))) is not None
        ]
        if points:
            x, y = zip(*sorted(points), strict=True)
            lines.append(Line(row, method, x, y, variant))
        stated = [(panel.places[cell.column], cell.paper) for cell in shown if cell.paper is not None]
        marks += [Mark(row, method, y, x, variant) for x, y in stated]
    ticks = tuple(sorted(set(panel.places.values())))
    return Curves(panel.title, panel.x, panel.y, tuple(lines), tuple(marks), ticks=ticks)


def _costs(panel: Costs, cells: Sequence[Cell], results: Results) -> Bars:
    shown = [cell for cell in cells if cell.column == panel.column]
    bars = {cell.row: _means(found) for cell in shown if (found := results(cell))}
    beside = {cell.row: f"paper: {cell.paper:g} s a round" for cell in shown if cell.paper is not None}
    return Bars(panel.title, "seconds of a client", PARTS, bars, beside)


def _means(found: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    every = [client_seconds(result) for result in found]
    return tuple(statistics.fmean(each.get(part, 0.0) for each in every) for part in PARTS)


def client_seconds(result: Mapping[str, Any]) -> dict[str, float]:
    """A client's seconds by what they were spent on, as the mean over clients.

    Where a result does not tell, they are the time in which all clients computed here, over their number.

    >>> client_seconds({"clients": {"a": {}, "b": {}}, "seconds": {"clients": 3.0}})
    {'compute': 1.5}
    """
    told = [client["seconds"] for client in result["clients"].values() if client.get("seconds")]
    if not told:
        return {"compute": result["seconds"]["clients"] / len(result["clients"])}
    return {part: statistics.fmean(float(each.get(part, 0.0)) for each in told) for part in PARTS}


# --- what the text says ---


def _saved(claim: Claim, drawing: Drawing, cells: Sequence[Cell], results: Results) -> float | None:
    """What the saver saves here, in percent; None where somebody has no figure, or not at that round."""
    panel = drawing.panels[claim.panel]
    if isinstance(panel, Places):
        return None
    found = {cell.row: results(cell) for cell in cells if cell.column == panel.column}
    mine = _spent(claim, panel, found.get(claim.saver, ()), at=None)
    others = [_spent(claim, panel, found.get(row, ()), claim.at) for row in claim.rivals]
    spent = [each for each in others if each]
    if mine is None or len(spent) < len(others):  # "at least" is of all of them
        return None
    savings = [100 * (1 - mine / each) for each in spent]
    return max(savings) if claim.up_to else min(savings)


def _spent(claim: Claim, panel: Course | Costs, found: Sequence[Mapping[str, Any]], at: float | None) -> float | None:
    """What runs spent, as the mean over seeds: by the axis of the panel that counts it."""
    if not found:
        return None
    if isinstance(panel, Costs):
        parts = dict(zip(PARTS, _means(found), strict=True))
        return parts[claim.part] if claim.part else sum(parts.values())
    axis: Axis = "bytes" if "bytes" in (panel.x, panel.y) else "seconds"
    stands = [[stand for stand in course(each["history"]) if at is None or stand.round == at] for each in found]
    values = [each[-1].at(axis) for each in stands if each]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(found) else None
