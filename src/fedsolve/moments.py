"""Moments: the additive statistics F'F and F'Y that every closed-form method is a function of.

They form a commutative monoid, and a client can be taken out again:

    Moments.of(x1, y1) + Moments.of(x2, y2) == Moments.of(x1 and x2, y1 and y2)      up to rounding
    a + zero == a,   a + b == b + a,   (a + b) + c == a + (b + c),   (a + b) - b == a

Where targets are numbers, the squares of each are summed too, so that residuals and errors follow from sums.
Sums are float64, always. F'F is symmetric, so only one triangle is held and sent: it cannot be asymmetric.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from fedsolve import blas, codec
from fedsolve.arrays import Array, Arrays, Float, finite, flat
from fedsolve.errors import DataError

SEMIDEFINITE = 1e-9  # how negative an eigenvalue may be at unit diagonal: rounding in the sums is well below it
LARGEST = float(np.finfo(np.float64).max) / 2**20  # of a sum of squares: sums over clients and weights need room
SMALLEST = float(np.finfo(np.float64).tiny)  # below it, numbers lose digits
BLOCK_BYTES = 32 * 2**20  # rows are converted and multiplied in blocks of about this size
FEW = 1024  # samples times classes up to which a product of matrices takes less than building a sparse one


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Sums over samples with features f (a row of F) and targets y (a row of Y)."""

    triangle: Float  # F'F, packed: m (m + 1) / 2 numbers in the order of `blas.pack`
    cross: Float  # F'Y, features x targets
    samples: NDArray[np.int64]  # how many, 0-d
    space: int = 0  # identity of the feature space; sums across spaces mean nothing and are refused
    # The diagonal of Y'Y where targets are numbers. Where they are one-hot it is None: the class counts, and no more.
    squares: Float | None = None

    def __repr__(self) -> str:
        return f"Moments({self.features} features, {self.targets} targets, {self.count} samples, space {self.space})"

    def __post_init__(self) -> None:
        if self.triangle.dtype != np.float64 or self.cross.dtype != np.float64:
            raise DataError(f"moments are float64, always; got {self.triangle.dtype} and {self.cross.dtype}")
        size = blas.packed_size(self.features)
        if self.cross.ndim != 2 or self.triangle.shape != (size,):
            raise DataError(
                f"moments of {self.features} features need {size} numbers for F'F; got shape {self.triangle.shape}"
            )
        if self.squares is not None and (self.squares.dtype != np.float64 or self.squares.shape != (self.targets,)):
            raise DataError(f"the squares of {self.targets} targets are as many numbers; got {self.squares.shape}")
        object.__setattr__(self, "samples", np.asarray(self.samples, dtype=np.int64))
        if self.count < 0:
            raise DataError(f"moments cannot have {self.count} samples: more was taken out than was put in")

    @property
    def count(self) -> int:
        """The number of samples, n."""
        return int(self.samples)

    @property
    def features(self) -> int:
        """The number of features, m."""
        return int(self.cross.shape[0])

    @property
    def targets(self) -> int:
        """The number of targets, d: the classes, or the numbers that are predicted."""
        return int(self.cross.shape[1])

    @property
    def gram(self) -> Float:
        """F'F in full, m x m."""
        gram = self.lower()
        upper = np.triu_indices(self.features, 1)
        gram[upper] = gram.T[upper]
        return gram

    def lower(self) -> Float:
        """F'F in a new Fortran-ordered matrix whose lower triangle is filled and whose upper one is zero."""
        return blas.unpack(self.triangle, self.features)

    def diagonal(self) -> Float:
        """The diagonal of F'F: the sum of squares of each feature."""
        return self.triangle[blas.packed_diagonal(self.features)]

    def factor(self) -> Float:
        """The lower factor of F'F with a trifle on the diagonal, relative to it; refused where F'F is none of samples.

        F'F is positive semi-definite, whatever the samples. A feature that is always zero gets next to nothing, so that
        an entry beside a zero diagonal shows.
        """
        diagonal = self.diagonal()
        if not diagonal.min(initial=0.0) >= 0:
            raise DataError(f"the squares of feature {int(diagonal.argmin())} sum to {diagonal.min():.3g}")
        raised = self.lower()
        smallest = diagonal[diagonal > 0].min(initial=np.inf)
        trifle = SEMIDEFINITE**2 * (smallest if np.isfinite(smallest) else 1.0)
        raised[np.diag_indices_from(raised)] = np.where(diagonal > 0, (1 + SEMIDEFINITE) * diagonal, trifle)
        if not blas.factorise(raised):
            raise DataError("its F'F is not positive semi-definite: no samples have these moments")
        return raised

    @classmethod
    def zero(cls, features: int, targets: int, space: int = 0, *, squares: bool = False) -> Moments:
        """The neutral element: no samples; with `squares` of the targets where those are numbers."""
        none = np.zeros(targets) if squares else None
        return cls(np.zeros(blas.packed_size(features)), np.zeros((features, targets)), np.array(0), space, none)

    @classmethod
    def of(
        cls,
        inputs: ArrayLike,
        labels: ArrayLike,
        *,
        classes: int | None = None,
        intercept: bool = False,
        space: int = 0,
        squares: bool = False,
    ) -> Moments:
        """The statistics of samples: `inputs` (n, ...), and `labels`, either n class numbers or n rows of targets.

        Class numbers stand for one-hot rows of width `classes`. `intercept` appends a feature that is always
        one. With `squares`, those of the targets are summed too. Peak memory is O(m^2 + block * m), whatever the
        number of samples.

        >>> x, y = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), [0, 1, 1]
        >>> whole, parts = Moments.of(x, y), Moments.of(x[:1], y[:1], classes=2) + Moments.of(x[1:], y[1:])
        >>> whole.gram.tolist(), whole.cross.tolist(), whole.count
        ([[3.0, 3.0], [3.0, 5.0]], [[1.0, 2.0], [0.0, 3.0]], 3)
        >>> np.array_equal(whole.triangle, parts.triangle), np.array_equal(whole.cross, parts.cross)
        (True, True)
        """
        rows = flat(np.atleast_1d(inputs))
        targets = np.asarray(labels)
        if rows.ndim != 2 or len(rows) != len(targets):
            raise DataError(f"every sample needs a label; got {len(rows)} samples and {len(targets)} labels")
        if rows.dtype.kind not in "biuf":
            raise DataError(f"features must be numbers; got {rows.dtype}")
        if targets.ndim == 1:
            targets, width = _class_numbers(targets, classes), _width(targets, classes)
        else:
            width = targets.shape[1]
        features = rows.shape[1] + intercept
        size = blas.packed_size(features)
        own = ("squares", "<f8", (width,)) if squares else ()
        layout = (("triangle", "<f8", (size,)), ("cross", "<f8", (features, width)), ("count", "<i8", ()))
        parts = codec.allot((*layout, own) if own else layout)
        cross: Float | None = None  # Y'F: sums of contiguous rows
        step = max(1, BLOCK_BYTES // (8 * max(1, features)))
        if rows.dtype == np.float64 and rows.flags.c_contiguous and not intercept:
            step = max(1, len(rows))  # nothing to convert, so nothing to bound
        few = targets.ndim == 1 and len(rows) <= step and len(rows) < width and len(rows) * width > FEW
        for start in range(0, len(rows), step):
            block = _block(rows[start : start + step], intercept)
            blas.gram(block, parts["triangle"], add=start > 0)
            if few:  # and this is the only block
                _sums_of_few(block, targets, parts["cross"])
                continue
            part = _cross(block, targets[start : start + step], width)
            with np.errstate(over="ignore", invalid="ignore") if start else nullcontext():
                cross = part if cross is None else cross + part
        if not len(rows):
            return cls.zero(features, width, space, squares=squares)
        if cross is not None:
            blas.transpose(cross, parts["cross"])
        parts["count"][...] = len(rows)
        if squares:
            parts["squares"][...] = np.einsum("ij,ij->j", *(2 * [np.asarray(targets, dtype=np.float64)]))
        moments = cls.from_arrays(parts, space)
        # One NaN or infinity in a column makes its sum of squares so, hence m numbers tell of n * m.
        diagonal = moments.diagonal()
        if not (diagonal.max(initial=0.0) <= LARGEST and (cross is None or targets.ndim == 1 or finite(cross))):
            raise DataError(_not_finite(rows, targets, diagonal))
        if rows.dtype.itemsize >= 8 and rows.dtype.kind == "f":
            _refuse_underflow(rows, diagonal)
        return moments

    @classmethod
    def over(
        cls,
        blocks: Iterable[tuple[Float, Array]],
        *,
        features: int,
        classes: int,
        space: int = 0,
        squares: bool = False,
    ) -> Moments:
        """The statistics of rows that come in blocks, each C-ordered float64 with its class numbers, or with targets.

        One block is held at a time, and F'F is added to where it lies: for rows that are too many to exist at once.
        Targets are rows of `classes` numbers, finite ones; with `squares`, those are summed too.
        """
        size = blas.packed_size(features)
        parts = codec.allot((("triangle", "<f8", (size,)), ("cross", "<f8", (features, classes)), ("count", "<i8", ())))
        cross, count, own = np.zeros((classes, features)), 0, np.zeros(classes)
        for rows, labels in blocks:
            blas.gram(rows, parts["triangle"], add=count > 0)
            with np.errstate(over="ignore", invalid="ignore"):
                cross += _cross(rows, _class_numbers(labels, classes) if labels.ndim == 1 else labels, classes)
                own += np.square(labels).sum(0) if squares else 0.0
            count += len(rows)
        if not count:
            return cls.zero(features, classes, space, squares=squares)
        blas.transpose(cross, parts["cross"])
        parts["count"][...] = count
        moments = cls.from_arrays({**parts, "squares": own} if squares else parts, space)
        diagonal = moments.diagonal()
        if not diagonal.max(initial=0.0) <= LARGEST:
            large = int(np.argmin(diagonal <= LARGEST))
            raise DataError(f"features must be finite, and so must their squares; those of feature {large} are not")
        return moments

    @classmethod
    def from_gram(cls, gram: Float, cross: Float, count: int, space: int = 0) -> Moments:
        """Moments from a full matrix F'F, which must be symmetric."""
        gram = np.asarray(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise DataError(f"F'F must be square; got shape {gram.shape}")
        if not np.allclose(gram, gram.T, rtol=1e-12, atol=1e-12 * float(np.abs(gram).max(initial=0.0))):
            raise DataError("F'F must be symmetric; the two triangles differ")
        return cls(blas.pack(gram), np.asarray(cross, dtype=np.float64), np.array(count), space)

    def __add__(self, other: Moments) -> Moments:
        self._same_space(other)
        squares = None if self.squares is None or other.squares is None else self.squares + other.squares
        triangle, cross = self.triangle + other.triangle, self.cross + other.cross
        return Moments(triangle, cross, self.samples + other.samples, self.space, squares)

    def __sub__(self, other: Moments) -> Moments:
        self._same_space(other)
        squares = None if self.squares is None or other.squares is None else self.squares - other.squares
        triangle, cross = self.triangle - other.triangle, self.cross - other.cross
        return Moments(triangle, cross, self.samples - other.samples, self.space, squares)

    def scaled(self, weight: float) -> Moments:
        """The same samples, each weighing `weight` in the sums."""
        squares = None if self.squares is None else weight * self.squares
        return Moments(weight * self.triangle, weight * self.cross, self.samples, self.space, squares)

    def arrays(self) -> dict[str, Array]:
        """As named arrays that may be summed over clients. The space is checked on the way, not summed."""
        parts = {"triangle": self.triangle, "cross": self.cross, "count": self.samples}
        return parts if self.squares is None else {**parts, "squares": self.squares}

    @classmethod
    def from_arrays(cls, arrays: Arrays, space: int = 0) -> Moments:
        """The moments that `arrays` took apart; the space is not in the arrays."""
        return cls(arrays["triangle"], arrays["cross"], arrays["count"], space, arrays.get("squares"))

    @staticmethod
    def are(arrays: Arrays) -> bool:
        """Whether arrays have the names, types and shapes of moments."""
        if arrays.keys() - {"squares"} != {"triangle", "cross", "count"}:
            return False
        triangle, cross = arrays["triangle"], arrays["cross"]
        size = blas.packed_size(len(cross)) if cross.ndim == 2 else -1
        return triangle.dtype == cross.dtype == np.float64 and triangle.shape == (size,)

    def _same_space(self, other: Moments) -> None:
        apart = (self.squares is None) != (other.squares is None)
        if apart:
            raise DataError("moments with squares of targets do not add to moments without")
        if (self.features, self.targets, self.space) != (other.features, other.targets, other.space):
            raise DataError(
                f"moments of different spaces do not add: {self.features} features, {self.targets} targets, "
                f"space {self.space:x} against {other.features}, {other.targets}, {other.space:x}"
            )


def _block(rows: Array, intercept: bool) -> Float:
    """Rows as a C-ordered float64 matrix, with a column of ones if asked."""
    if not intercept:
        return np.ascontiguousarray(rows, dtype=np.float64)
    block = np.empty((len(rows), rows.shape[1] + 1))
    block[:, :-1] = rows
    block[:, -1] = 1.0
    return block


def _cross(block: Float, targets: Array, width: int) -> Float:
    """Y'F of a block. With class numbers, Y' is a sparse matrix with one entry per column: n * m additions."""
    if targets.ndim == 2:
        return np.asarray(targets, dtype=np.float64).T @ block
    if len(targets) * width <= FEW:
        dense = np.zeros((width, len(targets)))
        dense[targets, np.arange(len(targets))] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):  # whoever asks looks at the sums
            return np.asarray(dense @ block)
    return _sparse_cross(block, targets, width)


def _sparse_cross(block: Float, targets: NDArray[np.int64], width: int) -> Float:
    order = np.argsort(targets, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=width))])
    one_hot = csr_array((np.ones(len(targets)), order, starts), shape=(width, len(targets)))
    product: Float = one_hot @ block
    return product


