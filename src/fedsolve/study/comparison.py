"""A comparison as a file says it: the settings of a run, lists for sweeps, and methods by names of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedsolve.errors import ParameterError, brief, unknown
from fedsolve.parameters import whole
from fedsolve.study.compare import AVERAGES, Entry
from fedsolve.study.resume import check_given
from fedsolve.study.settings import Settings, read_config
from fedsolve.study.sweep import bases, grid

LISTS = ("clients", "partition", "features")  # settings of which a comparison takes several
_OWN = ("methods", "seeds", "baselines")  # what only a comparison has


@dataclass(frozen=True)
class Comparison:
    """What is compared, with values as texts of the command line, where a list has semicolons."""

    entries: tuple[Entry, ...] = ()
    named: Mapping[str, Entry] = field(default_factory=dict)  # of them, those that have names
    seeds: tuple[int, ...] = (0,)
    assignments: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # that all runs share
    baselines: bool = True

    def chosen(self, words: Iterable[str]) -> tuple[Entry, ...]:
        """The methods that are asked for here: by a name that the file gives, or by their own."""
        return tuple(self.named.get(word, Entry(word)) for word in words)


def read(path: Path, given: Mapping[str, Any], assigned: Mapping[str, str], methods: Sequence[str]) -> Comparison:
    """The comparison in a TOML file, or around the run of a result.json.

    `given`, `assigned` and `methods` are what the command line says, which counts before the file; files and modules
    that the file names must be among it, as for a run.
    """
    written = path.suffix != ".json"
    values = read_config(path)
    found = _of(values, str(path)) if written else _around(values)
    kept = found.chosen(methods) if methods else found.entries
    for entry in kept:
        if ":" in entry.method and entry.method not in methods:
            raise ParameterError(
                f"{path} names the method {entry.method!r}, which is not of the catalogue; if you trust it, give it "
                f"here, in place of its name: --methods {entry.method}"
            )
    for entry in (*kept, *map(Entry, ("local", *AVERAGES))):  # what is compared, and what stands beside it
        _check_given(found, entry, given, assigned, str(path), modules=written)
    if not written and methods:  # parameters of the run in the file are its method's
        left = {entry.method for entry in kept}
        own = {key: text for key, text in found.assignments.items() if key.rpartition(".")[0] in left}
        found = replace(found, assignments=own)
    return replace(found, entries=kept)


def _check_given(
    found: Comparison,
    entry: Entry,
    given: Mapping[str, Any],
    assigned: Mapping[str, str],
    source: str,
    *,
    modules: bool,
) -> None:
    """Refuse files and modules that only the file names, value by value where it has lists.

    A module is given here where the command line has its very text: a parameter of the same name may be another's.
    """
    names = [entry.method]
    given_texts = {text for each in grid(assigned, names) for text in each.values()}
    maps = [base.features for base in bases(Settings(), None, None, found.lists.get("features"))]
    for assignments in grid({**found.assignments, **assigned}, names):
        parts = [(*key.rpartition("."), text) for key, text in assignments.items()]
        own = {key: text for whose, _, key, text in parts if not whose}
        own |= {key: text for whose, _, key, text in parts if whose == entry.method} | dict(entry.set)
        here = {key: text for key, text in own.items() if text in given_texts}
        for features in maps:
            stored = {**found.settings, "method": entry.method, "set": own, "features": features}
            check_given(stored, {**given, "method": entry.method, "set": here}, source, modules=modules)


def _of(values: Mapping[str, Any], source: str) -> Comparison:
    """What a file that somebody wrote says."""
    known = [item.name for item in fields(Settings)] + list(_OWN)
    for name in values:
        if name not in known:
            raise unknown(f"setting in {source}:", name, known)
    for one, several in (("method", "methods"), ("seed", "seeds")):
        if one in values and several in values:
            raise ParameterError(f"{source} has {one} and {several}: leave one of them out")
    entries = _entries(values.get("methods", values.get("method", [])), source)
    seeds = values.get("seeds", values.get("seed", [0]))
    seeds = seeds if isinstance(seeds, list) else [seeds]
    table = values.get("set", {})
    if not isinstance(table, Mapping):
        raise ParameterError(f"setting 'set' in {source} must be a table of parameters; got {brief(table)}")
    baselines = values.get("baselines", True)
    if not isinstance(baselines, bool):
        raise ParameterError(f"setting 'baselines' in {source} must be true or false; got {brief(baselines)}")
    decided = ("method", "set", "seed", "alone", "name", *_OWN, *LISTS)
    return Comparison(
        entries=entries,
        named={entry.name: entry for entry in entries if entry.name},
        seeds=tuple(whole(f"seeds in {source}", seed, 0) for seed in seeds),
        assignments=dict(_assignments(table, source)),
        lists={name: _text(values[name], f"{name} in {source}") for name in LISTS if name in values},
        settings={name: value for name, value in values.items() if name not in decided},
        baselines=baselines,
    )


def _around(values: Mapping[str, Any]) -> Comparison:
    """What the run of a result.json was: its data, split, seed and method, whose parameters are its own."""
    settings = Settings.of(dict(values), "the result")
    decided = ("method", "set", "seed", "alone", "name", "rounds", *LISTS)
    return Comparison(
        entries=(Entry(settings.method),),
        seeds=(settings.seed,),
        assignments={f"{settings.method}.{name}": _text(value, name) for name, value in settings.set.items()},
        lists={name: _text(values[name], name) for name in LISTS if values.get(name) is not None},
        settings={name: value for name, value in values.items() if name not in decided and value is not None},
    )


def _entries(value: Any, source: str) -> tuple[Entry, ...]:
    """Methods from a text, a list of texts, or tables by name: [methods.weak] with method, and set if it likes."""
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",") if each.strip()]
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(Entry(each) for each in value)
    if not isinstance(value, Mapping):
        raise ParameterError(f"methods in {source} must be names, or tables by name; got {brief(value)}")
    found = []
    for name, table in value.items():
        where = f"[methods.{name}] in {source}"
        if (
            not isinstance(table, Mapping)
            or table.keys() - {"method", "set"}
            or not isinstance(table.get("method"), str)
        ):
            raise ParameterError(f"{where} must have a method, and may have a table set; got {brief(table)}")
        own = table.get("set", {})
        if not isinstance(own, Mapping) or any(isinstance(each, list | Mapping) for each in own.values()):
            raise ParameterError(f"{where}: set must have one value for each parameter; got {brief(own)}")
        found.append(Entry(table["method"], str(name), {key: _text(each, key) for key, each in own.items()}))
    return tuple(found)


def _assignments(table: Mapping[str, Any], source: str) -> Iterable[tuple[str, str]]:
    """Parameters by name; those of one method stand in a table of its name, or behind its name and a dot."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", _text(each, f"set.{name}.{key} in {source}")) for key, each in value.items())
        else:
            yield str(name), _text(value, f"set.{name} in {source}")


def _text(value: Any, where: str) -> str:
    """A value as a text of the command line; of a list, with a semicolon behind each."""
    if isinstance(value, list) and value and not any(isinstance(each, list) or ";" in str(each) for each in value):
        return "".join(f"{_text(each, where)};" for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ParameterError(f"{where} must be a value or a list of values; got {brief(value)}")
