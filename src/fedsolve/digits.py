"""Which features a solution is unsure of: F'F holds squares, so it loses twice the digits that the features lose.

In float64 an entry of F'F is off by about eps |f_i| |f_j|, with f_i the column of feature i. That is harmless unless
the system needs what is left behind a cancellation: features that hardly differ beside a common offset, once an
intercept takes the offset away, or features that hardly differ from each other. Two things are told apart here:

- *Directions that are in the system, but inexactly.* The error of H W = B moves the predictions by |L^-1 r|, with L the
  factor of H and r = error of H times W. Where that is more than `TOLERANCE`, the features it comes from are named.
- *Directions that rounding has swallowed*, so that F'F cannot tell them from none. Where features really repeat, or are
  constant, F u = 0 for such a direction u, and then u'F'Y = 0, too, up to rounding. F'Y is linear in the features and
  has lost no more digits than they have: where u'F'Y is not zero, the direction exists, and what it says is lost.

So a constant column, a copy, or a full set of one-hot columns is no reason for doubt, and nothing but sums is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas
from fedsolve.arrays import Float
from fedsolve.moments import Moments
from fedsolve.rng import derive

EPS = float(np.finfo(np.float64).eps)
TOLERANCE = 1e-7  # relative error of the predictions from which a solution is unsure
SAFE = 1e-6  # the reciprocal condition number from which on nothing is looked at
PROBES = 8  # random errors that stand for all
OFFSET = 1e-6  # share of its squares that a feature keeps about its mean, below which the mean is to blame
PART = 0.1  # of that error which a single feature must be behind to be named
ALOOF = 8.0  # how much longer a target may be than the features show that it goes with
SHOWN = 5  # features that a sentence names

Mask = NDArray[np.bool_]


class Scales(NamedTuple):
    """How large features and targets are, for what rounding in the sums can be."""

    features: Float  # |f_j|: the root of the sum of squares, before any centring
    targets: Float  # |y_t|, or the least that F'Y lets it be
    most: Float  # |y_t|, or more: for what must not be taken for more than rounding
    rounding: float  # relative error of a first sum at most: terms that are all alike are all rounded alike

    def only(self, features: NDArray[np.int64]) -> Scales:
        """The scales of some of the features."""
        return self._replace(features=self.features[features])

    def without(self, features: Mask) -> Scales:
        """The scales where some of the features are zero."""
        return self._replace(features=np.where(features, 0.0, self.features))


def scales(moments: Moments, *, intercept: bool, one_hot: bool) -> Scales:
    """The scales of the features that are solved for, without the intercept's, and of the targets.

    The sums hold no squares of targets. Of one-hot rows these are the counts of the classes, which stand beside the
    constant feature.
    """
    squares = moments.diagonal()
    lengths = np.sqrt(np.maximum(squares, 0.0))
    # |f_j'y| <= |f_j| |y|
    shares = np.abs(moments.cross) / np.where(lengths > 0, lengths, np.inf)[:, None]
    targets = shares.max(0, initial=0.0)
    most = np.full_like(targets, np.sqrt(moments.count)) if one_hot else ALOOF * targets
    if intercept and _one_hot(moments):
        targets = most = np.sqrt(moments.cross[-1])
    return Scales(lengths[: len(lengths) - intercept], targets, most, EPS * (4.0 + moments.count / 6.0))


def _one_hot(moments: Moments) -> bool:
    """Whether the targets of moments with a constant last feature can be one-hot rows: their sums are counts."""
    counts = moments.cross[-1]
    return bool((counts >= 0).all() and (counts == np.floor(counts)).all() and counts.sum() == moments.count)


def hidden(rows: Float, cross: Float, constant: Mask, sizes: Scales, ridge: float) -> Mask:
    """Which of the features that look `constant` are not, from their rows of the centred F'F and F'Y.

    A constant feature goes with none of the others and with no target. Beside a large ridge what a feature says is
    nothing: w = b / (s + ridge) moves predictions by less than b / sqrt(4 ridge), whatever its sum of squares s.
    """
    lengths = sizes.features[constant, None]
    least = sizes.rounding * lengths * sizes.features
    varies = ((np.abs(rows) > least) & ~constant).any(1)
    least = sizes.rounding * lengths * sizes.most
    varies |= (np.abs(cross) > least).any(1)
    matters = np.abs(cross) + least > TOLERANCE * sizes.targets * np.sqrt(4.0 * ridge)
    lost = np.zeros_like(constant)
    lost[constant] = varies & matters.any(1)
    return lost


def of_factor(factor: Float, weights: Float, sizes: Scales) -> Mask:
    """The features of which a solution by Cholesky is unsure; H = L L'."""
    lengths = sizes.features
    push = pushed(lengths, weights, sizes.targets)
    if not push * moved(factor, lengths) > TOLERANCE:
        return np.zeros(len(lengths), dtype=np.bool_)
    return _sources(push * lengths * np.sqrt(blas.inverse_diagonal(factor)))


