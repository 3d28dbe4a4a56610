"""`fedsolve deploy status`, `audit` and what start scripts pass their logs through: what a federation does and did."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsolve.cli.text import duration, size
from fedsolve.errors import ParameterError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from fedsolve.deploy.records import Record
    from fedsolve.deploy.status import Status
    from fedsolve.runtime.audit import Line

RUNS = 5  # past ones in the terminal


def status_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder, as in trial/server.")],
    as_json: Annotated[bool, typer.Option("--json", help="The same for a program.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="A page for a browser on this machine, as long as this runs; /health beside.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page. 0: one that is free.")] = 0,
) -> None:
    """Say how a federation fares: sites, keys, certificates, the run under way, past runs. Nothing is changed.

    Exit code 1 where something is wrong: no SuperLink, a site that is not connected, a certificate that ended.
    """
    from fedsolve.deploy.status import Watch

    if page and as_json:
        raise ParameterError("--page has its own JSON, at /status.json; leave --json out")
    if port and not page:
        raise ParameterError("--port is that of the page; ask for --page, too")
    if page:
        _serve(folder, port)
        return
    watch = Watch(folder)
    try:
        found = watch.look()
    finally:
        watch.close()
    if as_json:
        typer.echo(json.dumps(found.words(), indent=1))
    else:
        _show(found)
    if not found.fine:
        raise typer.Exit(1)


def _serve(folder: Path, port: int) -> None:
    from fedsolve.deploy.page import Page

    with Page(folder, port, _report) as server:
        typer.echo(f"open {server.address} on this machine; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")


def _report(out: Path) -> str:
    """The page of a result on disk."""
    from fedsolve import report

    with tempfile.TemporaryDirectory(prefix="fedsolve-") as place:
        return report.write([out], Path(place) / "report.html").read_text(encoding="utf-8")


def _show(status: Status) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedsolve.deploy.status import ago

    console = Console(highlight=False)
    ends = "".join(f"; {each.what}'s certificate: {each.days} days" for each in status.certificates)
    link = "the SuperLink answers" if status.superlink else "the SuperLink does not answer"
    console.print(f"{status.address}: {link}{ends}", markup=False, soft_wrap=True)
    table = Table("site", "state", "since", "version", "samples", "policy", "key", box=None, pad_edge=False)
    for site in status.sites:
        state = site.state if site.expected else f"{site.state}, not in SITES"
        samples = "" if site.samples is None else str(site.samples)
        table.add_row(site.name, state, ago(site.since), site.version, samples, site.policy, site.key or "none")
    console.print(table)
    if status.run:
        _show_run(console, status.run)
    for record in status.runs[:RUNS]:
        words = f"{record.started[:19]}  {record.method}, {record.privacy}: {record.outcome}"
        console.print(f"{words}; {record.error or record.out}", markup=False, soft_wrap=True)
    for site in status.sites:
        if site.left_out:
            console.print(f"left out: {site.name}: {site.left_out}", markup=False, soft_wrap=True)
    for sentence in status.notes:
        console.print(f"note: {sentence}", markup=False, soft_wrap=True)
    for sentence in status.wrong:
        console.print(f"WRONG: {sentence}", markup=False, soft_wrap=True)


def _show_run(console: Console, run: Record) -> None:
    told = run.told
    phase = f"{told.get('phase', 'being handed over')}"
    done = f" {told['done']} of {told['of']}" if told.get("of") else ""
    traffic = f"{size(int(told.get('up', 0)))} up, {size(int(told.get('down', 0)))} down"
    left = told.get("left")
    rest = f", about {duration(left)} left" if isinstance(left, int | float) else ""
    words = f"under way: {run.method}, {run.privacy}: {phase}{done}; {traffic}{rest}"
    console.print(words, markup=False, soft_wrap=True)
    waiting = [name for name in run.sites if run.told_of(name).get("waiting")]
    if waiting:
        console.print(f"  asked, and not answered yet: {', '.join(waiting)}", markup=False, soft_wrap=True)


# --- at a site ---


def audit_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder, as in trial/sites/ward-a.")],
    run: Annotated[str, typer.Option(help="Only what this run asked for.", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The same for a program.")] = False,
) -> None:
    """Show what left a site, and what it refused: when, for which run, how many bytes from how many rows, and why.

    Every byte of every answer is counted in one line, so the sums are all that left.
    """
    from fedsolve import deploy
    from fedsolve.runtime import audit

    settings = deploy.read_env(folder / "site.env")
    path = folder / (settings.get("STATE") or "state") / audit.FILE
    lines, damaged = audit.read(path)
    runs = list(dict.fromkeys(line.run for line in lines))
    if run and run not in runs:
        raise unknown("run", run, runs)
    lines = [line for line in lines if not run or line.run == run]
    sums = {each: _sums([line for line in lines if line.run == each]) for each in runs if not run or each == run}
    if as_json:
        total = sum(line.bytes for line in lines)
        content = {"lines": [asdict(line) for line in lines], "runs": sums, "bytes": total, "damaged": damaged}
        typer.echo(json.dumps(content, indent=1))
    else:
        _show_audit(lines, sums, path)
    for number in damaged:
        typer.echo(f"line {number} cannot be read: the machine stopped in it, or somebody changed it", err=True)
    if damaged:
        raise typer.Exit(1)


def _sums(lines: list[Line]) -> dict[str, object]:
    """What a run took from a site."""
    return {
        "method": next((line.method for line in lines if line.method), ""),
        "privacy": next((line.privacy for line in lines if line.privacy), ""),
        "sent": sum(not line.refused for line in lines),
        "refused": sum(bool(line.refused) for line in lines),
        "bytes": sum(line.bytes for line in lines),
    }


def _show_audit(lines: list[Line], sums: dict[str, dict[str, object]], path: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not lines:
        console.print(f"nothing has left this site: {path} has no lines", markup=False, soft_wrap=True)
        return
    for run, each in sums.items():
        console.print(f"run {run}: {each['method']}, {each['privacy']}", markup=False, soft_wrap=True)
        table = Table("when", "what", "bytes", "rows", "sent, or why not", box=None, pad_edge=False)
        table.columns[0].no_wrap = True
        for line in (line for line in lines if line.run == run):
            what = line.what if line.round is None else f"{line.what}, round {line.round}"
            rows = "" if line.rows is None else str(line.rows)
            outcome = f"refused: {line.refused}" if line.refused else line.sent
            table.add_row(*map(Text, (line.time[:19], what, str(line.bytes), rows, outcome)))
        console.print(table)
        console.print(f"{each['sent']} sent, {each['refused']} refused, {each['bytes']} bytes\n", markup=False)
    total = sum(line.bytes for line in lines)
    console.print(f"{total} bytes left this site in {len(lines)} lines of {path}", markup=False, soft_wrap=True)


# --- logs ---


def log_command(
    who: Annotated[str, typer.Argument(metavar="NAME", help="Whose log it is.")],
    form: Annotated[str, typer.Option("--form", help="text, json, or all: as Flower writes it.")] = "text",
) -> None:
    """Pass a log on without what is no news. `start.sh` calls it."""
    from fedsolve import logs

    logs.pass_on(who, form, sys.stdin, sys.stdout)
