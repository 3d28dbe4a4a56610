"""Work in forked processes, side by side, with the results in the order of the tasks.

A forked process has everything that its parent had when it began, data included, without a copy; only bytes pass
between them. A crew of workers lives through many series of tasks. It ends when it is closed, or when a series is not
gone through to its end.
"""

from __future__ import annotations

import builtins
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import TypeAlias, cast

from threadpoolctl import threadpool_limits

from fedsolve import errors
from fedsolve.codec import Bytes

WINDOW = 32  # tasks that are drawn ahead, so that large ones can begin first
Task: TypeAlias = tuple[str, list[Bytes]]  # a name, and the bytes that go with it
Work: TypeAlias = Callable[[str, list[Bytes]], list[Bytes]]
GONE = "a worker process ended unexpectedly: was it killed, or out of memory?"


def can_fork() -> bool:
    """Whether processes can be had cheaply here."""
    return sys.platform.startswith("linux")


class Crew:
    """Workers that do one kind of work. They are forked when there is something to do, and stay until `close`."""

    def __init__(self, work: Work, workers: int) -> None:
        self._work, self._workers = work, workers
        self._members: list[_Member] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        members, self._members = self._members, []
        for member in members:
            member.connection.close()
            member.process.terminate()
        for member in members:
            member.process.join()
            member.process.close()

    def in_order(
        self, tasks: Iterator[Task], weigh: Callable[[str], int]
    ) -> Generator[tuple[str, list[Bytes], list[Bytes]], None, None]:
        """Each task with what the work made of it, in the order of the tasks.

        Of the tasks drawn ahead, the one that `weigh` finds largest begins first, so that workers end together. Close
        the iterator: a series that is given up ends the workers, who may be in the middle of it.
        """
        complete = False
        try:
            if not self._members:
                with _no_interrupts():
                    for _ in range(self._workers):
                        self._members.append(_hire(self._work, [member.connection for member in self._members]))
            yield from _series(self._members, tasks, weigh)
            complete = True
        finally:
            if not complete:
                self.close()


@dataclass(slots=True, eq=False)
class _Member:
    """A worker, seen from its parent."""

    process: multiprocessing.process.BaseProcess
    connection: Connection
    last: list[Bytes] = field(default_factory=list)  # what it was sent last

    def send(self, name: str, parts: list[Bytes]) -> None:
        """Give it a task. What stood in the same place of its last one it still has."""
        unchanged = [place for place, (old, new) in enumerate(zip(self.last, parts, strict=False)) if old is new]
        try:
            self.connection.send_bytes(json.dumps({"name": name, "parts": len(parts), "unchanged": unchanged}).encode())
            for place, part in enumerate(parts):
                if place not in unchanged:
                    self.connection.send_bytes(part)
        except OSError:
            raise errors.DataError(GONE) from None
        self.last = parts

    def receive(self) -> list[Bytes]:
        """What it made of the task, or its error."""
        try:
            head = json.loads(self.connection.recv_bytes())
            if "error" in head:
                raise _rebuilt(head["error"], head["text"], head["trace"])
            return [self.connection.recv_bytes() for _ in range(head["parts"])]
        except (EOFError, ConnectionResetError):
            raise errors.DataError(GONE) from None


def _series(
    members: Sequence[_Member], tasks: Iterator[Task], weigh: Callable[[str], int]
) -> Iterator[tuple[str, list[Bytes], list[Bytes]]]:
    waiting: dict[int, Task] = {}  # drawn, not begun
    begun: dict[int, Task] = {}
    done: dict[int, list[Bytes]] = {}
    busy: dict[Connection, tuple[_Member, int]] = {}
    numbered, following = enumerate(tasks), 0
    while True:
        for member in members:
            if member.connection in busy:
                continue
            room = WINDOW - len(waiting) - len(begun)
            waiting.update(islice(numbered, max(0, room)))
            if not waiting:
                break
            number = max(waiting, key=lambda key: (weigh(waiting[key][0]), -key))
            begun[number] = waiting.pop(number)
            busy[member.connection] = (member, number)
            member.send(*begun[number])
        first = following
        while following in done:
            yield (*begun.pop(following), done.pop(following))
            following += 1
        if not busy and following == first:
            return
        if not busy:
            continue  # there is room for more
        for ready in wait(list(busy)):
            member, number = busy.pop(cast("Connection", ready))
            done[number] = member.receive()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Ctrl-C has to wait: while a process forks, Python may run code that swallows exceptions."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupts and callable(before):
            before(signal.SIGINT, None)


def _hire(work: Work, others: list[Connection]) -> _Member:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(work, there, [*others, here]), daemon=True)
    with warnings.catch_warnings():
        # Newer Pythons warn when a process with threads forks. The child runs `work` and touches none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    there.close()
    return _Member(process, here)


def _serve(work: Work, connection: Connection, not_mine: list[Connection]) -> None:
    """Answer until the other end is closed, also by the parent's sudden death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, and the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # One thread each. And a library that already has threads in the parent would wait here for some that did not fork.
    threadpool_limits(1)
    if torch := sys.modules.get("torch"):  # which goes back to its own number, wherever that was set and restored
        torch.set_num_threads(1)
    for inherited in not_mine:
        inherited.close()  # else a closed end of the parent would stay open here
    inputs: list[Bytes] = []
    try:
        while True:
            task = json.loads(connection.recv_bytes())
            unchanged, count = set(task["unchanged"]), task["parts"]
            inputs = [inputs[place] if place in unchanged else connection.recv_bytes() for place in range(count)]
            try:
                parts = work(task["name"], inputs)
                head: dict[str, object] = {"parts": len(parts)}
            except Exception as error:  # noqa: BLE001  (whatever it is, the parent raises it)
                parts = []
                head = {"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
            connection.send_bytes(json.dumps(head).encode())
            for part in parts:
                connection.send_bytes(part)
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # nothing that the parent registered for its own end runs here


def _rebuilt(name: str, text: str, trace: str) -> Exception:
    """The error of a worker, as itself where its kind is known."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        if issubclass(kind, errors.FedsolveError):
            return kind(text)
        try:
            error = kind(text)
        except TypeError:
            error = RuntimeError(f"{name}: {text}")
    else:
        error = RuntimeError(f"{name}: {text}")
    error.add_note(trace)
    return error
