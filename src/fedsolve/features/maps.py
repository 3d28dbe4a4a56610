"""Feature maps: frozen values whose text determines them, so that two sites can tell whether theirs agree."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

from fedsolve.arrays import Array
from fedsolve.errors import unknown


@runtime_checkable
class FeatureMap(Protocol):
    """A fixed function of the inputs. `str()` of it is its specification: `parse` gives it back."""

    def __hash__(self) -> int:
        """Feature maps are values."""
        ...

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the features of one sample, given the shape of its input."""
        ...

    def __call__(self, inputs: Array) -> Array:
        """The features of a batch of inputs."""
        ...


@dataclass(frozen=True)
class Identity:
    """The inputs as they are."""

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the input."""
        return inputs

    def __call__(self, inputs: Array) -> Array:
        """The inputs."""
        return inputs

    def __str__(self) -> str:
        return "identity"


def parse(text: str) -> FeatureMap:
    """The feature map a specification stands for."""
    if text == "identity":
        return Identity()
    raise unknown("feature map", text, ["identity"])


@cache
def space(features: FeatureMap, inputs: tuple[int, ...]) -> int:
    """The identity of a feature space, 63 bits: of the map and of the inputs it is applied to."""
    text = f"{features} of {inputs}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
