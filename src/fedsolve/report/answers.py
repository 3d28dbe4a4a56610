"""Plots of answers: how far probabilities can be trusted, which classes are taken for others, how labels are split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsolve.metrics import calibration
from fedsolve.metrics.calibration import FEW, Bin
from fedsolve.report import looks, matrices, plots
from fedsolve.report.gather import Group
from fedsolve.report.runfile import RunFile

_WRITTEN = 10  # classes up to which numbers stand in a confusion matrix
_LONGEST = 12  # characters of a class's name beside a matrix


def reliability(groups: Sequence[Group]) -> str:
    """How often answers are right that have a probability, one line per method, and below how many there are."""
    curves = [(group, calibration.merged(map(curve_of, group.runs))) for group in groups]
    curves = [(group, bins) for group, bins in curves if bins]
    if not curves:
        return ""
    names = [group.name for group, _ in curves]

    def draw(figure: Any) -> dict[str, list[str]]:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        above.plot([0, 100], [0, 100], color=plots.INK, lw=0.8, ls=(0, (2, 2)))
        told = {}
        for number, (group, bins) in enumerate(curves):
            x, y = [100 * each.probability for each in bins], [100 * each.share for each in bins]
            style, every = looks.look(group.method, group.variant).line(), sum(each.count for each in bins)
            above.plot(x, y, lw=1.2, ms=4, label=group.name, **style)
            points = above.scatter(x, y, s=18, color=style["color"], marker=style["marker"], lw=0)
            points.set_gid(f"calibration-{number}")
            told[f"calibration-{number}"] = [_told(group, each) for each in bins]
            below.plot(x, [100 * each.count / every for each in bins], lw=1.2, **{**style, "marker": ""})
        above.set_ylabel("right, %")
        below.set_ylabel("answers, %")
        below.set_ylim(bottom=0)
        below.set_xlabel("probability, %")
        plots.legend(figure, names)
        return told

    return plots.svg(3.6 + plots.legend_height(names), draw)


def _told(group: Group, each: Bin) -> str:
    return f"{group.name}: {100 * each.share:.1f} % of {each.count} with {100 * each.probability:.1f} %"


def curve_of(run: RunFile) -> tuple[Bin, ...]:
    """The calibration curve of a run, where it has one."""
    return calibration.of_words(run.result.get("calibration", []))


def whose(runs: Sequence[RunFile]) -> str:
    """Whose probabilities a calibration curve is of, in words."""
    names = class_names(runs[0], 2)
    two = runs[0].task.get("count") == 2
    return f"class {names[1]}" if two else "all classes, each against the rest"


def confusion(group: Group) -> str:
    """Which classes a method takes for which, over all clients and seeds; nothing for many classes."""
    tables = [np.array(table) for run in group.runs if (table := square(run.result.get("confusion", [])))]
    if not tables or any(table.shape != tables[0].shape for table in tables):
        return ""
    counts = np.sum(tables, axis=0)
    rows = counts.sum(axis=1, keepdims=True)
    shares = 100 * np.divide(counts, rows, out=np.zeros(counts.shape), where=rows > 0)
    names = [_short(name) for name in class_names(group.runs[0], len(counts))]
    written = [[f"{value:d}" for value in row] for row in counts.tolist()] if len(counts) <= _WRITTEN else []
    return matrices.named(shares, "answer", "true class", names, written, "% of a class's samples")


def square(table: Sequence[Sequence[int]]) -> list[list[int]]:
    """A table with as many columns as rows, of few classes and with samples; nothing for any other."""
    if not 2 <= len(table) <= FEW or any(len(row) != len(table) for row in table):
        return []
    return [list(row) for row in table] if any(map(sum, table)) else []


def class_names(run: RunFile, count: int) -> list[str]:
    """The names of classes, or their numbers where they have none."""
    names = run.task.get("names", [])
    return list(names) if len(names) == count else [str(number) for number in range(count)]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def labels(runs: Sequence[RunFile]) -> tuple[str, str]:
    """How labels are split over clients, in words and drawn: of the first run that tells."""
    for run in runs:
        about = run.result.get("data", {})
        counts, means = about.get("split"), about.get("means")
        if counts:
            names = sorted(counts)
            table = np.array([counts[name] for name in names])
            words = "Samples of each class at each client, first seed."
            classes = [_short(name) for name in class_names(run, table.shape[1])]
            return words, matrices.heat(table, "class", "client", names, "samples", classes)
        if means:
            return "A dot is a client: its samples, and their mean; first seed.", _means(run, means)
    return "", ""


def _means(run: RunFile, means: dict[str, list[float]]) -> str:
    """The number of samples of each client, and the mean of the first number that is predicted."""
    known = [name for name in sorted(means) if name in run.clients]
    names = run.task.get("names") or ["label"]
    sizes = [sum(int(run.clients[name].get(part, 0)) for part in ("train", "test")) for name in known]
    if not known:
        return ""

    def draw(figure: Any) -> dict[str, list[str]]:
        axes = figure.add_subplot()
        values = [means[name][0] for name in known]
        points = axes.scatter(values, sizes, s=16, color=looks.COLOURS[0], alpha=0.6, lw=0)
        points.set_gid("means")
        axes.set_ylim(bottom=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel(f"mean {names[0]}")
        axes.set_ylabel("samples")
        rows = zip(known, values, sizes, strict=True)
        return {"means": [f"{name}: {count} samples, mean {value:.4g}" for name, value, count in rows]}

    return plots.svg(2.4, draw)
