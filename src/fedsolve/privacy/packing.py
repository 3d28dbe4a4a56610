"""Named arrays as one vector of words, and back: what is summed without being seen.

The layout (names, types, shapes) travels beside the vector, in clear. Sums have the types of their parts, so counts
come back as counts.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from fedsolve import arrays as named
from fedsolve.arrays import Array, Arrays, Layout
from fedsolve.errors import DataError, brief
from fedsolve.privacy import fixed
from fedsolve.privacy.fixed import Words
from fedsolve.texts import read_json

TYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1"})  # that add up


def pack(arrays: Arrays, fraction: int, parties: int, out: Words | None = None) -> Words:
    """All numbers one after the other, by name; `unpack` gives them back from a sum of at most so many parties.

    They are written into `out`, if it is given: words of that `size`.

    >>> words = pack({"n": np.array(3), "x": np.array([0.5, -1.0])}, 60, 2)
    >>> fixed.add(words, pack({"n": np.array(4), "x": np.array([0.25, 1.0])}, 60, 2))
    >>> unpack(words, named.layout({"n": np.array(3), "x": np.zeros(2)}), 60)
    {'n': array(7), 'x': array([0.75, 0.  ])}
    """
    layout = named.layout(arrays)
    words = np.empty((2, size(layout)), dtype=np.uint64) if out is None else out
    start = 0
    for name, code, shape in layout:
        if code not in TYPES:
            raise DataError(f"{name!r} is {np.dtype(code)}, and a secure sum adds float64, float32 and integers")
        stop = start + math.prod(shape)
        fixed.encode(arrays[name], fraction, parties, name, words[:, start:stop])
        start = stop
    return words


def unpack(words: Words, layout: Layout, fraction: int) -> dict[str, Array]:
    """The arrays of a layout in a vector of words."""
    arrays: dict[str, Array] = {}
    start = 0
    for name, code, shape in layout:
        stop = start + math.prod(shape)
        arrays[name] = fixed.decode(words[:, start:stop], fraction, np.dtype(code), name).reshape(shape)
        start = stop
    return arrays


def size(layout: Layout) -> int:
    """How many numbers arrays of a layout hold."""
    return sum(math.prod(shape) for _, _, shape in layout)


def to_text(layout: Layout) -> str:
    """A layout as a text, which `from_text` reads."""
    return json.dumps(layout, separators=(",", ":"))


def from_text(text: str) -> Layout:
    """The layout in a stranger's text: names sorted and once, types that add up, shapes that can be.

    >>> from_text('[["a","<f8",[2,3]]]')
    (('a', '<f8', (2, 3)),)
    """
    entries = read_json(text, "the layout of its part")
    if not isinstance(entries, list):
        raise DataError(f"the layout of its part must be a list; got {brief(entries)}")
    layout = tuple(_entry(entry) for entry in entries)
    names = [name for name, _, _ in layout]
    if names != sorted(set(names)):
        raise DataError("the layout of its part must name arrays in order, and each once")
    return layout


def _entry(entry: Any) -> tuple[str, str, tuple[int, ...]]:
    if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str) or entry[1] not in TYPES:
        raise DataError(f"the layout of its part must have names, types that add up, and shapes; got {brief(entry)}")
    return entry[0], entry[1], named.sides(entry[2], brief(entry[0]))
