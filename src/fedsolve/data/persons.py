"""Rows of one person stay together: at one client where clients are made up, and on one side of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def numbered(values: NDArray[Any]) -> Rows:
    """Persons as numbers from 0 on, in the order of their names."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64).reshape(-1)


def first_rows(persons: Rows) -> Rows:
    """The first row of each person, by number: it stands for the person when persons are spread over clients.

    >>> first_rows(np.array([1, 0, 1, 2])).tolist()
    [1, 0, 3]
    """
    return np.asarray(np.unique(persons, return_index=True)[1], dtype=np.int64)


def rows_of(parts: Sequence[Rows], persons: Rows) -> list[Rows]:
    """The rows of each client, from the persons that each has.

    >>> [rows.tolist() for rows in rows_of([np.array([1]), np.array([0, 2])], np.array([1, 0, 1, 2]))]
    [[0, 2], [1, 3]]
    """
    order = np.argsort(persons, kind="stable")
    ends = np.cumsum(np.bincount(persons))
    groups = np.split(order, ends[:-1])
    return [np.sort(np.concatenate([groups[person] for person in part])) for part in parts]


def shared(parts: Sequence[Rows], persons: Rows) -> Rows:
    """The persons with rows at more than one client. They are trained on everywhere, so nobody is tested on them."""
    counts = np.zeros(persons.max() + 1, dtype=np.int64)
    for rows in parts:
        counts[np.unique(persons[rows])] += 1
    return np.flatnonzero(counts > 1)


def held_out(rows: Rows, persons: Rows, excluded: Rows, share: float, rng: np.random.Generator) -> Rows:
    """The rows of persons that a client holds back: whole persons, until they have about this share of its rows.

    One person at least is left to train on; one at least is held back where there are two who may be.

    >>> rows, persons = np.arange(6), np.array([0, 0, 1, 1, 2, 2])
    >>> len(held_out(rows, persons, np.array([], dtype=np.int64), 0.3, np.random.default_rng(0)))
    2
    """
    own = persons[rows]
    everybody = np.unique(own)
    free = rng.permutation(np.setdiff1d(everybody, excluded))
    if share <= 0 or not len(free):
        return rows[:0]
    counts = np.bincount(own, minlength=int(own.max()) + 1)[free]
    ends = np.cumsum(counts)
    wanted = share * len(rows)
    many = max(1, int(np.searchsorted(ends - counts / 2, wanted)))  # the last one where most of it still fits
    many = min(many, len(free) - (len(free) == len(everybody)))
    return np.sort(rows[np.isin(own, free[:many])])
