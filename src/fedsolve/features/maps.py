"""Feature maps: frozen values whose text determines them, so that two sites can tell whether theirs agree.

`str()` of a map is its specification and `parse` the inverse; its identity is what decides the features: the same text,
but for a network read from a file, of which the weights count and not the place. A random map is a seed and a
distribution, never a matrix: everybody draws the same matrix from the same text.

`parse` opens what a text names, so it is for texts from the command line or from code. What a file or a message tells
of a map goes through `from_words`, which opens nothing but what was named here, and only if it has the weights.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np

from fedsolve.arrays import Array, Float, flat
from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.features import backbone, columns, patches, standard
from fedsolve.features.lengths import Clip as Clip
from fedsolve.features.lengths import UnitLength as UnitLength
from fedsolve.features.lengths import bound as bound
from fedsolve.features.lengths import unit_rows
from fedsolve.parameters import whole
from fedsolve.rng import derive

LARGEST_MATRIX = 2**30  # numbers of a random projection: 8 GB
ROWS = 4096  # rows are projected in blocks, so that float64 copies of the inputs stay small
LARGEST = 2**27  # numbers of a sample, or of a random matrix, that a file or a message may ask for: 1 GB


@runtime_checkable
class FeatureMap(Protocol):
    """A fixed function of the inputs."""

    @property
    def identity(self) -> str:
        """What decides the features: parts behind semicolons, each a name and a value."""
        ...

    def __hash__(self) -> int:
        """Feature maps are values: equal maps have equal hashes, so that results can be kept by map."""
        ...

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the features of one sample, given the shape of its input."""
        ...

    def __call__(self, inputs: Array) -> Array:
        """The features of a batch of inputs."""
        ...


class _Words:
    """A map that its specification decides alone."""

    @property
    def identity(self) -> str:
        """The specification, which decides everything."""
        return str(self)


@dataclass(frozen=True)
class Identity(_Words):
    """The inputs as they are."""

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the input."""
        return inputs

    def __call__(self, inputs: Array) -> Array:
        """The inputs as they are, not copied."""
        return inputs

    def bound(self, before: float | None) -> float | None:
        """What bounds the inputs."""
        return before

    def __str__(self) -> str:
        return "identity"


@dataclass(frozen=True)
class Ones(_Words):
    """The inputs with a feature that is always one behind them."""

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """One number more, in one row."""
        return (int(np.prod(inputs)) + 1,)

    def __call__(self, inputs: Array) -> Array:
        """The inputs and a column of ones."""
        rows = flat(inputs)
        return np.column_stack([rows, np.ones(len(rows), dtype=rows.dtype)])

    def bound(self, before: float | None) -> float | None:
        """That of the inputs, and one number more."""
        return None if before is None else math.hypot(before, 1.0)

    def __str__(self) -> str:
        return "ones"


@dataclass(frozen=True)
class RandomProjection(_Words):
    """`size` random directions, then an activation.

    The scale: every input is brought to unit length and the entries of the matrix are standard normal, so each value
    before the activation is a draw from N(0, 1), whatever the size and number of the inputs. There relu is half open,
    and tanh, sigmoid and the others bend without saturating.
    """

    size: int
    activation: str = "relu"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole("the size of a random projection", self.size, 1))
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", str(self.activation), ACTIVATIONS)
        object.__setattr__(self, "seed", whole("the seed of a random projection", self.seed, 0))

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """One row of `size` numbers, whatever the input."""
        return (self.size,)

    def __call__(self, inputs: Array) -> Float:
        """The activated projections of the inputs."""
        rows = flat(inputs)
        activate = ACTIVATIONS[self.activation]
        if not rows.any():  # blank samples, which models are tried with, are projected to zero by any matrix
            return activate(np.zeros((len(rows), self.size)))
        matrix = projection(self, rows.shape[1])
        result = np.empty((len(rows), self.size))
        for start in range(0, len(rows), ROWS):
            found = np.matmul(unit_rows(rows[start : start + ROWS]), matrix, out=result[start : start + ROWS])
            np.copyto(found, np.maximum(found, 0.0, out=found) if self.activation == "relu" else activate(found))
        return result

    def __str__(self) -> str:
        return f"random:{self.size},{self.activation},{self.seed}"


@dataclass(frozen=True)
class Chain:
    """One map after the other."""

    maps: tuple[FeatureMap, ...]

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape after the last."""
        for each in self.maps:
            inputs = each.shape(inputs)
        return inputs

    def __call__(self, inputs: Array) -> Array:
        """The features after the last."""
        for each in self.maps:
            inputs = each(inputs)
        return inputs

    def bound(self, before: float | None) -> float | None:
        """The length that no row exceeds after the last map."""
        for each in self.maps:
            before = bound(each, before)
        return before

    @property
    def identity(self) -> str:
        """The identities of its maps, in order, joined by a plus."""
        return "+".join(each.identity for each in self.maps)

    def __str__(self) -> str:
        return "+".join(map(str, self.maps))


