"""The contract of methods, as code: `check_method(MyMethod())` for those of the catalogue and for anybody's own.

Every check is a function of a method that raises `CheckError` with a sentence. `checks_for` names those that apply to a
method, the laws it declares included, so that a test suite can run them one by one.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedsolve import arrays as named
from fedsolve import methods, parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.codec import decode, encode
from fedsolve.data.federation import Client, Federation, Samples
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.method import Method
from fedsolve.model import load_model
from fedsolve.result import Result
from fedsolve.rng import derive
from fedsolve.runtime.inprocess import InProcess, run
from fedsolve.runtime.loop import Failure, Replies, drive

TOLERANCE = 1e-8  # relative; for sums taken in another order


class CheckError(FedsolveError):
    """A method broke its contract."""


def check_method(method: Method) -> None:
    """Run every check that applies to a method; raise one error that lists all that failed."""
    failures = []
    for title, check in checks_for(method):
        try:
            check(method)
        except CheckError as error:
            failures.append(f"{title}: {error}")
        except Exception as error:  # noqa: BLE001  (a method may fail in any way; the list must go on)
            failures.append(f"{title}: {type(error).__name__}: {error}")
    if failures:
        raise CheckError(f"{method!r} breaks its contract:\n  " + "\n  ".join(failures))


def checks_for(method: Method) -> Iterator[tuple[str, Callable[[Method], None]]]:
    """The checks that apply to a method, by name."""
    yield from CHECKS.items()
    for law in sorted(method.laws):
        if law not in LAWS:
            raise CheckError(f"{method.name} declares the law {law!r}, which nobody knows; known: {', '.join(LAWS)}")
        yield f"law {law}", LAWS[law]


# --- federations to check on ---


def sample_data(seed: int = 0, count: int = 240, classes: int = 3, features: int = 6) -> tuple[Array, Array]:
    """Gaussian classes that a linear model tells apart."""
    rng = derive(seed, "checks")
    centres = 3.0 * rng.normal(size=(classes, features))
    labels = rng.integers(classes, size=count)
    inputs = centres[labels] + rng.normal(size=(count, features))
    inputs[:, -1] = 0.3  # one feature is constant: real data have such, and centring must survive them
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


# --- the checks ---


def frozen_value(method: Method) -> None:
    """A method is a frozen dataclass: hashable, equal to its copy, and nobody can set a field."""
    if not dataclasses.is_dataclass(method) or not method.__dataclass_params__.frozen:
        raise CheckError("it must be a frozen dataclass")
    if copy.copy(method) != method or hash(copy.copy(method)) != hash(method):
        raise CheckError("it must equal its copy")


def parameters_are_checked(method: Method) -> None:
    """Every number refuses NaN, infinity and what lies outside its domain, by name."""
    for name, _, domain in parameters.declared(method):
        if domain.kind not in ("number", "integer"):
            continue
        wrong: list[Any] = [math.nan, math.inf, -math.inf, "nonsense", None]
        wrong += [domain.low - 1] if math.isfinite(domain.low) else []
        wrong += [domain.high + 1] if math.isfinite(domain.high) else []
        for value in wrong:
            try:
                dataclasses.replace(method, **{name: value})  # type: ignore[type-var]
            except ParameterError as error:
                if repr(name) not in str(error):
                    raise CheckError(f"refusing {name}={value!r}, the error does not name it: {error}") from error
            else:
                raise CheckError(f"{name}={value!r} is accepted")


def same_seed_same_bits(method: Method) -> None:
    """Two runs agree bit for bit, whatever the number of workers and the state of global generators."""
    federation = sample_federation()
    first = run(method, federation, seed=3, workers=1)
    before = _global_generator()
    second = run(method, federation, seed=3, workers=3)
    if before != _global_generator():
        raise CheckError("it draws from NumPy's global generator; use the generator it is given")
    _same_result(first, second, "a second run with the same seed")


def no_hidden_state(method: Method) -> None:
    """A fresh copy of the method for every single call gives the same result, and no call changes the method."""
    federation = sample_federation()
    settings = parameters.values(method)
    _same_result(
        run(method, federation), run(_Fresh(method).method(), federation), "a fresh copy of the method per call"
    )
    if parameters.values(method) != settings:
        raise CheckError("a run changed its parameters")


def writes_to_nothing(method: Method) -> None:
    """Nothing that is given to a method is written to: all of it is read-only here."""
    try:
        run(_Guarded(method).method(), sample_federation(), workers=1)
    except (ValueError, TypeError) as error:
        raise CheckError(f"it writes to what it was given ({error})") from error


def survives_bytes(method: Method) -> None:
    """State, private state, message, reply and model pass through bytes bit for bit."""
    run(_Recoded(method).method(), sample_federation())


def replies_say_nothing_of_size(method: Method) -> None:
    """The shape of a reply does not depend on the number of samples: no per-sample values leave a client.

    Rounds may differ in what is sent back; they are told apart by what was sent out.
    """
    shapes: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}

    def see(message: Arrays, reply: Arrays) -> None:
        sent, back = (tuple(sorted((n, a.shape) for n, a in arrays.items())) for arrays in (message, reply))
        shapes.setdefault(sent, set()).add(back)

    run(_Spy(method, see).method(), sample_federation(), workers=1)
    for found in shapes.values():
        if len(found) > 1:
            raise CheckError(f"replies of clients of different sizes have different shapes: {sorted(found)}")


def small_clients_work(method: Method) -> None:
    """Clients with one sample, or one class, or alone in the federation, get a model that predicts."""
    x, y = sample_data()
    one = {"train": (x[:1], y[:1]), "test": (x[-20:], y[-20:])}
    for clients in ({"only": one}, {"a": one, "b": {"train": (x[:50], y[:50])}}):
        result = run(method, Federation.from_arrays(clients, classes=3))
        for name, model in result.models.items():
            if not np.isfinite(model.scores(x[:5])).all():
                raise CheckError(f"the model of client {name!r} gives scores that are not finite")


def bad_data_is_refused(method: Method) -> None:
    """NaN that reaches a client's update ends in an error that names the client, not in a reply."""
    federation = sample_federation()
    client = federation.clients["site-2"]
    spoilt = np.array(client.train.inputs)
    spoilt[3, 2] = np.nan
    bad = Client("site-2", Samples(spoilt, client.train.labels), client.test)
    broken = dataclasses.replace(federation, clients={**federation.clients, "site-2": bad})
    try:
        result = run(method, broken)
    except DataError as error:
        if "site-2" not in str(error):
            raise CheckError(f"the error does not name the client: {error}") from error
    else:
        if result.bytes_up or np.isnan(result.models["site-2"].scores(client.test.inputs)).any():
            raise CheckError("NaN in a client's features went through")


