"""Shamir's shares: a secret of 32 bytes of which some shares together tell all, and fewer tell nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache

from fedsolve.errors import DataError

PRIME = 2**256 + 297  # the first prime above all secrets
SIZE = 33  # bytes of a share


def split(secret: bytes, threshold: int, points: Iterable[int]) -> dict[int, bytes]:
    """A share of a secret for each point: a random polynomial of degree threshold - 1 there, which is the secret at 0.

    >>> shares = split(bytes(range(32)), 2, [1, 2, 3])
    >>> join({point: shares[point] for point in (1, 3)}, 2) == bytes(range(32))
    True
    """
    coefficients = [*(secrets.randbelow(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "big")]
    shares = {}
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares[point] = value.to_bytes(SIZE, "big")
    return shares


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret that shares are of, by their points."""
    points = tuple(sorted(shares)[:threshold])
    if len(points) < threshold:
        raise DataError(f"{len(points)} shares of a secret are there, and {threshold} are needed")
    values = [int.from_bytes(shares[point], "big") for point in points]
    secret = sum(weight * value for weight, value in zip(_weights(points), values, strict=True)) % PRIME
    if secret >= 2**256:
        raise DataError("shares of a secret do not belong together")
    return secret.to_bytes(32, "big")


@lru_cache(maxsize=1024)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0. Points are public; a sum asks for the same ones again and again."""
    weights = []
    for here in points:
        above = below = 1
        for other in points:
            if other != here:
                above, below = above * other % PRIME, below * (other - here) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
