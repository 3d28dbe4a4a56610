"""`fedsolve reproduce`: tables and figures of papers, with our values beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.cli.text import duration, run_line
from fedsolve.cli.waiting import goes_on, waiting

if TYPE_CHECKING:
    from fedsolve.reproduce import Recipe


def reproduce_command(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Which table or figure, as in fedhip-2 or afl-figure-3, or all of them: all. Without: the list.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="here: what two cores do in a quarter of an hour; paper: the paper's own settings.")
    ] = "here",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where runs, tables and figures go; with all, one folder for each in it. Default: runs/RECIPE-SCALE.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a results table or figure of a paper, ours beside the paper's values. What is done already is not done again.

    A figure is figure.svg, figure.pdf and figure.csv beside the table of its values.

    Data are looked for in the folder that FEDSOLVE_DATA names. What is missing is said first, and all else is run.
    """
    from fedsolve import disk
    from fedsolve import reproduce as recipes

    if recipe is None:
        for name, title in recipes.summaries():
            typer.echo(f"{name:<18} {title}")
        return
    tables = recipes.chosen(recipe, scale)
    place = out or Path("runs") / f"{recipe}-{scale}"
    disk.check_writable(place / "runs")
    _say_what_is_lacking(tables)

    def report_run(method: str, seed: int, reply: Any, done: int, total: int, left: float) -> None:
        rest = f", about {duration(left)} left" if done < total else ""
        typer.echo(run_line(method, seed, reply, done, total) + rest, err=True)

    with goes_on(), waiting(quiet=False) as (progress, _):
        for number, each in enumerate(tables, 1):
            if recipe == recipes.ALL:
                kind = "table" if each.drawing is None else "figure"
                typer.echo(f"{kind} {number} of {len(tables)}: {each.name}", err=True)
            folder = place / each.name if recipe == recipes.ALL else place
            typer.echo(recipes.reproduce(each, folder, report_run, progress, place / "runs").markdown())
            files = ["table.md", "table.json"]
            if each.drawing is not None:
                files += ["figure.csv", *(["figure.svg", "figure.pdf"] if recipes.drawable() else [])]
            typer.echo(f"saved in {folder}: {', '.join(files)}; runs in {place / 'runs'}", err=True)


def _say_what_is_lacking(tables: list[Recipe]) -> None:
    """Print what is missing for any of the tables, once for all of them and before anything runs."""
    from fedsolve import reproduce as recipes

    needed: dict[str, int] = {}
    for each in tables:
        for reason, count in recipes.lacking(each).items():
            needed[reason] = needed.get(reason, 0) + count
    if any(each.drawing for each in tables) and not recipes.drawable():
        typer.echo(
            "figures are not drawn without matplotlib: pip install 'fedsolve[report]'; their values are.", err=True
        )
    total = sum(len(recipes.distinct(each)) for each in tables)
    for reason, count in needed.items():
        typer.echo(f"{reason}. {count} of {total} runs need it and are left out.", err=True)
