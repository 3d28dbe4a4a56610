"""How to find out whether a law holds: one function per kind of law, registered at `hold`."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from fedsolve import arrays as named
from fedsolve.checks.probes import (
    SINGLE,
    Backwards,
    CheckError,
    close,
    counterpart,
    data_for,
    federation_for,
    like_training_alone,
    made_of,
    run,
    same_result,
    same_state,
    usual,
    with_settings,
)
from fedsolve.laws import (
    Equals,
    EqualsAmongEquals,
    OneModel,
    OrderFree,
    OthersSplitInvariant,
    SendsNothing,
    SharesWith,
    SplitInvariant,
    StaysAtStart,
    TrainsAlone,
)
from fedsolve.method import Method, Server
from fedsolve.result import Result
from fedsolve.rng import derive
from fedsolve.runtime.drive import drive
from fedsolve.runtime.inprocess import InProcess


@singledispatch
def hold(law: object, method: Method) -> None:
    """Raise a CheckError unless the law holds for the method."""
    raise CheckError(f"{method.name} declares {law!r}, and nobody knows how to check that; register it at hold")


@hold.register
def _split_invariant(law: SplitInvariant, method: Method) -> None:
    x, y = data_for(method, 120)
    models = []
    for count in (1, 3, 40):
        order = derive(count, "split").permutation(len(x))
        rows = np.array_split(order, count)
        clients = {f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(rows)}
        shared = run(method, made_of(method, clients)).shared
        if shared is None:
            raise CheckError("it has no global model")
        models.append(shared.arrays)
    for other in models[1:]:
        close(models[0], other, "another split of the same data")


@hold.register
def _others_split_invariant(law: OthersSplitInvariant, method: Method) -> None:
    x, y = data_for(method, 120)
    mine = {"me": {"train": (x[:30], y[:30])}}
    models = []
    for count in (1, 4, 30):
        rows = np.array_split(derive(count, "split").permutation(np.arange(30, 120)), count)
        others = {f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(rows)}
        models.append(run(method, made_of(method, {**mine, **others})).models["me"].arrays)
    for other in models[1:]:
        close(models[0], other, "another split of the other clients' data")


@hold.register
def _order_free(law: OrderFree, method: Method) -> None:
    federation = federation_for(method)
    forward, backward = InProcess(method, federation, workers=1), Backwards(method, federation, workers=1)
    one, two = (drive(method, federation.task, transport) for transport in (forward, backward))
    close(one.state, two.state, "replies in another order")
    for name in federation.clients:
        close(forward.model(name), backward.model(name), "replies in another order")


@hold.register
def _one_model(law: OneModel, method: Method) -> None:
    result = usual(method)
    if result.shared is None or not all(named.same(m.arrays, result.shared.arrays) for m in result.models.values()):
        raise CheckError("a personal model differs from the global one")


@hold.register
def _sends_nothing(law: SendsNothing, method: Method) -> None:
    result = usual(method)
    if result.bytes_up or result.bytes_down:
        raise CheckError(f"{result.bytes_up} bytes went up and {result.bytes_down} down")


@hold.register
def _equals(law: Equals, method: Method) -> None:
    same_result(*_beside(law, method), law.other)


@hold.register
def _shares_with(law: SharesWith, method: Method) -> None:
    same_state(*_beside(law, method), law.other)


@hold.register
def _equals_among_equals(law: EqualsAmongEquals, method: Method) -> None:
    x, y = data_for(method, 120)
    rows = np.array_split(np.arange(len(x)), 4)
    federation = made_of(method, {f"c{i}": {"train": (x[r], y[r])} for i, r in enumerate(rows)})
    one = with_settings(method, **dict(law.settings))
    mine, theirs = (run(each, federation).shared for each in (one, counterpart(one, law.other)))
    if mine is None or theirs is None:
        raise CheckError("it has no global model")
    close(mine.arrays, theirs.arrays, f"{law.other}, all clients being of equal size", tolerance=SINGLE)


def _beside(law: Equals | SharesWith, method: Method) -> tuple[Result, Result]:
    """What the method comes to under the law's settings, and the method that the law names, on the same data."""
    federation = federation_for(method)
    one, other = with_settings(method, **dict(law.settings)), counterpart(method, law.other)
    return run(one, federation), run(other, federation)


@hold.register
def _trains_alone(law: TrainsAlone, method: Method) -> None:
    federation = federation_for(method) if law.clients is None else federation_for(method, sizes=(40,) * law.clients)
    like_training_alone(with_settings(method, **dict(law.settings)), federation)


@hold.register
def _stays_at_start(law: StaysAtStart, method: Method) -> None:
    federation, still = federation_for(method), with_settings(method, **dict(law.settings))
    state = still.init_server(Server(federation.task, 0, derive(0, "server")))
    first, last = still.shared(still.message(state, "", "personalize")), run(still, federation).shared
    if first is None or last is None:
        raise CheckError("it has no global model")
    close(first, last.arrays, "all its rounds over", tolerance=SINGLE)
