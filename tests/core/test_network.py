"""Descriptions of networks, their shapes, and forward passes against scipy's correlation and plain loops."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import correlate

from fedsolve.errors import DataError, ParameterError
from fedsolve.families import layered as nets
from fedsolve.families.layered.forward import forward
from fedsolve.features.maps import ACTIVATIONS


def kinds(text: str) -> list[str]:
    return [item.kind for item in nets.parse(text).items]


@pytest.mark.parametrize(
    ("preset", "spelled"),
    [
        ("lr", "dense"),
        ("mlp:128,64", "dense:128,relu,dense:64,relu,dense"),
        (" mlp:128, 64 ", "dense:128,relu,dense:64,relu,dense"),
        (
            "dcnn",
            "conv:5x5x512,leaky,avgpool:2,conv:3x3x1024,leaky,avgpool:2,conv:3x3x2048,leaky,conv:3x3x2048,leaky,dense",
        ),
        (
            "dcnn:0.125",
            "conv:5x5x64,leaky,avgpool:2,conv:3x3x128,leaky,avgpool:2,conv:3x3x256,leaky,conv:3x3x256,leaky,dense",
        ),
    ],
)
def test_presets_are_spelled_out(preset: str, spelled: str) -> None:
    assert nets.parse(preset).items == nets.parse(spelled).items
    assert nets.parse(preset).text == preset


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", "character 1 ", "an item is missing"),
        ("conv:3x3x8,,dense", "character 12 ", "an item is missing"),
        ("conv:3x3x8,reul,dense", "'reul' at character 12 ", "did you mean 'relu'"),
        ("conv:3x3x8, leeky,dense", "'leeky' at character 13 ", "did you mean 'leaky'"),
        ("conv:3x3,dense", "'conv:3x3' at character 1 ", "HEIGHTxWIDTHxCHANNELS"),
        ("conv:3x0x8,dense", "'conv:3x0x8' at character 1 ", "HEIGHTxWIDTHxCHANNELS"),
        ("conv:3x3x8:stride=0,dense", "'stride=0' at character 12 ", "stride=N"),
        ("conv:3x3x8:pad=3,dense", "'pad=3' at character 12 ", "smaller than the window"),
        ("conv:4x4x8:pad=same,dense", "'pad=same' at character 12 ", "odd sides"),
        ("conv:3x3x8:padding=1,dense", "'padding=1' at character 12 ", "pad=N"),
        ("dense:8,relu", "'relu' at character 9 ", "the last item must be 'dense'"),
        ("dense:8,dense:10", "'dense:10' at character 9 ", "without a width"),
        ("dense,relu,dense", "'dense' at character 1 ", "needs a width"),
        ("dense:x,dense", "'dense:x' at character 1 ", "dense:WIDTH"),
        ("relu,dense", "'relu' at character 1 ", "starts with a trained layer"),
        ("dense:8,relu:2,dense", "'relu:2' at character 9 ", "takes no argument"),
        ("conv:3x3x8,avgpool,dense", "'avgpool' at character 12 ", "avgpool:SIZE"),
        ("mlp", "character 4 ", "mlp:128,64"),
        ("mlp:128,x", "'x' at character 9 ", "mlp:128,64"),
        ("mlp:", "character 5 ", "mlp:128,64"),
        ("mlp:128, 0", "'0' at character 10 ", "from 1 to 9999999"),
        ("mlp:10000000", "'10000000' at character 5 ", "from 1 to 9999999"),
        ("lr:3", "'3' at character 4 ", "takes no argument"),
        ("dcnn:0", "'0' at character 6 ", "above 0"),
        ("dcnn:nan", "'nan' at character 6 ", "above 0"),
    ],
)
def test_a_wrong_description_is_refused_at_its_place(text: str, place: str, reason: str) -> None:
    with pytest.raises(ParameterError) as error:
        nets.parse(text)
    assert str(error.value).startswith(place)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    number, word = re.search(r"character (\d+)", place), re.match(r"'(.*?)'", place)
    assert number is not None
    assert text[int(number[1]) - 1 :].startswith(word[1] if word else "")


@pytest.mark.parametrize(
    ("text", "inputs", "place", "reason"),
    [
        ("conv:3x3x8,dense", (64,), "'conv:3x3x8' at character 1 ", "the inputs are rows of 64 numbers"),
        ("conv:3x3x8,dense", (2, 9), "'conv:3x3x8' at character 1 ", "3x3 does not fit images of 2 x 9 x 1"),
        ("dense:8,avgpool:2,dense", (4, 4), "'avgpool:2' at character 9 ", "nothing to pool"),
        ("conv:3x3x8,maxpool:3,dense", (4, 4), "'maxpool:3' at character 12 ", "2 x 2 x 8"),
        ("conv:3x3x8,flatten,conv:3x3x8,dense", (8, 8), "'conv:3x3x8' at character 20 ", "rows of 288 numbers"),
        ("dcnn", (8, 8), "'conv:3x3x1024' at character 30 ", "does not fit images of 2 x 2 x 512"),
    ],
)
def test_a_network_that_does_not_fit_the_inputs_is_refused(
    text: str, inputs: tuple[int, ...], place: str, reason: str
) -> None:
    with pytest.raises(DataError) as error:
        nets.parse(text).stages(inputs, 10)
    assert str(error.value).startswith(place)
    assert reason in str(error.value)


def test_shapes() -> None:
    stages = nets.parse("dcnn:0.125").stages((32, 32, 3), 10)
    assert [stage.features for stage in stages] == [75, 576, 1152, 2304, 1024]
    assert [stage.positions for stage in stages] == [784, 144, 16, 4, 1]
    assert [stage.outputs for stage in stages] == [(14, 14, 64), (6, 6, 128), (4, 4, 256), (2, 2, 256), (10,)]
    strided = nets.parse("conv:3x3x4:stride=2:pad=same,relu,dense").stages((9, 7), 3)
    assert strided[0].places == (5, 4)
    assert strided[1].inputs == (80,)


def run_layer(text: str, x: np.ndarray, weight: np.ndarray, encoding: np.ndarray, block: int) -> np.ndarray:
    stage = nets.parse(text).stages(x.shape[1:], weight.shape[1])[0]
    return forward(stage, nets.unstacked(weight), encoding, x, block)


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 1]), st.sampled_from([1, 5, 1000]),
    st.integers(0, 2**32),
)  # fmt: skip
def test_convolutions_against_scipy(size: int, channels: int, stride: int, pad: int, block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pad = min(pad, size - 1)
    x = rng.normal(size=(3, 7, 6, channels))
    weight = rng.normal(size=(size * size * channels + 1, 4))
    encoding = rng.normal(size=(4, 5))
    found = run_layer(f"conv:{size}x{size}x5:stride={stride}:pad={pad},tanh,dense", x, weight, encoding, block)
    kernels = (weight[:-1] @ encoding).reshape(size, size, channels, 5)
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    for image, values in zip(padded, found, strict=True):
        for channel in range(5):
            wanted = correlate(image, kernels[..., channel], mode="valid")[:, :, 0] + weight[-1] @ encoding[:, channel]
            np.testing.assert_allclose(values[..., channel], np.tanh(wanted[::stride, ::stride]), atol=1e-12)


@pytest.mark.parametrize("kind", ["avgpool", "maxpool"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pooling_against_loops(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x, weight = rng.normal(size=(2, 8, 7, 1)), rng.normal(size=(2, 3))
    found = run_layer(f"conv:1x1x3,{kind}:{size},dense", x, weight, np.eye(3), 1000)
    plain = x * weight[0] + weight[1]
    take = np.mean if kind == "avgpool" else np.max
    assert found.shape == (2, 8 // size, 7 // size, 3)
    for i, j in np.ndindex(8 // size, 7 // size):
        window = plain[:, i * size : (i + 1) * size, j * size : (j + 1) * size]
        np.testing.assert_allclose(found[:, i, j], take(window, axis=(1, 2)), atol=1e-13)


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_every_activation_of_the_feature_maps(name: str) -> None:
    rng = np.random.default_rng(0)
    x, weight, encoding = rng.normal(size=(5, 4)), rng.normal(size=(5, 3)), rng.normal(size=(3, 6))
    found = run_layer(f"dense:6,{name},dense", x, weight, encoding, 2)
    np.testing.assert_allclose(found, ACTIVATIONS[name]((x @ weight[:-1] + weight[-1]) @ encoding), atol=1e-12)


@given(st.integers(1, 60), st.sampled_from(["conv:3x2x4,dense", "conv:2x2x4:stride=2:pad=1,dense", "lr"]))
def test_rows_do_not_depend_on_the_block_and_are_never_more(block: int, text: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 6, 5, 2))
    stage = nets.parse(text).stages(x.shape[1:], 3)[0]
    parts = list(nets.design(stage, x, block))
    assert max(map(len, parts)) <= block
    rows = np.concatenate(parts)
    np.testing.assert_array_equal(rows, np.concatenate(list(nets.design(stage, x, 10_000))))
    assert rows.shape == (4 * stage.positions, stage.features + 1)
    assert (rows[:, -1] == 1.0).all()
    means = rows.reshape(4, stage.positions, -1).mean(1)
    np.testing.assert_allclose(nets.mean_rows(stage, x), means, atol=1e-14)


def test_patches_are_rows_of_the_image() -> None:
    """Explicit loops: image by image, place by place; in a patch row by row, then column, then channel."""
    x = np.arange(2.0 * 5 * 4 * 3).reshape(2, 5, 4, 3)
    stage = nets.parse("conv:3x2x4,dense").stages((5, 4, 3), 2)[0]
    wanted = [x[n, i : i + 3, j : j + 2].ravel() for n in range(2) for i in range(3) for j in range(3)]
    np.testing.assert_array_equal(next(nets.design(stage, x, 1000))[:, :-1], wanted)


def test_scales_of_inputs() -> None:
    """Bytes lie in [0, 1]; images are scaled unless told otherwise; rows are left alone unless told otherwise."""
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, size=(4, 3, 3), dtype=np.uint8)
    images[0] = 0
    np.testing.assert_array_equal(nets.prepare(images, "none"), images / 255.0)
    unit = nets.prepare(images, "unit")
    np.testing.assert_allclose(np.linalg.norm(unit.reshape(4, -1), axis=1), [0, 1, 1, 1])
    np.testing.assert_allclose(unit, nets.prepare(images.astype(np.float64), "unit"), atol=1e-15)
    np.testing.assert_allclose(nets.prepare(images, "power"), nets.prepare(np.sqrt(1.0 * images), "unit"), atol=1e-15)
    np.testing.assert_array_equal(nets.prepare(images, "auto"), nets.prepare(images, "power"))
    np.testing.assert_array_equal(nets.prepare(-1.0 * images, "power"), -nets.prepare(1.0 * images, "power"))
    rows = rng.normal(size=(4, 9))
    np.testing.assert_array_equal(nets.prepare(rows, "auto"), rows)
    np.testing.assert_allclose(np.linalg.norm(nets.prepare(rows, "unit"), axis=1), 1.0)


def test_encodings_are_drawn_from_their_place() -> None:
    one = nets.encoding(3, 0, 4, 6)
    assert one.shape == (4, 6)
    np.testing.assert_array_equal(one, nets.encoding(3, 0, 4, 6))
    assert not np.array_equal(one, nets.encoding(3, 1, 4, 6))
    assert not np.array_equal(one, nets.encoding(4, 0, 4, 6))
