"""An experiment: data, split and method described by plain settings, run by one call. What the command line calls."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve import accelerator, methods, parameters
from fedsolve.data import catalog
from fedsolve.data.federation import Federation
from fedsolve.data.table import Table
from fedsolve.data.task import Numbers, Task
from fedsolve.errors import ParameterError, PrecisionWarning, unknown
from fedsolve.features import fitting, maps
from fedsolve.features.cells import Cells
from fedsolve.method import Method
from fedsolve.metrics.words import check as check_metric
from fedsolve.privacy.disclose import Rules, exposed
from fedsolve.privacy.noise import Noise
from fedsolve.progress import Progress
from fedsolve.result import Result
from fedsolve.rng import check_seed
from fedsolve.runtime import offline
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.runtime.devices import Devices
from fedsolve.runtime.drive import OnRound
from fedsolve.runtime.gather import Secure
from fedsolve.runtime.inbox import Keeper
from fedsolve.runtime.inprocess import run
from fedsolve.study.command import command as command
from fedsolve.study.settings import AUTO, option_name
from fedsolve.study.settings import Settings as Settings

RUNTIMES = ("local", "flower", "flower:inline", "flower:ray")
LARGEST_SPLIT = 50_000  # classes times clients that result.json shows in full


def table_of(settings: Settings, progress: Progress | None = None) -> Table:
    """All data in one place, or as many as the limit lets in, before any feature map."""
    name = settings.data
    if name.startswith("synthetic:") and name.count(",") == 1 and settings.clients is not None:
        name += f",{settings.clients}"  # as many natural clients as are asked for
    table = catalog.load(
        name,
        seed=check_seed(settings.seed),
        skip_broken=settings.skip_broken,
        progress=progress,
        reading=settings.reading,
    )
    return table if settings.limit is None else table.sample(settings.limit, settings.seed)


def split_of(settings: Settings, table: Table) -> Federation:
    """The clients, each with its part of the table to train and to test on."""
    return table.split(
        partition_of(settings, table),
        clients=settings.clients,
        seed=settings.seed,
        test=settings.test,
        min_samples=settings.min_samples,
        features=settings.features if isinstance(table.inputs, Cells) else "",
    )


def partition_of(settings: Settings, table: Table) -> str:
    """How clients come about: as asked for, else the natural ones where the data name them."""
    if settings.partition != AUTO:
        return settings.partition
    return "dirichlet:0.1" if table.client is None else "by-client"


def class_of(name: str, settings: Mapping[str, object] | None = None) -> type[Method]:
    """The class of a method: one of the catalogue by its name, or a user's own as package.module:Class.

    >>> class_of("fedhip").__name__
    'FedHiP'
    """
    return methods.own_class(name) if ":" in name else methods.method_class(name, settings)


def plain_name(text: str) -> str:
    """A text as part of a file's name.

    >>> plain_name("synthetic:1,0.5")
    'synthetic-1-0.5'
    """
    return re.sub(r"[^\w.=]+", "-", text)


def method_of(settings: Settings) -> Method:
    """The method with its parameters.

    >>> method_of(Settings(method="fedhip", set={"alpha": "20"}))
    FedHiP(alpha=20.0, beta='auto', intercept=True, thin=False)
    """
    name, chosen = settings.method, dict(settings.set)
    cls = class_of(name, chosen)
    takes = {parameter for parameter, _, _ in parameters.declared(cls)}
    if settings.rounds is not None and "rounds" in takes:
        chosen["rounds"] = settings.rounds
    method = cls(**parameters.assign(cls, chosen)) if ":" in name else methods.create(name, chosen)
    if settings.rounds not in (None, method.rounds):
        raise ParameterError(f"{name} takes exactly {method.rounds} round; got rounds={settings.rounds}")
    return method


def noise_of(settings: Settings) -> Noise | None:
    """The noise that is asked for, where it is.

    >>> noise_of(Settings(epsilon=1.0)).by
    'sites'
    """
    if settings.epsilon is None:
        usual = Settings()
        names = ("delta", "noise", "honest", "target_bound")
        given = [name for name in names if getattr(settings, name) != getattr(usual, name)]
        if given:
            raise ParameterError(f"{option_name(given[0])} is for runs with noise: say how much by --epsilon")
        return None
    return Noise(settings.epsilon, settings.delta, settings.noise, settings.honest, settings.target_bound)


@contextmanager
def _kept(path: Path | None, method: Method, task: Task, seed: int) -> Iterator[Keeper | None]:
    """What keeps replies, or their sum: a ledger, where one is named."""
    if path is None:
        yield None
        return
    from fedsolve.ledger.store import Ledger

    with Ledger.join(path, method, task, seed=seed) as ledger:
        yield ledger


@dataclass(frozen=True, eq=False)
class Prepared:
    """Clients with their features: the same for all methods on one split."""

    federation: Federation
    seconds: float  # that the features took
    about: Mapping[str, Any]  # the data, for result.json
    partition: str  # how clients came about


def prepare(settings: Settings, progress: Progress | None = None) -> Prepared:
    """Data, features and split of an experiment."""
    if settings.metric is not None:
        check_metric(settings.metric)  # before data are read; whether the target has it, they show
    table, seconds = _mapped(settings, progress)
    started = time.perf_counter()
    federation = split_of(settings, table)
    if settings.metric is not None:
        check_metric(settings.metric, federation.task.target.kind)
    if isinstance(table.inputs, Cells):
        seconds = time.perf_counter() - started
    about = {
        "moved": federation.moved,
        "skipped": list(table.skipped),
        "dropped": list(prepared.dropped if (prepared := federation.task.preparation) else ()),
        **({**_labels(federation), "exposed": _exposed(federation)} if settings.epsilon is None else {}),
    }
    return Prepared(federation, seconds, about, partition_of(settings, table))


def _exposed(federation: Federation) -> int:
    """How many clients' sums would disclose single records, by the rules that are quick to look at."""
    task, rules = federation.task, Rules()
    labels = (client.train.labels for client in federation.clients.values())
    return sum(exposed(each, task.target, task.width, rules) for each in labels)


