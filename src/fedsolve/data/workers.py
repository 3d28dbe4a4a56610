"""Tables on a cluster: an engine takes work to the parts, and adds up what they tell, pair by pair, where they lie.

What an engine must do is one function, `gather`: call `tell(number, frame)` for each partition, and `add` what that
gives until one value is left. Dask's is here; docs/large.md shows those of Ray and Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fedsolve.data.parts import FIRST, Part
from fedsolve.errors import DataError

PART = 2**40  # numbers of rows that each partition has for itself
_Found = TypeVar("_Found")


class Engine(Protocol):
    """Whoever goes through the partitions of a frame."""

    def __call__(self, tell: Callable[[int, Any], _Found], add: Callable[[_Found, _Found], _Found]) -> _Found:
        """What `tell` makes of each partition, by its number, added up in any order and in any pairs."""
        ...


@dataclass(frozen=True, eq=False)
class Workers:
    """A table whose partitions, frames of pandas or tables of pyarrow, lie on the workers of a cluster.

    `head` are some of its rows, at least one, which are looked at here.

    >>> import pandas
    >>> halves = [pandas.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]}), pandas.DataFrame({"x": [4.0], "y": ["b"]})]
    >>> here = lambda tell, add: add(*(tell(number, half) for number, half in enumerate(halves)))
    >>> import fedsolve as fs
    >>> fs.stream(Workers("halves", here, halves[0])).moments()
    Moments(1 features, 2 targets, 3 samples, space ...)
    """

    name: str
    gather: Engine
    head: Any

    def __repr__(self) -> str:
        return f"Workers({self.name!r})"

    def first(self) -> Part:
        """The rows to look at."""
        return Part(_arrow(self.head, None), 0)

    def fold(
        self, tell: Callable[[Part], _Found], add: Callable[[_Found, _Found], _Found], wanted: Sequence[str]
    ) -> _Found | None:
        """What the engine adds up; of partitions without rows nothing is told."""
        found: _Found | None = self.gather(_Shipped(tell, tuple(wanted)), _Added(add))
        return found


@dataclass(frozen=True)
class _Shipped:
    """What is told of a partition, on the worker that has it."""

    tell: Callable[[Part], Any]
    wanted: tuple[str, ...]

    def __call__(self, number: int, frame: Any) -> Any:
        table = _arrow(frame, self.wanted)
        return self.tell(Part(table, number * PART)) if table.num_rows else None


@dataclass(frozen=True)
class _Added:
    """The sum of what two parts told, each of which may have had no rows."""

    add: Callable[[Any, Any], Any]

    def __call__(self, left: Any, right: Any) -> Any:
        return right if left is None else left if right is None else self.add(left, right)


def _arrow(frame: Any, wanted: Sequence[str] | None) -> Any:
    """A frame as a table of pyarrow, with the columns that are wanted."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError("tables on a cluster need pyarrow: pip install 'fedsolve[data]'") from error
    if not isinstance(frame, pa.Table):
        frame = pa.Table.from_pandas(frame if wanted is None else frame[list(wanted)], preserve_index=False)
    return frame if wanted is None else frame.select(list(wanted))


def is_dask(data: object) -> bool:
    """Whether something is a data frame of Dask, without importing it."""
    return type(data).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(data, "to_delayed")


def of_dask(frame: Any, name: str = "the frame of Dask") -> Workers:
    """A data frame of Dask; its partitions are told of by the workers that have them, and added up as a tree."""
    try:
        from dask.delayed import delayed
    except ImportError as error:
        raise DataError("a frame of Dask needs Dask: pip install 'fedsolve[dask]'") from error

    def gather(tell: Callable[[int, Any], _Found], add: Callable[[_Found, _Found], _Found]) -> _Found:
        columns = [*dict.fromkeys(getattr(tell, "wanted", ()))] or list(frame.columns)
        told, added = delayed(tell, pure=False), delayed(add, pure=False)
        waiting = [told(number, part) for number, part in enumerate(frame[columns].to_delayed())]
        while len(waiting) > 1:
            pairs = [waiting[place : place + 2] for place in range(0, len(waiting), 2)]
            waiting = [added(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        found: _Found = waiting[0].compute()
        return found

    return Workers(name, gather, frame.head(FIRST, npartitions=-1))
