"""`fedsolve methods`: the catalogue, and one method in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedsolve.method import Method


def methods_command(
    name: Annotated[str | None, typer.Argument(help="One method, in full.", show_default=False)] = None,
) -> None:
    """List the methods, or one of them with its parameters, their defaults and meaning."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedsolve import parameters
    from fedsolve.methods import CATALOGUE, classes, method_class
    from fedsolve.study.experiment import class_of

    console = Console(highlight=False)
    if name is None:
        table = Table("method", "what it computes", "rounds", "a client sends", box=None, pad_edge=False)
        for entry in CATALOGUE:
            cls = method_class(entry)
            table.add_row(entry, parameters.summary(cls).splitlines()[0], str(cls().rounds), cls.sends)
        console.print(table)
        console.print("\nfedsolve methods NAME shows the parameters of one.")
        return
    for number, cls in enumerate(classes(name) if name in CATALOGUE else [class_of(name)]):
        console.print("\n" * bool(number) + f"{name}: {parameters.summary(cls)}\n", markup=False)
        facts = Table.grid(padding=(0, 2))
        for title, text in {
            "from": cls.paper,
            "rounds": str(cls().rounds),
            "sends": cls.sends,
            "evaluated": _evaluated(cls),
            "laws": ", ".join(map(str, cls.laws)) or "none declared",
        }.items():
            facts.add_row(title, escape(text))
        console.print(facts)
        console.print()
        table = Table("--set", "default", "may be", "meaning", box=None, pad_edge=False)
        for parameter, default, domain in parameters.declared(cls):
            table.add_row(parameter, str(default).lower(), domain.describe(), domain.doc)
        console.print(table)


def _evaluated(cls: type[Method]) -> str:
    """Which model the accuracies of a run are of."""
    from fedsolve.laws import OneModel
    from fedsolve.method import Method

    if any(isinstance(law, OneModel) for law in cls.laws):
        return "the one global model, on each client's own test samples"
    beside = "" if cls.shared is Method.shared else "; the global model beside it"
    return f"each client's personal model, on its own test samples{beside}"
