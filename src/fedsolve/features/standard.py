"""Numbers about the federation's means, over its deviations: what F'F then squares has lost no digits to an offset.

Origin and scale are fitted from sums over clients, in two rounds of their own: the sums of the numbers give the
origin, the sums of squares about it the scale. A sum is told as a few floats that add up to it exactly, mostly two, so
that the fitted numbers are the same however the samples are split. They stand in the map's own specification,
`standardise:ORIGIN/SCALE,...`: words decide it, and nothing else has to be carried beside a model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsolve.arrays import Array, Arrays, Float, finite, flat
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import exact

NAME = "standardise"
WIDEST = 2**16  # features: each stands in the specification


@dataclass(frozen=True, repr=False)
class Standardise:
    """Every number less its origin, over its scale.

    >>> ages = Standardise((50.0,), (10.0,))
    >>> str(ages), ages(np.array([[45.0], [70.0]])).tolist()
    ('standardise:50.0/10.0', [[-0.5], [2.0]])
    """

    origin: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.origin) <= WIDEST or len(self.scale) != len(self.origin):
            sizes = f"{len(self.origin)} and {len(self.scale)}"
            raise ParameterError(f"{NAME} takes as many origins as scales, from 1 to {WIDEST}; got {sizes}")
        if not all(map(math.isfinite, self.origin)) or not all(0 < value < math.inf for value in self.scale):
            raise ParameterError(f"origins of {NAME} must be finite, and scales above zero")

    def __repr__(self) -> str:
        return f"Standardise({len(self.origin)} features)"

    @classmethod
    def read(cls, argument: str) -> Standardise:
        """The map in a text ORIGIN/SCALE,ORIGIN/SCALE,..., one pair per number of an input."""
        try:
            pairs = [pair.split("/") for pair in argument.split(",", WIDEST)]
            origin, scale = ([float(pair[place]) for pair in pairs] for place in (0, 1))
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError
        except (ValueError, IndexError):
            raise ParameterError(
                f"{NAME} is written {NAME}:ORIGIN/SCALE,ORIGIN/SCALE,..., one pair per number of an input; "
                f"got {argument[:80]!r}"
            ) from None
        return cls(tuple(origin), tuple(scale))

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """As many numbers, in one row; refuses inputs of another width."""
        if math.prod(inputs) != len(self.origin):
            raise DataError(f"{NAME} was made for inputs of {len(self.origin)} numbers; these have the shape {inputs}")
        return (len(self.origin),)

    def __call__(self, inputs: Array) -> Float:
        """The inputs about their origin, over their scale."""
        rows: Float = (flat(inputs).astype(np.float64) - np.array(self.origin)) / np.array(self.scale)
        return rows

    @property
    def units(self) -> tuple[Float, Float]:
        """Origin and scale of each feature: each is an affine map of one number, and coefficients can be moved back."""
        return np.array(self.origin), np.array(self.scale)

    @property
    def identity(self) -> str:
        """The digest of origins and scales."""
        return f"{NAME}; numbers {hashlib.sha256(str(self).encode()).hexdigest()[:32]}"

    def __str__(self) -> str:
        pairs = (f"{origin!r}/{scale!r}" for origin, scale in zip(self.origin, self.scale, strict=True))
        return f"{NAME}:{','.join(pairs)}"


def sums(inputs: Array, origin: Sequence[float] | None = None) -> Arrays:
    """What a client tells: the number of its samples, and the sums of its numbers, or of their squares about `origin`.

    One row per sum: floats that add up to it exactly, and zeros behind them.
    """
    rows = flat(inputs).astype(np.float64)
    with np.errstate(over="ignore"):
        values = rows if origin is None else np.square(rows - np.array(origin))
    if not finite(values):
        raise DataError(f"{NAME} takes finite numbers whose squares are finite, too; scale the features down")
    return {"count": np.array(len(rows)), "sums": exact.rows(map(exact.pieces, values.T))}


def fit(clients: Iterable[Array]) -> Standardise:
    """The map that all samples of the clients give: means as origin, deviations as scale, one where there is none.

    >>> fit([np.array([[1.0, 7.0], [3.0, 7.0]]), np.array([[5.0, 7.0]])])
    Standardise(2 features)
    """
    parts = [part for part in clients if len(part)]
    if not parts:
        raise DataError(f"{NAME} needs training samples, and there are none")
    count, total = _total(sums(part) for part in parts)
    origin = (total / count).tolist()
    _, squares = _total(sums(part, origin) for part in parts)
    deviation = np.sqrt(squares / count)
    return Standardise(tuple(origin), tuple(np.where(deviation > 0, deviation, 1.0).tolist()))


def _total(replies: Iterable[Arrays]) -> tuple[int, Float]:
    """The number of samples, and each sum over the clients, rounded once."""
    count, columns = 0, list[Float]()
    for reply in replies:
        count += int(reply["count"])
        columns.append(reply["sums"])
    return count, exact.totals(np.hstack(columns))
