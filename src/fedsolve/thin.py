"""Moments of few samples as thin arrays: the rows themselves, under a rotation that only the site knows.

With fewer samples than features, F'F holds more numbers than F. A site may then send QF and QY in place of F'F and F'Y,
with Q a random rotation of its n rows, since whoever has them has the same sums:

    (QF)'(QF) = F'F,    (QF)'(QY) = F'Y,    (QY)'(QY) = Y'Y.

Q is uniform over all rotations (Haar), so QF and QY are distributed as any other pair with the same sums: they tell
these three sums, and nothing else. F'F and F'Y tell the third as well wherever the rows are linearly independent. What
does not hold is that replies add up: a secure sum, and noise for sums, need moments. Q comes from the operating
system's randomness: under a seed that the server knows, it could be turned back, and rows would be rows. The triangle
of a QR factorisation would need no randomness, but a first feature that is always zero leaves a row in it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from fedsolve import blas, codec
from fedsolve.arrays import Array, Arrays, Float, Layout, finite, flat
from fedsolve.errors import DataError, ParameterError
from fedsolve.moments import LARGEST, SMALLEST, Moments

PILE = 2**24  # bytes of rows that become moments at once, about; for more, the allocator asks for new pages each time
EXACT = 1e-9  # share by which rounding may part what is equal
_NAMES = {"turned", "targets"}  # and "classes" where targets are one-hot, "ones" where a feature is always one


def is_shorter(samples: int, features: int) -> bool:
    """Whether rows under a rotation are fewer numbers than sums, by a factor that is worth it.

    >>> is_shorter(50, 768), is_shorter(384, 768)
    (True, False)
    """
    return 0 < 2 * samples < features


def asked(method: object) -> bool:
    """Whether a method lets sites send thin replies."""
    return getattr(method, "thin", False) is True


def check_alone(*, secure: bool, noise: bool) -> None:
    """Refuse thin replies where more is promised than they keep."""
    if secure:
        raise ParameterError(
            "thin replies are rows under a rotation and do not add up, so no secure sum holds them: leave out thin=true"
        )
    if noise:
        raise ParameterError(
            "noise is for sums, and thin replies are rows under a rotation: leave out thin=true, or --epsilon"
        )


def of(
    inputs: Array,
    labels: Array,
    *,
    classes: int | None = None,
    intercept: bool = False,
    source: Callable[[int], bytes] = os.urandom,
) -> dict[str, Array]:
    """Samples under a rotation that is drawn from `source` and forgotten; `labels` as in `Moments.of`.

    >>> x, y = np.arange(10.0).reshape(2, 5), np.array([2, 0])
    >>> reply = of(x, y, classes=3)
    >>> {name: array.shape for name, array in reply.items()}
    {'classes': (2,), 'targets': (2, 2), 'turned': (2, 5)}
    >>> sums = moments([reply], 3)
    >>> np.allclose(sums.gram, x.T @ x), np.allclose(sums.cross[:, 2], x[0]), sums.count
    (True, True, 2)
    """
    rows: Float = np.ascontiguousarray(flat(inputs), dtype=np.float64)
    if _is_odd(rows, labels, classes):
        Moments.of(inputs, labels, classes=classes)  # which says what is wrong
    count, width = rows.shape
    layout: list[tuple[str, str, tuple[int, ...]]] = [("turned", "<f8", (count, width))]
    if labels.ndim == 1:
        has = np.bincount(labels) > 0
        present, place = np.flatnonzero(has), np.cumsum(has) - 1
        targets = np.zeros((count, len(present)))
        targets[np.arange(count), place[labels]] = 1.0
        layout.append(("classes", "<i8", (len(present),)))
    else:
        targets = np.asarray(labels, dtype=np.float64)
    layout.append(("targets", "<f8", targets.shape))
    if intercept:
        layout.append(("ones", "<f8", (count,)))
    parts = codec.allot(tuple(layout))
    turn = rotation(count, source)
    np.matmul(turn, rows, out=parts["turned"])
    np.matmul(turn, targets, out=parts["targets"])
    if labels.ndim == 1:
        parts["classes"][...] = present
    if intercept:
        parts["ones"][...] = turn.sum(1)
    return parts


def _is_odd(rows: Float, labels: Array, classes: int | None) -> bool:
    """Whether something is wrong with samples: moments of them would lack digits, or be none."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->j", rows, rows)
    small = squares < SMALLEST
    if not squares.max(initial=0.0) <= LARGEST or (small.any() and rows[:, small].any()):
        return True
    if labels.ndim == 1:
        return labels.dtype.kind not in "biu" or not 0 <= labels.min() <= labels.max() < (classes or np.inf)
    return not finite(labels)


def rotation(size: int, source: Callable[[int], bytes] = os.urandom) -> Float:
    """A rotation or reflection, uniform over all of them: the Q of a Gaussian matrix's QR with a positive diagonal.

    Each step of that QR leaves a smaller Gaussian matrix, whose first column makes the next reflection. So the columns
    can be drawn as they come to be, and only the product of the reflections is left to compute (Stewart, 1980).
    """
    count = size * (size + 1) // 2
    half = (count + 1) // 2
    whole = np.frombuffer(source(8 * half), dtype=np.uint32) >> np.uint32(8)
    uniform = (whole.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-24)  # strictly between 0 and 1
    # Box and Muller: two normal numbers from two uniform ones. 24 bits each are many; rounding starts behind them.
    length, angle = np.sqrt(np.float32(-2.0) * np.log(uniform[:half])), np.float32(2.0 * np.pi) * uniform[half:]
    normal = np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]
    vectors = np.zeros((size, size))
    vectors[np.tri(size, dtype=np.bool_).T] = normal
    return blas.reflected(vectors)


