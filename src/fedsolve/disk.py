"""What is written is whole, durable, private and in its place, whatever ends the process.

A file or a folder is filled under a hidden name beside its place, brought to the disk, and takes the place in one step.
Whoever is killed before that leaves the hidden one, locked by nobody; the next to write in that place removes it.
Files are made for their owner alone, and folders too: never by way of the umask, which all threads share.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsolve.errors import DataError

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.fedsolve(?P<retired>-old)?", re.DOTALL)
_RETIRED = "-old"  # behind the hidden name: a folder that was taken out of its place, where two cannot be exchanged
_SYSTEM = ctypes.CDLL(None, use_errno=True)
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOTSUP)  # of old kernels and some file systems


# --- files ---


def write_bytes(path: Path, data: bytes | memoryview, *, public: bool = False) -> None:
    """Write a file that is there whole or not at all, and on the disk when this returns.

    Its owner alone can read it. A `public` one can be read by everybody whom the umask of the process lets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "figures.json", b"{}")
    ...     oct(Path(folder, "figures.json").stat().st_mode)[-3:]
    '600'
    """
    try:
        _sweep(path)
        temporary, handle = _hidden_file(path, 0o666 if public else 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)
                os.replace(temporary, path)  # while it is locked, so that nobody takes it for a leftover
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise _refusal(path, error) from error


def create(path: Path, data: bytes | memoryview) -> None:
    """Write a new private file straight to its place: inside a folder that is still hidden, for `replacing`."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file that its owner alone can read, and wait until it is on the disk."""
    private_folder(path.parent)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _refusal(path, error) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Inside, no other process is inside for the same file, which may be read and written anew there."""
    try:
        handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Inside, a file is there, and locked: whoever looks sees that this process lives. It is gone afterwards."""
    private_folder(path.parent)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        with suppress(OSError):  # a file system without locks, where nobody is seen to live
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process that lives holds a file, as `held` does.

    >>> is_held(Path("/proc/no/such"))
    False
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


# --- folders ---


def private_folder(path: Path) -> Path:
    """Make a folder, and those above it, for their owner alone; folders that are there stay as they are."""
    try:
        _make_folders(path)
    except OSError as error:
        raise _refusal(path, error) from error
    return path


@contextmanager
def replacing(place: Path) -> Iterator[Path]:
    """A new hidden folder to fill, which takes the place of another, or of nothing, when the block is over.

    A block that fails leaves all as it was. Whoever kills the process at any moment finds in the place either what was
    there or what was to be there, all of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with replacing(Path(place) / "out") as folder:
    ...         create(folder / "figures.json", b"{}")
    ...     [str(path.relative_to(place)) for path in Path(place).rglob("*")]
    ['out', 'out/figures.json']
    """
    target = place.resolve()  # through links, so that what is replaced is the folder
    try:
        _make_folders(target.parent)
        recover(target)
        _sweep(target)
        temporary, handle = _hidden_folder(target)
        try:
            yield temporary
            _sync_all(temporary, handle)
            _take_place(temporary, target)
            _sync_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # what came to nothing, or what was replaced
            os.close(handle)
    except OSError as error:
        raise _refusal(place, error) from error


def recover(place: Path) -> None:
    """Put a folder back that a killed process had taken out of its place, if one had and nothing is there now."""
    if place.exists():
        return
    target = place.resolve()
    for retired in _leftovers(target):
        successor = retired.with_name(retired.name.removesuffix(_RETIRED))
        if successor == retired:
            continue
        with _abandoned(successor) as free:
            if free or not successor.exists():
                with suppress(OSError):  # another process has put it back, or this one may not
                    os.rename(retired, target)
                    _sync_folder(target.parent)


def contents(folder: Path) -> set[str]:
    """The names in a folder, but for what killed processes have left there."""
    return {name for name in os.listdir(folder) if not _LEFTOVER.fullmatch(name)}


# --- before anything is computed ---


