"""The command line: parses and prints. Each command is one call of a library function.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.errors import DataError, FedsolveError, ParameterError

if TYPE_CHECKING:
    from fedsolve.ledger.store import Answer
    from fedsolve.recipes import Recipe
    from fedsolve.result import Result, Round
    from fedsolve.runtime.checkpoint import Checkpoint
    from fedsolve.runtime.loop import Progress, Report

ROWS = 30  # clients shown in a table; the rest is in result.json
PATIENCE = 2.0  # seconds before progress is shown

app = typer.Typer(
    name="fedsolve",
    help="Personalised federated learning that solves instead of descending: one round, exact, whatever the split.",
    epilog="Start with: fedsolve run",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


deploy_app = typer.Typer(
    help="A federation across machines, on Flower: files, a look at what is wrong, a run. See docs/deploy.md.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(deploy_app, name="deploy")


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except FedsolveError as error:
        print(f"fedsolve: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"fedsolve: {error.strerror or error}{where}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # typer turns Ctrl-C into this, without a word
            what = " ".join(getattr(stop, "__notes__", [])) or "nothing was written"
            print(f"fedsolve: stopped; {what}", file=sys.stderr)  # noqa: T201
        raise


def _version(wanted: bool) -> None:
    if wanted:
        from fedsolve import __version__

        typer.echo(f"fedsolve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# Options without a value stay None, so that a --config file is overridden by what was really given.
@app.command("run")
def run_command(
    method: Annotated[
        str | None, typer.Option(help="See `fedsolve methods`. Default: fedhip.", show_default=False)
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A parameter of the method, as in --set alpha=20. Repeat for more."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="digits (embedded, the default), synthetic:A,B, mnist, fashion-mnist, cifar10, cifar100, a file (.npz "
            "with x and y, .csv or .parquet with a column y or label), a folder of pictures (one folder a "
            "class), or hf:NAME.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Take only N of the samples, drawn by the seed; an official test set stays whole. Default: all.",
            show_default=False,
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="How many clients share the data. Default: 20.", show_default=False)
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="iid, dirichlet:A (small A: very different clients), classes:C, shards:S, power-law, or by-client "
            "(the column `client` of the data). Default: dirichlet:0.1.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            help="A share of each client's own data (default: 0.2); official: the data's own test set, dealt out in "
            "the clients' class proportions; global: all of it for every client.",
            show_default=False,
        ),
    ] = None,
    min_samples: Annotated[
        int | None,
        typer.Option(help="Clients with fewer samples get some from the largest. Default: 2.", show_default=False),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="The feature map, the same for all clients: identity (the default), unit, ones, "
            "random:SIZE,ACTIVATION,SEED; for pictures a frozen network: onnx:FILE, hf:NAME-OR-FOLDER, torch:FILE, "
            "efficientnet-lite0; or several joined by +.",
            show_default=False,
        ),
    ] = None,
    skip_broken: Annotated[
        bool | None,
        typer.Option("--skip-broken", help="Leave out pictures that cannot be read.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides the split and all draws. Default: 0.", show_default=False)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="For methods that take several. Default: the method's own.", show_default=False)
    ] = None,
    participation: Annotated[
        float | None,
        typer.Option(help="Share of the clients that take part in a round. Default: 1.", show_default=False),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            help="local, the default: all clients in this process; flower: through Flower's apps, on its simulation "
            "engine. For machines of their own see `fedsolve deploy`.",
            show_default=False,
        ),
    ] = None,
    alone: Annotated[
        bool | None,
        typer.Option(
            "--alone/--no-alone",
            help="Also train every client alone, to compare. Default: alone, where that is closed form.",
            show_default=False,
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Evaluate every N rounds, and after the last. Default: 1.", show_default=False),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(metavar="N", help="Every N rounds, write all it takes to go on into --out.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out, bit for bit.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings from a TOML file, or from the result.json of an earlier run."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where results and models go. Default: runs/DATA-METHOD-SEED.", show_default=False
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also put every client's reply into this ledger; see `fedsolve ledger`.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but where the result is.")] = False,
) -> None:
    """Train a method on a federation: a personal model for each client, figures, and all of it on disk.

    With no options: FedHiP on 20 clients with very different handwritten digits, in a second, without a network.
    """
    from fedsolve.experiment import Settings, execute
    from fedsolve.result import replaceable

    values = _read_config(config)
    given = {
        "method": method, "data": data, "limit": limit, "clients": clients, "partition": partition,
        "test": _share(test), "min_samples": min_samples, "features": features, "seed": seed, "rounds": rounds,
        "participation": participation, "runtime": runtime, "alone": alone, "skip_broken": skip_broken,
        "eval_every": eval_every,
    }  # fmt: skip
    if method is not None and method != values.get("method", Settings.method):
        for stale in ("set", "rounds"):  # they belonged to the file's method
            values.pop(stale, None)
    values |= {name: value for name, value in given.items() if value is not None}
    settings = Settings.of(values, str(config))
    settings = replace(settings, set={**settings.set, **_assignments(assign or [])})
    if out is not None and out.exists() and not replaceable(out):
        raise DataError(f"{out} exists and is not a result of fedsolve; name another place with --out")
    kept = _checkpoint(out, checkpoint, resume)
    try:
        with _progress(quiet) as (progress, report):
            result = execute(settings, progress, report, kept, ledger)
    except KeyboardInterrupt:
        if kept is None or not kept.path.is_file():
            raise
        stop = SystemExit(130)
        stop.add_note("the same command with --resume goes on")
        raise stop from None
    saved = result.save(out or _free_place(result))
    if quiet:
        typer.echo(str(saved))
    else:
        _show(result, saved)


@app.command("methods")
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
    console.print(f"laws     {', '.join(sorted(cls.laws)) or 'none declared'}\n", markup=False)
    table = Table("--set", "default", "may be", "meaning", box=None, pad_edge=False)
    for parameter, default, domain in parameters.declared(cls):
        table.add_row(parameter, str(default).lower(), domain.describe(), domain.doc)
    console.print(table)


@app.command("predict")
def predict_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file below models/ of a run.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            help=".npz with x, .csv or .parquet, or a folder of pictures. Labels that it holds are compared.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=".csv with a line a sample, or .npz with `label` and `scores`.", show_default=False
        ),
    ] = None,
    features: Annotated[
        str,
        typer.Option(
            help="Where the model's backbone is on this machine, as in onnx:FILE. Default: where it was in training.",
            show_default=False,
        ),
    ] = "",
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out pictures that cannot be read.")] = False,
) -> None:
    """Predict with a saved model: the class of each sample, and the accuracy where the file has labels."""
    from fedsolve.predict import predict_file, write_predictions

    with _progress(quiet=False) as (progress, _):
        found = predict_file(model, data, features=features, skip_broken=skip_broken, progress=progress)
    if out is not None:
        write_predictions(found, out)
        typer.echo(f"{len(found.labels)} predictions in {out}")
    else:
        for row, name in enumerate(found.names):
            typer.echo(f"{found.files[row]}: {name}" if found.files else name)
    if found.accuracy is not None:
        typer.echo(f"accuracy {found.accuracy:.4f} on {len(found.labels)} samples", err=out is None)


@app.command("compare")
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
    from fedsolve import compare, report
    from fedsolve.experiment import Settings

    report.check()
    given = {
        "data": data, "limit": limit, "clients": clients, "partition": partition, "test": _share(test),
        "min_samples": min_samples, "features": features, "skip_broken": skip_broken, "rounds": rounds,
        "participation": participation,
    }  # fmt: skip
    base = Settings.of({name: value for name, value in given.items() if value is not None}, "the command line")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    runs = compare.plan(base, names, _integers(seeds, "seeds"), _assignments(assign or []))

    def told(method: str, seed: int, found: Any, done: int, total: int) -> None:
        if not quiet:
            said = f"failed: {found}" if isinstance(found, str) else _run_in_short(found)
            typer.echo(f"{done:>{len(str(total))}} of {total}  {method:<12} seed {seed}  {said}")

    with _goes_on(), _progress(quiet) as (progress, _):
        compare.compare(runs, out, told, progress)
        page = report.write([out], out / "report.html")
    typer.echo(str(page) if quiet else f"open {page}")


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results of run or compare.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page. Default: report.html in the first folder.", show_default=False),
    ] = None,
) -> None:
    """Write report.html from results already on disk. Nothing is computed again; the page needs no network."""
    from fedsolve import report

    typer.echo(f"open {report.write(folders, out or folders[0] / 'report.html')}")


@app.command("reproduce")
def reproduce_command(
    recipe: Annotated[
        str | None,
        typer.Argument(help="Which table, as in fedhip-2, or all of them: all. Without: the list.", show_default=False),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="here: what two cores do in a quarter of an hour; paper: the paper's own settings.")
    ] = "here",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where runs and tables go; with all, a folder a table in it. Default: runs/RECIPE-SCALE.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a results table of a paper and put the paper's figures beside ours. What is done already is not done again.

    Data are looked for in the folder that FEDSOLVE_DATA names. What is missing is said first, and all else is run.
    """
    from fedsolve import recipes

    if recipe is None:
        for name, title in recipes.summaries():
            typer.echo(f"{name:<12} {title}")
        return
    wanted = recipes.chosen(recipe, scale)
    place = out or Path("runs") / f"{recipe}-{scale}"
    place.mkdir(parents=True, exist_ok=True)
    _say_what_is_lacking(wanted)

    def told(method: str, seed: int, found: Any, done: int, total: int, left: float) -> None:
        said = f"failed: {found}" if isinstance(found, str) else _run_in_short(found)
        rest = f", about {_duration(left)} left" if done < total else ""
        typer.echo(f"{done:>{len(str(total))}} of {total}  {method:<12} seed {seed}  {said}{rest}", err=True)

    with _goes_on(), _progress(quiet=False) as (progress, _):
        for number, each in enumerate(wanted, 1):
            if recipe == recipes.ALL:
                typer.echo(f"table {number} of {len(wanted)}: {each.name}", err=True)
            own = place / each.name if recipe == recipes.ALL else place
            typer.echo(recipes.reproduce(each, own, told, progress, place / "runs").markdown())
            typer.echo(f"saved in {own}: table.md, table.json; runs in {place / 'runs'}", err=True)


