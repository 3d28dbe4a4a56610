"""What a statistician asks of an estimate: standard errors, intervals, p-values, tests. All of it follows from sums.

With S = X'X, c = X'y, q = y'y over n samples, least squares is b = S^-1 c, RSS = q - b'c, and the covariance of b is
RSS / (n - p) S^-1. The constant column, where there is one, is eliminated first: what is left are the sums about the
means, and systems are solved at unit diagonal. Digits go where q / RSS is large, where means are beside deviations, and
where columns nearly repeat each other, as they do in all sums of squares; columns and targets about an origin that all
share keep them. `families/statistics` sums residuals of columns that are brought apart first, and loses none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Float
from fedsolve.errors import SingularError

LEVEL = 0.95  # of intervals
ALIAS = 1e-10  # share of a column's squares that the columns before it must leave, or it repeats them


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated numbers with their covariance; `freedom` is that of Student's t, infinite for the normal distribution.

    >>> found = Estimates(np.array([2.0]), np.array([[1.0]]))
    >>> found.errors.round(3), found.p_values.round(4), found.interval().round(2)
    (array([1.]), array([0.0455]), array([[0.04, 3.96]]))
    """

    values: Float
    covariance: Float
    freedom: float = math.inf

    @property
    def errors(self) -> Float:
        """The standard error of each."""
        errors: Float = np.sqrt(np.diagonal(self.covariance))
        return errors

    @property
    def statistics(self) -> Float:
        """Each over its standard error: t, or z where the freedom is infinite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio: Float = self.values / self.errors
        return ratio

    @property
    def p_values(self) -> Float:
        """The probability of a statistic at least as far from zero, were the number zero."""
        return tails(self.statistics, self.freedom)

    def interval(self, level: float = LEVEL) -> Float:
        """Low and high ends of the confidence intervals, one row each."""
        from scipy import special

        tail = 0.5 * (1.0 + level)
        reach = special.ndtri(tail) if math.isinf(self.freedom) else special.stdtrit(self.freedom, tail)
        return np.column_stack([self.values - reach * self.errors, self.values + reach * self.errors])

    def through(self, transform: Float) -> Estimates:
        """The estimates of `transform` times the numbers."""
        return Estimates(transform @ self.values, transform @ self.covariance @ transform.T, self.freedom)


def tails(statistics: Float, freedom: float = math.inf) -> Float:
    """Both tails of Student's t, or of the normal distribution, beyond each statistic."""
    from scipy import special

    far = -np.abs(statistics)
    both: Float = 2.0 * np.asarray(special.ndtr(far) if math.isinf(freedom) else special.stdtr(freedom, far))
    return both