def _gelu(z: Float) -> Float:
    from scipy.special import erf  # slow to load, and most sites never need it

    result: Float = 0.5 * z * (1.0 + erf(z / np.sqrt(2.0)))
    return result


ACTIVATIONS: dict[str, Callable[[Float], Float]] = {
    "relu": lambda z: np.maximum(z, 0.0),
    "leaky": lambda z: np.where(z > 0, z, 0.01 * z),
    "gelu": _gelu,
    "tanh": np.tanh,
    "sigmoid": lambda z: 0.5 * (1.0 + np.tanh(0.5 * z)),
    "hardswish": lambda z: z * np.clip(z / 6.0 + 0.5, 0.0, 1.0),
    "softplus": lambda z: np.logaddexp(0.0, z),
    "none": lambda z: z,
}


@lru_cache(maxsize=8)
def _matrix(seed: int, width: int, size: int) -> Float:
    """The projection: drawn from the seed by everybody who needs it."""
    matrix = derive(seed, "random projection", width, size).standard_normal((width, size))
    matrix.flags.writeable = False
    return matrix


def projection(features: RandomProjection, width: int) -> Float:
    """The matrix of a random projection of inputs with `width` numbers."""
    if width * features.size > LARGEST_MATRIX:
        raise ParameterError(
            f"a random projection of {width} numbers to {features.size} takes {8e-9 * width * features.size:.0f} GB; "
            "take a smaller one, or fewer inputs"
        )
    return _matrix(features.seed, width, features.size)


@lru_cache(maxsize=8)
def longest_projection(features: RandomProjection, width: int) -> float:
    """The length that no row exceeds: that of a projected unit vector, where the activation makes no value larger."""
    root = math.sqrt(features.size)
    if features.activation in ("tanh", "sigmoid"):
        return root
    norm = float(np.linalg.norm(projection(features, width), 2))
    return norm + (
        root * math.log(2.0) if features.activation == "softplus" else 0.0
    )  # softplus z <= max(z, 0) + log 2


_FITTED: dict[str, tuple[Callable[[str], FeatureMap], str]] = {
    standard.NAME: (standard.Standardise.read, "ORIGIN/SCALE,..."),
    patches.NAME: (patches.Patches.read, "...,numbers=..."),
    columns.NAME: (columns.Columns.read, "NAME:MEAN/DEVIATION,NAME=LEVEL|LEVEL,..."),
}
_NAMES = ("identity", "unit", "clip", "ones", "random", *_FITTED, *backbone.NAMES)
_JOINT = re.compile(r"\+(?=[a-z])")
_JOINT_BEHIND_A_PATH = re.compile(rf"\+(?=(?:{'|'.join(_NAMES)})(?:[:,;+]|$))")  # a + inside a path is no joint


def parse(text: str) -> FeatureMap:
    """The feature map a specification stands for: "unit", "random:512,relu", "onnx:FILE", or several joined by +."""
    return _chained([backbone.parse(part) if _is_network(part) else _plain(part) for part in parts(text)])


def from_words(features: FeatureMap, inputs: tuple[int, ...], local: str = "") -> FeatureMap:
    """The map that a file or a message tells of, as it can be had here; `inputs` is the shape of what it is applied to.

    With a `local` specification it is that one, and its weights must be those of the identity before it is opened.
    Without, a map that words decide alone is made from them, which opens nothing. A network stays elsewhere, wherever
    its specification says that it lies; so does EfficientNet-Lite0, for which a package would be imported.

    >>> from fedsolve.features.elsewhere import Elsewhere
    >>> from_words(Elsewhere("random:8", "random:8,relu,0", (8,)), (3,))
    RandomProjection(size=8, activation='relu', seed=0)
    >>> from_words(Elsewhere("torch:net.pt", "torch; weights 3f", (8,)), (9, 9, 3)).identity
    'torch; weights 3f'
    """
    if local:
        if not matches(local, features.identity):
            raise _other(seal(local), _begun(features.identity))
        return parse(local)
    if opens(features.identity):
        return features
    built = _chained([_plain(part) for part in parts(str(features))])
    if built.identity != features.identity:
        raise _other(built.identity, features.identity)
    _check_size(built, inputs)
    return built


def opens(text: str) -> bool:
    """Whether a specification stands for a map with a network, for which a file, a hub or a package is opened.

    >>> opens("unit+onnx:net.onnx"), opens("unit+random:8")
    (True, False)
    """
    return any(map(_is_network, parts(text)))


