"""Linear solves on moments, and leave-one-out without leaving anything out. Solve, never invert.

Every system here is H W = B with H = F'F + ridge * I. The units of the features decide neither the rank nor the digits
lost: Cholesky errs by the same shares of its entries in whatever units, and what depends on them, `rcond` and
eigenvalues, is that of the matrix at unit diagonal. Cholesky can run to its end on a singular matrix, because rounding
leaves tiny positive pivots, so only `rcond` tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas, digits
from fedsolve.arrays import Float
from fedsolve.digits import Scales, Spectrum
from fedsolve.errors import DataError, ParameterError, PrecisionWarning, SingularError, unknown
from fedsolve.moments import Moments
from fedsolve.sides import smaller_gram

SOLVERS = ("cholesky", "eigen", "auto")
ALL_ITS_OWN = 1e-13  # one minus a leverage below this is rounding
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Weights, and how far to trust them."""

    weights: Float  # features x targets
    intercept: Float | None  # one number per target, where one was asked for
    rcond: float  # reciprocal condition number of H at unit diagonal, less what centring cost; 0 where H is singular
    rank: int
    solver: str  # "cholesky" or "eigen"
    moments: Moments  # what was solved, and with which ridge
    ridge: float
    # Features whose digits were lost in F'F, so that predictions may be wrong; see digits.py. Not those that are really
    # constant or really repeat: the solution of minimum norm is exact there.
    unsure: tuple[int, ...] = field(default=())

    def __repr__(self) -> str:
        features, targets = self.weights.shape
        doubts = f", unsure of {len(self.unsure)} features" if self.unsure else ""
        return (
            f"Solution({features} features, {targets} targets, ridge {self.ridge:g}, {self.solver}, rank {self.rank}, "
            f"rcond {self.rcond:.2g}{doubts})"
        )

    def doubts(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Sentences about the features that the solution is unsure of, for a user; none where all is well."""
        return digits.sentences(self.unsure, None if self.intercept is None else self.moments, names=names)

    @property
    def residual(self) -> float:
        """|H W - B| / |B| at unit diagonal. A product as large as the solves, so it is computed when asked for."""
        lower, cross, _ = _system(self.moments, self.ridge, intercept=self.intercept is not None)
        scale = _unit_diagonal(lower)
        right = cross * scale[:, None]
        scaled = self.weights / np.where(scale > 0, scale, 1.0)[:, None]
        norm = float(np.linalg.norm(right))
        return float(np.linalg.norm(blas.symmetric_product(lower, scaled) - right)) / norm if norm > 0 else 0.0


def solve(moments: Moments, ridge: float = 0.0, *, intercept: bool = False, solver: str = "cholesky") -> Solution:
    """The minimiser of |F W - Y|^2 + ridge |W|^2.

    With `intercept`, the last feature of `moments` is the constant one (`Moments.of(..., intercept=True)`), and its
    weight is not penalised. `solver` says what to do when the system is singular: "cholesky" refuses, "eigen"
    gives the solution of minimum norm, "auto" takes Cholesky where the condition number allows it and eigen
    otherwise; the answer says which it was. Where the digits of features were lost in F'F, a `PrecisionWarning` names
    them, and they are in `Solution.unsure`.

    >>> x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [3.0], [5.0]])
    >>> solution = solve(Moments.of(x, y, intercept=True), intercept=True)
    >>> solution.weights.round(12).tolist(), solution.intercept.round(12).tolist(), solution.solver
    ([[2.0]], [1.0], 'cholesky')
    """
    solution = solution_of(moments, ridge, intercept=intercept, solver=solver)
    for sentence in solution.doubts():
        warnings.warn(sentence, PrecisionWarning, stacklevel=2)
    return solution


def solution_of(
    moments: Moments,
    ridge: float = 0.0,
    *,
    intercept: bool = False,
    solver: str = "cholesky",
    one_hot: bool = False,
) -> Solution:
    """As `solve`, without a word: for methods, which say themselves what a solution is unsure of.

    Where targets are known to be `one_hot`, less has to be guessed about what rounding can be.
    """
    if solver not in SOLVERS:
        raise unknown("solver", solver, SOLVERS)
    if not 0 <= ridge < np.inf:
        raise ParameterError(f"ridge must be a finite number of at least 0; got {ridge!r}")
    if moments.count == 0:
        raise DataError("there is nothing to solve: the moments hold no samples")
    sizes = every = digits.scales(moments, intercept=intercept, one_hot=one_hot)
    factor, cross, centre = _system(moments, ridge, intercept=intercept)
    share = 1.0 if centre is None else centre.digits
    if centre is not None:
        sizes = sizes.without(centre.constant)  # their part of the system is zero, and exactly so
    rcond = None if solver == "eigen" else _factorise(factor)
    unsure = np.zeros(len(factor), dtype=np.bool_)
    if rcond is not None:
        weights, rank, used = np.ascontiguousarray(blas.cholesky_solve(factor, cross)), len(factor), "cholesky"
        if not rcond * share > digits.SAFE:
            unsure = digits.of_factor(factor, weights, sizes)
    elif solver == "cholesky":
        raise SingularError(
            f"the system of {len(factor)} features is singular at ridge {ridge:g}: features repeat or are constant, or "
            f"there are fewer samples ({moments.count}) than features; use ridge > 0, or the solver 'eigen' for the "
            "solution of minimum norm"
        )
    else:
        lower, cross, _ = _system(moments, ridge, intercept=intercept)  # factorising overwrote the first
        weights, rcond, rank, unsure = _minimum_norm(lower, cross, moments.count, sizes)
        used = "eigen"
    if centre is not None:
        unsure = unsure | centre.hidden(every, ridge)
    return Solution(
        weights=weights,
        intercept=None if centre is None else centre.targets - centre.features @ weights,
        rcond=rcond * share,
        rank=rank,
        solver=used,
        moments=moments,
        ridge=ridge,
        unsure=tuple(np.flatnonzero(unsure).tolist()),
    )


class Factor(NamedTuple):
    """H decomposed: H = L L', of centred features where there is an intercept."""

    lower: Float  # L
    means: Float | None  # of the features, where there is an intercept
    constant: NDArray[np.bool_]  # features of which nothing but rounding is left about their means
    rcond: float  # as `Solution.rcond`


