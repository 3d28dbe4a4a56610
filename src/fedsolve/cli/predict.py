"""`fedsolve predict`: the classes of samples in a file, from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.waiting import waiting


def predict_command(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="A file below models/ or groups/ of a run.")],
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
            metavar="FILE",
            help=".csv with one line per sample, or .npz with `label`, `scores` and `probabilities`.",
            show_default=False,
        ),
    ] = None,
    features: Annotated[
        str,
        typer.Option(
            help="For a model of pictures: its network on this machine, as in onnx:FILE or efficientnet-lite0, with "
            "the options of training. It must have the same weights.",
            show_default=False,
        ),
    ] = "",
    network: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODULE:FACTORY",
            help="For a model of your own network: its factory, as package.module:factory.",
            show_default=False,
        ),
    ] = "",
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out pictures that cannot be read.")] = False,
    label: Annotated[
        str, typer.Option(metavar="NAME", help="The column of a table that holds the truth.", show_default=False)
    ] = "",
    date_as: Annotated[
        str, typer.Option(metavar="days", help="As in training, where a table has dates.", show_default=False)
    ] = "",
    encoding: Annotated[
        str, typer.Option(metavar="NAME", help="Of a .csv file, as in latin-1.", show_default=False)
    ] = "",
    method: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The class of a model of your own method, as package.module:Class.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Predict with a saved model: the class or the numbers of each sample, and how good if the file has labels.

    Nothing that the model's file names is opened or imported: what it needs beside itself is named here.
    """
    import warnings

    from fedsolve.data.reading import Reading, names_in
    from fedsolve.errors import LevelWarning
    from fedsolve.metrics import MAIN, words
    from fedsolve.study.experiment import class_of
    from fedsolve.study.predict import check_destination, predict_file, write_predictions

    if out is not None:
        check_destination(out)
    kind = class_of(method) if method else None
    reading = Reading(label=names_in(label), date_as=date_as, encoding=encoding)
    with waiting(quiet=False) as (progress, _), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", LevelWarning)
        predictions = predict_file(
            path,
            data,
            features=features,
            model=network,
            skip_broken=skip_broken,
            progress=progress,
            kind=kind,
            reading=reading,
        )
    for warning in told:
        typer.echo(f"warning: {warning.message}", err=True)
    if out is not None:
        write_predictions(predictions, out)
        typer.echo(f"{len(predictions.labels)} predictions in {out}")
    else:
        for row, name in enumerate(predictions.names):
            typer.echo(f"{predictions.files[row]}: {name}" if predictions.files else name)
    for metric in [name for name in MAIN.values() if name in predictions.figures]:
        figure = predictions.figures[metric]
        shown = f"{figure:.4f}" if words.is_share(metric) else words.number(metric, figure)
        typer.echo(f"{words.title(metric)} {shown} on {len(predictions.labels)} samples", err=out is None)