def moved(factor: Float, lengths: Float) -> float:
    """How far random errors of H W = B, as large as these lengths of features, move predictions: the mean |L^-1 r|."""
    errors = derive(0, "digits", len(lengths)).standard_normal((len(lengths), PROBES)) * lengths[:, None]
    return float(np.linalg.norm(blas.lower_solve(factor, errors))) / float(np.sqrt(PROBES))


class Spectrum(NamedTuple):
    """H at unit diagonal, decomposed: D H D = V diag(values) V', and which directions the solution uses."""

    values: Float
    vectors: Float
    nonzero: Mask
    scale: Float  # D
    right: Float  # D B


def of_spectrum(spectrum: Spectrum, sizes: Scales) -> Mask:
    """The features of which a solution by eigenvectors is unsure."""
    values, vectors, nonzero, scale, right = spectrum
    lengths = sizes.features * scale  # at unit diagonal
    inside, outside = vectors[:, nonzero], vectors[:, ~nonzero]
    weights = inside @ ((inside.T @ right) / values[nonzero, None])
    push = pushed(lengths, weights, sizes.targets)
    squares = np.square(lengths) @ np.square(inside)  # of the error along each direction
    unsure = np.zeros(len(lengths), dtype=np.bool_)
    if push * np.sqrt((squares / values[nonzero]).sum()) > TOLERANCE:
        unsure |= _sources(push * lengths * np.sqrt(np.square(inside) @ (1.0 / values[nonzero])))
    swallowed = outside @ (outside.T @ right)
    # An error E of H turns the directions, and u'B by u'E W; the decomposition itself errs by eps times the largest.
    largest = float(values[-1]) if len(values) else 0.0
    spread = np.linalg.norm(lengths[:, None] * swallowed, axis=0)
    along = np.linalg.norm(swallowed, axis=0)
    long_weights = np.linalg.norm(weights, axis=0)
    rounding = sizes.rounding * spread * (np.linalg.norm(lengths[:, None] * weights, axis=0) + sizes.most)
    rounding += 4 * EPS * along * (largest * long_weights + np.sqrt(largest) * sizes.most)
    shown = np.square(along) > np.sqrt(max(1, outside.shape[1])) * rounding
    for column in np.flatnonzero(shown):
        size = np.abs(swallowed[:, column])
        unsure |= size > 0.1 * size.max()
    return unsure


def pushed(lengths: Float, weights: Float, targets: Float) -> float:
    """The size of an error of H W = B beside the targets, for a feature of length one: the worst over the targets."""
    told = targets > 0
    if not told.any():
        return 0.0
    sums = np.linalg.norm(lengths[:, None] * weights[:, told], axis=0)
    return EPS * float((1.0 + sums / targets[told]).max())


def _sources(moves: Float) -> Mask:
    """Features whose own error moves the predictions, by how far it does; others only follow. At least one."""
    sources: Mask = moves > min(PART * TOLERANCE, 0.5 * float(moves.max()))
    return sources


