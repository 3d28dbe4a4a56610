"""What a recipe is: a results table or figure of a paper as cells, and the same with our figures in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from fedsolve.reproduce.drawing import Drawing, Filled, client_seconds
from fedsolve.study.experiment import Settings

Scale: TypeAlias = Literal["paper", "here"]
SCALES = ("here", "paper")
LEFT_OUT = "left out at this scale"

FIGURES: dict[str, Callable[[Mapping[str, Any]], float | None]] = {  # what a cell may show of a result.json
    "mean": lambda result: _points(result["accuracy"]["mean"]),
    "pooled": lambda result: _points(result["accuracy"]["pooled"]),
    "best round": lambda result: _points(_best(result)),
    "seconds": lambda result: result["seconds"]["total"],
    "MB": lambda result: sum(line["bytes_up"] + line["bytes_down"] for line in result["history"]) / 1e6,
    "minutes": lambda result: result["seconds"]["total"] / 60,
    "seconds a round": lambda result: result["seconds"]["total"] / result["rounds"],
    "seconds a round and client": lambda result: sum(client_seconds(result).values()) / result["rounds"],
    "KB a round and client": lambda result: _sent(result) / 1024 / len(result["clients"]),
}


@dataclass(frozen=True)
class Cell:
    """A figure of the paper, and the experiment that gives ours; where there is none, `why` says the reason."""

    row: str
    column: str
    paper: float | None
    settings: Settings | None = None
    seeds: tuple[int, ...] = (0,)
    figure: str = "mean"  # a name in FIGURES
    why: str = ""

    def runs(self) -> list[Settings]:
        """The runs whose figures are averaged: one per seed."""
        return [replace(self.settings, seed=seed) for seed in self.seeds] if self.settings else []

    def value(self, results: Sequence[Mapping[str, Any]]) -> float | None:
        """Its figure of these runs, as the mean over those that have it."""
        numbers = [number for result in results if (number := FIGURES[self.figure](result)) is not None]
        return statistics.fmean(numbers) if numbers else None


@dataclass(frozen=True)
class Recipe:
    """A results table or figure of a paper: its figures, and the experiments that give ours.

    >>> from fedsolve import reproduce
    >>> recipe = reproduce.create("fedhip-2")
    >>> recipe.title, recipe.rows
    ('FedHiP, table II: alpha, beta = 0, 50 clients', ['Dirichlet 0.1', 'Dirichlet 0.5', 'Dirichlet 1.0'])
    """

    name: str
    title: str
    note: str  # what differs from the paper
    cells: tuple[Cell, ...]
    drawing: Drawing | None = None  # of a figure

    @property
    def rows(self) -> list[str]:
        """The names of the rows, in the paper's order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the paper's order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))


Builder: TypeAlias = Callable[[str, Scale], Recipe]
"""Makes the recipe of a name at a scale."""


@dataclass(frozen=True)
class FilledTable:
    """A recipe with our figures, and the reasons where there are none.

    >>> cells = Cell("AFL", "iid", 90.0), Cell("AFL", "by class", 80.0)
    >>> recipe = Recipe("small", "A small table", "On digits.", cells)
    >>> print(FilledTable(recipe, ours={("AFL", "iid"): 91.25}).markdown())
    ### A small table
    <BLANKLINE>
    On digits.
    <BLANKLINE>
    | paper / ours | iid | by class |
    |---|---|---|
    | AFL | 90.00 / 91.25 | 80.00 / - |
    <BLANKLINE>
    """

    recipe: Recipe
    ours: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by row and column
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by row and column
    drawn: Filled | None = None  # of a figure

    def markdown(self) -> str:
        """The table as text, with the paper's figure and ours in each cell."""
        columns = self.recipe.columns
        lines = [f"| paper / ours | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        by_place = {(cell.row, cell.column): cell for cell in self.recipe.cells}
        for row in self.recipe.rows:
            texts = [self._text(by_place.get((row, column))) for column in columns]
            lines.append(f"| {row} | {' | '.join(texts)} |")
        reasons = sorted({cell.why for cell in self.recipe.cells if cell.why} | set(self.failures.values()))
        told = [f"- {sentence}" for sentence in self.drawn.sentences()] if self.drawn else []
        told += [f"- not run: {reason}" for reason in reasons]
        return "\n".join([f"### {self.recipe.title}", "", self.recipe.note, "", *lines, "", *told]).rstrip() + "\n"

    def json(self) -> dict[str, Any]:
        """The table for programs, one entry per cell."""
        cells = [
            {
                "row": cell.row,
                "column": cell.column,
                "figure": cell.figure,
                "paper": cell.paper,
                "ours": self.ours.get((cell.row, cell.column)),
                "seeds": list(cell.seeds),
                "not run": cell.why or self.failures.get((cell.row, cell.column), ""),
            }
            for cell in self.recipe.cells
        ]
        head = {"recipe": self.recipe.name, "title": self.recipe.title, "note": self.recipe.note}
        if self.recipe.drawing is None or self.drawn is None:
            return {**head, "cells": cells}
        return {**head, "where": self.recipe.drawing.where, "cells": cells, **self.drawn.json()}

    def _text(self, cell: Cell | None) -> str:
        if cell is None:
            return ""
        ours = self.ours.get((cell.row, cell.column))
        paper = "-" if cell.paper is None else f"{cell.paper:.2f}"
        return f"{paper} / {'-' if ours is None else f'{ours:.2f}'}"


def _best(result: Mapping[str, Any]) -> float | None:
    """The largest pooled accuracy of any round: picked on the test samples, as some papers do."""
    values = [line.get("metrics", {}).get("accuracy", {}).get("pooled") for line in result["history"]]
    found: list[float] = [value for value in values if value is not None]
    return max(found) if found else None


def _sent(result: Mapping[str, Any]) -> float:
    """Bytes up and down of a round in which all clients take part, on average; the last download is no part of it."""
    rounds = result["history"][:-1] or result["history"]
    shares = [1 - len(line["missing"]) / len(result["clients"]) for line in rounds]
    return float(sum(line["bytes_up"] + line["bytes_down"] for line in rounds) / sum(shares))


def _points(share: float | None) -> float | None:
    return None if share is None else 100 * share
