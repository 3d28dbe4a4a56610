from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import fedsolve as fs
from fedsolve.errors import ParameterError, UnknownNameError
from fedsolve.features import maps

SIMPLE = st.one_of(
    st.just(maps.Identity()),
    st.just(maps.UnitLength()),
    st.just(maps.Ones()),
    st.builds(maps.Clip, st.floats(1e-9, 1e9)),
    st.builds(maps.RandomProjection, st.integers(1, 50), st.sampled_from(sorted(maps.ACTIVATIONS)), st.integers(0, 99)),
)
ANY = st.one_of(SIMPLE, st.lists(SIMPLE, min_size=2, max_size=3).map(lambda parts: maps.Chain(tuple(parts))))


@given(ANY, st.integers(1, 6))
def test_the_text_of_a_map_is_the_map(feature_map: maps.FeatureMap, width: int) -> None:
    again = maps.parse(str(feature_map))
    assert again == feature_map
    x = np.random.default_rng(0).normal(size=(7, width))
    np.testing.assert_array_equal(again(x), feature_map(x))
    assert feature_map(x).shape == (7, *feature_map.shape((width,)))


@given(ANY, ANY, st.integers(1, 4), st.integers(1, 4))
def test_two_spaces_are_the_same_only_if_map_and_inputs_are(
    one: maps.FeatureMap, two: maps.FeatureMap, m: int, n: int
) -> None:
    assert (maps.space(one, (m,)) == maps.space(two, (n,))) == (one == two and m == n)


@pytest.mark.parametrize("size", [1e-200, 1e-6, 1.0, 1e6, 1e200])
@pytest.mark.parametrize("width", [3, 64, 1280])
def test_activations_are_neither_linear_nor_saturated_whatever_the_inputs(size: float, width: int) -> None:
    """The rule: before the activation, values are N(0, 1)."""
    x = size * np.random.default_rng(1).normal(size=(300, width))
    before = maps.RandomProjection(400, "none")(x)
    assert abs(before.mean()) < 0.1
    assert 0.8 < before.std() < 1.2
    assert 0.4 < (maps.RandomProjection(400, "relu")(x) > 0).mean() < 0.6
    bent = maps.RandomProjection(400, "tanh")(x)
    assert (np.abs(bent) > 0.99).mean() < 0.05  # not saturated
    assert np.abs(bent - before).mean() > 0.1  # not linear


def test_a_zero_input_has_no_direction() -> None:
    assert not maps.RandomProjection(5, "none")(np.zeros((1, 3))).any()
    assert not maps.UnitLength()(np.zeros((1, 3))).any()


def test_activations_against_their_definitions() -> None:
    z = np.array([-7.0, -1.0, 0.0, 0.5, 8.0])
    relu6 = np.clip(z + 3, 0, 6)
    wanted = {
        "relu": np.where(z > 0, z, 0),
        "leaky": np.where(z > 0, z, z / 100),
        "gelu": z * stats.norm.cdf(z),
        "tanh": (np.exp(2 * z) - 1) / (np.exp(2 * z) + 1),
        "sigmoid": 1 / (1 + np.exp(-z)),
        "hardswish": z * relu6 / 6,
        "softplus": np.log1p(np.exp(z)),
        "none": z,
    }
    assert wanted.keys() == maps.ACTIVATIONS.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(maps.ACTIVATIONS[name](z), values, rtol=1e-9, atol=1e-14)


def test_blocks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(50, 4))
    whole = maps.RandomProjection(6)(x)
    monkeypatch.setattr(maps, "ROWS", 7)
    np.testing.assert_allclose(maps.RandomProjection(6)(x), whole, rtol=1e-14)


def test_models_start_from_the_raw_inputs() -> None:
    plain = fs.load("digits").split(fs.dirichlet(0.3), clients=5)
    mapped = plain.with_features(maps.parse("random:100,relu,3"))
    assert mapped.task.shape == (100,)
    assert mapped.task.space != plain.task.space
    result = fs.run(fs.AFL(ridge=1e-3, intercept=False), mapped)
    test = plain.clients["client-00"].test
    model = result.models["client-00"]
    assert (model.predict(test.inputs) == test.labels).mean() == result.clients["client-00"].accuracy
    assert result.accuracy.mean is not None
    assert fs.run(fs.AFL(ridge=0.0, intercept=False), plain).accuracy.mean is not None


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("randon:5", UnknownNameError, "did you mean 'random'"),
        ("random:0", ParameterError, "at least 1"),
        ("random:x", ParameterError, "random:SIZE,ACTIVATION,SEED"),
        ("random:5,rely", UnknownNameError, "did you mean 'relu'"),
        ("random:5,relu,-1", ParameterError, "seed"),
        ("random:5,relu,1,2", ParameterError, "random:SIZE,ACTIVATION,SEED"),
        ("unit:3", ParameterError, "takes no argument"),
        ("unit+nonsense", UnknownNameError, "unknown feature map 'nonsense'"),
    ],
)
def test_a_wrong_specification_says_what_is_wrong(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        maps.parse(text)
