"""An experiment: data, split and method described by plain settings, run by one call. What the command line calls."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsolve import methods, parameters
from fedsolve.data import catalog
from fedsolve.data.federation import Federation, Table
from fedsolve.errors import ParameterError, unknown
from fedsolve.features import maps
from fedsolve.method import Method
from fedsolve.result import Result
from fedsolve.rng import check_seed
from fedsolve.runtime import offline
from fedsolve.runtime.inprocess import run
from fedsolve.runtime.loop import Progress

RUNTIMES = ("local", "flower")
_TEXT = ((str,), "a text")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {  # of settings that nobody further down looks at
    **dict.fromkeys(("method", "data", "partition", "features", "runtime"), _TEXT),
    **dict.fromkeys(("alone", "skip_broken"), ((bool,), "true or false")),
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
    skip_broken: bool = False  # leave out pictures that cannot be read
    seed: int = 0
    rounds: int | None = None  # None: the method's own
    participation: float = 1.0
    runtime: str = "local"
    alone: bool = True  # also train every client alone, for comparison

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


def table_of(settings: Settings, progress: Progress | None = None) -> Table:
    """All data in one place, before any feature map."""
    name = settings.data
    if name.startswith("synthetic:") and name.count(",") == 1 and settings.clients is not None:
        name += f",{settings.clients}"  # as many natural clients as are asked for
    return catalog.load(name, seed=check_seed(settings.seed), skip_broken=settings.skip_broken, progress=progress)


def split_of(settings: Settings, table: Table) -> Federation:
    """The clients and their data."""
    return table.split(
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


def execute(settings: Settings, progress: Progress | None = None) -> Result:
    """Run an experiment. Everything that can be refused is refused before anything is computed."""
    if settings.runtime not in RUNTIMES:
        raise unknown("runtime", settings.runtime, RUNTIMES)
    method, _ = method_of(settings), maps.parse(settings.features)
    if settings.runtime == "flower" and find_spec("flwr") is None:
        raise ParameterError("--runtime flower needs Flower: pip install 'fedsolve[flower]'")
    table, mapping = _mapped(settings, progress)
    federation = split_of(settings, table)
    if settings.runtime == "flower":
        result = _simulated(settings, method, progress)
    else:
        result = run(method, federation, seed=settings.seed, participation=settings.participation, progress=progress)
    resolved = replace(settings, set=parameters.values(method), clients=len(federation.clients), rounds=method.rounds)
    result = replace(
        result,
        settings=asdict(resolved),
        data={**result.data, "moved": federation.moved, "skipped": list(table.skipped)},
        seconds=replace(result.seconds, features=mapping, total=result.seconds.total + mapping),
    )
    if settings.alone and method.name != "local":
        # With the method's own intercept, so that training alone differs in nothing but being alone.
        own = methods.create("local", {"intercept": getattr(method, "intercept", False)})
        result = result.with_alone(run(own, federation, seed=settings.seed, progress=progress))
    return result


def _mapped(settings: Settings, progress: Progress | None = None) -> tuple[Table, float]:
    """The table with its features, and the seconds those took."""
    features, table = maps.parse(settings.features), table_of(settings, progress)
    if not isinstance(settings.test, str):
        table = replace(table, test=None)  # nobody asks for it, so it needs no features
    started = time.perf_counter()
    if features != maps.Identity():
        table = table.with_features(features, progress)
    return table, time.perf_counter() - started


@lru_cache(maxsize=1)
def _federation(text: str) -> Federation:
    """The federation that settings stand for, once a process."""
    settings = Settings(**json.loads(text))
    return split_of(settings, _mapped(settings)[0])


def _simulated(settings: Settings, method: Method, progress: Progress | None) -> Result:
    offline.switch_off()
    from fedsolve.runtime import flower
    from fedsolve.runtime.sites import Job

    data = settings.data
    here = replace(settings, data=str(Path(data).resolve()) if Path(data).exists() else data)  # workers are elsewhere
    job = Job(settings.method, parameters.values(method), settings.features, settings.seed, settings.test)
    load = partial(_federation, json.dumps(asdict(here)))
    return flower.simulate(job, load, participation=settings.participation, progress=progress)
