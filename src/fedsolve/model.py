"""A trained model: named arrays and all it takes to predict with them, in memory or in one file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve import codec, methods, parameters
from fedsolve.arrays import Array, Arrays, check
from fedsolve.data.federation import Task, check_inputs
from fedsolve.data.frames import in_columns
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import maps
from fedsolve.features.cache import Progress, extract
from fedsolve.features.images import ANY_SIZE, Pictures
from fedsolve.features.maps import difference
from fedsolve.method import Method

FORMAT = "1"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Predicts from raw inputs, of the shape the federation had them in."""

    method: Method
    task: Task
    arrays: Arrays
    owner: str  # the client it was made for, or "global"

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
            "classes": str(self.task.classes),
            "class_names": json.dumps(self.task.class_names),
            "feature_names": json.dumps(self.task.feature_names),
            "inputs": json.dumps(self.task.inputs),
            "features": str(self.task.features),
            "space": self.task.described,
        }


def load_model(path: str | Path, kind: type[Method] | None = None, *, features: str = "") -> Model:
    """The model in a file, checked. `kind` is the class of its method, where that is not of the catalogue.

    `features` says where its backbone is here, if that is not where it was: "onnx:FILE". It must be the same one.
    """
    arrays, metadata = codec.read_file(Path(path))
    if metadata.get("fedsolve") != FORMAT:
        found = metadata.get("fedsolve", "none")
        raise DataError(f"{path} is not a fedsolve model of format {FORMAT}; it says {found!r}")
    try:
        task = Task(
            classes=int(metadata["classes"]),
            inputs=tuple(json.loads(metadata["inputs"])),
            features=maps.parse(features or metadata["features"]),
            class_names=tuple(json.loads(metadata["class_names"])),
            feature_names=tuple(json.loads(metadata["feature_names"])),
        )
        settings = json.loads(metadata["settings"])
        if kind is None and metadata["method"] not in methods.CATALOGUE:
            way_out = "if it is your own, give its class: load_model(path, Class) or --method package.module:Class"
            raise DataError(f"unknown method {metadata['method']!r}; {way_out}")
        method = kind(**settings) if kind else methods.create(metadata["method"], settings)
        if method.name != metadata["method"]:
            raise DataError(f"it is a model of {metadata['method']!r}, not of {method.name!r}")
        if task.described != metadata["space"]:
            raise DataError(f"its features are not those here: {difference(task.described, metadata['space'])}")
        if task.class_names and len(task.class_names) != task.classes:
            raise DataError(f"it names {len(task.class_names)} of {task.classes} classes")
        owner = metadata["owner"]
        check(arrays, "its arrays")
        # The arrays fit together if they give one score a class for an input of nothing.
        blank = method.predict(arrays, np.zeros((1, *task.shape)), task)
        if blank.shape != (1, task.classes):
            raise DataError(f"it gives scores of shape {blank.shape[1:]} for {task.classes} classes")
    except FedsolveError as error:
        raise DataError(f"{path} cannot be used: {error}") from error
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, MemoryError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return Model(method, task, arrays, owner)
