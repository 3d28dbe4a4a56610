"""`fedsolve report`: one page from results on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results of run or compare.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page. Default: report.html in the first folder.", show_default=False),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The figure that is shown, as for run. Default: that of the runs.", show_default=False
        ),
    ] = None,
) -> None:
    """Write report.html from results already on disk. Nothing is computed again; the page needs no network."""
    from fedsolve import report

    typer.echo(f"open {report.write(folders, out or folders[0] / 'report.html', metric)}")
