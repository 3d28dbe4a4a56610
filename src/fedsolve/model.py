"""A trained model: named arrays and all it takes to predict with them, in memory or in one file."""

from __future__ import annotations

import json
import math
import re
import reprlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsolve import codec, methods, parameters
from fedsolve.arrays import Array, Arrays, check
from fedsolve.data.frames import cells_for, in_columns
from fedsolve.data.samples import check_inputs
from fedsolve.data.target import Classes, target_words
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError, LevelWarning, ParameterError
from fedsolve.features import maps
from fedsolve.features.cache import extract
from fedsolve.features.cells import Cells
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.features.images import ANY_SIZE, Pictures
from fedsolve.method import Method
from fedsolve.progress import Progress
from fedsolve.summary import Summary

FORMAT = "2"
LARGEST_INPUT = 2**18  # numbers of a sample, or classes, of a model that is smaller than that itself


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Predicts from raw inputs, of the shape the federation had them in.

    >>> import fedsolve as fs
    >>> table = fs.load("digits")
    >>> model = fs.run(fs.FedHiP(), table.split("iid", clients=3)).models["client-00"]
    >>> model.predict(table.inputs[:3]), model.predict_proba(table.inputs[:3]).shape
    (array([0, 1, 2]), (3, 10))
    """

    method: Method
    task: Task
    arrays: Arrays
    owner: str  # the client it was made for, "global", or "group NAME"

    def __repr__(self) -> str:
        return (
            f"Model({self.method.name!r}, of {reprlib.repr(self.owner)}, {target_words(self.task.target)}, "
            f"inputs {self.task.inputs}, {len(self.arrays)} arrays)"
        )

    def scores(self, inputs: ArrayLike | Pictures | Cells, progress: Progress | None = None) -> Array:
        """One row per sample, one column per class, of which the largest wins; or one per number that is predicted.

        Pictures may be arrays or `Images` of a folder. The columns of a data frame are taken by name: their order does
        not matter, and others are left alone. Where training took a table as it is, so does this: with texts and empty
        cells. Levels that training had no column for go with the rare ones, and a `LevelWarning` says so.
        """
        wanted, features = self.task.inputs, self.task.features
        if isinstance(inputs, Pictures):
            if wanted == ANY_SIZE:
                return self.method.predict(self.arrays, extract(features, inputs, progress, keep=False), self.task)
            inputs = inputs.stacked()
        prepared = self.task.preparation
        if prepared:
            cells = cells_for(prepared, inputs, "inputs")
            for sentence in prepared.strange(cells):
                warnings.warn(sentence, LevelWarning, stacklevel=3)
            return self.method.predict(self.arrays, extract(features, cells, progress, keep=False), self.task)
        x = check_inputs(in_columns(inputs, self.task.feature_names, "inputs", others=True), "inputs")
        if len(wanted) != x.ndim - 1 or any(side not in (-1, x.shape[i]) for i, side in enumerate(wanted, 1)):
            raise DataError(f"the model of {self.owner!r} takes inputs of shape {wanted}; got {x.shape[1:]}")
        return self.method.predict(self.arrays, extract(features, x, progress, keep=False), self.task)

    def predict(self, inputs: ArrayLike | Pictures | Cells) -> Array:
        """The class number of each sample; or the number that is predicted for it, of several one row per sample."""
        return self.task.target.answers(self.scores(inputs))

    def predict_proba(self, inputs: ArrayLike | Pictures | Cells) -> Array:
        """The probability of each class, one row per sample; how it follows from the scores, the method says."""
        if not self.task.classes:
            raise ParameterError("this model predicts numbers, which have no probabilities; call predict")
        return self.method.probabilities(self.arrays, self.scores(inputs))

    def summary(self) -> Summary:
        """Its coefficients in the units of the table, by the names of the columns; a model that has none is refused.

        >>> import fedsolve as fs
        >>> wards = fs.load("wards").split("by-client")
        >>> print(fs.run(fs.FedHiP(), wards).models["surgery"].summary().rows[0].name)
        age
        """
        found = self.method.inference(self.arrays, self.task)
        if found is None:
            raise DataError(
                f"the model of {self.owner!r} ({self.method.name}) has no coefficients to show; glm has some"
            )
        return found

    def save(self, path: str | Path) -> None:
        """Write one safetensors file that `load_model` reads."""
        codec.write_file(Path(path), self.arrays, self.metadata())

    def metadata(self) -> dict[str, str]:
        """Everything beside the arrays that predicting takes, as texts."""
        return {
            "fedsolve": FORMAT,
            "method": self.method.name,
            "settings": json.dumps(parameters.values(self.method)),
            "owner": self.owner,
            "task": self.task.to_text(),
        }


def load_model(path: str | Path, kind: type[Method] | None = None, *, features: str = "", model: str = "") -> Model:
    """The model in a file, checked. Nothing else is opened, and nothing imported, because the file says so.

    What it needs beside the file is told here: `kind`, the class of its method, where that is not of the catalogue;
    `features`, the network behind its features, as in "onnx:FILE", which must have the same weights; `model`, a network
    of the user's own, as in "mynet:net". Without `features` such a model can be looked at, but not predicted with.

    >>> import tempfile
    >>> import fedsolve as fs
    >>> model = fs.run(fs.AFL(), fs.load("digits").split("iid", clients=3)).shared
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.safetensors")
    ...     fs.load_model(Path(folder) / "model.safetensors").owner
    'global'
    """
    arrays, metadata = codec.read_file(Path(path))
    if metadata.get("fedsolve") not in ("1", FORMAT):
        version = metadata.get("fedsolve", "none")
        raise DataError(f"{path} is not a fedsolve model of format 1 or {FORMAT}; it says {version!r}")
    try:
        task = _task(metadata, features)
        settings = json.loads(metadata["settings"])
        if metadata["fedsolve"] == "1":
            arrays, settings = _of_format_1(arrays, metadata["method"], settings)
        method = methods.restored(metadata["method"], settings, kind, model=model)
        if model and model not in parameters.imported(method).values():
            raise DataError(f"its {method.name} takes no network of a user's own; got {model!r}")
        owner = metadata["owner"]
        check(arrays, "its arrays")
        _check_width(task, arrays)
        # The arrays fit together if they give one score per class for an input of nothing.
        with np.errstate(over="ignore", invalid="ignore"):  # weights that are too large are no surprise in such a file
            blank = method.predict(arrays, np.zeros((1, *task.shape)), task)
        if blank.shape != (1, task.outputs):
            raise DataError(f"it gives scores of shape {blank.shape[1:]} for {target_words(task.target)}")
    except FedsolveError as error:
        raise DataError(f"{path} cannot be used: {error}") from error
    except (
        KeyError,
        IndexError,
        ValueError,
        TypeError,
        AttributeError,
        MemoryError,
        OverflowError,
        RecursionError,
    ) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return Model(method, task, arrays, owner)


def _of_format_1(
    arrays: dict[str, Array], method: str, settings: dict[str, Any]
) -> tuple[dict[str, Array], dict[str, Any]]:
    """What version 0.1.0 wrote, as it is now.

    Networks held their number of classes, `local` all its parameters, and all places of a convolution had one code.
    """
    if method == "local":
        ridge = {name: settings.pop(name) for name in ("ridge", "intercept")}
        settings = ridge if settings["model"] == "ridge" else settings
    if method in ("fedacnnl", "pfedacnnl"):
        settings = {**settings, "target": "shared"}
    return {name: array for name, array in arrays.items() if name != "classes"}, settings


def _task(metadata: dict[str, str], features: str) -> Task:
    """The task of a model with its feature map as it can be had here."""
    if metadata["fedsolve"] == FORMAT:
        return Task.from_text(metadata["task"]).located(features)
    # Format 1, of version 0.1.0: the parts of the task stand one by one, and nothing says how many features there are.
    inputs = tuple(parameters.whole("a side of its inputs", side, -1) for side in json.loads(metadata["inputs"]))
    told = Elsewhere(metadata["features"], re.sub(r" of \([^()]*\)$", "", metadata["space"]), ())
    feature_map = maps.from_words(told, inputs, features)
    if feature_map is told:
        raise told.refusal()
    task = Task(
        target=Classes(int(metadata["classes"]), tuple(json.loads(metadata["class_names"]))),
        inputs=inputs,
        features=feature_map,
        feature_names=tuple(json.loads(metadata["feature_names"])),
    )
    if task.described != metadata["space"]:
        difference = maps.difference(task.described, metadata["space"])
        raise DataError(f"the features here are not the federation's: {difference}")
    return task


def _check_width(task: Task, arrays: Arrays) -> None:
    """Refuse to try a model on a sample, or for classes, that only its text announces: its arrays are no smaller."""
    numbers = sum(array.size for array in arrays.values())
    if not 0 <= max(math.prod(task.shape), task.outputs) <= max(LARGEST_INPUT, numbers):
        sizes = f"{math.prod(task.shape)} features and {target_words(task.target)}"
        raise DataError(f"it announces {sizes}, and its arrays hold {numbers} numbers")
