"""Which split of which data a site has answered with. One, since the difference of two is the sum of a few rows.

Sums over two sets of training samples subtract. So a site remembers digests of the rows behind its answers, and refuses
another split of data that are the same or almost the same, and training samples that differ from earlier ones in a few.
Of a table that is streamed it remembers a sketch of the digests, which is as small for any number of rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve import disk
from fedsolve.data.large import Large
from fedsolve.data.samples import Samples
from fedsolve.data.table import Table
from fedsolve.errors import DataError
from fedsolve.features.cells import Cells
from fedsolve.features.images import Inputs
from fedsolve.privacy.policy import Policy, Refusal

Digests = NDArray[np.uint64]  # of rows, sorted

FILE = "splits.jsonl"
BUCKETS = 2**16  # of a sketch, among which a few rows that differ hardly meet
SAMPLE = 2**12  # smallest digests that a sketch keeps


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The rows that a site trains on, and those it holds back, as digests."""

    test: float | str
    seed: int
    data: str  # digest of all rows in their order
    train: Digests
    held: Digests

    @classmethod
    def of(cls, table: Table, client: str, policy: Policy) -> Split:
        """The split that the policy makes of a site's table as it was read: nothing that a server says is in it."""
        rows = digests(table.inputs, table.labels, table.class_names)
        train = np.arange(len(rows))
        if not isinstance(policy.test, str):  # numbers in place of the inputs show which rows are where
            numbers = replace(table, inputs=train[:, None].astype(np.float64), test=None)
            member = numbers.owned_by(client, seed=policy.split_seed, test=policy.test).clients[client]
            train = member.train.inputs[:, 0].astype(np.int64)
        held = np.delete(rows, train)
        data = hashlib.sha256(rows.tobytes()).hexdigest()[:16]
        return cls(policy.test, policy.split_seed, data, np.sort(rows[train]), np.sort(held))

    def line(self) -> str:
        """The split as a line of the journal."""
        words = {"test": self.test, "seed": self.seed, "data": self.data}
        return json.dumps({**words, "train": _text(self.train), "held": _text(self.held)})

    @classmethod
    def read(cls, line: str) -> Split:
        """The split in a line of the journal."""
        values = json.loads(line)
        words = values["test"], int(values["seed"]), str(values["data"])
        return cls(*words, _numbers(values["train"]), _numbers(values["held"]))

    def same_rule(self, other: Split) -> bool:
        """Whether both were made by the same share and seed."""
        return (self.test, self.seed) == (other.test, other.seed)

    def overlaps(self, other: Split) -> bool:
        """Whether at least half the rows of the smaller are rows of the other, wherever they stand."""
        mine, theirs = (np.concatenate([split.train, split.held]) for split in (self, other))
        return 2 * _common(mine, theirs) >= min(len(mine), len(theirs))

    def distance(self, other: Split) -> int:
        """How many training rows one of the two has and the other does not."""
        return len(self.train) + len(other.train) - 2 * _common(self.train, other.train)

    def sketch(self) -> Sketch:
        """The same as a sketch, to be compared with others."""
        rows = np.concatenate([self.train, self.held])
        return Sketch(self.test, self.seed, _bucketed(self.train), _bucketed(rows), _smallest(rows), len(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """The rows that a site with a stream trains on, and all of them, as sums of digests in buckets by digest."""

    test: float | str
    seed: int
    train: Digests  # by bucket
    every: Digests  # by bucket
    smallest: Digests  # of all rows: a random sample of those that differ
    rows: int

    @classmethod
    def of(cls, table: Large, client: str, policy: Policy) -> Sketch:
        """The split that the policy makes of a site's stream: nothing that a server says is in it."""
        member = table.client_of(client, test=policy.test, seed=policy.split_seed)
        names = table.task.class_names

        def tell(part: Samples) -> tuple[Digests, Digests]:
            rows = digests(part.inputs, part.labels, names)
            return _bucketed(rows), _smallest(rows)

        def add(left: tuple[Digests, Digests], right: tuple[Digests, Digests]) -> tuple[Digests, Digests]:
            return left[0] + right[0], _smallest(np.concatenate([left[1], right[1]]))

        train = member.train.fold(tell, add)
        whole = add(train, member.test.fold(tell, add)) if len(member.test) else train
        return cls(policy.test, policy.split_seed, train[0], *whole, table.rows)

    @property
    def data(self) -> str:
        """A digest of all rows, in any order."""
        return hashlib.sha256(self.every.tobytes()).hexdigest()[:16]

    def sketch(self) -> Sketch:
        """Itself."""
        return self

    def line(self) -> str:
        """The sketch as a line of the journal."""
        words = {"test": self.test, "seed": self.seed, "rows": self.rows}
        parts = {name: _text(getattr(self, name)) for name in ("train", "every", "smallest")}
        return json.dumps({**words, "sketch": parts})

    @classmethod
    def read(cls, line: str) -> Sketch:
        """The sketch in a line of the journal."""
        values = json.loads(line)
        train, every, smallest = (_numbers(values["sketch"][name]) for name in ("train", "every", "smallest"))
        if not len(train) == len(every) == BUCKETS:
            raise ValueError(f"a sketch has {BUCKETS} buckets")
        return cls(values["test"], int(values["seed"]), train, every, smallest, int(values["rows"]))

    def same_rule(self, other: Sketch) -> bool:
        """Whether both were made by the same share and seed."""
        return (self.test, self.seed) == (other.test, other.seed)

    def overlaps(self, other: Sketch) -> bool:
        """Whether at least about half the rows of the smaller are rows of the other, as far as the samples tell."""
        either = np.union1d(self.smallest, other.smallest)[:SAMPLE]
        common = np.intersect1d(self.smallest, other.smallest)
        share = np.isin(either, common).mean() if len(either) else 0.0
        return bool(2 * share * (self.rows + other.rows) >= (1 + share) * min(self.rows, other.rows))

    def distance(self, other: Sketch) -> int:
        """In how many buckets the training rows differ: no more than rows do, and of a few rows mostly as many."""
        return int((self.train != other.train).sum())


def _bucketed(rows: Digests) -> Digests:
    """The sums of digests, modulo 2^64, by their last bits."""
    sums = np.zeros(BUCKETS, dtype=np.uint64)
    np.add.at(sums, rows % np.uint64(BUCKETS), rows)
    return sums


def _smallest(rows: Digests) -> Digests:
    return np.unique(rows)[:SAMPLE]


def admit(state: Path, split: Split | Sketch, policy: Policy) -> None:
    """Refuse a second split of data that were answered for; remember one that is new.

    The site itself can allow it: with ALLOW_SPLITS=yes in site.env, or by removing the line in the journal.
    """
    path = state / FILE
    way_out = f"the site can allow it with ALLOW_SPLITS=yes in its site.env, or by removing the line from {FILE}"
    known = False
    for number, earlier in enumerate(_read(path), 1):
        if isinstance(split, Sketch) or isinstance(earlier, Sketch):
            now, before = split.sketch(), earlier.sketch()
            distance, same, overlaps = now.distance(before), now.data == before.data, now.overlaps(before)
        else:
            distance, same, overlaps = split.distance(earlier), split.data == earlier.data, split.overlaps(earlier)
        rule = (split.test, split.seed) == (earlier.test, earlier.seed)
        if rule and not distance:
            known = True
        elif policy.allow_splits:
            continue
        elif same or (not rule and overlaps):
            raise Refusal(
                f"it has answered for these data, or most of them, under another split; {way_out}",
                f"line {number}: TEST={earlier.test} SPLIT_SEED={earlier.seed}; now TEST={split.test} "
                f"SPLIT_SEED={split.seed}",
            )
        elif distance < policy.min_samples:
            raise Refusal(
                f"its training samples differ from those it answered with before in fewer than {policy.min_samples}, "
                f"and the difference would show these; {way_out}",
                f"line {number}: {distance} rows differ",
            )
    if not known:
        disk.append_line(path, split.line())


def _read(path: Path) -> list[Split | Sketch]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    splits = list[Split | Sketch]()
    for number, line in enumerate(lines, 1):
        try:
            splits.append(Sketch.read(line) if "sketch" in json.loads(line) else Split.read(line))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"line {number} of {path} is damaged; remove it: {error}") from error
    return splits


def digests(inputs: Inputs | Cells, labels: NDArray[Any], names: Sequence[str]) -> Digests:
    """One digest per row, of its inputs and its label, as they stand in the file."""
    if isinstance(inputs, np.ndarray | Cells):
        whole = inputs.bits() if isinstance(inputs, Cells) else np.ascontiguousarray(inputs)
        contents = (row.tobytes() for row in whole)
    else:
        contents = (inputs[row : row + 1].digest() for row in range(len(inputs)))
    texts = (names[label] if names else str(label) for label in labels.tolist())
    found = b"".join(
        hashlib.blake2b(content, digest_size=8, key=label.encode()[:64]).digest()
        for content, label in zip(contents, texts, strict=True)
    )
    return np.frombuffer(found, dtype="<u8")


def _common(first: Digests, second: Digests) -> int:
    """How many rows two lists have in common, equal rows as often as both have them."""
    values, counts = np.unique(first, return_counts=True)
    others, times = np.unique(second, return_counts=True)
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[here], times[there]).sum())


def _text(rows: Digests) -> str:
    return base64.b64encode(rows.astype("<u8").tobytes()).decode()


def _numbers(text: str) -> Digests:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8")
