"""Where F'F loses digits: predictions are right to 1e-6 against exact arithmetic, or the features are named.

0.1.0 was silent: a column of unix milliseconds within one second, with an intercept, was worth nothing, and no word.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import datasets

import fedsolve as fs
from fedsolve import digits
from fedsolve.arrays import Float
from fedsolve.features.maps import parse
from fedsolve.solver import solution_of

NAMES = ("age", "time", "rate")
RIGHT = 1e-6
COUNT = 63


def column(kind: str, size: float) -> tuple[Float, np.ndarray, set[int]]:
    """Features, class numbers that depend on all of them, and the features that may lose their digits."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(COUNT, 3))
    labels = (z @ [1.0, 2.0, -1.5] > 0.2).astype(np.int64)
    if kind == "offset":
        return np.column_stack([z[:, 0], size + z[:, 1], z[:, 2]]), labels, {1}
    if kind == "offsets":
        return np.column_stack([z[:, 0], size + z[:, 1], 3 * size + z[:, 2]]), labels, {1, 2}
    if kind == "gap":
        return np.column_stack([z[:, 0], z[:, 1], z[:, 1] + size * z[:, 2]]), labels, {1, 2}
    return z * [1.0, size, 1.0 / size], labels, set()


CASES = [("offset", 10.0**power) for power in (3, 6, 9, 12)]
CASES += [("offsets", 10.0**power) for power in (3, 6, 9, 12)]
CASES += [("gap", 10.0**power) for power in (-4, -8, -12)]
CASES += [("scale", 10.0**power) for power in (-150, -75, 75, 150)]


def exact(x: Float, y: Float, ridge: float, intercept: bool, weight: Float | None = None) -> Float:
    """Predictions of weighted ridge for all rows, in whole and rational numbers, which round nothing."""
    columns, units = [], []
    for column in [*x.T.tolist(), *[[1.0] * len(x)] * intercept]:
        units.append(max(value.as_integer_ratio()[1] for value in column))
        columns.append([int(Fraction(value) * units[-1]) for value in column])
    weights = [int(value) for value in (np.ones(len(x)) if weight is None else weight)]
    weighted = [[w * value for w, value in zip(weights, column, strict=True)] for column in columns]
    targets = [[int(value) for value in target] for target in y.T]
    size = len(columns)
    table = [[Fraction(sumprod(one, other)) for other in [*columns, *targets]] for one in weighted]
    for i in range(x.shape[1]):
        table[i][i] += Fraction(ridge) * units[i] ** 2
    for i in range(size):  # Gauss and Jordan
        table[i] = [value / table[i][i] for value in table[i]]
        for j in set(range(size)) - {i}:
            table[j] = [value - table[j][i] * pivot for value, pivot in zip(table[j], table[i], strict=True)]
    common = lcm(*(value.denominator for row in table for value in row[size:]))
    solved = [[int(value * common) for value in row[size:]] for row in table]
    rows = list(zip(*columns, strict=True))
    return np.array(
        [[float(Fraction(sumprod(row, each), common)) for each in zip(*solved, strict=True)] for row in rows]
    )


def sumprod(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(one, other, strict=True))


def distance(found: Float, wanted: Float) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def concerned(sentences: tuple[str, ...]) -> set[int]:
    """The features that sentences name."""
    return {number for number, name in enumerate(NAMES) if any(repr(name) in sentence for sentence in sentences)}


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "size"), CASES)
def test_a_solution_is_right_or_names_the_features(kind: str, size: float, ridge: float, intercept: bool) -> None:
    x, labels, suspects = column(kind, size)
    moments = fs.Moments.of(x, labels, classes=2, intercept=intercept)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fs.PrecisionWarning)
        solution = fs.solve(moments, ridge, intercept=intercept, solver="auto")
    assert bool(caught) == bool(solution.unsure)
    if solution.unsure:
        assert set(solution.unsure) == suspects
        assert concerned(solution.doubts(NAMES)) == suspects
    else:
        found = x @ solution.weights + (solution.intercept if solution.intercept is not None else 0.0)
        assert distance(found, exact(x, np.eye(2)[labels], ridge, intercept)) < RIGHT