def _labels(federation: Federation) -> dict[str, dict[str, list[Any]]]:
    """How labels are split: samples of each class at each client, or means of numbers.

    Nothing where that would be a large file of its own.
    """
    labels = {name: np.concatenate([c.train.labels, c.test.labels]) for name, c in federation.clients.items()}
    count = federation.task.target.count
    if count * len(labels) > LARGEST_SPLIT:
        return {}
    if federation.task.target.kind == Numbers.kind:
        return {"means": {name: rows.mean(axis=0).tolist() for name, rows in labels.items() if len(rows)}}
    return {"split": {name: np.bincount(each, minlength=count).tolist() for name, each in labels.items()}}


def execute(
    settings: Settings,
    progress: Progress | None = None,
    on_round: OnRound | None = None,
    checkpoint: Checkpoint | None = None,
    ledger: Path | None = None,
    *,
    prepared: Prepared | None = None,
    baseline: Result | None = None,
    on_start: Callable[[Mapping[str, Any]], None] | None = None,
) -> Result:
    """Run an experiment. Everything that can be refused is refused before anything is computed.

    With a `ledger`, every client's reply becomes a contribution in it, or, of a secure sum, the sum one of all clients;
    the file is made where there is none. Clients are trained alone, where that is asked for, unless a `baseline` is
    given that did so on the same data. `on_start` is told the settings as the result will have them, before the first
    round; `on_round` is told of each round.
    """
    if settings.runtime not in RUNTIMES:
        raise unknown("runtime", settings.runtime, RUNTIMES)
    method = method_of(settings)
    device = accelerator.chosen(settings.device, settings.method, method.on_device)
    secure = _secure(settings)
    devices = None if settings.devices is None else Devices.of(settings.devices)
    if ":" in settings.method and (settings.runtime != "local" or ledger is not None):
        raise ParameterError(
            f"{settings.method} is not of the catalogue: sites and ledgers cannot look it up by its name; it runs with "
            "--runtime local and without --ledger"
        )
    noise = noise_of(settings)
    if noise is not None and ledger is not None:
        raise ParameterError(
            "--epsilon is without --ledger: a ledger keeps what clients send as it is, and takes single clients out "
            "again"
        )
    if settings.runtime != "local":
        if find_spec("flwr") is None:
            raise ParameterError("--runtime flower needs Flower: pip install 'fedsolve[flower]'")
        for asked, option in ((checkpoint, "--checkpoint and --resume"), (devices, "--devices")):
            if asked is not None:
                raise ParameterError(f"{option} are for --runtime local")
        if device not in (None, "cpu"):
            raise ParameterError("--device is for --runtime local; nodes compute on the CPU")
    if checkpoint is not None:
        checkpoint = replace(checkpoint, settings=asdict(settings))
    ready = prepared or prepare(settings, progress)
    federation = ready.federation
    alone = settings.alone if settings.alone is not None else method.closed_form
    resolved = replace(
        settings,
        set=parameters.values(method),
        clients=len(federation.clients),
        rounds=method.rounds,
        alone=alone,
        quorum=secure.quorum if secure else None,
        partition=ready.partition,
        device=device,
    )
    if on_start is not None:
        on_start(asdict(resolved))
    with _kept(ledger, method, federation.task, settings.seed) as keeper, _told_by_result():
        if settings.runtime != "local":
            result = _simulated(settings, method, progress, on_round, keeper, secure, noise)
            resolved = replace(resolved, runtime=result.settings["runtime"])  # which engine it was
        else:
            result = run(
                method,
                federation,
                secure=replace(secure, on_sum=keeper.add_cohort) if secure and keeper else secure,
                seed=settings.seed,
                participation=settings.participation,
                progress=progress,
                on_round=on_round,
                evaluate_every=settings.eval_every,
                checkpoint=checkpoint,
                on_reply=keeper.keep if keeper and not secure else None,
                noise=noise,
                devices=devices,
                device=device,
            )
    result = replace(
        result,
        settings=asdict(resolved),
        data={**result.data, **_told(ready.about, secure)},
        seconds=replace(result.seconds, features=ready.seconds, total=result.seconds.total + ready.seconds),
    )
    if alone and method.alone is not None:
        result = result.with_alone(baseline or _trained_alone(method, federation, settings, progress, secure))
    return result