def factor_of(moments: Moments, ridge: float, *, intercept: bool = False) -> Factor | None:
    """The factor of H = F'F + ridge I; None where that is singular."""
    lower, _, centre = _system(moments, ridge, intercept=intercept)
    rcond = _factorise(lower)
    if rcond is None:
        return None
    if centre is None:
        return Factor(lower, None, np.zeros(len(lower), dtype=np.bool_), rcond)
    return Factor(lower, centre.features, centre.constant, rcond * centre.digits)


class _Centre(NamedTuple):
    """Where features and targets were moved from."""

    features: Float  # means
    targets: Float
    digits: float  # the smallest share of a feature's squares that is left: digits lost to cancellation
    constant: NDArray[np.bool_]  # features of which nothing but rounding is left
    rows: Float  # theirs, of the centred F'F
    cross: Float  # and of the centred F'Y

    def hidden(self, sizes: Scales, ridge: float) -> NDArray[np.bool_]:
        """The features that look constant and are not."""
        if not self.constant.any():
            return self.constant
        return digits.hidden(self.rows, self.cross, self.constant, sizes, ridge)


def _system(moments: Moments, ridge: float, *, intercept: bool) -> tuple[Float, Float, _Centre | None]:
    """H as a new lower triangle, and B; with `intercept`, of centred features and targets."""
    lower, cross, centre = moments.lower(), moments.cross, None
    if intercept:
        lower, cross, centre = _centre(lower, cross, moments.count)
    lower[np.diag_indices_from(lower)] += ridge
    return lower, cross, centre


def _centre(lower: Float, cross: Float, count: int) -> tuple[Float, Float, _Centre]:
    """Eliminate the constant last feature: what is left is the moments of centred features and targets.

    A feature of which nothing but rounding is left is constant itself, and becomes zero.
    """
    total = lower[-1, -1]
    sums = np.array(lower[-1, :-1])
    centred = np.asfortranarray(lower[:-1, :-1])
    before = np.diagonal(centred).copy()
    centred -= np.tril(np.outer(sums, sums / total))
    cross, targets = cross[:-1] - np.outer(sums, cross[-1] / total), cross[-1] / total
    share = np.diagonal(centred) / np.where(before > 0, before, 1.0)
    constant = share <= 16 * _EPS * max(len(before), np.sqrt(count))
    rows, whole = centred[constant] + centred[:, constant].T, cross[constant]  # one of the triangles is zero
    centred[constant, :] = 0.0
    centred[:, constant] = 0.0
    cross[constant] = 0.0
    least = float(share[~constant].min(initial=1.0))
    return centred, cross, _Centre(sums / total, targets, least, constant, rows, whole)


