"""The contract of methods, as code: `check_method(MyMethod())` for those of the catalogue and for anybody's own.

Every check is a function of a method that raises `CheckError` with a sentence. `checks_for` names those that apply to a
method, the laws it declares included, so that a test suite can run them one by one.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve import methods, parameters
from fedsolve.arrays import Arrays
from fedsolve.checks.laws import hold
from fedsolve.checks.probes import (
    CheckError,
    Fresh,
    Guarded,
    Lossy,
    NeverAsked,
    Recoded,
    Replaced,
    Spy,
    close,
    data_for,
    federation_for,
    global_generator,
    made_of,
    run,
    same_result,
    usual,
)
from fedsolve.codec import decode, encode
from fedsolve.data.federation import Client
from fedsolve.data.samples import Samples
from fedsolve.data.task import Classes
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.method import Method
from fedsolve.model import load_model
from fedsolve.runtime.drive import drive


def check_method(method: Method) -> None:
    """Run every check that applies to a method; raise one error that lists all that failed.

    >>> import fedsolve as fs
    >>> fs.check_method(fs.AFL(ridge=1.0))
    """
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
    """The checks that apply to a method, by name: those for all, and one for each law that it declares."""
    yield from CHECKS.items()
    for law in method.laws:
        yield f"law {law}", partial(hold, law)


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
    first = usual(method)
    before = global_generator()
    second = run(method, federation_for(method), workers=3)
    if before != global_generator():
        raise CheckError("it draws from NumPy's global generator; use the generator it is given")
    same_result(first, second, "a second run with the same seed")


def no_hidden_state(method: Method) -> None:
    """A fresh copy of the method for every single call gives the same result, and no call changes the method."""
    settings = parameters.values(method)
    again = run(Fresh(method).method(), federation_for(method))
    same_result(usual(method), again, "a fresh copy of the method per call")
    if parameters.values(method) != settings:
        raise CheckError("a run changed its parameters")


def writes_to_nothing(method: Method) -> None:
    """Nothing that is given to a method is written to: all of it is read-only here."""
    try:
        run(Guarded(method).method(), federation_for(method), workers=1)
    except (ValueError, TypeError) as error:
        raise CheckError(f"it writes to what it was given ({error})") from error


def survives_bytes(method: Method) -> None:
    """State, private state, message, reply and model pass through bytes bit for bit."""
    run(Recoded(method).method(), federation_for(method))


def replies_say_nothing_of_size(method: Method) -> None:
    """The shape of a reply does not depend on the number of samples: no per-sample values leave a client.

    Rounds may differ in what is sent back; they are told apart by what was sent out.
    """
    shapes: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}

    def see(message: Arrays, reply: Arrays) -> None:
        request, answer = (tuple(sorted((n, a.shape) for n, a in arrays.items())) for arrays in (message, reply))
        shapes.setdefault(request, set()).add(answer)

    run(Spy(method, see).method(), federation_for(method), workers=1)
    for answers in shapes.values():
        if len(answers) > 1:
            raise CheckError(f"replies of clients of different sizes have different shapes: {sorted(answers)}")


def small_clients_work(method: Method) -> None:
    """Clients with one sample, or one class, or alone in the federation, get a model that predicts."""
    x, y = data_for(method)
    one = {"train": (x[:1], y[:1]), "test": (x[-20:], y[-20:])}
    for clients in ({"only": one}, {"a": one, "b": {"train": (x[:50], y[:50])}}):
        result = run(method, made_of(method, clients))
        for name, model in result.models.items():
            if not np.isfinite(model.scores(x[:5])).all():
                raise CheckError(f"the model of client {name!r} gives scores that are not finite")


def bad_data_is_refused(method: Method) -> None:
    """NaN that reaches a client's update ends in an error that names the client, not in a reply."""
    federation = federation_for(method)
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
    """On samples that a linear model tells apart, the model is above the constant answer: by accuracy, or by r2."""
    result = run(method, federation_for(method, sizes=(40, 25, 40, 30, 40)))
    if Classes.kind not in method.targets:
        r2 = result.metrics["r2"].pooled or 0.0
        if not r2 > 0.5:
            raise CheckError(f"pooled r2 is {r2} on numbers that are nearly linear")
    elif not (result.accuracy.mean or 0.0) > 0.6:
        raise CheckError(f"mean accuracy is {result.accuracy.mean} on three classes that are easy to tell apart")


def absent_clients_are_not_there(method: Method) -> None:
    """With a client absent, the result is exactly that of the federation without it."""
    federation = federation_for(method)
    absent = run(method, federation, absent=["site-2"])
    same_result(absent, usual(method, without="site-2"), "a federation without that client")


