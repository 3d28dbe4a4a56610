"""The few BLAS and LAPACK routines that the statistics and solves need, called so that clients run side by side.

SciPy's Python wrappers hold the interpreter lock for as long as a routine runs, so threads would take turns. SciPy
also exports the bare functions, for Cython; called through ctypes they run without the lock. Same library, same
results, same limits on its threads. Matrices are float64 in Fortran order, symmetric ones as their lower triangle.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

from fedsolve.arrays import Float

COLUMNS = 64  # of a matrix at a time
ASCENTS = 4  # at most; two do nearly always
LINE = 8  # numbers of a cache line
_OF_TYPE = {ctypes.c_int: np.dtype(np.int64), ctypes.c_double: np.dtype(np.float64)}  # a work array may be wider


def gram(rows: Float, out: Float, *, add: bool) -> None:
    """`rows' rows` (rows in C order), as a packed triangle, into or onto `out`."""
    count, width = rows.shape
    # C-ordered rows are the Fortran-ordered matrix rows', so this is (rows') (rows')' without a copy.
    _routine("dsfrk")(b"N", b"L", b"N", width, count, 1.0, rows, max(1, width), float(add), out)


def transpose(matrix: Float, out: Float) -> None:
    """The transpose of a matrix in C order, into another in C order: three times as fast as `out[...] = matrix.T`.

    That writes one number into each cache line at a time, and comes back to it when it has left the cache.
    """
    for start in range(0, len(matrix), LINE):
        out[:, start : start + LINE] = matrix[start : start + LINE].T


def packed_size(size: int) -> int:
    """How many numbers the triangle of a symmetric matrix holds."""
    return size * (size + 1) // 2


def pack(lower: Float) -> Float:
    """The lower triangle of a matrix in LAPACK's rectangular full packed format (TRANSR = N, UPLO = L).

    As small as a row-by-row triangle; but it consists of rectangles, so that products are added to it at full speed.
    """
    size = len(lower)
    triangle = np.empty(packed_size(size))
    _routine("dtrttf")(b"N", b"L", size, np.asfortranarray(lower), max(1, size), triangle, 0)
    return triangle


def unpack(triangle: Float, size: int) -> Float:
    """The inverse of `pack`: a lower triangle, with zeros above."""
    lower = np.zeros((size, size), order="F")
    _routine("dtfttr")(b"N", b"L", size, np.require(triangle, np.float64, ["C", "A"]), lower, max(1, size), 0)
    return lower


@lru_cache(maxsize=16)
def packed_diagonal(size: int) -> NDArray[np.int64]:
    """Where the diagonal stands in a packed triangle.

    The format holds the first half of the columns as they are and the rest transposed beside them, in a
    rectangle of size + 1 rows (size even) or size rows (odd).
    """
    half, odd = (size + 1) // 2, size % 2
    rows = size + 1 - odd
    first, second = np.arange(half), np.arange(size - half)
    return np.concatenate([first * (rows + 1) + 1 - odd, second * (rows + 1) + odd * rows])


@lru_cache(maxsize=16)
def packed_row(size: int, row: int) -> NDArray[np.int64]:
    """Where a row of the symmetric matrix stands in a packed triangle."""
    places = unpack(np.arange(packed_size(size), dtype=np.float64), size)
    return np.concatenate([places[row, : row + 1], places[row + 1 :, row]]).astype(np.int64)


def packed_lower_solve(factor: Float, right: Float, *, transposed: bool = False) -> Float:
    """The solution X of L X = right, or of L' X = right, with L packed."""
    solution = np.array(right, order="F")
    size, columns = solution.shape
    _routine("dtfsm")(
        b"N", b"L", b"L", b"T" if transposed else b"N", b"N", size, columns, 1.0, factor, solution, max(1, size)
    )
    return solution


def cholesky(lower: Float) -> Float | None:
    """The factor L with L L' = the matrix, in the lower triangle of a new matrix; None if a pivot is not positive."""
    factor = lower.copy(order="F")
    return factor if factorise(factor) else None