def better_than_guessing(method: Method) -> None:
    """On classes that a linear model tells apart, the mean accuracy is above that of the commonest class."""
    result = run(method, sample_federation(sizes=(40, 25, 40, 30, 40)))
    if not (result.accuracy.mean or 0.0) > 0.6:
        raise CheckError(f"mean accuracy is {result.accuracy.mean} on three classes that are easy to tell apart")


def absent_clients_are_not_there(method: Method) -> None:
    """With a client absent, the result is exactly that of the federation without it."""
    federation = sample_federation()
    rest = {name: client for name, client in federation.clients.items() if name != "site-2"}
    without = dataclasses.replace(federation, clients=rest)
    _same_result(run(method, federation, absent=["site-2"]), run(method, without), "a federation without that client")


def lost_replies_are_not_there(method: Method) -> None:
    """When a client is asked and its reply is lost, the rest get exactly the federation without it."""
    federation = sample_federation()
    rest = {name: client for name, client in federation.clients.items() if name != "site-2"}
    lossy = _Lossy(method, federation, workers=1)
    found = drive(method, federation.task, lossy, tolerate=True)
    wanted = run(method, dataclasses.replace(federation, clients=rest))
    _close(found.state, wanted.state, "a lost reply instead of an absent client")
    if method.rounds > 1:
        return
    for name in rest:
        _close(lossy.model(name), wanted.models[name].arrays, "a lost reply instead of an absent client")
    never_asked = _NeverAsked(method, federation, workers=1)
    drive(method, federation.task, never_asked)
    _close(lossy.model("site-2"), never_asked.model("site-2"), "a lost reply instead of never being asked")


def models_survive_disk(method: Method) -> None:
    """A saved model predicts the same after loading."""
    x, _ = sample_data()
    result = run(method, sample_federation())
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder) / "out")
        for name, model in result.models.items():
            loaded = load_model(Path(folder) / "out" / "models" / f"{name}.safetensors", type(method))
            if loaded.scores(x).tobytes() != model.scores(x).tobytes():
                raise CheckError(f"the model of {name!r} gives other scores after loading")


# --- laws that a method may declare ---


