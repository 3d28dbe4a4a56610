"""Convolutional features without gradients: how strongly the federation's own filters answer to a picture's patches.

A feature is a filter's mean answer over a window of places (`fedsolve.features.answers`), then its root, about the
federation's mean, over its deviation. Filters, means and deviations come from sums over clients: the directions of
patches that k-means finds (`fedsolve.features.clusters` fits them), the same however pictures are split. They stand in
the map's own specification, as bytes behind `numbers=`: words decide it, and nothing has to be carried beside a model.

Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, finite
from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.features.answers import WINDOWS, Answers
from fedsolve.features.images import Inputs
from fedsolve.progress import Tick
from fedsolve.threads import ONE_THREAD, cores

NAME = "patches"
ROOT = 0.02  # added before the root, so that its slope stays small where an answer is nearly zero
PICTURES = 32  # that one thread takes at a time
LARGEST = 2**24  # numbers of all filters
WIDEST = 2**20  # features
_NUMBERS = "numbers"  # the option that holds what was fitted
_FORM = f"{NAME}:HEIGHTxWIDTHxFILTERS, as in {NAME}:6x6x320, then options such as mirror=yes behind commas"
_INTEGERS = {
    "height": (1, 64),
    "width": (1, 64),
    "filters": (1, 65536),
    "directions": (0, 65536),
    "steps": (0, 1000),
    "seed": (0, 2**63 - 1),
}
_POSITIVE = ("contrast", "smoothing")

Single: TypeAlias = NDArray[np.float32]
Half: TypeAlias = NDArray[np.float16]


@dataclass(frozen=True)
class Recipe:
    """Everything about a map of patches that is chosen and not fitted.

    >>> str(Recipe.read("6x6x320,mirror=yes,threshold=0.25")), Recipe.read("").rounds
    ('patches:6x6x320,mirror=yes', 7)
    """

    height: int = 6
    width: int = 6
    filters: int = 320
    mirror: bool = False  # the mirror image counts as much as the picture
    windows: str = "five"  # of places, whose answers are averaged: a name in WINDOWS
    threshold: float = 0.25  # below it, an answer counts as none; answers have a variance of about one
    contrast: float = 0.2  # times the federation's mean variance of a patch: added to the variance of each
    directions: int = 0  # of most variance, which are whitened; 0: two thirds of the numbers in a patch
    smoothing: float = 0.1  # added to the variance of each direction before it is whitened
    steps: int = 4  # of k-means
    seed: int = 0  # of the filters that k-means starts from

    def __post_init__(self) -> None:
        for name, (low, high) in _INTEGERS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ParameterError(f"{name} of {NAME} must be an integer from {low} to {high}; got {value!r:.40}")
        for name in ("threshold", *_POSITIVE):
            value = getattr(self, name)
            if not 0 <= value <= 1e6 or (name in _POSITIVE and not value > 0):
                lowest = "above 0" if name in _POSITIVE else "from 0"
                raise ParameterError(f"{name} of {NAME} must be a number {lowest} to 1e6; got {value!r:.40}")
        if self.windows not in WINDOWS:
            raise unknown(f"windows of {NAME}", str(self.windows)[:40], WINDOWS)
        if self.size > WIDEST:
            raise ParameterError(f"{self} gives {self.size} features; at most {WIDEST} are possible")

    @classmethod
    def read(cls, argument: str) -> Recipe:
        """The recipe in a text HEIGHTxWIDTHxFILTERS,OPTION=VALUE,...; no text stands for 6x6x320."""
        return cls(**_settings(argument))

    @property
    def rounds(self) -> int:
        """How many sums over clients fit it: contrast, covariance, the steps of k-means, means of the features."""
        return self.steps + 3

    @property
    def size(self) -> int:
        """How many features there are: per filter and window one above its threshold, and one below."""
        return 2 * self.filters * WINDOWS[self.windows]

    def numbers(self, channels: int) -> int:
        """How many numbers a patch has."""
        return self.height * self.width * channels

    def kept(self, channels: int) -> int:
        """How many directions of a patch are kept when it is whitened."""
        numbers = self.numbers(channels)
        return min(self.directions, numbers) if self.directions else max(1, 2 * numbers // 3)

    def channels(self, inputs: tuple[int, ...]) -> int:
        """The channels of pictures of such a shape; refuses what are no pictures, and too small ones."""
        if len(inputs) not in (2, 3):
            raise DataError(f"{NAME} takes pictures, (height, width) or (height, width, channels); got shape {inputs}")
        if any(0 <= side < least for side, least in zip(inputs[:2], (self.height, self.width), strict=True)):
            sides = f"{inputs[0]} x {inputs[1]}"
            raise DataError(f"patches of {self.height} x {self.width} pixels do not fit into pictures of {sides}")
        return inputs[2] if len(inputs) == 3 else 1

    def __str__(self) -> str:
        chosen = [f"{name}={_written(getattr(self, name))}" for name in _DEFAULTS if self._differs(name)]
        return f"{NAME}:{','.join([f'{self.height}x{self.width}x{self.filters}', *chosen])}"

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != _DEFAULTS[name])


_DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(Recipe)[3:]}


def _written(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _settings(argument: str) -> dict[str, Any]:
    """The settings of a recipe in a text."""
    first, *words = argument.split(",") if argument else ["6x6x320"]
    if not re.fullmatch(r"[0-9]{1,5}x[0-9]{1,5}x[0-9]{1,5}", first):
        raise ParameterError(f"{NAME} is written {_FORM}; got {argument[:80]!r}")
    settings: dict[str, Any] = dict(zip(("height", "width", "filters"), map(int, first.split("x")), strict=True))
    for word in words:
        name, _, text = word.partition("=")
        if name not in _DEFAULTS:
            raise unknown(f"option of {NAME}", word[:40], _DEFAULTS)
        if name in settings:
            raise ParameterError(f"{NAME} is told its {name} twice; got {argument[:80]!r}")
        settings[name] = _value(name, text)
    return settings


def _value(name: str, text: str) -> object:
    kind = type(_DEFAULTS[name])
    try:
        return {"yes": True, "no": False}[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = {bool: "yes or no", int: "an integer", float: "a number"}[kind]
        raise ParameterError(f"{name} of {NAME} must be {wanted}; got {text[:40]!r}") from None


def unfitted(text: str) -> Recipe | None:
    """The recipe in a specification that is still to be fitted; None for any other.

    >>> unfitted("patches:5x5x64").filters, unfitted("unit")
    (64, None)
    """
    name, _, argument = text.partition(":")
    return Recipe.read(argument) if name == NAME and f",{_NUMBERS}=" not in argument else None


# --- the fitted map ---


class Bank(NamedTuple):
    """What is fitted. Filters are small integers with a gain each: it is they that are agreed on, not what they round.

    The fitted numbers of 320 filters for 6 x 6 pixels in colour are 50 kB.
    """

    contrast: float  # added to the variance of a patch, in the units of the pictures
    filters: NDArray[np.int8]  # numbers of a patch x filters
    gain: Single  # of each filter
    offset: Single  # what each filter answers to the mean patch
    origin: Half  # of each feature
    scale: Half


@dataclass(frozen=True, repr=False)
class Patches:
    """A fitted map from pictures to features.

    Bytes and single precision are computed in single precision, other numbers in double.
    """

    recipe: Recipe
    channels: int
    numbers: bytes  # of a `Bank`

    def __post_init__(self) -> None:
        if not 1 <= self.channels < 2**16 or self.recipe.numbers(self.channels) * self.recipe.filters > LARGEST:
            raise ParameterError(f"{self.recipe} of {self.channels} channels takes more than {LARGEST} numbers")
        if len(self.numbers) != sum(_lengths(self.recipe, self.channels)):
            wanted = sum(_lengths(self.recipe, self.channels))
            raise ParameterError(f"{self.recipe} takes {wanted} fitted bytes; got {len(self.numbers)}")
        bank = self.bank
        positive = 0 < bank.contrast < math.inf and bank.scale.min() > 0
        if not (positive and all(finite(part) for part in (bank.gain, bank.offset, bank.origin, bank.scale))):
            raise ParameterError(f"fitted numbers of {self.recipe} must be finite, contrast and scales above zero")

    @classmethod
    def of(cls, recipe: Recipe, channels: int, bank: Bank) -> Patches:
        """The map with these filters."""
        parts = (np.asarray(part, dtype=kind).tobytes() for part, kind in zip(bank, _KINDS, strict=True))
        return cls(recipe, channels, b"".join(parts))

    @classmethod
    def read(cls, argument: str) -> Patches:
        """The map in a text that `str` wrote."""
        settings, _, numbers = argument.partition(f",{_NUMBERS}=")
        try:
            content = base64.b64decode(numbers.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise ParameterError(f"the fitted numbers of {NAME} are damaged") from None
        return cls(Recipe.read(settings), int.from_bytes(content[:2], "little"), content[2:])

    @property
    def bank(self) -> Bank:
        """The fitted numbers as arrays."""
        return _bank(self.numbers, self.recipe, self.channels)

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """One row of features; refuses pictures with other channels, and those smaller than a patch."""
        channels = self.recipe.channels(inputs)
        if channels != self.channels:
            raise DataError(f"{self.recipe} was fitted to pictures of {self.channels} channels; these have {channels}")
        return (self.recipe.size,)

    @staticmethod
    def precision(inputs: Inputs) -> np.dtype[Any]:
        """Of the features of these inputs."""
        single = not isinstance(inputs, np.ndarray) or inputs.dtype in (np.uint8, np.float16, np.float32)
        return np.dtype(np.float32 if single else np.float64)

    def __call__(self, inputs: Inputs, tick: Tick | None = None) -> Array:
        """The features of pictures; `tick` is told how many are done. Threads take some pictures each."""
        kind = self.precision(inputs)
        answers, bank = _answers(self, kind), self.bank
        origin, scale = bank.origin.astype(kind), bank.scale.astype(kind)
        features = np.empty((len(inputs), self.recipe.size), dtype=kind)

        def work(start: int) -> int:
            some = inputs[start : start + PICTURES]
            for number, means in enumerate(answers.means(self._checked(some)), start):
                features[number] = (np.sqrt(means.ravel() + kind.type(ROOT)) - origin) / scale
            return len(some)

        done = 0
        with ONE_THREAD, ThreadPoolExecutor(cores()) as pool:
            for count in pool.map(work, range(0, len(inputs), PICTURES)):
                done += count
                if tick:
                    tick(done)
        return features

    def _checked(self, pictures: Inputs) -> Any:
        """The pictures one by one, each with the channels and the size that it takes."""
        for picture in pictures:
            self.shape(picture.shape)
            yield picture

    @property
    def identity(self) -> str:
        """The recipe, and a digest of it and the fitted numbers."""
        return f"{self.recipe}; numbers {hashlib.sha256(str(self).encode()).hexdigest()[:32]}"

    def __repr__(self) -> str:
        return f"Patches({str(self.recipe)!r}, {self.channels} channels)"

    def __str__(self) -> str:
        content = self.channels.to_bytes(2, "little") + self.numbers
        return f"{self.recipe},{_NUMBERS}={base64.b64encode(content, altchars=b'-_').decode()}"


_KINDS = ("<f8", "<i1", "<f4", "<f4", "<f2", "<f2")  # of a bank, in its order


def _lengths(recipe: Recipe, channels: int) -> tuple[int, ...]:
    """How many bytes each part of a bank takes."""
    filters = recipe.filters
    return 8, recipe.numbers(channels) * filters, 4 * filters, 4 * filters, 2 * recipe.size, 2 * recipe.size


@lru_cache(maxsize=8)
def _bank(content: bytes, recipe: Recipe, channels: int) -> Bank:
    ends = np.cumsum(_lengths(recipe, channels)).tolist()
    parts = zip([0, *ends[:-1]], ends, _KINDS, strict=True)
    contrast, filters, *rest = (np.frombuffer(content[start:end], dtype=kind) for start, end, kind in parts)
    return Bank(float(contrast[0]), filters.reshape(-1, recipe.filters), *rest)


@lru_cache(maxsize=4)
def _answers(features: Patches, kind: np.dtype[Any]) -> Answers:
    """The filters of a map, ready to compute with."""
    recipe, bank = features.recipe, features.bank
    weights = bank.filters * bank.gain.astype(np.float64)
    offset = bank.offset.astype(np.float64)
    above, below = offset + recipe.threshold, offset - recipe.threshold
    weights, above, below = (np.ascontiguousarray(each, dtype=kind) for each in (weights, above, below))
    size = (recipe.height, recipe.width)
    return Answers(*size, bank.contrast, recipe.windows, weights, above, below, mirror=recipe.mirror)
