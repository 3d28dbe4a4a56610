"""Preparation of pictures, against the processors of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsolve.errors import DataError, ParameterError, UnknownNameError
from fedsolve.features.images import CONFIG, Preparation, cropped, eight_bits, resized

pytest.importorskip("PIL")


def pictures(*sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ViT", {"size": {"height": 32, "width": 40}}),
        ("CLIP", {"size": {"shortest_edge": 48}, "crop_size": {"height": 40, "width": 40}}),
        ("CLIP", {"size": {"shortest_edge": 33}, "crop_size": {"height": 20, "width": 48}}),
        ("ConvNext", {"size": {"shortest_edge": 56}, "crop_pct": 0.875}),
        ("ConvNext", {"size": {"shortest_edge": 384}, "crop_pct": 0.875}),
        ("ViT", {"size": {"height": 24, "width": 24}, "do_normalize": False, "resample": 3}),
        ("ViT", {"size": {"height": 24, "width": 24}, "rescale_factor": 1 / 127.5, "image_mean": [1.0, 1.0, 1.0]}),
    ],
)
def test_prepared_as_transformers_would(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, f"{kind}ImageProcessorPil")(**options)
    processor.save_pretrained(tmp_path)
    prepare = Preparation.from_config(tmp_path / CONFIG)
    for picture in pictures((64, 64), (37, 90), (90, 37), (21, 22)):
        wanted = np.asarray(processor(picture, return_tensors="np")["pixel_values"])
        (found,) = prepare(picture[None])
        assert found.shape == wanted.shape
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_without_mean_the_values_stay_bytes() -> None:
    (found,) = Preparation(layout="nhwc")(np.stack(pictures((8, 9), (8, 9))))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.stack(pictures((8, 9), (8, 9))))


def test_neighbours_of_one_size_share_a_batch() -> None:
    class Some:
        def __len__(self) -> int:
            return 5

        def __iter__(self) -> Any:
            return iter(pictures((8, 8), (8, 8), (8, 9), (8, 8), (8, 8)))

    batches = Preparation()(Some())  # type: ignore[arg-type]
    assert [batch.shape for batch in batches] == [(2, 3, 8, 8), (1, 3, 8, 9), (2, 3, 8, 8)]


def test_crop_takes_the_middle_and_fills_with_black() -> None:
    picture = np.arange(5 * 5 * 3, dtype=np.uint8).reshape(5, 5, 3) + 1
    np.testing.assert_array_equal(cropped(picture, (3, 1)), picture[1:4, 2:3])
    padded = cropped(picture, (7, 5))
    np.testing.assert_array_equal(padded[1:6], picture)
    assert not padded[0].any()


def test_an_equal_size_changes_nothing() -> None:
    (picture,) = pictures((12, 20))
    assert resized(picture, (12,), "bilinear") is picture
    assert resized(picture, (12, 20), "bicubic") is picture


def test_grey_and_float_pictures() -> None:
    grey = np.array([[[0.0, 0.5], [1.0, 0.2]]])
    np.testing.assert_array_equal(eight_bits(grey)[0, :, :, 1], [[0, 128], [255, 51]])
    for wrong, said in (
        (np.full((1, 2, 2), 1.5), "from 0 to 1"),
        (np.full((1, 2, 2), np.nan), "from 0 to 1"),
        (np.zeros((1, 2, 2, 4), dtype=np.uint8), "got shape"),
        (np.zeros((3, 4)), "got shape"),
    ):
        with pytest.raises(DataError, match=said):
            eight_bits(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "big"}, r"size is written size=256"),
        ({"size": "1x2x3"}, "one or two sides"),
        ({"size": "0"}, "at least 1 pixel"),
        ({"mean": "1/2"}, "three numbers each"),
        ({"mean": "0/0/0"}, "or neither"),
        ({"mean": "0/0/0", "std": "1/0/1"}, "std and scale above 0"),
        ({"mean": "nan/0/0", "std": "1/1/1"}, "must be finite"),
        ({"scale": "-1"}, "above 0"),
        ({"scale": "x"}, "scale is written"),
    ],
)
def test_wrong_options_say_what_is_wrong(options: dict[str, str], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Preparation.from_options(options, Preparation())


def test_unknown_words() -> None:
    for options in ({"resample": "bilinaer"}, {"layout": "chwn"}):
        with pytest.raises(UnknownNameError, match="unknown"):
            Preparation.from_options(options, Preparation())


def test_options_override_what_the_model_says() -> None:
    base = Preparation(size=(10,), mean=(0.5,) * 3, std=(0.5,) * 3)
    found = Preparation.from_options({"size": "20x30", "crop": "5", "resample": "bicubic"}, base)
    assert (found.size, found.crop, found.mean, found.resample) == ((20, 30), (5, 5), (0.5,) * 3, "bicubic")


def test_every_field_is_part_of_the_words() -> None:
    base = Preparation(size=(10,), crop=(4, 4), mean=(0.5,) * 3, std=(0.5,) * 3)
    others = [
        {"size": "11"},
        {"crop": "5"},
        {"resample": "bicubic"},
        {"scale": "1"},
        {"mean": "0.5/0.5/0.4"},
        {"std": "0.5/0.5/0.4"},
        {"layout": "nhwc"},
    ]
    words = {str(Preparation.from_options(options, base)) for options in others} | {str(base)}
    assert len(words) == len(others) + 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"size": 5}', '{"resample": 77, "image_mean": [0], "image_std": [1]}']
)
def test_a_damaged_configuration_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(DataError, match=CONFIG):
        Preparation.from_config(tmp_path / CONFIG)


def test_old_configurations_write_sizes_as_numbers(tmp_path: Path) -> None:
    text = {"size": 224, "crop_size": 200, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_center_crop": True}
    (tmp_path / CONFIG).write_text(json.dumps(text))
    found = Preparation.from_config(tmp_path / CONFIG)
    assert (found.size, found.crop) == ((224, 224), (200, 200))