def factorise(lower: Float) -> bool:
    """Replace a lower triangle by its Cholesky factor; false where a pivot is not positive, and it holds no factor."""
    size, info = len(lower), ctypes.c_int(0)
    _routine("dpotrf")(b"L", size, lower, max(1, size), info)
    return info.value == 0


def norm(lower: Float, scale: Float) -> float:
    """The 1-norm of a symmetric matrix whose rows and columns are multiplied by `scale`, all of it positive."""
    sums = np.zeros(len(lower))
    for start in range(0, len(lower), COLUMNS):  # the copies without signs stay in the cache
        stop = start + COLUMNS
        block = np.abs(lower[start:, start:stop])
        sums[start:] += block @ scale[start:stop]
        sums[start:stop] += scale[start:] @ block
    sums -= np.abs(np.diagonal(lower)) * scale  # the diagonal was in both
    return float((sums * scale).max(initial=0.0))


def inverse_norm(factor: Float, scale: Float) -> float:
    """An estimate of the 1-norm of the inverse of the matrix that `norm` measures, given the factor without a scale.

    It is a lower bound, mostly the norm itself: Hager's ascent along gradients, with Higham's last vector (LAPACK's
    dlacn2). LAPACK's dpocon is the same with solves that cannot overflow, and takes three times as long; where a
    number overflows here, the norm is infinite or no number, and the matrix singular.
    """
    size = len(factor)
    ramp = np.linspace(1.0, 2.0, size)
    ramp[1::2] *= -1.0
    with np.errstate(over="ignore", invalid="ignore"):
        product = _inverse_times(factor, scale, np.full(size, 1.0 / max(1, size)))
        largest, signs, place = float(np.abs(product).sum()), np.copysign(1.0, product), -1
        for _ in range(ASCENTS):
            gradient = np.abs(_inverse_times(factor, scale, signs))
            if size == 0 or (place >= 0 and gradient[place] >= gradient.max()):
                break
            place = int(gradient.argmax())
            unit = np.zeros(size)
            unit[place] = 1.0
            product = _inverse_times(factor, scale, unit)
            before, largest = largest, max(largest, float(np.abs(product).sum()))
            next_signs = np.copysign(1.0, product)
            if not largest > before or (next_signs == signs).all():
                break
            signs = next_signs
        last = 2.0 * float(np.abs(_inverse_times(factor, scale, ramp)).sum()) / (3.0 * max(1, size))
    return last if not last <= largest else largest


def _inverse_times(factor: Float, scale: Float, vector: Float) -> Float:
    """(D L L' D)^-1 times a vector, with D the scale."""
    solution: Float = vector / scale
    size = len(factor)
    for transposed in (b"N", b"T"):
        _routine("dtrsv")(b"L", transposed, b"N", size, factor, max(1, size), solution, 1)
    solution /= scale
    return solution


def cholesky_solve(factor: Float, right: Float) -> Float:
    """The solution X of L L' X = right."""
    solution = np.array(right, order="F")
    size, columns = solution.shape
    _routine("dpotrs")(b"L", size, columns, factor, max(1, size), solution, max(1, size), 0)
    return solution


def inverse_diagonal(factor: Float) -> Float:
    """The diagonal of (L L')^-1: the sums of squares of the columns of L^-1."""
    inverse = np.tril(factor).copy(order="F")
    invert(inverse)
    sums: Float = np.square(inverse).sum(0)
    return sums


def inverse_trace(factor: Float) -> float:
    """The trace of (L L')^-1: the sum of the squares of L^-1. What is above the diagonal of `factor` must be zero."""
    inverse = factor.copy(order="F")
    invert(inverse)
    return float(np.linalg.norm(inverse)) ** 2


def invert(lower: Float) -> None:
    """Replace a lower triangle, with zeros above it, by its inverse."""
    size = len(lower)
    _routine("dtrtri")(b"L", b"N", size, lower, max(1, size), 0)


def lower_product(lower: Float, right: Float, *, transposed: bool = False) -> Float:
    """The lower triangle, or its transpose, times `right`."""
    product = np.array(right, order="F")
    size, columns = product.shape
    turned = b"T" if transposed else b"N"
    _routine("dtrmm")(b"L", b"L", turned, b"N", size, columns, 1.0, lower, max(1, size), product, max(1, size))
    return product


