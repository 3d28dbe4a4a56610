"""Whether the process that holds a file lives: the kernel lets go of its lock, whatever ends it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsolve import disk
from fedsolve.errors import DataError


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Inside, a file is there, and locked: whoever looks sees that this process lives. It is gone afterwards."""
    disk.private_folder(path.parent)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        with suppress(OSError):  # a file system without locks, where nobody is seen to live
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process that lives holds a file, as `held` does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with held(Path(folder) / "lock"):
    ...         inside = is_held(Path(folder) / "lock")
    ...     inside, is_held(Path(folder) / "lock")
    (True, False)
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