def in_raw_units(origin: Float, scale: Float) -> Float:
    """The matrix that takes coefficients of (x - origin) / scale, the intercept last, to coefficients of x.

    >>> in_raw_units(np.array([50.0]), np.array([10.0])) @ np.array([2.0, 7.0])
    array([ 0.2, -3. ])
    """
    matrix = np.diag(np.append(1.0 / scale, 1.0))
    matrix[-1, :-1] = -origin / scale
    return matrix


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a test says: its name, statistic, degrees of freedom (two for F, one for chi-square), and p-value."""

    name: str
    statistic: float
    freedom: tuple[float, ...]
    p_value: float

    @classmethod
    def f(cls, name: str, statistic: float, above: float, below: float) -> Verdict:
        """An F test."""
        from scipy import special

        return cls(name, statistic, (above, below), float(special.fdtrc(above, below, max(statistic, 0.0))))

    @classmethod
    def chi_square(cls, name: str, statistic: float, freedom: float) -> Verdict:
        """A chi-square test."""
        from scipy import special

        return cls(name, statistic, (freedom,), float(special.chdtrc(freedom, max(statistic, 0.0))))


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """Ordinary least squares with all that follows; figures are those of statsmodels' OLS."""

    estimates: Estimates
    residual: float  # sum of squares of the residuals
    total: float  # sum of squares of the target, about its mean where there is an intercept
    count: int
    intercept: bool

    @property
    def rank(self) -> int:
        """The number of coefficients, p."""
        return len(self.estimates.values)

    @property
    def variance(self) -> float:
        """The estimated variance of the errors, RSS / (n - p)."""
        return self.residual / (self.count - self.rank)

    @property
    def r2(self) -> float:
        """The share of the target's squares that is explained."""
        return 1.0 - self.residual / self.total

    @property
    def adjusted_r2(self) -> float:
        """As `r2`, with variances in place of sums."""
        return 1.0 - (self.count - self.intercept) / (self.count - self.rank) * (1.0 - self.r2)

    @cached_property
    def test(self) -> Verdict:
        """Whether all coefficients but the intercept are zero."""
        above, below = self.rank - self.intercept, self.count - self.rank
        return Verdict.f("all coefficients zero", (self.total - self.residual) / above / self.variance, above, below)

    @property
    def log_likelihood(self) -> float:
        """With normal errors, of the variance RSS / n."""
        return gaussian_log_likelihood(self.residual, self.count)

    @property
    def aic(self) -> float:
        """Akaike's criterion; the variance is not counted among the parameters."""
        return 2.0 * self.rank - 2.0 * self.log_likelihood

    @property
    def bic(self) -> float:
        """Schwarz's criterion; the variance is not counted among the parameters."""
        return math.log(self.count) * self.rank - 2.0 * self.log_likelihood


def gaussian_log_likelihood(residual: float, count: float) -> float:
    """The largest log-likelihood of normal errors with this sum of squares, over their variance."""
    return -0.5 * count * (math.log(2.0 * math.pi * residual / count) + 1.0)


def least_squares(gram: Float, cross: Float, squares: float, count: int, *, intercept: bool = True) -> LeastSquares:
    """Inference from X'X, X'y, y'y and n. With `intercept`, the last column of X is the constant one.

    >>> x, y = np.array([[0.0, 1], [1, 1], [2, 1], [3, 1]]), np.array([1.0, 3, 4, 8])
    >>> fit = least_squares(x.T @ x, x.T @ y, y @ y, 4)
    >>> fit.estimates.values.round(6), round(fit.r2, 6)
    (array([2.2, 0.7]), 0.930769)
    """
    if count <= len(gram):
        raise SingularError(f"standard errors need more samples than coefficients; got {count} and {len(gram)}")
    if not intercept:
        values, inverse = _solve(gram, cross), inverse_of(gram)
        residual = squares - float(values @ cross)
        return _least_squares(values, inverse, residual, squares, count, intercept=False)
    mean, target_mean = gram[-1, :-1] / gram[-1, -1], cross[-1] / gram[-1, -1]
    centred = gram[:-1, :-1] - np.outer(gram[-1, :-1], mean)
    right = cross[:-1] - gram[-1, :-1] * target_mean
    total = squares - cross[-1] * target_mean
    slopes, inner = _solve(centred, right), inverse_of(centred)
    values = np.append(slopes, target_mean - mean @ slopes)
    # (X'X)^-1 by blocks: the intercept is the mean of the target less what the means of the columns add.
    beside = -inner @ mean
    corner = 1.0 / gram[-1, -1] + mean @ inner @ mean
    inverse = np.block([[inner, beside[:, None]], [beside[None, :], np.array([[corner]])]])
    return _least_squares(values, inverse, float(total - slopes @ right), float(total), count, intercept=True)


def _least_squares(
    values: Float, inverse: Float, residual: float, total: float, count: int, *, intercept: bool
) -> LeastSquares:
    freedom = count - len(values)
    residual = max(residual, 0.0)
    estimates = Estimates(values, residual / freedom * inverse, freedom)
    return LeastSquares(estimates, residual, total, count, intercept)


def inverse_of(gram: Float) -> Float:
    """The inverse of a positive definite matrix, which covariances are made of; refused where it has none."""
    factor, scale = _factor(gram)
    inverse: Float = blas.cholesky_solve(factor, np.eye(len(gram))) * scale * scale[:, None]
    return 0.5 * (inverse + inverse.T)


