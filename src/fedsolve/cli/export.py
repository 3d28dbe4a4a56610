"""`fedsolve export`: a saved model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file below models/ or groups/ of a run.")],
    to: Annotated[str, typer.Option(help="onnx: one file from raw inputs to scores, for any runtime.")] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: beside the model, ending in .onnx.", show_default=False),
    ] = None,
    features: Annotated[
        str,
        typer.Option(
            help="For a model of pictures: its network on this machine, onnx:FILE with the options of training.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Write a linear model, with its feature map and its backbone where that is ONNX, for programs without fedsolve.

    Input "x" holds numbers, or pictures as bytes; outputs are "scores" and "label". In Python, fs.estimator(FILE) gives
    a scikit-learn classifier.
    """
    from fedsolve.errors import unknown
    from fedsolve.study.onnx import to_onnx

    if to != "onnx":
        raise unknown("format", to, ("onnx",))
    typer.echo(f"written {to_onnx(model, out or model.with_suffix('.onnx'), features=features)}")
