"""Which colour, marker and line a method has: the same on every figure and page, whatever stands beside it.

Okabe and Ito's colours, which colour-blind readers tell apart, without the two that vanish on white or on black, and a
grey. Seven colours are too few for all methods, so those of one colour differ in marker and line.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8F98")
MARKERS = "osD^vP"
# One row per marker and line, one place per colour. A method that is not here has a place by its name: new ones need no
# entry, and one that is put into an empty place moves no other.
PLACES: tuple[tuple[str, ...], ...] = (
    ("afl", "fedhip", "apfl", "fedprior", "fedavg-ft", "fedavg", "local"),
    ("deepafl", "ditto", "fedala", "fedselect", "fedprox-ft", "fedprox", "glm"),
    ("fedacnnl", "fedapa", "fedpcl", "feddbe", "fedas", "mixed", "moon"),
    ("fedpac", "fedgen", "fedphp", "apple", "fedamp", "pfedzo", "baffle"),
    ("pfedme", "pfedacnnl", "feddyn", "fedntd", "feddisco", "fedproto", ""),
    ("fedgh", "pfedhn", "pfedla", "fedzo", "", "", ""),
)
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (3, 1.5), (1, 1.2), (6, 2, 1.2, 2), (3, 1.5, 1, 1.5, 1, 1.5))
VARIANT_MARKERS = "X*pd<>h8"  # of further variants of a method, which no method has


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    colour: str
    marker: str
    dashes: tuple[float, ...]  # lengths of strokes and gaps; none: a line without gaps

    def line(self) -> dict[str, Any]:
        """What matplotlib is told of a line with markers."""
        return {"color": self.colour, "marker": self.marker, "linestyle": (0, self.dashes) if self.dashes else "-"}


def look(method: str, variant: int = 0) -> Look:
    """The look of a method; its variants on a page, numbered from 0, have its colour, and differ in marker and line.

    >>> look("fedhip").colour == look("fedhip", 2).colour, look("fedhip").marker, look("fedhip", 2).marker
    (True, 'o', '*')
    """
    row, column = _place(method)
    if not variant:
        return Look(COLOURS[column], MARKERS[row], DASHES[row])
    marker = VARIANT_MARKERS[(variant - 1) % len(VARIANT_MARKERS)]
    return Look(COLOURS[column], marker, DASHES[(row + variant) % len(DASHES)])


def _place(method: str) -> tuple[int, int]:
    for row, names in enumerate(PLACES):
        if method and method in names:
            return row, names.index(method)
    drawn = int.from_bytes(hashlib.blake2b(method.encode(), digest_size=4).digest(), "big")
    return drawn // len(COLOURS) % len(MARKERS), drawn % len(COLOURS)
