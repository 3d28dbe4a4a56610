"""The client's side of the round loop: what a client does with a request, and what it remembers in between."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

import numpy as np

from fedsolve import arrays as named
from fedsolve import thin
from fedsolve.arrays import Array, Arrays
from fedsolve.codec import Bytes, encode, read
from fedsolve.data.federation import Client
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError, plain
from fedsolve.features.maps import difference
from fedsolve.method import Method, Once, Personal, Site, each_time
from fedsolve.privacy.noise import Noise, Release
from fedsolve.rng import derive

if TYPE_CHECKING:
    from fedsolve.privacy.protocol import Member

Kind: TypeAlias = Literal["update", "evaluate", "open", "mask", "unmask"]
"""What a client is asked for: its reply or its figures, or a phase of a secure sum of them."""
PLAIN = ("update", "evaluate")
Assess: TypeAlias = Callable[[Method, Arrays, Samples, Task], Mapping[str, Array]]
"""The tallies of a model on test samples."""
_WHOLE = re.compile(r"[0-9]{1,300}")
_PACE = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Request:
    """What the server asks of a client."""

    kind: Kind
    round: int
    seed: int
    space: str  # the feature space in words
    message: Arrays
    accepted: bool = True  # whether the reply to the client's last update arrived
    pace: float = 1.0  # how many times as much the client should take on at a time as at first
    words: Arrays = field(default_factory=dict)  # of a phase of a secure sum
    once: Once = field(default=each_time, repr=False)  # how clients that share the message share what follows from it

    @property
    def about(self) -> str:
        """The digest of what is asked: which round of which run, in which feature space."""
        return hashlib.sha256(json.dumps([self.round, self.seed, self.space]).encode()).hexdigest()

    @property
    def content(self) -> str:
        """The digest of the message."""
        digest = hashlib.sha256(json.dumps(named.layout(self.message)).encode())
        for name in sorted(self.message):
            digest.update(np.ascontiguousarray(self.message[name]).data)
        return digest.hexdigest()

    def write(self) -> Bytes:
        """The request as bytes, which `read` takes."""
        numbers = {"round": self.round, "seed": self.seed, "accepted": int(self.accepted), "pace": repr(self.pace)}
        words = {name: str(number) for name, number in numbers.items()}
        arrays = self.message
        if self.kind not in PLAIN:
            arrays = named.under("message", self.message) | named.under("words", self.words)
        return encode(arrays, {"kind": self.kind, "space": self.space, **words})

    def carries(self, message: Arrays) -> bool:
        """Whether it has these very arrays as its message."""
        mine = self.message
        return mine.keys() == message.keys() and all(mine[name] is message[name] for name in message)

    @classmethod
    def read(cls, data: Bytes) -> Request:
        """The request in bytes that `write` made."""
        message, head = read(data, "request")
        try:
            if head["kind"] not in get_args(Kind):
                raise ValueError(f"nobody knows how to {head['kind']!r}")
            for name, form in (("round", _WHOLE), ("seed", _WHOLE), ("accepted", re.compile("[01]")), ("pace", _PACE)):
                if not form.fullmatch(head[name]):
                    raise ValueError(f"{name} {head[name]!r}")
            kind, accepted, pace = cast("Kind", head["kind"]), head["accepted"] == "1", float(head["pace"])
            if not 0 < pace < np.inf:
                raise ValueError(f"a pace of {pace}")
            told = {} if kind in PLAIN else named.take("words", message)
            message = message if kind in PLAIN else named.take("message", message)
            return cls(kind, int(head["round"]), int(head["seed"]), head["space"], message, accepted, pace, told)
        except (KeyError, ValueError) as error:
            raise DataError(f"request without a proper head: {plain(str(error))}") from error


def assess(method: Method, model: Arrays, test: Samples, task: Task) -> dict[str, Array]:
    """The tally of a model on test samples, from which its figures follow."""

    def tell(part: Samples) -> dict[str, Array]:
        outputs = method.predict(model, part.inputs, task)
        return task.target.tally(outputs, lambda: method.probabilities(model, outputs), part.labels)

    return test.fold(tell, _both)


def _both(left: dict[str, Array], right: dict[str, Array]) -> dict[str, Array]:
    """Two tallies added: all of them but an exact area under the curve, which does not add."""
    return {name: np.asarray(left[name] + right[name]) for name in left if name in right and name != "auc"}


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What a client keeps between two requests. It stays with the client.

    An update whose reply was lost on the way never happened: the next request says so, and what is pending is dropped.
    """

    private: Arrays  # the method's private state
    counted: bool = False  # whether the server has the reply that made it
    pending: Arrays | None = None  # what the last update made of it, until the server says that it has the reply
    model: Arrays | None = None  # the client's model, which no later request looks at
    secure: Arrays = field(default_factory=dict, repr=False)  # what it keeps of secure sums; see runtime.masking

    def settled(self, accepted: bool) -> Memory:
        """The memory once it is known whether the server has the reply to the last update."""
        if self.pending is None:
            return self
        private, counted = (self.pending, True) if accepted else (self.private, self.counted)
        return Memory(private, counted, secure=self.secure)

    def arrays(self, *, with_model: bool = True) -> dict[str, Array]:
        """The memory as named arrays, for files and other processes."""
        arrays = {"counted": np.array(self.counted), "updated": np.array(self.pending is not None)}
        arrays |= named.under("private", self.private) | named.under("pending", self.pending or {})
        arrays |= named.under("secure", self.secure)
        return arrays | named.under("model", self.model or {}) if with_model else arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Memory:
        """The inverse of `arrays`; a client without a model and one with an empty model are alike."""
        for name in ("counted", "updated"):
            if name not in arrays or arrays[name].shape != () or arrays[name].dtype != np.bool_:
                raise DataError(f"the memory of a client must say whether it is {name}, by true or false")
        pending = named.take("pending", arrays) if bool(arrays["updated"]) else None
        model = named.take("model", arrays) or None
        private, secure = named.take("private", arrays), named.take("secure", arrays)
        return cls(private, bool(arrays["counted"]), pending, model, secure)


