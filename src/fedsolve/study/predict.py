"""Predictions of a saved model for the samples in a file."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.codec import write_bytes
from fedsolve.data import catalog, images
from fedsolve.data.federation import check_labels
from fedsolve.errors import DataError
from fedsolve.features.cache import Progress
from fedsolve.model import Model, load_model


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Class numbers, their names, scores, and the accuracy where the true labels were known."""

    labels: NDArray[np.int64]
    names: list[str]
    scores: Array
    accuracy: float | None
    files: tuple[str, ...] = ()  # of pictures in a folder


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
    columns = catalog.read_columns(data_path)
    if "x" not in columns:
        raise DataError(f"{data_path} needs an array 'x'; it holds {', '.join(columns) or 'nothing'}")
    names = tuple(columns[catalog.NAMES].tolist()) if catalog.NAMES in columns else ()
    inputs = catalog.in_order(columns["x"], names, model.task.feature_names, str(data_path))
    try:
        scores = model.scores(inputs, progress)
    except DataError as error:
        raise DataError(f"{data_path}: {error}") from error
    labels = np.argmax(scores, axis=1)
    accuracy = None
    if "y" in columns and len(labels):
        truth = check_labels(
            catalog.class_numbers(columns["y"], model.task.class_names, str(data_path)), str(data_path)
        )
        if len(truth) != len(labels):
            raise DataError(f"{data_path}: {len(labels)} inputs but {len(truth)} labels")
        accuracy = float((labels == truth).mean())
    return Predictions(labels, _names(labels, model), scores, accuracy)


def _names(labels: NDArray[np.int64], model: Model) -> list[str]:
    known = model.task.class_names
    return [known[i] if known else str(i) for i in labels]


def _predict_folder(model: Model, root: Path, skip_broken: bool, progress: Progress | None) -> Predictions:
    """The class of each picture below a folder; compared with the folders it lies in, where those are classes."""
    pictures, _ = images.look(root, images.find(root), skip_broken=skip_broken, progress=progress)
    scores = model.scores(pictures, progress)
    labels = np.argmax(scores, axis=1)
    names, truth = _names(labels, model), [path.parent.name for path in pictures.files]
    accuracy = None
    if set(truth) <= set(model.task.class_names):
        accuracy = float(np.mean([name == true for name, true in zip(names, truth, strict=True)]))
    return Predictions(labels, names, scores, accuracy, tuple(str(path.relative_to(root)) for path in pictures.files))


def write_predictions(found: Predictions, path: Path) -> None:
    """Write a .csv (label, then a score a class) or an .npz (`label`, `scores`): whole, or not at all."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".npz"):
        raise DataError(f"predictions are written to a file that ends in .csv or .npz; got {path}")
    if not path.parent.is_dir():
        raise DataError(f"there is no folder {path.parent} to write {path.name} to")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file")
    if suffix == ".npz":
        binary = io.BytesIO()
        np.savez(binary, label=found.labels, scores=found.scores)
        write_bytes(path, binary.getvalue())
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    files = [[file] for file in found.files] or [[]] * len(found.names)
    scores = [f"score_{number}" for number in range(found.scores.shape[1])]
    writer.writerow([*["file"] * bool(found.files), "label", *scores])
    for file, name, row in zip(files, found.names, found.scores.tolist(), strict=True):
        writer.writerow([*file, name, *row])
    write_bytes(path, text.getvalue().encode())
