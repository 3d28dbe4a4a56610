"""`fedsolve run`: one experiment, from options, a file or a checkpoint to a folder of results."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.cli.options import check_named_here, check_place, setting_values, takes_settings
from fedsolve.cli.show import show
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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in --out, bit for bit. It knows its settings.")
    ] = False,
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

    values = _merged(_read_config(config), setting_values(options), str(config))
    check_place(out)
    kept = _checkpoint(out, checkpoint, resume)
    settings = _resumed(kept, values) if kept and resume else Settings.of(values, str(config))
    try:
        with waiting(quiet) as (progress, report):
            result = execute(settings, progress, report, kept, ledger)
    except KeyboardInterrupt:
        if kept is None or not kept.path.is_file():
            raise
        stop = SystemExit(130)
        stop.add_note(f"{_resume_command(settings, kept)} goes on")
        raise stop from None
    saved = result.save(out or _free_place(result))
    if quiet:
        for sentence in result.warnings:
            typer.echo(f"warning: {sentence}", err=True)
        typer.echo(str(saved))
    else:
        show(result, saved)


def _merged(stored: dict[str, Any], chosen: dict[str, Any], source: str) -> dict[str, Any]:
    """The settings of a file, overridden by what was given on the command line or, for a checkpoint, beside it."""
    check_named_here(stored.get("method"), chosen.get("method"), source)
    usual = Settings.of(stored, source)  # refuses what a file may not say
    stale = "method" in chosen and chosen["method"] != usual.method  # these belonged to the file's method
    kept = {name: value for name, value in stored.items() if not (stale and name in ("set", "rounds"))}
    return {**kept, **chosen, "set": {**kept.get("set", {}), **chosen.get("set", {})}}


def _checkpoint(out: Path | None, every: int | None, resume: bool) -> Checkpoint | None:
    if every is None and not resume:
        return None
    if out is None:
        raise ParameterError("--checkpoint and --resume need --out, the folder to keep the state in")
    if every is not None and every < 1:
        raise ParameterError(f"--checkpoint takes a number of rounds of at least 1; got {every}")
    from fedsolve.runtime.checkpoint import Checkpoint

    checkpoint = Checkpoint(out, every or 0, resume)
    return checkpoint if every is not None else replace(checkpoint, every=checkpoint.asked_for()[1])


def _resumed(checkpoint: Checkpoint, values: dict[str, Any]) -> Settings:
    """The settings of a checkpoint; those given beside it must agree."""
    from fedsolve.study.resume import check_same

    source = str(checkpoint.path)
    stored, _ = checkpoint.asked_for()
    settings = Settings.of(_merged(stored, values, source), source)
    if stored:
        check_same(checkpoint, Settings.of(stored, source), settings)
    return settings


def _resume_command(settings: Settings, checkpoint: Checkpoint) -> str:
    method = ["--method", settings.method] if ":" in settings.method else []
    return shlex.join(["fedsolve", "run", "--resume", "--out", str(checkpoint.folder), *method])


def _read_config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import json
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return dict(tomllib.loads(text))
        settings = dict(json.loads(text)["settings"])
        if "data" not in settings:
            raise DataError(
                f"{path} comes from fs.run: it does not say where its data are, so it cannot be run from here"
            )
        return settings
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except DataError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a TOML file of settings, nor the result.json of a run ({error})") from error


def _free_place(result: Result) -> Path:
    """The default place, or the next number behind it if another experiment lies there; the same one is replaced."""
    import json

    from fedsolve.study.experiment import plain_name

    settings = result.settings
    first = Path("runs") / f"{_stem(settings['data'])}-{plain_name(settings['method'])}-{settings['seed']}"
    places = itertools.chain([first], (first.with_name(f"{first.name}-{number}") for number in itertools.count(2)))
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
    from fedsolve.study.experiment import plain_name

    return Path(data).stem if Path(data).suffix.lower() in ENDINGS else plain_name(data)
