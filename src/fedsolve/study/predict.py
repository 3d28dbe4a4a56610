"""Predictions of a saved model for the samples in a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve import disk, metrics
from fedsolve.arrays import Array, take
from fedsolve.data import folders
from fedsolve.data.align import align
from fedsolve.data.files import NAMES, OTHER, read_columns, read_content
from fedsolve.data.reading import Reading
from fedsolve.data.samples import check_inputs
from fedsolve.data.table import Table
from fedsolve.data.target import Numbers
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.features.cells import Cells
from fedsolve.features.columns import Columns
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.features.images import Inputs
from fedsolve.method import Method
from fedsolve.model import Model, load_model
from fedsolve.progress import Progress


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What a model says of each sample, and how far it is right where the true labels were known."""

    labels: Array  # class numbers, or numbers as they are predicted
    names: list[str]  # of the labels; none for numbers
    scores: Array  # one column per class, or per number that is predicted
    probabilities: Array | None  # one column per class
    classes: tuple[str, ...]  # the name of each class, or its number; or of each number that is predicted
    figures: Mapping[str, float] = field(default_factory=dict)  # where the file has labels: see fedsolve.metrics
    files: tuple[str, ...] = ()  # of pictures in a folder
    others: Mapping[str, list[str]] = field(default_factory=dict)  # columns of the file that are not features

    def __repr__(self) -> str:
        said = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return f"Predictions({len(self.labels)} samples{', ' * bool(said)}{said})"

    @property
    def accuracy(self) -> float | None:
        """The share of right answers, where the true classes were known."""
        return self.figures.get("accuracy")


def predict_file(
    model_path: Path,
    data_path: Path,
    *,
    features: str = "",
    model: str = "",
    skip_broken: bool = False,
    progress: Progress | None = None,
    kind: type[Method] | None = None,
    reading: Reading | None = None,
) -> Predictions:
    """Predict the class or the numbers of each sample in an .npz, .csv or .parquet file, or of pictures in a folder.

    What the model needs beside its file is told here, as to `load_model`: `features`, the network behind its features;
    `model`, a network of the user's own; `kind`, the class of its method. `reading` says how a table is written, and
    which of its columns holds the truth.
    """
    trained = load_model(model_path, kind, features=features, model=model)
    if isinstance(trained.task.features, Elsewhere):  # before the data are read
        raise DataError(f"{model_path} cannot be used: {trained.task.features.refusal()}")
    if data_path.is_dir():
        return _predict_folder(trained, data_path, skip_broken, progress)
    source = str(data_path)
    prepared = trained.task.preparation
    if prepared and data_path.suffix.lower() != ".npz":
        return _predict_table(trained, prepared, data_path, reading or Reading(), progress)
    columns = read_columns(data_path, trained.task.feature_names)
    if "x" not in columns:
        raise DataError(f"{source} needs an array 'x'; it holds {', '.join(columns) or 'nothing'}")
    truth = None
    if columns["x"].shape[:1] == (0,):  # a table needs samples, predictions do not
        inputs: Inputs | Cells = columns["x"]
    else:
        table = align(_table(columns, trained.task, source), trained.task, source)
        inputs, truth = table.inputs, table.labels if "y" in columns else None
    try:
        predictions = _predictions(trained, trained.scores(inputs, progress))
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    figures = {} if truth is None else _figures(trained, predictions, truth)
    others = {name: cells.tolist() for name, cells in take(OTHER, columns).items()}
    return replace(predictions, figures=figures, others=others)


def _predict_table(
    model: Model, columns: Columns, path: Path, reading: Reading, progress: Progress | None
) -> Predictions:
    """Predictions for a table as it is: its cells become numbers by the model's own map."""
    target = model.task.target
    label = reading.label or (target.names if isinstance(target, Numbers) else ())
    found = read_content(path, replace(reading, label=label, kinds=columns.kinds), wanted=bool(reading.label))
    truth = None
    if found.labels is not None and len(found.labels) and len(found.label) in (1, target.width):
        truth = target.read(found.labels, str(path))
    try:
        predictions = _predictions(model, model.scores(found.inputs, progress))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    figures = {} if truth is None else _figures(model, predictions, truth)
    return replace(predictions, figures=figures, others=found.others)


def _figures(model: Model, predictions: Predictions, truth: NDArray[Any]) -> dict[str, float]:
    """How far predictions are right, by name."""
    shares = predictions.probabilities
    tally = model.task.target.tally(predictions.scores, lambda: np.asarray(shares), truth)
    exact = {"auc": float(tally.pop("auc"))} if "auc" in tally else {}
    return metrics.figures(tally) | exact


def _table(columns: Mapping[str, Array], task: Task, source: str) -> Table:
    """The samples of a file whose target is the model's; where it has no labels, with any."""
    inputs, target, numbers = check_inputs(columns["x"], source), task.target, task.target.kind == "numbers"
    labels = np.zeros((len(inputs), target.width) if numbers else len(inputs), dtype=np.int64)
    if "y" in columns:
        labels = target.read(columns["y"], source)
    names = tuple(columns[NAMES].tolist()) if NAMES in columns else ()
    told = {"target": target} if numbers else {"class_names": task.class_names}
    return Table.make(source, inputs, labels, feature_names=names, **told)


def _predictions(model: Model, scores: Array) -> Predictions:
    target, labels = model.task.target, model.task.target.answers(scores)
    if target.kind == "numbers":
        return Predictions(labels, [], scores, None, target.names)
    classes = target.names or tuple(str(number) for number in range(target.count))
    probabilities = model.method.probabilities(model.arrays, scores)
    return Predictions(labels, [classes[label] for label in labels], scores, probabilities, classes)


def _predict_folder(model: Model, root: Path, skip_broken: bool, progress: Progress | None) -> Predictions:
    """The class of each picture below a folder; compared with the folders it lies in, where those are classes."""
    pictures, _ = folders.look(root, folders.find(root), skip_broken=skip_broken, progress=progress)
    predictions = _predictions(model, model.scores(pictures, progress))
    truth, figures = [path.parent.name for path in pictures.files], {}
    if set(truth) <= set(model.task.class_names):
        figures = _figures(model, predictions, model.task.target.read(np.array(truth), str(root)))
    files = tuple(str(path.relative_to(root)) for path in pictures.files)
    return replace(predictions, figures=figures, files=files)


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
    """Write a .csv or an .npz (`label`, and for classes `scores`, `probabilities`): whole, or not at all.

    A .csv has first the columns of the data that are not features, then the label, and one score and one probability
    per class; or one column predicted_NAME for each number that is predicted.
    """
    check_destination(path)
    if path.suffix.lower() == ".npz":
        binary = io.BytesIO()
        if predictions.probabilities is None:
            np.savez(binary, label=predictions.labels)
        else:
            scores, probabilities = predictions.scores, predictions.probabilities
            np.savez(binary, label=predictions.labels, scores=scores, probabilities=probabilities)
        disk.write_bytes(path, binary.getvalue())
        return
    columns: dict[str, Sequence[object]] = {"file": predictions.files} if predictions.files else {}
    tables = [("predicted", predictions.scores)]
    if predictions.probabilities is not None:
        columns["label"] = predictions.names
        tables = [("score", predictions.scores), ("probability", predictions.probabilities)]
    for title, array in tables:
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