class _Site(Site):
    """A site whose generator is made when it is first asked for: most methods draw nothing, and a client is small."""

    __slots__ = ("_rng",)
    _rng: np.random.Generator | Callable[[], np.random.Generator]

    def __init__(
        self,
        task: Task,
        train: Samples,
        round: int,
        rng: np.random.Generator | Callable[[], np.random.Generator],
        counted: bool,
        pace: float,
        once: Once,
    ) -> None:
        values = {"task": task, "train": train, "round": round, "_rng": rng, "counted": counted, "pace": pace}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "once", once)

    @property
    def rng(self) -> np.random.Generator:
        """The generator of this call."""
        rng = self._rng
        if not isinstance(rng, np.random.Generator):
            rng = rng()
            object.__setattr__(self, "_rng", rng)
        return rng


def handle(
    method: Method,
    task: Task,
    client: Client,
    memory: Memory | None,
    request: Request,
    assess: Assess = assess,
    member: Member | None = None,
    noise: Noise | None = None,
    spend: Callable[[float], object] = lambda mu: None,
    kept: Arrays | None = None,
) -> tuple[Memory, Bytes]:
    """What a client does with a request: its new memory, and its answer. `assess` is how it evaluates a model.

    `None` as memory is a client that has not been asked anything yet. A `member` of secure sums answers to nothing
    else: a server that could ask in plain would. With `noise`, the reply to an update bears its share of it, where
    sites add it, and nothing that was counted or chosen on training samples goes out beside it; `spend` is told of the
    mu of a reply before it is made, and may refuse it. `kept` is what it keeps of secure sums, where that is kept apart
    from its memory.
    """
    if (request.kind in PLAIN) != (member is None):
        raise DataError(
            "the server asks for a secure sum, and this site has no keys for one; nothing was computed"
            if member is None
            else "this site takes part in secure sums alone, and the server asks in plain; nothing was computed"
        )
    if request.space != task.described:
        raise DataError(
            f"its features are not the server's: {plain(difference(task.described, request.space))}; nothing was "
            "computed"
        )

    if thin.asked(method):
        thin.check_alone(secure=member is not None, noise=noise is not None)
    release = None if noise is None else Release.of(noise, method, request.message, task)
    train = client.train if release is None else release.admitted(client.train, task.features)

    def site(step: str, *, counted: bool = False) -> Site:
        path = (step, client.name) if step == "client" else (step, client.name, request.round)
        rng = partial(derive, request.seed, *path)
        return _Site(task, train, request.round, rng, counted, request.pace, request.once)

    if memory is None:
        memory = Memory(method.init_client(site("client")), secure=kept or {})
    if request.kind != "unmask":  # which is about the update that is pending
        memory = memory.settled(request.accepted)

    def work(kind: str, memory: Memory) -> tuple[Memory, Arrays, dict[str, str]]:
        """The new memory, and the reply or the figures, with what stands beside them."""
        if kind == "update":
            started = time.perf_counter()
            if release is not None:
                spend(release.noise.mu)
            pending, reply = method.update(memory.private, request.message, site("update", counted=memory.counted))
            if release is not None and release.noise.by == "sites":
                reply = release.noisy(reply, sites=release.noise.honest)
            took = {"seconds": f"{time.perf_counter() - started:015.6f}"} if method.paced else {}
            after = Memory(memory.private, memory.counted, pending, secure=memory.secure)
            return after, reply, took  # beside the reply, so that replies stay the same bits
        personal = method.personalize(memory.private, request.message, site("personalize", counted=memory.counted))
        tally = _evaluate(method, personal, request.message, client, task, assess)
        if release is not None:
            tally = {name: array for name, array in tally.items() if not name.startswith(("chosen/", "unsure"))}
            tally["train"] = np.array(0)
        return Memory(memory.private, memory.counted, model=personal.model, secure=memory.secure), tally, {}

    if member is None:
        memory, content, head = work(request.kind, memory)
        return memory, encode(content, {"space": f"{task.space:x}", **head} if request.kind == "update" else None)
    return _secure(task, memory, request, member, work)


