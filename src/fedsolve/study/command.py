"""The command that an experiment can be run again with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedsolve import methods, parameters
from fedsolve.study.settings import Settings, option_name


def command(settings: Mapping[str, Any]) -> str:
    """The command that runs an experiment again, from its settings as result.json holds them."""
    if "data" not in settings:
        return "(from Python: its data have no name)"
    name = str(settings["method"])
    defaults, words = asdict(Settings()), ["fedsolve", "run", "--method", name]
    # A method of a user's own is not loaded because a file names it: all its parameters are written out.
    method = methods.create(name) if name in methods.CATALOGUE else None
    usual = {} if method is None else parameters.values(method)
    for parameter, value in settings.get("set", {}).items():
        if parameter != "rounds" and (parameter not in usual or value != usual[parameter]):  # rounds has an option
            words += ["--set", f"{parameter}={_text(value)}"]
    for name, value in settings.items():
        if name in ("method", "set") or name not in defaults or value is None or value == defaults[name]:
            continue
        if isinstance(value, bool):
            words.append(option_name(name if value else f"no_{name}"))
        elif name != "rounds" or method is None or value != method.rounds:
            words += [option_name(name), _text(value)]
    return shlex.join(words)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
