"""`fedsolve predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.waiting import waiting


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
    from fedsolve.study.predict import predict_file, write_predictions

    with waiting(quiet=False) as (progress, _):
        found = predict_file(model, data, features=features, skip_broken=skip_broken, progress=progress)
    if out is not None:
        write_predictions(found, out)
        typer.echo(f"{len(found.labels)} predictions in {out}")
    else:
        for row, name in enumerate(found.names):
            typer.echo(f"{found.files[row]}: {name}" if found.files else name)
    if found.accuracy is not None:
        typer.echo(f"accuracy {found.accuracy:.4f} on {len(found.labels)} samples", err=out is None)
