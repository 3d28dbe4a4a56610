"""Several methods on the same data, splits and seeds. Results are on disk as they come; what was stopped goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

from fedsolve import disk, methods, parameters
from fedsolve.errors import DataError, FedsolveError, ParameterError, unknown
from fedsolve.progress import Progress
from fedsolve.result import Result
from fedsolve.resultfile import read_result
from fedsolve.study.experiment import Prepared, Settings, class_of, execute, method_of, plain_name, prepare
from fedsolve.study.settings import AUTO

FAILURE = "failure.json"  # what a comparison leaves where a method failed
Report: TypeAlias = Callable[[str, int, Mapping[str, Any] | str, int, int], None]
"""Method, seed, its result.json or why it failed, how many are done, of how many."""


def plan(base: Settings, names: Sequence[str], seeds: Sequence[int], assignments: Mapping[str, str]) -> list[Settings]:
    """The runs of a comparison: every method with every seed, and training alone to compare with.

    `assignments` holds parameters: "alpha" for every method that has one of that name, "fedhip.alpha" for one method.
    Closed-form methods are held against `local` with the settings that their property `alone` names; each such `local`
    is a run of its own. Training a network alone costs as much as the method, so gradient methods go without.

    >>> runs = plan(Settings(clients=5), ["fedhip", "fedprior"], [0], {})
    >>> [(run.method, dict(run.set)) for run in runs]
    [('local', {}), ('local', {'intercept': True}), ('fedhip', {}), ('fedprior', {})]
    """
    if not names:
        raise ParameterError("a comparison needs at least one method")
    compared = list(dict.fromkeys(["local", *names]))
    settings = {name: _assigned(name, assignments) for name in compared}
    taken = {key for values in settings.values() for key in values}
    for key in assignments:
        whose, dot, name = key.rpartition(".")
        if dot and whose not in compared:
            raise unknown("method in --set:", whose, compared)
        if not dot and name not in taken:
            raise ParameterError(f"none of {', '.join(compared)} has a parameter {name!r}")
    runs = []
    for name in compared:
        run = replace(base, method=name, set=settings[name], alone=False)
        takes = {each for each, _, _ in parameters.declared(class_of(name, settings[name]))}
        run = replace(run, rounds=base.rounds if "rounds" in takes else None)
        method = method_of(run)  # refuses wrong parameters before anything runs
        runs.append(replace(run, alone=method.closed_form and method.alone is not None))
    everything = [*runs[:1], *_baselines(runs), *runs[1:]]
    return [replace(run, seed=seed) for seed in dict.fromkeys(seeds) for run in everything]


def _assigned(name: str, assignments: Mapping[str, str]) -> dict[str, str]:
    variants = methods.classes(name) if name in methods.CATALOGUE else [class_of(name)]
    takes = {each for cls in variants for each, _, _ in parameters.declared(cls)}
    common = {key: value for key, value in assignments.items() if "." not in key and key in takes}
    parts = [(*key.rpartition("."), value) for key, value in assignments.items()]
    return common | {key: value for whose, _, key, value in parts if whose == name}


def _baselines(runs: Sequence[Settings]) -> list[Settings]:
    """The runs of `local` that are missing among `runs`, whose first is the plain one, for methods to be held against.

    What the plain one was given holds for all of them, but for what a method says itself.
    """
    plain = runs[0]
    common = plain.set if method_of(plain).closed_form else {}
    baselines: list[Settings] = []
    for run in runs:
        if run.alone and baseline_of(run, [plain, *baselines]) is None:
            values = {**common, **(method_of(run).alone or {})}
            baselines.append(replace(plain, set=values, rounds=None))
    return baselines


def baseline_of(run: Settings, runs: Sequence[Settings]) -> Settings | None:
    """The first of `runs` that differs from a closed-form run in nothing but being alone: same data, `local`."""
    values = method_of(run).alone
    if values is None:
        return None
    for other in runs:
        if other.method != "local" or data_of(other) != data_of(run):
            continue
        local = method_of(other)
        same = parameters.values(methods.create("local", values))
        if local.closed_form and all(getattr(local, name) == same[name] for name in values):
            return other
    return None


def place_of(settings: Settings) -> str:
    """The folder of a run, where methods differ in nothing but their names."""
    return f"{plain_name(settings.method)}-{settings.seed}"


def _named(runs: Sequence[Settings], place_of: Callable[[Settings], str]) -> list[tuple[str, str]]:
    """What each run is called, and its folder. Where one stands there already, by what differs from that one."""
    first: dict[str, Settings] = {}
    names = []
    for run in runs:
        title, place = run.method, place_of(run)
        other = first.setdefault(place, run)
        if other is not run:
            before = parameters.values(method_of(other))
            after = parameters.values(method_of(run))
            words = [_word(name, value) for name, value in after.items() if before.get(name) != value]
            title = "-".join([run.method, *words])
            place = f"{plain_name(title)}-{run.seed}"
        names.append((title, place))
    return names


def _word(name: str, value: object) -> str:
    return (name if value else f"no-{name}") if isinstance(value, bool) else f"{name}={value}"


def compare(
    runs: Sequence[Settings],
    out: Path,
    report: Report,
    progress: Progress | None = None,
    place_of: Callable[[Settings], str] = place_of,
    *,
    one_data_set: bool = True,
) -> None:
    """Run what is not yet in `out`, one folder per run. A method that fails leaves the reason, and the others go on.

    Neighbours with the same data and split share them. Data that cannot be had end a comparison on `one_data_set`; else
    they are one more way to fail. What is to be held against training alone takes the figures from the run of `local`
    before it that is its own, where there is one.
    """
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; name a folder")
    disk.check_writable(out / "run")
    disk.private_folder(out)
    ready: tuple[object, Prepared] | None = None
    names = _named(runs, place_of)
    for number, (settings, (title, folder)) in enumerate(zip(runs, names, strict=True)):
        reply: Mapping[str, Any] | str | None = finished(out / folder, settings)
        if reply is None:
            try:
                if ready is None or ready[0] != data_of(settings):
                    ready = (data_of(settings), prepare(settings, progress))
                baseline = baseline_of(settings, runs[:number]) if settings.alone else None
                beside = None if baseline is None else out / names[list(runs).index(baseline)][1]
                reply = _run(settings, ready[1], out / folder, progress, beside)
            except FedsolveError as error:
                if one_data_set:
                    raise
                reply = _failed(settings, out / folder, str(error))
        report(title, settings.seed, reply, number + 1, len(runs))


def data_of(settings: Settings) -> Settings:
    """What the data and their split depend on, as settings with everything else at its default."""
    tables = ("label", "client", "person", "drop", "task", "columns", "date_as", "encoding")
    kept = ("data", "limit", "clients", "partition", "test", "min_samples", "features", "skip_broken", "seed", *tables)
    return Settings(**{name: getattr(settings, name) for name in kept})


def finished(place: Path, settings: Settings) -> Mapping[str, Any] | None:
    """The result.json in a place, if it is that of these settings."""
    try:
        result = read_result(place / "result.json")
    except DataError:
        return None
    method = method_of(settings)
    expected = {**asdict(settings), "set": parameters.values(method), "rounds": method.rounds}
    if settings.partition == AUTO:
        del expected["partition"]  # it follows from the data
    stored = result.get("settings", {})
    # None stands for a number that the run found out, but for `limit`, where it stands for all samples.
    same = all(stored.get(name) == value for name, value in expected.items() if value is not None or name == "limit")
    return result if same else None


def _run(
    settings: Settings, prepared: Prepared, place: Path, progress: Progress | None, beside: Path | None
) -> Mapping[str, Any] | str:
    """One run; with its clients alone from the folder `beside` it, and without where those failed."""

    def name_run(what: str, done: int, total: int) -> None:
        if progress:
            progress(f"{settings.method}, seed {settings.seed}: {what}", done, total)

    if (place / FAILURE).is_file() and disk.contents(place) == {FAILURE}:
        shutil.rmtree(place)  # it is tried again
    try:
        baseline = None
        if beside is not None:
            baseline = Result.load(beside) if (beside / "result.json").is_file() else None
            settings = replace(settings, alone=baseline is not None)
        result = execute(settings, name_run, prepared=prepared, baseline=baseline)
        result.save(place)
        return result.json()
    except FedsolveError as error:
        return _failed(settings, place, str(error))
    except Exception as error:  # noqa: BLE001  (a defect of one method is no reason to lose the others)
        return _failed(settings, place, f"{type(error).__name__}: {error}")


def _failed(settings: Settings, place: Path, reason: str) -> str:
    disk.private_folder(place)
    content = {"method": settings.method, "seed": settings.seed, "reason": reason}
    disk.write_bytes(place / FAILURE, json.dumps(content, indent=1).encode() + b"\n")
    return reason
