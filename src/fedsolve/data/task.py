"""What all sides agree on before anything is computed: the target and the feature space, in memory and as one text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve.arrays import Float
from fedsolve.data.samples import check_labels, check_range
from fedsolve.errors import CONTROLS, DataError, ParameterError, brief, plain
from fedsolve.features.columns import Columns
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.features.maps import Chain, FeatureMap, Identity, described, difference, from_words, in_words, space
from fedsolve.parameters import whole
from fedsolve.texts import read_json

_CONTROL = re.compile(f"[{CONTROLS}]")
_LARGEST_SIDE = 2**31 - 1  # of inputs and features, and the largest number of classes, in a text of a task
_MOST_SIDES = 16


@runtime_checkable
class Target(Protocol):
    """What is predicted: how labels are read, and what least squares fits."""

    @property
    def kind(self) -> str:
        """The word for it in texts: "classes"."""
        ...

    @property
    def count(self) -> int:
        """How many classes there are."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """One name each, or none."""
        ...

    @property
    def width(self) -> int:
        """How many columns least squares fits."""
        ...

    def rows(self, labels: NDArray[Any]) -> Float:
        """The columns that least squares fits, one row per sample."""
        ...

    def read(self, labels: ArrayLike, whose: str) -> NDArray[np.int64]:
        """Labels as methods use them, from labels as files have them; `whose` they are stands in errors."""
        ...


@dataclass(frozen=True, slots=True)
class Classes:
    """The target is one of `count` classes, which may have names.

    >>> colours = Classes(3, ("blue", "green", "red"))
    >>> colours.read(["red", "blue"], "a.csv")
    array([2, 0])
    >>> colours.rows(colours.read(["red", "blue"], "a.csv"))
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """

    count: int
    names: tuple[str, ...] = ()
    kind: ClassVar[str] = "classes"

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole("classes", self.count, 1))
        object.__setattr__(self, "names", tuple(self.names))
        for name in self.names:
            if not isinstance(name, str) or _CONTROL.search(name):
                raise ParameterError(f"class_names must be texts without control characters; got {brief(name)}")
        if self.names and len(self.names) != self.count:
            raise ParameterError(f"class_names must name each of {self.count} classes; got {len(self.names)}")

    @property
    def width(self) -> int:
        """One column per class."""
        return self.count

    def rows(self, labels: NDArray[Any]) -> Float:
        """One row per sample: one in the column of its class, zero elsewhere."""
        rows = np.zeros((len(labels), self.count))
        rows[np.arange(len(labels)), labels] = 1.0
        return rows

    def read(self, labels: ArrayLike, whose: str) -> NDArray[np.int64]:
        """Class numbers, from names where classes have them; refused where a class is not one of these."""
        raw = np.asarray(labels)
        if self.names:
            return self._numbers(raw, whose)
        if raw.ndim == 1 and raw.dtype.kind == "U" and len(raw):
            raise DataError(
                f"{whose}: labels must be integers from 0 to {self.count - 1}, since the classes have no names; "
                f"got {str(raw[0])!r} in row 0"
            )
        numbers = check_labels(raw, whose)
        check_range(numbers, self.count, whose)
        return numbers

    def _numbers(self, labels: NDArray[Any], whose: str) -> NDArray[np.int64]:
        if labels.ndim != 1:
            raise DataError(f"{whose}: labels must be one class per sample; got {labels.dtype}{list(labels.shape)}")
        if labels.dtype.kind == "f" and (np.floor(labels) == labels).all():
            labels = labels.astype(np.int64)
        texts = labels.astype(np.str_).tolist()  # a file that shows only the classes "1" and "2" reads as numbers
        numbers = {name: number for number, name in enumerate(self.names)}
        strange = sorted(set(texts) - set(numbers))
        if strange:
            raise DataError(f"{whose}: unknown class {strange[0]!r}; known: {', '.join(self.names)}")
        return np.array([numbers[text] for text in texts], dtype=np.int64)


_TARGETS: dict[str, type[Classes]] = {Classes.kind: Classes}


@dataclass(frozen=True, slots=True)
class Task:
    """What all sides agree on before anything is computed: the target and the feature space.

    >>> task = Task(Classes(2, ("ill", "well")), (3,), feature_names=("age", "pulse", "weight"))
    >>> task.classes, task.width, task.described
    (2, 3, 'identity of (3,)')
    >>> Task.from_text(task.to_text(), Identity()) == task
    True
    """

    target: Target
    inputs: tuple[int, ...]  # shape of one raw input; images.ANY_SIZE where each picture has its own
    features: FeatureMap = field(default_factory=Identity)
    feature_names: tuple[str, ...] = ()  # where the numbers of an input have names

    def __post_init__(self) -> None:
        if not isinstance(self.target, Target):
            raise ParameterError(f"a task needs a target, as in Task(Classes(2), (3,)); got {self.target!r}")

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.target.count

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in order, where they have some."""
        return self.target.names

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as methods see it: of its features."""
        return self.features.shape(self.inputs)

    @property
    def width(self) -> int:
        """How many numbers the features of one sample are."""
        return math.prod(self.shape)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the features, where they are the numbers of an input one by one; else none."""
        first, *rest = self.features.maps if isinstance(self.features, Chain) else (self.features,)
        names = first.names if isinstance(first, Columns) else self.feature_names
        alone = [*rest] if isinstance(first, Columns) else [first, *rest]
        return names if {each.identity for each in alone} <= {"identity", "unit", "ones"} else ()

    @property
    def space(self) -> int:
        """The identity of the feature space, as a number."""
        return space(self.features, self.inputs)

    @property
    def described(self) -> str:
        """The feature space in words."""
        return described(self.features, self.inputs)

    def to_text(self) -> str:
        """The task as JSON, with the specification and identity of its feature map and the shape of the features."""
        target = self.target
        return json.dumps(
            {
                "target": {"kind": target.kind, "count": target.count, "names": target.names},
                "inputs": self.inputs,
                "feature_names": self.feature_names,
                "features": str(self.features),
                "identity": self.features.identity,
                "shape": self.shape,
            }
        )

    @classmethod
    def from_text(cls, text: str, features: FeatureMap | None = None) -> Task:
        """The task in a text of `to_text`, with the feature map that is here, which must be the same one.

        Without a map the task knows what its map is called and how wide it is, but cannot compute features.
        """
        try:
            values = read_json(text, "the text of its task")
            target = values["target"]
            kind, count = _text(target["kind"]), whole("classes", target["count"], 1)
            if kind not in _TARGETS:
                raise DataError(f"its target is of kind {brief(kind)}; this version knows {', '.join(_TARGETS)}")
            if count > _LARGEST_SIDE:
                raise DataError(f"its target has {brief(count)} classes; at most {_LARGEST_SIDE} are possible")
            remote = Elsewhere(_text(values["features"]), _text(values["identity"]), _sides(values["shape"]))
            task = cls(
                target=_TARGETS[kind](count, _texts(target["names"])),
                inputs=_sides(values["inputs"]),
                features=remote,
                feature_names=_texts(values["feature_names"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"the text of its task is damaged: {type(error).__name__}: {plain(str(error))}") from error
        return task if features is None else task.with_map(features)

    def located(self, local: str = "") -> Task:
        """The same task with its map as it can be had here; `local` is a specification that was given here.

        Without one, a map that takes a network stays elsewhere: the task is known, features are not computed.

        >>> Task.from_text(Task(Classes(2), (3,)).to_text()).located().features
        Identity()
        """
        return self.with_map(from_words(self.features, self.inputs, local))

    def with_map(self, features: FeatureMap) -> Task:
        """The same task with the map that is here; refused in words where that is another map than the task's."""
        if features.identity != self.features.identity:
            here = in_words(features.identity, self.inputs)
            raise DataError(f"the features here are not the federation's: {difference(here, self.described)}")
        task = replace(self, features=features)
        if task.shape != self.shape:
            raise DataError(f"the features here have the shape {task.shape}, not the federation's {self.shape}")
        return task


def _text(value: object) -> str:
    if not isinstance(value, str) or _CONTROL.search(value):
        raise TypeError(f"wanted a text without control characters; got {brief(value)}")
    return value


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"wanted a list of texts; got {brief(values)}")
    return tuple(map(_text, values))


def _sides(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > _MOST_SIDES:
        raise TypeError(f"wanted a list of at most {_MOST_SIDES} integers; got {brief(values)}")
    sides = tuple(whole("a side of a shape", value, -1) for value in values)
    if any(side > _LARGEST_SIDE for side in sides):
        raise ValueError(f"a side of a shape is at most {_LARGEST_SIDE}; got {brief(values)}")
    return sides