def _secure(
    task: Task,
    memory: Memory,
    request: Request,
    member: Member,
    work: Callable[[str, Memory], tuple[Memory, Arrays, dict[str, str]]],
) -> tuple[Memory, Bytes]:
    """A phase of a secure sum. What the site keeps of it stands in its memory."""
    from fedsolve.runtime import masking  # needs a package that not everybody has

    after = memory

    def compute(purpose: str) -> Arrays:
        nonlocal after
        after, content, _ = work(purpose, memory)
        return content if purpose == "update" else _summable(content, task)

    phase = cast("masking.Phase", request.kind)
    asked = masking.Asked(phase, request.words, request.about, lambda: request.content)
    kept, answer = masking.answer(asked, memory.secure, member, compute)
    return replace(after, secure=kept), answer


def _summable(tally: Arrays, task: Task) -> dict[str, Array]:
    """Of a tally, what adds up and tells of one client alone nothing: for all clients the same names and shapes."""
    zero = task.target.zero()
    parts = {whose: named.take(whose, tally) for whose in ("personal", "shared", "baseline")}
    own = {whose: {name: part.get(name, zero[name]) for name in zero} for whose, part in parts.items()}
    return {name: array for whose, part in own.items() for name, array in named.under(whose, part).items()}


def _evaluate(
    method: Method, personal: Personal, message: Arrays, client: Client, task: Task, assess: Assess
) -> dict[str, Array]:
    """Tallies on the client's test samples, for its model and the global one, and what was chosen for it."""
    tally: dict[str, Array] = {"train": np.array(len(client.train)), "test": np.array(len(client.test))}
    tally |= named.under("chosen", {name: np.array(float(value)) for name, value in personal.chosen.items()})
    if personal.unsure:
        tally["unsure"] = np.array(personal.unsure, dtype=np.int64)
    shared = method.shared(message)
    if len(client.test):
        model = personal.model
        mine = assess(method, model, client.test, task)
        tally |= named.under("personal", mine)
        if shared:
            same = shared.keys() == model.keys() and all(shared[name] is model[name] for name in shared)
            tally |= named.under("shared", mine if same else assess(method, shared, client.test, task))
        tally |= named.under("baseline", _baseline(client, task))
    return tally


def _baseline(client: Client, task: Task) -> dict[str, Array]:
    """The tally of the best constant answer, from sums over training and test labels."""
    known = client.train.fold(lambda part: task.target.sums(part.labels), _both)
    return client.test.fold(lambda part: task.target.baseline(known, part.labels), _both)
