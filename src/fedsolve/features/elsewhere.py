"""A feature map that is known by its words alone, where the map itself lies at the sites."""

from __future__ import annotations

from dataclasses import dataclass

from fedsolve.arrays import Array
from fedsolve.errors import DataError


@dataclass(frozen=True)
class Elsewhere:
    """A feature map that only sites have: here it has a specification, an identity and the shape of its features.

    >>> Elsewhere("onnx:net.onnx", "onnx; weights 3f", (512,)).shape((-1, -1, 3))
    (512,)
    """

    specification: str
    identity: str
    size: tuple[int, ...]

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample's features, as it was computed where the map is."""
        return self.size

    def __call__(self, inputs: Array) -> Array:
        """Refused, since there is nothing to compute with."""
        raise DataError(f"the features {self.specification!r} are computed at the sites, not here")

    def __str__(self) -> str:
        return self.specification