def _unit_diagonal(lower: Float) -> Float:
    """Scale `lower` in place to a unit diagonal; returns the scale. A feature that is always zero stays zero."""
    diagonal = np.diagonal(lower)
    scale = np.where(diagonal > 0, 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    lower *= scale[:, None]
    lower *= scale
    return scale


def _factorise(lower: Float) -> float | None:
    """Replace H by its Cholesky factor, and say its rcond at unit diagonal; None where it is singular."""
    diagonal = np.diagonal(lower).copy()
    if not (diagonal > 0).all():
        return None
    scale = 1.0 / np.sqrt(diagonal)
    norm = blas.norm(lower, scale)
    if not blas.factorise(lower):
        return None
    rcond = 1.0 / (norm * blas.inverse_norm(lower, scale)) if len(lower) else 1.0
    # An estimate; further digits depend on where in memory the matrix lies.
    return float(f"{rcond:.3g}") if rcond > _singular(lower) else None


def _singular(lower: Float) -> float:
    """At or below this rcond a matrix is singular to working precision."""
    return 16 * len(lower) * _EPS


def _minimum_norm(lower: Float, cross: Float, count: int, sizes: Scales) -> tuple[Float, float, int, NDArray[np.bool_]]:
    """The solution of minimum norm in the units of the features, with the rank decided at unit diagonal; and rcond.

    With S the scaled matrix and D the scale, H = D^-1 S D^-1. The pseudo-inverse of S gives one solution; the
    null space of H is D times that of S, and taking that part out of the solution leaves the shortest one. At last,
    which features it is unsure of.
    """
    scale = _unit_diagonal(lower)
    used, right = np.flatnonzero(scale), cross * scale[:, None]
    values, vectors = np.linalg.eigh(lower[np.ix_(used, used)], "L")
    # Rounding in sums over n samples leaves about sqrt(n) eps where a zero eigenvalue should be.
    cut = _EPS * max(len(used), np.sqrt(count)) * values[-1] if len(used) else 0.0
    nonzero = values > cut
    range_, null = vectors[:, nonzero], vectors[:, ~nonzero]
    solution = range_ @ ((range_.T @ right[used]) / values[nonzero, None]) * scale[used, None]
    if null.shape[1]:
        basis, _ = np.linalg.qr(null * scale[used, None])
        solution -= basis @ (basis.T @ solution)
    weights = np.zeros_like(right)
    weights[used] = solution
    complete = len(used) == len(scale) and bool(nonzero.all())
    unsure = np.zeros(len(scale), dtype=np.bool_)
    spectrum = Spectrum(values, vectors, nonzero, scale[used], right[used])
    unsure[used] = digits.of_spectrum(spectrum, sizes.only(used))
    return weights, float(values[0] / values[-1]) if complete else 0.0, int(nonzero.sum()), unsure


@dataclass(frozen=True, slots=True, eq=False)
class RidgePath:
    """All shrunken fits of one design to its targets, and their leverages, from one decomposition.

    With design = U diag(s) V', ridge of strength r fits U diag(s^2 / (s^2 + r)) U'Y: a gain along each direction.
    """

    basis: Float  # U, samples x rank
    squares: Float  # s^2
    targets: Float  # Y, samples x targets
    projected: Float  # U'Y
    base: float  # what the intercept adds to each leverage

    @classmethod
    def of(cls, design: Float, targets: Float, *, intercept: bool = False) -> RidgePath:
        """Decompose once, on the smaller side. With `intercept`, design and targets are centred first."""
        if intercept:
            design, targets = design - design.mean(0), targets - targets.mean(0)
        return cls.of_gram(smaller_gram(design), design, targets, base=1.0 / len(design) if intercept else 0.0)

    @classmethod
    def of_gram(cls, gram: Float, design: Float, targets: Float, *, base: float = 0.0) -> RidgePath:
        """The same from `sides.smaller_gram` of the design; `base` is what an intercept adds to each leverage."""
        squares, right = np.linalg.eigh(gram)
        basis = right if len(design) <= design.shape[1] else design @ right
        # In ascending order: those that are zero come first. Whitening may leave no direction.
        zero = int((squares <= _EPS * max(design.shape) * squares.max(initial=0.0)).sum())
        squares, basis = squares[zero:], basis[:, zero:]
        if len(design) > design.shape[1]:
            basis /= np.sqrt(squares)
        return cls(basis, squares, targets, basis.T @ targets, base)

    def fitted(self, gain: Float) -> Float:
        """The fit whose part along each direction of the basis is kept by `gain`."""
        return self.basis @ (gain[:, None] * self.projected)

    def inner(self, strength: float) -> Float | None:
        """(D D' + strength)^-1 Y, of which D' times it is the weights of ridge; None where a direction was left out.

        Beside a small ridge, what is outside of the other directions has too few digits as a difference.
        """
        if len(self.squares) < len(self.targets):
            return None
        return self.basis @ (self.projected / (self.squares[:, None] + strength))

    def leverage(self, gain: Float) -> Float:
        """The diagonal of the hat matrix with that gain: how much each sample pulls its own prediction."""
        leverage: Float = self.base + np.square(self.basis) @ gain
        return leverage

    def ridge(self, strength: float) -> Float:
        """The gain of ordinary ridge at a strength."""
        return self.squares / (self.squares + strength)


def cross_validated_ridge(moments: Moments, factors: Sequence[float], *, intercept: bool = False) -> float:
    """The ridge of least generalised cross-validation error, from the statistics alone: n RSS / (n - freedom)^2.

    Targets are one-hot, so that their squares sum to the number of samples, or numbers whose squares are summed too:
    each is then counted in its own deviation, so that units decide nothing. `factors` are multiples of the mean
    diagonal of F'F. Of equals, the first. One Cholesky factor per candidate is faster than one set of eigenvectors.
    """
    lower, cross, squares = moments.lower(), moments.cross, float(moments.count)
    each = moments.squares
    if each is not None:
        about = each - np.square(cross[-1]) / lower[-1, -1] if intercept else each
        unit = 1.0 / np.sqrt(np.where(about > 0, about, 1.0))
        cross, squares = cross * unit, float((each * np.square(unit)).sum())
    if intercept:
        squares -= float(np.square(cross[-1]).sum()) / lower[-1, -1]
        lower, cross, _ = _centre(lower, cross, moments.count)
    diagonal = np.diag_indices_from(lower)
    unpenalised = lower[diagonal]
    candidates = np.asarray(factors) * (float(unpenalised.mean()) or 1.0)

    def error(ridge: float) -> float:
        lower[diagonal] = unpenalised + ridge
        factor = blas.cholesky(lower)
        if factor is None:
            return np.inf
        weights = blas.cholesky_solve(factor, cross)
        # |Y - F W|^2 = |Y|^2 - W'F'Y - ridge |W|^2 at the minimiser
        rest = squares - float(np.vdot(weights, cross)) - ridge * float(np.vdot(weights, weights))
        # The trace of F'F (F'F + ridge)^-1 is the parameters' freedom.
        freedom = moments.count - intercept - (len(lower) - ridge * blas.inverse_trace(factor))
        return max(rest, 0.0) / max(freedom, _EPS) ** 2

    errors = np.array([error(ridge) for ridge in candidates])
    return float(candidates[int(np.argmax(errors <= errors.min() * (1 + 1e-9)))])


def freedom(moments: Moments, ridge: float, *, intercept: bool = False) -> float:
    """The trace of F (F'F + ridge I)^-1 F': how many parameters the fit uses up; the rank, without a ridge.

    Over the number of samples it is the mean leverage of a sample. With `intercept`, the last feature is the constant
    one; it is not penalised and uses up one.
    """
    lower, _, _ = _system(moments, ridge, intercept=intercept)
    if _factorise(lower) is not None:
        return intercept + len(lower) - ridge * blas.inverse_trace(lower)
    lower, _, _ = _system(moments, 0.0, intercept=intercept)
    values = np.linalg.eigvalsh(lower, "L")
    nonzero = values[values > _EPS * max(len(values), np.sqrt(moments.count)) * values[-1]]
    return intercept + float((nonzero / (nonzero + ridge)).sum())


def left_out(targets: Float, fitted: Float, leverage: Float) -> Float:
    """What a model fitted without a sample predicts for it, for each sample: exact, no refit.

    Its residual is that of the full fit over one minus the leverage. Where the leverage is one up to rounding, the fit
    goes through the sample whatever its target is, and both are zero up to rounding: nothing is known of the model
    without it, and its row is NaN. Choices are made on the other samples.
    """
    rest = 1.0 - leverage
    rest[rest < ALL_ITS_OWN] = np.nan
    return targets - (targets - fitted) / rest[:, None]


def whiten(moments: Moments, ridge: float, rows: Float, *, intercept: bool = False) -> Float:
    """`rows` in coordinates where H = F'F + ridge I is the identity: Q with Q Q' = rows H^-1 rows'.

    With `intercept`, the last feature is the constant one and carries no ridge. Directions in which H is
    zero are left out.
    """
    lower = moments.lower()
    penalised = np.arange(len(lower) - intercept)
    lower[penalised, penalised] += ridge
    factor = lower.copy(order="F")
    if _factorise(factor) is not None:
        return blas.lower_solve(factor, rows.T).T
    scaled = rows * _unit_diagonal(lower)
    values, vectors = np.linalg.eigh(lower, "L")
    nonzero = values > _EPS * max(len(lower), np.sqrt(moments.count)) * values[-1]
    whitened: Float = scaled @ (vectors[:, nonzero] / np.sqrt(values[nonzero]))
    return whitened