def _solve(gram: Float, right: Float) -> Float:
    factor, scale = _factor(gram)
    solution: Float = blas.cholesky_solve(factor, (right * scale)[:, None])[:, 0] * scale
    return solution


def _factor(gram: Float) -> tuple[Float, Float]:
    """The Cholesky factor at unit diagonal, and the scale that makes it so."""
    repeated = sorted(set(range(len(gram))) - set(independent(gram)))
    if repeated:
        raise SingularError(
            f"columns {', '.join(map(str, repeated[:5]))} are constant or repeat columns before them, so that they "
            "have no standard errors; leave them out"
        )
    scale = 1.0 / np.sqrt(np.diagonal(gram))
    factor = blas.cholesky(np.asfortranarray(np.tril(gram * scale * scale[:, None])))
    if factor is None:
        raise SingularError(
            "the columns repeat each other nearly, so that they have no standard errors; leave some out"
        )
    return factor, scale


def independent(gram: Float, tolerance: float = ALIAS) -> tuple[int, ...]:
    """The columns that do not repeat those before them, which leave each more than `tolerance` of its squares.

    >>> x = np.array([[1.0, 2.0, 0.0, 0.0], [1.0, 2.0, 1.0, 0.0], [1.0, 2.0, 3.0, 0.0]])
    >>> independent(x.T @ x)
    (0, 2)
    """
    left, squares = np.array(gram, dtype=np.float64), np.diagonal(gram).copy()
    kept: list[int] = []
    for column in range(len(left)):
        pivot = left[column, column]
        if squares[column] > 0 and pivot > tolerance * squares[column]:
            kept.append(column)
            left[column:, column:] -= np.outer(left[column:, column] / pivot, left[column, column:])
    return tuple(kept)


def inflation(gram: Float) -> Float:
    """Variance inflation factors of the columns but the last, which is the constant one.

    1 / (1 - R2) of each column on the others: the diagonal of the inverse correlation matrix.
    """
    centred = gram[:-1, :-1] - np.outer(gram[-1, :-1], gram[-1, :-1] / gram[-1, -1])
    factors: Float = np.diagonal(inverse_of(centred)) * np.diagonal(centred)
    return factors


def sandwich(bread: Float, meat: Float) -> Float:
    """The covariance whatever the variances of the errors: bread meat bread, with bread the inverse of X'X or X'WX.

    `meat` is the sum of e^2 x x' over samples (HC0), or of s s' over groups, with s the sum of e x over a group's
    samples. `small_sample` and `few_groups` are the usual corrections.
    """
    covariance: Float = bread @ meat @ bread
    return 0.5 * (covariance + covariance.T)


def small_sample(count: float, rank: int) -> float:
    """What makes HC1 of HC0: n / (n - p)."""
    return count / (count - rank)


def few_groups(groups: int, count: float, rank: int) -> float:
    """The correction for errors clustered in groups that statsmodels and Stata use: G/(G-1) (n-1)/(n-p)."""
    return groups / (groups - 1) * (count - 1) / (count - rank)


def differ(departure: float, residual: float, count: float, rank: int, ranks: int) -> Verdict:
    """Chow's test: whether groups have coefficients of their own, from sums over the groups alone.

    `departure` is by how much RSS falls when every group is fitted alone: the sum of s_k'S_k^-1 s_k, with s_k = X_k'e_k
    at the common coefficients. `ranks` is the sum of the groups' ranks, which for small groups are below p.
    """
    above, below = ranks - rank, count - ranks
    return Verdict.f("sites alike (Chow)", departure / above / ((residual - departure) / below), above, below)


def score_test(departure: float, rank: int, ranks: int) -> Verdict:
    """Rao's test of the same where errors are not normal: the sum of s_k'H_k^-1 s_k, by chi-square."""
    return Verdict.chi_square("sites alike (score)", departure, ranks - rank)
