"""What is at the head of the page: what runs have in common, and every method in a row, over its clients and seeds."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence

from fedsolve.metrics import words
from fedsolve.report.gather import Group, Section
from fedsolve.report.runfile import RunFile
from fedsolve.report.tables import cell, duration, figure, size, titled, whole
from fedsolve.shown import gathered

_USUAL = {"features": ("None", "identity"), "participation": ("None", "1.0"), "limit": ("None",)}
_NETWORKS = ("model", "network")  # parameters that name one


def facts(members: Sequence[RunFile], runs: Sequence[RunFile]) -> str:
    """What the runs of a section have in common; the seeds are of all `runs`, failed ones too."""
    items = []
    for name in ("limit", "clients", "partition", "features", "test", "participation"):
        values = sorted({str(run.settings.get(name)) for run in members})
        if values and values != ["None"] and not set(values) <= set(_USUAL.get(name, ())):
            items.append(_fact(name, [value for value in values if value != "None"]))
    rounds = sorted({int(number) for run in members if (number := run.number("rounds")) is not None})
    if rounds and rounds != [1]:
        items.append(
            _fact("rounds", [f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 2 else " and ".join(map(str, rounds))])
        )
    networks = {str(run.settings.get("set", {}).get(name)) for run in members for name in _NETWORKS}
    named = sorted(networks - {"None"})
    if named:
        items.append(_fact("network" if len(named) == 1 else "networks", named))
    told = sorted({gathered(run.result.get("privacy", {})) for run in members} - {""})
    items += [f"<li>{html.escape(sentence)}</li>" for sentence in told]
    seeds = sorted({run.seed for run in runs})
    items.append(_fact("seed" if len(seeds) == 1 else "seeds", list(map(str, seeds))))
    return "".join(items)


def _fact(name: str, values: Sequence[str]) -> str:
    return f"<li><b>{name}</b> {html.escape(', '.join(values))}</li>"


def table(parts: Sequence[Section]) -> str:
    """Every method in a row: over clients and seeds where there is one data set and split, else its mean on each.

    Nothing for a single run, which the sentence at the head tells whole.
    """
    if len(parts) > 1:
        return _by_section(parts)
    groups = [group for part in parts for group in part.groups]
    return _over_seeds(parts[0]) if sum(len(group.runs) for group in groups) > 1 else ""


def _over_seeds(part: Section) -> str:
    """Means over seeds with their standard deviation, and what a run costs."""
    metric, lines = part.metric, []
    several = any(len(group.runs) > 1 for group in part.groups)
    for group in part.groups:
        cells = [cell(group.name), cell(len(group.runs)), figure(metric, group.figure())]
        cells += [_spread(group)] if several else []
        cells += [figure(metric, _mean(group, which)) for which in ("pooled", "worst_decile")]
        rounds, sent, seconds = group.mean("rounds"), group.sent(), group.mean("seconds", "total")
        cells.append(cell("-", "") if rounds is None else cell(f"{rounds:g}", rounds))
        cells.append(cell("-", "") if sent is None else cell(size(sent), sent))
        cells.append(cell("-", "") if seconds is None else cell(duration(seconds), seconds))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heads = ["method", "seeds", words.label(metric, "mean"), *(["± over seeds"] if several else [])]
    heads += ["pooled", "worst tenth", "rounds", "sent", "time"]
    spread = "; ± is the standard deviation over seeds" if several else ""
    told = f"Means over seeds of the mean over clients, of all test samples, of the worst tenth of clients{spread}."
    return titled("Methods", told, whole("overview", heads, lines))


def _mean(group: Group, which: str) -> float | None:
    values = [value for run in group.runs if (value := run.summary(which, group.metric)) is not None]
    return statistics.fmean(values) if values else None


def _deviation(group: Group) -> float | None:
    """Over seeds, of the mean over clients; None for one seed."""
    means = group.means()
    return statistics.stdev(means) if len(means) > 1 else None


def _spread(group: Group) -> str:
    value = _deviation(group)
    return cell("-", "") if value is None else cell(f"{words.number(group.metric, value, 2)}", value)


def _by_section(parts: Sequence[Section]) -> str:
    """Mean figures of every method on every data set and split, each by its own metric, with ± over seeds."""
    names = list(dict.fromkeys(group.name for part in parts for group in part.groups))
    lines = []
    for name in names:
        cells = [cell(name)]
        for part in parts:
            group = next((group for group in part.groups if group.name == name), None)
            value, spread = (group.figure(), _deviation(group)) if group else (None, None)
            if value is None or spread is None:
                cells.append(figure(part.metric, value, 1))
            else:
                shown = f"{words.number(part.metric, value, 1)} ± {words.number(part.metric, spread, 1)}"
                cells.append(cell(shown, value))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if any(part.constant() is not None for part in parts):
        constants = "".join(figure(part.metric, part.constant(), 1) for part in parts)
        lines.append(f"<tr>{cell('best constant answer')}{constants}</tr>")
    common = {part.metric for part in parts}
    title = words.label(parts[0].metric, "Mean") if len(common) == 1 else "Means"
    heads = [part.name if len(common) == 1 else f"{part.name}: {words.label(part.metric)}" for part in parts]
    told = "Over clients, then over seeds; ± is the standard deviation over seeds."
    several = any(len(group.runs) > 1 for part in parts for group in part.groups)
    return titled(
        title, told if several else "Over clients, then over seeds.", whole("overview", ["method", *heads], lines)
    )
