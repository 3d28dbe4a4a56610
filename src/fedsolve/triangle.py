"""A triangular factor that many systems are solved with."""

from __future__ import annotations

from dataclasses import dataclass

from fedsolve import blas
from fedsolve.arrays import Float

SMALL = 1024  # rows up to which a product with the inverse takes less than a solve


@dataclass(frozen=True, slots=True, eq=False)
class Triangle:
    """L, or where it is small its inverse: solves with it cost the same, and the inverse is faster to use."""

    lower: Float
    inverse: bool

    @classmethod
    def of(cls, lower: Float) -> Triangle:
        """Of a lower triangle, with zeros above it, which is used up."""
        inverse = len(lower) <= SMALL
        if inverse:
            blas.invert(lower)
        return cls(lower, inverse)

    def solve(self, right: Float, *, transposed: bool = False) -> Float:
        """L^-1, or its transpose, times `right`."""
        times = blas.lower_product if self.inverse else blas.lower_solve
        return times(self.lower, right, transposed=transposed)
