"""Running a recipe: what is lacking for it here, the runs that are not done yet, and its table or figure in files."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from fedsolve import disk
from fedsolve.data import catalog
from fedsolve.errors import FedsolveError
from fedsolve.features import maps
from fedsolve.progress import Progress
from fedsolve.report import charts
from fedsolve.reproduce.drawing import fill
from fedsolve.reproduce.recipe import Cell, FilledTable, Recipe
from fedsolve.study.compare import compare, data_of
from fedsolve.study.experiment import Settings, method_of

Reply: TypeAlias = Mapping[str, Any] | str
"""The result.json of a run, or why there is none."""
Report: TypeAlias = Callable[[str, int, Reply, int, int, float], None]
"""Method, seed, its reply, how many runs are done, of how many, and about how many seconds the rest will take."""


def lacking(recipe: Recipe) -> dict[str, int]:
    """What is missing on this machine, one sentence each, and how many of the runs need it. Nothing is read or run.

    >>> from fedsolve.reproduce.recipe import Cell
    >>> ours = Cell("AFL", "iid", 90.0, Settings(method="afl", data="digits", clients=4))
    >>> lacking(Recipe("small", "A small table", "On digits.", (ours,)))
    {}
    """
    return dict(Counter(reason for run in distinct(recipe) if (reason := _reason_against(run))))


def distinct(recipe: Recipe) -> list[Settings]:
    """Each run once, those with the same data side by side."""
    unique = {folder_name(run): run for cell in recipe.cells for run in cell.runs()}
    return sorted(unique.values(), key=lambda run: str(data_of(run)))


def reproduce(
    recipe: Recipe, out: Path, report: Report, progress: Progress | None = None, runs: Path | None = None
) -> FilledTable:
    """Run what is not yet in `runs`, and leave the table in `out` as table.md and table.json.

    A figure is figure.svg and figure.pdf beside them, not drawn without matplotlib, and figure.csv with every point.
    Recipes may share `runs` (default: a folder of that name in `out`): what several of them need is then run once.
    Runs for which something is lacking are not tried.

    >>> import tempfile
    >>> from fedsolve.reproduce.recipe import Cell
    >>> ours = Cell("AFL", "iid", 90.0, Settings(method="afl", data="digits", clients=4, partition="iid", alone=False))
    >>> recipe = Recipe("small", "A small table", "On digits.", (ours,))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = reproduce(recipe, Path(folder), lambda *_: None)
    >>> 80 < table.ours["AFL", "iid"] < 100
    True
    """
    for place in (out / "table.md", (runs or out / "runs") / "run"):
        disk.check_writable(place)
    disk.private_folder(out)
    every = distinct(recipe)
    replies: dict[str, Reply] = {folder_name(run): reason for run in every if (reason := _reason_against(run))}
    impossible = frozenset(replies)
    possible = [run for run in every if folder_name(run) not in impossible]
    times: dict[str, list[float]] = {}

    def keep(_: str, seed: int, reply: Reply, number: int, total: int) -> None:
        run = possible[number - 1]
        replies[folder_name(run)] = reply
        if not isinstance(reply, str):
            times.setdefault(run.method, []).append(reply["seconds"]["total"])
        report(run.method, seed, reply, number, total, seconds_left(possible[number:], times))

    compare(possible, runs or out / "runs", keep, progress, folder_name, one_data_set=False)
    table = _filled(recipe, replies, impossible)
    contents = {
        "table.md": table.markdown().encode(),
        "table.json": json.dumps(table.json(), indent=1).encode() + b"\n",
    }
    if table.drawn is not None:
        contents["figure.csv"] = table.drawn.csv().encode()
        if drawable():
            contents |= {f"figure.{ending}": text for ending, text in charts.render(table.drawn.panels).items()}
    for name, content in contents.items():
        disk.write_bytes(out / name, content)
    return table


def drawable() -> bool:
    """Whether figures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def folder_name(run: Settings) -> str:
    """A name that tells runs apart: in words what they are, and a digest of all settings."""
    words = [run.method, str(run.seed), Path(run.data).name, run.partition, str(run.clients)]
    words += [Path(run.features).name] if run.features != "identity" else []
    words += [f"{name}={value}" for name, value in sorted(run.set.items())]
    text = "_".join("".join(c if c.isalnum() or c in ".=-" else "-" for c in word) for word in words if word)
    told = {name: value for name, value in asdict(run).items() if name not in ("devices", "name") or value is not None}
    content = json.dumps(told, sort_keys=True)  # of what came later nothing where it is not used: folders stay
    return f"{text[:150]}_{hashlib.blake2b(content.encode(), digest_size=4).hexdigest()}"


def seconds_left(runs: Sequence[Settings], times: Mapping[str, Sequence[float]]) -> float:
    """The seconds that runs will take if each takes as long as those of its method, or of all methods, did."""
    usual = statistics.fmean([seconds for of_method in times.values() for seconds in of_method]) if times else 0.0
    return sum(statistics.fmean(times[run.method]) if run.method in times else usual for run in runs)


def _reason_against(run: Settings) -> str:
    """What is missing for a run on this machine; empty where nothing is."""
    try:
        method_of(run)
    except FedsolveError as error:
        return str(error)  # gradient methods without torch
    return catalog.absent(run.data) or maps.absent(run.features)


def _filled(recipe: Recipe, replies: Mapping[str, Reply], impossible: frozenset[str]) -> FilledTable:
    """The table of what the runs replied: the mean over the seeds of each cell; and the figure, if it is one."""

    def results(cell: Cell) -> list[Mapping[str, Any]]:
        found = [replies[folder_name(run)] for run in cell.runs()]
        return [reply for reply in found if not isinstance(reply, str)]

    ours, failures = {}, {}
    for cell in recipe.cells:
        for name in map(folder_name, cell.runs()):
            reply = replies[name]
            if isinstance(reply, str):  # what is lacking is said once for all cells; other failures are of their cell
                failures[cell.row, cell.column] = reply if name in impossible else f"{cell.row}, {cell.column}: {reply}"
        value = cell.value(results(cell))
        if value is not None:
            ours[cell.row, cell.column] = value
    drawn = fill(recipe.drawing, recipe.cells, results) if recipe.drawing else None
    return FilledTable(recipe, ours, failures, drawn)