# --- in words ---


def sentences(
    unsure: Sequence[int], centred: Moments | None = None, *, names: Sequence[str] = (), kind: str = "feature"
) -> tuple[str, ...]:
    """What to tell a user of the features a solution is unsure of: those with an offset, and those that nearly repeat.

    `centred` are the moments whose last feature is the constant one, where the solution has an intercept.

    >>> x = 1.7e12 + np.arange(100.0)
    >>> moments = Moments.of(x[:, None], np.arange(100) // 50, intercept=True)
    >>> print(sentences([0], moments, names=["time"])[0][:84])
    the digits of feature 'time' were lost: its values lie around 1.7e+12 and differ by
    """
    if not len(unsure):
        return ()
    features = np.asarray(unsure, dtype=np.int64)
    offset = np.zeros(len(features), dtype=np.bool_)
    if centred is not None:
        squares = centred.diagonal()[features]
        sums = centred.triangle[blas.packed_row(centred.features, centred.features - 1)][features]
        means = sums / centred.count
        left = np.maximum(squares - sums * means, 0.0)
        floor = EPS * max(centred.features, np.sqrt(centred.count)) * squares
        offset = left <= OFFSET * squares
        spreads = np.sqrt(np.maximum(left, floor) / centred.count)
    told = []
    if offset.any():
        first = int(np.flatnonzero(offset)[0])
        many = int(offset.sum()) > 1
        whose = f"those of {_name(features[first], names, kind)}" if many else "its values"
        told.append(
            f"the digits of {_named(features[offset], names, kind)} were lost: {whose} lie around {means[first]:.3g} "
            f"and differ by about {spreads[first]:.2g} or less, too little beside that for sums of squares in float64; "
            f"subtract a common number first, as --features standardise does, or leave {'them' if many else 'it'} out"
        )
    if not offset.all():
        rest = features[~offset]
        told.append(
            f"the weights of {_named(rest, names, kind)} are not to be trusted: they are so nearly combinations of "
            "each other or of further features that sums of squares in float64 do not tell them apart; leave some of "
            "them out, or use a larger ridge"
        )
    return tuple(told)


def at_clients(unsure: Mapping[str, Sequence[int]], names: Sequence[str] = ()) -> tuple[str, ...]:
    """What to tell a user of the features that the models of single clients are unsure of.

    >>> at_clients({"north": (1,), "south": ()}, ["age", "time"])[0][:68]
    "the model of north is not to be trusted: the digits of feature 'time"
    """
    clients = [client for client, features in unsure.items() if features]
    if not clients:
        return ()
    features = np.array(sorted({feature for client in clients for feature in unsure[client]}), dtype=np.int64)
    left = len(clients) - SHOWN
    whose = ", ".join(clients[:SHOWN]) + (f" and {left} more" if left > 0 else "")
    return (
        f"the model{'s' * (len(clients) > 1)} of {whose} {'are' if len(clients) > 1 else 'is'} not to be trusted: the "
        f"digits of {_named(features, names, 'feature')} were lost in the client's sums of squares; subtract a common "
        "number from values that hardly differ, leave out what nearly repeats, or use a larger ridge",
    )


def _named(features: NDArray[np.int64], names: Sequence[str], kind: str) -> str:
    """A few features by name, and how many more there are."""
    shown = [_name(number, names, kind, word=False) for number in features[:SHOWN]]
    left = len(features) - len(shown)
    if left:
        return f"{kind}s {', '.join(shown)} and {left} more"
    return f"{kind} {shown[0]}" if len(shown) == 1 else f"{kind}s {', '.join(shown[:-1])} and {shown[-1]}"


def _name(number: int, names: Sequence[str], kind: str, *, word: bool = True) -> str:
    name = repr(names[number]) if number < len(names) else str(int(number))
    return f"{kind} {name}" if word else name
