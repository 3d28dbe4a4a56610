"""What all sides agree on before anything is computed: the target and the feature space, in memory and as one text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace

from fedsolve.data.target import TARGETS
from fedsolve.data.target import Classes as Classes
from fedsolve.data.target import Numbers as Numbers
from fedsolve.data.target import Target as Target
from fedsolve.errors import CONTROLS, DataError, ParameterError, brief, plain
from fedsolve.features.columns import Columns
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.features.maps import Chain, FeatureMap, Identity, described, difference, from_words, in_words, space
from fedsolve.parameters import whole
from fedsolve.texts import read_json

_CONTROL = re.compile(f"[{CONTROLS}]")
_LARGEST_SIDE = 2**31 - 1  # of inputs and features in a text of a task
_MOST_SIDES = 16


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
        """The number of classes; none where the target is numbers."""
        return self.target.count if self.target.kind == Classes.kind else 0

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in order, where they have some."""
        return self.target.names if self.target.kind == Classes.kind else ()

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample: one per class, or one per number that is predicted."""
        return self.target.width

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as methods see it: of its features."""
        return self.features.shape(self.inputs)

    @property
    def width(self) -> int:
        """How many numbers the features of one sample are."""
        return math.prod(self.shape)

    @property
    def preparation(self) -> Columns | None:
        """The map that makes numbers of a table's columns, where features begin with one."""
        first = self.features.maps[0] if isinstance(self.features, Chain) else self.features
        return first if isinstance(first, Columns) else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the features, where they are the numbers of an input one by one; else none."""
        first, *rest = self.features.maps if isinstance(self.features, Chain) else (self.features,)
        names = self.preparation.names if self.preparation else self.feature_names
        alone = [*rest] if self.preparation else [first, *rest]
        kinds = {each.identity.partition(":")[0] for each in alone}
        return names if kinds <= {"identity", "unit", "clip", "ones"} else ()

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
        return json.dumps(
            {
                "target": self.target.words(),
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
            words = values["target"]
            kind = _text(words["kind"])
            if kind not in TARGETS:
                raise DataError(f"its target is of kind {brief(kind)}; this version knows {', '.join(TARGETS)}")
            remote = Elsewhere(_text(values["features"]), _text(values["identity"]), _sides(values["shape"]))
            task = cls(
                target=TARGETS[kind].of_words(words),
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
