"""Whether a contribution can be what it says it is: the moments of some samples, of this federation."""

from __future__ import annotations

import hashlib

import numpy as np

from fedsolve import arrays as named
from fedsolve import census
from fedsolve.arrays import Arrays
from fedsolve.census import Census
from fedsolve.errors import DataError
from fedsolve.ledger.terms import Terms

__all__ = ["Census", "content", "examine"]


def content(arrays: Arrays) -> str:
    """The digest of arrays: of their names, types, shapes and values, whatever file they came in."""
    digest = hashlib.sha256(repr(named.layout(arrays)).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()[:32]


def examine(terms: Terms, arrays: Arrays) -> Census:
    """Refuse, with the reason, what cannot be the moments of samples of this federation.

    >>> import fedsolve as fs
    >>> from fedsolve.ledger.terms import Terms
    >>> terms = Terms.make(fs.AFL(intercept=False), fs.Task(fs.Classes(3), (2,)))
    >>> moments = fs.Moments.of([[1.0, 2.0], [0.5, 0.0]], [0, 2], classes=3)
    >>> examine(terms, moments.arrays())
    Census(samples=2, classes=2)
    """
    layout = named.layout(arrays)
    if layout != terms.layout:
        raise DataError(f"it holds {named.words(layout)}; wanted {named.words(terms.layout)}")
    if not int(arrays["count"]):
        raise DataError("it says that it has 0 samples")
    if terms.task.target.kind == "numbers":
        return census.examine_numbers(arrays)
    return census.examine(arrays, ones=terms.ones, bound=terms.bound)
