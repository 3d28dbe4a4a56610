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
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Also means and differences of all methods as a table.", show_default=False
        ),
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option("--latex", metavar="FILE", help="The same for a paper, with booktabs.", show_default=False),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIR",
            help="Also the plots for a paper, as SVG and PDF: figures with intervals, courses against rounds, seconds "
            "and bytes, differences.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write report.html from results already on disk. Nothing is computed again; the page needs no network.

    Methods are compared over the same clients and seeds: mean differences with 95 % intervals and adjusted p-values.
    """
    from fedsolve import disk, report

    for path in (csv, latex):
        if path is not None:
            disk.check_file(path)
    if figures is not None:
        disk.check_writable(figures / "accuracy.svg")
    page = report.write(folders, out or folders[0] / "report.html", metric)
    parts = report.sections(report.entries(folders), metric or "") if csv or latex or figures else []
    for path, text in ((csv, report.to_csv), (latex, report.to_latex)):
        if path is not None:
            disk.write_bytes(path, text(parts).encode(), public=True)
            typer.echo(f"wrote {path}")
    if figures is not None:
        written = report.figures.save(parts, figures)
        typer.echo(f"wrote {len(written)} files to {figures}: {', '.join(path.name for path in written)}")
    typer.echo(f"open {page}")