def lost_replies_are_not_there(method: Method) -> None:
    """When a client is asked and its reply is lost, the rest get exactly the federation without it."""
    federation = federation_for(method)
    lossy = Lossy(method, federation, workers=1)
    outcome = drive(method, federation.task, lossy, tolerate=True)
    without = usual(method, without="site-2")
    close(outcome.state, without.state, "a lost reply instead of an absent client")
    if method.rounds > 1:
        return
    for name in without.models:
        close(lossy.model(name), without.models[name].arrays, "a lost reply instead of an absent client")
    never_asked = NeverAsked(method, federation, workers=1)
    drive(method, federation.task, never_asked)
    close(lossy.model("site-2"), never_asked.model("site-2"), "a lost reply instead of never being asked")


def models_survive_disk(method: Method) -> None:
    """A saved model, of a client or of a group, predicts the same after loading."""
    x, _ = data_for(method)
    result = usual(method)
    network = next(iter(parameters.imported(method).values()), "")
    with tempfile.TemporaryDirectory() as folder:
        place = result.save(Path(folder) / "out")
        for below, models in (("models", result.models), ("groups", result.group_models)):
            for name, model in models.items():
                loaded = load_model(place / below / f"{name}.safetensors", type(method), model=network)
                if loaded.scores(x).tobytes() != model.scores(x).tobytes():
                    raise CheckError(f"the model of {model.owner!r} gives other scores after loading")


def groups_are_of_the_clients(method: Method) -> None:
    """Groups have members among the clients that were asked about, each in one at most, and a model that predicts."""
    federation, result = federation_for(method), usual(method)
    x, clients = data_for(method)[0], tuple(federation.clients)
    for asked in (clients, clients[::-1][:3], ()):
        groups = method.grouping(result.state, asked)
        members = [member for group in groups.values() for member in group.members]
        if not (all(group.members for group in groups.values()) and len(members) == len(set(members))):
            raise CheckError("a group has no member, or a client is in two groups")
        if not set(members) == set(asked) & {name for group in result.groups.values() for name in group.members}:
            raise CheckError(f"asked about {list(asked)}, it puts {sorted(members)} into groups")
        for name, group in groups.items():
            if not set(group.members) <= set(result.groups[name].members):
                raise CheckError(f"who is in group {name!r} depends on who is asked about")
            scores = method.predict(group.model, x, federation.task)
            if scores.shape != (len(x), federation.task.outputs) or not np.isfinite(scores).all():
                raise CheckError(f"the model of group {name!r} does not give one finite score per class")
            if group.centre is not None and (group.centre.ndim != 1 or not np.isfinite(group.centre).all()):
                raise CheckError(f"the centre of group {name!r} is not one row of finite numbers")


def figures_and_probabilities_are_numbers(method: Method) -> None:
    """Figures of the server's state are plain finite numbers; probabilities sum to one and agree with the scores."""
    x, _ = data_for(method)
    result = usual(method)
    for name, value in method.figures(result.state).items():
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise CheckError(f"figure {name!r} is {value!r}, not a finite number")
    for name, model in result.models.items() if Classes.kind in method.targets else ():
        shares = model.predict_proba(x)
        if not (np.abs(shares.sum(1) - 1.0).max() < 1e-6 and shares.min() >= 0):
            raise CheckError(f"the probabilities of the model of {name!r} do not sum to one")
        if (shares.argmax(1) != model.predict(x)).any():
            raise CheckError(f"the likeliest class of the model of {name!r} is not the one it answers")


def training_alone_is_a_fair_baseline(method: Method) -> None:
    """`alone` holds settings that training alone takes; None for what is training alone itself, and sends nothing."""
    if method.alone is None:
        if usual(method).bytes_up:
            raise CheckError("it says that it is training alone, and sends something")
        return
    try:
        methods.create("local", method.alone)
    except FedsolveError as error:
        raise CheckError(f"training alone does not take its settings {dict(method.alone)}: {error}") from error


def the_state_says_when_it_is_done(method: Method) -> None:
    """`done` is true or false, and a function of the state alone; a run ends where it is true, and nowhere else."""
    seen: list[bool] = []
    federation = federation_for(method)

    def see(state: Arrays) -> bool:
        answers = [method.done(kept) for kept in (state, state, decode(encode(state)))]
        if not all(type(answer) is bool for answer in answers) or len(set(answers)) > 1:
            raise CheckError(f"asked three times whether one state is done, it says {answers}; wanted the same truth")
        seen.append(answers[0])
        return answers[0]

    result = run(Replaced(method, done=see).method(), federation, workers=1)
    see(result.state)
    early = result.rounds < method.rounds
    if any(seen[: result.rounds - 1]) or (early and not seen[-1]):
        raise CheckError(f"its run took {result.rounds} of {method.rounds} rounds, and said in turn: done {seen}")


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
        groups_are_of_the_clients,
        figures_and_probabilities_are_numbers,
        training_alone_is_a_fair_baseline,
        the_state_says_when_it_is_done,
    )
}
