"""Options of commands from the declared settings, and texts of the command line as values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from fedsolve.errors import DataError, ParameterError
from fedsolve.study import settings
from fedsolve.study.settings import Option, option_name

Command = TypeVar("Command", bound=Callable[..., None])


def takes_settings(
    names: Collection[str] = (),
    *,
    after: str = "",
    help: Callable[[str, Option], str] = lambda name, option: option.help,
) -> Callable[[Command], Command]:
    """Give a command that takes `**values` one option per setting: all of them, or those in `names`.

    They stand behind the parameter called `after`, or first. What was not given on the command line is None, so that
    what a file says is overridden by what was really given.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        *parameters, _ = signature.parameters.values()  # the last is **values
        place = 1 + [each.name for each in parameters].index(after) if after else 0
        declared = settings.options()
        parameters[place:place] = [_parameter(n, declared[n], help(n, declared[n])) for n in names or declared]
        named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        command.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in named} | {"return": None}
        return command

    return decorate


def _parameter(name: str, option: Option, help: str) -> inspect.Parameter:
    names = option_name(name) + (f"/{option_name(f'no_{name}')}" if option.negative else "")
    form = typer.Option(names, metavar=option.metavar, help=help, show_default=False)
    annotation = Annotated[option.kind.option | None, form]  # type: ignore[name-defined]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def setting_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among the options that were really given, as values."""
    declared = settings.options()
    return {name: declared[name].kind.read(value) for name, value in values.items() if value is not None}


def check_place(out: Path) -> None:
    """Refuse a place for results that holds something else, or that cannot be written to."""
    from fedsolve import disk
    from fedsolve.result import replaceable

    disk.recover(out)
    if out.exists() and not replaceable(out):
        raise DataError(f"{out} exists and is not a result of fedsolve; name another place with --out")
    disk.check_writable(out)


def integers(text: str, name: str) -> list[int]:
    """Whole numbers, from a list with commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{name} are whole numbers separated by commas; got {text!r}") from None
