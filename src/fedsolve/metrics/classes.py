"""Figures of answers that are classes.

The confusion matrix (one row per true class, one column per answer) is the tally's `confusion` itself. Above `MANY`
classes it is left out, and right answers, answers and samples are counted per class: `right`, `predicted`, `actual`.

The area under the ROC curve compares samples with each other, so it does not add. For one client `exact_auc` gives it
exactly; the metric `auc` reads it from histograms of the probabilities, which add, and `auc_bound` says how far the
two can be apart. The Brier score sums over all classes, so it goes from 0 to 2; for two classes it is twice the one
that looks at the second class alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsolve import arrays
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.errors import DataError
from fedsolve.metrics.figure import LARGEST_COUNT, Metric

MANY = 100  # classes up to which a tally holds the whole confusion matrix
BINS = 256  # per histogram, for few classes
LARGE = 65_536  # bytes that all histograms of a tally may take, up to 1,024 classes
CLIP = 1e-15  # smallest probability in log_loss, so that one sure and wrong answer does not make it infinite
SLACK = 1e-3  # rows of probabilities sum to one up to this: single precision and many classes
BLOCK = 2**16  # probabilities looked at in one go; they stay in the processor's cache

# Odds fall into cells, 64 per power of two, that are read from the bits of the float: its exponent and six digits more.
_SHIFT = 52 - 6
_FIRST, _LAST = (int(np.float64(odds).view(np.int64)) >> _SHIFT for odds in (2.0**-70, 2.0**53))


def tally(scores: ArrayLike, probabilities: ArrayLike, labels: ArrayLike) -> dict[str, Array]:
    """Count everything the metrics need, in a few passes; tallies of parts of the samples add up to the tally of all.

    `scores` and `probabilities` have one row per sample and one column per class; the largest score is the answer
    (the first of equal ones), and each row of probabilities sums to one. `labels` are class numbers.

    >>> parts = tally([[2.0, 1.0]], [[0.7, 0.3]], [0]), tally([[0.0, 3.0]], [[0.1, 0.9]], [0])
    >>> (parts[0]["confusion"] + parts[1]["confusion"]).tolist()
    [[1, 1], [0, 0]]
    """
    shares, truth = _samples(probabilities, labels)
    points = np.asarray(scores)
    if points.dtype.kind not in "biuf" or points.shape != shares.shape:
        raise DataError(
            f"scores must be numbers of the shape of the probabilities, {list(shares.shape)}; "
            f"got {points.dtype}{list(points.shape)}"
        )
    count, classes = shares.shape
    rows = np.arange(count)
    answers = points.argmax(axis=1)
    # argmax takes the first NaN for the largest, so the largest score says whether a row has one.
    if np.isnan(points[rows, answers]).any():
        raise DataError("scores must be numbers; got NaN, as from a model that has diverged")
    total = zero(classes)
    total["count"] += count
    if classes <= MANY:
        total["confusion"] += np.bincount(truth * classes + answers, minlength=classes**2).reshape(classes, classes)
    else:
        for name, numbers in (("right", truth[truth == answers]), ("predicted", answers), ("actual", truth)):
            total[name] += np.bincount(numbers, minlength=classes)
    total["log_loss"] += 0.0 - np.log(np.clip(shares[rows, truth].astype(np.float64), CLIP, 1.0)).sum()
    width, table = bins(classes), _cells(classes)
    offsets = np.arange(classes) * width
    histogram, true_cells = np.zeros(classes * width, np.int64), np.empty(count, np.int64)
    step = max(1, BLOCK // classes)
    for start in range(0, count, step):
        block = shares[start : start + step].astype(np.float64)  # a copy: written to below
        place = rows[: len(block)], truth[start : start + step]
        cells = _bin(block, table)
        cells += offsets
        true_cells[start : start + step] = cells[place]
        histogram += np.bincount(cells.ravel(), minlength=classes * width)
        block[place] -= 1.0
        total["brier"] += np.square(block, out=block).sum()
    total["positives"] += np.bincount(true_cells, minlength=classes * width).reshape(classes, width)
    total["negatives"] += histogram.reshape(classes, width) - total["positives"]
    return total


def zero(classes: int) -> dict[str, Array]:
    """The tally of no samples: the names, types and shapes of every tally of so many classes."""
    if not classes >= 1:
        raise DataError(f"a tally needs at least one class; got {classes}")
    counts: dict[str, tuple[int, ...]] = {"count": ()}
    if classes <= MANY:
        counts["confusion"] = (classes, classes)
    else:
        counts |= dict.fromkeys(("right", "predicted", "actual"), (classes,))
    counts |= dict.fromkeys(("positives", "negatives"), (classes, bins(classes)))
    sums = {name: np.zeros((), np.float64) for name in ("log_loss", "brier")}
    return {name: np.zeros(shape, np.int64) for name, shape in counts.items()} | sums


def baseline(train: ArrayLike, test: ArrayLike) -> dict[str, Array]:
    """The tally of the best constant answer, from counts per class alone; `class_counts` gives those of a tally.

    It always answers the class that is commonest in `train` (the first of equal ones), with the shares of the classes
    in `train` as probabilities, to the samples counted in `test`.

    >>> baseline([3, 1], [2, 2])["confusion"].tolist()
    [[2, 0], [2, 0]]
    """
    train_counts, test_counts = np.asarray(train), np.asarray(test)
    for name, counts in (("training", train_counts), ("test", test_counts)):
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
            raise DataError(f"{name} counts must be one whole number per class, none below zero")
    if len(train_counts) != len(test_counts) or not train_counts.sum() > 0:
        raise DataError(
            f"the best constant answer needs training samples and the same classes for both; got {train_counts.sum()} "
            f"training samples, {len(train_counts)} classes in training and {len(test_counts)} in the test"
        )
    classes, count, test_counts = len(train_counts), int(test_counts.sum()), test_counts.astype(np.int64)
    shares, answer, every = train_counts / train_counts.sum(), int(train_counts.argmax()), np.arange(classes)
    total = zero(classes)
    total["count"] += count
    if classes <= MANY:
        total["confusion"][:, answer] = test_counts
    else:
        total["right"][answer], total["predicted"][answer] = test_counts[answer], count
        total["actual"] += test_counts
    total["log_loss"] += 0.0 - test_counts @ np.log(np.maximum(shares, CLIP))
    total["brier"] += test_counts @ ((1.0 - shares) ** 2 + (shares @ shares - shares**2))
    place = every, _bin(shares, _cells(classes))
    total["positives"][place], total["negatives"][place] = test_counts, count - test_counts
    return total


def class_counts(tally: Arrays) -> NDArray[np.int64]:
    """How many samples each class has.

    >>> class_counts(baseline([3, 1], [2, 5])).tolist()
    [2, 5]
    """
    return _per_class(tally)[2]


def exact_auc(probabilities: ArrayLike, labels: ArrayLike) -> float | None:
    """The area under the ROC curve of one client's samples, ties counted half; None where it is not defined.

    For two classes that of the second class's probability; for more the mean over the classes, each one against the
    rest, that have samples and do not have all of them.

    >>> exact_auc([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]], [0, 0, 1, 1])
    0.75
    """
    shares, truth = _samples(probabilities, labels)
    areas = []
    for label in range(1 if shares.shape[1] == 2 else 0, shares.shape[1]):
        column, positives = shares[:, label], shares[truth == label, label]
        negatives = len(column) - len(positives)
        if not len(positives) or not negatives:
            continue
        ascending = np.sort(column)
        # Twice the samples below each positive, equal ones half; among the positives alone these sum to their square.
        below = sum(int(np.searchsorted(ascending, positives, side).sum()) for side in ("left", "right"))
        areas.append((below - len(positives) ** 2) / (2 * len(positives) * negatives))
    return statistics.fmean(areas) if areas else None


def auc_bound(tally: Arrays) -> float | None:
    """How far the area of the histograms can be from the exact one: half the share of pairs within one bin.

    That holds for any samples. Where probabilities are spread smoothly over several bins the two differ far less: by
    1e-3 at most in trials with up to 100 classes. Above `MANY` classes bins are few, 60 for 101 classes and 4 for
    1,000; there the area of the histograms is rough: for 1,000 classes it was 0.01 to 0.2 too low in trials.

    >>> auc_bound(tally([[1.0, 0.0], [0.0, 1.0]], [[0.9, 0.1], [0.1, 0.9]], [0, 1]))
    0.0
    """
    return _area(tally, lambda positives, negatives: positives * negatives / 2)


def check(tally: Arrays, classes: int, source: str = "the tally") -> None:
    """Refuse a tally that no samples can have: wrong layout, negative or impossible counts, sums that do not match.

    >>> check(tally([[1.0, 0.0]], [[0.9, 0.1]], [0]), classes=2)
    """
    arrays.check(tally, source)
    layout, standard = arrays.layout(tally), arrays.layout(zero(classes))
    if layout != standard:
        raise DataError(f"{source} of {classes} classes must hold {arrays.words(standard)}; got {arrays.words(layout)}")
    count = int(tally["count"])
    if not 0 <= count <= LARGEST_COUNT:
        raise DataError(f"{source}: 'count' must lie between 0 and {LARGEST_COUNT}; got {count}")
    for name, array in tally.items():
        limit = _limits(count).get(name, count)
        if not (array.min() >= 0 and array.max() <= limit):
            raise DataError(f"{source}: {name!r} must lie between 0 and {limit:g} for {count} samples")
    right, predicted, actual = _per_class(tally)
    if not (actual.sum() == count and predicted.sum() == count):
        raise DataError(f"{source}: samples and answers per class must sum to its count of {count}")
    misses, errors = actual - right, predicted - right
    # Every missed sample is another class's wrong answer.
    if not ((misses >= 0).all() and (errors >= 0).all() and (misses + errors <= misses.sum()).all()):
        raise DataError(f"{source}: right answers, answers and samples per class contradict each other")
    for name, samples in (("positives", actual), ("negatives", count - actual)):
        if not (tally[name].sum(axis=1) == samples).all():
            raise DataError(f"{source}: the histograms {name!r} must sum to the samples counted per class")


def bins(classes: int) -> int:
    """Bins per histogram: `BINS` for few classes, and never more than `LARGE` bytes for the histograms of all."""
    return min(BINS, max(4, LARGE // (16 * classes)))  # two numbers of eight bytes per class and bin


def edges(classes: int) -> Float:
    """The odds, p / (1 - p), at which one bin of the histograms ends and the next begins.

    Their logarithms are spaced by a hyperbolic sine around that of a mere guess, p = 1 / classes: there they lie
    closest, and towards p = 0 and p = 1 the spacing grows with the distance. So both ends are resolved, down to `CLIP`.

    >>> len(edges(2)), float(edges(2)[127])
    (255, 1.0)
    """
    return (_cuts(classes) << _SHIFT).view(np.float64)


def _cuts(classes: int) -> NDArray[np.int64]:
    near = 0.5 if classes <= MANY else 0.1  # within which bins are even; where they are few, most lie near a guess
    steps = np.linspace(-1.0, 1.0, bins(classes) + 1)[1:-1]
    logs = near * np.sinh(math.asinh(-math.log(CLIP) / near) * steps) - math.log(max(1, classes - 1))
    return np.exp(logs).view(np.int64) >> _SHIFT


def _cells(classes: int) -> NDArray[np.int64]:
    """The bin of each cell of odds, from `_FIRST` on."""
    return np.searchsorted(_cuts(classes), np.arange(_FIRST, _LAST + 1), side="right").astype(np.int64)


def _bin(probabilities: Float, table: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bin of each probability: the greater the probability, the later the bin."""
    odds = 1.0 - probabilities
    np.maximum(odds, 2.0**-53, out=odds)  # the least that 1 - p can be for p below one
    np.divide(probabilities, odds, out=odds)
    cells = odds.view(np.int64)
    cells >>= _SHIFT
    cells -= _FIRST
    return table.take(cells, mode="clip")


