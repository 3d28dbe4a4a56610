"""Going on with a run that was stopped: its checkpoint says what it was, and nothing else goes on in its place.

What a checkpoint or a result names is not opened on its word, since somebody else may have written it: files, hub names
and modules are given again by whoever goes on. Plain values, and data sets of the catalogue, are taken from the file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fedsolve import methods, parameters
from fedsolve.data import catalog
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import maps
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.study.experiment import Settings, class_of, method_of
from fedsolve.study.settings import option_name


def check_same(checkpoint: Checkpoint, stored: Settings, settings: Settings) -> None:
    """Refuse settings that are not those that a checkpoint was written with, and name what differs."""
    if stored.method == settings.method:
        before, now = _resolved(stored), _resolved(settings)
    else:
        before, now = {"method": stored.method}, {"method": settings.method}
    differences = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in before | now
        if before.get(name) != now.get(name)
    ]
    if differences:
        raise DataError(
            f"{checkpoint.path} belongs to another run: {'; '.join(differences[:3])}; leave out what differs, or run "
            "anew without --resume"
        )


def _resolved(settings: Settings) -> dict[str, object]:
    """Settings by name, with the values that the method's parameters really have."""
    method = method_of(settings)
    plain = asdict(replace(settings, set={}, rounds=method.rounds))
    del plain["set"], plain["metric"], plain["name"]  # another figure or name may be shown of the same run
    values = {f"set {name}": value for name, value in parameters.values(method).items() if name != "rounds"}
    return plain | values


def check_given(stored: Mapping[str, Any], chosen: Mapping[str, Any], source: str, *, modules: bool = False) -> None:
    """Refuse what only a file names and would be opened: a method, a network, features or data.

    `chosen` are the settings that were given here. With `modules`, what is imported must be given and nothing else: a
    file of settings that a user writes says where data and features are, as a command would.
    """
    method = stored.get("method")
    if isinstance(method, str) and ":" in method and chosen.get("method") is None:
        raise ParameterError(
            f"{source} names the method {method!r}, which is not of the catalogue; if you trust it, give it here as "
            f"well: --method {method}"
        )
    stale = chosen.get("method", method) != method  # the file's method and its parameters are then not used
    texts = named({name: value for name, value in stored.items() if not (stale and name in ("method", "set"))})
    given = {(name,) for name in chosen} | {("set", name) for name in chosen.get("set", {})}
    missing = {key: text for key, text in texts.items() if key not in given and (key[0] == "set" or not modules)}
    if missing:
        raise ParameterError(
            f"{source} names {', '.join(map(repr, missing.values()))}, and nothing is opened because a file names it; "
            f"if that is right, give it here as well: {shlex.join(words(missing))}"
        )


def named(values: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """The settings that name a file, a folder, something on a hub or a module, which using them would open.

    >>> named({"data": "digits", "features": "unit"}), named({"data": "ward.csv", "features": "unit+onnx:net.onnx"})
    ({}, {('data',): 'ward.csv', ('features',): 'unit+onnx:net.onnx'})
    >>> named({"method": "fedavg", "set": {"model": "mynet:net", "lr": 0.1}})
    {('set', 'model'): 'mynet:net'}
    """
    texts: dict[tuple[str, ...], str] = {}
    for name, opens in (("data", lambda text: not catalog.is_name(text)), ("features", maps.opens)):
        if isinstance(values.get(name), str) and opens(values[name]):
            texts[(name,)] = values[name]
    method, chosen = values.get("method", Settings.method), values.get("set", {})
    if isinstance(method, str) and isinstance(chosen, Mapping):
        kinds = methods.classes(method) if method in methods.CATALOGUE else [class_of(method)] if ":" in method else []
        for name, _, domain in (each for kind in kinds for each in parameters.declared(kind)):
            if domain.imports and isinstance(chosen.get(name), str) and domain.imports(chosen[name]):
                texts["set", name] = chosen[name]
    return texts


def words(texts: Mapping[tuple[str, ...], str]) -> list[str]:
    """What `named` gives, as options of the command line.

    >>> words({("data",): "ward.csv", ("set", "model"): "mynet:net"})
    ['--data', 'ward.csv', '--set', 'model=mynet:net']
    """
    pairs = (
        ("--set", f"{key[1]}={text}") if key[0] == "set" else (option_name(key[0]), text) for key, text in texts.items()
    )
    return [word for pair in pairs for word in pair]