def are(reply: Arrays) -> bool:
    """Whether arrays have the names, types and shapes of a thin reply."""
    if reply.keys() - {"classes", "ones"} != _NAMES:
        return False
    turned, targets = reply["turned"], reply["targets"]
    count = len(turned) if turned.ndim == 2 else 0
    if count < 1 or targets.ndim != 2 or len(targets) != count or not turned.dtype == targets.dtype == np.float64:
        return False
    if "ones" in reply and (reply["ones"].dtype != np.float64 or reply["ones"].shape != (count,)):
        return False
    kinds = reply.get("classes")
    return kinds is None or (kinds.dtype == np.int64 and kinds.shape == (targets.shape[1],))


def check(reply: Arrays, size: int, width: int) -> None:
    """Refuse thin arrays of finite numbers that no samples have, for moments of `size` features and `width` targets.

    Under any rotation, Y'Y is the diagonal matrix of class counts, and rows of Y sum to one. All else that moments must
    be (`fedsolve.census`), products of two matrices are by themselves.
    """
    targets, count = reply["targets"], len(reply["turned"])
    if features(reply) != size:  # before a triangle of any size is made of them
        raise DataError(f"its rows have {features(reply)} features, and {size} are wanted")
    kinds = reply.get("classes")
    ones = reply.get("ones")
    if ones is not None and not abs(ones @ ones - count) <= EXACT * count:
        raise DataError(f"it says that it has {count} samples, but its column of ones sums to {ones @ ones:.10g}")
    if kinds is None:
        if targets.shape[1] != width:
            raise DataError(f"its samples have {targets.shape[1]} targets, and the task {width}")
        return
    if len(kinds) and not (kinds[0] >= 0 and kinds[-1] < width and (np.diff(kinds) > 0).all()):
        raise DataError(f"its classes must be numbers from 0 to {width - 1}, each once and in order")
    products = targets.T @ targets
    counts = np.rint(np.diagonal(products))
    products[np.diag_indices_from(products)] -= counts
    if not np.abs(products).max(initial=0.0) <= EXACT * count or not counts.min(initial=1) >= 1:
        raise DataError("its targets are no labels under a rotation: their products are not counts of classes")
    if counts.sum() != count:
        raise DataError(f"its class counts sum to {counts.sum():.10g} of {count} samples, or are not counts")
    if ones is not None and not (np.abs(targets.sum(1) - ones) <= EXACT * np.sqrt(count) * targets.shape[1]).all():
        raise DataError("its sums over classes are not its sums over samples")


def features(reply: Arrays) -> int:
    """How many features the moments have that a thin reply stands for."""
    return int(reply["turned"].shape[1]) + ("ones" in reply)


def layout(reply: Arrays, width: int) -> Layout:
    """The layout of the moments that a thin reply stands for; thin replies of one layout are of one form."""
    size = features(reply)
    squares = () if "classes" in reply else (("squares", "<f8", (width,)),)
    sums = ("cross", "<f8", (size, width)), ("triangle", "<f8", (blas.packed_size(size),))
    return (("count", "<i8", ()), sums[0], *squares, sums[1])


def moments(replies: Sequence[Arrays], width: int, space: int = 0) -> Moments:
    """The sum of the moments that thin replies of one form stand for, in one product, after `check` has passed each.

    Replies are of one form where they have the same names and as many features; `width` is that of the task's targets.
    What is a count is one to the last bit: whoever reads counts off sums need not round.
    """
    size, first = features(replies[0]), replies[0]
    count = sum(len(reply["turned"]) for reply in replies)
    rows, targets = np.empty((count, size)), np.zeros((count, width))
    counts, start = np.zeros(width), 0
    for reply in replies:
        kinds = reply.get("classes")
        end = start + len(reply["turned"])
        rows[start:end, : reply["turned"].shape[1]] = reply["turned"]
        if "ones" in reply:
            rows[start:end, -1] = reply["ones"]
        if kinds is None:
            targets[start:end] = reply["targets"]
        else:
            targets[start:end, kinds] = reply["targets"]
            counts[kinds] += np.rint(np.square(reply["targets"]).sum(0)) if "ones" in reply else 0
        start = end
    total = Moments.of(rows, targets, space=space, squares="classes" not in first)
    if "ones" in first:
        total.triangle[blas.packed_diagonal(size)[-1]] = count
        if "classes" in first:
            total.cross[-1] = counts
    return total


def as_moments(reply: Arrays, width: int) -> Arrays:
    """A reply as moments where it is thin, and as it is otherwise."""
    if not are(reply):
        return reply
    check(reply, features(reply), width)
    return moments([reply], width).arrays()


class Pile:
    """Thin replies that wait until they are many: one product of many rows is faster than many of few."""

    def __init__(self, width: int) -> None:
        self.waiting: dict[Layout, list[Arrays]] = {}  # by the layout of their moments
        self._width = width

    def put(self, of: Layout, replies: Sequence[Arrays], *, last: bool = False) -> dict[str, Array] | None:
        """Put replies that were checked beside others; the moments of all, where they are many or the last ones."""
        waiting = self.waiting.setdefault(of, [])
        waiting.extend(replies)
        if not waiting or not (last or sum(reply["turned"].nbytes for reply in waiting) >= PILE):
            return None
        part = moments(waiting, self._width).arrays()
        waiting.clear()
        return part
