"""What somebody who sees a site's F'F and F'Y could learn of single records, told to the site before anything is sent.

Nothing is attacked here: each line is a fact about the site's own rows from which something follows for whoever sees
their sums. `reconstruct.py` shows it on the site's own data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Float, flat
from fedsolve.data.samples import Samples
from fedsolve.data.target import Target
from fedsolve.errors import ParameterError, plain

HALF = 0.5  # a leverage: half of what is predicted for the sample is its own target
MEMBERS = 10  # samples for each feature below which members of the sums can be told from others
SHOWN = 5  # names in a sentence


@dataclass(frozen=True)
class Rules:
    """What a site discloses at most, where its sums are seen as they are; a rule that is None is not applied.

    >>> Rules(cell=3).parameters
    0.33
    """

    cell: int | None = 5  # the fewest samples of a class, or with a feature that is not zero, unless none has
    persons: int | None = 5  # the fewest persons, where the data name them
    parameters: float | None = 0.33  # the most features for each sample
    leverage: float | None = 0.9  # no sample may stand as much alone

    def __post_init__(self) -> None:
        for name, low in (("cell", 1), ("persons", 1)):
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise ParameterError(f"the rule {name} must be at least {low}; got {value!r}")
        if self.parameters is not None and not self.parameters > 0:
            raise ParameterError(f"the rule parameters must be above 0; got {self.parameters!r}")
        if self.leverage is not None and not 0 < self.leverage <= 1:
            raise ParameterError(f"the rule leverage must be above 0 and at most 1; got {self.leverage!r}")


@dataclass(frozen=True)
class Report:
    """Facts about the rows behind a site's sums. No row is in it; names of classes and features are."""

    samples: int
    features: int  # of a row, with the constant one where there is one
    rank: int
    single: tuple[str, ...]  # classes with one sample
    small: tuple[str, ...]  # classes with fewer than the cell of the rules, those with one among them
    sole: tuple[str, ...]  # features that are not zero for one sample alone
    rare: tuple[str, ...]  # ... for fewer than the cell
    nearly_all: tuple[str, ...]  # features of zeros and ones that all but a few samples have
    half: float  # share of the samples with a leverage above a half
    alone: float  # share of the samples with a leverage above that of the rules
    exact_counts: bool  # whether the number of samples of each class can be computed
    non_negative: bool
    classes: bool  # whether targets are classes
    rules: Rules
    persons: int | None = None
    thin: bool = False  # whether its rows are sent under a rotation, in place of sums

    @property
    def separable(self) -> bool:
        """Whether the rows are known up to a rotation: as many directions as rows, and fewer than features."""
        return 0 < self.rank == self.samples < self.features

    @property
    def reconstructible(self) -> bool:
        """Whether rows can be found one by one: what is left of a rotation is fixed by their signs."""
        return self.separable and self.non_negative

    def sentences(self) -> tuple[str, ...]:
        """What follows, the worst first; the first line is what was looked at."""
        cell = self.rules.cell or 0
        lines = [f"{_count(self.samples, 'sample')} of {_count(self.features, 'feature')}, rank {self.rank}"]
        if self.reconstructible:
            lines.append(
                "fewer samples than features, none of them negative: rows and labels can be recovered one by one"
            )
        elif self.separable:
            lines.append("fewer samples than features: whether a given record is among them can be told with certainty")
        elif self.rules.parameters is not None and self.features > self.rules.parameters * self.samples:
            lines.append(f"more than {self.rules.parameters:g} features for each sample: records are hardly hidden")
        elif self.samples < MEMBERS * self.features:
            lines.append(f"fewer than {MEMBERS} samples for each feature: members can be told from others, often")
        if self.single:
            lines.append(f"{_named(self.single, 'class', 'classes')} with one sample: F'Y is its row")
        if more := [name for name in self.small if name not in self.single]:
            lines.append(f"{_named(more, 'class', 'classes')} with fewer than {cell} samples: F'Y adds a few rows")
        if self.sole:
            lines.append(f"{_named(self.sole, 'feature')} that one sample alone has: a row of F'F is that sample's row")
        if more := [name for name in self.rare if name not in self.sole]:
            lines.append(f"{_named(more, 'feature')} that fewer than {cell} samples have")
        if self.nearly_all:
            lines.append(f"{_named(self.nearly_all, 'feature')} that all but fewer than {cell} samples have")
        if self.half:
            above = f", {_share(self.alone)} above {self.rules.leverage:g}" if self.alone else ""
            told = f"{_share(self.half)} of the samples have a leverage above {HALF:g}{above}"
            lines.append(f"{told}: so much of what is predicted for them is their own target")
        if self.classes and self.exact_counts:
            lines.append("how many samples each class has can be computed exactly")
        if self.thin:
            lines.append(
                "thin: rows are sent under a secret rotation, which tells F'F, F'Y and Y'Y, and cannot be part of a "
                "secure sum"
            )
        if self.persons is not None:
            lines.append(f"{_count(self.persons, 'person')}")
        return tuple(lines)

    def refusals(self) -> tuple[str, ...]:
        """Which rules are broken, a clause each; none: the sums may be seen as they are."""
        rules, found = self.rules, []
        if rules.persons is not None and self.persons is not None and self.persons < rules.persons:
            found.append(f"{_count(self.persons, 'person')}, and {rules.persons} is the least")
        if self.small:
            found.append(f"{_named(self.small, 'class', 'classes')} with fewer than {rules.cell} samples")
        if self.rare:
            found.append(f"{_named(self.rare, 'feature')} that fewer than {rules.cell} samples have")
        if rules.parameters is not None and self.features > rules.parameters * self.samples:
            most = f"more than {rules.parameters:g} for each"
            found.append(f"{_count(self.features, 'feature')} for {_count(self.samples, 'sample')}, {most}")
        if self.alone:
            found.append(f"{_share(self.alone)} of the samples have a leverage above {rules.leverage:g}")
        return tuple(found)