def _say_what_is_lacking(wanted: list[Recipe]) -> None:
    """Once for all tables, before anything runs."""
    from fedsolve import recipes

    needed: dict[str, int] = {}
    for each in wanted:
        for reason, count in recipes.lacking(each).items():
            needed[reason] = needed.get(reason, 0) + count
    total = sum(len(recipes.distinct(each)) for each in wanted)
    for reason, count in needed.items():
        typer.echo(f"{reason}. {count} of {total} runs need it and are left out.", err=True)


@contextmanager
def _goes_on() -> Iterator[None]:
    """Ctrl-C loses the run at hand alone: say so."""
    try:
        yield
    except KeyboardInterrupt:
        stop = SystemExit(130)
        stop.add_note("the same command goes on with the run that was stopped")
        raise stop from None


@app.command("export")
def export_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file below models/ of a run.")],
    to: Annotated[str, typer.Option(help="onnx: one file from raw inputs to scores, for any runtime.")] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: beside the model, ending in .onnx.", show_default=False),
    ] = None,
) -> None:
    """Write a linear model, with its feature map and its backbone where that is ONNX, for programs without fedsolve.

    Input "x" holds numbers, or pictures as bytes; outputs are "scores" and "label". In Python, fs.estimator(FILE) gives
    a scikit-learn classifier.
    """
    from fedsolve.errors import unknown
    from fedsolve.export import to_onnx

    if to != "onnx":
        raise unknown("format", to, ("onnx",))
    typer.echo(f"written {to_onnx(model, out or model.with_suffix('.onnx'))}")


