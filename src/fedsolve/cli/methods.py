"""`fedsolve methods`."""

from __future__ import annotations

from typing import Annotated

import typer


def methods_command(
    name: Annotated[str | None, typer.Argument(help="One method, in full.", show_default=False)] = None,
) -> None:
    """List the methods, or one of them with its parameters, their defaults and meaning."""
    from rich.console import Console
    from rich.table import Table

    from fedsolve import parameters
    from fedsolve.methods import CATALOGUE, method_class

    console = Console(highlight=False)
    if name is None:
        table = Table("method", "what it computes", "rounds", "a client sends", box=None, pad_edge=False)
        for entry in CATALOGUE:
            cls = method_class(entry)
            summary = (cls.__doc__ or "").strip().splitlines()[0]
            table.add_row(entry, summary, str(cls().rounds), cls.sends)
        console.print(table)
        console.print("\nfedsolve methods NAME shows the parameters of one.")
        return
    cls = method_class(name)
    console.print(f"{name}: {(cls.__doc__ or '').strip()}", markup=False)
    console.print(f"\nfrom     {cls.paper}\nrounds   {cls().rounds}\nsends    {cls.sends}", markup=False)
    console.print(f"laws     {', '.join(map(str, cls.laws)) or 'none declared'}\n", markup=False)
    table = Table("--set", "default", "may be", "meaning", box=None, pad_edge=False)
    for parameter, default, domain in parameters.declared(cls):
        table.add_row(parameter, str(default).lower(), domain.describe(), domain.doc)
    console.print(table)