def _sums_of_few(block: Float, targets: NDArray[np.int64], out: Float) -> None:
    """F'Y into `out`, of fewer samples than there are classes: the sums of classes without any are not added up."""
    present, places = np.unique(targets, return_inverse=True)
    out.fill(0.0)
    out[:, present] = _sparse_cross(block, places, len(present)).T


def _width(labels: Array, classes: int | None) -> int:
    if classes is not None:
        return int(classes)
    return int(labels.max()) + 1 if len(labels) else 0


def _class_numbers(labels: Array, classes: int | None) -> NDArray[Any]:
    if labels.dtype.kind not in "biu":
        raise DataError(f"labels must be integers; got {labels.dtype}")
    if len(labels) and (labels.min() < 0 or labels.max() >= _width(labels, classes)):
        raise DataError(f"labels must lie in 0..{_width(labels, classes) - 1}; got {labels.min()}..{labels.max()}")
    return labels.astype(np.int64, copy=False)


def _refuse_underflow(rows: Array, diagonal: Float) -> None:
    """Refuse a feature whose squares vanish though it does not. Only sums below the normal numbers are looked at."""
    own = diagonal[: rows.shape[1]]
    if not own.min(initial=SMALLEST) < SMALLEST:
        return
    small = np.flatnonzero(own < SMALLEST)
    sizes = np.abs(rows[:, small]).max(0, initial=0.0)
    if sizes.any():
        place = int(np.argmax(sizes > 0))
        raise DataError(
            f"feature {small[place]} is too small: its values are at most {sizes[place]:.3g} in size, and their "
            "squares underflow float64; scale it up"
        )


def _not_finite(rows: Array, targets: Array, diagonal: Float) -> str:
    if not finite(targets):
        return "targets must be finite"
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        return f"features must be finite; got {rows[tuple(bad[0])]} in row {bad[0][0]}, column {bad[0][1]}"
    large = int(np.argmin(diagonal <= LARGEST))
    return f"feature {large} is too large: its squares overflow float64, or nearly; scale it down"
