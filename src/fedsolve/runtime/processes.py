"""Work in forked processes, side by side, with the results in the order of the tasks.

A forked process has everything that its parent had when it began, data included, without a copy; only bytes pass
between them. Workers live as long as one series of tasks, and end with it, however it ends.
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
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection, wait

from threadpoolctl import threadpool_limits

from fedsolve import errors
from fedsolve.codec import Bytes

WINDOW = 32  # tasks that are drawn ahead, so that large ones can begin first
Work = Callable[[str, Bytes], list[Bytes]]


def can_fork() -> bool:
    """Whether processes can be had cheaply here."""
    return sys.platform.startswith("linux")


def in_order(
    tasks: Iterator[tuple[str, Bytes]], work: Work, weigh: Callable[[str], int], workers: int
) -> Generator[tuple[str, Bytes, list[Bytes]], None, None]:
    """Each task with what `work` makes of it, in the order of the tasks.

    Of the tasks drawn ahead, the one that `weigh` finds largest begins first, so that workers end together. Close the
    iterator: that ends the workers.
    """
    crew: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
    try:
        with _no_interrupts():
            for _ in range(workers):
                crew.append(_hire(work, [connection for _, connection in crew]))
        waiting: dict[int, tuple[str, Bytes]] = {}  # drawn, not begun
        begun: dict[int, tuple[str, Bytes]] = {}
        done: dict[int, list[Bytes]] = {}
        busy: dict[Connection, int] = {}
        numbered, following = enumerate(tasks), 0
        while True:
            idle = [connection for _, connection in crew if connection not in busy]
            for connection in idle:
                room = WINDOW - len(waiting) - len(begun)
                waiting.update(islice(numbered, max(0, room)))
                if not waiting:
                    break
                number = max(waiting, key=lambda key: (weigh(waiting[key][0]), -key))
                begun[number] = waiting.pop(number)
                busy[connection] = number
                connection.send_bytes(begun[number][0].encode())
                connection.send_bytes(begun[number][1])
            first = following
            while following in done:
                yield (*begun.pop(following), done.pop(following))
                following += 1
            if not busy and following == first:
                return
            if not busy:
                continue  # there is room for more
            for ready in wait(list(busy)):
                connection = next(one for one in busy if one is ready)
                done[busy.pop(connection)] = _receive(connection)
    finally:
        for process, connection in crew:
            connection.close()
            process.terminate()
        for process, _ in crew:
            process.join()
            process.close()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Ctrl-C has to wait: while a process forks, Python may run code that swallows exceptions."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(signal.SIGINT, None)


def _hire(work: Work, others: list[Connection]) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, theirs, [*others, mine]), daemon=True)
    with warnings.catch_warnings():
        # Newer Pythons warn when a process with threads forks. The child runs `work` and touches none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    return process, mine


def _serve(work: Work, connection: Connection, not_mine: list[Connection]) -> None:
    """Answer until the other end is closed, also by the parent's sudden death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, and the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # One thread each. And a library that already has threads in the parent would wait here for some that did not fork.
    threadpool_limits(1)
    for inherited in not_mine:
        inherited.close()  # or nobody would see the parent's end close
    try:
        while True:
            name, data = connection.recv_bytes().decode(), connection.recv_bytes()
            try:
                parts = work(name, data)
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


def _receive(connection: Connection) -> list[Bytes]:
    try:
        head = json.loads(connection.recv_bytes())
        if "error" in head:
            raise _rebuilt(head["error"], head["text"], head["trace"])
        return [connection.recv_bytes() for _ in range(head["parts"])]
    except EOFError:
        raise errors.DataError("a worker process ended unexpectedly: was it killed, or out of memory?") from None


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
