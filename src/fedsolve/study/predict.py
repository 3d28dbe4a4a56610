"""Predictions of a saved model for the samples in a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsolve import disk
from fedsolve.arrays import Array, take
from fedsolve.data import folders
from fedsolve.data.align import align
from fedsolve.data.files import NAMES, OTHER, read_columns
from fedsolve.data.samples import check_inputs
from fedsolve.data.table import Table
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.features.images import Inputs
from fedsolve.method import Method
from fedsolve.model import Model, load_model
from fedsolve.progress import Progress


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What a model says of each sample, and the accuracy where the true labels were known."""

    labels: NDArray[np.int64]
    names: list[str]  # of the labels
    scores: Array  # one column per class
    probabilities: Array  # one column per class
    classes: tuple[str, ...]  # the name of each class, or its number
    accuracy: float | None
    files: tuple[str, ...] = ()  # of pictures in a folder
    others: Mapping[str, list[str]] = field(default_factory=dict)  # columns of the file that are not features

    def __repr__(self) -> str:
        return f"Predictions({len(self.labels)} samples, accuracy {self.accuracy})"


def predict_file(
    model_path: Path,
    data_path: Path,
    *,
    features: str = "",
    model: str = "",
    skip_broken: bool = False,
    progress: Progress | None = None,
    kind: type[Method] | None = None,
) -> Predictions:
    """Predict the class of each sample in an .npz, .csv or .parquet file, or of each picture below a folder.

    What the model needs beside its file is told here, as to `load_model`: `features`, the network behind its features;
    `model`, a network of the user's own; `kind`, the class of its method.
    """
    trained = load_model(model_path, kind, features=features, model=model)
    if isinstance(trained.task.features, Elsewhere):  # before the data are read
        raise DataError(f"{model_path} cannot be used: {trained.task.features.refusal()}")
    if data_path.is_dir():
        return _predict_folder(trained, data_path, skip_broken, progress)
    source = str(data_path)
    columns = read_columns(data_path, trained.task.feature_names)
    if "x" not in columns:
        raise DataError(f"{source} needs an array 'x'; it holds {', '.join(columns) or 'nothing'}")
    truth = None
    if columns["x"].shape[:1] == (0,):  # a table needs samples, predictions do not
        inputs: Inputs = columns["x"]
    else:
        table = align(_table(columns, trained.task, source), trained.task, source)
        inputs, truth = table.inputs, table.labels if "y" in columns else None
    try:
        predictions = _predictions(trained, trained.scores(inputs, progress))
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    accuracy = None if truth is None else float((predictions.labels == truth).mean())
    others = {name: cells.tolist() for name, cells in take(OTHER, columns).items()}
    return replace(predictions, accuracy=accuracy, others=others)


def _table(columns: Mapping[str, Array], task: Task, source: str) -> Table:
    """The samples of a file whose classes are the model's; where it has no labels, of any class."""
    inputs = check_inputs(columns["x"], source)
    labels = task.target.read(columns["y"], source) if "y" in columns else np.zeros(len(inputs), dtype=np.int64)
    names = tuple(columns[NAMES].tolist()) if NAMES in columns else ()
    return Table.make(source, inputs, labels, class_names=task.class_names, feature_names=names)


def _predictions(model: Model, scores: Array) -> Predictions:
    classes = model.task.class_names or tuple(str(number) for number in range(model.task.classes))
    labels = np.argmax(scores, axis=1)
    probabilities = model.method.probabilities(model.arrays, scores)
    return Predictions(labels, [classes[label] for label in labels], scores, probabilities, classes, None)


def _predict_folder(model: Model, root: Path, skip_broken: bool, progress: Progress | None) -> Predictions:
    """The class of each picture below a folder; compared with the folders it lies in, where those are classes."""
    pictures, _ = folders.look(root, folders.find(root), skip_broken=skip_broken, progress=progress)
    predictions = _predictions(model, model.scores(pictures, progress))
    truth, accuracy = [path.parent.name for path in pictures.files], None
    if set(truth) <= set(model.task.class_names):
        accuracy = float(np.mean([name == true for name, true in zip(predictions.names, truth, strict=True)]))
    files = tuple(str(path.relative_to(root)) for path in pictures.files)
    return replace(predictions, accuracy=accuracy, files=files)


def check_destination(path: Path) -> None:
    """Refuse a file that predictions cannot be written to, before they are made.

    >>> check_destination(Path("labels.txt"))
    Traceback (most recent call last):
    fedsolve.errors.DataError: predictions are written to a file that ends in .csv or .npz; got labels.txt
    """
    if path.suffix.lower() not in (".csv", ".npz"):
        raise DataError(f"predictions are written to a file that ends in .csv or .npz; got {path}")
    if not path.parent.is_dir():
        raise DataError(f"there is no folder {path.parent} to write {path.name} to")
    disk.check_file(path)


def write_predictions(predictions: Predictions, path: Path) -> None:
    """Write a .csv or an .npz (`label`, `scores`, `probabilities`): whole, or not at all.

    A .csv has first the columns of the data that are not features, then the label, and one score and one probability
    per class.
    """
    check_destination(path)
    if path.suffix.lower() == ".npz":
        binary = io.BytesIO()
        scores, probabilities = predictions.scores, predictions.probabilities
        np.savez(binary, label=predictions.labels, scores=scores, probabilities=probabilities)
        disk.write_bytes(path, binary.getvalue())
        return
    columns: dict[str, Sequence[object]] = {"file": predictions.files} if predictions.files else {}
    columns["label"] = predictions.names
    for title, array in (("score", predictions.scores), ("probability", predictions.probabilities)):
        columns |= {f"{title}_{name}": array[:, number].tolist() for number, name in enumerate(predictions.classes)}
    taken = [name for name in predictions.others if name in columns]
    if taken:
        raise DataError(f"column {taken[0]!r} of the data has the name of a column of {path}; rename it")
    columns = {**predictions.others, **columns}
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    disk.write_bytes(path, text.getvalue().encode())