def _integers(text: str, name: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{name} are whole numbers separated by commas; got {text!r}") from None


def _run_in_short(found: Any) -> str:
    accuracy = found["accuracy"]
    sent = found["bytes"]["up"] + found["bytes"]["down"]
    return (
        f"mean {_percent(accuracy['mean'])}  pooled {_percent(accuracy['pooled'])}  worst tenth "
        f"{_percent(accuracy['worst_decile'])}  {_size(sent)}  {found['seconds']['total']:.1f} s"
    )


def _checkpoint(out: Path | None, every: int | None, resume: bool) -> Checkpoint | None:
    if every is None and not resume:
        return None
    if out is None:
        raise ParameterError("--checkpoint and --resume need --out, the folder to keep the state in")
    if every is not None and every < 1:
        raise ParameterError(f"--checkpoint takes a number of rounds of at least 1; got {every}")
    from fedsolve.runtime.checkpoint import Checkpoint

    return Checkpoint(out, every or 0, resume)


@deploy_app.command("init")
def deploy_init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[str, typer.Option(help="The names of the sites, as in ward-a,ward-b,ward-c.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites reach the server.")],
) -> None:
    """Write a federation's files: server, sites, Flower app, trial certificates, key pairs, start scripts, proxy."""
    from fedsolve import deploy

    deploy.init(folder, [name.strip() for name in sites.split(",") if name.strip()], address)
    typer.echo(
        f"{folder}/server is the server's, {folder}/sites/NAME each site's; {folder}/README.txt says what is next"
    )


