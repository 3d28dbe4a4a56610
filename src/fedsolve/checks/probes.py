"""What checks are made with: small federations, methods whose calls are watched, transports that lose or reorder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from fedsolve import arrays as named
from fedsolve import methods, parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.codec import decode, encode
from fedsolve.data.federation import Client, Federation
from fedsolve.data.samples import Samples
from fedsolve.data.task import Classes, Numbers
from fedsolve.errors import FedsolveError
from fedsolve.method import Method, Personal, Server, Site
from fedsolve.result import Result
from fedsolve.rng import derive
from fedsolve.runtime import inprocess
from fedsolve.runtime.inbox import Failure, Replies
from fedsolve.runtime.inprocess import InProcess

TOLERANCE = 1e-8  # relative; for sums taken in another order
SINGLE = 1e-5  # relative; for means of networks, which are single precision, over a few rounds
ARRAYS = (
    "init_server",
    "message",
    "aggregate",
    "init_client",
    "update",
    "personalize",
    "shared",
)  # functions of a method that return arrays


class CheckError(FedsolveError):
    """A method broke its contract."""


def run(method: Method, federation: Federation, *, workers: int = 1, **options: Any) -> Result:
    """As `fedsolve.run`, by one worker: so few samples take less time than it takes to start processes for them."""
    return inprocess.run(method, federation, workers=workers, **options)


@dataclass(frozen=True, eq=False)
class _Very:
    """A method by which object it is: an equal one need not do the same."""

    method: Method

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Very) and other.method is self.method

    def __hash__(self) -> int:
        return id(self.method)


def usual(method: Method, *, without: str = "") -> Result:
    """The run of a method on `federation_for` it, or on that federation without a client.

    Many checks of a method look at it, one after the other, so it is made once.
    """
    return _usual(_Very(method), without)


@lru_cache(maxsize=2)  # with everybody, and without a client
def _usual(very: _Very, without: str) -> Result:
    federation = federation_for(very.method)
    rest = {name: client for name, client in federation.clients.items() if name != without}
    return run(very.method, dataclasses.replace(federation, clients=rest))


# --- federations to check on ---


def sample_data(seed: int = 0, count: int = 240, classes: int = 3, features: int = 6) -> tuple[Array, Array]:
    """Gaussian classes that a linear model tells apart."""
    rng = derive(seed, "checks")
    centres = 3.0 * rng.normal(size=(classes, features))
    labels = rng.integers(classes, size=count)
    inputs = centres[labels] + rng.normal(size=(count, features))
    inputs[:, -1] = 0.3  # one feature is constant, as in real data: centring must not fail on it
    return inputs, labels


def sample_federation(seed: int = 0, sizes: Sequence[int] = (40, 25, 60, 1, 30, 44)) -> Federation:
    """Clients of unequal size, one of them with a single training sample and one with a single class."""
    x, y = sample_data(seed)
    clients = {}
    start = 0
    for number, size in enumerate(sizes):
        rows = np.arange(start, start + size)
        start += size
        if number == 1:
            rows = rows[y[rows] == y[rows[0]]]
        clients[f"site-{number}"] = {"train": (x[rows], y[rows]), "test": (x[-40:], y[-40:])}
    return Federation.from_arrays(clients, classes=int(y.max()) + 1, name="checks")


def data_for(method: Method, count: int = 240) -> tuple[Array, Array]:
    """Samples with labels of a kind that the method learns: class numbers, or numbers that are nearly linear."""
    x, y = sample_data(count=count)
    return x, y if _learns_classes(method) else _numbers(x)


def federation_for(method: Method, sizes: Sequence[int] = (40, 25, 60, 1, 30, 44)) -> Federation:
    """`sample_federation`, with labels of a kind that the method learns."""
    found = sample_federation(sizes=sizes)
    if _learns_classes(method):
        return found
    parts = {
        name: {part: (samples.inputs, _numbers(samples.inputs)) for part, samples in _parts(client)}
        for name, client in found.clients.items()
    }
    return made_of(method, parts)


def made_of(method: Method, clients: Mapping[str, Mapping[str, tuple[Array, Array]]]) -> Federation:
    """A federation of samples from `data_for`."""
    if _learns_classes(method):
        return Federation.from_arrays(clients, classes=3, name="checks")
    return Federation.from_arrays(clients, target=Numbers("height"), name="checks")


def _learns_classes(method: Method) -> bool:
    return Classes.kind in method.targets


def _parts(client: Client) -> tuple[tuple[str, Samples], ...]:
    return ("train", client.train), ("test", client.test)


def _numbers(x: Array) -> Array:
    """Numbers that a linear model tells, but for a tenth, and the same whoever has the row."""
    rest = np.sin(50.0 * x[:, :1])
    return np.asarray(40.0 + x[:, :5] @ np.array([[1.0], [-2.0], [0.5], [0.0], [1.5]]) + 0.5 * rest)


# --- methods that are watched, and what they are held against ---


def with_settings(method: Method, **changed: object) -> Method:
    """The method with some of its settings changed."""
    return dataclasses.replace(method, **changed)  # type: ignore[type-var]


def counterpart(method: Method, name: str) -> Method:
    """Another method of the catalogue with the settings that both have."""
    values = parameters.values(method)
    takes = {parameter for parameter, _, _ in parameters.declared(methods.method_class(name, values))}
    return methods.create(name, {n: value for n, value in values.items() if n in takes})


def like_training_alone(method: Method, federation: Federation) -> None:
    """Every client's model is what `local` makes of the model that the client starts from, in as many rounds."""
    task = federation.task
    first = method.init_server(Server(task, 0, derive(0, "server")))

    def start(client: Client) -> Arrays:
        site = Site(task, client.train, 0, derive(0, "start", client.name))
        return method.personalize({}, method.message(first, client.name, "personalize"), site).model

    starts = {id(client.train): start(client) for client in federation.clients.values()}
    alone = run(_Starting(counterpart(method, "local"), starts).method(), federation)
    result = run(method, federation)
    for name, model in result.models.items():
        close(model.arrays, alone.models[name].arrays, f"training alone as {name}")


