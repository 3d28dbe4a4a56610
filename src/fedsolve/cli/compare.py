"""`fedsolve compare`: several methods on the same splits, and one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.options import integers, setting_values, takes_settings
from fedsolve.cli.text import run_line
from fedsolve.cli.waiting import goes_on, waiting, warn
from fedsolve.errors import ParameterError
from fedsolve.study.settings import Option, Settings, assignments

COMMON = (  # settings that all runs of a comparison share
    "data", "label", "client", "person", "drop", "task", "columns", "date_as", "encoding", "limit", "test",
    "min_samples", "skip_broken", "rounds", "participation", "devices", "metric", "device",
)  # fmt: skip


def _help(name: str, option: Option) -> str:
    return "For methods that take several." if name == "rounds" else "As for run."


@takes_settings(COMMON, after="assign", help=_help)
def compare_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results and report.html go.")],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Methods, as for run, or names that --config gives them, separated by commas. Baselines stand beside "
            "them: local, and for methods that train a network fedavg and fedavg-ft, with the same network. Default: "
            "those of --config.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings from a TOML file as for run, where methods, seeds, clients, partition, features and what is "
            "below [set] may be lists, which are sweeps; [methods.NAME] with method and set is a method by a name of "
            "its own, as often as you like. Or from the result.json of a run. Options count before the file.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,2", help="Seeds of splits and draws, separated by commas. Default: 0.", show_default=False
        ),
    ] = None,
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
        bool | None,
        typer.Option(
            "--baselines/--no-baselines",
            help="Run what methods are held against, too, or nothing but the methods named. Default: baselines.",
            show_default=False,
        ),
    ] = None,
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
    fedsolve compare --methods fedhip --set alpha=1,5,20 --clients 10,50 --out sweep;
    fedsolve compare --config study.toml --out study
    """
    from fedsolve import report, tracking
    from fedsolve.metrics.words import check as check_metric
    from fedsolve.study import compare, comparison, sweep

    report.check()
    trackers = [tracking.parse(text) for text in track or ()]
    for tracker in trackers:
        tracker.check()
    given, assigned = setting_values(options), assignments(assign or [])
    lists = {"clients": clients, "partition": partition, "features": features}
    several = {name: text for name, text in lists.items() if text is not None}
    names = [name.strip() for name in (methods or "").split(",") if name.strip()]
    asked = comparison.Comparison(entries=tuple(map(compare.Entry, names)))
    if config is not None:
        asked = comparison.read(config, {**given, **several}, assigned, names)
    if not asked.entries:
        raise ParameterError("a comparison needs methods: --methods afl,fedhip, or a --config that names some")
    base = Settings.of({**asked.settings, **given}, "the command line" if config is None else str(config))
    if base.metric is not None:
        check_metric(base.metric)
    several = {**asked.lists, **several}
    bases = sweep.bases(base, *(several.get(name) for name in lists))
    grid = list(sweep.grid({**asked.assignments, **assigned}, [entry.method for entry in asked.entries]))
    numbers = asked.seeds if seeds is None else integers(seeds, "seeds")
    runs = compare.plans(
        bases, asked.entries, numbers, grid, baselines=asked.baselines if baselines is None else baselines
    )

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
