"""Feature maps that bound the length of a row, and how long rows of any map can be.

What one record can do to a sum is bounded where its row is: noise of a stated epsilon needs that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsolve.arrays import Array, Float, flat
from fedsolve.errors import ParameterError


@dataclass(frozen=True)
class UnitLength:
    """Every input as a vector of length one; a zero vector stays zero."""

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """As many numbers, in one row."""
        return (int(np.prod(inputs)),)

    def __call__(self, inputs: Array) -> Array:
        """The inputs divided by their lengths."""
        return unit_rows(inputs)

    def bound(self, before: float | None) -> float:
        """One, whatever the inputs."""
        return 1.0

    @property
    def identity(self) -> str:
        """The specification, which decides everything."""
        return str(self)

    def __str__(self) -> str:
        return "unit"


@dataclass(frozen=True)
class Clip:
    """Every input as a vector of at most some length; a longer one is scaled to it.

    >>> Clip(5.0)(np.array([[3.0, 4.0], [30.0, 40.0]])).tolist()
    [[3.0, 4.0], [3.0, 4.0]]
    """

    longest: float

    def __post_init__(self) -> None:
        if not 0 < self.longest < math.inf:
            raise ParameterError(f"clip:R takes a length above 0, as in clip:3; got {self.longest!r}")

    @classmethod
    def read(cls, argument: str) -> Clip:
        """From the text behind clip:."""
        try:
            return cls(float(argument))
        except ValueError as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(
                f"rows are clipped to a length R by clip:R, as in clip:3; got {argument[:80]!r}"
            ) from None

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """As many numbers, in one row."""
        return (int(np.prod(inputs)),)

    def __call__(self, inputs: Array) -> Array:
        """The inputs, scaled down where they are too long."""
        rows = flat(inputs).astype(np.float64)
        short = self.longest * unit_rows(rows)
        return np.where((np.abs(rows) > np.abs(short)).any(axis=1, keepdims=True), short, rows)

    def bound(self, before: float | None) -> float:
        """Its length, or what bounds the inputs, if that is less."""
        return self.longest if before is None else min(before, self.longest)

    @property
    def identity(self) -> str:
        """The specification, which decides everything."""
        return str(self)

    def __str__(self) -> str:
        return f"clip:{self.longest:g}" if float(f"{self.longest:g}") == self.longest else f"clip:{self.longest!r}"


def bound(features: object, before: float | None = None) -> float | None:
    """The length that no sample's features exceed, given one for its inputs; None where there is none.

    >>> from fedsolve.features.maps import parse
    >>> bound(parse("random:8+clip:3")), bound(parse("unit+ones")) == 2**0.5, bound(parse("clip:3+random:8"))
    (3.0, True, None)
    """
    of = getattr(features, "bound", None)  # a map that says nothing of it bounds nothing
    return of(before) if callable(of) else None


def unit_rows(inputs: Array) -> Float:
    """One row per sample, each divided by its length; a row of zeros stays zero."""
    rows = flat(inputs).astype(np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows /= np.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(length > 0, length, 1.0)
    return rows
