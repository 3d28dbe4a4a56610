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
from fedsolve.experiment import Prepared, Settings, execute, method_of, prepare
from fedsolve.report import FAILURE
from fedsolve.runtime.loop import Progress

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
            takes = {each for each, _, _ in parameters.declared(methods.method_class(name))}
            rounds = base.rounds if "rounds" in takes else None
            run = replace(base, method=name, set=settings[name], seed=seed, rounds=rounds, alone=False)
            method_of(run)  # refuses wrong parameters before anything runs
            runs.append(run)
    return runs


def _own(name: str, wanted: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    takes = {each for each, _, _ in parameters.declared(methods.method_class(name))}
    own = {key: value for key, value in given.items() if "." not in key and key in takes}
    return own | {key.rpartition(".")[2]: value for key, value in given.items() if key.rpartition(".")[0] == name}


def compare(runs: Sequence[Settings], out: Path, told: Told, progress: Progress | None = None) -> None:
    """Run what is not yet in `out`, one folder a run. A method that fails leaves the reason, and the others go on."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    seed, prepared = None, None
    for done, settings in enumerate(runs, 1):
        place = out / f"{settings.method}-{settings.seed}"
        found: Mapping[str, Any] | str | None = finished(place, settings)
        if found is None:
            if prepared is None or seed != settings.seed:
                seed, prepared = settings.seed, prepare(settings, progress)  # once for all methods
            found = _run(settings, prepared, place, progress)
        told(settings.method, settings.seed, found, done, len(runs))


def finished(place: Path, settings: Settings) -> Mapping[str, Any] | None:
    """The result.json in a place, if it is that of these settings."""
    try:
        found: dict[str, Any] = json.loads((place / "result.json").read_text())
    except (OSError, ValueError):
        return None
    method = method_of(settings)
    wanted = {**asdict(settings), "set": parameters.values(method), "rounds": method.rounds}
    had = found.get("settings", {})
    same = all(had.get(name) == value for name, value in wanted.items() if value is not None)
    return found if same else None


def _run(settings: Settings, prepared: Prepared, place: Path, progress: Progress | None) -> Mapping[str, Any] | str:
    said: Progress | None = None
    if progress:
        said = lambda what, *counts: progress(f"{settings.method}, seed {settings.seed}: {what}", *counts)  # noqa: E731
    if (place / FAILURE).is_file() and {path.name for path in place.iterdir()} == {FAILURE}:
        shutil.rmtree(place)  # it is tried again
    try:
        result = execute(settings, said, prepared=prepared)
        result.save(place)
        return result.json()
    except FedsolveError as error:
        place.mkdir(parents=True, exist_ok=True)
        reason = {"method": settings.method, "seed": settings.seed, "reason": str(error)}
        write_bytes(place / FAILURE, json.dumps(reason, indent=1).encode() + b"\n")
        return str(error)
