"""The page: the outcome in a sentence, plots by data and split, and tables of every run and every metric."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources

from fedsolve.course import Axis
from fedsolve.metrics import words
from fedsolve.report import aggregate, answers, clusters, coefficients, differences, matrices, plots
from fedsolve.report.aggregate import facts
from fedsolve.report.gather import Group, Section, gains, sections
from fedsolve.report.runfile import Column, RunFile
from fedsolve.report.tables import cell, count, duration, figure, size, titled, whole
from fedsolve.study.experiment import command

_WHOSE: tuple[tuple[Column, str], ...] = (("own", ""), ("global", ": global model"), ("alone", ": training alone"))


def render(runs: Sequence[RunFile], metric: str = "") -> str:
    """The page for these runs, by a metric or each by its own. matplotlib must be there, with `plots.STYLE`."""
    parts = sections(runs, metric)
    content = {
        "TITLE": html.escape(_title(runs)),
        "SUMMARY": _summaries(parts, runs),
        "FACTS": facts(parts[0].runs if len(parts) == 1 else (), runs),
        "PLOTS": "\n".join(_section(part, runs, alone=len(parts) == 1) for part in parts),
        "OVERVIEW": aggregate.table(parts),
        "METRICS": differences.tables(parts) + _metrics(parts) + coefficients.tables(parts),
        "TABLE": _table(parts, runs),
        "FOOT": _foot(parts, runs),
    }
    text = resources.files("fedsolve.report").joinpath("page.html").read_text(encoding="utf-8")
    for name, value in content.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text


def _title(runs: Sequence[RunFile]) -> str:
    names = sorted({str(run.result.get("data", {}).get("name", "data")) for run in runs if not run.failure})
    return f"fedsolve on {', '.join(names)}" if names else "fedsolve: no run succeeded"


def _foot(parts: Sequence[Section], runs: Sequence[RunFile]) -> str:
    copies = sum(len(group.copies) for part in parts for group in part.groups)
    twice = f" ({copies} of them {'a copy' if copies == 1 else 'copies'}, not counted twice)" if copies else ""
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return f"Written {when} from {count(len(runs), 'run')}{twice}; nothing was computed again."


# --- the outcome in words ---


def _summaries(parts: Sequence[Section], runs: Sequence[RunFile]) -> str:
    if not parts:
        return "No run has figures to show."
    if len(parts) == 1:
        return _summary(parts[0], runs)
    return (
        f"{count(sum(len(part.runs) for part in parts), 'run')} on {len(parts)} data sets or splits. "
        "Each is compared for itself: no figure is a mean over several of them."
    )


def _summary(part: Section, runs: Sequence[RunFile]) -> str:
    """The outcome of a section in a sentence or two."""
    metric = part.metric
    scored = [group for group in part.groups if group.figure() is not None]
    if not scored:
        if any(run.result.get("privacy", {}).get("secure") for run in part.runs):
            return "Figures of each client stay with it; those of all test samples together are in the table of runs."
        measured = any(run.metrics() for run in part.runs)
        return (
            f"These runs have no {words.title(metric)}; their metrics are in a table below."
            if measured
            else "No run has figures to show."
        )
    best = scored[0]
    text = _single(best) if len(scored) == 1 else _best(scored)
    values = gains(best, runs)
    if values and best.method != "local":
        better, worse = sum(v > 0 for v in values.values()), sum(v < 0 for v in values.values())
        text += (
            f"; {better} of {count(len(values), 'client')} {'gains' if better == 1 else 'gain'} against training alone"
        )
        text += f", {worse} {'loses' if worse == 1 else 'lose'}"
    if len(scored) == 1:
        return text + "." + _below_constant(part) + _cost(best)
    least = min((group for group in scored if group.sent()), key=lambda group: group.sent() or 0.0, default=None)
    if least is not None and least is not best:
        text += f". {html.escape(least.name)} sends least: {size(least.sent() or 0.0)}"
    return text + "." + _below_constant(part)


def _below_constant(part: Section) -> str:
    """Which methods do worse than the best constant answer, in a sentence; nothing where none does."""
    constant = part.constant()
    if constant is None:
        return ""
    figures = [(group.name, group.figure()) for group in part.groups]
    worse = [name for name, value in figures if value is not None and words.gain(part.metric, value, constant) < 0]
    if not worse:
        return ""
    names = " and ".join(filter(None, [", ".join(worse[:-1]), worse[-1]]))
    verb, side = "is" if len(worse) == 1 else "are", "worse than" if words.less_is_better(part.metric) else "below"
    value = words.text(part.metric, constant)
    return f" {html.escape(names)} {verb} {side} the best constant answer, {words.title(part.metric)} {value}."


def _single(group: Group) -> str:
    clients = max(len(run.figures("own", group.metric)) for run in group.runs)
    over = f" over {count(clients, 'client')}" if clients else " over clients"
    name, value = words.title(group.metric), _mean(group, group.means())
    figure = f"{value} {name}" if words.is_share(group.metric) else f"{name} {value}"
    text = f"<b>{html.escape(group.name)}</b>: {figure} on average{over}{_range(group)}"
    beside = [("training alone", group.beside("alone")), ("the global model", group.beside("global"))]
    told = [f"{name} {_mean(group, means)}" for name, means in beside if means]
    return text + (f"; {', '.join(told)}" if told else "")


def _best(scored: Sequence[Group]) -> str:
    best = scored[0]
    level = [f"<b>{html.escape(group.name)}</b>" for group in scored if group.figure() == best.figure()]
    one = len(level) == 1
    names = level[0] if one else f"{', '.join(level[:-1])} and {level[-1]}"
    if best.metric == "accuracy":
        place = f"{'is' if one else 'are'} the most accurate"
    else:
        most = "least" if words.less_is_better(best.metric) else "greatest"
        place = f"{'has' if one else 'have'} the {most} {words.title(best.metric)}"
    told = f"{names} {place}: {_mean(best, best.means())} on average over clients"
    return told + (_range(best) if one else "")


def _cost(group: Group) -> str:
    sent, seconds, rounds = group.sent(), group.seconds(), group.mean("rounds")
    words = []
    if sent:
        turns = f" in {count(int(rounds), 'round')}" if rounds and rounds == int(rounds) else ""
        words.append(f"sends {size(sent)} up and down{turns}")
    if seconds is not None:
        words.append(f"takes {duration(seconds)}")
    return f" It {' and '.join(words)}." if words else ""


def _mean(group: Group, means: Sequence[float]) -> str:
    return words.text(group.metric, statistics.fmean(means))


def _range(group: Group) -> str:
    means = group.means()
    if len(means) < 2:
        return ""
    noun = "seed" if len({run.seed for run in group.runs}) == len(group.runs) else "run"
    low, high = (words.number(group.metric, value) for value in (min(means), max(means)))
    return f" ({low} to {high} over {count(len(means), noun)})"


# --- plots ---


def _section(part: Section, runs: Sequence[RunFile], *, alone: bool) -> str:
    """The plots of one data set and split, under its name where it does not stand alone."""
    level = "h2" if alone else "h3"
    figures = [
        f"<figure><{level}>{title}</{level}><p>{told}</p>{svg}</figure>"
        for title, told, svg in _plots(part, runs)
        if svg
    ]
    grid = f'<div class="plots">\n{"".join(figures)}\n</div>' + clusters.sections(part.groups, level)
    if alone:
        return grid
    return (
        f'<section class="split"><h2>{html.escape(part.name)}</h2><p class="summary">{_summary(part, runs)}</p>'
        f"<ul>{facts(part.runs, part.runs)}</ul>\n{grid}</section>"
    )


_COURSES: tuple[tuple[str, str, Axis], ...] = (
    ("Round by round", "", "rounds"),
    ("Byte by byte", ", against all bytes so far", "bytes"),
    ("Second by second", ", against all seconds so far", "seconds"),
)


def _plots(part: Section, runs: Sequence[RunFile]) -> list[tuple[str, str, str]]:
    groups, metric = part.groups, part.metric
    whiskers = ", its whiskers the range over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    emulated = {run.settings.get("devices") is not None for group in groups for run in group.runs}
    machines = " or ".join({False: "this machine", True: "emulated devices"}[each] for each in sorted(emulated))
    constant = part.constant()
    beside = "" if constant is None else f" Best constant answer: {words.text(metric, constant)}."
    figures = [
        (
            words.heading(metric),
            f"A dot is a client, the bar the mean over clients{whiskers}.{beside}",
            plots.clients(groups, constant),
        ),
        ("Who gains, who loses", "Each client against training alone on the same data.", plots.gain(groups, runs)),
        (
            "What it sends",
            "Bytes that all clients together send and receive.",
            plots.against(groups, Group.sent, size, "up and down, all clients", "sent"),
        ),
        (
            "How long it takes",
            f"Seconds of the whole run on {machines}.",
            plots.against(groups, Group.seconds, duration, "whole run", "time"),
        ),
        *(
            (title, f"{words.heading(metric)} after each round{against}; thin and level: done after one.", svg)
            for title, against, axis in _COURSES
            if (svg := plots.course(groups, axis))
        ),
        (
            "Calibration",
            "How often answers are right that have a probability, all test samples pooled: of "
            f"{html.escape(answers.whose(part.runs))}. On the dashed line it is as often as they say.",
            answers.reliability(groups),
        ),
        *_confusion(groups),
        ("How the data are split", *answers.labels(part.runs)),
    ]
    for weights in [run.weights for run in part.runs if run.weights is not None][:1]:
        told = "Row: a client. Column: whom it listens to. Its own weight stands on the diagonal."
        figures.append(("What FedAPA learnt", told, matrices.heat(weights, "client", "client", [], "weight")))
    return figures


def _confusion(groups: Sequence[Group]) -> list[tuple[str, str, str]]:
    """The answers of the best method that has them counted."""
    for group in groups:
        svg = answers.confusion(group)
        if svg:
            whose = f"of {html.escape(group.name)}" if len(groups) > 1 else "of all clients"
            return [("Answers, class by class", f"Personal models {whose}, all test samples pooled.", svg)]
    return []


# --- tables ---


def _metrics(parts: Sequence[Section]) -> str:
    """Every metric but those that sections are shown by, as the mean over clients and then over seeds."""
    every = [(name, part) for part in parts for run in part.runs for name in run.metrics()]
    candidates = list(dict.fromkeys(name for name, part in every if name != part.metric))
    rows: list[tuple[str, str, list[float | None]]] = []
    for part in parts:
        for group in part.groups:
            for whose, behind in _WHOSE:
                means = [group.means(whose, metric) for metric in candidates]
                if any(means):
                    values = [statistics.fmean(each) if each else None for each in means]
                    rows.append((group.name + behind, part.name, values))
    columns = [i for i in range(len(candidates)) if any(values[i] is not None for _, _, values in rows)]
    if not columns:
        return ""
    lines = []
    for name, data, values in rows:
        cells = [cell(name), *([cell(data, text=True)] if len(parts) > 1 else [])]
        entries = [values[i] for i in columns]
        cells += [cell("-", "") if value is None else cell(f"{value:.4g}", value) for value in entries]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heads = ["method", *(["data"] if len(parts) > 1 else []), *(candidates[i] for i in columns)]
    return titled("Further metrics", "Means over clients, then over seeds.", whole("metrics", heads, lines))


_SUMMARIES = (("mean", "mean"), ("pooled", "pooled"), ("std", "std"), ("worst tenth", "worst_decile"))
_BESIDE: tuple[tuple[str, Column], ...] = (("global", "global"), ("alone", "alone"))


def _table(parts: Sequence[Section], runs: Sequence[RunFile]) -> str:
    """Every run in a row. A cell's data-value is what it is sorted by."""
    members = [(part, group, run) for part in parts for group in part.groups for run in (*group.runs, *group.copies)]
    names = {run.place: (group.name, part.name, part.metric) for part, group, run in members}
    several, metrics = len(parts) > 1, list(dict.fromkeys(part.metric for part in parts))
    mixed = len(metrics) > 1
    unit = " %" if not mixed and all(map(words.is_share, metrics)) else ""
    beside = [(head, whose) for head, whose in _BESIDE if any(run.figures(whose, m) for run in runs for m in metrics)]
    heads = ["method", *(["data"] if several else []), "seed", *(["metric"] if mixed else [])]
    heads += [head if head == "std" else f"{head}{unit}" for head, _ in (*_SUMMARIES, *beside)]
    heads += ["rounds", "up", "down", "seconds"]
    lines = []
    for run in sorted(runs, key=lambda run: (names.get(run.place, (run.method, ""))[1::-1], run.seed)):
        name, data, metric = names.get(run.place, (run.method, "-", ""))
        cells = [cell(name), *([cell(data, text=True)] if several else []), cell(run.seed)]
        if run.failure:
            rest = f'<td colspan="{len(heads) + 1 - len(cells)}">failed: {html.escape(run.failure)}</td>'
            lines.append(f'<tr class="failed">{"".join(cells)}{rest}</tr>')
            continue
        values = [run.summary(part, metric) for _, part in _SUMMARIES]
        values += [run.mean(whose, metric) for _, whose in beside]
        cells += [cell(words.title(metric), text=True)] if mixed else []
        cells += [figure(metric, value, unit=mixed) for value in values]
        rounds, seconds = run.number("rounds"), run.seconds()
        cells.append(cell("-", "") if rounds is None else cell(int(rounds)))
        for way in ("up", "down"):
            sent = run.number("bytes", way)
            cells.append(cell("-", "") if sent is None else cell(size(sent), sent))
        cells.append(cell("-", "") if seconds is None else cell(f"{seconds:.2f}", seconds))
        code = html.escape(command(run.settings))
        lines.append(f'<tr>{"".join(cells)}<td><button class="copy">copy</button><code>{code}</code></td></tr>')
    return whole("runs", heads, lines, last="<th>command</th>")
