"""Groups of clients on the page: who is in which, on what labels, and how their members fare.

Runs that differ in their seed alone are a `Group` of runs in this package, so a group of clients is a `Cluster` here.
"""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.metrics import words
from fedsolve.report import matrices
from fedsolve.report.gather import Group
from fedsolve.report.runfile import Column, RunFile
from fedsolve.report.tables import cell, count, figure, whole

NAMED = 12  # members of a group that are named before a click


@dataclass(frozen=True)
class Cluster:
    """A group of clients: its members, those with the commonest labels first, and its centre where there is one."""

    name: str
    members: tuple[str, ...]
    shares: Mapping[str, np.ndarray[Any, Any]]  # of each class in a member's samples, where they are known
    centre: tuple[float, ...] = ()


def clusters(run: RunFile) -> list[Cluster]:
    """The groups of a run in the order of their numbers; members with the same commonest class stand together."""
    shares = _shares(run)

    def alike(member: str) -> tuple[int, float, str]:
        own = shares.get(member)
        return (0, 0.0, member) if own is None else (int(own.argmax()), -float(own.max()), member)

    found = []
    for name, entry in sorted(run.result.get("groups", {}).items(), key=lambda item: (len(item[0]), item[0])):
        members = tuple(sorted(entry["members"], key=alike))
        known = {member: shares[member] for member in members if member in shares}
        found.append(Cluster(name, members, known, tuple(entry.get("centre", ()))))
    return found


def _shares(run: RunFile) -> dict[str, np.ndarray[Any, Any]]:
    """The share of each class in a client's samples; clients without any have none."""
    counts = {
        name: np.array(row, dtype=np.float64) for name, row in run.result.get("data", {}).get("split", {}).items()
    }
    return {name: row / row.sum() for name, row in counts.items() if row.sum() > 0}


def nearest(cluster: Cluster, others: Sequence[Cluster]) -> tuple[str, float] | None:
    """The group whose centre is nearest to that of another, and how far it is; None without centres to compare.

    >>> one, two, three = (Cluster(name, (), {}, (place, 0.0)) for name, place in (("0", 1.0), ("1", 4.0), ("2", 2.5)))
    >>> nearest(one, [one, two, three])
    ('2', 1.5)
    """
    if not cluster.centre:
        return None
    distances = [(math.dist(cluster.centre, other.centre), other.name) for other in others if other is not cluster]
    return min(distances)[::-1] if distances else None


# --- what the page shows ---


def sections(groups: Sequence[Group], level: str) -> str:
    """A section for each method that makes groups, from the first of its seeds; nothing where none does."""
    shown = [(group, run) for group in groups for run in [r for r in group.runs if r.result.get("groups")][:1]]
    lower = f"h{int(level[1]) + 1}"
    parts = []
    for number, (group, run) in enumerate(shown):
        found = clusters(run)
        title = "Groups" if len(shown) == 1 else f"Groups of {html.escape(group.name)}"
        figures = "".join(
            f"<figure><{lower}>{name}</{lower}><p>{told}</p>{svg}</figure>" for name, told, svg in _plots(found) if svg
        )
        grid = f'<div class="plots">\n{figures}\n</div>' if figures else ""
        table = f'<div class="scroll">{_table(f"groups-{run.seed}-{number}", run, group.metric, found)}</div>'
        note = f'<p class="note">{_words(group, run, found)}</p>'
        parts.append(f'<section class="groups">\n<{level}>{title}</{level}>\n{note}\n{table}\n{grid}\n</section>')
    return "".join(parts)


def _words(group: Group, run: RunFile, found: Sequence[Cluster]) -> str:
    clients = sum(len(cluster.members) for cluster in found)
    seed = f" with seed {run.seed}" if len(group.runs) > 1 else ""
    return (
        f"{html.escape(group.name)} put {count(clients, 'client')} into {count(len(found), 'group')}{seed}. "
        "What the members of a group have in common is a model in the folder <em>groups</em> of the run."
    )


def _plots(found: Sequence[Cluster]) -> list[tuple[str, str, str]]:
    blocks = {cluster.name: cluster.shares for cluster in found if cluster.shares}
    figures = []
    if blocks:
        told = "A row is a client, its colours the shares of classes in its samples; groups are numbered on the right."
        svg = matrices.blocks(blocks, "class", "client", "share of samples")
        figures.append(("Labels, group by group", told, svg))
    if len(found) > 1 and all(cluster.centre for cluster in found):
        values, names = np.array([cluster.centre for cluster in found]), [cluster.name for cluster in found]
        told = "What clients are grouped by, on average over the members of each group."
        svg = matrices.heat(values, "number in the profile", "group", names, "mean profile")
        figures.append(("Centres", told, svg))
    return figures


_BESIDE: tuple[tuple[str, Column], ...] = (("global", "global"), ("alone", "alone"))


def _table(name: str, run: RunFile, metric: str, found: Sequence[Cluster]) -> str:
    """A row for each group: size, samples, figures as means over its members, and who they are."""
    unit = " %" if words.is_share(metric) else ""
    every = [(f"{head}{unit}", run.figures(whose, metric)) for head, whose in ((words.title(metric), "own"), *_BESIDE)]
    columns = [(head, figures) for head, figures in every if figures]
    near = {cluster.name: nearest(cluster, found) for cluster in found}
    heads = [
        "group",
        "clients",
        "train",
        "test",
        *(head for head, _ in columns),
        *(["nearest"] if any(near.values()) else []),
    ]
    lines = []
    for cluster in found:
        cells = [cell(cluster.name), cell(len(cluster.members))]
        cells += [
            cell(sum(run.clients[member].get(part, 0) for member in cluster.members)) for part in ("train", "test")
        ]
        for _, figures in columns:
            values = [figures[member] for member in cluster.members if member in figures]
            cells.append(figure(metric, statistics.fmean(values) if values else None, 1))
        other = near[cluster.name]
        cells += [cell(f"{other[0]} ({other[1]:.2g} away)", other[1])] if other else []
        lines.append(f'<tr>{"".join(cells)}<td class="members">{_members(cluster.members)}</td></tr>')
    return whole(name, heads, lines, last='<th class="members">members</th>')


def _members(members: Sequence[str]) -> str:
    """The names, in one order for reading; many of them behind a click."""
    names = [f"<span>{html.escape(name)}</span>" for name in sorted(members)]
    if len(names) <= NAMED:
        return ", ".join(names)
    first, rest = names[: NAMED - 2], names[NAMED - 2 :]
    return f"<details><summary>{', '.join(first)} and {len(rest)} more</summary>{', '.join(rest)}</details>"
