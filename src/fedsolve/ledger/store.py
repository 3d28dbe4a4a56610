"""The ledger: one SQLite file with contributions, their running total and a journal. Every change is one transaction.

The contributions are the truth. The total is what is summed of them so far: a new contribution waits beside it and is
summed with others, a few at a time, when a ledger is closed, and before a solve. A process that dies leaves nothing
half done. A ledger that keeps only the total has no contributions to wait: each is summed as it comes, and its digest
alone is remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from threadpoolctl import threadpool_limits

from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError, unknown
from fedsolve.ledger import database
from fedsolve.ledger.contribution import Contribution, read_bytes, sender
from fedsolve.ledger.database import Database
from fedsolve.ledger.influence import Influence, influence
from fedsolve.ledger.records import Answer, Check, Event, Member, Solved
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.total import Total
from fedsolve.ledger.validate import Census, content, examine
from fedsolve.method import Method
from fedsolve.moments import Moments

AHEAD = 3  # files that are read and examined while another is written
DAMAGE = 1e-9  # a total that is further off than this was not moved by rounding


class Ledger:
    """The durable record of a closed-form federation in one file. Several processes and threads may have it open.

    Clients come at any time, each with one contribution; one that is taken out again leaves the model of a federation
    that never had it.

    >>> import tempfile
    >>> import numpy as np
    >>> import fedsolve as fs
    >>> from fedsolve.ledger.contribution import Contribution
    >>> folder, rng = tempfile.TemporaryDirectory(), np.random.default_rng(0)
    >>> ledger = fs.Ledger.create(f"{folder.name}/fed.db", fs.AFL(), fs.Task(fs.Classes(2), (3,)))
    >>> for ward in ("north", "south"):
    ...     moments = fs.Moments.of(rng.normal(size=(20, 3)), rng.integers(2, size=20), classes=2)
    ...     print(ledger.add(Contribution.of(ward, moments.arrays())))
    Answer(client='north', event='added', reason='')
    Answer(client='south', event='added', reason='')
    >>> ledger.solve().samples
    40
    >>> ledger.remove("south")
    >>> solved = ledger.solve()
    >>> solved.samples, solved.state["weight"].shape
    (20, (3, 2))
    >>> [event.event for event in ledger.journal()]
    ['created', 'added', 'added', 'removed']
    >>> ledger.close()
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._database = Database(self.path)
        self.terms = self._database.terms
        self.total_only = self._database.total_only

    @classmethod
    def create(
        cls,
        path: str | Path,
        method: Method,
        task: Task,
        *,
        seed: int = 0,
        bound: float | None = None,
        total_only: bool = False,
    ) -> Ledger:
        """A new file for a federation that nobody is in yet. It can be read by its owner alone.

        With `bound`, contributions of samples whose features are longer than that are refused. With `total_only`, no
        single contributions are kept, and removing a client takes its contribution again.
        """
        database.create(Path(path), Terms.make(method, task, seed=seed, bound=bound), total_only=total_only)
        return cls(path)

    @classmethod
    def join(cls, path: str | Path, method: Method, task: Task, *, seed: int = 0) -> Ledger:
        """The ledger in a file, for a run of that method on that task; a new one where there is no file."""
        if not Path(path).exists():
            return cls.create(path, method, task, seed=seed)
        ledger = cls(path)
        reason = ledger.terms.refusal(Terms.make(method, task, seed=seed).labels())
        if reason:
            ledger.close()
            raise DataError(f"this run cannot contribute to {path}: {reason}")
        return ledger

    @classmethod
    @contextmanager
    def keeping(
        cls, path: str | Path, method: Method, task: Task, *, seed: int = 0
    ) -> Iterator[Callable[[str, Arrays], object]]:
        """A function of a client and its reply in such a run, which puts the reply into the ledger of a file."""
        with cls.join(path, method, task, seed=seed) as ledger:
            yield lambda client, reply: ledger.add(Contribution.of(client, reply))

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Sum what waits, and close the file."""
        try:
            self.settle()
        finally:
            self._database.close()

    # --- who is in ---

    def members(self) -> tuple[Member, ...]:
        """Everybody that is in, ordered by name."""
        rows = self._database.rows("SELECT client, samples, classes, bytes, at, digest FROM member ORDER BY client")
        return tuple(map(Member._make, rows))

    def journal(self) -> tuple[Event, ...]:
        """All that happened, the oldest first."""
        rows = self._database.rows("SELECT at, event, client, digest, bytes, reason FROM journal ORDER BY number")
        return tuple(Event(*row) for row in rows)

    def add(self, contribution: Contribution) -> Answer:
        """Take a contribution in, or put it in the place of the client's old one.

        A contribution that cannot be what it says is refused with a `DataError`, and the journal keeps the reason.
        """
        try:
            return self._insert(contribution, examine(self.terms, contribution.arrays))
        except DataError as error:
            self._reject(contribution.client, contribution.digest, 0, str(error))
            raise DataError(f"{contribution.client!r} is refused: {error}") from error

    def offer_files(self, paths: Iterable[Path]) -> Iterator[Answer]:
        """Take in the contributions of files, one answer per file in their order; a refusal is an answer, too.

        Some files are read and examined while another is written.
        """
        pool = ThreadPoolExecutor(2, thread_name_prefix="fedsolve-ledger")
        with pool, threadpool_limits(1, user_api="blas"):  # side by side, one BLAS thread each
            offers: deque[Future[_Offer]] = deque()
            for path in paths:
                offers.append(pool.submit(_read, self.terms, path))
                if len(offers) > AHEAD:
                    yield self._answer(offers.popleft().result())
            while offers:
                yield self._answer(offers.popleft().result())

    def remove(self, client: str, contribution: Contribution | None = None) -> None:
        """Take a client out, exactly, and its statistics from the file.

        Where only the total is kept, that takes its contribution again.
        """
        with self._database.change() as db:
            entry = database.entry(db, client)
            if entry is None:
                raise unknown("client", client, [member.client for member in self.members()])
            if contribution is not None and contribution.digest != entry.digest:
                raise DataError(f"that is not what {client!r} contributed: the digests differ")
            if contribution is not None:
                part = contribution.arrays
            elif entry.part is not None:
                part = codec.decode(entry.part)
            else:
                raise DataError(
                    f"{self.path} keeps only the total: to take {client!r} out, its contribution is needed again"
                )
            database.delete(db, entry.number)
            if entry.is_summed:
                database.subtract(db, part, self.terms.shape, total_only=self.total_only)
            database.note(db, "removed", client, entry.digest, entry.size)
        self._database.empty_log()

    # --- the sum ---

    def total(self) -> Arrays:
        """The sum over all members, correctly rounded."""
        with self._database.snapshot() as db:
            numbers = database.backlog(db)
            if not numbers:
                return database.read_high(db)
            total = database.read_total(db)
            database.add_parts(db, total, numbers)
            return total.high

    def settle(self) -> None:
        """Sum the contributions that wait beside the total."""
        if self._database.rows("SELECT 1 FROM part WHERE number > (SELECT upto FROM total) LIMIT 1"):
            with self._database.change() as db:
                database.fold(db)

    def solve(self) -> Solved:
        """The exact model of those who are in."""
        self.settle()
        with self._database.snapshot():
            rows = self._database.rows("SELECT digest FROM member ORDER BY digest")
            total = self.total()
        if not rows:
            raise DataError(f"nobody is in {self.path} yet; take contributions in with `fedsolve ledger add`")
        state = self.terms.aggregate(total)
        return Solved(self.terms, state, tuple(digest for (digest,) in rows), int(total["count"]))

    def parts(self) -> Iterator[tuple[Member, Arrays]]:
        """Each member with its statistics, ordered by name."""
        if self.total_only:
            raise DataError(f"{self.path} keeps only the total: there are no single contributions to look at")
        query = "SELECT data FROM member JOIN part USING (number) WHERE digest = ?"
        for member in self.members():
            for (data,) in self._database.rows(query, (member.digest,)):  # none, if it was taken out meanwhile
                yield member, codec.decode(data)

    def influence(self) -> list[Influence]:
        """What each client does to the predictions of all, the most suspicious first."""
        self.settle()
        total = Moments.from_arrays(self.total())

        def parts() -> Iterator[tuple[str, Moments]]:
            for member, arrays in self.parts():
                yield member.client, Moments.from_arrays(arrays)

        return influence(parts, total)

    def verify(self) -> Check:
        """Whether the file is whole, its contributions unchanged, and the total their sum; a drifted one is rebuilt."""
        with self._database.change() as db:
            faults = [text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
            database.fold(db)
            kept, rebuilt = database.read_total(db), Total.zero(*self.terms.shape)
            damaged: list[str] = []
            samples = members = 0
            query = "SELECT client, digest, samples, data FROM member LEFT JOIN part USING (number) ORDER BY number"
            for client, digest, count, data in db.execute(query):
                samples, members = samples + count, members + 1
                if data is None:
                    continue
                try:
                    part = codec.decode(data, client)
                    if content(part) != digest:
                        raise DataError("its content is not what was accepted")
                    rebuilt.add(part)
                except FedsolveError as error:
                    damaged.append(f"the contribution of {client!r} is damaged: {error}")
            faults += damaged
            if int(kept.high["count"]) != samples:
                faults.append(f"the total counts {int(kept.high['count'])} samples, its members {samples}")
            if self.total_only:
                return Check(members, samples, None, tuple(faults))
            drift = kept.distance(rebuilt)
            if not drift <= DAMAGE:
                faults.append(f"the total was not the sum of its parts: {drift:.2g} apart")
            if drift != 0 and not damaged:
                database.write_total(db, rebuilt)
                database.note(db, "rebuilt", reason=f"the total was {drift:.2g} from the sum of its parts")
            return Check(members, samples, drift, tuple(faults))

    # --- inside ---

    def _answer(self, offer: _Offer) -> Answer:
        reason, digest = offer.reason, ""
        if offer.contribution is not None and offer.census is not None:
            try:
                return self._insert(offer.contribution, offer.census)
            except DataError as error:
                reason, digest = str(error), offer.contribution.digest
        self._reject(offer.client, digest, offer.size, reason)
        return Answer(offer.client, "rejected", reason)

    def _insert(self, contribution: Contribution, census: Census) -> Answer:
        client, digest = contribution.client, contribution.digest
        data = codec.encode(contribution.arrays)
        with self._database.change() as db:
            owner = database.owner(db, digest)
            if owner == client:
                return Answer(client, "unchanged", "these very statistics are in already")
            if owner is not None:
                raise DataError(f"a replay: {owner!r} contributed the very same statistics")
            old = database.entry(db, client)
            if old is not None:
                if old.part is None:
                    raise DataError(
                        f"{client!r} is in already and only the total is kept: take it out first, with its old "
                        "contribution"
                    )
                database.delete(db, old.number)
                if old.is_summed:
                    database.subtract(db, codec.decode(old.part), self.terms.shape, total_only=self.total_only)
            number = database.insert(db, client, digest, census.samples, census.classes, len(data))
            if self.total_only:
                total = database.read_total(db)
                total.add(contribution.arrays)
                database.write_total(db, total, number)
            else:
                database.insert_part(db, number, data)
                if len(database.backlog(db)) >= database.FOLD:
                    database.fold(db)
            event = "added" if old is None else "replaced"
            database.note(db, event, client, digest, len(data), "" if old is None else f"in place of {old.digest}")
        if old is not None or self.total_only:  # two totals, one after the other, would show what came between
            self._database.empty_log()
        return Answer(client, event)

    def _reject(self, client: str, digest: str, size: int, reason: str) -> None:
        with self._database.change() as db:
            database.note(db, "rejected", client, digest, size, reason)


@dataclass(frozen=True, slots=True, eq=False)
class _Offer:
    """A file after a look at it: its contribution and what that says of itself, or the reason for a refusal."""

    client: str
    size: int  # bytes of the file
    contribution: Contribution | None = None
    census: Census | None = None
    reason: str = ""


def _read(terms: Terms, path: Path) -> _Offer:
    try:
        data = read_bytes(path)
    except DataError as error:
        return _Offer(path.stem, 0, reason=str(error))
    try:
        contribution = Contribution.read(data, terms, str(path))
        return _Offer(contribution.client, len(data), contribution, examine(terms, contribution.arrays))
    except FedsolveError as error:
        return _Offer(sender(data, path.stem), len(data), reason=str(error))