def federation(x: Float, labels: np.ndarray, clients: int) -> fs.Federation:
    """The samples dealt out in turn; every client is tested on its own."""
    parts = {f"c{i}": (x[i::clients], labels[i::clients]) for i in range(clients)}
    made = fs.Federation.from_arrays({name: {"train": part, "test": part} for name, part in parts.items()}, classes=2)
    return replace(made, task=replace(made.task, feature_names=NAMES))


METHODS: dict[str, Callable[[bool], fs.Method]] = {
    "afl": lambda intercept: fs.AFL(intercept=intercept, ridge=0.0),
    "fedhip": lambda intercept: fs.FedHiP(alpha=2.0, beta=0.5, intercept=intercept),
    "local": lambda intercept: fs.Local(ridge=0.5, intercept=intercept),
}


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("clients", [1, 7])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("kind", "size"), CASES)
def test_a_run_is_right_or_its_result_names_the_features(
    kind: str, size: float, name: str, clients: int, intercept: bool
) -> None:
    x, labels, suspects = column(kind, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fs.PrecisionWarning)
        result = fs.run(METHODS[name](intercept), federation(x, labels, clients))
    if result.warnings:
        assert concerned(result.warnings) == suspects
        return
    y = np.eye(2)[labels]
    for number in {0, clients - 1}:
        own = np.arange(COUNT) % clients == number
        ridge, weight = {"afl": (0.0, 1.0 + 0 * own), "fedhip": (0.5, 1.0 + 2 * own), "local": (0.5, 1.0 * own)}[name]
        found = result.models[f"c{number}"].scores(x)
        assert distance(found[own], exact(x, y, ridge, intercept, weight)[own]) < RIGHT


def well_behaved() -> dict[str, tuple[Float, np.ndarray]]:
    """Data of which F'F loses nothing that matters, though many are singular."""
    rng = np.random.default_rng(1)
    every = {}
    for load in (datasets.load_digits, datasets.load_wine, datasets.load_breast_cancer, datasets.load_iris):
        data = load()
        every[load.__name__] = (np.asarray(data.data, dtype=np.float64), np.asarray(data.target))
    x, y = every["load_digits"]
    for words in ("random:512,relu", "random:256,tanh", "unit", "ones"):
        every[f"digits {words}"] = (np.asarray(parse(words)(x)), y)
    every["fewer samples than features"] = (parse("random:512,relu")(x[:100]), y[:100])
    pictures = rng.integers(0, 256, size=(300, 108)) / 255.0
    every["pictures"] = (parse("random:200,relu")(pictures), rng.integers(0, 10, 300))
    age, chol, flag, site = (
        rng.normal(54, 9, 900),
        rng.normal(246, 50, 900),
        rng.integers(0, 2, 900),
        np.arange(900) % 5,
    )
    table = [
        age.round(),
        chol.round(),
        flag,
        rng.normal(1, 1.1, 900).round(1),
        np.eye(5)[site],
        0.1 * np.eye(3)[site % 3],
    ]
    ill = (rng.random(900) < 1 / (1 + np.exp(-(age - 54) / 9 - flag))).astype(np.int64)
    constant = np.tile([0.1, 37.0, 1.7e12, 1e-9, 1 / 3], (900, 1))
    every["heart, one-hot, constants"] = (np.column_stack([*table, constant]), ill)
    z = rng.normal(size=(900, 4))
    every["sums of others"] = (np.column_stack([z, z[:, 0] + z[:, 1], z @ [0.1, 0.2, 0.3, 0.4]]), ill)
    every["copies"] = (np.column_stack([z, z, 2.5 * z]), ill)
    shares = rng.dirichlet(np.ones(6), size=900)
    every["shares"] = (np.column_stack([shares, 100 * shares]), ill)
    every["years"] = (np.column_stack([rng.integers(1990, 2025, 900), z]), ill)
    every["seconds of a day"] = (np.column_stack([1.7e9 + rng.integers(0, 86400, 900), z]), ill)
    return every


