"""What is shown while somebody waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from fedsolve.cli.text import duration, size

if TYPE_CHECKING:
    from fedsolve.progress import Progress
    from fedsolve.result import Round
    from fedsolve.runtime.drive import OnRound

PATIENCE = 2.0  # seconds before progress is shown


@contextmanager
def waiting(
    quiet: bool, metric: str | None = None, *, emulated: bool = False
) -> Iterator[tuple[Progress | None, OnRound | None]]:
    """A bar on a terminal, a line now and then in a log; neither before there is something to wait for.

    And a line for each round, of methods that take several, with a `metric`: accuracy or rmse, if none is named. Where
    the seconds of rounds are `emulated`, it says so, and those left are told by the time that rounds really take.
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
    before = started  # when the last round was over

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
        nonlocal last, before
        now = time.monotonic()
        taken, before = now - before, now
        if rounds == 1 or now - started < PATIENCE:
            return
        last = now
        text = _round_line(line, rounds, metric, taken if emulated else None)
        if terminal:
            bar.console.print(text, highlight=False)
        else:
            typer.echo(text, err=True)

    try:
        yield report, over
    finally:
        if bar.live.is_started:
            bar.stop()


def warn(sentence: str) -> None:
    """Say what not to trust, apart from what is printed for others to read."""
    typer.echo(f"warning: {sentence}", err=True)


@contextmanager
def goes_on() -> Iterator[None]:
    """Ctrl-C loses the run at hand alone: say so."""
    try:
        yield
    except KeyboardInterrupt:
        stop = SystemExit(130)
        stop.add_note("the same command goes on with the run that was stopped")
        raise stop from None


def _round_line(line: Round, rounds: int, metric: str | None, taken: float | None = None) -> str:
    """A round in one line; `taken` are the seconds that it really took, where its own are emulated."""
    from fedsolve.metrics import MAIN, words

    shown = next((name for name in (metric, *MAIN.values()) if name in line.metrics), None)
    value = line.metrics[shown].get("mean") if shown else None
    parts = [f"{words.title(shown)} {words.text(shown, value)}"] if shown and value is not None else []
    parts += [] if line.loss is None else [f"loss {line.loss:.4f}"]
    seconds = f"{line.seconds:.1f} s{'' if taken is None else ' emulated'}"
    parts += [seconds, f"{size(line.bytes_up)} up", f"{size(line.bytes_down)} down"]
    parts += [f"{duration((line.seconds if taken is None else taken) * (rounds - line.round))} left"]
    return f"round {line.round} of {rounds}: {', '.join(parts)}"
