"""What clients in this process did: CPU seconds, which do not depend on who computes beside, and bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Work:
    """What a client did, as it was measured here."""

    seconds: float = 0.0  # of CPU
    down: int = 0  # bytes that it was sent
    up: int = 0  # bytes that it sent

    def __add__(self, other: Work) -> Work:
        return Work(self.seconds + other.seconds, self.down + other.down, self.up + other.up)


Watch: TypeAlias = Callable[[], Mapping[str, Work]]
"""What each client did since the last call."""


class Stopwatch:
    """Measures clients, several threads at a time, and is a `Watch` of what was booked for each.

    >>> watch = Stopwatch(iter([0.0, 1.0, 4.0, 6.0]).__next__)
    >>> def work():
    ...     with watch.aside():
    ...         return "figures"
    >>> watch.timed(work)
    ('figures', 3.0)
    >>> watch.book("a", Work(3.0)), watch.book("a", Work(1.0, up=8)), watch(), watch()
    (None, None, {'a': Work(seconds=4.0, down=0, up=8)}, {})
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._aside = threading.local()
        self._booked: dict[str, Work] = {}

    def timed(self, work: Callable[[], _Found]) -> tuple[_Found, float]:
        """What a piece of work gives, and the seconds that it took, but for those `aside`."""
        self._aside.seconds = 0.0
        began = self._clock()
        found = work()
        return found, max(0.0, self._clock() - began - self._aside.seconds)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, seconds are nobody's work."""
        began = self._clock()
        try:
            yield
        finally:
            self._aside.seconds = getattr(self._aside, "seconds", 0.0) + self._clock() - began

    def book(self, client: str, work: Work) -> None:
        """Count work as a client's."""
        before = self._booked.get(client)
        self._booked[client] = work if before is None else before + work

    def __call__(self) -> Mapping[str, Work]:
        """What was booked for each client since the last call."""
        booked, self._booked = self._booked, {}
        return booked
