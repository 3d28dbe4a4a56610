"""`fedsolve compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.given import assignments, integers, share_of
from fedsolve.cli.text import run_line
from fedsolve.cli.waiting import goes_on, waiting


def compare_command(
    methods: Annotated[str, typer.Option(metavar="A,B,C", help="Methods, separated by commas. local is always there.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results and report.html go.")],
    seeds: Annotated[str, typer.Option(metavar="0,1,2", help="Seeds of splits and draws, separated by commas.")] = "0",
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter: rounds=20 for all methods that have it, fedhip.alpha=20 for one. Repeat for more.",
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="As for run.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="As for run.", show_default=False)] = None,
    clients: Annotated[int | None, typer.Option(help="As for run.", show_default=False)] = None,
    partition: Annotated[str | None, typer.Option(help="As for run.", show_default=False)] = None,
    test: Annotated[str | None, typer.Option(help="As for run.", show_default=False)] = None,
    min_samples: Annotated[int | None, typer.Option(help="As for run.", show_default=False)] = None,
    features: Annotated[str | None, typer.Option(help="As for run.", show_default=False)] = None,
    skip_broken: Annotated[bool | None, typer.Option("--skip-broken", help="As for run.", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option(help="For methods that take several.", show_default=False)] = None,
    participation: Annotated[float | None, typer.Option(help="As for run.", show_default=False)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but where the report is.")] = False,
) -> None:
    """Run several methods on the same splits and write one page that compares them.

    Results are on disk as they come: a stopped comparison goes on where it was, and one with more methods or seeds runs
    those alone. Example: fedsolve compare --methods afl,fedhip,fedprior --seeds 0,1,2 --out cmp
    """
    from fedsolve import report
    from fedsolve.study import compare
    from fedsolve.study.experiment import Settings

    report.check()
    given = {
        "data": data, "limit": limit, "clients": clients, "partition": partition, "test": share_of(test),
        "min_samples": min_samples, "features": features, "skip_broken": skip_broken, "rounds": rounds,
        "participation": participation,
    }  # fmt: skip
    base = Settings.of({name: value for name, value in given.items() if value is not None}, "the command line")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    runs = compare.plan(base, names, integers(seeds, "seeds"), assignments(assign or []))

    def told(method: str, seed: int, found: Any, done: int, total: int) -> None:
        if not quiet:
            typer.echo(run_line(method, seed, found, done, total))

    with goes_on(), waiting(quiet) as (progress, _):
        compare.compare(runs, out, told, progress)
        page = report.write([out], out / "report.html")
    typer.echo(str(page) if quiet else f"open {page}")
