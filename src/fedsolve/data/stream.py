"""Samples that are never all in memory: read, or on a cluster, in parts, and told as sums over these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.data.samples import Samples
from fedsolve.errors import DataError

_Found = TypeVar("_Found")


class Gather(Protocol):
    """Where the parts are: it adds up by `add` what `tell` makes of each, in any order and in any pairs."""

    def __call__(self, tell: Callable[[Samples], _Found], add: Callable[[_Found, _Found], _Found]) -> _Found:
        """What `tell` makes of all parts, added up."""
        ...


class Stream(Samples):
    """Samples in parts, of which nothing is known but how many there are and what sums over them are.

    It stands wherever `Samples` do. Who asks for all rows at once is refused, and so works from sums or not at all.

    >>> import numpy as np
    >>> halves = [Samples(np.ones((2, 3)), np.array([0, 1])), Samples(np.zeros((1, 3)), np.array([1]))]
    >>> stream = Stream(lambda tell, add: add(*map(tell, halves)), 3)
    >>> stream, stream.fold(lambda part: part.inputs.sum(0), np.add).tolist()
    (Stream(3 samples), [2.0, 2.0, 2.0])
    """

    __slots__ = ("_count", "_gather")
    _count: int
    _gather: Gather

    def __init__(self, gather: Gather, count: int) -> None:
        object.__setattr__(self, "_gather", gather)
        object.__setattr__(self, "_count", count)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Stream({self._count} samples)"

    @property
    def in_memory(self) -> bool:
        """Never."""
        return False

    def fold(self, tell: Callable[[Samples], _Found], add: Callable[[_Found, _Found], _Found]) -> _Found:
        """What `tell` makes of all parts, added up by `add`."""
        return self._gather(tell, add)

    @property
    def inputs(self) -> Array:
        """Refused: all rows at once."""
        _refuse()

    @property
    def labels(self) -> NDArray[Any]:
        """Refused: all labels at once."""
        _refuse()


def _refuse() -> NoReturn:
    raise DataError(
        "these samples are streamed and never all in memory, and what was asked for takes all rows at once; from sums "
        "alone work afl, fedhip with an alpha that is set (--set alpha=5), and what sites send for fedprior and apfl: "
        "choose one of these, or read the table as a whole, without --stream"
    )
