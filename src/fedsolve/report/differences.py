"""How clearly the best method is ahead: differences over the same clients and seeds, and ranks over data sets."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from fedsolve.metrics import words
from fedsolve.report.gather import Group, Section
from fedsolve.report.tables import cell, titled, whole
from fedsolve.study.paired import Difference, Figures, Ranks, difference, holm, ranks

_TOLD = (
    "How much worse each method is than the best, over the same clients and seeds: mean difference, the interval that "
    "covers 95 % (clients drawn again within seeds), and the p-value of Wilcoxon's signed-rank test, adjusted for the "
    "number of methods (Holm). Which one is best was seen on the same figures, so that its lead is flattered a little."
)


@dataclass(frozen=True)
class Lead:
    """The best method of a section, and how far it is ahead of each other one, above zero, in the unit shown."""

    section: Section
    best: Group
    over: dict[str, Difference]  # by the name of the group behind


def leads(parts: Sequence[Section]) -> list[Lead]:
    """One for each section with two methods that have figures of the same clients."""
    found = []
    for part in parts:
        scored = [group for group in part.groups if group.figure() is not None]
        if not scored:
            continue
        best, *others = scored
        mine, behind = signed_figures(best), {group.name: signed_figures(group) for group in others}
        over = {name: difference(mine, theirs) for name, theirs in behind.items() if _meet(mine, theirs)}
        if over:
            found.append(Lead(part, best, holm(over)))
    return found


def _meet(mine: Figures, theirs: Figures) -> bool:
    return any(mine[seed].keys() & theirs[seed].keys() for seed in mine.keys() & theirs.keys())


def signed_figures(group: Group) -> Figures:
    """Figures by seed and client, in the unit that is shown, larger ones better."""
    metric = group.metric
    return {
        run.seed: {name: words.gain(metric, value, 0.0) for name, value in run.figures("own", metric).items()}
        for run in group.runs
    }


def ranked(parts: Sequence[Section]) -> Ranks | None:
    """Ranks over sections, of methods that have a figure on each; None where there are too few of either."""
    names = [{group.name for group in part.groups if group.figure() is not None} for part in parts]
    common = set.intersection(*names) if names else set()
    if len(parts) < 2 or len(common) < 2:
        return None
    tables = [
        {
            group.name: words.gain(part.metric, group.figure() or 0.0, 0.0)
            for group in part.groups
            if group.name in common
        }
        for part in parts
    ]
    return ranks(tables)


def tables(parts: Sequence[Section]) -> str:
    """The sections of the page; nothing where no two methods can be compared."""
    text, several = "", len(parts) > 1
    lines = []
    for lead in leads(parts):
        for name, each in lead.over.items():
            cells = [cell(name), *([cell(lead.section.name, text=True)] if several else []), cell(lead.best.name)]
            cells += [cell(f"{value:.2f}", value) for value in (each.mean, each.low, each.high)]
            cells += [cell(_p(each.adjusted), each.adjusted), cell(each.pairs)]
            lines.append(f"<tr>{''.join(cells)}</tr>")
    if lines:
        heads = ["method", *(["data"] if several else []), "best", "behind by", "from", "to", "p", "pairs"]
        text += titled("Which differences are real", _TOLD, whole("differences", heads, lines))
    found = ranked(parts)
    if found:
        rows = sorted(found.means.items(), key=lambda item: item[1])
        body = [f"<tr>{cell(name)}{cell(f'{mean:.2f}', mean)}</tr>" for name, mean in rows]
        text += titled("Ranks over data sets", _rank_words(found), whole("ranks", ["method", "mean rank"], body))
    return text


def _rank_words(found: Ranks) -> str:
    groups = [", ".join(map(html.escape, group)) for group in found.alike()]
    alike = f" Not told apart: {'; '.join(groups)}." if groups else ""
    return (
        f"1 is best, over {found.sets} data sets or splits. Mean ranks that differ by less than {found.critical:.2f} "
        f"cannot be told apart at 5 % (Nemenyi); that all are alike has p {_p(found.p)} (Friedman).{alike}"
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def sentences(parts: Sequence[Section]) -> list[str]:
    """The same for a terminal: one line for each method behind the best."""
    several, found = len(parts) > 1, []
    for lead in leads(parts):
        unit = " points" if words.is_share(lead.section.metric) else ""
        where = f"{lead.section.name}: " if several else ""
        for name, each in lead.over.items():
            interval = f"{each.low:.2f} to {each.high:.2f}, p {_p(each.adjusted)}, {each.pairs} pairs"
            found.append(f"{where}{lead.best.name} is ahead of {name} by {each.mean:.2f}{unit} ({interval})")
    return found


# --- tables for papers ---

_COLUMNS = ("data", "method", "metric", "seeds", "mean", "best", "behind", "low", "high", "p", "p_holm", "pairs")


def records(parts: Sequence[Section]) -> list[dict[str, object]]:
    """One line for each method of each section: its mean over clients and seeds, and how far it is behind the best."""
    found = []
    by_section = {id(lead.section): lead for lead in leads(parts)}
    for part in parts:
        lead = by_section.get(id(part))
        for group in part.groups:
            line: dict[str, object] = dict.fromkeys(_COLUMNS, "")
            value = group.figure()
            line |= {"data": part.name, "method": group.name, "metric": group.metric, "seeds": len(group.runs)}
            line["mean"] = "" if value is None else words.scaled(group.metric, value)
            each = lead.over.get(group.name) if lead else None
            if lead and each:
                numbers = (each.mean, each.low, each.high, each.p, each.adjusted, each.pairs)
                line |= dict(zip(_COLUMNS[6:], numbers, strict=True)) | {"best": lead.best.name}
            found.append(line)
    return found


def to_csv(parts: Sequence[Section]) -> str:
    """The records as a file of comma separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records(parts))
    return text.getvalue()


def to_latex(parts: Sequence[Section]) -> str:
    """The records as a table of LaTeX with booktabs: the best of each data set in bold, intervals of the others."""
    lines = [r"\begin{tabular}{llrr}", r"\toprule", r"data & method & mean & behind the best (95 \%) \\"]
    last = None
    for line in records(parts):
        if line["data"] != last:
            lines.append(r"\midrule")
        mean = f"{line['mean']:.2f}" if isinstance(line["mean"], float) else "--"
        behind = f"{line['behind']:.2f} ({line['low']:.2f} to {line['high']:.2f})" if line["best"] else ""
        head = "" if line["data"] == last else _escaped(str(line["data"]))
        is_best = not line["best"] and line["data"] != last
        shown = rf"\textbf{{{mean}}}" if is_best else mean
        lines.append(rf"{head} & {_escaped(str(line['method']))} & {shown} & {behind} \\")
        last = line["data"]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    r"""Text as LaTeX takes it.

    >>> print(_escaped("cifar_100, 5 %"))
    cifar\_100, 5 \%
    """
    return "".join(f"\\{letter}" if letter in "&%$#_{}" else letter for letter in text if letter not in "\\~^")
