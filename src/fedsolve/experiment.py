"""An experiment: data, split and method described by plain settings, run by one call. What the command line calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedsolve import methods, parameters
from fedsolve.data import catalog
from fedsolve.data.federation import Federation, Table, Task
from fedsolve.errors import ParameterError, unknown
from fedsolve.features import maps
from fedsolve.method import Method
from fedsolve.result import Result
from fedsolve.rng import check_seed
from fedsolve.runtime.inprocess import run
from fedsolve.runtime.loop import Keep, Progress

RUNTIMES = ("local",)
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


@contextmanager
def _kept(path: Path | None, method: Method, task: Task, seed: int) -> Iterator[Keep | None]:
    """What puts replies into a ledger, where one is named."""
    if path is None:
        yield None
        return
    from fedsolve.ledger.contribution import Contribution
    from fedsolve.ledger.store import Ledger

    with Ledger.join(path, method, task, seed=seed) as ledger:
        yield lambda client, reply: ledger.add(Contribution.of(client, reply))


def execute(settings: Settings, progress: Progress | None = None, ledger: Path | None = None) -> Result:
    """Run an experiment. Everything that can be refused is refused before anything is computed.

    With a `ledger`, every client's reply becomes a contribution in it; the file is made where there is none.
    """
    if settings.runtime not in RUNTIMES:
        raise unknown("runtime", settings.runtime, RUNTIMES)
    method, features = method_of(settings), maps.parse(settings.features)
    table = table_of(settings, progress)
    if not isinstance(settings.test, str):
        table = replace(table, test=None)  # nobody asks for it, so it needs no features
    started = time.perf_counter()
    if features != maps.Identity():
        table = table.with_features(features, progress)
    mapping = time.perf_counter() - started
    federation = split_of(settings, table)
    with _kept(ledger, method, federation.task, settings.seed) as on_reply:
        result = run(
            method,
            federation,
            seed=settings.seed,
            participation=settings.participation,
            progress=progress,
            on_reply=on_reply,
        )
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
