"""A limit on how long a piece of work may take: it is interrupted, or the process ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from fedsolve.errors import DataError

GRACE = 30.0  # seconds that work has to stop when it is interrupted
ENDED = 75  # the exit status of a process whose work did not stop


@contextmanager
def limit(seconds: float, late: Callable[[str], None]) -> Iterator[None]:
    """Inside, work that takes longer than that is interrupted with an error.

    Interrupted it can be in the main thread, where Python code runs or a system call waits; Flower calls a client app
    there, in a process of its own. What cannot be interrupted, or does not stop, is told to `late` in words after some
    seconds more, and the process ends: else it would keep the node from all later runs.

    >>> with limit(60.0, print):
    ...     sum(range(10))
    45
    """
    words = f"it took longer than {seconds:g} s, its own limit"

    def end() -> None:
        try:
            late(f"{words}, and could not be interrupted: the process was ended")
        finally:
            os._exit(ENDED)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise DataError(words)

    main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    watch = threading.Timer(seconds + GRACE if main else seconds, end)
    watch.daemon = True
    watch.start()
    if not main:
        try:
            yield
        finally:
            watch.cancel()
        return
    before, started = signal.signal(signal.SIGALRM, interrupt), time.monotonic()
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)  # of somebody else's alarm
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        watch.cancel()
        signal.signal(signal.SIGALRM, before)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - started), 1e-3), interval)
