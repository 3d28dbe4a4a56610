"""A network in parts: parameters that are mixed ("model/"), buffers ("buffer/"), and the head ("head/").

Buffers are mixed as parameters are, but nothing is learnt from them. In a row, parameters come first. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Collection

from fedsolve.arrays import Array, Arrays, take

MIXED = ("model", "buffer")


def parted(model: Arrays, mixed: Collection[str], trained: Collection[str]) -> dict[str, Array]:
    """A model with the part of each array before its name: what is not mixed is of the head.

    >>> import numpy as np
    >>> model = {"w": np.ones(2), "mean": np.ones(1), "out": np.ones(3)}
    >>> sorted(parted(model, mixed={"w", "mean"}, trained={"w", "out"}))
    ['buffer/mean', 'head/out', 'model/w']
    """
    parts = {name: "head" if name not in mixed else "model" if name in trained else "buffer" for name in model}
    return {f"{part}/{name}": model[name] for name, part in parts.items()}


def whole(private: Arrays, message: Arrays) -> dict[str, Array]:
    """What was sent, completed by the client's own head, or by the one of the first message."""
    model = dict(private)
    for part in (*MIXED, *(() if private else ("head",))):
        model |= take(part, message)
    return model


def order(parts: Arrays) -> list[str]:
    """The arrays that are mixed as they follow each other in a row: parameters, then buffers, each in sorted order."""
    return [name for part in MIXED for name in sorted(parts) if name.startswith(f"{part}/")]


def parameters(parts: Arrays) -> int:
    """How many numbers of a row are parameters: all before the buffers."""
    return sum(array.size for name, array in parts.items() if name.startswith("model/"))