@pytest.mark.parametrize("clients", [1, 7])
def test_no_word_where_nothing_is_lost(clients: int) -> None:
    """Constant columns, copies, one-hot columns and fewer samples than features are no reason for doubt."""
    for name, (x, y) in well_behaved().items():
        classes = int(y.max()) + 1
        for intercept in (False, True):
            parts = [
                fs.Moments.of(x[i::clients], y[i::clients], classes=classes, intercept=intercept)
                for i in range(clients)
            ]
            total = sum(parts[1:], parts[0])
            for ridge in (0.0, 1e-3, 1.0):
                for one_hot in (False, True):
                    solution = solution_of(total, ridge, intercept=intercept, solver="auto", one_hot=one_hot)
                    assert solution.unsure == (), (name, intercept, ridge)


def test_no_word_in_runs_on_real_data() -> None:
    """A warning would be an error here."""
    split = fs.load("digits").split(fs.dirichlet(0.3), clients=5)
    for method in (
        fs.AFL(ridge=0.0, intercept=False),
        fs.AFL(intercept=True, ridge=0.0),
        fs.FedHiP(beta=1.0, intercept=False),
        fs.Local(intercept=True),
        fs.FedPrior(),
        fs.APFL(),
    ):
        assert fs.run(method, split).warnings == ()