def _samples(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    shares, truth = np.asarray(probabilities), np.asarray(labels)
    if shares.ndim != 2 or shares.dtype.kind not in "biuf" or not shares.shape[1]:
        raise DataError(
            "probabilities must have one row per sample and one column per class; "
            f"got {shares.dtype}{list(shares.shape)}"
        )
    if truth.shape != shares.shape[:1] or (truth.dtype.kind not in "iu" and truth.size):
        raise DataError(f"{len(shares)} samples need as many class numbers; got {truth.dtype}{list(truth.shape)}")
    if truth.size and not 0 <= truth.min() <= truth.max() < shares.shape[1]:
        raise DataError(f"labels must lie in 0..{shares.shape[1] - 1}; got {truth.min()}..{truth.max()}")
    off = np.abs(shares.sum(axis=1, dtype=np.float64) - 1.0).max(initial=0.0)
    if not (off <= SLACK and shares.min(initial=0) >= 0):
        raise DataError(f"probabilities must not be negative, and each row must sum to one; a sum is off by {off:.3g}")
    return shares, truth.astype(np.int64)


def _limits(count: int) -> dict[str, float]:
    """The largest sums of `log_loss` and `brier` that so many samples can have, with room for rounding."""
    return {"log_loss": -math.log(CLIP) * count * (1 + 1e-9), "brier": 2 * (1 + SLACK) ** 2 * count * (1 + 1e-9)}


def _per_class(tally: Arrays) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Right answers, answers and samples per class."""
    if "confusion" not in tally:
        return tally["right"], tally["predicted"], tally["actual"]
    confusion = tally["confusion"]
    return confusion.diagonal(), confusion.sum(axis=0), confusion.sum(axis=1)


def _share(part: Array, whole: Array) -> float | None:
    """The mean of `part / whole` over the classes where there is a whole."""
    some = whole > 0
    return float(np.mean(part[some] / whole[some])) if some.any() else None


def _area(tally: Arrays, wins: Callable[[Float, Float], Float]) -> float | None:
    """The share that `wins` gives of all pairs of a positive and a negative; the mean over classes that have pairs."""
    first = 1 if len(tally["positives"]) == 2 else 0
    positives, negatives = (tally[name][first:].astype(np.float64) for name in ("positives", "negatives"))
    return _share(wins(positives, negatives).sum(axis=1), positives.sum(axis=1) * negatives.sum(axis=1))


def _accuracy(tally: Arrays) -> float | None:
    return _share(_per_class(tally)[0].sum(keepdims=True), tally["count"].reshape(1))


def _balanced_accuracy(tally: Arrays) -> float | None:
    right, _, actual = _per_class(tally)
    return _share(right, actual)


def _macro_f1(tally: Arrays) -> float | None:
    right, predicted, actual = _per_class(tally)
    return _share(2 * right, predicted + actual)


def _log_loss(tally: Arrays) -> float | None:
    return _share(tally["log_loss"].reshape(1), tally["count"].reshape(1))


def _brier(tally: Arrays) -> float | None:
    return _share(tally["brier"].reshape(1), tally["count"].reshape(1))


def _auc(tally: Arrays) -> float | None:
    return _area(tally, lambda positives, negatives: positives * (negatives.cumsum(axis=1) - negatives / 2))


METRICS = (
    Metric("accuracy", "higher", _accuracy, "share of right answers", share=True),
    Metric("balanced_accuracy", "higher", _balanced_accuracy, "mean recall of the classes that occur", share=True),
    Metric("log_loss", "lower", _log_loss, "mean of -ln p, p the true class's probability, at least 1e-15"),
    Metric("brier", "lower", _brier, "mean of the sum over all classes of (p - 1 for the true, p - 0 for another)^2"),
    Metric("macro_f1", "higher", _macro_f1, "mean F1 of the classes that occur or are answered"),
    Metric("auc", "higher", _auc, "area under the ROC curve: second of two classes, or mean of each against the rest"),
)
