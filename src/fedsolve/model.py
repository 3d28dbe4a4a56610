"""A trained model: named arrays and all it takes to predict with them, in memory or in one file."""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve import codec, methods, parameters
from fedsolve.arrays import Array, Arrays, check
from fedsolve.data.frames import in_columns
from fedsolve.data.samples import check_inputs
from fedsolve.data.task import Classes, Task
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import maps
from fedsolve.features.cache import extract
from fedsolve.features.images import ANY_SIZE, Pictures
from fedsolve.method import Method
from fedsolve.progress import Progress

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
    owner: str  # the client it was made for, or "global"

    def __repr__(self) -> str:
        return (
            f"Model({self.method.name!r}, of {reprlib.repr(self.owner)}, {self.task.classes} classes, "
            f"inputs {self.task.inputs}, {len(self.arrays)} arrays)"
        )

    def scores(self, inputs: ArrayLike | Pictures, progress: Progress | None = None) -> Array:
        """One row per sample, one column per class; the largest wins.

        Pictures may be arrays or `Images` of a folder. The columns of a data frame are taken by name.
        """
        wanted, features = self.task.inputs, self.task.features
        if isinstance(inputs, Pictures):
            if wanted == ANY_SIZE:
                return self.method.predict(self.arrays, extract(features, inputs, progress, keep=False), self.task)
            inputs = inputs.stacked()
        x = check_inputs(in_columns(inputs, self.task.feature_names, "inputs"), "inputs")
        if len(wanted) != x.ndim - 1 or any(side not in (-1, x.shape[i]) for i, side in enumerate(wanted, 1)):
            raise DataError(f"the model of {self.owner!r} takes inputs of shape {wanted}; got {x.shape[1:]}")
        return self.method.predict(self.arrays, extract(features, x, progress, keep=False), self.task)

    def predict(self, inputs: ArrayLike | Pictures) -> NDArray[np.int64]:
        """The class number of each sample."""
        return np.asarray(np.argmax(self.scores(inputs), axis=1), dtype=np.int64)

    def predict_proba(self, inputs: ArrayLike | Pictures) -> Array:
        """The probability of each class, one row per sample; how it follows from the scores, the method says."""
        return self.method.probabilities(self.arrays, self.scores(inputs))

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


def load_model(path: str | Path, kind: type[Method] | None = None, *, features: str = "") -> Model:
    """The model in a file, checked. `kind` is the class of its method, where that is not of the catalogue.

    `features` says where its backbone is here, if that is not where it was: "onnx:FILE". It must be the same one.

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
        if kind is None and metadata["method"] not in methods.CATALOGUE:
            way_out = "if it is your own, give its class: load_model(path, Class) or --method package.module:Class"
            raise DataError(f"unknown method {metadata['method']!r}; {way_out}")
        method = kind(**settings) if kind else methods.create(metadata["method"], settings)
        if method.name != metadata["method"]:
            raise DataError(f"it is a model of {metadata['method']!r}, not of {method.name!r}")
        owner = metadata["owner"]
        check(arrays, "its arrays")
        numbers = sum(array.size for array in arrays.values())
        if max(task.width, task.classes) > max(LARGEST_INPUT, numbers):
            sizes = f"{task.width} features and {task.classes} classes"
            raise DataError(f"it announces {sizes}, and its arrays hold {numbers} numbers")
        # The arrays fit together if they give one score per class for an input of nothing.
        blank = method.predict(arrays, np.zeros((1, *task.shape)), task)
        if blank.shape != (1, task.classes):
            raise DataError(f"it gives scores of shape {blank.shape[1:]} for {task.classes} classes")
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
    """What version 0.1.0 wrote, as it is now: networks held their number of classes, and `local` all its parameters."""
    if method == "local":
        ridge = {name: settings.pop(name) for name in ("ridge", "intercept")}
        settings = ridge if settings["model"] == "ridge" else settings
    return {name: array for name, array in arrays.items() if name != "classes"}, settings


def _task(metadata: dict[str, str], features: str) -> Task:
    """The task of a model with the feature map that is here, which must be the model's."""
    if metadata["fedsolve"] == FORMAT:
        task = Task.from_text(metadata["task"])
        return task.with_map(maps.parse(features or str(task.features)))
    task = Task(  # format 1, of version 0.1.0: the parts of the task stand one by one
        target=Classes(int(metadata["classes"]), tuple(json.loads(metadata["class_names"]))),
        inputs=tuple(json.loads(metadata["inputs"])),
        features=maps.parse(features or metadata["features"]),
        feature_names=tuple(json.loads(metadata["feature_names"])),
    )
    if task.described != metadata["space"]:
        difference = maps.difference(task.described, metadata["space"])
        raise DataError(f"the features here are not the federation's: {difference}")
    return task