def check_writable(path: Path) -> None:
    """Refuse a place for a file or a folder that cannot be written to; nothing is left there.

    >>> check_writable(Path("/proc/out"))
    Traceback (most recent call last):
    fedsolve.errors.DataError: cannot write to /proc/out: No such file or directory
    """
    above = path.absolute().parent
    try:
        while not above.exists():
            above = above.parent
        _sweep(above / path.name)
        trial = _hidden_name(above / path.name)
        os.mkdir(trial, 0o700)
        with suppress(FileNotFoundError):  # another process took it for a leftover
            os.rmdir(trial)
    except OSError as error:
        raise _refusal(path, error) from error


def check_file(path: Path) -> None:
    """Refuse a place for a file that is a folder or that cannot be written to."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file")
    check_writable(path)


def _refusal(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot write to {path}: {error.strerror or error}")


# --- hidden neighbours: locked as long as their owner lives ---


def _hidden_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.fedsolve")


def _hidden_file(target: Path, rights: int) -> tuple[Path, int]:
    while True:
        path = _hidden_name(target)
        with suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights)
            if _owns(handle, path):
                return path, handle
            os.close(handle)


def _hidden_folder(target: Path) -> tuple[Path, int]:
    while True:
        path = _hidden_name(target)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
            with suppress(FileNotFoundError):  # swept before it was opened
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                if _owns(handle, path):
                    return path, handle
                os.close(handle)


def _owns(handle: int, path: Path) -> bool:
    """Lock what was just made. False where another process took it for a leftover before it was locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks, where nobody removes leftovers either
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _abandoned(path: Path) -> Iterator[bool]:
    """Whether a hidden neighbour can be locked: then nobody writes to it, nor will while the block lasts."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(handle)


def _leftovers(target: Path) -> list[Path]:
    """Hidden neighbours of a place, in use or not."""
    try:
        names = os.listdir(target.parent)
    except OSError:
        return []
    matches = [match for name in names if (match := _LEFTOVER.fullmatch(name)) and match["name"] == target.name]
    return [target.parent / match.string for match in matches]


def _sweep(target: Path) -> None:
    """Remove what killed processes left beside a place."""
    for path in _leftovers(target):
        if path.name.endswith(_RETIRED) and not target.exists():
            continue  # the only version there is, until it is put back
        with _abandoned(path) as free, suppress(OSError):  # what cannot be removed is in nobody's way
            if free and path.is_dir():
                shutil.rmtree(path)
            elif free:
                path.unlink()


# --- one step ---


def _take_place(temporary: Path, target: Path) -> None:
    """Put a folder where another is, which then has the hidden name, or where nothing is."""
    if not target.exists():
        try:
            os.rename(temporary, target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process put one there meanwhile
                raise
    _exchange(temporary, target)


def _exchange(temporary: Path, target: Path) -> None:
    """The first takes the place of the second: in one step where the system can, else so that `recover` mends it."""
    if _swap(temporary, target):
        return
    retired = temporary.with_name(temporary.name + _RETIRED)
    try:
        os.rename(target, retired)
        os.rename(temporary, target)
    except BaseException:
        if retired.exists() and not target.exists():
            os.rename(retired, target)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _swap(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot."""
    try:
        renameat2 = _SYSTEM.renameat2
    except AttributeError:
        return False
    if renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(second))


# --- to the disk ---


def _make_folders(path: Path) -> None:
    if path.is_dir():
        return
    _make_folders(path.parent)
    with suppress(FileExistsError):  # another process was faster; a file in its place is refused below
        os.mkdir(path, 0o700)
        _sync_folder(path.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of file systems that do so by themselves
            raise
    finally:
        os.close(handle)


def _sync_all(folder: Path, handle: int) -> None:
    """Bring a folder and all below it to the disk.

    The whole file system at once, since a result may have thousands of models: of 1000 small files, one call takes some
    hundredths of a second and one call per file takes seconds, each of which waits for the journal.
    """
    try:
        syncfs = _SYSTEM.syncfs
    except AttributeError:
        for above, _, names in os.walk(folder):
            for name in names:
                file = os.open(Path(above) / name, os.O_RDONLY)
                try:
                    os.fsync(file)
                finally:
                    os.close(file)
            _sync_folder(Path(above))
        return
    if syncfs(handle) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
