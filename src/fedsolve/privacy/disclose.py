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
    classes = target.kind != "numbers"
    seen = samples.fold(lambda part: _Seen.of(part, target.count if classes else 0, ones=ones), _Seen.plus)
    rank, basis = _basis(seen)
    limits = (HALF, 1.0 if rules.leverage is None else rules.leverage)
    half, alone = samples.fold(lambda part: _above(part, basis, limits, ones=ones), np.add) / max(seen.samples, 1)
    varying, cell = ~seen.same, rules.cell or 0
    rare = varying & (seen.support > 0) & (seen.support < cell)
    few_without = varying & seen.flags & (seen.samples - seen.support < cell) & ~rare
    # With a constant feature F'Y holds the counts. Without, Q'Y follows from F = QG, and counts are its squares.
    constant = ones or bool((seen.same & (seen.support > 0)).any())
    return Report(
        samples=seen.samples,
        features=seen.factor.shape[1],
        rank=rank,
        single=_names(seen.counts == 1, target.names),
        small=_names((seen.counts > 0) & (seen.counts < cell), target.names),
        sole=_names(varying & (seen.support == 1) & (seen.samples > 1), names),
        rare=_names(rare, names),
        nearly_all=_names(few_without, names),
        half=float(half),
        alone=0.0 if rules.leverage is None else float(alone),
        exact_counts=constant or rank == seen.samples,
        non_negative=seen.low >= 0,
        classes=classes,
        rules=rules,
        persons=persons,
        thin=thin,
    )


@dataclass(frozen=True)
class _Seen:
    """What is seen of rows in one look at them; of parts of the rows it adds up."""

    samples: int
    first: Float  # one row, or none
    same: NDArray[np.bool_]  # by feature: whether all rows have the same number
    support: NDArray[np.int64]  # by feature: how many rows have another number than zero
    flags: NDArray[np.bool_]  # by feature: whether all numbers are zeros and ones
    low: float  # the lowest number, if below zero
    counts: NDArray[np.int64]  # samples of each class
    factor: Float  # R of F = QR

    @classmethod
    def of(cls, part: Samples, classes: int, *, ones: bool) -> _Seen:
        rows, design = _design(part, ones=ones)
        return cls(
            samples=len(rows),
            first=rows[:1],
            same=~(rows != rows[:1]).any(0),
            support=np.count_nonzero(rows, axis=0),
            flags=((rows == 0) | (rows == 1)).all(0),
            low=float(rows.min(initial=0.0)),
            counts=np.bincount(part.labels, minlength=classes) if classes else np.zeros(0, dtype=np.int64),
            factor=_factor(design) if len(design) else design,
        )

    def plus(self, other: _Seen) -> _Seen:
        if not self.samples or not other.samples:
            return self if self.samples else other
        return _Seen(
            self.samples + other.samples,
            self.first,
            self.same & other.same & (self.first == other.first)[0],
            self.support + other.support,
            self.flags & other.flags,
            min(self.low, other.low),
            self.counts + other.counts,
            _factor(np.vstack([self.factor, other.factor])),
        )


def _factor(design: Float) -> Float:
    """R of F = QR."""
    factor: Float = np.asarray(np.linalg.qr(design, mode="r"))
    return factor


def _design(part: Samples, *, ones: bool) -> tuple[Float, Float]:
    """The features of samples, and the same with a constant one behind them if asked."""
    rows = np.asarray(flat(part.inputs), dtype=np.float64)
    return rows, np.column_stack([rows, np.ones(len(rows))]) if ones else rows


def _basis(seen: _Seen) -> tuple[int, Float]:
    """The rank of the rows, and the matrix that makes them orthonormal: then F (F'F)^+ F' has their squared lengths."""
    if not seen.samples:
        return 0, np.zeros((seen.factor.shape[1], 0))
    _, sizes, basis = np.linalg.svd(seen.factor, full_matrices=False)
    largest = max(seen.samples, seen.factor.shape[1])
    kept = sizes > sizes.max(initial=0.0) * largest * np.finfo(np.float64).eps
    return int(kept.sum()), basis[kept].T / sizes[kept]


def _above(part: Samples, basis: Float, limits: tuple[float, float], *, ones: bool) -> NDArray[np.int64]:
    """How many samples predict more of themselves than each limit: the diagonal of F (F'F)^+ F'."""
    leverage = np.square(_design(part, ones=ones)[1] @ basis).sum(1)
    return np.array([np.count_nonzero(leverage > limit) for limit in limits])


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
