"""Ways to spread a table over clients: labels in, one list of row numbers per client out. Pure and seeded.

Every partition uses every row exactly once. A draw that leaves a client with too few rows is mended by
`top_up`, so no draw is repeated until it happens to fit, and every call ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.parameters import whole

Rows: TypeAlias = NDArray[np.int64]
Labels: TypeAlias = NDArray[Any]


class Partition(Protocol):
    """A frozen value that spreads rows over clients. `str()` of it is what `parse` reads."""

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each client."""
        ...


@dataclass(frozen=True)
class IID:
    """Rows in random order, dealt out evenly."""

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each client."""
        return [np.sort(rows) for rows in np.array_split(rng.permutation(len(labels)), clients)]

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True)
class Dirichlet:
    """The rows of each class are spread over the clients in proportions drawn from Dir(alpha).

    Small alpha, very different clients: at 0.1 most of a class sits with a few clients; at 100 it is even.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not _positive(self.alpha):
            raise ParameterError(
                f"alpha of the dirichlet partition must be a finite number above 0; got {self.alpha!r}"
            )

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each client."""
        parts: list[list[Rows]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            # Gamma draws underflow to zero for tiny alpha; the mass then goes to one client, as in the limit.
            shares = rng.gamma(self.alpha, size=clients) / max(1.0, self.alpha)
            total = shares.sum()
            if not total > 0:
                shares = np.eye(clients)[rng.integers(clients)]
                total = 1.0
            ends = np.round(np.cumsum(shares / total) * len(rows)).astype(np.int64)[:-1]
            for part, piece in zip(parts, np.split(rows, ends), strict=True):
                part.append(piece)
        return [np.sort(np.concatenate(part)) for part in parts]

    def __str__(self) -> str:
        return f"dirichlet:{_short(self.alpha)}"


@dataclass(frozen=True)
class ClassDraw:
    """Each client holds `per_client` classes, in even shares of each (the "pathological" split).

    Where clients x per_client is fewer than the classes, clients hold more, so that no row is lost.
    """

    per_client: int

    def __post_init__(self) -> None:
        whole("classes per client", self.per_client, 1)

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each client."""
        present = np.unique(labels)
        count = _classes_each(self.per_client, len(present), clients)
        # A deck of shuffled class lists laid end to end: each class is dealt equally often, give or take one, and a
        # client's cards are distinct after the swap below.
        need = clients * count
        deck = np.concatenate([rng.permutation(present) for _ in range(-(-need // len(present)))])
        return _deal(labels, [_distinct(deck, start, count) for start in range(0, need, count)], rng)

    def __str__(self) -> str:
        return f"classes:{self.per_client}"


@dataclass(frozen=True)
class Neighbours:
    """Each client holds `per_client` classes that follow each other: 0 and 1, or 2 and 3, and so on, in even shares.

    The pairs of PFLlib's "pathological" split and of the papers that use its data. Which classes meet is fixed: at two
    per client, none has both shirt and pullover of Fashion-MNIST, which look alike. With `uneven` shares, as there:
    who holds a class gets from a tenth of an even share to all of it, and the last of them what is left.
    """

    per_client: int
    uneven: bool = False

    def __post_init__(self) -> None:
        whole("classes per client", self.per_client, 1)

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each client."""
        present = np.unique(labels)
        count = _classes_each(self.per_client, len(present), clients)
        groups = -(-len(present) // count)  # the last one may begin within the one before, so as to be as large
        starts = (min(client * groups // clients * count, len(present) - count) for client in range(clients))
        hands = [set(present[start : start + count].tolist()) for start in starts]
        return _deal(labels, hands, rng, _uneven if self.uneven else _even)

    def __str__(self) -> str:
        return f"neighbours:{self.per_client}{',uneven' * self.uneven}"


def _classes_each(per_client: int, present: int, clients: int) -> int:
    """How many classes each client holds, so that no class is left over."""
    return min(max(per_client, -(-present // clients)), present)


Sizes: TypeAlias = Callable[[int, int, np.random.Generator], list[int]]
"""How many of so many rows each of so many holders gets."""


def _even(rows: int, holders: int, rng: np.random.Generator) -> list[int]:
    return [rows // holders + (place < rows % holders) for place in range(holders)]


def _uneven(rows: int, holders: int, rng: np.random.Generator) -> list[int]:
    share = rows // holders
    sizes = rng.integers(max(1, share // 10), max(share, 1) + 1, size=holders - 1).tolist()
    return [*sizes, rows - sum(sizes)]


def _deal(labels: Labels, hands: list[set[Any]], rng: np.random.Generator, sizes: Sizes = _even) -> list[Rows]:
    """The rows of each client, given the classes it holds: each class in shares of such sizes to those who hold it."""
    parts: list[list[Rows]] = [[] for _ in hands]
    for label in np.unique(labels):
        holders = [client for client, hand in enumerate(hands) if label in hand]
        rows = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(sizes(len(rows), len(holders), rng))[:-1]
        for client, piece in zip(holders, np.split(rows, ends), strict=True):
            parts[client].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _distinct(deck: Labels, start: int, count: int) -> set[Any]:
    """The cards of one client; a repeated card is swapped with the next one that the client lacks."""
    for at in range(start, start + count):
        mine = set(deck[start:at].tolist())
        other = at
        while deck[other % len(deck)] in mine:
            other += 1
        other %= len(deck)
        deck[at], deck[other] = deck[other], deck[at]
    return set(deck[start : start + count].tolist())


@dataclass(frozen=True)
class Shards:
    """Rows sorted by label, cut into clients x `per_client` shards, `per_client` random ones each."""

    per_client: int

    def __post_init__(self) -> None:
        whole("shards per client", self.per_client, 1)

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each client."""
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        count = min(self.per_client, max(1, len(labels)))  # more shards than rows would only be empty
        shards = np.array_split(order, clients * count)
        deal = rng.permutation(len(shards)).reshape(clients, count)
        return [np.sort(np.concatenate([shards[i] for i in hand])) for hand in deal]

    def __str__(self) -> str:
        return f"shards:{self.per_client}"


@dataclass(frozen=True)
class PowerLaw:
    """Client sizes follow a power law (density ~ size^-(1 + exponent)); the rows themselves are random."""

    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not _positive(self.exponent):
            raise ParameterError(f"exponent of the power-law partition must be above 0; got {self.exponent!r}")

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each client."""
        logs = rng.standard_exponential(size=clients) / max(self.exponent, 1e-300)  # of Pareto sizes, which overflow
        sizes = np.exp(logs - logs.max())
        ends = np.round(np.cumsum(sizes / sizes.sum()) * len(labels)).astype(np.int64)[:-1]
        return [np.sort(rows) for rows in np.split(rng.permutation(len(labels)), ends)]

    def __str__(self) -> str:
        return "power-law" if self.exponent == 1.0 else f"power-law:{_short(self.exponent)}"


@dataclass(frozen=True)
class ByClient:
    """The natural split: each client holds the rows that carry its name in the table's `client` column."""

    def __call__(self, labels: Labels, clients: int, rng: np.random.Generator) -> list[Rows]:
        """The rows of each value in `labels`, which here are the client column."""
        _, inverse = np.unique(labels, return_inverse=True)
        # Stable sorts of 16 bits take one pass.
        order = np.argsort(inverse.astype(np.uint16) if clients < 2**16 else inverse, kind="stable")
        return list(np.split(order, np.cumsum(np.bincount(inverse))[:-1]))

    def __str__(self) -> str:
        return "by-client"


def top_up(parts: list[Rows], least: int, rng: np.random.Generator) -> tuple[list[Rows], int]:
    """Move random rows from the largest parts until each has `least`; returns the parts and how many moved."""
    sizes = np.array([len(part) for part in parts])
    if sizes.sum() < least * len(parts):
        raise DataError(
            f"{len(parts)} clients with at least {least} samples each need {least * len(parts)} samples, but there are "
            f"{sizes.sum()}; use fewer clients"
            + (" or a smaller min-samples" if least > 1 and sizes.sum() >= len(parts) else "")
        )
    parts = list(parts)
    moved = 0
    for small in np.flatnonzero(sizes < least):
        while sizes[small] < least:
            largest = int(np.argmax(sizes))
            place = int(rng.integers(sizes[largest]))
            parts[small] = np.sort(np.append(parts[small], parts[largest][place]))
            parts[largest] = np.delete(parts[largest], place)
            sizes[largest] -= 1
            sizes[small] += 1
            moved += 1
    return parts, moved


def iid() -> IID:
    """Rows in random order, dealt out evenly.

    >>> [len(rows) for rows in iid()(np.array([0, 0, 1, 1, 2, 2]), 3, np.random.default_rng(0))]
    [2, 2, 2]
    """
    return IID()


def dirichlet(alpha: float) -> Dirichlet:
    """Each class spread over the clients by Dir(alpha).

    >>> str(dirichlet(0.1)), sum(map(len, dirichlet(0.1)(np.arange(100) % 3, 5, np.random.default_rng(0))))
    ('dirichlet:0.1', 100)
    """
    return Dirichlet(alpha)


def classes(per_client: int) -> ClassDraw:
    """`per_client` classes per client.

    >>> labels = np.arange(60) % 6
    >>> [len(set(labels[rows])) for rows in classes(2)(labels, 3, np.random.default_rng(0))]
    [2, 2, 2]
    """
    return ClassDraw(per_client)


def neighbours(per_client: int, *, uneven: bool = False) -> Neighbours:
    """`per_client` classes per client, that follow each other; in even shares, or `uneven` ones.

    >>> labels = np.arange(60) % 6
    >>> [sorted(set(labels[rows].tolist())) for rows in neighbours(2)(labels, 3, np.random.default_rng(0))]
    [[0, 1], [2, 3], [4, 5]]
    """
    return Neighbours(per_client, uneven)


def _number_and_word(text: str) -> tuple[int, bool]:
    number, comma, word = text.partition(",")
    if comma and word != "uneven":
        raise ValueError(word)
    return int(number), bool(comma)


def shards(per_client: int) -> Shards:
    """`per_client` shards of the label-sorted rows per client.

    >>> [len(rows) for rows in shards(2)(np.arange(60) % 6, 3, np.random.default_rng(0))]
    [20, 20, 20]
    """
    return Shards(per_client)


def power_law(exponent: float = 1.0) -> PowerLaw:
    """Client sizes by a power law.

    >>> str(power_law()), sum(map(len, power_law()(np.zeros(100), 5, np.random.default_rng(0))))
    ('power-law', 100)
    """
    return PowerLaw(exponent)


def by_client() -> ByClient:
    """The natural split of the table.

    >>> [rows.tolist() for rows in by_client()(np.array(["ward-b", "ward-a", "ward-b"]), 2, np.random.default_rng(0))]
    [[1], [0, 2]]
    """
    return ByClient()


_PARSERS: dict[str, tuple[Callable[..., Partition], Callable[[str], Any] | None, str]] = {
    "iid": (IID, None, "iid"),
    "dirichlet": (Dirichlet, float, "dirichlet:0.1"),
    "classes": (ClassDraw, int, "classes:2"),
    "neighbours": (lambda told: Neighbours(*told), _number_and_word, "neighbours:2"),
    "shards": (Shards, int, "shards:2"),
    "power-law": (PowerLaw, float, "power-law"),
    "by-client": (ByClient, None, "by-client"),
}


def parse(text: str) -> Partition:
    """The partition a text such as "dirichlet:0.1" stands for."""
    name, colon, argument = text.partition(":")
    if name not in _PARSERS:
        raise unknown("partition", name, _PARSERS)
    make, convert, example = _PARSERS[name]
    if convert is None or (name == "power-law" and not colon):
        if colon:
            raise ParameterError(f"partition {name!r} takes no number; got {text!r}")
        return make()
    try:
        value = convert(argument)
    except ValueError:
        raise ParameterError(f"partition {name!r} needs a number, as in {example!r}; got {text!r}") from None
    return make(value)


def _positive(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(0 < value < np.inf)


def _short(value: float) -> str:
    return repr(float(value)).removesuffix(".0")
