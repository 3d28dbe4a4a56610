"""The ledger: one SQLite file with contributions, their running total and a journal. Every change is one transaction.

The contributions are the truth. The total is what is summed of them so far: a new contribution waits beside it and is
summed with others, a few at a time, when a ledger is closed, and before a solve. A process that dies leaves nothing
half done. A ledger that keeps only the total has no contributions to wait: each is summed as it comes, and its digest
alone is remembered.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from threadpoolctl import threadpool_limits

from fedsolve import codec
from fedsolve.arrays import Arrays
from fedsolve.data.task import Task
from fedsolve.errors import DataError, StorageError, unknown
from fedsolve.ledger import cohorts, database, entries, sums
from fedsolve.ledger.admission import check_newer, check_signature, public_keys
from fedsolve.ledger.contribution import Contribution
from fedsolve.ledger.database import Database
from fedsolve.ledger.influence import Influence, influence
from fedsolve.ledger.offers import Offer, read_offer
from fedsolve.ledger.records import Answer, Check, Event, Member, Solved
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.total import check_size
from fedsolve.ledger.validate import Census, content, examine
from fedsolve.ledger.verification import verify
from fedsolve.method import Method
from fedsolve.moments import Moments

AHEAD = 3  # files that are read and examined while another is written


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
    ...     moments = fs.Moments.of(rng.normal(size=(20, 3)), rng.integers(2, size=20), classes=2, intercept=True)
    ...     print(ledger.add(Contribution.of(ward, moments.arrays())))
    Answer(client='north', event='added', reason='')
    Answer(client='south', event='added', reason='')
    >>> ledger.solve().samples
    40
    >>> ledger.remove("south")
    Answer(client='south', event='removed', reason='')
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
        keys: Mapping[str, Path] | None = None,
    ) -> Ledger:
        """A new file for a federation that nobody is in yet. It can be read by its owner alone.

        With `bound`, contributions of samples whose features are longer than that are refused. With `total_only`, no
        single contributions are kept, and removing a client takes its contribution again. With `keys`, files with the
        public keys of clients, only contributions that are signed with them are taken.
        """
        terms = Terms.make(method, task, seed=seed, bound=bound)
        database.create(Path(path), terms, total_only=total_only, keys=public_keys(keys or {}))
        try:
            return cls(path)
        except BaseException:
            Path(path).unlink(missing_ok=True)  # nobody knows of it yet
            raise

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

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Sum what waits, and close the file."""
        try:
            with suppress(StorageError):  # on a full disk it goes on waiting, and nothing is lost
                self.settle()
        finally:
            self._database.close()

    # --- who is in ---

    def members(self) -> tuple[Member, ...]:
        """Everybody that is in, ordered by name; a cohort as one."""
        with self._database.snapshot() as db:
            self._check_entries(db)
            rows = db.execute("SELECT client, samples, classes, bytes, at, digest FROM member").fetchall()
            sizes = cohorts.sizes(db)
        return tuple(sorted(Member._make((*row, sizes[row[0]])) for row in rows))

    def journal(self) -> tuple[Event, ...]:
        """All that happened, the oldest first."""
        rows = self._database.rows("SELECT at, event, client, digest, bytes, reason FROM journal ORDER BY number")
        return tuple(Event(*row) for row in rows)

    def add(self, contribution: Contribution) -> Answer:
        """Take a contribution in, or put it in the place of the client's old one.

        A contribution that cannot be what it says, or is not newer than the client's last one, is refused with a
        `DataError`, and the journal keeps the reason. A `StorageError` is the machine's fault: the ledger is as before.
        """
        try:
            return self._insert(contribution, examine(self.terms, contribution.arrays))
        except DataError as error:
            self._reject(contribution.client, contribution.digest, 0, str(error))
            raise DataError(f"{contribution.client!r} is refused: {error}") from error

    def keep(self, client: str, reply: Arrays) -> Answer:
        """Take in what a client replied in a run, as a contribution that was made just now."""
        return self.add(Contribution.of(client, reply))

    def add_cohort(self, clients: Collection[str], total: Arrays) -> Answer:
        """Take in the secure sum over clients, as one contribution that is called cohort-1, cohort-2, ...

        None of them can be in otherwise, nor be taken out alone. The file does not name them: see `cohort_of`. The sum
        that is in already changes nothing; others are refused as by `add`.

        >>> import tempfile
        >>> import fedsolve as fs
        >>> folder, federation = tempfile.TemporaryDirectory(), fs.load("digits").split(fs.iid(), clients=4, seed=0)
        >>> with fs.Ledger.create(f"{folder.name}/fed.db", fs.AFL(), federation.task) as ledger:
        ...     result = fs.run(fs.AFL(), federation, secure=fs.Secure(on_sum=ledger.add_cohort))
        ...     ledger.members()[0].client, ledger.members()[0].cohort, ledger.cohort_of("client-01")
        ('cohort-1', 4, 'cohort-1')
        >>> folder.cleanup()
        """
        roster, digest = frozenset(clients), content(total)
        try:
            census = examine(self.terms, total)
            check_size(total)
            if self.total_only:
                raise DataError("only the total is kept, and a cohort has no file by which it could be taken out again")
            with self._database.change() as db:
                return cohorts.admit(db, roster, census, digest, codec.encode(total))
        except DataError as error:
            self._reject("cohort", digest, 0, cohorts.unnamed(str(error), roster))
            raise DataError(f"the cohort is refused: {error}") from error

    def cohort_of(self, client: str) -> str | None:
        """The name of the cohort that a client is a member of, if it is in one."""
        with self._database.snapshot() as db:
            return cohorts.places(db, [client]).get(client)

    def offer_files(self, paths: Iterable[Path]) -> Iterator[Answer]:
        """Take in the contributions of files, one answer per file in their order; a refusal is an answer, too.

        Some files are read and examined while another is written.
        """
        pool = ThreadPoolExecutor(2, thread_name_prefix="fedsolve-ledger")
        with pool, threadpool_limits(1, user_api="blas"):  # side by side, one BLAS thread each
            offers: deque[Future[Offer]] = deque()
            for path in paths:
                offers.append(pool.submit(read_offer, self.terms, path))
                if len(offers) > AHEAD:
                    yield self._answer(offers.popleft().result())
            while offers:
                yield self._answer(offers.popleft().result())

    def remove(self, client: str, contribution: Contribution | None = None) -> Answer:
        """Take a client out, exactly, and its statistics from the file; it comes back only with a newer contribution.

        A cohort is taken out as a whole; a single member of one is refused, since two totals would disclose it. Where
        only the total is kept, that takes its contribution again. The answer has a reason where others hold the file
        open, so that its log cannot be emptied of the statistics yet.
        """
        with self._database.change() as db:
            entry = entries.entry(db, client)
            if entry is None:
                cohorts.check_whole(db, client)
                raise unknown("client", client, [member.client for member in self.members()])
            if contribution is not None and contribution.digest != entry.digest:
                raise DataError(f"that is not what {client!r} contributed: the digests differ")
            if contribution is None and self.total_only:
                raise DataError(
                    f"{self.path} keeps only the total: to take {client!r} out, its contribution is needed again"
                )
            self._take_out(db, entry, contribution.arrays if contribution else None)
            entries.dissolve(db, client)
            entries.remember(db, client, entry.digest, entry.sequence)
            entries.note(db, "removed", client, entry.digest, entry.size)
        return Answer(client, "removed", self._database.empty_log())

    def readmit(self, client: str) -> None:
        """Let a client in again with any of its contributions, an old one too, which else is refused as a replay."""
        with self._database.change() as db:
            if entries.entry(db, client) is not None:
                cohorts.check_apart(db, client)
                entries.renumber(db, client, -1)
            elif entries.departed(db, client) is not None:
                entries.forget(db, client)
            else:
                names = [name for (name,) in db.execute("SELECT client FROM member UNION SELECT client FROM departed")]
                raise unknown("client", client, names)
            entries.note(db, "readmitted", client)

    def trust(self, client: str, key: Path) -> None:
        """Take contributions in that client's name only with a signature by the private half of a public key.

        With the first key that a ledger is given, all contributions must be signed. Those that are in stay.
        """
        [(name, public)] = public_keys({client: key}).items()
        with self._database.change() as db:
            entries.trust(db, name, public)
            entries.note(db, "trusted", name)

    # --- the sum ---

    def total(self) -> Arrays:
        """The sum over all members, rounded once."""
        with self._database.snapshot() as db:
            numbers = sums.backlog(db)
            if not numbers:
                return sums.read_high(db)
            total = sums.read_total(db)
            sums.add_parts(db, total, numbers)
            return total.high

    def settle(self) -> None:
        """Sum the contributions that wait beside the total."""
        if self._database.rows("SELECT 1 FROM part WHERE number > (SELECT upto FROM total) LIMIT 1"):
            with self._database.change() as db:
                sums.fold(db)

    def solve(self) -> Solved:
        """The exact model of those who are in; refused where the file is not what was written."""
        self.settle()
        with self._database.snapshot() as db:
            self._check_entries(db)
            rows = db.execute("SELECT digest, samples FROM member ORDER BY digest").fetchall()
            if not rows:
                raise DataError(f"nobody is in {self.path} yet; take contributions in with `fedsolve ledger add`")
            total, clients = self.total(), entries.headcount(db)
            commitments = tuple(commitment for _, commitment in cohorts.read(db))
        samples = sum(count for _, count in rows)
        if int(total["count"]) != samples:
            raise DataError(
                f"{self.path} is damaged: the total counts {int(total['count'])} samples, its members {samples}; "
                "`fedsolve ledger verify` says more"
            )
        state = self.terms.aggregate(total)
        return Solved(self.terms, state, tuple(digest for digest, _ in rows), samples, clients, commitments)

    def parts(self) -> Iterator[tuple[Member, Arrays]]:
        """Each member with its statistics, ordered by name."""
        if self.total_only:
            raise DataError(f"{self.path} keeps only the total: there are no single contributions to look at")
        for member in self.members():
            with self._database.snapshot() as db:
                row = db.execute("SELECT number FROM member WHERE digest = ?", (member.digest,)).fetchone()
                part = entries.part(db, row[0]) if row else None
            if part is not None:  # it was not taken out meanwhile
                yield member, part

    def influence(self) -> list[Influence]:
        """What each client does to the predictions of all, the most suspicious first."""
        self.settle()
        total = Moments.from_arrays(self.total())

        def parts() -> Iterator[tuple[str, Moments]]:
            for member, arrays in self.parts():
                yield member.client, Moments.from_arrays(arrays)

        return influence(parts, total)

    def verify(self) -> Check:
        """Whether the file is what was written, and the total the sum of its parts; if not, the parts are summed again.

        All that is wrong is told: damaged pages, rows, contributions, terms, lines of the journal, and the total.
        """
        with self._database.change() as db:
            return verify(db, self.terms.zero, total_only=self.total_only)

    # --- inside ---

    def _answer(self, offer: Offer) -> Answer:
        reason, digest = offer.reason, ""
        if offer.contribution is not None and offer.census is not None:
            try:
                return self._insert(offer.contribution, offer.census)
            except DataError as error:
                reason, digest = str(error), offer.contribution.digest
        self._reject(offer.client, digest, offer.size, reason)
        return Answer(offer.client, "rejected", reason)

    def _insert(self, contribution: Contribution, census: Census) -> Answer:
        check_size(contribution.arrays)
        client, digest, sequence = contribution.client, contribution.digest, contribution.sequence
        data = codec.encode(contribution.arrays)
        with self._database.change() as db:
            check_signature(contribution, self.terms, entries.keys(db))
            cohorts.check_apart(db, client)
            old = entries.entry(db, client)
            if old is not None and old.digest == digest:
                if sequence > old.sequence:
                    entries.renumber(db, client, sequence)
                return Answer(client, "unchanged", "these very statistics are in already")
            owner = entries.owner(db, digest)
            if owner is not None:
                raise DataError(f"a replay: {owner!r} contributed the very same statistics")
            check_newer(contribution, old or entries.departed(db, client))
            if old is not None:
                if self.total_only:
                    raise DataError(
                        f"{client!r} is in already and only the total is kept: take it out first, with its old "
                        "contribution"
                    )
                self._take_out(db, old, None)
            number = entries.insert(db, client, digest, census.samples, census.classes, len(data), sequence)
            if self.total_only:
                total = sums.read_total(db)
                total.add(contribution.arrays)
                sums.write_total(db, total, number)
            else:
                sums.wait(db, number, data)
            event = "added" if old is None else "replaced"
            entries.note(db, event, client, digest, len(data), "" if old is None else f"in place of {old.digest}")
        if old is None and not self.total_only:
            return Answer(client, event)
        # Two totals, one after the other, would show what came between.
        return Answer(client, event, self._database.empty_log())

    def _take_out(self, db: sqlite3.Connection, entry: entries.Entry, part: Arrays | None) -> None:
        """Take a member's statistics, `part` or those in the file, out of the total and its rows out of the tables."""
        if not entry.is_summed:
            entries.delete(db, entry.number)
            return
        if part is None:
            with suppress(DataError):  # a damaged one is done without: the others are summed anew
                part = entries.part(db, entry.number)
        sums.take(db, entry.number, part, self.terms.zero)

    def _check_entries(self, db: sqlite3.Connection) -> None:
        faults = entries.faults(db)
        if faults:
            raise DataError(f"{self.path} is damaged: {'; '.join(faults)}; `fedsolve ledger verify` says more")

    def _reject(self, client: str, digest: str, size: int, reason: str) -> None:
        with self._database.change() as db:
            entries.note(db, "rejected", client, digest, size, reason)