def global_generator() -> str:
    """The state of NumPy's global generator, in words."""
    return repr(np.random.get_state(legacy=False))  # noqa: NPY002  (looked at, to see whether anybody uses it)


class _Wrapped:
    """A method whose calls pass through `_call`."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._method, name)
        return (lambda *arguments: self._call(name, arguments)) if callable(attribute) else attribute

    @property
    def __dataclass_fields__(self) -> Any:  # so that its parameters can be read
        return self._method.__dataclass_fields__  # type: ignore[attr-defined]

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._method, name)(*arguments)

    def method(self) -> Method:
        """Itself, to be used where a method is."""
        return cast("Method", self)


class Fresh(_Wrapped):
    """A method of which every single call gets a new copy."""

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(dataclasses.replace(self._method), name)(*arguments)  # type: ignore[type-var]


class _Starting(_Wrapped):
    """`local` with first models that are given."""

    def __init__(self, method: Method, starts: Mapping[int, Arrays]) -> None:
        super().__init__(method)
        self._starts = starts

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return self._starts[id(arguments[0].train)] if name == "init_client" else super()._call(name, arguments)


class Guarded(_Wrapped):
    """A method that is given read-only arrays and mappings alone."""

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return super()._call(name, tuple(_guard(argument) for argument in arguments))


class Recoded(_Wrapped):
    """A method whose results are encoded, decoded and compared."""

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        result = super()._call(name, arguments)
        parts = result[:1] if isinstance(result, Personal) else result if isinstance(result, tuple) else (result,)
        for mapping in parts if name in ARRAYS else ():
            if isinstance(mapping, Mapping):
                named.check(mapping, f"what {name} returns")
                if not named.same(mapping, decode(encode(mapping))):
                    raise CheckError(f"what {name} returns does not survive bytes")
        return result


class Spy(_Wrapped):
    """A method whose messages and replies are shown to somebody."""

    def __init__(self, method: Method, see: Callable[[Arrays, Arrays], object]) -> None:
        super().__init__(method)
        self._see = see

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        result = super()._call(name, arguments)
        if name == "update":
            self._see(arguments[1], result[1])
        return result


class Replaced(_Wrapped):
    """A method with some of its functions replaced, by name."""

    def __init__(self, method: Method, **functions: Callable[..., Any]) -> None:
        super().__init__(method)
        self._functions = functions

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return self._functions[name](*arguments) if name in self._functions else super()._call(name, arguments)


class Backwards(InProcess):
    """A transport that asks the clients in reverse order."""

    def ask(self, requests: Any, inbox: Any, tick: Any) -> None:
        """Ask the last client first."""
        super().ask(reversed(list(requests)), inbox, tick)


class Lossy(InProcess):
    """A transport that loses the replies of site-2."""

    def _handle(self, name: str, request: Any) -> Any:
        answer = super()._handle(name, request)
        return Failure("lost on the way") if name == "site-2" and request.kind == "update" else answer


class NeverAsked(InProcess):
    """A transport that never asks site-2 to update."""

    def ask(self, requests: Any, inbox: Any, tick: Any) -> None:
        """Leave site-2 out of updates."""
        update = isinstance(inbox, Replies)
        super().ask(((n, data) for n, data in requests if not (update and n == "site-2")), inbox, tick)


class _ReadOnly(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError(f"{key!r} was set in a mapping that was given")


def _guard(argument: Any) -> Any:
    if isinstance(argument, Mapping):
        return _ReadOnly({name: _guard(array) for name, array in argument.items()})
    if isinstance(argument, np.ndarray):
        guarded = argument.view()
        guarded.flags.writeable = False
        return guarded
    return argument


def same_state(one: Result, two: Result, than: str) -> None:
    """Refuse two results whose servers know different things, bit for bit."""
    if not named.same(one.state, two.state):
        raise CheckError(f"the server's state differs from that of {than}")


def same_result(one: Result, two: Result, than: str) -> None:
    """Refuse two results whose servers or models differ in a bit."""
    for title, left, right in (
        ("the server's state", {"": one.state}, {"": two.state}),
        ("the model of", {n: m.arrays for n, m in one.models.items()}, {n: m.arrays for n, m in two.models.items()}),
    ):
        if left.keys() != right.keys():
            raise CheckError(f"{than} has other clients")
        for name in left:
            if not named.same(left[name], right[name]):
                raise CheckError(f"{title} {name} differs from that of {than}".replace("  ", " "))


def close(left: Arrays, right: Arrays, than: str, *, tolerance: float = TOLERANCE) -> None:
    """Refuse arrays that differ by more than rounding."""
    if left.keys() != right.keys():
        raise CheckError(f"with {than}, other arrays come out: {sorted(left.keys() ^ right.keys())}")
    for name in left:
        one, two = np.asarray(left[name], dtype=np.float64), np.asarray(right[name], dtype=np.float64)
        scale = max(float(np.abs(one).max(initial=0.0)), 1e-300)
        if one.shape != two.shape or not float(np.abs(one - two).max(initial=0.0)) <= tolerance * scale:
            raise CheckError(f"with {than}, {name!r} differs")