def _secure(settings: Settings) -> Secure | None:
    """The secure sum that is asked for, if it can be had; refused before data are read."""
    if not settings.secure:
        if settings.quorum is not None:
            raise ParameterError("--quorum is the fewest clients in a secure sum: give it together with --secure")
        return None
    from fedsolve.privacy import keys as keys  # says what to install where it cannot be loaded

    secure = Secure() if settings.quorum is None else Secure(settings.quorum)
    secure.check(settings.participation)
    return secure


def _told(about: Mapping[str, Any], secure: Secure | None) -> dict[str, Any]:
    """What a result says of the data: under a secure sum, not how labels are split."""
    return {name: value for name, value in about.items() if secure is None or name not in ("split", "means")}


def _trained_alone(
    method: Method, federation: Federation, settings: Settings, progress: Progress | None, secure: Secure | None
) -> Result:
    """`local` with the settings that differ from the method in nothing but being alone."""

    def name_phase(what: str, done: int, total: int) -> None:
        if progress:
            progress(f"training alone: {what}", done, total)

    local = methods.create("local", method.alone)
    last = settings.eval_every if method.closed_form else local.rounds
    device = settings.device if local.on_device else None
    with _told_by_result():
        return run(
            local, federation, seed=settings.seed, progress=name_phase, evaluate_every=last, secure=secure,
            device=device,
        )  # fmt: skip


@contextmanager
def _told_by_result() -> Iterator[None]:
    """Inside, Python says nothing of lost digits: its sentences are in the result, to be shown with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        yield


def _mapped(settings: Settings, progress: Progress | None = None) -> tuple[Table, float]:
    """The table with its features, and the seconds those took."""
    to_fit = fitting.unfitted(settings.features)
    if to_fit:
        fitting.check(settings.features)  # refused before data are read
    features = None if to_fit else maps.parse(settings.features)
    table = table_of(settings, progress)
    if not isinstance(settings.test, str):
        table = replace(table, test=None)  # nobody asks for it, so it needs no features
    table.check_classes()  # before features that take time
    if isinstance(table.inputs, Cells):
        return table, 0.0  # columns are agreed on where clients are
    started = time.perf_counter()
    if features is None:
        # A map is fitted to the samples that clients train on. The split does not depend on the features.
        clients = split_of(settings, table).clients.values()
        features = fitting.fit(settings.features, [client.train.inputs for client in clients], progress)
    if features != maps.Identity():
        table = table.with_features(features, progress)
    return table, time.perf_counter() - started


@lru_cache(maxsize=1)
def _federation(text: str) -> Federation:
    """The federation that settings stand for, once a process."""
    settings = Settings(**json.loads(text))
    return split_of(settings, _mapped(settings)[0])


def _simulated(
    settings: Settings,
    method: Method,
    progress: Progress | None,
    on_round: OnRound | None,
    keeper: Keeper | None,
    secure: Secure | None,
    noise: Noise | None,
) -> Result:
    offline.switch_off()
    from fedsolve.runtime import flower
    from fedsolve.runtime.job import Job

    data = settings.data
    here = replace(settings, data=str(Path(data).resolve()) if Path(data).exists() else data)  # workers are elsewhere
    load = partial(_federation, json.dumps(asdict(here)))
    fitted = load().task.features
    is_fitted = fitting.unfitted(settings.features) or fitting.numbered(str(fitted))
    features = str(fitted) if is_fitted else settings.features
    job = Job(
        settings.method, parameters.values(method), features, settings.seed, settings.test,
        quorum=secure.quorum if secure else 0, noise=asdict(noise) if noise else {},
    )  # fmt: skip
    return flower.simulate(
        job, load, participation=settings.participation, evaluate_every=settings.eval_every, progress=progress,
        on_round=on_round, keeper=keeper, engine=settings.runtime.partition(":")[2],
    )  # fmt: skip
