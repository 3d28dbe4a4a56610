"""A table in parts, of which one is in memory at a time: blocks of rows of Parquet files. Which rows are meant.

Whether a row is tested on is decided row by row, by its number or by whose it is, so that neither the size of the
blocks nor rows that are added later change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Float
from fedsolve.data import arrow
from fedsolve.data.reading import Roles
from fedsolve.errors import DataError, FedsolveError, plain
from fedsolve.progress import Progress

BLOCK_BYTES = 8 * 2**20  # of a block of rows, eight for each cell: memory of such a size is used again, block by block
FIRST = 2**12  # rows at least that are looked at first, as those of a small table are
_Found = TypeVar("_Found")


class Part(NamedTuple):
    """Some rows of a table, as pyarrow has them, and the number of the first."""

    table: Any
    start: int

    def where(self, rows: Sequence[int]) -> dict[int, str]:
        """What rows of the part are called in the whole table."""
        return {row: f"row {self.start + row + 1}" for row in rows}


class Parts(Protocol):
    """A table in parts, and who goes through them."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        ...

    def first(self) -> Part:
        """Rows to look at before anything else."""
        ...

    def fold(
        self, tell: Callable[[Part], _Found], add: Callable[[_Found, _Found], _Found], wanted: Sequence[str]
    ) -> _Found | None:
        """What `tell` makes of each part, added up; None where there is none. Only the `wanted` columns are needed."""
        ...


@dataclass(frozen=True)
class Parquet:
    """The rows of Parquet files, one behind the other, in blocks; one block is in memory at a time."""

    name: str
    files: tuple[Path, ...]
    progress: Progress | None = field(default=None, compare=False)

    @classmethod
    def of(cls, place: str | Path, progress: Progress | None = None) -> Parquet:
        """A file, or all files .parquet in a folder and its folders, by name."""
        path = Path(place)
        files = tuple(sorted(path.rglob("*.parquet"))) if path.is_dir() else (path,)
        if not files or not all(file.is_file() and file.suffix.lower() == ".parquet" for file in files):
            raise DataError(f"a stream is a file that ends in .parquet, or a folder of such files; {place} is none")
        return cls(str(place), files, progress)

    def first(self) -> Part:
        """The first rows."""
        import pyarrow as pa

        found: list[Any] = []
        for part in self._parts(None):
            found.append(part.table)
            if sum(map(len, found)) >= FIRST:
                break
        if not found:
            raise DataError(f"{self.name}: it holds no samples")
        return Part(pa.concat_tables(found), 0)

    def fold(
        self, tell: Callable[[Part], _Found], add: Callable[[_Found, _Found], _Found], wanted: Sequence[str]
    ) -> _Found | None:
        """One part after the other, in the order of the rows."""
        total: _Found | None = None
        for part in self._parts(wanted):
            found = tell(part)
            total = found if total is None else add(total, found)
        return total

    def _parts(self, wanted: Sequence[str] | None) -> Iterator[Part]:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise DataError(f"reading {self.name} needs pyarrow: pip install 'fedsolve[data]'") from error
        start = 0
        for number, path in enumerate(self.files):
            with sound(str(path)):
                with pq.ParquetFile(path, pre_buffer=False) as head:
                    schema, rows = head.schema_arrow, head.metadata.num_rows
                words = [each.name for each in schema if arrow.is_text(pa.types, each.type)]
                names = schema.names if wanted is None else [name for name in schema.names if name in set(wanted)]
                with pq.ParquetFile(path, read_dictionary=words, pre_buffer=False) as file:
                    size = max(1, BLOCK_BYTES // (8 * max(1, len(names))))
                    before = start
                    for batch in file.iter_batches(batch_size=size, columns=list(names)):
                        if batch.num_rows:
                            yield Part(pa.Table.from_batches([batch]), start)
                        start += batch.num_rows
                        if self.progress:
                            of = f", {number + 1} of {len(self.files)}" if len(self.files) > 1 else ""
                            self.progress(f"{path.name}{of}", start - before, rows)


@contextmanager
def sound(source: str) -> Iterator[None]:
    """Inside, what pyarrow or NumPy cannot read is a damaged table."""
    try:
        yield
    except FedsolveError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError, IndexError, OSError, RuntimeError) as error:
        reason = plain(str(error)) or type(error).__name__
        raise DataError(f"{source} is damaged, or not a table in Parquet ({reason})") from error


@dataclass(frozen=True)
class Choice:
    """Which rows are meant: all, or those that are trained on, or held out; of all owners, or of one.

    A row is held out where a number between 0 and 1 that its own number, or its person, decides is below `test`.
    """

    held: bool | None = None  # None: all
    test: float = 0.0
    seed: int = 0
    owner: str = ""

    def rows(self, part: Part, roles: Roles) -> NDArray[np.bool_] | None:
        """Which rows of a part are meant; None: all."""
        chosen: NDArray[np.bool_] | None = None
        if self.owner and roles.client:
            chosen = texts_of(part, roles.client) == self.owner
        if self.held is None or (not self.test and not self.held):
            return chosen
        count = part.table.num_rows
        numbers = np.arange(part.start, part.start + count, dtype=np.uint64)
        if roles.person:
            levels, places = np.unique(texts_of(part, roles.person), return_inverse=True)
            digests = b"".join(hashlib.blake2b(level.encode(), digest_size=8).digest() for level in levels.tolist())
            numbers = np.frombuffer(digests, dtype="<u8").astype(np.uint64)[places]
        held = _drawn(numbers, self.seed) < self.test
        fits = held if self.held else ~held
        return fits if chosen is None else chosen & fits

    def wanted(self, roles: Roles) -> tuple[str, ...]:
        """The columns that decide it."""
        return ((roles.client,) if self.owner and roles.client else ()) + ((roles.person,) if roles.person else ())


def _drawn(numbers: NDArray[np.uint64], seed: int) -> Float:
    """A number from 0 up to 1 for each whole number and seed (Steele et al. 2014, splitmix64)."""
    key = int.from_bytes(hashlib.blake2b(f"stream {seed}".encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) / 2.0**64


def texts_of(part: Part, name: str) -> NDArray[Any]:
    """Clients or persons as texts."""
    return arrow.plain_values(name, part.table.column(name)).astype(np.str_)
