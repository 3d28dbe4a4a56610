from __future__ import annotations

import doctest
import statistics
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from fedsolve import arrays, codec, metrics
from fedsolve.errors import DataError

Samples = tuple[np.ndarray, np.ndarray, np.ndarray]  # scores, probabilities, labels
COUNTS = ("count", "confusion", "right", "predicted", "actual", "positives", "negatives")


@st.composite
def samples(draw: st.DrawFn, classes: int | None = None, least: int = 0) -> Samples:
    """Few different probabilities, so many ties; zeros and ones; classes that no sample has or no answer names."""
    width = classes or draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(least, 30))
    present = rng.choice(width, size=draw(st.integers(1, width)), replace=False)
    weights = (
        rng.integers(0, draw(st.integers(1, 40)) + 1, size=(count, width)) ** draw(st.sampled_from([1, 2, 9])) * 1.0
    )
    weights[weights.sum(axis=1) == 0] = 1.0
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    scores = probabilities if draw(st.booleans()) else rng.integers(0, 3, size=(count, width)) * 1.0
    return scores, probabilities, rng.choice(present, size=count)


def smooth(classes: int, count: int, scale: float, signal: float = 1.0) -> Samples:
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=count)
    scores = rng.normal(size=(count, classes))
    scores[np.arange(count), labels] += signal
    powers = np.exp(scale * (scores - scores.max(axis=1, keepdims=True)))
    return scores, powers / powers.sum(axis=1, keepdims=True), labels


def joined(*parts: Samples) -> Samples:
    return tuple(map(np.concatenate, zip(*parts, strict=True)))  # type: ignore[return-value]


