"""`fedsolve compare`: several methods on the same splits, and one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.options import integers, setting_values, takes_settings
from fedsolve.cli.text import run_line
from fedsolve.cli.waiting import goes_on, waiting, warn
from fedsolve.study.settings import Option, Settings, assignments

COMMON = (  # settings that all runs of a comparison share
    "data", "label", "client", "person", "drop", "task", "columns", "date_as", "encoding", "limit", "test",
    "min_samples", "skip_broken", "rounds", "participation", "metric", "device",
)  # fmt: skip


def _help(name: str, option: Option) -> str:
    return "For methods that take several." if name == "rounds" else "As for run."


@takes_settings(COMMON, after="assign", help=_help)
def compare_command(
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Methods, as for run, separated by commas. Baselines stand beside them: local, and for methods that "
            "train a network fedavg and fedavg-ft, with the same network.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results and report.html go.")],
    seeds: Annotated[str, typer.Option(metavar="0,1,2", help="Seeds of splits and draws, separated by commas.")] = "0",
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter: rounds=20 for all methods that have it, fedhip.alpha=20 for one; alpha=1,5,20: each of "
            "them. Repeat for more.",
        ),
    ] = None,
    clients: Annotated[
        str | None, typer.Option(metavar="N,...", help="As for run; several are a sweep.", show_default=False)
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT,...", help="As for run; several, with commas or ;, are a sweep.", show_default=False
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="MAP,...", help="As for run; several, with commas or ;, are a sweep.", show_default=False),
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="Run what methods are held against, too, or nothing but the methods named. Default: baselines.",
            show_default=False,
        ),
    ] = True,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:WHERE]", help="As for run: each run is one of the tracker's.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but where the report is.")] = False,
    **options: Any,
) -> None:
    """Run several methods on the same splits and write one page that compares them.

    Results are on disk as they come: a stopped comparison goes on where it was, and one with more methods or seeds runs
    those alone. Lists are a sweep, every value with every other.

    Examples: fedsolve compare --methods afl,fedhip,fedprior --seeds 0,1,2 --out cmp;
    fedsolve compare --methods fedhip --set alpha=1,5,20 --clients 10,50 --out sweep
    """
    from fedsolve import report, tracking
    from fedsolve.metrics.words import check as check_metric
    from fedsolve.study import compare, sweep

    report.check()
    trackers = [tracking.parse(text) for text in track or ()]
    for tracker in trackers:
        tracker.check()
    base = Settings.of(setting_values(options), "the command line")
    if base.metric is not None:
        check_metric(base.metric)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    grid = list(sweep.grid(assignments(assign or []), names))
    bases = sweep.bases(base, clients, partition, features)
    runs = compare.plans(bases, names, integers(seeds, "seeds"), grid, baselines=baselines)

    def report_run(method: str, seed: int, reply: Any, done: int, total: int) -> None:
        if not quiet:
            typer.echo(run_line(method, seed, reply, done, total, base.metric))

    with goes_on(), waiting(quiet) as (progress, _):
        compare.compare(
            runs, out, report_run, progress, one_data_set=len(bases) == 1,
            log=lambda name: tracking.Log(*trackers, name=name, say=warn),
        )  # fmt: skip
        page = report.write([out], out / "report.html", base.metric)
    for line in () if quiet else report.sentences(report.sections(report.entries([out]), base.metric or "")):
        typer.echo(line)
    typer.echo(str(page) if quiet else f"open {page}")
