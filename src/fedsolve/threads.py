"""How many cores there are, work on all of them at a time, and one BLAS thread for each of several threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from threadpoolctl import threadpool_limits


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def side_by_side(function: Callable[[_Item], _Found], items: Iterable[_Item]) -> Iterator[_Found]:
    """What a function makes of each item, in their order; as many are taken and worked on at a time as there are cores.

    >>> list(side_by_side(abs, [-1, 2]))
    [1, 2]
    """
    waiting: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(cores(), thread_name_prefix="fedsolve") as pool:
        for item in items:
            if len(waiting) == cores():
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()


class _OneThread:
    """One BLAS thread while anybody is inside. The limit holds for the process, so the last one out lifts it."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limits = threadpool_limits(1, user_api="blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limits.restore_original_limits()


ONE_THREAD = _OneThread()
SMALL = 2**21  # numbers: the sums of 2047 features. See docs/architecture.md for what was measured


def threads_for(numbers: int) -> AbstractContextManager[None]:
    """Inside, one BLAS thread for work on few numbers, and as many as there are for work on many.

    Threads of BLAS wait for each other by spinning. On a busy machine that takes many times longer than the work.
    """
    return ONE_THREAD if numbers < SMALL else nullcontext()


FEW = 2**14  # numbers: 128 rows of 128 features


def threads_beside(numbers: int) -> int:
    """How many threads work faster than one, each with so many numbers at a time.

    Of short calls, most of the time is Python's, whose threads take turns: with 20 rows of 64 features, two of them
    take longer than one, and nearly twice the work.
    """
    return cores() if numbers >= FEW else 1