def areas(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    columns = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    some = [c for c in columns if 0 < (labels == c).sum() < len(labels)]
    return statistics.fmean(oracle.roc_auc_score(labels == c, probabilities[:, c]) for c in some) if some else None


def expected(scores: np.ndarray, probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What scikit-learn says, without the area under the curve."""
    answers, classes = scores.argmax(axis=1), probabilities.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that no sample has
        figures = {
            "accuracy": oracle.accuracy_score(labels, answers),
            "balanced_accuracy": oracle.balanced_accuracy_score(labels, answers),
            "log_loss": 0.0,
            "brier": float(((probabilities - np.eye(classes)[labels]) ** 2).sum(axis=1).mean()),
            "macro_f1": oracle.f1_score(labels, answers, average="macro"),
        }
        if classes > 1:
            figures["log_loss"] = oracle.log_loss(labels, np.clip(probabilities, 1e-15, 1), labels=range(classes))
    return figures


def assert_same(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> None:
    """Counts to the last bit, sums of floats up to rounding."""
    assert arrays.layout(left) == arrays.layout(right)
    for name in left:
        if name in COUNTS:
            np.testing.assert_array_equal(left[name], right[name])
        else:
            np.testing.assert_allclose(left[name], right[name], rtol=1e-12, atol=1e-13)


@given(samples(least=1))
def test_figures_are_those_of_scikit_learn(data: Samples) -> None:
    total = metrics.classes.tally(*data)
    figures = metrics.figures(total)
    assert {name: figures[name] for name in figures if name != "auc"} == pytest.approx(expected(*data), abs=1e-12)
    scores, probabilities, labels = data
    classes = range(probabilities.shape[1])
    matrix = np.zeros((len(classes), len(classes)))
    if len(classes) > 1:  # of a single class scikit-learn warns
        matrix = oracle.confusion_matrix(labels, scores.argmax(axis=1), labels=classes)
    else:
        matrix += len(labels)
    np.testing.assert_array_equal(total["confusion"], matrix)
    np.testing.assert_array_equal(metrics.classes.class_counts(total), np.bincount(labels, minlength=len(classes)))
    metrics.classes.check(total, len(classes))


@given(samples(classes=101, least=1))
def test_many_classes_have_the_same_figures_without_the_matrix(data: Samples) -> None:
    total = metrics.classes.tally(*data)
    assert "confusion" not in total
    figures = metrics.figures(total)
    assert {name: figures[name] for name in figures if name != "auc"} == pytest.approx(expected(*data), abs=1e-12)
    np.testing.assert_array_equal(metrics.classes.class_counts(total), np.bincount(data[2], minlength=101))
    metrics.classes.check(total, 101)


@given(samples())
def test_the_exact_area_is_that_of_scikit_learn(data: Samples) -> None:
    _, probabilities, labels = data
    area = metrics.classes.exact_auc(probabilities, labels)
    assert area == pytest.approx(areas(probabilities, labels), abs=1e-12)
    if probabilities.shape[1] > 2 and len(set(labels)) == probabilities.shape[1]:
        assert area == pytest.approx(oracle.roc_auc_score(labels, probabilities, multi_class="ovr"), abs=1e-12)


@given(samples(), samples(classes=101))
def test_the_area_of_histograms_keeps_its_bound(few: Samples, many: Samples) -> None:
    for scores, probabilities, labels in (few, many):
        total = metrics.classes.tally(scores, probabilities, labels)
        exact, bound = metrics.classes.exact_auc(probabilities, labels), metrics.classes.auc_bound(total)
        area = metrics.figures(total).get("auc")
        assert (area is None) == (exact is None) == (bound is None)
        if area is not None and exact is not None and bound is not None:
            assert abs(area - exact) <= bound + 1e-12


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 10.0])  # from near a guess to probabilities of 1e-15
def test_smooth_probabilities_lose_less_than_a_thousandth(classes: int, scale: float) -> None:
    scores, probabilities, labels = smooth(classes, 4000, scale)
    total = metrics.classes.tally(scores, probabilities, labels)
    exact, area, bound = (
        metrics.classes.exact_auc(probabilities, labels),
        metrics.figures(total)["auc"],
        metrics.classes.auc_bound(total),
    )
    assert exact is not None and bound is not None
    assert 0.6 < exact < 0.95
    assert abs(area - exact) < 1e-3
    assert bound < 0.05


@pytest.mark.parametrize(("classes", "off"), [(101, 0.004), (200, 0.006), (1000, 0.05)])
def test_many_classes_lose_more(classes: int, off: float) -> None:
    scores, probabilities, labels = smooth(classes, 3000, 1.0, signal=2.0)
    exact = metrics.classes.exact_auc(probabilities, labels)
    assert exact is not None
    assert abs(metrics.figures(metrics.classes.tally(scores, probabilities, labels))["auc"] - exact) < off


@given(samples(classes=3), samples(classes=3), samples(classes=3))
def test_commutative_monoid(a: Samples, b: Samples, c: Samples) -> None:
    x, y, z = (metrics.classes.tally(*data) for data in (a, b, c))
    for neutral in ({}, metrics.classes.zero(3)):
        assert arrays.same(metrics.add(x, neutral), x)
        assert arrays.same(metrics.add(neutral, x), x)
    assert arrays.same(metrics.add(x, y), metrics.add(y, x))
    assert_same(metrics.add(metrics.add(x, y), z), metrics.add(x, metrics.add(y, z)))
    assert metrics.add({}, {}) == {}


@given(st.sampled_from([1, 2, 4, 101]).flatmap(lambda k: st.lists(samples(classes=k), min_size=1, max_size=4)))
def test_the_sum_is_the_tally_of_all_samples(parts: list[Samples]) -> None:
    total: dict[str, np.ndarray] = {}
    for part in parts:
        total = metrics.add(total, metrics.classes.tally(*part))
    whole = metrics.classes.tally(*joined(*parts))
    assert_same(total, whole)
    metrics.classes.check(total, parts[0][0].shape[1])
    assert metrics.figures(total) == pytest.approx(metrics.figures(whole), rel=1e-12, abs=1e-13)


def test_adding_leaves_its_terms_alone() -> None:
    x, y = metrics.classes.tally(*smooth(3, 20, 1.0)), metrics.classes.tally(*smooth(3, 9, 2.0))
    before = {name: array.copy() for name, array in x.items()}
    metrics.add(x, y)["count"] += 5
    metrics.add(x, {})["confusion"] += 5
    assert arrays.same(x, before)
    with pytest.raises(DataError, match="cannot add"):
        metrics.add(x, metrics.classes.tally(*smooth(4, 20, 1.0)))


@given(samples(classes=3, least=1), st.integers(1, 40), st.sampled_from(["f4", "f8"]), st.booleans())
def test_block_size_and_memory_layout_do_not_matter(data: Samples, block: int, dtype: str, fortran: bool) -> None:
    scores, probabilities, labels = data
    rounded = probabilities.astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics.classes, "BLOCK", block)
        parts = metrics.classes.tally(
            scores, np.asfortranarray(rounded) if fortran else rounded, labels.astype(np.uint8)
        )
    assert_same(parts, metrics.classes.tally(scores, rounded.astype(np.float64), labels))


@pytest.mark.parametrize("classes", [1, 2, 7, 100, 101, 1000, 5000])
def test_bins_follow_their_edges(classes: int) -> None:
    edges = metrics.classes.edges(classes)
    assert len(edges) == metrics.classes.bins(classes) - 1
    assert (np.diff(edges) > 0).all()
    rng = np.random.default_rng(0)
    small = 10.0 ** rng.uniform(-18, 0, size=3000)
    column = np.concatenate([small, 1 - small, [0.0, 1.0, 0.5, 1e-300, 5e-324], edges / (1 + edges)])
    with np.errstate(divide="ignore"):
        place = np.searchsorted(edges, column / (1 - column), side="right")
    np.testing.assert_array_equal(metrics.classes._bin(column, metrics.classes._cells(classes)), place)
    assert (np.diff(metrics.classes._bin(np.sort(column), metrics.classes._cells(classes))) >= 0).all()
    if metrics.classes.bins(classes) == metrics.classes.BINS:
        assert edges[0] < 1e-14 / classes
        assert edges[-1] > 1e14 / classes


@pytest.mark.parametrize("classes", [10, 100, 101, 150, 300, 700, 1000])
def test_a_tally_of_many_classes_stays_small(classes: int) -> None:
    total = metrics.classes.tally(*smooth(classes, 20, 1.0))
    assert sum(array.nbytes for array in total.values()) <= 150_000
    assert len(codec.encode(total)) <= 151_000


def test_a_tally_needs_little_memory_beside_the_samples() -> None:
    data = smooth(100, 10_000, 1.0)
    tracemalloc.start()
    metrics.classes.tally(*data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < data[1].nbytes / 2


def test_no_samples_and_one_class_have_the_figures_they_can_have() -> None:
    empty = metrics.classes.tally(np.zeros((0, 3)), np.zeros((0, 3)), [])
    assert arrays.same(empty, metrics.classes.zero(3))
    assert metrics.figures(empty) == metrics.figures({}) == {}
    assert metrics.classes.exact_auc(np.zeros((0, 3)), []) is None
    one = metrics.figures(metrics.classes.tally([[0.0, 2.0]], [[0.0, 1.0]], [1]))
    assert one == {"accuracy": 1, "balanced_accuracy": 1, "log_loss": 0, "brier": 0, "macro_f1": 1}
    sure = metrics.figures(metrics.classes.tally([[0.0, 2.0]], [[0.0, 1.0]], [0]))
    assert sure["log_loss"] == pytest.approx(15 * np.log(10))  # clipped, and not infinite
    assert sure["brier"] == 2
    assert metrics.figures(metrics.classes.tally([[7.0]], [[1.0]], [0]))["accuracy"] == 1


def test_two_classes_use_the_second_ones_probability() -> None:
    scores, probabilities, labels = smooth(2, 500, 1.0)
    assert metrics.classes.exact_auc(probabilities, labels) == oracle.roc_auc_score(labels, probabilities[:, 1])
    # Of the first class these two differ, but 1 - 1e-18 and 1 - 1e-20 are the same float.
    assert metrics.classes.exact_auc([[1e-18, 1.0], [1e-20, 1.0]], [0, 1]) == 0.5
    total = metrics.classes.tally(scores, probabilities, labels)
    total["positives"][0], total["negatives"][0] = total["negatives"][0].copy(), total["positives"][0].copy()
    assert metrics.figures(total)["auc"] == metrics.figures(metrics.classes.tally(scores, probabilities, labels))["auc"]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=45))
def test_spread_over_clients_is_that_of_results(numbers: list[int]) -> None:
    values = [n / 10_000 for n in numbers]
    spread = metrics.spread(values, "higher")
    worst = np.sort(values)[: -(-len(values) // 10)]
    assert spread == pytest.approx({"mean": np.mean(values), "std": np.std(values), "worst_decile": worst.mean()})
    losses = metrics.spread([-value for value in values], "lower")
    assert losses == {"mean": -spread["mean"], "std": spread["std"], "worst_decile": -spread["worst_decile"]}
    assert metrics.spread(values[:1] * 7, "lower")["mean"] == values[0]


@pytest.mark.parametrize(("clients", "worst"), [(1, 1.0), (9, 1.0), (10, 1.0), (11, 1.5), (20, 1.5), (21, 2.0)])
def test_the_worst_tenth_is_rounded_up(clients: int, worst: float) -> None:
    values = [float(n) for n in range(clients, 0, -1)]
    assert metrics.spread(values, "higher")["worst_decile"] == worst
    assert metrics.spread(values, "lower")["worst_decile"] == clients + 1 - worst


def test_spread_of_nobody_and_of_nan() -> None:
    assert metrics.spread([], "higher") == {}
    with pytest.raises(DataError, match="finite"):
        metrics.spread([0.5, float("nan")], "higher")


@given(
    st.sampled_from([1, 2, 3, 101]).flatmap(
        lambda k: st.tuples(*2 * [st.lists(st.integers(0, 4), min_size=k, max_size=k)])
    )
)
def test_the_baseline_is_the_tally_of_a_constant_answer(counts: tuple[list[int], list[int]]) -> None:
    train, test = map(np.array, counts)
    train[-1] += 1
    rows = np.tile(train / train.sum(), (test.sum(), 1))
    constant = metrics.classes.tally(rows, rows, np.repeat(np.arange(len(test)), test))
    baseline = metrics.classes.baseline(train, test)
    assert_same(baseline, constant)
    metrics.classes.check(baseline, len(test))
    assert metrics.figures(baseline).get("auc", 0.5) == 0.5
    if test.sum():
        assert metrics.figures(baseline)["accuracy"] == test[train.argmax()] / test.sum()


def put(name: str, value: float, *place: int) -> Callable[[dict[str, np.ndarray]], None]:
    def change(total: dict[str, np.ndarray]) -> None:
        total[name][place] = value

    return change


def shift(name: str, step: int, *place: int) -> Callable[[dict[str, np.ndarray]], None]:
    def change(total: dict[str, np.ndarray]) -> None:
        total[name][place] += step

    return change


def cells(*changes: Callable[[dict[str, np.ndarray]], None]) -> Callable[[dict[str, np.ndarray]], None]:
    def change(total: dict[str, np.ndarray]) -> None:
        for one in changes:
            one(total)

    return change


@pytest.mark.parametrize(
    ("classes", "change", "text"),
    [
        (3, put("count", -1), "'count' must lie between 0"),
        (3, put("count", 2**62), "'count' must lie between 0"),
        (3, put("count", 41), "must sum to its count of 41"),
        (3, shift("confusion", -40, 0, 0), "'confusion' must lie between 0 and 40"),
        (3, put("confusion", 2**62, 0, 0), "'confusion' must lie between 0 and 40"),
        (3, shift("confusion", 1, 0, 0), "must sum to its count of 40"),
        (3, cells(shift("confusion", 1, 0, 0), shift("confusion", -1, 1, 1)), "'positives' must sum"),
        (3, put("log_loss", np.nan), "'log_loss' has values that are not finite"),
        (3, put("brier", np.inf), "'brier' has values that are not finite"),
        (3, put("log_loss", -1e-9), "'log_loss' must lie between 0"),
        (3, put("log_loss", 40 * 35.0), "'log_loss' must lie between 0"),
        (3, put("brier", 81.0), "'brier' must lie between 0"),
        (3, shift("positives", 1, 1, 8), "'positives' must sum"),
        (3, shift("negatives", 1, 1, 8), "'negatives' must sum"),
        (3, cells(shift("negatives", 1, 1, 8), shift("negatives", -1, 2, 9)), "'negatives' must lie between 0"),
        (101, shift("actual", 1, 5), "must sum to its count"),
        (101, shift("predicted", 1, 5), "must sum to its count"),
        (101, put("right", 30, 0), "contradict each other"),
        (3, lambda total: total.pop("brier"), "must hold"),
        (3, lambda total: total.update(extra=np.zeros(3)), "must hold"),
        (3, lambda total: total.update(count=np.array(40.0)), "must hold"),
        (3, lambda total: total.update(count="40"), "must be a numeric array"),
        (101, lambda total: total.update(metrics.classes.tally(*smooth(3, 40, 1.0))), "must hold"),
    ],
)
def test_a_tally_that_cannot_be_is_refused(
    classes: int, change: Callable[[dict[str, np.ndarray]], object], text: str
) -> None:
    total = metrics.classes.tally(*smooth(classes, 40, 1.0))
    metrics.classes.check(total, classes)
    change(total)
    with pytest.raises(DataError, match=text) as caught:
        metrics.classes.check(total, classes, "the tally of 'a'")
    assert str(caught.value).startswith("the tally of 'a'")


def test_answers_that_leave_no_matrix_are_refused() -> None:
    """All 4 samples of class 0 missed, and all 4 answers are class 0: each count fits, but no matrix has them."""
    total = metrics.classes.baseline([1] * 101, [4] + [0] * 100)
    metrics.classes.check(total, 101)
    total["right"][0] = 0
    with pytest.raises(DataError, match="contradict"):
        metrics.classes.check(total, 101)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: metrics.classes.tally([[1.0, np.nan]], [[0.5, 0.5]], [0]), "NaN"),
        (lambda: metrics.classes.tally([[1.0]], [[0.5, 0.5]], [0]), r"scores must be numbers of the shape .* \[1, 2\]"),
        (lambda: metrics.classes.tally([["a", "b"]], [[0.5, 0.5]], [0]), "scores must be numbers"),
        (lambda: metrics.classes.tally([[1.0, 0.0]], [[0.5, np.nan]], [0]), "must sum to one"),
        (lambda: metrics.classes.tally([[1.0, 0.0]], [[0.5, 0.6]], [0]), "off by 0.1"),
        (lambda: metrics.classes.tally([[1.0, 0.0]], [[1.5, -0.5]], [0]), "must not be negative"),
        (lambda: metrics.classes.tally([[1.0, 0.0]], [[0.5, 0.5]], [2]), r"0\.\.1; got 2\.\.2"),
        (lambda: metrics.classes.tally([[1.0, 0.0]], [[0.5, 0.5]], [-1]), r"got -1\.\.-1"),
        (lambda: metrics.classes.tally([[1.0, 0.0]], [[0.5, 0.5]], [0.0]), "1 samples need as many class numbers"),
        (lambda: metrics.classes.tally([[1.0, 0.0]], [[0.5, 0.5]], [0, 1]), "1 samples need as many class numbers"),
        (lambda: metrics.classes.tally([1.0], [1.0], [0]), "one row per sample"),
        (lambda: metrics.classes.tally(np.zeros((0, 0)), np.zeros((0, 0)), []), "one column per class"),
        (lambda: metrics.classes.exact_auc([[0.5, 0.6]], [0]), "must sum to one"),
        (lambda: metrics.classes.zero(0), "at least one class"),
        (lambda: metrics.classes.baseline([0, 0], [1, 1]), "needs training samples"),
        (lambda: metrics.classes.baseline([1, 0], [1, 1, 1]), "same classes"),
        (lambda: metrics.classes.baseline([1, -1], [1, 1]), "training counts"),
        (lambda: metrics.classes.baseline([1, 1], [0.5, 1]), "test counts"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(DataError, match=text):
        call()


def test_infinite_scores_are_answers_like_any_other() -> None:
    total = metrics.classes.tally([[-np.inf, 0.0], [np.inf, 0.0]], [[0.0, 1.0], [1.0, 0.0]], [1, 0])
    assert metrics.figures(total)["accuracy"] == 1


CLASSES = ["accuracy", "balanced_accuracy", "log_loss", "brier", "macro_f1", "auc"]


def test_every_metric_says_what_it_is() -> None:
    assert [*metrics.METRICS] == [*CLASSES, "rmse", "mae", "r2"]
    assert all(name == metric.name and metric.doc for name, metric in metrics.METRICS.items())
    lower = {name for name, metric in metrics.METRICS.items() if metric.better == "lower"}
    assert lower == {"log_loss", "brier", "rmse", "mae"}
    good, bad = smooth(3, 300, 3.0, signal=3.0), smooth(3, 300, 3.0, signal=-1.0)
    best, worst = (metrics.figures(metrics.classes.tally(*data)) for data in (good, bad))
    assert all((best[name] < worst[name]) == (name in lower) for name in best)


def test_the_examples_run() -> None:
    for module in (metrics, metrics.classes, metrics.numbers, metrics.figure):
        ran = doctest.testmod(module)
        assert ran.attempted >= 2
        assert not ran.failed


PARTS = ("fedsolve.metrics.classes", "fedsolve.metrics.figure", "fedsolve.metrics.numbers")


def test_a_site_loads_nothing_else_for_it() -> None:
    loaded = "(m for m in sys.modules if m.startswith(('fedsolve', 'scipy', 'sklearn')))"
    code = f"import sys, fedsolve.metrics; print(*{loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"fedsolve", "fedsolve.arrays", "fedsolve.errors", "fedsolve.metrics", *PARTS}
