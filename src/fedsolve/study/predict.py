"""Predictions of a saved model for the samples in a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.codec import write_bytes
from fedsolve.data import folders
from fedsolve.data.align import align
from fedsolve.data.files import NAMES, read_columns
from fedsolve.data.samples import check_inputs
from fedsolve.data.table import Table
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.features.images import Inputs
from fedsolve.model import Model, load_model
from fedsolve.progress import Progress


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Class numbers, their names, scores, and the accuracy where the true labels were known."""

    labels: NDArray[np.int64]
    names: list[str]
    scores: Array
    accuracy: float | None
    files: tuple[str, ...] = ()  # of pictures in a folder

    def __repr__(self) -> str:
        return f"Predictions({len(self.labels)} samples, accuracy {self.accuracy})"


def predict_file(
    model_path: Path,
    data_path: Path,
    *,
    features: str = "",
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> Predictions:
    """Predict the class of each sample in an .npz, .csv or .parquet file, or of each picture below a folder.

    `features` says where the model's backbone is here, if that is not where it was.
    """
    model = load_model(model_path, features=features)
    if data_path.is_dir():
        return _predict_folder(model, data_path, skip_broken, progress)
    columns, source = read_columns(data_path), str(data_path)
    if "x" not in columns:
        raise DataError(f"{source} needs an array 'x'; it holds {', '.join(columns) or 'nothing'}")
    truth = None
    if columns["x"].shape[:1] == (0,):  # a table needs samples, predictions do not
        inputs: Inputs = columns["x"]
    else:
        table = align(_table(columns, model.task, source), model.task, source)
        inputs, truth = table.inputs, table.labels if "y" in columns else None
    try:
        scores = model.scores(inputs, progress)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    labels = np.argmax(scores, axis=1)
    accuracy = None if truth is None else float((labels == truth).mean())
    return Predictions(labels, _names(labels, model), scores, accuracy)


def _table(columns: Mapping[str, Array], task: Task, source: str) -> Table:
    """The samples of a file whose classes are the model's; where it has no labels, of any class."""
    inputs = check_inputs(columns["x"], source)
    labels = task.target.read(columns["y"], source) if "y" in columns else np.zeros(len(inputs), dtype=np.int64)
    names = tuple(columns[NAMES].tolist()) if NAMES in columns else ()
    return Table.make(source, inputs, labels, class_names=task.class_names, feature_names=names)


def _names(labels: NDArray[np.int64], model: Model) -> list[str]:
    """The name of each class, or its number where classes have none."""
    names = model.task.class_names
    return [names[i] if names else str(i) for i in labels]


def _predict_folder(model: Model, root: Path, skip_broken: bool, progress: Progress | None) -> Predictions:
    """The class of each picture below a folder; compared with the folders it lies in, where those are classes."""
    pictures, _ = folders.look(root, folders.find(root), skip_broken=skip_broken, progress=progress)
    scores = model.scores(pictures, progress)
    labels = np.argmax(scores, axis=1)
    names, truth = _names(labels, model), [path.parent.name for path in pictures.files]
    accuracy = None
    if set(truth) <= set(model.task.class_names):
        accuracy = float(np.mean([name == true for name, true in zip(names, truth, strict=True)]))
    return Predictions(labels, names, scores, accuracy, tuple(str(path.relative_to(root)) for path in pictures.files))


def write_predictions(predictions: Predictions, path: Path) -> None:
    """Write a .csv (label, then one score per class) or an .npz (`label`, `scores`): whole, or not at all."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".npz"):
        raise DataError(f"predictions are written to a file that ends in .csv or .npz; got {path}")
    if not path.parent.is_dir():
        raise DataError(f"there is no folder {path.parent} to write {path.name} to")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file")
    if suffix == ".npz":
        binary = io.BytesIO()
        np.savez(binary, label=predictions.labels, scores=predictions.scores)
        write_bytes(path, binary.getvalue())
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    files = [[file] for file in predictions.files] or [[]] * len(predictions.names)
    scores = [f"score_{number}" for number in range(predictions.scores.shape[1])]
    writer.writerow([*["file"] * bool(predictions.files), "label", *scores])
    for file, name, row in zip(files, predictions.names, predictions.scores.tolist(), strict=True):
        writer.writerow([*file, name, *row])
    write_bytes(path, text.getvalue().encode())
