"""Which split of which data a site has answered with. One, since the difference of two is the sum of a few rows.

Sums over two sets of training samples subtract. So a site remembers digests of the rows behind its answers, and refuses
another split of data that are the same or almost the same, and training samples that differ from earlier ones in a few.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsolve import disk
from fedsolve.data.table import Table
from fedsolve.errors import DataError
from fedsolve.features.cells import Cells
from fedsolve.privacy.policy import Policy, Refusal

Digests = NDArray[np.uint64]  # of rows, sorted

FILE = "splits.jsonl"


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
        rows = _digests(table)
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


def admit(state: Path, split: Split, policy: Policy) -> None:
    """Refuse a second split of data that were answered for; remember one that is new.

    The site itself can allow it: with ALLOW_SPLITS=yes in site.env, or by removing the line in the journal.
    """
    path = state / FILE
    way_out = f"the site can allow it with ALLOW_SPLITS=yes in its site.env, or by removing the line from {FILE}"
    known = False
    for number, earlier in enumerate(_read(path), 1):
        distance = split.distance(earlier)
        if split.same_rule(earlier) and not distance:
            known = True
        elif policy.allow_splits:
            continue
        elif split.data == earlier.data or (not split.same_rule(earlier) and split.overlaps(earlier)):
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


def _read(path: Path) -> list[Split]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    splits = []
    for number, line in enumerate(lines, 1):
        try:
            splits.append(Split.read(line))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"line {number} of {path} is damaged; remove it: {error}") from error
    return splits


def _digests(table: Table) -> Digests:
    """One digest per row, of its inputs and its label, as they stand in the file."""
    inputs, names = table.inputs, table.class_names
    if isinstance(inputs, np.ndarray | Cells):
        whole = inputs.bits() if isinstance(inputs, Cells) else np.ascontiguousarray(inputs)
        contents = (row.tobytes() for row in whole)
    else:
        contents = (inputs[row : row + 1].digest() for row in range(len(inputs)))
    labels = (names[label] if names else str(label) for label in table.labels.tolist())
    digests = b"".join(
        hashlib.blake2b(content, digest_size=8, key=label.encode()[:64]).digest()
        for content, label in zip(contents, labels, strict=True)
    )
    return np.frombuffer(digests, dtype="<u8")


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
