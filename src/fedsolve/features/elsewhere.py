"""A feature map that is known by its words alone: it lies at the sites, or nobody has said where it lies here."""

from __future__ import annotations

from dataclasses import dataclass

from fedsolve.arrays import Array
from fedsolve.errors import DataError


@dataclass(frozen=True)
class Elsewhere:
    """A feature map that is not here: it has a specification, an identity and the shape of its features.

    Files and messages bring such maps. What their specification names is never opened on their word.

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
        raise self.refusal()

    def refusal(self) -> DataError:
        """What to say to somebody who wants features of it."""
        return DataError(
            f"its features come from {self.specification[:300]!r}, which is not opened because a file or a message "
            "names it; say what it is here with --features (features= in Python), as in --features onnx:FILE: "
            "its weights are compared first"
        )

    def __str__(self) -> str:
        return self.specification
