"""Several methods on the same data, splits and seeds. Results are on disk as they come; what was stopped goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from fedsolve import accelerator, disk, methods, parameters
from fedsolve.errors import DataError, FedsolveError, ParameterError, unknown
from fedsolve.method import Method
from fedsolve.progress import Progress
from fedsolve.result import Result
from fedsolve.resultfile import read_result
from fedsolve.study.experiment import Prepared, Settings, class_of, execute, method_of, plain_name, prepare
from fedsolve.study.settings import AUTO
from fedsolve.tracking import Log

FAILURE = "failure.json"  # what a comparison leaves where a method failed
AVERAGES = ("fedavg", "fedavg-ft")  # what methods that train a network are held against, beside training alone


@dataclass(frozen=True)
class Entry:
    """A method in a comparison; one that has a name may be there several times, with parameters of its own."""

    method: str
    name: str = ""
    set: Mapping[str, str] = field(default_factory=dict)


Report: TypeAlias = Callable[[str, int, Mapping[str, Any] | str, int, int], None]
"""Method, seed, its result.json or why it failed, how many are done, of how many."""


def plan(
    base: Settings,
    names: Sequence[str | Entry],
    seeds: Sequence[int],
    assignments: Mapping[str, str],
    *,
    baselines: bool = True,
) -> list[Settings]:
    """The runs of a comparison: every method with every seed, and before them what they are held against.

    `assignments` holds parameters: "alpha" for every method that has one of that name, "fedhip.alpha" for one method.
    Closed-form methods are held against `local` with the settings that their property `alone` names; each such `local`
    is a run of its own. Methods that train a network are held against `local`, `fedavg` and `fedavg-ft` with the same
    network: `local` with the settings of training that they share, the others with those given for every method.
    Without `baselines` nothing is run but the methods named. An `Entry` is a method with a name of its own.

    >>> runs = plan(Settings(clients=5), ["fedhip", "fedprior"], [0], {})
    >>> [(run.method, dict(run.set)) for run in runs]
    [('local', {}), ('fedhip', {}), ('fedprior', {})]
    >>> [run.method for run in plan(Settings(clients=5), ["fedala"], [0], {"model": "mlp:8"})]
    ['local', 'fedavg', 'fedavg-ft', 'fedala']
    """
    entries = [each if isinstance(each, Entry) else Entry(each) for each in names]
    listed = list(dict.fromkeys(entry.method for entry in entries if not entry.name))
    if not entries:
        raise ParameterError("a comparison needs at least one method")
    runs = [
        _run_of(base, name, _assigned(class_of(name), name, assignments), alone=True)
        for name in listed
        if name != "local"
    ]
    for entry in entries:
        if entry.name:
            values = {**_assigned(class_of(entry.method, entry.set), entry.method, assignments), **entry.set}
            runs.append(_run_of(replace(base, name=entry.name), entry.method, values, alone=entry.method != "local"))
    beside = [*_alone(base, listed, runs, assignments, baselines)]
    if baselines:
        beside += _averaged(base, listed, runs, assignments)
    everything = [*beside, *runs]
    _check_taken(assignments, everything)
    return [replace(run, seed=seed) for seed in dict.fromkeys(seeds) for run in everything]


def plans(
    bases: Sequence[Settings],
    names: Sequence[str | Entry],
    seeds: Sequence[int],
    grid: Sequence[Mapping[str, str]],
    *,
    baselines: bool = True,
) -> list[Settings]:
    """The runs of several comparisons in one: on every base, with every set of assignments; none twice.

    >>> runs = plans([Settings(clients=5)], ["fedhip"], [0], [{"alpha": "1"}, {"alpha": "5"}])
    >>> [(run.method, dict(run.set)) for run in runs]
    [('local', {}), ('fedhip', {'alpha': '1'}), ('fedhip', {'alpha': '5'})]
    """
    found: list[Settings] = []
    for base in bases:
        for seed in dict.fromkeys(seeds):
            for assignments in grid:
                runs = plan(base, names, [seed], assignments, baselines=baselines)
                found += [run for run in runs if run not in found]
    return found


def _run_of(base: Settings, name: str, values: Mapping[str, object], *, alone: bool = False) -> Settings:
    """A run of a method; with `alone`, held against training alone where that is closed form."""
    takes = _takes(class_of(name, values))
    run = replace(base, method=name, set=values, alone=False, rounds=base.rounds if "rounds" in takes else None)
    method = method_of(run)  # refuses wrong parameters before anything runs
    run = replace(run, device=accelerator.chosen(base.device, name, True) if method.on_device and base.device else None)
    return replace(run, alone=alone and method.closed_form and method.alone is not None)


def _takes(cls: type[Method]) -> set[str]:
    return {name for name, _, _ in parameters.declared(cls)}


def _assigned(cls: type[Method], name: str, assignments: Mapping[str, str]) -> dict[str, str]:
    """What a method of this class is given: values for all that it takes, and values for itself.

    A value for itself that another class of the same name takes is that one's.
    """
    takes = _takes(cls)
    variants = methods.classes(name) if name in methods.CATALOGUE else []
    elsewhere = {each for other in variants for each in _takes(other)} - takes
    common = {key: value for key, value in assignments.items() if "." not in key and key in takes}
    parts = [(*key.rpartition("."), value) for key, value in assignments.items()]
    return common | {key: value for whose, _, key, value in parts if whose == name and key not in elsewhere}


def _check_taken(assignments: Mapping[str, str], runs: Sequence[Settings]) -> None:
    """Refuse parameters that no run has."""
    compared = list(dict.fromkeys(run.method for run in runs))
    for key in assignments:
        whose, dot, name = key.rpartition(".")
        if dot and whose not in compared:
            raise unknown("method in --set:", whose, compared)
        if not any(name in run.set for run in runs if not dot or run.method == whose):
            where = f"no run of {whose} here" if dot else f"none of {', '.join(compared)}"
            raise ParameterError(f"{where} has a parameter {name!r}")


# --- what methods are held against ---


def _alone(
    base: Settings, listed: Sequence[str], runs: Sequence[Settings], assignments: Mapping[str, str], baselines: bool
) -> list[Settings]:
    """The runs of `local`: ridge for closed-form methods, a network for those that train one; and one that is named."""
    ridge, network = (_assigned(cls, "local", assignments) for cls in methods.classes("local"))
    trained = _by_network(runs) if baselines else {}
    solved = [run for run in runs if run.alone] if baselines else []
    found: list[Settings] = []
    if "model" not in network and ("local" in listed or solved or (baselines and not trained)):
        found.append(_run_of(base, "local", ridge))
    if "model" in network and not trained and ("local" in listed or baselines):
        found.append(_run_of(base, "local", network))
    for run in solved:
        if baseline_of(run, found) is None:
            found.append(_run_of(base, "local", {**ridge, **(method_of(run).alone or {})}))
    for model, same in trained.items():
        first, *others = (method_of(run).alone or {} for run in same)
        shared = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
        run = _run_of(base, "local", {**shared, **network, "model": assignments.get("local.model", model)})
        if not any(method_of(run) == method_of(other) for other in found):
            found.append(run)
    return found


def _averaged(
    base: Settings, listed: Sequence[str], runs: Sequence[Settings], assignments: Mapping[str, str]
) -> list[Settings]:
    """The runs of `fedavg` and `fedavg-ft` with each network that is trained, where they are not named themselves."""
    found: list[Settings] = []
    for name in AVERAGES:
        for model in _by_network(runs) if name not in listed else ():
            values = _assigned(class_of(name), name, assignments)
            run = _run_of(base, name, {**values, "model": assignments.get(f"{name}.model", model)})
            if run not in found:
                found.append(run)
    return found


def _by_network(runs: Sequence[Settings]) -> dict[str, list[Settings]]:
    """The runs that train a network by descent, by the text of that network."""
    found: dict[str, list[Settings]] = {}
    for run in runs:
        method = method_of(run)
        if not method.closed_form and "model" in _takes(type(method)):
            found.setdefault(parameters.values(method)["model"], []).append(run)
    return found


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


def title_of(settings: Settings) -> str:
    """What a run is called: its own name, or where it is the only one of its method the method and its variant.

    >>> title_of(Settings(method="fedavg", set={"model": "cnn"})), title_of(Settings("local", {"model": "cnn"}))
    ('fedavg', 'local-model=cnn')
    """
    if settings.name:
        return settings.name
    asked = [name for name in methods.VARIANTS.get(settings.method, {}) if name in settings.set]
    return "-".join([settings.method, *(_word(name, settings.set[name]) for name in asked)])


def place_of(settings: Settings) -> str:
    """The folder of a run that is the only one of its title and seed."""
    return f"{plain_name(title_of(settings))}-{settings.seed}"


_AROUND = ("clients", "partition", "features")  # settings of which a comparison may have several


def _named(runs: Sequence[Settings], place_of: Callable[[Settings], str]) -> list[tuple[str, str]]:
    """What each run is called, and its folder. Where one stands there already, by what differs from that one."""
    first: dict[str, Settings] = {}
    names = []
    for run in runs:
        title, place = title_of(run), place_of(run)
        other = first.setdefault(place, run)
        if other is not run:
            before = parameters.values(method_of(other))
            after = parameters.values(method_of(run))
            words = [_word(name, value) for name, value in after.items() if before.get(name) != value]
            for name in _AROUND:
                value = getattr(run, name)
                words += [_word(name, value)] if value != getattr(other, name) else []
            title = "-".join([title, *words])
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
    log: Callable[[str], Log] = lambda name: Log(name=name),
) -> None:
    """Run what is not yet in `out`, one folder per run. A method that fails leaves the reason, and the others go on.

    Neighbours with the same data and split share them. Data that cannot be had end a comparison on `one_data_set`; else
    they are one more way to fail. What is to be held against training alone takes the figures from the run of `local`
    before it that is its own, where there is one. `log` gives what is told of the run that is called so.
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
                reply = _run(settings, ready[1], out / folder, progress, beside, log(folder))
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
    del expected["metric"]  # what is shown changes nothing of what was run
    if settings.partition == AUTO:
        del expected["partition"]  # it follows from the data
    stored = result.get("settings", {})
    # None stands for a number that the run found out, but for `limit`, where it is all samples, and no devices.
    said = {name: value for name, value in expected.items() if value is not None or name in ("limit", "devices")}
    same = all(stored.get(name) == value for name, value in said.items())
    return result if same else None


def _run(
    settings: Settings, prepared: Prepared, place: Path, progress: Progress | None, beside: Path | None, log: Log
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
        with log:
            result = execute(settings, name_run, log, prepared=prepared, baseline=baseline, on_start=log.start)
            log.end(result, result.save(place))
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
