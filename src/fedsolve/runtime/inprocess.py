"""All clients on this machine, side by side in threads or forked processes. Messages pass through bytes."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fedsolve import accelerator, parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.codec import Bytes
from fedsolve.data.federation import Federation
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import FedsolveError, ParameterError, PrecisionWarning
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.parameters import whole
from fedsolve.privacy.noise import Noise
from fedsolve.progress import Progress, Tick
from fedsolve.result import Result
from fedsolve.rng import check_seed
from fedsolve.runtime import processes
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.runtime.client import Memory, Request, assess, handle
from fedsolve.runtime.derived import Derived
from fedsolve.runtime.devices import Devices
from fedsolve.runtime.drive import OnRound, drive
from fedsolve.runtime.gather import Gathering, Secure
from fedsolve.runtime.inbox import Inbox, Witness
from fedsolve.runtime.recalled import in_common, pack, unpack
from fedsolve.runtime.stopwatch import Stopwatch, Work
from fedsolve.runtime.turnout import Participation
from fedsolve.threads import ONE_THREAD, cores, threads_beside

if TYPE_CHECKING:
    from fedsolve.privacy.protocol import Member

BATCHES = 32  # clients are asked in about this many batches, if there are that many
LARGEST_BATCH = 32
_Task: TypeAlias = tuple[str, Bytes, Request]
FEW_CLIENTS = 4  # below this, clients take turns with all BLAS threads; from here on, one thread each, side by side


class _Part(NamedTuple):
    """What a batch of clients answered."""

    clients: int
    inbox: Inbox
    carried: int  # bytes of their requests and answers


class InProcess:
    """A transport to clients that live in this process."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        *,
        absent: Collection[str] = (),
        workers: int = 0,
        members: Mapping[str, Member] | None = None,
        noise: Noise | None = None,
        device: str = "cpu",
    ):
        self._method, self._federation, self._noise = method, federation, noise
        self._members = members or {}  # of secure sums, by name
        self._device = device  # of networks, while a run goes on
        self._present = [name for name in sorted(federation.clients) if name not in absent]
        self._workers = workers  # 0: as many as pay
        self.memory: dict[str, Memory] = {}  # of each client that was asked
        self._last: tuple[Bytes, Request] | None = None
        tests = Counter(id(client.test) for client in federation.clients.values())
        self._common = {key for key, holders in tests.items() if holders > 1}  # a test set that several clients share
        self._assessed: deque[tuple[Arrays, Samples, Mapping[str, Array]]] = deque(maxlen=8)
        self._assessing = threading.Lock()
        self._forks = method.workers == "processes"
        # A forked process cannot use a device that its parent uses, and several would not make it faster.
        beside = self._forks and processes.can_fork() and device == "cpu"
        crew = min(workers or cores(), len(self._present)) if beside else 1
        self._crew = processes.Crew(self._work, crew) if crew > 1 else None
        self._resources: ExitStack | None = None  # what ends with the run
        self._turns = self._forks or len(self._present) < FEW_CLIENTS  # one client at a time in a process
        self.watch = Stopwatch(time.process_time if self._turns else time.thread_time)  # of what each client does

    def __enter__(self) -> InProcess:
        """Inside, worker processes stay from one series of requests to the next; outside, each series has its own.

        The server's part beside them is small matrices, for which further BLAS threads are slower, and much slower on a
        busy machine.
        """
        self._resources = ExitStack()
        self._resources.enter_context(accelerator.on(self._device))
        if self._forks:
            self._resources.enter_context(ONE_THREAD)
        if self._crew:
            self._resources.enter_context(self._crew)
        return self

    def __exit__(self, *_: object) -> None:
        if self._resources:
            self._resources.close()
        self._resources = None

    def clients(self) -> Sequence[str]:
        """The names of all clients but the absent ones, sorted."""
        return self._present

    def model(self, name: str) -> Arrays:
        """The model that a client keeps."""
        return self.memory[name].model or {}

    def ask(self, requests: Iterable[tuple[str, Bytes]], inbox: Inbox, tick: Tick) -> None:
        """Ask clients in batches, side by side.

        Batches depend on the number of clients alone and merge in order, so that sums have the same bits whatever the
        number of workers.
        """
        if self._crew:
            try:
                self._ask_crew(self._crew, requests, inbox, tick)
            finally:
                if not self._resources:
                    self._crew.close()
            return
        tasks = ((name, data, self._read(data)) for name, data in requests)
        done = 0
        if self._turns:
            for task in tasks:
                inbox.merge(self._gather([task], inbox.empty()).inbox)
                tick(done := done + 1)
            return
        size = max(1, min(LARGEST_BATCH, len(self._present) // BATCHES))
        with ONE_THREAD:
            for part in self._answers(iter(lambda: list(islice(tasks, size)), []), inbox):
                inbox.merge(part.inbox)
                tick(done := done + part.clients)

    def _answers(self, batches: Iterator[Sequence[_Task]], inbox: Inbox) -> Iterator[_Part]:
        """The answers of each batch, in order; several batches at a time where clients have much to do.

        That is told by what they work on: their samples, and, after the first batch, what they are sent and answer.
        """
        samples = sum(len(self._federation.clients[name].train) for name in self._present)
        numbers = samples * math.prod(self._federation.task.shape) // max(1, len(self._present))
        for batch in batches:
            if (threads := self._workers or threads_beside(numbers)) > 1:
                yield from self._side_by_side(chain([batch], batches), inbox, threads)
                return
            yield (part := self._gather(batch, inbox.empty()))
            numbers = max(numbers, part.carried // (8 * part.clients))

    def _side_by_side(self, batches: Iterable[Sequence[_Task]], inbox: Inbox, threads: int) -> Iterator[_Part]:
        waiting: deque[Future[_Part]] = deque()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="fedsolve-client")
        try:
            for batch in batches:
                waiting.append(pool.submit(self._gather, batch, inbox.empty()))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _ask_crew(self, crew: processes.Crew, requests: Iterable[tuple[str, Bytes]], inbox: Inbox, tick: Tick) -> None:
        """Each client in one of several processes, which is told what the client remembers and tells what it then does.

        So it does not matter which process a client comes to, and all that is to be kept is here.
        """

        def size(name: str) -> int:
            return len(self._federation.clients[name].train)

        tasks = ((name, [data, self._recalled(name)]) for name, data in requests)
        with closing(crew.in_order(tasks, size)) as answers:
            for done, (name, (data, _), (memory, answer, seconds)) in enumerate(answers, start=1):
                shared = in_common(self._read(data).message, self.memory.get(name))
                self.memory[name] = Memory.from_arrays(unpack(memory, shared))
                self.watch.book(name, Work(float(bytes(seconds)), len(data), len(answer)))
                alone = inbox.empty()
                alone.put(name, answer)
                inbox.merge(alone)
                tick(done)

    def _work(self, name: str, parts: Sequence[Bytes]) -> list[Bytes]:
        """What a worker does: the memory of a client comes with its request, and goes back with its answer."""
        data, recalled = parts
        request = self._read(data)
        before = Memory.from_arrays(unpack(recalled, {})) if recalled else None
        self.memory = {} if before is None else {name: before}
        answer, seconds = self.watch.timed(partial(self._handle, name, request))
        memory = pack(self.memory.pop(name).arrays(), in_common(request.message, before))
        return [memory, answer, repr(seconds).encode()]

    def _recalled(self, name: str) -> Bytes:
        """What a client remembers, for a worker; nothing of one that was never asked."""
        memory = self.memory.get(name)
        return b"" if memory is None else pack(memory.arrays(with_model=False), {})

    def _gather(self, batch: Sequence[_Task], inbox: Inbox) -> _Part:
        carried = 0
        for name, data, request in batch:
            answer, seconds = self.watch.timed(partial(self._handle, name, request))
            up = len(answer) if isinstance(answer, bytes | memoryview) else 0  # one that failed sends nothing
            self.watch.book(name, Work(seconds, len(data), up))
            inbox.put(name, answer)
            carried += len(data) + up
            del answer  # so that the next one is written where this one was, and the cache has it
        return _Part(len(batch), inbox, carried)

    def _assess(self, method: Method, model: Arrays, test: Samples, task: Task) -> Mapping[str, Array]:
        """As `client.assess`, once for all clients that have the same model and the same test set."""
        with self.watch.aside():  # a client that is only trained does not test
            return self._tally(method, model, test, task)

    def _tally(self, method: Method, model: Arrays, test: Samples, task: Task) -> Mapping[str, Array]:
        if id(test) not in self._common:
            return assess(method, model, test, task)
        with self._assessing:
            for place, (other, samples, tally) in enumerate(self._assessed):
                if samples is test and other.keys() == model.keys() and all(other[n] is model[n] for n in model):
                    del self._assessed[place]
                    self._assessed.append((other, samples, tally))  # the last ones used are kept
                    return tally
        tally = assess(method, model, test, task)
        with self._assessing:
            self._assessed.append((model, test, tally))
        return tally

    def _read(self, data: Bytes) -> Request:
        """Decoded once for all clients that are sent the same bytes; decoded arrays are read-only."""
        if self._last is None or (self._last[0] is not data and self._last[0] != data):
            request = Request.read(data)
            self._last = (data, replace(request, once=Derived(request.message)))
        return self._last[1]

    def _handle(self, name: str, request: Request) -> Bytes:
        client = self._federation.clients[name]
        memory = self.memory.get(name)
        task, member = self._federation.task, self._members.get(name)
        try:
            self.memory[name], answer = handle(
                self._method, task, client, memory, request, self._assess, member, self._noise
            )
        except FedsolveError as error:
            raise type(error)(f"client {name!r}: {error}") from error
        return answer


def _with_keys(secure: Secure, clients: Sequence[str]) -> tuple[Secure, dict[str, Member]]:
    """A secure sum of clients that get new keys, and what each of them has of it."""
    from fedsolve.privacy.keys import Identity
    from fedsolve.privacy.protocol import Member

    identities = {name: Identity.make() for name in clients}
    peers = {name: identity.public for name, identity in identities.items()}
    standards = secure.quorum, secure.fraction
    members = {name: Member(name, identity, peers, *standards) for name, identity in identities.items()}
    return replace(secure, peers=peers), members


def _with_account(result: Result, noise: Noise, federation: Federation) -> Result:
    """The result with what the noise promises, and how many samples clients have, which they did not tell.

    Whether digits were lost in noisy sums, nobody can tell by them.
    """
    clients = {n: replace(each, train=len(federation.clients[n].train)) for n, each in result.clients.items()}
    told = noise.told(clients=len(clients), task=federation.task)
    return replace(result, clients=clients, warnings=(), privacy={**result.privacy, **told})


def run(
    method: Method,
    federation: Federation,
    *,
    seed: int = 0,
    participation: Participation = 1.0,
    absent: Collection[str] = (),
    workers: int = 0,
    progress: Progress | None = None,
    on_round: OnRound | None = None,
    evaluate_every: int = 1,
    checkpoint: Checkpoint | None = None,
    on_reply: Witness | None = None,
    secure: Secure | None = None,
    gathering: Gathering | None = None,
    noise: Noise | None = None,
    devices: Devices | str | None = None,
    device: str | None = None,
) -> Result:
    """Train a method on a federation in this process, and evaluate every client's model on its test data.

    `absent` clients never answer: the result is exactly the method on the others, and they get no model.
    `workers` is the number of threads or processes (0: one per core, or one where several do not pay); it changes the
    time, not the result. `on_round`, a function or a `tracking.Log`, is called with each `Round` and their number.
    Clients are evaluated every so many rounds, and after the last. A `checkpoint` is written as the run goes, and gone
    on from where one was asked to be resumed. `on_reply` is called with each client and its reply, from several
    threads; a DataError that it raises refuses the reply. `gathering` says how replies reach the server. With `secure`,
    it sees nothing but sums over clients, who get keys made for the run; the result is the same but for figures of each
    client, which stay with it. `noise` hides single records in the sums, for methods that take moments once. `device`
    is where networks are trained: cpu, cuda, mps, or auto, the first of cuda, mps and cpu that is there; by default
    what FEDSOLVE_DEVICE says, else the CPU. The result's settings say which.

    With `devices`, as in fs.Devices((4, 16)) or "slow:4,16", seconds of clients and rounds are those of machines that
    are not equally fast, which are emulated: they take no longer here, and models are the same.

    >>> import fedsolve as fs
    >>> federation = fs.load("digits").split(fs.dirichlet(0.1), clients=5, seed=0)
    >>> result = fs.run(fs.FedHiP(), federation)
    >>> result.rounds, list(result.models)[:2], 0.9 < result.accuracy.mean < 1
    (1, ['client-00', 'client-01'], True)
    >>> slow = fs.run(fs.FedHiP(), federation, devices="slow:100")
    >>> slow.accuracy == result.accuracy, any(client.seconds.idle > 0.5 for client in slow.clients.values())
    (True, True)
    """
    if isinstance(method, type) or not callable(getattr(method, "update", None)):
        raise ParameterError(f"run takes a method such as fs.FedHiP(); got {method!r}")
    if not isinstance(federation, Federation):
        raise ParameterError(f"run takes a Federation, as Table.split makes; got {type(federation).__name__}")
    whole("workers", workers, 0)
    seed = check_seed(seed)
    strangers = sorted(set(absent) - set(federation.clients))
    if strangers:
        raise ParameterError(f"absent names a client that is not there: {strangers[0]!r}")
    members: dict[str, Member] = {}
    if secure is not None:
        if on_reply is not None or gathering is not None:
            raise ParameterError(
                "under a secure sum nobody sees a client's reply: take away on_reply and gathering; fs.Secure(on_sum=) "
                "is told of sums"
            )
        gathering, members = _with_keys(secure, sorted(set(federation.clients) - set(absent)))
    if noise is not None and not isinstance(noise, Noise):
        raise ParameterError(f"noise takes fs.Noise(epsilon=1.0); got {noise!r}")
    if noise is not None and (gathering is None or secure is not None):  # else its quorum is not known here
        noise.check_shared(secure.quorum if secure else 0)
    kinds = None if devices is None else Devices.of(devices)
    started = time.perf_counter()
    place = accelerator.chosen(device, method.name, method.on_device)
    transport = InProcess(
        method, federation, absent=absent, workers=workers, members=members, noise=noise, device=place or "cpu"
    )
    settings = {
        "method": method.name,
        "set": parameters.values(method),
        "seed": seed,
        "participation": participation,
        **({"device": place} if place else {}),
        **({"secure": True, "quorum": secure.quorum} if secure else {}),
        **({} if kinds is None else {"devices": str(kinds)}),
    }
    resume = None
    if checkpoint is not None:
        # The CPU's bits are those of any machine; a run that goes on elsewhere has others.
        bits = {name: value for name, value in settings.items() if (name, value) != ("device", "cpu")}
        checkpoint = checkpoint.about(bits, federation.fingerprint, absent)
        resume, transport.memory = checkpoint.resumed()
    with transport:
        outcome = drive(
            method,
            federation.task,
            transport,
            seed=seed,
            participation=participation,
            progress=progress,
            on_round=on_round,
            evaluate_every=evaluate_every,
            resume=resume,
            keep=(lambda snapshot: checkpoint.keep(snapshot, transport.memory)) if checkpoint else None,
            on_reply=on_reply,
            gathering=gathering,
            noise=noise,
            watch=transport.watch,
            devices=None if kinds is None else kinds.assigned(list(federation.clients), seed),
        )
    task = federation.task
    result = outcome.result(
        method,
        task,
        settings=settings,
        data={"name": federation.name, "fingerprint": federation.fingerprint},
        models={name: Model(method, task, transport.model(name), name) for name in outcome.clients},
        seconds=time.perf_counter() - started,
    )
    if noise is not None:
        result = _with_account(result, noise, federation)
    for sentence in result.warnings:
        warnings.warn(sentence, PrecisionWarning, stacklevel=2)
    return result