@deploy_app.command("check")
def deploy_check_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder, as in trial/sites/ward-a.")],
    features: Annotated[
        str, typer.Option(help="Also try this feature map on the site's data.", show_default=False)
    ] = "",
) -> None:
    """Say what is missing or wrong at a site: version, key, certificate, server, port, data, features, state."""
    from fedsolve import deploy

    wrong = 0
    for finding in deploy.check(folder, features=features):
        wrong += not finding.fine
        typer.echo(f"{'ok   ' if finding.fine else 'WRONG'} {finding.what}: {finding.words}")
    if wrong:
        raise typer.Exit(1)


@deploy_app.command("run")
def deploy_run_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder, as in trial/server.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where figures and the global model go.")],
    method: Annotated[str, typer.Option(help="See `fedsolve methods`.")] = "fedhip",
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method. Repeat for more."),
    ] = None,
    features: Annotated[str, typer.Option(help="The feature map, the same at all sites.")] = "identity",
    test: Annotated[str, typer.Option(help="The share of its data that each site tests on, or official.")] = "0.2",
    seed: Annotated[int, typer.Option(help="Decides the sites' splits and all draws.")] = 0,
    rounds: Annotated[int | None, typer.Option(help="For methods that take several.", show_default=False)] = None,
    participation: Annotated[float, typer.Option(help="Share of the sites that take part in a round.")] = 1.0,
    min_clients: Annotated[int, typer.Option(help="The run stops when fewer sites answer.")] = 2,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the sites at the start.")] = 120.0,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer before a site is left out.")] = 1800.0,
    eval_every: Annotated[
        int, typer.Option(metavar="N", help="Evaluate every N rounds; 0: after the last. It costs a message a site.")
    ] = 0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also put every site's reply into this ledger; see `fedsolve ledger`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a method on the sites. Figures and the global model come here; personal models stay at the sites."""
    from fedsolve import deploy, parameters
    from fedsolve.experiment import Settings, method_of
    from fedsolve.result import Result, replaceable
    from fedsolve.runtime.sites import Job, Rules

    if out.exists() and not replaceable(out):
        raise DataError(f"{out} exists and is not a result of fedsolve; name another place with --out")
    made = method_of(Settings(method=method, set=_assignments(assign or []), rounds=rounds))
    share = _share(test)
    job = Job(method, parameters.values(made), features, seed, 0.2 if share is None else share)
    rules = Rules((), min_clients, wait, timeout, participation, eval_every)
    _show_sites(Result.load(deploy.run(folder, job, rules, out, typer.echo, ledger)), out)


