"""Noise with an account, for moments: what is added to them, how much, and how the noisy sums are made usable again.

One record, a row f with targets y, moves the moments by (ff', fy', 1) and, where targets are numbers, by their squares.
With |f| <= R and |y| <= c, in units in which each part counts as much as it should:

- F'F by |ff'| / R^2 <= 1, where entries beside the diagonal count twice, as in the full matrix. So the noise has
  variance s^2 on the diagonal and s^2 / 2 beside it: the symmetric Gaussian, whose law no rotation changes;
- F'Y by |fy'| / (R c) <= 1; the number of samples by `COUNT`, squares of numbers by `SQUARES`.

A constant feature behind the row would double R^2. It is small in these units (`ONES` R): its sums, those of features
and of classes, are the largest numbers there are, and bear more noise than the others. Its square is the number of
samples, which is noisy once. Values are rounded to the lattice of the noise first: on a finer one they would show.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float, flat
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.features import fitting
from fedsolve.features.maps import FeatureMap, bound
from fedsolve.method import Method, Rows
from fedsolve.moments import Moments
from fedsolve.parameters import whole
from fedsolve.privacy.account import membership_bound, mu_of
from fedsolve.privacy.gaussian import LARGEST, Source, discrete_gaussian, whole_deviation

BY = ("sites", "server")
ONES, COUNT, SQUARES = 0.3, 0.1, 0.3
ROUNDING = 1e-5  # relative: what float64 sums of up to 10^5 rows may differ by, and rows exceed their bound by
RIDGE = 0.5  # times the largest eigenvalue of the noise: the best of 0.1 to 2 on four data sets
_MOST = 2.0**62  # lattice steps of a value


@dataclass(frozen=True)
class Noise:
    """How much noise, and who adds it.

    - `epsilon`, `delta`: what is promised to each record, for one more or one less of it;
    - `by`: "sites": each adds noise to what it sends; "server": the server adds it to the sum, and is trusted;
    - `honest`: by how many sites the noise is shared, the fewest in a sum that add their share and tell nobody. More
      than one is for sums that nobody sees the parts of. 1: what a site sends is protected by itself;
    - `target_bound`: where targets are numbers, the length that each record's are clipped to.

    >>> Noise(epsilon=1.0).mu.__round__(4)
    0.2681
    """

    epsilon: float
    delta: float = 1e-5
    by: str = "sites"
    honest: int = 1
    target_bound: float | None = None

    def __post_init__(self) -> None:
        mu_of(self.epsilon, self.delta)  # refuses what is no epsilon, or no delta
        if self.by not in BY:
            raise unknown("place for noise", str(self.by), BY)
        whole("honest", self.honest, 1)
        if self.by == "server" and self.honest != 1:
            raise ParameterError(f"honest says how many sites share the noise; the server adds it, got {self.honest}")
        if self.target_bound is not None and not 0 < self.target_bound < math.inf:
            raise ParameterError(f"target_bound must be a length above 0; got {self.target_bound!r}")

    @property
    def mu(self) -> float:
        """How far a record can move the release, in deviations of its noise."""
        return mu_of(self.epsilon, self.delta)

    def check_shared(self, quorum: int) -> None:
        """Refuse noise that more sites share than a sum has at least: that of a secure sum, or one alone (0)."""
        if self.honest > 1 and not quorum:
            raise ParameterError(
                f"noise that {self.honest} sites share hides nothing where the server sees what each of them sends: "
                "take honest=1, or a secure sum"
            )
        if self.honest > max(quorum, 1):
            raise ParameterError(
                f"a secure sum opens with {quorum} sites, and noise that {self.honest} share would be too little "
                f"then: take honest={quorum} at most, or a larger quorum"
            )

    def told(self, *, clients: int, task: Task) -> dict[str, Any]:
        """What a result of so many clients says of it."""
        open_to = [
            "names of sites, classes and columns",
            "how many samples each site has",
            "figures on test samples",
            "a personal model, once it is published",
        ]
        if fitting.numbered(str(task.features)):
            open_to.append("the numbers of the fitted feature map, from exact sums")
        if task.target.kind == "numbers":
            open_to.append("mean and deviation of the numbers that are predicted, in the task")
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "level": "record",
            "neighbours": "one record more or less",
            "by": self.by,
            "honest": self.honest if self.by == "sites" else None,
            "colluding": max(0, clients - self.honest) if self.by == "sites" else None,
            "trusted": "the server" if self.by == "server" else "nobody" if self.honest == 1 else "a secure sum",
            "membership_auc": membership_bound(self.mu),
            "not_covered": open_to,
        }


@dataclass(frozen=True)
class Release:
    """Noise for the moments of rows and targets of bounded length."""

    noise: Noise
    rows: Rows
    target: float = 1.0  # the length that no record's targets exceed: one, where they are one-hot

    @classmethod
    def of(cls, noise: Noise, method: Method, message: Arrays, task: Task) -> Release:
        """For what clients reply to a message; refused where nothing bounds what a record can do to it."""
        rows = method.rows(message, task)
        numbers = task.target.kind == "numbers"
        if numbers and noise.target_bound is None:
            raise ParameterError(
                f"noise of a stated epsilon needs targets of bounded length; {', '.join(task.target.names)[:80]} may "
                "be any number: give the bound, --target-bound C, fs.Noise(target_bound=C); larger ones are clipped"
            )
        if not numbers and noise.target_bound is not None:
            raise ParameterError("target_bound is for targets that are numbers; here they are classes: leave it out")
        return cls(noise, rows, noise.target_bound or 1.0)

    @property
    def longest(self) -> float:
        """The length of a row with its constant feature, in the units of the noise."""
        return self.rows.longest * math.hypot(1.0, ONES if self.rows.ones else 0.0)

    def sigma(self, moments: Moments) -> float:
        """The deviation of the noise, in units in which rows and targets are at most one long.

        Rounding to the lattice moves each of its D numbers by less than 2 / `LARGEST` deviations more.
        """
        size = moments.triangle.size + moments.cross.size + 1 + (0 if moments.squares is None else moments.targets)
        mu = self.noise.mu - math.sqrt(size) * 2.0 / LARGEST
        if not mu > 0.5 * self.noise.mu:
            raise ParameterError(f"epsilon {self.noise.epsilon:g} is too small for sums of {size} numbers")
        moved = math.hypot(sensitivity(1.0, 1.0), COUNT, 0.0 if moments.squares is None else SQUARES)
        return moved * (1.0 + ROUNDING) / mu

    def deviations(self, moments: Moments) -> Moments:
        """The deviation of the noise of each number of the moments, laid out as they are."""
        sigma, longest = self.sigma(moments), self.longest
        scale = np.ones(moments.features)
        if self.rows.ones:
            scale[-1] = ONES * self.rows.longest
        gram = sigma * longest**2 / np.multiply.outer(scale, scale)
        gram *= math.sqrt(0.5)
        gram[np.diag_indices_from(gram)] *= math.sqrt(2.0)
        cross = np.multiply.outer(sigma * longest * self.target / scale, np.ones(moments.targets))
        squares = None if moments.squares is None else np.full(moments.targets, sigma * self.target**2 / SQUARES)
        return Moments(blas.pack(gram), cross, np.array(math.ceil(sigma / COUNT)), moments.space, squares)

    def noisy(self, arrays: Arrays, *, sites: int = 1, source: Source = os.urandom) -> dict[str, Array]:
        """Moments, as named arrays, with the noise of one of `sites` that share it; a law in s^2, so that shares add.

        >>> import fedsolve as fs
        >>> moments, release = fs.Moments.of(np.eye(3), [0, 1, 1]), Release(Noise(epsilon=1.0), Rows(1.0))
        >>> bool(0 < np.abs(release.noisy(moments.arrays())["cross"] - moments.cross).max() < 100)
        True
        """
        moments = Moments.from_arrays(arrays)
        each, share = self.deviations(moments), 1.0 / math.sqrt(sites)
        result: dict[str, Array] = {
            "triangle": _blurred(moments.triangle, share * each.triangle, source),
            "cross": _blurred(moments.cross, share * each.cross, source),
            "count": moments.samples + discrete_gaussian(math.ceil(share * each.count), 1, source)[0],
        }
        if moments.squares is not None and each.squares is not None:
            result["squares"] = _blurred(moments.squares, share * each.squares, source)
        if self.rows.ones:
            result["triangle"][blas.packed_diagonal(moments.features)[-1]] = result["count"]
        return result

    def repaired(self, arrays: Arrays, *, times: float = 1.0) -> dict[str, Array]:
        """Noisy sums made such that a method can work with them; no data are looked at, so it costs no epsilon.

        F'F, centred where there is a constant feature, is made positive semi-definite and given a ridge of `RIDGE`
        times the largest eigenvalue that the noise alone has, s sqrt(2 m). `times` is the variance of the noise over
        that of the promise: more where more sites than are honest added their shares.
        """
        moments = Moments(arrays["triangle"], arrays["cross"], np.maximum(arrays["count"], 0), 0, arrays.get("squares"))
        if moments.count < 1:
            raise DataError(
                f"the noise of epsilon {self.noise.epsilon:g} drowns the sums: by them there are fewer samples than "
                "one; take more samples, fewer sites that add noise, or a larger epsilon"
            )
        gram, cross, count, ones = moments.gram, moments.cross.copy(), moments.count, self.rows.ones
        sums, means = (gram[-1, :-1].copy(), cross[-1] / count) if ones else (np.zeros(len(gram)), np.zeros(1))
        inner = gram[:-1, :-1] - np.outer(sums, sums / count) if ones else gram
        values, vectors = np.linalg.eigh(inner)
        edge = math.sqrt(2.0 * len(inner) * times) * self.sigma(moments) * self.longest**2
        values = np.maximum(values, 0.0) + RIDGE * edge
        inner = (vectors * values) @ vectors.T
        if ones:
            gram[:-1, :-1] = inner + np.outer(sums, sums / count)
            gram[-1, -1] = count
        result = {"triangle": blas.pack(gram if ones else inner), "cross": cross, "count": moments.samples}
        if moments.squares is None:
            if ones:
                cross[-1] = np.maximum(cross[-1], 0.0)  # samples of a class
            return result
        # At least as much as least squares explains of them, or errors would be negative.
        centred = cross[:-1] - np.outer(sums, means) if ones else cross
        explained = (np.square(vectors.T @ centred) / values[:, None]).sum(0) + (count * means**2 if ones else 0.0)
        return {**result, "squares": np.maximum(moments.squares, explained * (1.0 + 1e-9))}

    def settled(self, arrays: Arrays, sites: int) -> dict[str, Array]:
        """What the server goes on with: the sum over so many sites, with noise whoever adds it, repaired."""
        if self.noise.by == "server":
            return self.repaired(self.noisy(arrays))
        if sites < self.noise.honest:
            raise DataError(f"{sites} sites answered, and {self.noise.honest} must share the noise: nothing is solved")
        return self.repaired(arrays, times=sites / self.noise.honest)

    def admitted(self, samples: Samples, features: FeatureMap) -> Samples:
        """Samples no longer than is promised: numbers are clipped; rows that exceed the bound of their map are refused.

        A method that bounds its rows itself takes any features.
        """
        longest = bound(features)
        if longest is not None and len(samples):
            found = float(np.sqrt(np.square(flat(samples.inputs), dtype=np.float64).sum(axis=1).max()))
            if not found <= longest * (1.0 + 0.1 * ROUNDING):  # squares and products of it count twice
                raise DataError(
                    f"the feature map {str(features)[:80]!r} bounds rows by {longest:g}, and one is {found:.6g} long: "
                    "these are not its features"
                )
        return samples if samples.labels.ndim == 1 else Samples(samples.inputs, self.clipped(samples.labels))

    def clipped(self, targets: Float) -> Float:
        """Targets that are numbers, none longer than is promised."""
        lengths = np.linalg.norm(targets, axis=1, keepdims=True)
        return np.where(lengths > self.target, targets * (self.target / np.where(lengths > 0, lengths, 1.0)), targets)


def sensitivity(row: float, target: float) -> float:
    """How far one record can move F'F and F'Y together, with rows and targets of these lengths: sqrt(R^4 + c^2 R^2).

    >>> round(sensitivity(1.0, 1.0), 3)
    1.414
    """
    return math.hypot(row**2, target * row)


def _blurred(values: Float, deviations: Float, source: Source) -> Float:
    """Values on lattices of their noise, with the noise; no deviation is less than asked for."""
    result = np.empty_like(values)
    for sigma in np.unique(deviations):
        places = deviations == sigma
        s, step = whole_deviation(float(sigma))
        steps = np.rint(values[places] / step)
        if not np.abs(steps).max(initial=0.0) <= _MOST:
            raise DataError("sums are too large for the noise that is asked for: epsilon is too large, or data are")
        result[places] = (steps.astype(np.int64) + discrete_gaussian(s, steps.size, source)) * step
    return result
