"""`fedsolve summary`: coefficients, errors and tests of a run or of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def summary_command(
    path: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL", help="The folder of a run, or a file below its models/.")
    ],
    method: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The class of a model of your own method, as package.module:Class.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the coefficients there, too.", show_default=False)
    ] = None,
) -> None:
    """Show what a model says of its columns: coefficients, with errors, intervals and p-values where it has them.

    Of a run: the global model, equal to that of the pooled table, figures of the fit, and whether sites differ. Of a
    model: its own coefficients.
    """
    from fedsolve.study.experiment import class_of
    from fedsolve.study.summary import summary_of, write_csv

    found = summary_of(path, class_of(method) if method else None)
    if csv is not None:
        write_csv(found, csv)
    typer.echo(str(found))
