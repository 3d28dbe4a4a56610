"""`patches`: features against a loop over patches, filters from sums that are the same for every split, its words."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.arrays import Arrays, accumulate
from fedsolve.features import answers, clusters, fitting, maps
from fedsolve.features.patches import ROOT, Bank, Patches, Recipe

SMALL = "3x4x5"


def pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Bytes with some structure: stripes of several widths and directions, and noise."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[: shape[0], : shape[1]]
    result = np.empty((count, *shape), dtype=np.uint8)
    for place in range(count):
        angle, width = rng.uniform(0, np.pi), rng.uniform(0.5, 2)
        stripes = np.sin(width * (np.cos(angle) * down + np.sin(angle) * across))
        noise = rng.normal(size=shape)
        stripes = stripes[..., None] * rng.normal(size=shape[2]) if len(shape) == 3 else stripes
        result[place] = np.clip(128 + 50 * stripes + 20 * noise, 0, 255)
    return result


def fit(recipe: Recipe, parts: list[np.ndarray]) -> tuple[Patches, list[Arrays]]:
    """The fitted map, and the state behind every round."""
    state: Arrays = {}
    states: list[Arrays] = []
    for _ in range(recipe.rounds):
        total = None
        for part in parts:
            total = accumulate(total, clusters.sums(recipe, state, part))
        assert total is not None
        state = clusters.advance(recipe, state, total)
        states.append(state)
    return clusters.fitted(recipe, state), states


def normalised(patch: np.ndarray, contrast: float) -> np.ndarray:
    row = patch.astype(np.float64).ravel()
    row = row - row.mean()
    return np.asarray(row / np.sqrt((row**2).mean() + contrast))


def by_loop(features: Patches, picture: np.ndarray) -> np.ndarray:
    """The features of one picture, patch by patch."""
    recipe, bank = features.recipe, features.bank
    picture = picture[..., None] if picture.ndim == 2 else picture
    filters = bank.filters * bank.gain.astype(np.float64)
    rows, columns = picture.shape[0] - recipe.height + 1, picture.shape[1] - recipe.width + 1
    weights = answers.places(recipe.windows, rows, columns)
    images = [picture, picture[:, ::-1]] if recipe.mirror else [picture]
    means = np.zeros((2, len(weights), recipe.filters))
    for image, i, j in itertools.product(images, range(rows), range(columns)):
        patch = normalised(image[i : i + recipe.height, j : j + recipe.width], bank.contrast)
        answer = patch @ filters - bank.offset.astype(np.float64)
        for sign, place in enumerate((answer, -answer)):
            means[sign] += np.outer(weights[:, i, j], np.maximum(place - recipe.threshold, 0)) / len(images)
    return np.asarray((np.sqrt(means + ROOT).ravel() - bank.origin.astype(np.float64)) / bank.scale.astype(np.float64))


@pytest.mark.parametrize("windows", ["five", "four", "one"])
@pytest.mark.parametrize("mirror", ["yes", "no"])
@pytest.mark.parametrize("shape", [(9, 11), (9, 11, 3), (3, 4, 2)])
def test_features_are_those_of_a_loop_over_patches(shape: tuple[int, ...], mirror: str, windows: str) -> None:
    data = pictures(12, *shape)
    recipe = Recipe.read(f"{SMALL},mirror={mirror},windows={windows},steps=2,threshold=0.1")
    features, _ = fit(recipe, [data])
    wanted = np.stack([by_loop(features, picture) for picture in data])
    double = features(data.astype(np.float64))
    assert double.dtype == np.float64 and double.shape == (12, *features.shape(shape))
    np.testing.assert_allclose(double, wanted, atol=1e-10, rtol=0)
    single = features(data)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, wanted, atol=2e-4, rtol=0)


def test_no_bit_depends_on_the_pictures_beside_it_or_on_blocks() -> None:
    data = pictures(90, 12, 12, 3)
    features, _ = fit(Recipe.read(f"{SMALL},steps=1"), [data])
    whole = features(data)
    for block in (1, 7, 33, 4096):
        parts = [features(data[start : start + block]) for start in range(0, 90, block)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_large_pictures_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures(3, 20, 17, 3).astype(np.float64)
    features, _ = fit(Recipe.read("4x4x9,mirror=yes,steps=1"), [data])
    whole = features(data)
    monkeypatch.setattr(answers, "PLACES", 30)
    monkeypatch.setattr(answers, "COLUMNS", 4)
    np.testing.assert_allclose(features(data), whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mirror", ["yes", "no"])
def test_a_mirrored_picture_has_the_same_features_if_asked(mirror: str) -> None:
    data = pictures(10, 12, 15, 3).astype(np.float64)
    features, _ = fit(Recipe.read(f"{SMALL},mirror={mirror},steps=2"), [data])
    same = np.allclose(features(data[:, :, ::-1]), features(data), atol=1e-9, rtol=0)
    assert same == (mirror == "yes")


# --- fitting ---


def all_patches(recipe: Recipe, data: np.ndarray, a_side: int) -> np.ndarray:
    """Some patches of all pictures as rows, picked by a loop."""
    rows = []
    strides = [-(-(side - size + 1) // a_side) for side, size in zip(data.shape[1:3], (3, 4), strict=True)]
    for picture in data:
        for i in range(0, picture.shape[0] - recipe.height + 1, strides[0]):
            for j in range(0, picture.shape[1] - recipe.width + 1, strides[1]):
                rows.append(picture[i : i + recipe.height, j : j + recipe.width].astype(np.float64).ravel())
    return np.array(rows)


def test_every_round_is_what_the_patches_themselves_give() -> None:
    data = pictures(40, 14, 13, 3)
    recipe = Recipe.read(f"{SMALL},steps=2,directions=20")
    features, states = fit(recipe, [data])
    some = all_patches(recipe, data, clusters.TRACES)
    contrast = float(states[0]["contrast"])
    assert contrast == pytest.approx(recipe.contrast * some.var(axis=1).mean(), rel=5e-3)
    rows = np.array([normalised(row, contrast) for row in some])
    np.testing.assert_allclose(states[1]["mean"], rows.mean(0), atol=0.5 / clusters.GRID)
    whitening = states[1]["whitening"]
    assert whitening.shape == (36, 20)
    covariance = np.cov(rows.T, bias=True)
    white = whitening.T @ covariance @ whitening
    variance = np.sort(np.linalg.eigvalsh(covariance))[::-1][:20]
    np.testing.assert_allclose(white, np.diag(variance / (variance + recipe.smoothing)), atol=5e-3)
    # One step of k-means: a filter goes along the sum of the patches that lie along it, or against it.
    points = np.array([normalised(row, contrast) for row in all_patches(recipe, data, clusters.SAMPLES)])
    points = (np.rint(clusters.GRID * points) / clusters.GRID - states[1]["mean"]) @ whitening
    products = points @ states[1]["filters"]
    for place in range(recipe.filters):
        mine = np.abs(products).argmax(1) == place
        centre = (np.sign(products[mine, place])[:, None] * points[mine]).sum(0)
        centre += clusters.STAY * states[1]["filters"][:, place]
        np.testing.assert_allclose(states[2]["filters"][:, place], centre / np.linalg.norm(centre), atol=1e-9)
    # The filters that are agreed on are those of k-means, rounded; features are about zero and of deviation one.
    bank = features.bank
    assert np.abs(bank.filters).max(0).tolist() == [clusters.LARGEST] * recipe.filters
    rows = features(data)
    np.testing.assert_allclose(rows.mean(0), 0, atol=2e-2)
    np.testing.assert_allclose(rows.std(0)[rows.std(0) > 0.1], 1, atol=2e-2)


def test_rounded_filters_are_those_of_k_means() -> None:
    data = pictures(30, 12, 12)
    recipe = Recipe.read(f"{SMALL},steps=0")
    features, states = fit(recipe, [data])
    weights = states[1]["whitening"] @ _start(recipe, 8)
    bank = features.bank
    step = bank.gain.astype(np.float64)
    assert (np.abs(bank.filters * step - weights) <= 0.5001 * step).all()
    np.testing.assert_allclose(bank.offset, states[1]["mean"] @ (bank.filters * step), rtol=1e-6)


def _start(recipe: Recipe, kept: int) -> np.ndarray:
    from fedsolve.rng import derive

    filters = derive(recipe.seed, "patches", "filters", kept, recipe.filters).standard_normal((kept, recipe.filters))
    return np.asarray(filters / np.linalg.norm(filters, axis=0))


@given(st.integers(1, 9), st.randoms(use_true_random=False), st.booleans(), st.booleans())
@settings(max_examples=8, deadline=None)
def test_the_fitted_map_is_the_same_for_every_split(parts: int, random: Any, colour: bool, floats: bool) -> None:
    data = pictures(40, 9, 9, 3) if colour else pictures(40, 9, 9)
    data = data / 255.0 if floats else data
    order = list(range(40))
    random.shuffle(order)
    ends = sorted(random.sample(range(1, 40), parts - 1))
    split = np.split(data[order], ends)
    recipe = Recipe.read("4x4x12,steps=3")
    assert fit(recipe, split)[0] == fit(recipe, [data])[0]


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.01"])
@pytest.mark.parametrize("count", [1, 10, 90])
def test_federations_of_any_split_have_one_map_and_one_model(partition: str, count: int) -> None:
    data = pictures(200, 10, 10, 3)
    labels = (data.reshape(200, -1).std(axis=1) > 45).astype(np.int64) + (data[..., 0].mean((1, 2)) > 128)
    table = fs.Table.make("stripes", data, labels)
    whole = table.split("iid", clients=1, test=0.0).fitted(f"patches:{SMALL}")
    federation = table.split(partition, clients=count, test=0.0, min_samples=1).fitted(f"patches:{SMALL}")
    assert str(federation.task.features) == str(whole.task.features)
    weights = [fs.run(fs.AFL(ridge=1.0, intercept=False), each).state["weight"] for each in (federation, whole)]
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-7, atol=1e-9)


def test_means_of_features_are_of_pictures_that_their_content_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures(400, 6, 6)
    assert len(clusters._picked(data, 400)) == 400
    monkeypatch.setattr(clusters, "ENOUGH", 100)
    picked = clusters._picked(data, 400)
    assert 60 < len(picked) < 140
    order = np.random.default_rng(1).permutation(400)
    np.testing.assert_array_equal(np.sort(order[clusters._picked(data[order], 400)]), picked)
    recipe = Recipe.read("3x3x4,steps=1")
    assert fit(recipe, [data])[0] == fit(recipe, np.array_split(data[order], 7))[0]


# --- words ---


def test_words_decide_it(tmp_path: Path) -> None:
    data = pictures(60, 8, 8, 3)
    labels = np.arange(60) % 3
    federation = fs.Federation.from_arrays(
        {"a": {"train": (data[:40], labels[:40])}, "b": {"train": (data[40:], labels[40:])}}
    )
    ready = federation.fitted("patches:3x3x6,mirror=yes+ones")
    features = ready.task.features
    again = maps.parse(str(features))
    assert again == features and hash(again) == hash(features) and again.identity == features.identity
    assert features.identity.startswith("patches:3x3x6,mirror=yes; numbers ") and len(features.identity) < 100
    assert repr(features.maps[0]) == "Patches('patches:3x3x6,mirror=yes', 3 channels)"  # type: ignore[attr-defined]
    result = fs.run(fs.FedHiP(beta=1.0, intercept=False), ready)
    assert result.shared is not None
    result.shared.save(tmp_path / "model.safetensors")
    model = fs.load_model(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(model.scores(data), result.shared.scores(data))


def test_maps_are_fitted_in_their_order() -> None:
    data = pictures(50, 8, 8)
    chain = fitting.fit("patches:3x3x4+standardise+random:7", [data[:20], data[20:]])
    first, second, third = chain.maps  # type: ignore[attr-defined]
    rows = first(data).astype(np.float64)
    np.testing.assert_allclose(second.origin, rows.mean(0), atol=1e-6)
    np.testing.assert_allclose(second.scale, rows.std(0), rtol=1e-5)
    assert third == maps.parse("random:7") and chain(data).shape == (50, 7)


def test_another_fit_is_another_space() -> None:
    data = pictures(50, 8, 8)
    one, other = (fitting.fit("patches:3x3x4", [part]) for part in (data[:25], data[25:]))
    assert one.identity != other.identity
    assert "numbers" in maps.difference(maps.described(one, (8, 8)), maps.described(other, (8, 8)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("6x6", "patches is written patches:HEIGHTxWIDTHxFILTERS"),
        ("6x6x0", "filters of patches must be an integer from 1"),
        ("6x65x3", "width of patches must be an integer from 1 to 64"),
        ("6x6x8,mirror=maybe", "mirror of patches must be yes or no; got 'maybe'"),
        ("6x6x8,steps=many", "steps of patches must be an integer; got 'many'"),
        ("6x6x8,steps=-1", "steps of patches must be an integer from 0 to 1000; got -1"),
        ("6x6x8,contrast=0", "contrast of patches must be a number above 0"),
        ("6x6x8,smoothing=nan", "smoothing of patches must be a number above 0"),
        ("6x6x8,threshold=-1", "threshold of patches must be a number from 0"),
        ("6x6x8,windows=six", "unknown windows of patches 'six'"),
        ("6x6x8,mirror=yes,mirror=no", "patches is told its mirror twice"),
        ("6x6x8,colour=red", "unknown option of patches 'colour=red'"),
        ("6x6x65536", None),
    ],
)
def test_recipes_are_refused_by_name(text: str, words: str | None) -> None:
    if words is None:
        assert Recipe.read(text).size == 655360
        return
    with pytest.raises(fs.FedsolveError, match=words):
        Recipe.read(text)


def test_a_recipe_alone_is_no_map() -> None:
    with pytest.raises(fs.ParameterError, match="patches is fitted to a federation's samples"):
        maps.parse("patches:6x6x8")


def _bank(**changes: Any) -> Bank:
    parts = {
        "contrast": 1.0,
        "filters": np.ones((9, 2), np.int8),
        "gain": np.ones(2, np.float32),
        "offset": np.zeros(2, np.float32),
        "origin": np.zeros(20, np.float16),
        "scale": np.ones(20, np.float16),
    }
    return Bank(**{**parts, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"contrast": 0.0},
        {"contrast": np.nan},
        {"gain": np.array([1, np.inf], np.float32)},
        {"offset": np.array([1, np.nan], np.float32)},
        {"origin": np.full(20, np.nan, np.float16)},
        {"scale": np.zeros(20, np.float16)},
        {"filters": np.ones((8, 2), np.int8)},
    ],
)
def test_fitted_numbers_must_be_usable(changes: dict[str, Any]) -> None:
    recipe = Recipe.read("3x3x2")
    assert Patches.of(recipe, 1, _bank()).shape((4, 4)) == (20,)
    with pytest.raises(fs.ParameterError, match=r"patches:3x3x2"):
        Patches.of(recipe, 1, _bank(**changes))


@pytest.mark.parametrize("numbers", ["", "AAAA", "é", "AA=A", "A" * 400])
def test_damaged_numbers_are_refused(numbers: str) -> None:
    with pytest.raises(fs.ParameterError, match="patches"):
        maps.parse(f"patches:3x3x2,numbers={numbers}")


@pytest.mark.parametrize(
    ("shape", "words"),
    [((64,), "takes pictures"), ((5, 5, 3), "do not fit into pictures of 5 x 5"), ((9, 9, 3), "of 1 channels; these")],
)
def test_what_are_no_such_pictures_is_refused(shape: tuple[int, ...], words: str) -> None:
    features, _ = fit(Recipe.read("6x6x2,steps=1"), [pictures(20, 9, 9)])
    with pytest.raises(fs.DataError, match=words):
        features.shape(shape)
    with pytest.raises(fs.DataError, match=words):
        features(np.zeros((2, *shape)))


def test_pictures_that_cannot_be_fitted_to_are_refused() -> None:
    with pytest.raises(fs.DataError, match="not all of one colour"):
        fitting.fit("patches:3x3x2", [np.full((4, 8, 8), 7, np.uint8)])
    with pytest.raises(fs.DataError, match="there are none"):
        fitting.fit("patches:3x3x2", [])
    with pytest.raises(fs.DataError, match="takes pictures"):
        fitting.fit("patches:3x3x2", [np.zeros((4, 8))])


def test_no_error_quotes_the_fitted_numbers(tmp_path: Path) -> None:
    data, labels = pictures(40, 8, 8), np.arange(40) % 2
    ready = fs.Federation.from_arrays({"a": {"train": (data, labels)}}).fitted("patches:3x3x64")
    assert len(str(ready.task.features)) > 3000
    with pytest.raises(fs.ParameterError) as twice:
        ready.fitted("standardise")
    assert len(str(twice.value)) < 300 and len(repr(ready)) < 500
    pytest.importorskip("onnx")
    model = fs.run(fs.AFL(ridge=1.0, intercept=False), ready).shared
    assert model is not None
    with pytest.raises(fs.DataError, match="has no form in ONNX") as absent:
        fs.to_onnx(model, tmp_path / "m.onnx")
    assert len(str(absent.value)) < 300
