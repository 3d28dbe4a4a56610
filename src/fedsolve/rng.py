"""One seed tree: every generator is addressed by a path, so nobody's draws depend on anybody else's."""

from __future__ import annotations

import hashlib
import operator

import numpy as np

from fedsolve.parameters import whole


def derive(seed: int, *path: str | int) -> np.random.Generator:
    """The generator at `path` below `seed`: `derive(0, "update", "client-03", 7)`.

    Same seed and path, same draws; a different path gives an independent stream. Elements are told apart by type and
    length: ("a", "bc") and ("ab", "c"), or 1 and "1", are different places.
    """
    place = (check_seed(seed), *(part if isinstance(part, str) else operator.index(part) for part in path))
    digest = hashlib.blake2b(ascii(place).encode(), digest_size=32).digest()
    return np.random.Generator(np.random.PCG64(np.frombuffer(digest, dtype="<u4")))


def check_seed(seed: object) -> int:
    """A seed as a plain integer, or an error."""
    return whole("seed", seed, 0)
