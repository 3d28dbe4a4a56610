"""`fedsolve disclose`: what a server could learn from what a site would send. Nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.options import setting_values, takes_settings
from fedsolve.cli.waiting import waiting
from fedsolve.errors import DataError
from fedsolve.study.settings import Settings

_TAKEN = (
    "method", "set", "data", "label", "client", "person", "drop", "task", "columns", "date_as", "encoding", "limit",
    "clients", "partition", "test", "min_samples", "features", "skip_broken", "seed",
)  # fmt: skip


@takes_settings(_TAKEN)
def disclose_command(
    site: Annotated[
        str, typer.Option(metavar="NAME", help="All about one site, where the data are of several.", show_default=False)
    ] = "",
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Where rows can be recovered: draw them beside the true ones. It shows records.",
            show_default=False,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Say what somebody who sees a site's F'F and F'Y could learn of single records, before anything is sent.

    The data are read as `fedsolve run` reads them; a file that names no owners is one site's. Where rows can be
    recovered from the sums, they are, on the site's own data and on this machine alone.
    """
    from fedsolve.report.disclosure import draw
    from fedsolve.study.disclosure import disclosures

    settings = Settings.of(setting_values(options), "the command line")
    with waiting(quiet=False) as (progress, _):
        found = disclosures(settings, site, progress=progress)
    shown = next((each for each in found if each.shown), None)
    if len(found) == 1:
        for sentence in found[0].report.sentences():
            typer.echo(sentence)
        broken = found[0].report.refusals()
        typer.echo(f"refused in plain: {'; '.join(broken)}" if broken else "no rule is broken: it may be sent in plain")
    else:
        for each in found:
            broken = each.report.refusals()
            typer.echo(f"{each.site}: {'; '.join(broken) if broken else 'no rule is broken'}")
        refused = sum(bool(each.report.refusals()) for each in found)
        typer.echo(
            f"{refused} of {len(found)} sites would disclose single records in plain; --site NAME says more of one"
        )
    if shown is not None and shown.shown is not None:
        typer.echo(f"{shown.site}: {shown.shown.sentence()}")
    if picture is not None:
        if shown is None or shown.shown is None:
            raise DataError("nothing to draw: no site's rows can be recovered from its sums by this attack")
        draw(shown.shown, picture)
        typer.echo(f"{picture}: true rows and recovered ones of {shown.site}; it shows records, so keep it to yourself")