def _show_sites(result: Result, saved: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("site", "train", "test", "accuracy", "global", box=None, pad_edge=False)
    for name, site in result.clients.items():
        table.add_row(name, str(site.train), str(site.test), _percent(site.accuracy), _percent(site.shared))
    console.print(table)
    for name, reason in result.data.get("left_out", {}).items():
        console.print(f"left out: {name}: {reason}", markup=False, soft_wrap=True)
    console.print(
        f"{result.rounds} round{'s' * (result.rounds != 1)}, {_size(result.bytes_up)} up, "
        f"{_size(result.bytes_down)} down, {result.seconds.total:.1f} s; saved in {saved}",
        markup=False,
        soft_wrap=True,
    )
    console.print("each site's model is at the site, in its folder state/models", markup=False)


def _share(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _assignments(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ParameterError(f"--set takes NAME=VALUE, as in --set alpha=20; got {text!r}")
        found[name.strip()] = value
    return found


def _read_config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import json
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return dict(tomllib.loads(text))
        found = dict(json.loads(text)["settings"])
        if "data" not in found:
            raise DataError(
                f"{path} comes from fs.run: it does not say where its data are, so it cannot be run from here"
            )
        return found
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except DataError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a TOML file of settings, nor the result.json of a run ({error})") from error


def _free_place(result: Result) -> Path:
    """The default place, or the next number behind it if another experiment lies there; the same one is replaced."""
    import json

    settings = result.settings
    wanted = Path("runs") / f"{_stem(settings['data'])}-{settings['method']}-{settings['seed']}"
    places = itertools.chain([wanted], (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2)))
    for place in places:
        try:
            if json.loads((place / "result.json").read_text())["settings"] == settings:
                break
        except (OSError, ValueError, KeyError, TypeError):
            if not place.exists():
                break
    return place


def _stem(data: str) -> str:
    from fedsolve.data.catalog import ENDINGS

    return Path(data).stem if Path(data).suffix.lower() in ENDINGS else re.sub(r"[^\w.]+", "-", data)


@contextmanager
def _progress(quiet: bool) -> Iterator[tuple[Progress | None, Report | None]]:
    """A bar on a terminal, a line now and then in a log; neither before there is something to wait for.

    And a line for each round, of methods that take several.
    """
    if quiet:
        yield None, None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    started = time.monotonic()
    bar = Bar(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True
    )
    terminal, task, last = sys.stdout.isatty(), bar.add_task("", visible=False), started

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - started < PATIENCE:
            return
        if terminal:
            bar.start()
            bar.update(task, description=what, completed=done, total=total, visible=True)
        elif now - last >= 5 * PATIENCE:
            last = now
            typer.echo(f"{what}: {done} of {total}, {now - started:.0f} s", err=True)

    def over(line: Round, rounds: int) -> None:
        nonlocal last
        if rounds == 1 or time.monotonic() - started < PATIENCE:
            return
        last = time.monotonic()
        text = _round_line(line, rounds)
        if terminal:
            bar.console.print(text, highlight=False)
        else:
            typer.echo(text, err=True)

    try:
        yield report, over
    finally:
        if bar.live.is_started:
            bar.stop()


def _round_line(line: Round, rounds: int) -> str:
    parts = [f"accuracy {_percent(line.accuracy)}"] * (line.accuracy is not None)
    parts += [] if line.loss is None else [f"loss {line.loss:.4f}"]
    parts += [f"{line.seconds:.1f} s", f"{_size(line.bytes_up)} up", f"{_size(line.bytes_down)} down"]
    parts += [f"{_duration(line.seconds * (rounds - line.round))} left"]
    return f"round {line.round} of {rounds}: {', '.join(parts)}"


def _show(result: Result, saved: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    settings = result.settings
    console.print(
        f"[bold]{settings['method']}[/bold] on {escape(settings['data'])}: {settings['clients']} clients, split "
        f"{settings['partition']}, seed {settings['seed']}"
    )
    clients = result.clients
    with_alone = any(c.alone is not None for c in clients.values())
    with_shared = any(c.shared is not None for c in clients.values()) and "one-model" not in _laws(result.method)
    chosen = sorted({name for c in clients.values() for name in c.chosen})
    table = Table(box=None, pad_edge=False)
    heads = ["train", "test", "accuracy"]
    heads += ["alone", "gain"] * with_alone + ["global", "gain"] * with_shared + chosen
    table.add_column("client")
    for head in heads:
        table.add_column(head, justify="right")
    names = sorted(clients, key=lambda n: (clients[n].accuracy is None, clients[n].accuracy or 0.0))
    shown = list(clients) if len(clients) <= ROWS else names[: ROWS // 2] + names[-ROWS // 2 :]
    for name in shown:
        client = clients[name]
        cells = [str(client.train), str(client.test), _percent(client.accuracy)]
        for other in [client.alone] * with_alone + [client.shared] * with_shared:
            cells += [_percent(other), _gain(client.accuracy, other)]
        cells += [f"{client.chosen[key]:.3g}" if key in client.chosen else "" for key in chosen]
        table.add_row(escape(name), *cells)
    console.print(table)
    if len(shown) < len(clients):
        console.print(f"(the {ROWS // 2} worst and best of {len(clients)} clients; all are in result.json)")
    _totals(console, result, with_alone, with_shared)
    seconds, moved = result.seconds, result.data.get("moved", 0)
    if moved:
        console.print(f"{moved} samples were moved from the largest clients to those with too few")
    skipped = result.data.get("skipped", [])
    if skipped:
        console.print(
            f"{len(skipped)} pictures that cannot be read were left out: {', '.join(skipped[:10])}", markup=False
        )
    missing = result.history[-1].missing if result.history else ()
    if missing:
        console.print(f"not part of the last round: {', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''}")
    plural = "" if result.rounds == 1 else "s"
    console.print(
        f"{result.rounds} round{plural}, {_size(result.bytes_up)} up, {_size(result.bytes_down)} down, "
        f"{seconds.total:.2f} s"
    )
    example = next(iter(result.models), None)
    files = (
        f"result.json, state.safetensors, models/ ({len(result.models)} personal{', 1 global' * bool(result.shared)})"
    )
    console.print(f"saved in [bold]{escape(str(saved))}[/bold]: {files}", soft_wrap=True)
    if example:
        command = f"try: fedsolve predict {saved}/models/{example}.safetensors --data FILE"
        console.print(command, soft_wrap=True, markup=False)


def _totals(console: Any, result: Result, with_alone: bool, with_shared: bool) -> None:
    from rich.table import Table

    from fedsolve.result import Accuracy

    rows = [(result.method, result.accuracy)]
    others = [("training alone", "alone")] * with_alone + [("one global model", "shared")] * with_shared
    rows += [(title, Accuracy.of(result.figures(which))) for title, which in others]
    table = Table("", "mean over clients", "all test samples", "worst tenth", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, accuracy in rows:
        table.add_row(title, *map(_percent, (accuracy.mean, accuracy.pooled, accuracy.worst_decile)))
    console.print()
    console.print(table)
    console.print()


def _laws(method: str) -> frozenset[str]:
    from fedsolve.methods import method_class

    return method_class(method).laws


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _gain(mine: float | None, other: float | None) -> str:
    if mine is None or other is None:
        return ""
    points = 100 * (mine - other)
    colour = "green" if points > 0.05 else "red" if points < -0.05 else "dim"
    return f"[{colour}]{points:+.1f}[/{colour}]"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


# --- the ledger of a closed-form federation ---

ledger_app = typer.Typer(
    name="ledger",
    help="The durable record of a closed-form federation: late clients, exact removal, refusal of what cannot be.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(ledger_app)

_LEDGER = typer.Argument(metavar="LEDGER", help="The file of the ledger.", show_default=False)
_DATA = typer.Option(
    metavar="DATA",
    help="The site's data: a file, a folder of pictures, or any --data of `fedsolve run`. With a column `client`, the "
    "client's own rows are taken.",
    show_default=False,
)
_CLIENT = typer.Option(metavar="NAME", help="The name of the client.", show_default=False)
_FEATURES = typer.Option(
    help="Where the feature map's network is on this machine, as in onnx:FILE. Default: where the ledger says.",
    show_default=False,
)


@ledger_app.command("create")
def ledger_create(
    path: Annotated[Path, _LEDGER],
    method: Annotated[str, typer.Option(help="afl, fedhip, apfl or fedprior.")] = "fedhip",
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method. Repeat for more."),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            metavar="DATA", help="Take classes, names and the shape of inputs from these data.", show_default=False
        ),
    ] = "",
    classes: Annotated[int, typer.Option(help="How many classes, without --like.", show_default=False)] = 0,
    inputs: Annotated[
        str, typer.Option(metavar="SHAPE", help="The shape of an input, without --like: 64, or 28x28.")
    ] = "",
    features: Annotated[str, typer.Option(help="The feature map, as in `fedsolve run`.")] = "identity",
    seed: Annotated[int, typer.Option(help="Decides what the method draws.")] = 0,
    bound: Annotated[
        float | None,
        typer.Option(help="The length that no sample's features exceed; others are refused.", show_default=False),
    ] = None,
    total_only: Annotated[
        bool,
        typer.Option("--total-only", help="Keep no single contributions. Removal then takes the client's file again."),
    ] = False,
) -> None:
    """Make a ledger that nobody is in yet."""
    from fedsolve import methods
    from fedsolve.ledger.site import stated_task, task_of
    from fedsolve.ledger.store import Ledger

    if bool(like) == bool(classes):
        raise ParameterError("ledger create takes --like DATA, or --classes and --inputs")
    task = task_of(like, features) if like else stated_task(classes, inputs, features)
    chosen = methods.create(method, _assignments(assign or []))
    with Ledger.create(path, chosen, task, seed=seed, bound=bound, total_only=total_only) as ledger:
        width, targets = ledger.terms.shape
        typer.echo(f"{path}: {method}, {targets} classes, {width} features of {task.features}")
        typer.echo(f"next: fedsolve ledger invite {path} --out invitation.safetensors, and send it to the sites")


@ledger_app.command("invite")
def ledger_invite(
    path: Annotated[Path, _LEDGER],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file for the sites.", show_default=False)],
) -> None:
    """Write what a site needs to contribute: method, settings, classes, feature map. No data, no statistics."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        ledger.terms.save(out)
    typer.echo(f"{out}: at a site, fedsolve ledger contribute {out} --data FILE --client NAME --out NAME.safetensors")


@ledger_app.command("contribute")
def ledger_contribute(
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION", show_default=False)],
    data: Annotated[str, _DATA],
    client: Annotated[str, _CLIENT],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The contribution, to be sent.", show_default=False)],
    features: Annotated[str, _FEATURES] = "",
) -> None:
    """At a site: its statistics, in a file to be sent to the ledger."""
    from fedsolve.ledger.site import contribute

    with _progress(quiet=False) as (progress, _):
        found = contribute(invitation, data, client, out, features=features, progress=progress)
    typer.echo(f"{out}: {found.samples} samples of {found.classes} classes, {_size(out.stat().st_size)}")


@ledger_app.command("add")
def ledger_add(
    path: Annotated[Path, _LEDGER],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Contributions.", show_default=False)],
) -> None:
    """Take contributions in. One that cannot be is refused with the reason, and the others are taken."""
    from fedsolve.ledger.store import Ledger

    refused: list[Answer] = []
    with Ledger(path) as ledger:
        for answer in ledger.offer_files(files):
            typer.echo(f"{answer.client}: {answer.event}" + (f", {answer.reason}" if answer.reason else ""))
            refused += [answer] if answer.event == "rejected" else []
    if refused:
        raise DataError(f"{len(refused)} of {len(files)} refused; the reasons are in the journal of {path}")


@ledger_app.command("list")
def ledger_list(
    path: Annotated[Path, _LEDGER],
    journal: Annotated[bool, typer.Option("--journal", help="All that happened, refusals too.")] = False,
) -> None:
    """Show who is in, or all that happened."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedsolve.ledger.store import Ledger

    console = Console(highlight=False)
    with Ledger(path) as ledger:
        if journal:
            table = Table("when", "what", "client", "content", "why", box=None, pad_edge=False)
            for event in ledger.journal():
                table.add_row(event.at, event.event, escape(event.client), event.digest[:8], escape(event.reason))
            console.print(table)
            return
        terms, members = ledger.terms, ledger.members()
        rejected = sum(event.event == "rejected" for event in ledger.journal())
        table = Table("client", "samples", "classes", "bytes", "came", "content", box=None, pad_edge=False)
        for member in members:
            cells = (str(member.samples), str(member.classes), _size(member.bytes), member.at, member.digest[:8])
            table.add_row(escape(member.client), *cells)
    console.print(table)
    kept = ", only the total is kept" if ledger.total_only else ""
    samples = sum(member.samples for member in members)
    console.print(
        f"\n{terms.method.name}: {len(members)} clients, {samples} samples, {rejected} refused{kept}\n"
        f"features: {terms.task.described}" + (f", at most {terms.bound:g} long" if terms.bound else ""),
        markup=False,
        soft_wrap=True,
    )


@ledger_app.command("remove")
def ledger_remove(
    path: Annotated[Path, _LEDGER],
    client: Annotated[str, typer.Argument(metavar="CLIENT", show_default=False)],
    contribution: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What it contributed, where only the total is kept.", show_default=False),
    ] = None,
) -> None:
    """Take a client out, exactly: the model is then that of a federation that never had it."""
    from fedsolve.ledger.contribution import load_contribution
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        given = load_contribution(contribution, ledger.terms) if contribution else None
        if ledger.total_only and given is None:
            raise DataError(
                f"{path} keeps only the total: to take {client!r} out, its contribution is needed again; ask it for "
                "the file and give it with --contribution FILE"
            )
        ledger.remove(client, given)
        left = len(ledger.members())
    typer.echo(f"{client} is out; {left} clients are in. Models made before still know it: solve again")


@ledger_app.command("solve")
def ledger_solve(
    path: Annotated[Path, _LEDGER],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model, state and message go.", show_default=False)],
) -> None:
    """Write the exact model of those who are in, and the message from which each site makes its own."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        solved = ledger.solve()
    solved.save(out)
    typer.echo(
        f"{len(solved.digests)} clients, {solved.samples} samples: {out}/models/global.safetensors, state.safetensors"
    )
    typer.echo(f"for the sites: {out}/message.safetensors; there, fedsolve ledger personal message.safetensors ...")


@ledger_app.command("personal")
def ledger_personal(
    message: Annotated[Path, typer.Argument(metavar="MESSAGE", help="From `ledger solve`.", show_default=False)],
    data: Annotated[str, _DATA],
    client: Annotated[str, _CLIENT],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The client's model.", show_default=False)],
    contribution: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What it sent, if that was made on another machine.", show_default=False),
    ] = None,
    features: Annotated[str, _FEATURES] = "",
) -> None:
    """At a site: its own model, from its data and the federation's message."""
    from fedsolve.ledger.site import personal

    with _progress(quiet=False) as (progress, _):
        made = personal(message, data, client, contribution=contribution, features=features, progress=progress)
    made.model.save(out)
    typer.echo(f"{out}: the model of {client}, whose data are {'' if made.counted else 'not '}in the federation's sum")


@ledger_app.command("verify")
def ledger_verify(path: Annotated[Path, _LEDGER]) -> None:
    """Check the file, every contribution, and the total against the sum of its parts."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        found = ledger.verify()
    if found.faults:
        raise DataError(f"{path}: {'; '.join(found.faults)}")
    drift = "only the total is kept: nothing to sum again" if found.drift is None else f"drift {found.drift:.1e}"
    typer.echo(f"{path} is whole: {found.members} clients, {found.samples} samples, {drift}")


@ledger_app.command("influence")
def ledger_influence(
    path: Annotated[Path, _LEDGER],
    top: Annotated[int, typer.Option(help="How many clients to show.")] = ROWS,
) -> None:
    """Show what each client does to the predictions of all: who moves them, who harms, who does not fit."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedsolve.ledger.influence import SUSPECT
    from fedsolve.ledger.store import Ledger

    console = Console(highlight=False)
    with Ledger(path) as ledger:
        found = ledger.influence()
    table = Table(box=None, pad_edge=False)
    table.add_column("client")
    for head in ("samples", "moves", "harm", "misfit", "length", "suspicion"):
        table.add_column(head, justify="right")
    for each in found[:top]:
        cells = (f"{each.moved:.3f}", f"{each.harm:+.2e}", f"{each.misfit:.3f}", f"{each.length:.2f}")
        mark = f"[red]{each.suspicion:.1f}[/red]" if each.suspicion >= SUSPECT else f"{each.suspicion:.1f}"
        table.add_row(escape(each.client), str(each.samples), *cells, mark)
    console.print(table)
    console.print(
        "\nmoves: how far everybody's scores move without it. harm: how much less the others would err without it, on "
        "data their model never saw (negative: it helps). misfit: its own error by the model of the others (1: they "
        "know nothing of it; above: they contradict its labels). length: of its features, the median client's is 1. "
        f"suspicion: how many spreads misfit or length lie from the median client's; from {SUSPECT:g} on, look closer. "
        f"An honest client can be unusual, too. `fedsolve ledger remove {path} CLIENT` takes one out.",
        markup=False,
    )
