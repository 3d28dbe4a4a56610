"""All clients in this process, side by side in threads. Messages pass through bytes as on a network."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from threadpoolctl import threadpool_limits

from fedsolve import parameters
from fedsolve.arrays import Arrays, take
from fedsolve.data.federation import Federation
from fedsolve.errors import FedsolveError, ParameterError
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.result import Result, Seconds
from fedsolve.runtime.loop import Failure, Progress, Request, drive, handle

FEW_CLIENTS = 4  # below this, clients take turns with all BLAS threads; from here on, one thread each, side by side


class InProcess:
    """A transport to clients that live in this process."""

    def __init__(self, method: Method, federation: Federation, *, absent: Collection[str] = (), workers: int = 0):
        self._method, self._federation = method, federation
        self._present = [name for name in sorted(federation.clients) if name not in absent]
        self._workers = workers or len(os.sched_getaffinity(0))
        self._memory: dict[str, Arrays] = {}
        self._last: tuple[bytes, Request] | None = None

    def clients(self) -> Sequence[str]:
        """Everybody but the absent."""
        return self._present

    def model(self, name: str) -> Arrays:
        """The model that a client keeps."""
        return take("model", self._memory[name])

    def ask(self, requests: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | Failure]]:
        """Answers in the order of the requests, so that sums have the same bits whatever the number of workers."""
        if len(self._present) < FEW_CLIENTS:
            for name, data in requests:
                yield name, self._handle(name, self._read(data))
            return
        window = 2 * self._workers
        waiting: deque[tuple[str, Future[bytes]]] = deque()
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="fedsolve-client")
        try:
            with threadpool_limits(1, user_api="blas"):
                for name, data in requests:
                    waiting.append((name, pool.submit(self._handle, name, self._read(data))))
                    if len(waiting) == window:
                        first, future = waiting.popleft()
                        yield first, future.result()
                while waiting:
                    first, future = waiting.popleft()
                    yield first, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, data: bytes) -> Request:
        """Decoded once for all clients that are sent the same bytes; decoded arrays are read-only."""
        if self._last is None or self._last[0] is not data:
            self._last = (data, Request.read(data))
        return self._last[1]

    def _handle(self, name: str, request: Request) -> bytes:
        client = self._federation.clients[name]
        memory = self._memory.get(name)
        try:
            self._memory[name], answer = handle(self._method, self._federation.task, client, memory, request)
        except FedsolveError as error:
            raise type(error)(f"client {name!r}: {error}") from error
        return answer


def run(
    method: Method,
    federation: Federation,
    *,
    seed: int = 0,
    participation: float = 1.0,
    absent: Collection[str] = (),
    workers: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Train a method on a federation in this process, and evaluate every client's model on its test data.

    `absent` clients never answer: the result is exactly the method on the others, and they get no model.
    `workers` is the number of threads (0: one a core); it changes the time, never the result.
    """
    strangers = sorted(set(absent) - set(federation.clients))
    if strangers:
        raise ParameterError(f"absent names a client that is not there: {strangers[0]!r}")
    started = time.perf_counter()
    transport = InProcess(method, federation, absent=absent, workers=workers)
    outcome = drive(method, federation.task, transport, seed=seed, participation=participation, progress=progress)
    task = federation.task
    return Result(
        method=method.name,
        settings={
            "method": method.name,
            "set": parameters.values(method),
            "seed": seed,
            "participation": participation,
        },
        clients=outcome.clients,
        history=outcome.history,
        seconds=Seconds(**outcome.seconds, total=time.perf_counter() - started),
        data={"name": federation.name, "fingerprint": federation.fingerprint},
        models={name: Model(method, task, transport.model(name), name) for name in outcome.clients},
        shared=Model(method, task, outcome.shared, "global") if outcome.shared else None,
        state=outcome.state,
    )
