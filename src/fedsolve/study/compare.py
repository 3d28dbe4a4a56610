"""Several methods on the same data, splits and seeds. Results are on disk as they come; what was stopped goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

from fedsolve import methods, parameters
from fedsolve.codec import write_bytes
from fedsolve.errors import DataError, FedsolveError, ParameterError, unknown
from fedsolve.progress import Progress
from fedsolve.study.experiment import Prepared, Settings, execute, method_of, prepare

FAILURE = "failure.json"  # what a comparison leaves where a method failed
Told: TypeAlias = Callable[[str, int, Mapping[str, Any] | str, int, int], None]
"""Method, seed, its result.json or why it failed, how many are done, of how many."""


def plan(base: Settings, names: Sequence[str], seeds: Sequence[int], given: Mapping[str, str]) -> list[Settings]:
    """The runs of a comparison: every method with every seed, and training alone to compare with.

    `given` holds parameters: "alpha" for every method that has one of that name, "fedhip.alpha" for one method.
    """
    if not names:
        raise ParameterError("a comparison needs at least one method")
    wanted = list(dict.fromkeys(["local", *names]))
    settings = {name: _own(name, wanted, given) for name in wanted}
    taken = {key for own in settings.values() for key in own}
    for key in given:
        method, dot, name = key.rpartition(".")
        if dot and method not in wanted:
            raise unknown("method in --set:", method, wanted)
        if not dot and name not in taken:
            raise ParameterError(f"none of {', '.join(wanted)} has a parameter {name!r}")
    runs = []
    for seed in dict.fromkeys(seeds):
        for name in wanted:
            takes = {each for each, _, _ in parameters.declared(methods.method_class(name, settings[name]))}
            rounds = base.rounds if "rounds" in takes else None
            run = replace(base, method=name, set=settings[name], seed=seed, rounds=rounds, alone=False)
            method_of(run)  # refuses wrong parameters before anything runs
            runs.append(run)
    return runs


def _own(name: str, wanted: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    takes = {each for cls in methods.classes(name) for each, _, _ in parameters.declared(cls)}
    own = {key: value for key, value in given.items() if "." not in key and key in takes}
    return own | {key.rpartition(".")[2]: value for key, value in given.items() if key.rpartition(".")[0] == name}


def place_of(settings: Settings) -> str:
    """The folder of a run, where methods differ in nothing but their names."""
    return f"{settings.method}-{settings.seed}"


def compare(
    runs: Sequence[Settings],
    out: Path,
    told: Told,
    progress: Progress | None = None,
    place_of: Callable[[Settings], str] = place_of,
    *,
    one_data_set: bool = True,
) -> None:
    """Run what is not yet in `out`, one folder a run. A method that fails leaves the reason, and the others go on.

    Neighbours with the same data and split share them. Data that cannot be had end a comparison on `one_data_set`; else
    they are one more way to fail.
    """
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    ready: tuple[object, Prepared] | None = None
    for done, settings in enumerate(runs, 1):
        place = out / place_of(settings)
        found: Mapping[str, Any] | str | None = finished(place, settings)
        if found is None:
            try:
                if ready is None or ready[0] != data_of(settings):
                    ready = (data_of(settings), prepare(settings, progress))
                found = _run(settings, ready[1], place, progress)
            except FedsolveError as error:
                if one_data_set:
                    raise
                found = _failed(settings, place, str(error))
        told(settings.method, settings.seed, found, done, len(runs))


def data_of(settings: Settings) -> Settings:
    """What the data and their split depend on, as settings with everything else at its default."""
    kept = ("data", "limit", "clients", "partition", "test", "min_samples", "features", "skip_broken", "seed")
    return Settings(**{name: getattr(settings, name) for name in kept})


def finished(place: Path, settings: Settings) -> Mapping[str, Any] | None:
    """The result.json in a place, if it is that of these settings."""
    try:
        found: dict[str, Any] = json.loads((place / "result.json").read_text())
    except (OSError, ValueError):
        return None
    method = method_of(settings)
    wanted = {**asdict(settings), "set": parameters.values(method), "rounds": method.rounds}
    had = found.get("settings", {})
    # None stands for a number that the run found out, but for `limit`, where it stands for all samples.
    same = all(had.get(name) == value for name, value in wanted.items() if value is not None or name == "limit")
    return found if same else None


def _run(settings: Settings, prepared: Prepared, place: Path, progress: Progress | None) -> Mapping[str, Any] | str:
    def said(what: str, done: int, total: int) -> None:
        if progress:
            progress(f"{settings.method}, seed {settings.seed}: {what}", done, total)

    if (place / FAILURE).is_file() and {path.name for path in place.iterdir()} == {FAILURE}:
        shutil.rmtree(place)  # it is tried again
    try:
        result = execute(settings, said, prepared=prepared)
        result.save(place)
        return result.json()
    except FedsolveError as error:
        return _failed(settings, place, str(error))
    except Exception as error:  # noqa: BLE001  (a defect of one method is no reason to lose the others)
        return _failed(settings, place, f"{type(error).__name__}: {error}")


def _failed(settings: Settings, place: Path, reason: str) -> str:
    place.mkdir(parents=True, exist_ok=True)
    said = {"method": settings.method, "seed": settings.seed, "reason": reason}
    write_bytes(place / FAILURE, json.dumps(said, indent=1).encode() + b"\n")
    return reason
