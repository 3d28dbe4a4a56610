"""Who shares masks and shares with whom: everybody with everybody, or, of many sites, with some on a random ring.

Of up to 32 sites everybody is everybody's neighbour. A site's secrets are shared among its k neighbours, so that any t
of them bring back one of the two, and a server that lies (tells some that a site is there and others that it is gone)
gets both only if 2 t <= k + the neighbours that work for it. So t is two thirds of k, and a majority of fewer than six.

Of more sites each has k neighbours, k/2 on either side of it, on a ring whose order follows from the digest of the
session. k and t are the smallest for which all of this holds, by union bounds over sites (cf. Bell et al. 2020):
assuming that at most 5 % of the sites work for the server and at most another 10 % drop out,
(a) for no site 2 t <= k + neighbours that work for the server, and (b) no k/2 sites in a row are gone or work for the
server, which would cut the ring, each but with probability 2^-40;
(c) every site keeps t neighbours that did not drop out, but with probability 2^-20.
The draw is the server's, which may try many: each try has those odds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LEAST = 3  # sites in a sum: of two, each knows the other's part
COMPLETE = 32  # sites up to which everybody is everybody's neighbour
_CORRUPT, _GONE = 20, 10  # one site in so many works for the server; one in so many drops out
_SECURE, _CORRECT = 2**40, 2**20  # one in so many sessions may fail to be


@dataclass(frozen=True, slots=True)
class Degree:
    """How many neighbours a site has, and how many of them bring back a secret of it."""

    neighbours: int
    threshold: int

    @property
    def losses(self) -> int:
        """How many neighbours of a site may be lost without losing the sum."""
        return self.neighbours - self.threshold

    @property
    def colluders(self) -> int:
        """How many neighbours of a site may work for a server that lies, without telling the site's part."""
        return 2 * self.threshold - self.neighbours - 1


@lru_cache(maxsize=64)
def degree(sites: int) -> Degree:
    """Neighbours and threshold for so many sites: a function of their number alone, so that nobody else can choose.

    >>> degree(3), degree(10), degree(1000)
    (Degree(neighbours=2, threshold=2), Degree(neighbours=9, threshold=7), Degree(neighbours=74, threshold=49))
    """
    complete = _complete(sites)
    if sites <= COMPLETE:
        return complete
    others = sites - 1
    corrupt, gone = -(-others // _CORRUPT), -(-others // _GONE)
    for k in range(10, others, 2):
        # (b): k/2 in a row are all gone or corrupt with probability at most share^(k/2); a run may start at any site.
        if sites * (corrupt + gone) ** (k // 2) * _SECURE > others ** (k // 2):
            continue
        for t in range(k // 2 + 1, k + 1):
            lied = sites * _ways(others, corrupt, k, 2 * t - k) * _SECURE
            lost = sites * _ways(others, gone, k, k - t + 1) * _CORRECT
            if max(lied, lost) < math.comb(others, k):
                return Degree(k, t)
    return complete


def _complete(sites: int) -> Degree:
    k = sites - 1
    return Degree(k, 2 * k // 3 + 1 if k >= 6 else k // 2 + 1)


def _ways(others: int, marked: int, drawn: int, least: int) -> int:
    """Of all ways to draw neighbours from the others, how many have at least so many marked ones among them."""
    counts = range(least, min(drawn, marked) + 1)
    return sum(math.comb(marked, count) * math.comb(others - marked, drawn - count) for count in counts)


def neighbours(roster: Sequence[str], count: int, session: bytes) -> dict[str, tuple[str, ...]]:
    """The neighbours of each site, in order; everybody finds the same.

    >>> neighbours(["a", "b", "c"], 2, b"")["b"]
    ('a', 'c')
    """
    if count >= len(roster) - 1:
        return {site: tuple(other for other in roster if other != site) for site in roster}
    ring = sorted(roster, key=lambda name: hashlib.sha256(session + name.encode()).digest())
    steps = [step for far in range(1, count // 2 + 1) for step in (far, -far)]
    return {site: tuple(sorted(ring[(place + step) % len(ring)] for step in steps)) for place, site in enumerate(ring)}
