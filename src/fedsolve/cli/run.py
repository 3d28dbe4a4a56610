"""`fedsolve run`: one experiment, from options, a file or a checkpoint to a folder of results."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.cli.options import check_place, setting_values, takes_settings
from fedsolve.cli.show import show
from fedsolve.cli.waiting import waiting, warn
from fedsolve.errors import DataError, ParameterError
from fedsolve.study.settings import Settings, read_config

if TYPE_CHECKING:
    from fedsolve.result import Result
    from fedsolve.runtime.checkpoint import Checkpoint


PLACES = Path("runs")  # where results go unless told otherwise


@takes_settings()
def run_command(
    checkpoint: Annotated[
        int | None,
        typer.Option(metavar="N", help="Every N rounds, write all it takes to go on into --out.", show_default=False),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the checkpoint in --out, bit for bit. It knows its settings; files and modules that it "
            "names (--data FILE, --features onnx:FILE, --set model=mynet:net, --method) are given again.",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings from a TOML file, or from the result.json of an earlier run; files and modules that the "
            "latter names are given again, as for --resume.",
        ),
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
            help="Also put every client's reply, or a secure sum of them, into this ledger; see `fedsolve ledger`.",
            show_default=False,
        ),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:WHERE]",
            help="Also keep figures of rounds and result in mlflow, tensorboard or wandb, as in tensorboard:logs. On "
            "this machine, unless WHERE or your environment names a server. Repeat for more.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but where the result is.")] = False,
    **options: Any,
) -> None:
    """Train a method on a federation: a personal model for each client, figures, and all of it on disk.

    With no options: fedprior on 20 clients with very different handwritten digits, in a second, without a network.
    """
    from fedsolve import disk, tracking
    from fedsolve.runtime.drive import together
    from fedsolve.study.experiment import execute

    written = config is not None and config.suffix != ".json"
    values = _merged(read_config(config) if config else {}, setting_values(options), str(config), modules=written)
    trackers = [tracking.parse(text) for text in track or ()]
    check_place(out) if out else disk.check_writable(PLACES / "run")
    kept = _checkpoint(out, checkpoint, resume)
    settings = _resumed(kept, values) if kept and resume else Settings.of(values, str(config))
    try:
        log = tracking.Log(*trackers, name=out.resolve().name if out else _name(asdict(settings)), say=warn)
        with waiting(quiet, settings.metric, emulated=settings.devices is not None) as (progress, line), log:
            result = execute(settings, progress, together(line, log), kept, ledger, on_start=log.start)
            place = out or _free_place(result)
            where = place.absolute()  # asked for before: the folder one is in may be replaced
            saved = result.save(place)
            log.end(result, where)
    except KeyboardInterrupt:
        if kept is None or not kept.path.is_file():
            raise
        stop = SystemExit(130)
        stop.add_note(f"{_resume_command(settings, kept)} goes on")
        raise stop from None
    if quiet:
        for sentence in result.warnings:
            warn(sentence)
        typer.echo(str(saved))
    else:
        show(result, saved)


def _merged(stored: dict[str, Any], chosen: dict[str, Any], source: str, *, modules: bool = False) -> dict[str, Any]:
    """The settings of a file, overridden by what was given on the command line or, for a checkpoint, beside it."""
    if stored:
        from fedsolve.study.resume import check_given

        check_given(stored, chosen, source, modules=modules)
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
    from fedsolve.study.resume import named, words

    method = ["--method", settings.method] if ":" in settings.method else []
    places = words(named(asdict(settings)))
    return shlex.join(["fedsolve", "run", "--resume", "--out", str(checkpoint.folder), *method, *places])


def _free_place(result: Result) -> Path:
    """The default place, or the next number behind it if another experiment lies there; the same one is replaced."""
    from fedsolve.resultfile import read_result

    settings = result.settings
    first = PLACES / _name(settings)
    places = itertools.chain([first], (first.with_name(f"{first.name}-{number}") for number in itertools.count(2)))
    for place in places:
        try:
            if read_result(place / "result.json")["settings"] == settings:
                break
        except DataError:
            if not place.exists():
                break
    return place


def _name(settings: Mapping[str, Any]) -> str:
    """What a run is called: by its data, its method and its seed."""
    from fedsolve.data.catalog import ENDINGS
    from fedsolve.study.experiment import plain_name

    data = settings["data"]
    stem = Path(data).stem if Path(data).suffix.lower() in ENDINGS else plain_name(data)
    return f"{stem}-{plain_name(settings['method'])}-{settings['seed']}"
