"""How many cores there are, and one BLAS thread for each of several threads that work side by side."""

from __future__ import annotations

import os
import threading

from threadpoolctl import threadpool_limits


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
