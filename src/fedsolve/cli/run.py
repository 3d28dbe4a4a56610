"""`fedsolve run`."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.cli.options import check_place, setting_values, takes_settings
from fedsolve.cli.text import ROWS, gain, percent, size
from fedsolve.cli.waiting import waiting
from fedsolve.errors import DataError, ParameterError
from fedsolve.study.settings import Settings

if TYPE_CHECKING:
    from fedsolve.result import Result
    from fedsolve.runtime.checkpoint import Checkpoint


@takes_settings()
def run_command(
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
    **options: Any,
) -> None:
    """Train a method on a federation: a personal model for each client, figures, and all of it on disk.

    With no options: FedHiP on 20 clients with very different handwritten digits, in a second, without a network.
    """
    from fedsolve.study.experiment import execute

    settings = _with_options(_read_config(config), setting_values(options), str(config))
    check_place(out)
    kept = _checkpoint(out, checkpoint, resume)
    try:
        with waiting(quiet) as (progress, report):
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


def _with_options(values: dict[str, Any], chosen: dict[str, Any], source: str) -> Settings:
    """The settings of a file, overridden by what was given on the command line."""
    parameters = chosen.pop("set", {})
    if "method" in chosen and chosen["method"] != values.get("method", Settings.method):
        for stale in ("set", "rounds"):  # they belonged to the file's method
            values.pop(stale, None)
    settings = Settings.of({**values, **chosen}, source)
    return replace(settings, set={**settings.set, **parameters})


def _checkpoint(out: Path | None, every: int | None, resume: bool) -> Checkpoint | None:
    if every is None and not resume:
        return None
    if out is None:
        raise ParameterError("--checkpoint and --resume need --out, the folder to keep the state in")
    if every is not None and every < 1:
        raise ParameterError(f"--checkpoint takes a number of rounds of at least 1; got {every}")
    from fedsolve.runtime.checkpoint import Checkpoint

    return Checkpoint(out, every or 0, resume)


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
    with_shared = any(c.shared is not None for c in clients.values()) and not _one_model(result.method)
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
        cells = [str(client.train), str(client.test), percent(client.accuracy)]
        for other in [client.alone] * with_alone + [client.shared] * with_shared:
            cells += [percent(other), gain(client.accuracy, other)]
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
        f"{result.rounds} round{plural}, {size(result.bytes_up)} up, {size(result.bytes_down)} down, "
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
        table.add_row(title, *map(percent, (accuracy.mean, accuracy.pooled, accuracy.worst_decile)))
    console.print()
    console.print(table)
    console.print()


def _one_model(method: str) -> bool:
    """Whether a method has one model for all, so that a column for the global one would say nothing new."""
    from fedsolve.laws import OneModel
    from fedsolve.methods import method_class

    return any(isinstance(law, OneModel) for law in method_class(method).laws)
