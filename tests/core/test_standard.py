"""`standardise`: the federation's means and deviations from sums, the same for every split, and digits that stay."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.features import maps, standard
from fedsolve.features.standard import Standardise

LATE = 1.7e12  # milliseconds since 1970


def moments_of_time(count: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Times within one second, whose second half is another class, and a number that says nothing."""
    rng = np.random.default_rng(seed)
    times = LATE + np.floor(rng.uniform(0, 1000, count))
    return np.column_stack([times, rng.normal(size=count)]), (times >= LATE + 500).astype(np.int64)


numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.data())
def test_the_fitted_map_is_that_of_all_samples_whatever_the_split(rows: list[tuple[float, float]], data: Any) -> None:
    x = np.array(rows)
    places = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    order = data.draw(st.permutations(range(len(places) + 1)))
    parts = np.split(x, places)
    fitted = standard.fit([parts[place] for place in order])
    assert fitted == standard.fit([x])
    for column, (origin, scale) in enumerate(zip(fitted.origin, fitted.scale, strict=True)):
        exact = [Fraction(value) for value in x[:, column].tolist()]
        mean = sum(exact, Fraction(0)) / len(exact)
        assert abs(Fraction(origin) - mean) <= abs(mean) * Fraction(1, 2**51) + Fraction(1, 2**1000)
        squares = sum(((value - Fraction(origin)) ** 2 for value in exact), Fraction(0)) / len(exact)
        deviation = math.sqrt(float(squares))
        if deviation > 1e-150:  # below, squares underflow, and such a number stays as it is
            assert scale == pytest.approx(deviation, rel=1e-12)


def test_what_squares_lost_is_there_again() -> None:
    """Without it F'F of such times holds none of their digits; a warning says so, and it says what to do."""
    x, y = moments_of_time()
    test = moments_of_time(seed=1)
    parts = zip(np.array_split(x, 7), np.array_split(y, 7), strict=True)
    clients = {f"site-{place}": {"train": part, "test": test} for place, part in enumerate(parts)}
    federation = fs.Federation.from_arrays(clients)
    with pytest.warns(fs.PrecisionWarning, match="--features standardise"):
        lost = fs.run(fs.AFL(intercept=True, ridge=0.0), federation)
    kept = fs.run(fs.AFL(intercept=True, ridge=0.0), federation.standardised())
    about = np.column_stack([x - [LATE, 0.0], np.ones(len(x))])
    wanted, *_ = np.linalg.lstsq(about, np.eye(2)[y], rcond=None)
    scores = np.column_stack([test[0] - [LATE, 0.0], np.ones(len(test[0]))]) @ wanted
    share = float(np.mean(scores.argmax(1) == test[1]))
    assert kept.accuracy.pooled == share > 0.95 and not kept.warnings
    assert lost.accuracy.pooled is not None and lost.accuracy.pooled < share
    assert kept.shared is not None
    np.testing.assert_allclose(kept.shared.scores(test[0]), scores, atol=1e-6)


def test_a_model_carries_it(tmp_path: Path) -> None:
    x, y = moments_of_time()
    federation = fs.Federation.from_arrays({"a": {"train": (x, y)}}).standardised("random:16")
    model = fs.run(fs.AFL(ridge=1.0, intercept=False), federation).shared
    assert model is not None and str(model.task.features).endswith("+random:16,relu,0")
    model.save(tmp_path / "model.safetensors")
    again = fs.load_model(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.scores(x), model.scores(x))


def test_specifications_are_read_as_they_are_written() -> None:
    each = Standardise((LATE, -0.0), (289.01, 5e-324))
    assert maps.parse(str(each)) == each and "nan" not in str(each)
    assert repr(each) == "Standardise(2 features)"
    assert maps.parse(f"{each}+unit").identity == f"{each.identity}+unit"
    with pytest.raises(fs.DataError, match="made for inputs of 2 numbers"):
        each.shape((3,))


@pytest.mark.parametrize(
    "text",
    ["standardise", "standardise:", "standardise:1", "standardise:1/0", "standardise:nan/1", "standardise:0/inf",
     "standardise:1/2/3", "standardise:1/2,", "standardise:a/b", "unit+standardise", "standardise:0/-1"],
)  # fmt: skip
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(fs.ParameterError, match="standardise"):
        maps.parse(text)


def test_it_stands_before_any_other_map() -> None:
    federation = fs.Federation.from_arrays({"a": {"train": ([[1.0], [2.0]], [0, 1])}})
    with pytest.raises(fs.ParameterError, match="already"):
        federation.with_features(maps.UnitLength()).standardised()
    with pytest.raises(fs.DataError, match="squares are finite"):
        fs.Federation.from_arrays({"a": {"train": ([[1e200], [-1e200]], [0, 1])}}).standardised()


def test_the_same_test_set_is_mapped_once() -> None:
    federation = fs.load("digits").split(fs.iid(), clients=3, test=0.0)
    shared = federation.clients["client-00"].train
    both = {name: {"train": (c.train.inputs, c.train.labels)} for name, c in federation.clients.items()}
    same = fs.Federation.from_arrays(both)
    clients = {name: fs.Client(name, client.train, shared) for name, client in same.clients.items()}
    mapped = replace(same, clients=clients).standardised()
    assert len({id(client.test) for client in mapped.clients.values()}) == 1