def report(
    samples: Samples,
    target: Target,
    *,
    ones: bool = False,
    names: Sequence[str] = (),
    rules: Rules | None = None,
    persons: int | None = None,
    thin: bool = False,
) -> Report:
    """The report on a site's training samples, whose rows get a constant feature behind them with `ones`.

    `thin` says that they are sent as rows under a rotation.

    >>> import fedsolve as fs
    >>> few = fs.Samples(np.eye(3), np.array([0, 1, 1]))
    >>> found = report(few, fs.Classes(2, ("healthy", "ill")))
    >>> found.single, found.sole, found.rank
    (('healthy',), ('0', '1', '2'), 3)
    """
    rules = rules or Rules()
    rows = np.asarray(flat(samples.inputs), dtype=np.float64)
    design = np.column_stack([rows, np.ones(len(rows))]) if ones else rows
    rank, leverage = _leverage(design)
    support, varying = np.count_nonzero(rows, axis=0), (rows != rows[:1]).any(0)
    flags = varying & ((rows == 0) | (rows == 1)).all(0)
    cell = rules.cell or 0
    rare = varying & (support > 0) & (support < cell)
    few_without = flags & (len(rows) - support < cell) & ~rare
    classes = target.kind != "numbers"
    counts = np.bincount(samples.labels, minlength=target.count) if classes else np.zeros(0, dtype=np.int64)
    # With a constant feature F'Y holds the counts. Without, Q'Y follows from F = QG, and counts are its squares.
    constant = ones or bool(((rows == rows[:1]) & (rows != 0)).all(0).any()) if len(rows) else ones
    return Report(
        samples=len(rows),
        features=design.shape[1],
        rank=rank,
        single=_names(counts == 1, target.names),
        small=_names((counts > 0) & (counts < cell), target.names),
        sole=_names(varying & (support == 1) & (len(rows) > 1), names),
        rare=_names(rare, names),
        nearly_all=_names(few_without, names),
        half=_above(leverage, HALF),
        alone=0.0 if rules.leverage is None else _above(leverage, rules.leverage),
        exact_counts=constant or rank == len(rows),
        non_negative=bool(rows.min(initial=0.0) >= 0),
        classes=classes,
        rules=rules,
        persons=persons,
        thin=thin,
    )


def _leverage(design: Float) -> tuple[int, Float]:
    """The rank of the rows, and how much of itself each predicts: the diagonal of F (F'F)^+ F'."""
    if not len(design):
        return 0, np.zeros(0)
    _, sizes, basis = np.linalg.svd(np.linalg.qr(design, mode="r"), full_matrices=False)
    kept = sizes > sizes.max(initial=0.0) * max(design.shape) * np.finfo(np.float64).eps
    return int(kept.sum()), np.square(design @ (basis[kept].T / sizes[kept])).sum(1)


def _above(leverage: Float, limit: float) -> float:
    return float((leverage > limit).mean()) if len(leverage) else 0.0


def _names(which: NDArray[Any], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[place] if place < len(names) else str(place) for place in np.flatnonzero(which).tolist())


def _named(names: Sequence[str], one: str, many: str = "") -> str:
    """How many of something, and which."""
    shown = ", ".join(plain(name, 60) for name in names[:SHOWN]) + (" ..." if len(names) > SHOWN else "")
    return f"{_count(len(names), one, many)} ({shown})"


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def exposed(labels: Array, target: Target, features: int, rules: Rules) -> bool:
    """Whether the quick rules, of cells and of parameters, are broken; for many sites at once."""
    if rules.parameters is not None and features > rules.parameters * len(labels):
        return True
    counts = np.bincount(labels, minlength=target.count) if target.kind != "numbers" else np.zeros(0)
    return rules.cell is not None and bool(((counts > 0) & (counts < rules.cell)).any())
