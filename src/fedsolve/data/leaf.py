"""FEMNIST and Shakespeare in LEAF's JSON: files of users, each with its samples.

`{"users": [...], "num_samples": [...], "user_data": {USER: {"x": [...], "y": [...]}}}`. A sample of FEMNIST is 784
numbers and a class number, one of Shakespeare a text and the character behind it. LEAF splits the samples of each user
into train and test; here they are one table whose clients are the users, since a test set of a table belongs to nobody.
"""

from __future__ import annotations

import string
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.errors import DataError, brief, plain
from fedsolve.texts import read_json

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # FEMNIST's classes, in its order
SIDE = 28
COLUMNS = 1024  # that contexts of Shakespeare are hashed to
LAST = 10  # characters of a context that are looked at
LONGEST = 3  # runs of characters
LARGEST_FILE = 2**30  # bytes; while a file is read, its numbers take some seven times as many
LONGEST_NAME = 100  # characters of a user's
_NAMED = {" ": "space", "\n": "newline", "\t": "tab"}


@dataclass(frozen=True, eq=False)
class Leaf:
    """All samples, and whose each is."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    users: NDArray[np.str_]
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Leaf({len(self.labels)} samples, {len(set(self.users.tolist()))} users, {len(self.classes)} classes)"


def files(root: Path) -> list[Path]:
    """The files of a folder: below train and test, or else all_data; in it or in its folder data."""
    for parts in (("train", "test"), ("all_data",)):
        for home in (root, root / "data"):
            found = [path for part in parts for path in sorted((home / part).glob("*.json")) if path.is_file()]
            if found:
                return found
    return []


def read(root: Path, columns: int = COLUMNS, *, texts: bool | None = None) -> Leaf:
    """The samples of all users: pictures of FEMNIST, or contexts of Shakespeare as rows of `columns` counts.

    `texts` says which of both they must be; without it, the first sample does.
    """
    inputs, labels, users = list[NDArray[np.float32]](), list[NDArray[Any]](), list[str]()
    for path in files(root):
        before = len(users)
        contexts = list[str]()
        for user, x, y, source in _users(path):
            if not x:
                continue
            texts = isinstance(x[0], str) if texts is None else texts
            if texts:
                contexts += _contexts(x, source)
                labels.append(_following(y, source))
            else:
                inputs.append(_pictures(x, source))
                labels.append(_numbers(y, source))
            users += [user] * len(x)
        if texts and len(users) > before:
            inputs.append(hashed(contexts, columns))
    if not users:
        raise DataError(f"{root} holds no samples in LEAF's JSON; wanted train/*.json and test/*.json with users")
    rows, told = np.concatenate(inputs), np.concatenate(labels)
    if not texts:
        return Leaf(rows, told, np.array(users), CHARACTERS)
    points, numbers = np.unique(told, return_inverse=True)
    return Leaf(rows, numbers.astype(np.int64), np.array(users), tuple(_shown(chr(point)) for point in points.tolist()))


def hashed(contexts: Sequence[str], columns: int = COLUMNS) -> NDArray[np.float32]:
    """Counts of runs of one to three characters among the last ten, each with its place counted from the end.

    A run and its place go to the column that their CRC-32 names, so that no vocabulary needs to be agreed upon. Texts
    of fewer than ten characters have blanks before them.

    >>> rows = hashed(["to be or not to be", "not to be"])
    >>> rows.shape, rows.sum(axis=1).tolist(), bool((rows[0] == rows[1]).all())
    ((2, 1024), [27.0, 27.0], True)
    """
    letters = np.array([text[-LAST:].rjust(LAST) for text in contexts], dtype=f"<U{LAST}")
    points = letters.view("<u4").reshape(len(contexts), LAST)
    rows, every = np.zeros((len(contexts), columns), dtype=np.float32), np.arange(len(contexts))
    for length in range(1, LONGEST + 1):
        for start in range(LAST - length + 1):
            runs = np.ascontiguousarray(points[:, start : start + length]).view(f"<U{length}")[:, 0]
            distinct, which = np.unique(runs, return_inverse=True)
            sums = [zlib.crc32(f"{LAST - start} {run}".encode("utf-8", "surrogatepass")) for run in distinct.tolist()]
            rows[every, np.array(sums, dtype=np.int64)[which] % columns] += 1
    return rows


def _users(path: Path) -> Iterator[tuple[str, list[Any], list[Any], str]]:
    """Name, inputs and labels of each user of a file, and what it is called in errors."""
    try:
        size = path.stat().st_size
        if not 0 < size <= LARGEST_FILE:
            raise DataError(f"{path} must have 1 to {LARGEST_FILE} bytes; got {size}; split it by users")
        with path.open("rb") as file:
            data = file.read(size)  # no more, whoever is still writing to it
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    held = read_json(data, str(path))
    del data
    users, samples = (held.get(key) for key in ("users", "user_data")) if isinstance(held, dict) else (None, None)
    if not isinstance(users, list) or not isinstance(samples, dict) or not all(isinstance(user, str) for user in users):
        raise DataError(f"{path} is not in LEAF's JSON: wanted users, a list of names, and user_data, an object")
    if any(len(user) > LONGEST_NAME for user in users):
        raise DataError(
            f"{path}: names of users have at most {LONGEST_NAME} characters; got {brief(max(users, key=len))}"
        )
    odd = sorted(samples.keys() ^ set(users))
    if odd:
        what = "has no data in user_data" if odd[0] not in samples else "is not among the users"
        raise DataError(f"{path}: user {plain(odd[0], 80)!r} {what}; make the file anew by LEAF's preprocess.sh")
    counts = held.get("num_samples", [None] * len(users))
    if not isinstance(counts, list) or len(counts) != len(users) or len(set(users)) != len(users):
        raise DataError(f"{path}: num_samples must hold one number for each of {len(users)} different users")
    for user, count in zip(users, counts, strict=True):
        source, own = f"{path}: user {plain(user, 80)!r}", samples.pop(user)
        x, y = (own.get(key) for key in "xy") if isinstance(own, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list):
            raise DataError(f"{source} must have a list x and a list y; got {brief(own)}")
        if len(x) != len(y) or (count is not None and count != len(x)):
            told = "" if count is None else f", and num_samples says {brief(count)}"
            raise DataError(f"{source} has {len(x)} inputs and {len(y)} labels{told}; they must be as many")
        yield user, x, y, source


def _pictures(x: list[Any], source: str) -> NDArray[np.float32]:
    """Rows of 784 numbers as pictures of 28 x 28."""
    for row in x:
        if not isinstance(row, list) or len(row) != SIDE * SIDE or not {int, float}.issuperset(map(type, row)):
            got = f"{len(row)} values" if isinstance(row, list) else brief(row)
            raise DataError(f"{source}: each x must be {SIDE * SIDE} numbers, as in FEMNIST; got {got}")
    with np.errstate(over="ignore"):
        rows = np.array(x, dtype=np.float64).astype(np.float32)
    if not np.isfinite(rows).all():
        raise DataError(f"{source}: inputs must be numbers of single precision; got {brief(float(np.max(rows)))}")
    return rows.reshape(len(x), SIDE, SIDE)


def _numbers(y: list[Any], source: str) -> NDArray[np.int64]:
    for label in y:
        if type(label) is not int or not 0 <= label < len(CHARACTERS):
            raise DataError(f"{source}: labels must be integers from 0 to {len(CHARACTERS) - 1}; got {brief(label)}")
    return np.array(y, dtype=np.int64)


def _contexts(x: list[Any], source: str) -> list[str]:
    """What of texts is looked at."""
    for text in x:
        if not isinstance(text, str) or not text:
            raise DataError(f"{source}: each x must be a text, as in Shakespeare; got {brief(text)}")
    return [text[-LAST:] for text in x]


def _following(y: list[Any], source: str) -> NDArray[np.int64]:
    """The code points of the characters behind texts."""
    for label in y:
        if not isinstance(label, str) or len(label) != 1:
            raise DataError(f"{source}: each y must be the one character that follows; got {brief(label)}")
    return np.array([ord(label) for label in y], dtype=np.int64)


def _shown(character: str) -> str:
    """A character as the name of a class, which holds nothing that a terminal obeys."""
    return _NAMED.get(character) or (character if character.isprintable() else f"U+{ord(character):04X}")