@given(st.integers(0, 10**6), st.integers(2, 2000), st.booleans())
def test_a_constant_column_is_never_taken_for_a_lost_one(seed: int, count: int, dealt: bool) -> None:
    """Its class sums are rounded alike, term by term, which adds up; they differ by that and no more."""
    rng = np.random.default_rng(seed)
    value = rng.uniform(0.1, 10.0) * 10.0 ** rng.integers(-9, 13)
    x = np.column_stack([np.full(count, value), rng.normal(size=count)])
    y = rng.integers(0, 3, size=count)
    halves = (slice(0, count // 2), slice(count // 2, count)) if dealt else (slice(0, count),)
    parts = [fs.Moments.of(x[rows], y[rows], classes=3, intercept=True) for rows in halves]
    assert solution_of(sum(parts[1:], parts[0]), intercept=True, solver="auto").unsure == ()


def test_weights_have_the_bits_they_had_whether_or_not_somebody_asks() -> None:
    """Doubt looks at a solution and never changes it: the weights are those of the factor, and of the eigenvectors."""
    x, labels, _ = column("gap", 1e-5)
    moments = fs.Moments.of(x, labels, classes=2)
    solution = solution_of(moments)
    assert solution.unsure
    factor = np.linalg.cholesky(moments.gram)
    np.testing.assert_allclose(
        solution.weights, np.linalg.solve(factor.T, np.linalg.solve(factor, moments.cross)), rtol=1e-4
    )
    assert np.array_equal(solution.weights, solution_of(moments, one_hot=True).weights)


def test_a_large_ridge_leaves_nothing_to_lose() -> None:
    """Beside it, what F'F cannot tell is nothing."""
    x, labels, _ = column("gap", 1e-12)
    assert solution_of(fs.Moments.of(x, labels), 1.0).unsure == ()
    x, labels, _ = column("offset", 1e12)
    moments = fs.Moments.of(x, labels, intercept=True)
    assert solution_of(moments, 1.0, intercept=True).unsure == (1,)
    assert solution_of(moments, 1e18, intercept=True).unsure == ()


# --- in words


def test_a_sentence_names_a_few_features_and_counts_the_others() -> None:
    names = [f"f{number}" for number in range(12)]
    (sentence,) = digits.sentences(range(12), names=names)
    assert "features 'f0', 'f1', 'f2', 'f3', 'f4' and 7 more" in sentence
    (sentence,) = digits.sentences([3, 14], names=names)
    assert "features 'f3' and 14 " in sentence
    assert digits.sentences([]) == ()


def test_offsets_and_copies_are_told_apart() -> None:
    x, labels, _ = column("gap", 1e-9)
    x[:, 0] = 1.7e12 + 100 * x[:, 0]
    solution = solution_of(fs.Moments.of(x, labels, intercept=True), intercept=True, solver="auto")
    offset, copies = solution.doubts(NAMES)
    assert "'age'" in offset
    assert "around 1.7e+12" in offset
    assert "'time' and 'rate'" in copies


def test_clients_whose_own_sums_lost_digits_are_named() -> None:
    told = digits.at_clients({f"c{number}": (1,) for number in range(8)} | {"well": ()}, NAMES)
    assert len(told) == 1
    assert "c0, c1, c2, c3, c4 and 3 more" in told[0]
    assert "'time'" in told[0]
    assert digits.at_clients({"well": ()}) == ()


def test_names_of_columns_are_those_of_features_only_where_features_are_columns() -> None:
    task = fs.Task(fs.Classes(2), (3,), feature_names=NAMES)
    assert task.columns == NAMES
    assert replace(task, features=parse("unit+ones")).columns == NAMES
    assert replace(task, features=parse("unit+random:3,relu")).columns == ()


def test_results_keep_their_warnings_on_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    x, labels, _ = column("offset", 1e9)
    with pytest.warns(fs.PrecisionWarning, match="'time'"):
        result = fs.run(fs.FedHiP(intercept=True, beta=1.0), federation(x, labels, 7))
    again = fs.Result.load(result.save(tmp_path_factory.mktemp("result") / "run"))
    assert again.warnings == result.warnings
    assert again.clients["c3"].unsure == result.clients["c3"].unsure == (1,)
    assert "warning: the digits of feature" in result._repr_html_()


@pytest.mark.parametrize("method", [fs.FedPrior(), fs.Local(intercept=True), fs.AFL(intercept=True, ridge=0.0)])
def test_milliseconds_within_a_second_are_named(method: fs.Method) -> None:
    """The case that was silent: pooled least squares tells the halves of a second apart, the sums do not."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=210), 1.7e12 + rng.integers(0, 1000, 210), rng.normal(size=210)])
    with pytest.warns(fs.PrecisionWarning, match="digits of feature 'time' were lost"):
        result = fs.run(method, federation(x, (x[:, 1] > 1.7e12 + 500).astype(np.int64), 7))
    assert result.warnings


# --- squares that are no numbers


@pytest.mark.parametrize("size", [1e-155, 1e-160, 1e-200, 5e-324])
@pytest.mark.parametrize("intercept", [False, True])
def test_squares_that_underflow_are_refused_by_name(size: float, intercept: bool) -> None:
    """0.1.0 took such a column for zeros."""
    x = np.random.default_rng(0).uniform(0.5, 1.0, size=(20, 3)) * [1.0, size, 1.0]
    if not x[:, 1].any():
        x[:, 1] = size
    with pytest.raises(fs.DataError, match=r"feature 1 is too small.*scale it up"):
        fs.Moments.of(x, np.arange(20) % 2, intercept=intercept)


def test_zeros_and_small_numbers_with_normal_squares_are_taken() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3)) * [0.0, 1e-150, 1e150]
    moments = fs.Moments.of(x, np.arange(20) % 2)
    assert (moments.diagonal() > 0).tolist() == [False, True, True]
    assert fs.Moments.of(np.full((3, 1), 1e-30, dtype=np.float32), [0, 1, 1]).diagonal()[0] > 0


@pytest.mark.parametrize("size", [1e153, 1e154, 1e300])
@pytest.mark.parametrize(
    "method",
    [
        fs.AFL(ridge="auto", intercept=False),
        fs.FedHiP(beta=1.0, intercept=False),
        fs.FedPrior(),
        fs.Local(intercept=False),
        fs.FedACnnL(),
    ],
)
def test_squares_without_room_for_sums_are_refused_by_name(size: float, method: fs.Method) -> None:
    """At 1e153 fedprior, fedhip and the choice of a ridge ended in a traceback: the sums were finite, the next not."""
    x, labels, _ = column("offset", 0.0)
    with pytest.raises(fs.DataError, match="feature 1"):
        fs.run(method, federation(x * [1.0, size, 1.0], labels, 7))


# --- nothing to choose by


@pytest.mark.parametrize("intercept", [False, True])
def test_fedhip_without_a_ridge_takes_features_that_are_all_zero(intercept: bool) -> None:
    """It ended in a traceback: whitening leaves no direction."""
    _, labels, _ = column("offset", 0.0)
    result = fs.run(fs.FedHiP(beta=0.0, intercept=intercept), federation(np.zeros((COUNT, 3)), labels, 7))
    for model in result.models.values():
        assert not model.arrays["weight"].any()
