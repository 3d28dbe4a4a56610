"""A fitted model as a statistician reads it: one row per coefficient, figures of the fit, tests and notes."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsolve.arrays import Float
from fedsolve.inference import Estimates, Verdict

WIDTH = 88  # characters of a line at most, but for long names


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One coefficient; what is not known of it is None."""

    name: str
    of: str  # the class or the number that it is for, where there are several
    value: float | None
    error: float | None = None
    statistic: float | None = None
    p_value: float | None = None
    low: float | None = None
    high: float | None = None

    def json(self) -> dict[str, Any]:
        """By name, as pages and files have it."""
        return {name: getattr(self, name) for name in ("of", "name", *FIGURES)}


FIGURES = ("value", "error", "statistic", "p_value", "low", "high")


def coefficients(names: Sequence[str], estimates: Estimates, of: str = "") -> tuple[Coefficient, ...]:
    """One coefficient for each name, with all that follows from the covariance."""
    ends = estimates.interval()
    table = np.column_stack([estimates.values, estimates.errors, estimates.statistics, estimates.p_values, ends])
    return tuple(Coefficient(name, of, *_known(row)) for name, row in zip(names, table, strict=True))


def bare(names: Sequence[str], values: Float, of: str = "") -> tuple[Coefficient, ...]:
    """Coefficients of which no more than their value is known."""
    return tuple(Coefficient(name, of, *_known(row)) for name, row in zip(names, values[:, None], strict=True))


def _known(row: Float) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in row]


@dataclass(frozen=True, eq=False)
class Summary:
    """What a model says of its columns.

    >>> found = Estimates(np.array([2.0, 7.0]), np.diag([0.25, 1.0]), freedom=20)
    >>> summary = Summary("least squares", "pressure", coefficients(("age", "intercept"), found), {"samples": 22})
    >>> print(summary)
    least squares of pressure
    samples  22
    <BLANKLINE>
               coefficient  error  t      p  [0.025  0.975]
    age                  2    0.5  4  0.001   0.957   3.043
    intercept            7      1  7  0.000   4.914   9.086
    >>> summary.columns()["p_value"][0]
    0.0007...
    """

    title: str
    target: str
    rows: tuple[Coefficient, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    tests: tuple[Verdict, ...] = ()
    components: Mapping[str, float] = field(default_factory=dict)  # variances of random effects, and of the errors
    notes: tuple[str, ...] = ()
    statistic: str = "t"  # or z

    def columns(self) -> dict[str, list[Any]]:
        """The coefficients as columns, by name."""
        of = {"of": [row.of for row in self.rows]} if any(row.of for row in self.rows) else {}
        names = {"name": [row.name for row in self.rows]}
        return {**of, **names, **{figure: [getattr(row, figure) for row in self.rows] for figure in FIGURES}}

    def to_frame(self) -> Any:
        """The coefficients as a pandas DataFrame; where pandas is not installed, as a dictionary of columns."""
        try:
            import pandas as pd
        except ImportError:
            return self.columns()
        return pd.DataFrame(self.columns())

    def __str__(self) -> str:
        head = f"{self.title} of {self.target}" if self.target else self.title
        parts = [head, _pairs({name: _figure(value) for name, value in self.figures.items()}), "", self._table()]
        if self.components:
            parts += ["", "variance components", _pairs({n: _figure(v) for n, v in self.components.items()}, 1)]
        if self.tests:
            parts += ["", *map(_test, self.tests)]
        if self.notes:
            parts += ["", *self.notes]
        return "\n".join(part for number, part in enumerate(parts) if part or number > 1)

    def _table(self) -> str:
        full = any(row.error is not None for row in self.rows)
        heads = ["coefficient", "error", self.statistic, "p", "[0.025", "0.975]"] if full else ["coefficient"]
        lines, last = [["", *heads]], ""
        for row in self.rows:
            if row.of != last:
                lines.append([row.of, *([""] * len(heads))])
            last = row.of
            rest = [
                _figure(row.error),
                _places(row.statistic),
                _places(row.p_value),
                *map(_figure, (row.low, row.high)),
            ]
            lines.append([row.name, _figure(row.value), *(rest if full else [])])
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in cells).rstrip()
            for cells in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return str(self)

    def json(self) -> dict[str, Any]:
        """All of it as plain values."""
        tests = [
            {"name": t.name, "statistic": t.statistic, "freedom": t.freedom, "p_value": t.p_value} for t in self.tests
        ]
        return {
            "title": self.title,
            "target": self.target,
            "coefficients": [row.json() for row in self.rows],
            "figures": dict(self.figures),
            "tests": tests,
            "components": dict(self.components),
            "notes": list(self.notes),
        }


def _figure(value: float | None) -> str:
    """Four digits; whole numbers and large ones in full."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.2f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def _places(value: float | None) -> str:
    return "-" if value is None else str(int(value)) if value == int(value) and abs(value) >= 1 else f"{value:.3f}"


def _pairs(pairs: Mapping[str, str], columns: int = 2) -> str:
    """Names and figures, in columns."""
    entries = list(pairs.items())
    rows = -(-len(entries) // columns)
    sides = [entries[start : start + rows] for start in range(0, len(entries), rows or 1)]
    blocks = []
    for side in sides:
        name, width = max(len(n) for n, _ in side), max(len(v) for _, v in side)
        blocks.append([f"{n.ljust(name)}  {v.rjust(width)}" for n, v in side])
    return "\n".join("     ".join(block[row] for block in blocks if row < len(block)) for row in range(rows))


def _test(test: Verdict) -> str:
    freedom = ", ".join(_figure(number) for number in test.freedom)
    kind = "F" if len(test.freedom) == 2 else "chi-square"
    return f"{test.name}: {kind}({freedom}) = {test.statistic:.4g}, p = {test.p_value:.3g}"