def seal(text: str) -> str:
    """The identity of a specification as far as it is known before a network is opened: files are read for a digest."""
    return "+".join(backbone.seal(part) if _is_network(part) else _plain(part).identity for part in parts(text))


def matches(local: str, identity: str) -> bool:
    """Whether the maps and weights of a specification are those of an identity, before anything is opened.

    How pictures are prepared is known when the network is open, and is compared with the rest of the identity then.

    >>> matches("unit+random:8", "unit+random:8,relu,0"), matches("unit", "ones")
    (True, False)
    """
    return seal(local) == _begun(identity)


def _begun(identity: str) -> str:
    """As much of an identity as `seal` knows."""
    return "+".join("; ".join(part.split("; ")[:2]) if _is_network(part) else part for part in parts(identity))


def _check_size(features: FeatureMap, inputs: tuple[int, ...]) -> None:
    """Refuse sizes that no federation has, before anything is allocated."""
    for each in features.maps if isinstance(features, Chain) else (features,):
        size = math.prod(inputs) * (each.size if isinstance(each, RandomProjection) else 1)
        if not size <= LARGEST:
            raise DataError(
                f"the feature map {str(each)[:80]} of inputs {inputs} takes {size} numbers; at most {LARGEST} are taken"
            )
        inputs = each.shape(inputs)


def _is_network(part: str) -> bool:
    return re.split("[:,;]", part)[0] in backbone.NAMES


def _chained(maps: list[FeatureMap]) -> FeatureMap:
    return maps[0] if len(maps) == 1 else Chain(tuple(maps))


def _plain(text: str) -> FeatureMap:
    """A map that words decide alone; nothing is opened for it."""
    name, colon, argument = text.partition(":")
    if name not in _NAMES or name in backbone.NAMES:
        raise unknown("feature map", name, _NAMES)
    if name == "random":
        return _parse_random(text, argument)
    if to_fit(text):
        raise ParameterError(
            f"{name} is fitted to a federation's samples, by `fedsolve run`, `compare` and `deploy run`; elsewhere "
            f"give the fitted map, {name}:{_FITTED[name][1]}, as the features of a model of such a run are written"
        )
    if name in _FITTED:
        return _FITTED[name][0](argument)
    if name == "clip":
        return Clip.read(argument)
    if colon:
        raise ParameterError(f"feature map {name!r} takes no argument; got {text!r}")
    return Identity() if name == "identity" else UnitLength() if name == "unit" else Ones()


def to_fit(part: str) -> bool:
    """Whether one map of a specification is still to be fitted."""
    return part == standard.NAME or patches.unfitted(part) is not None or columns.unfitted(part) is not None


def absent(text: str) -> str:
    """Which package is missing for a specification, or nothing; without opening a network."""
    return next(filter(None, (backbone.absent(part) for part in parts(text) if _is_network(part))), "")


def parts(text: str) -> list[str]:
    """The maps in a specification, one after the other.

    >>> parts("unit+random:8")
    ['unit', 'random:8']
    """
    return (_JOINT_BEHIND_A_PATH if "." in text or "/" in text else _JOINT).split(text)


def _parse_random(text: str, argument: str) -> RandomProjection:
    size, *rest = argument.split(",")
    try:
        if len(rest) > 2:
            raise ValueError
        return RandomProjection(int(size), rest[0] if rest else "relu", int(rest[1]) if len(rest) > 1 else 0)
    except ValueError as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"a random projection is written random:SIZE,ACTIVATION,SEED; got {text!r}") from None


@cache
def space(features: FeatureMap, inputs: tuple[int, ...]) -> int:
    """The identity of a feature space, 63 bits: of the map and of the inputs it is applied to."""
    text = described(features, inputs).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def described(features: FeatureMap, inputs: tuple[int, ...]) -> str:
    """A feature space in words: equal words, equal spaces."""
    return in_words(features.identity, inputs)


def in_words(identity: str, inputs: tuple[int, ...]) -> str:
    """A feature space in words, from the identity of a map that is not here itself."""
    return f"{identity} of {inputs}"


def difference(mine: str, other: str) -> str:
    """What differs between two described spaces: the parts of each that the other does not have."""
    here, there = (re.split(r"; |\+| of (?=\()", text) for text in (mine, other))
    only_here = [part for part in here if part not in there]
    only_there = [part for part in there if part not in here]
    return f"{', '.join(only_here) or 'nothing more'} here, {', '.join(only_there) or 'nothing more'} there"


def _other(here: str, there: str) -> DataError:
    return DataError(f"the features here are not the federation's: {difference(here, there)}")
