"""What is predicted: one of several classes, or numbers. How labels are read, fitted and judged is decided here.

Labels of classes are class numbers, one per sample; labels of numbers are float64, one row per sample and one column
per number that is predicted, also where that is one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve import metrics
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.samples import check_labels, check_numbers, check_range
from fedsolve.errors import CONTROLS, DataError, ParameterError, brief
from fedsolve.parameters import whole

_CONTROL = re.compile(f"[{CONTROLS}]")
_MOST = 2**31 - 1  # classes, in a text of a task
STRATA = 10  # parts of equal size that numbers are cut into, where a split goes by labels
MOST_NUMBERS = 1000  # that are predicted at once: each has a name


@runtime_checkable
class Target(Protocol):
    """What is predicted: how labels are read, what least squares fits, and how answers are judged."""

    @property
    def kind(self) -> str:
        """The word for it in texts: "classes" or "numbers"."""
        ...

    @property
    def count(self) -> int:
        """How many classes there are, or how many numbers are predicted."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """One name each, or none."""
        ...

    @property
    def width(self) -> int:
        """How many columns least squares fits, and how many numbers a model gives for a sample."""
        ...

    def rows(self, labels: NDArray[Any]) -> Float:
        """The columns that least squares fits, one row per sample."""
        ...

    def read(self, labels: ArrayLike, whose: str) -> NDArray[Any]:
        """Labels as methods use them, from labels as files have them; `whose` they are stands in errors."""
        ...

    def fitted(self, clients: Iterable[NDArray[Any]]) -> Target:
        """The same target with what it takes from the training labels of all clients: the same for every split."""
        ...

    def strata(self, labels: NDArray[Any], among: NDArray[Any]) -> NDArray[np.int64]:
        """A whole number for each label, for splits that go by labels; `among` are all that are split."""
        ...

    def answers(self, outputs: Array) -> Array:
        """What a model answers, from what it gives for samples: class numbers, or the numbers as they are."""
        ...

    def tally(self, outputs: Array, probabilities: Callable[[], Array], labels: NDArray[Any]) -> dict[str, Array]:
        """What the answers of a model are worth; `probabilities` are asked for where they matter."""
        ...

    def sums(self, labels: NDArray[Any]) -> dict[str, Array]:
        """What the best constant answer follows from, of training labels: sums, which add over parts of them."""
        ...

    def baseline(self, train: Arrays, test: NDArray[Any]) -> dict[str, Array]:
        """The tally of the best constant answer that the `sums` of training labels give, on test labels."""
        ...

    def zero(self) -> dict[str, Array]:
        """The tally of no samples: what every tally has that adds up."""
        ...

    def check(self, tally: Arrays, source: str) -> None:
        """Refuse a tally that no answers to such a target have."""
        ...

    def words(self) -> dict[str, Any]:
        """The target as values of JSON."""
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

    def fitted(self, clients: Iterable[NDArray[Any]]) -> Classes:
        """The same: nothing of it comes from labels."""
        return self

    def strata(self, labels: NDArray[Any], among: NDArray[Any]) -> NDArray[np.int64]:
        """The class numbers themselves."""
        return labels

    def answers(self, outputs: Array) -> Array:
        """The class of the largest score."""
        return np.asarray(np.argmax(outputs, axis=1), dtype=np.int64)

    def tally(self, outputs: Array, probabilities: Callable[[], Array], labels: NDArray[Any]) -> dict[str, Array]:
        """Counts and sums of `metrics.classes`, and the exact area under the ROC curve where it is defined."""
        shares = probabilities()
        auc = metrics.classes.exact_auc(shares, labels)
        return metrics.classes.tally(outputs, shares, labels) | ({} if auc is None else {"auc": np.array(auc)})

    def sums(self, labels: NDArray[Any]) -> dict[str, Array]:
        """How many samples each class has."""
        return {"counts": np.bincount(labels, minlength=self.count)}

    def baseline(self, train: Arrays, test: NDArray[Any]) -> dict[str, Array]:
        """That of the commonest class."""
        return metrics.classes.baseline(train["counts"], self.sums(test)["counts"])

    def zero(self) -> dict[str, Array]:
        """Counts and sums of nothing."""
        return metrics.classes.zero(self.count)

    def check(self, tally: Arrays, source: str) -> None:
        """Refuse counts that do not fit together, and an area that is no share."""
        auc = tally.get("auc")
        if auc is not None and not (auc.shape == () and 0 <= float(auc) <= 1):
            raise DataError(
                f"{source}: the area under the ROC curve is a share; got {np.array2string(auc, threshold=4)}"
            )
        counted = {name: array for name, array in tally.items() if name != "auc"}
        metrics.classes.check(counted, self.count, source)

    def words(self) -> dict[str, Any]:
        """Number and names of the classes."""
        return {"kind": self.kind, "count": self.count, "names": list(self.names)}

    @classmethod
    def of_words(cls, words: Mapping[str, Any]) -> Classes:
        """The inverse of `words`."""
        count = whole("classes", words["count"], 1)
        if count > _MOST:
            raise DataError(f"its target has {brief(count)} classes; at most {_MOST} are possible")
        return cls(count, _texts(words["names"]))

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


@dataclass(frozen=True, slots=True, init=False)
class Numbers:
    """The target is one number or several, by name, in units of their own.

    Where labels are at hand, `origin` and `scale` are their means and deviations over all clients: methods that descend
    work in these units. Least squares works in the target's own.

    >>> blood = Numbers("pressure").fitted([np.array([[120.0], [140.0]]), np.array([[130.0]])])
    >>> blood.names, blood.origin, blood.read([118, 131], "a.csv").tolist()
    (('pressure',), (130.0,), [[118.0], [131.0]])
    """

    names: tuple[str, ...]
    origin: tuple[float, ...]
    scale: tuple[float, ...]
    kind: ClassVar[str] = "numbers"

    def __init__(self, names: str | Iterable[str], origin: Iterable[float] = (), scale: Iterable[float] = ()) -> None:
        names = (names,) if isinstance(names, str) else tuple(names)
        odd = [name for name in names if not isinstance(name, str) or _CONTROL.search(name)]
        if odd or not 0 < len(names) <= MOST_NUMBERS or len(set(names)) != len(names):
            raise ParameterError(
                f"numbers that are predicted have different names, from one to {MOST_NUMBERS}, without control "
                f"characters; got {brief(odd[0] if odd else names)}"
            )
        origin = tuple(map(float, origin)) or (0.0,) * len(names)
        scale = tuple(map(float, scale)) or (1.0,) * len(names)
        if len(origin) != len(names) or len(scale) != len(names):
            raise ParameterError(f"{len(names)} numbers need as many origins and scales")
        if not all(map(math.isfinite, origin)) or not all(0 < value < math.inf for value in scale):
            raise ParameterError("origins of numbers must be finite, and scales above zero")
        for field, value in (("names", names), ("origin", origin), ("scale", scale)):
            object.__setattr__(self, field, value)

    @property
    def count(self) -> int:
        """How many numbers are predicted."""
        return len(self.names)

    @property
    def width(self) -> int:
        """One column per number."""
        return self.count

    def rows(self, labels: NDArray[Any]) -> Float:
        """The labels themselves."""
        return np.asarray(labels, dtype=np.float64)

    def standard(self, labels: NDArray[Any]) -> Float:
        """The labels about their origin, over their scale: what methods that descend fit."""
        units: Float = (self.rows(labels) - np.array(self.origin)) / np.array(self.scale)
        return units

    def of_standard(self, outputs: Array) -> Float:
        """Numbers in the target's own units, from numbers about the origin, over the scale."""
        units: Float = np.asarray(outputs, dtype=np.float64) * np.array(self.scale) + np.array(self.origin)
        return units

    def read(self, labels: ArrayLike, whose: str) -> Float:
        """Finite numbers, one row per sample; a plain list is one column."""
        rows = check_numbers(labels, whose)
        if rows.shape[1] != self.count:
            raise DataError(
                f"{whose}: a sample has {self.count} numbers to predict ({', '.join(self.names)}); got {rows.shape[1]}"
            )
        return rows

    def fitted(self, clients: Iterable[NDArray[Any]]) -> Numbers:
        """The same numbers with origin and scale: means and deviations over all labels, from exact sums."""
        parts = [self.rows(labels) for labels in clients if len(labels)]
        if not parts:
            return self
        count = sum(map(len, parts))
        columns = [[value for part in parts for value in part[:, place].tolist()] for place in range(self.count)]
        means = [math.fsum(column) / count for column in columns]
        squares = [
            math.fsum((value - mean) ** 2 for value in column) for column, mean in zip(columns, means, strict=True)
        ]
        deviations = [math.sqrt(square / count) for square in squares]
        return replace(self, origin=tuple(means), scale=tuple(value if value > 0 else 1.0 for value in deviations))

    def rough(self) -> Numbers:
        """The same numbers with one digit of each scale, and origins to that digit: enough to work in.

        >>> Numbers("pressure", [128.4], [17.2]).rough()
        Numbers(names=('pressure',), origin=(130.0,), scale=(20.0,))
        """
        digits = [10.0 ** math.floor(math.log10(scale)) for scale in self.scale]
        origin = [round(value / digit) * digit for value, digit in zip(self.origin, digits, strict=True)]
        scale = [max(1, round(value / digit)) * digit for value, digit in zip(self.scale, digits, strict=True)]
        return replace(self, origin=tuple(origin), scale=tuple(scale))

    @classmethod
    def together(cls, parts: Sequence[tuple[Numbers, int]]) -> Numbers:
        """The numbers of several sites, each with how many samples it has: origin and scale of all samples.

        >>> Numbers.together([(Numbers("a", [1.0], [1.0]), 10), (Numbers("a", [3.0], [1.0]), 10)]).origin
        (2.0,)
        """
        counts = np.array([float(count) for _, count in parts])
        shares = (counts / counts.sum())[:, None] if counts.sum() > 0 else np.full((len(parts), 1), 1 / len(parts))
        origins, scales = (np.array([getattr(part, name) for part, _ in parts]) for name in ("origin", "scale"))
        origin = (shares * origins).sum(0)
        scale = np.sqrt((shares * (np.square(scales) + np.square(origins - origin))).sum(0))
        return cls(parts[0][0].names, origin.tolist(), scale.tolist())

    def strata(self, labels: NDArray[Any], among: NDArray[Any]) -> NDArray[np.int64]:
        """The tenth that the first number falls into."""
        inner = np.quantile(among[:, 0], np.linspace(0, 1, STRATA + 1)[1:-1])
        return np.searchsorted(inner, labels[:, 0], side="right").astype(np.int64)

    def answers(self, outputs: Array) -> Array:
        """The numbers as they are; one column becomes a plain list of numbers."""
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def tally(self, outputs: Array, probabilities: Callable[[], Array], labels: NDArray[Any]) -> dict[str, Array]:
        """Sums of errors, of `metrics.numbers`."""
        return metrics.numbers.tally(outputs, labels, self.origin)

    def sums(self, labels: NDArray[Any]) -> dict[str, Array]:
        """How many samples there are, and the sums of their numbers."""
        return {"count": np.array(len(labels)), "sums": self.rows(labels).sum(0)}

    def baseline(self, train: Arrays, test: NDArray[Any]) -> dict[str, Array]:
        """That of the mean of the training labels."""
        return metrics.numbers.baseline((train["sums"] / train["count"])[None], test, self.origin)

    def zero(self) -> dict[str, Array]:
        """Sums of nothing."""
        return metrics.numbers.zero(self.count)

    def check(self, tally: Arrays, source: str) -> None:
        """Refuse sums that no errors have."""
        metrics.numbers.check(tally, self.count, source)

    def words(self) -> dict[str, Any]:
        """Names, and where labels were at hand, origin and scale."""
        return {"kind": self.kind, "names": list(self.names), "origin": list(self.origin), "scale": list(self.scale)}

    @classmethod
    def of_words(cls, words: Mapping[str, Any]) -> Numbers:
        """The inverse of `words`."""
        return cls(_texts(words["names"]), _floats(words["origin"]), _floats(words["scale"]))


def target_words(target: Target) -> str:
    """A target in a few words.

    >>> target_words(Classes(3)), target_words(Numbers(("systolic", "diastolic")))
    ('3 classes', 'numbers systolic, diastolic')
    """
    if target.kind == Classes.kind:
        return f"{target.count} classes"
    more = f" and {target.count - 5} more" if target.count > 5 else ""
    return f"number{'s' * (target.count > 1)} {', '.join(target.names[:5])}{more}"


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"wanted a list of texts; got {brief(values)}")
    return tuple(values)


def _floats(values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise TypeError(f"wanted a list of numbers; got {brief(values)}")
    return tuple(map(float, values))


TARGETS: Mapping[str, type[Classes] | type[Numbers]] = {Classes.kind: Classes, Numbers.kind: Numbers}