def split_invariant(method: Method) -> None:
    """The global model does not depend on how the same data are spread over clients."""
    x, y = sample_data(count=120)
    models = []
    for count in (1, 3, 40):
        order = derive(count, "split").permutation(len(x))
        rows = np.array_split(order, count)
        clients = {f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(rows)}
        shared = run(method, Federation.from_arrays(clients, classes=3)).shared
        if shared is None:
            raise CheckError("it has no global model")
        models.append(shared.arrays)
    for other in models[1:]:
        _close(models[0], other, "another split of the same data")


def others_split_invariant(method: Method) -> None:
    """A client's model does not depend on how the data of the others are spread over them."""
    x, y = sample_data(count=120)
    mine = {"me": {"train": (x[:30], y[:30])}}
    found = []
    for count in (1, 4, 30):
        rows = np.array_split(derive(count, "split").permutation(np.arange(30, 120)), count)
        others = {f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(rows)}
        found.append(run(method, Federation.from_arrays({**mine, **others}, classes=3)).models["me"].arrays)
    for other in found[1:]:
        _close(found[0], other, "another split of the other clients' data")


def order_free(method: Method) -> None:
    """The order in which replies come, and sums over groups of them, change nothing but rounding."""
    federation = sample_federation()
    forward, backward = InProcess(method, federation), _Backwards(method, federation)
    one, two = (drive(method, federation.task, transport) for transport in (forward, backward))
    _close(one.state, two.state, "replies in another order")
    for name in federation.clients:
        _close(forward.model(name), backward.model(name), "replies in another order")


def one_model(method: Method) -> None:
    """Every client's model is the global one."""
    result = run(method, sample_federation())
    if result.shared is None or not all(named.same(m.arrays, result.shared.arrays) for m in result.models.values()):
        raise CheckError("a personal model differs from the global one")


def sends_nothing(method: Method) -> None:
    """Not a byte travels."""
    result = run(method, sample_federation())
    if result.bytes_up or result.bytes_down:
        raise CheckError(f"{result.bytes_up} bytes went up and {result.bytes_down} down")


def shares_with_fedavg(method: Method) -> None:
    """What travels, and so the global model, is FedAvg's."""
    federation = sample_federation()
    found, wanted = run(method, federation), run(_counterpart(method, "fedavg"), federation)
    _same_state(found, wanted, "FedAvg")


def fedavg_at_mu_0(method: Method) -> None:
    """Without its pull it is FedAvg, with fine-tuning where it has that, bit for bit."""
    federation = sample_federation()
    other = "fedavg-ft" if "finetune" in parameters.values(method) else "fedavg"
    _same_result(run(_with(method, mu=0.0), federation), run(_counterpart(method, other), federation), other)


def fedavg_at_eta_0(method: Method) -> None:
    """With a blend that stays as it starts, all of the global model, what travels is FedAvg's, bit for bit."""
    federation = sample_federation()
    found, wanted = run(_with(method, eta=0.0), federation), run(_counterpart(method, "fedavg"), federation)
    _same_state(found, wanted, "FedAvg")


def local_at_lam_0(method: Method) -> None:
    """Without its pull, the personal model is that of training alone from the first global one."""
    _like_training_alone(_with(method, lam=0.0), sample_federation())


def local_at_eta_0(method: Method) -> None:
    """With weights that stay as they start, all on oneself, everybody trains alone."""
    _like_training_alone(_with(method, eta=0.0, start="self"), sample_federation())


def alone_is_local(method: Method) -> None:
    """In a federation of one, that one trains alone."""
    _like_training_alone(method, sample_federation(sizes=(40,)))


CHECKS: dict[str, Callable[[Method], None]] = {
    check.__name__: check
    for check in (
        frozen_value,
        parameters_are_checked,
        same_seed_same_bits,
        no_hidden_state,
        writes_to_nothing,
        survives_bytes,
        replies_say_nothing_of_size,
        small_clients_work,
        bad_data_is_refused,
        better_than_guessing,
        absent_clients_are_not_there,
        lost_replies_are_not_there,
        models_survive_disk,
    )
}
LAWS: dict[str, Callable[[Method], None]] = {
    "split-invariant": split_invariant,
    "others-split-invariant": others_split_invariant,
    "order-free": order_free,
    "one-model": one_model,
    "sends-nothing": sends_nothing,
    "shares-with-fedavg": shares_with_fedavg,
    "fedavg-at-mu-0": fedavg_at_mu_0,
    "fedavg-at-eta-0": fedavg_at_eta_0,
    "local-at-lam-0": local_at_lam_0,
    "local-at-eta-0": local_at_eta_0,
    "alone-is-local": alone_is_local,
}


# --- ways to look over a method's shoulder ---