def lower_solve(factor: Float, right: Float, *, transposed: bool = False) -> Float:
    """The solution X of L X = right, or of L' X = right."""
    solution = np.array(right, order="F")
    size, columns = solution.shape
    turned = b"T" if transposed else b"N"
    _routine("dtrsm")(b"L", b"L", turned, b"N", size, columns, 1.0, factor, max(1, size), solution, max(1, size))
    return solution


def reflected(rows: Float) -> Float:
    """The orthogonal matrix Q = H_1 H_2 ... of reflections, H_k turning row k of an upper triangle onto the axis k.

    Its columns have the signs for which the k-th of them goes to the positive side: that of a QR with a positive
    diagonal whose column k is, when its turn comes, row k.

    >>> reflected(np.array([[-3.0, 0.0], [0.0, 2.0]])).tolist()
    [[-1.0, 0.0], [0.0, 1.0]]
    """
    size = len(rows)
    first = np.diagonal(rows)
    ends = -np.copysign(np.sqrt(np.square(rows).sum(1)), first)  # where H_k takes row k: far from it, for its digits
    ends[-1:] = first[-1:]  # a single number stays
    turns, scales = np.zeros(size), np.ones(size)
    turns[:-1] = (ends[:-1] - first[:-1]) / ends[:-1]
    scales[:-1] = first[:-1] - ends[:-1]
    columns = np.asarray(rows / scales[:, None])  # of the matrix that LAPACK keeps reflections in
    work = np.empty(COLUMNS * size)
    _routine("dorgqr")(size, size, size, columns, max(1, size), turns, work, len(work), 0)
    columns *= np.copysign(1.0, ends)[:, None]
    return columns.T


def symmetric_product(lower: Float, right: Float) -> Float:
    """The symmetric matrix times `right`."""
    size, columns = right.shape
    product, operand = np.empty((size, columns), order="F"), np.asfortranarray(right)
    _routine("dsymm")(
        b"L", b"L", size, columns, 1.0, lower, max(1, size), operand, max(1, size), 0.0, product, max(1, size)
    )
    return product


@cache
def _routine(name: str) -> Callable[..., float]:
    """A routine by name, taking plain values: texts, integers, floats and arrays, all passed by address."""
    library = cython_blas if name in cython_blas.__pyx_capi__ else cython_lapack
    capsule = library.__pyx_capi__[name]
    signature = _signature(capsule).decode()
    result, arguments = re.fullmatch(r"(\w+) \((.*)\)", signature).groups()  # type: ignore[union-attr]
    kinds = arguments.replace(" *", "").split(", ")
    # The signature travels with the pointer, so an interface with other integers is refused below.
    if not all(kind in ("char", "int", "void") or kind.endswith("_d") for kind in (result, *kinds)):
        raise ImportError(f"SciPy's {name} has an interface that fedsolve does not know: {signature}")
    restype = None if result == "void" else ctypes.c_double
    function = ctypes.CFUNCTYPE(restype)(_pointer(capsule, _signature(capsule)))

    types = [ctypes.c_int if kind == "int" else ctypes.c_double for kind in kinds]

    def call(*values: Any) -> float:
        if len(values) != len(kinds):
            raise TypeError(f"{name} takes {len(kinds)} values; got {len(values)}")
        return float(function(*map(_address, values, types)) or 0.0)

    return call


def _address(value: Any, kind: type[ctypes.c_int] | type[ctypes.c_double]) -> Any:
    """A value as a routine takes it; a small matrix's product is over in the time that asking twice would take."""
    if isinstance(value, bytes):
        return value  # which ctypes passes by address
    if isinstance(value, np.ndarray):
        dtype, flags = _OF_TYPE[kind], value.flags
        if value.dtype != dtype or not flags.aligned or not flags.forc:
            raise TypeError(f"wanted an aligned, contiguous array of {dtype}; got {value.dtype}, {flags}")
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.byref(value if isinstance(value, (ctypes.c_int, ctypes.c_double)) else kind(value))


_signature = ctypes.pythonapi.PyCapsule_GetName
_signature.restype, _signature.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
