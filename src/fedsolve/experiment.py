"""An experiment: data, split and method described by plain settings, run by one call. What the command line calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from fedsolve import methods, parameters
from fedsolve.data import catalog
from fedsolve.data.federation import Federation
from fedsolve.errors import ParameterError, unknown
from fedsolve.features import maps
from fedsolve.method import Method
from fedsolve.result import Result
from fedsolve.rng import check_seed
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.runtime.inprocess import run
from fedsolve.runtime.loop import Progress, Report

RUNTIMES = ("local",)
_TEXT = ((str,), "a text")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {  # of settings that nobody further down looks at
    **dict.fromkeys(("method", "data", "partition", "features", "runtime"), _TEXT),
    "alone": ((bool, type(None)), "true or false"),
    "set": ((Mapping,), "a table of parameters"),
    "test": ((int, float, str), "a number or a text"),
    "participation": ((int, float), "a number"),
}


@dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome of a run. Texts are as on the command line."""

    method: str = "fedhip"
    set: Mapping[str, object] = field(default_factory=dict)  # parameters of the method
    data: str = "digits"
    clients: int | None = None  # None: 20, or the natural clients
    partition: str = "dirichlet:0.1"
    test: float | str = 0.2
    min_samples: int = 2
    features: str = "identity"
    seed: int = 0
    rounds: int | None = None  # None: the method's own
    participation: float = 1.0
    runtime: str = "local"
    alone: bool | None = None  # also train every client alone, to compare; None: where that is closed form
    eval_every: int = 1  # rounds between two evaluations

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Settings:
        """Settings from a mapping read from a file called `source`."""
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown(f"setting in {source}:", name, known)
        for name, value in values.items():
            kinds, words = _KINDS.get(name, ((object,), ""))
            if not isinstance(value, kinds):
                raise ParameterError(f"setting {name!r} in {source} must be {words}; got {value!r}")
        return cls(**values)


def federation_of(settings: Settings) -> Federation:
    """The clients and their data, before any feature map."""
    name = settings.data
    if name.startswith("synthetic:") and name.count(",") == 1 and settings.clients is not None:
        name += f",{settings.clients}"  # as many natural clients as are asked for
    return catalog.load(name, seed=check_seed(settings.seed)).split(
        settings.partition,
        clients=settings.clients,
        seed=settings.seed,
        test=settings.test,
        min_samples=settings.min_samples,
    )


def method_of(settings: Settings) -> Method:
    """The method with its parameters."""
    chosen = dict(settings.set)
    if settings.rounds is not None:
        takes = {name for name, _, _ in parameters.declared(methods.method_class(settings.method))}
        if "rounds" not in takes:
            own = methods.create(settings.method, chosen).rounds
            if settings.rounds != own:
                raise ParameterError(f"{settings.method} takes exactly {own} round; got rounds={settings.rounds}")
        else:
            chosen["rounds"] = settings.rounds
    return methods.create(settings.method, chosen)


def execute(
    settings: Settings,
    progress: Progress | None = None,
    report: Report | None = None,
    checkpoint: Checkpoint | None = None,
) -> Result:
    """Run an experiment. Everything that can be refused is refused before anything is computed."""
    if settings.runtime not in RUNTIMES:
        raise unknown("runtime", settings.runtime, RUNTIMES)
    method, features = method_of(settings), maps.parse(settings.features)
    federation = federation_of(settings)
    started = time.perf_counter()
    if features != maps.Identity():
        federation = federation.with_features(features)
    mapping = time.perf_counter() - started
    alone = settings.alone if settings.alone is not None else not method.processes
    result = run(
        method,
        federation,
        seed=settings.seed,
        participation=settings.participation,
        progress=progress,
        report=report,
        evaluate_every=settings.eval_every,
        checkpoint=checkpoint,
    )
    chosen = parameters.values(method)
    resolved = replace(settings, set=chosen, clients=len(federation.clients), rounds=method.rounds, alone=alone)
    result = replace(
        result,
        settings=asdict(resolved),
        data={**result.data, "moved": federation.moved},
        seconds=replace(result.seconds, features=mapping, total=result.seconds.total + mapping),
    )
    if alone and method.name != "local":
        # With the method's own intercept or network, so that training alone differs in nothing but being alone.
        takes = {name for name, _, _ in parameters.declared(methods.method_class("local"))}
        same = ("model", "rounds", "epochs", "batch", "lr", "sgd_momentum") if method.processes else ("intercept",)
        own = methods.create("local", {name: chosen[name] for name in same if name in takes & chosen.keys()})
        last = settings.eval_every if not method.processes else own.rounds
        result = result.with_alone(run(own, federation, seed=settings.seed, progress=progress, evaluate_every=last))
    return result