def _with(method: Method, **changed: object) -> Method:
    return dataclasses.replace(method, **changed)  # type: ignore[type-var]


def _counterpart(method: Method, name: str) -> Method:
    """Another method of the catalogue with the settings that both have."""
    takes = {parameter for parameter, _, _ in parameters.declared(methods.method_class(name))}
    return methods.create(name, {n: value for n, value in parameters.values(method).items() if n in takes})


def _like_training_alone(method: Method, federation: Federation) -> None:
    """Every client's model is what `local` makes of the model that the client starts from, in as many rounds."""
    first = method.init_server(federation.task, derive(0, "server"))

    def start(client: Client) -> Arrays:
        return method.personalize({}, method.message(first, client.name), federation.task, client.train)

    starts = {id(client.train): start(client) for client in federation.clients.values()}
    alone = run(_Starting(_counterpart(method, "local"), starts).method(), federation)
    found = run(method, federation)
    for name, model in found.models.items():
        _close(model.arrays, alone.models[name].arrays, f"training alone as {name}")


def _global_generator() -> str:
    return repr(np.random.get_state(legacy=False))  # noqa: NPY002  (looked at, to see whether anybody uses it)


class _Wrapped:
    """A method whose calls pass through `_call`."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._method, name)
        return (lambda *arguments: self._call(name, arguments)) if callable(found) else found

    @property
    def __dataclass_fields__(self) -> Any:  # so that its parameters can be read
        return self._method.__dataclass_fields__  # type: ignore[attr-defined]

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._method, name)(*arguments)

    def method(self) -> Method:
        """Itself, to be used where a method is."""
        return cast("Method", self)


class _Fresh(_Wrapped):
    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(dataclasses.replace(self._method), name)(*arguments)  # type: ignore[type-var]


class _Starting(_Wrapped):
    """`local` with first models that are given."""

    def __init__(self, method: Method, starts: Mapping[int, Arrays]) -> None:
        super().__init__(method)
        self._starts = starts

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return self._starts[id(arguments[1])] if name == "init_client" else super()._call(name, arguments)


class _Guarded(_Wrapped):
    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return super()._call(name, tuple(_guard(argument) for argument in arguments))


class _Recoded(_Wrapped):
    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        result = super()._call(name, arguments)
        for mapping in result if isinstance(result, tuple) else (result,):
            if isinstance(mapping, Mapping):
                named.check(mapping, f"what {name} returns")
                if not named.same(mapping, decode(encode(mapping))):
                    raise CheckError(f"what {name} returns does not survive bytes")
        return result


class _Spy(_Wrapped):
    def __init__(self, method: Method, see: Callable[[Arrays, Arrays], object]) -> None:
        super().__init__(method)
        self._see = see

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        result = super()._call(name, arguments)
        if name == "update":
            self._see(arguments[1], result[1])
        return result


class _Backwards(InProcess):
    def ask(self, requests: Any, inbox: Any, tick: Any) -> None:
        super().ask(reversed(list(requests)), inbox, tick)


class _Lossy(InProcess):
    def _handle(self, name: str, request: Any) -> Any:
        answer = super()._handle(name, request)
        return Failure("lost on the way") if name == "site-2" and request.kind == "update" else answer


class _NeverAsked(InProcess):
    def ask(self, requests: Any, inbox: Any, tick: Any) -> None:
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


def _same_state(one: Result, two: Result, than: str) -> None:
    if not named.same(one.state, two.state):
        raise CheckError(f"the server's state differs from that of {than}")


def _same_result(one: Result, two: Result, than: str) -> None:
    for title, left, right in (
        ("the server's state", {"": one.state}, {"": two.state}),
        ("the model of", {n: m.arrays for n, m in one.models.items()}, {n: m.arrays for n, m in two.models.items()}),
    ):
        if left.keys() != right.keys():
            raise CheckError(f"{than} has other clients")
        for name in left:
            if not named.same(left[name], right[name]):
                raise CheckError(f"{title} {name} differs from that of {than}".replace("  ", " "))


def _close(left: Arrays, right: Arrays, than: str) -> None:
    if left.keys() != right.keys():
        raise CheckError(f"with {than}, other arrays come out: {sorted(left.keys() ^ right.keys())}")
    for name in left:
        one, two = np.asarray(left[name], dtype=np.float64), np.asarray(right[name], dtype=np.float64)
        scale = max(float(np.abs(one).max(initial=0.0)), 1e-300)
        if one.shape != two.shape or not float(np.abs(one - two).max(initial=0.0)) <= TOLERANCE * scale:
            raise CheckError(f"with {than}, {name!r} differs")
