"""Data sets in the layout of the Hugging Face hub, read from a folder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import maps
from fedsolve.features.images import Pictures

from .tiny import NORMAL, write_onnx

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def png(pixels: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def save(folder: Path, **splits: Any) -> str:
    (folder / "data").mkdir(parents=True)
    for split, data in splits.items():
        data.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return f"hf:{folder}"


def pictures(count: int, seed: int, *, sizes: bool = False) -> tuple[Any, list[np.ndarray], list[int]]:
    rng = np.random.default_rng(seed)
    labels = [number % 2 for number in range(count)]
    pixels = [
        (rng.integers(0, 40, (6 + sizes * number, 7, 3)) + 200 * np.array([label, 0, 1 - label])).astype(np.uint8)
        for number, label in enumerate(labels)
    ]
    kinds = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["blue", "red"])})
    rows = {"picture": [png(each) for each in pixels], "kind": labels}
    return datasets.Dataset.from_dict(rows, features=kinds), pixels, labels


def test_pictures_with_an_official_test_split(tmp_path: Path) -> None:
    train, pixels, labels = pictures(12, 0)
    test, _, test_labels = pictures(6, 1)
    table = fs.load(save(tmp_path / "set", train=train, test=test))
    assert table.class_names == ("blue", "red")
    federation = table.split("iid", clients=1, test="global")
    client = federation.clients["client-00"]
    np.testing.assert_array_equal(client.train.inputs, np.stack(pixels))
    assert client.train.labels.tolist() == labels
    assert client.test.labels.tolist() == test_labels


def test_a_sample_of_pictures_keeps_each_with_its_class(tmp_path: Path) -> None:
    train, pixels, labels = pictures(12, 0)
    part = fs.load(save(tmp_path / "set", train=train)).sample(5, 1)
    assert isinstance(part.inputs, Pictures)
    rows = [next(row for row, each in enumerate(pixels) if np.array_equal(each, found)) for found in part.inputs]
    assert len(rows) == 5
    assert rows == sorted(rows)
    assert part.labels.tolist() == [labels[row] for row in rows]


def test_pictures_of_any_size_through_a_network(tmp_path: Path) -> None:
    train, _, _ = pictures(12, 0, sizes=True)
    test, _, _ = pictures(6, 1, sizes=True)
    features = maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx')},{NORMAL}")
    table = fs.load(save(tmp_path / "set", train=train, test=test)).with_features(features)
    result = fs.run(fs.AFL(ridge=0.01, intercept=True), table.split("iid", clients=2, test="official"))
    assert result.accuracy.mean == 1.0


def test_columns_of_numbers_and_natural_clients(tmp_path: Path) -> None:
    rows = {"age": [1.0, 2.0, 3.0, 4.0], "dose": [5, 6, 7, 8], "label": [0, 1, 0, 1], "client": ["n", "n", "s", "s"]}
    federation = fs.load(save(tmp_path / "set", train=datasets.Dataset.from_dict(rows))).split("by-client", test=0)
    assert sorted(federation.clients) == ["n", "s"]
    np.testing.assert_array_equal(federation.clients["s"].train.inputs, [[3, 7], [4, 8]])


@pytest.mark.parametrize(
    ("rows", "split", "said"),
    [
        ({"x": [1.0]}, "train", "has no column of classes; its columns are x"),
        ({"label": ["a"], "x": [1.0]}, "train", "must hold class numbers"),
        ({"label": [0], "words": ["a"]}, "train", "neither a column of pictures nor columns of numbers"),
        ({"label": [0], "x": [1.0]}, "other", "has no split 'train'|could not be loaded"),
    ],
)
def test_what_cannot_be_used_says_why(rows: dict[str, Any], split: str, said: str, tmp_path: Path) -> None:
    name = save(tmp_path / "set", **{split: datasets.Dataset.from_dict(rows)})
    if split == "other":
        (tmp_path / "set" / "data" / "other-00000-of-00001.parquet").rename(
            tmp_path / "set" / "data" / "test-00000-of-00001.parquet"
        )
    with pytest.raises(DataError, match=said):
        fs.load(name)


def test_a_broken_picture_is_named_by_its_row(tmp_path: Path) -> None:
    train, _, labels = pictures(4, 0)
    rows = [*train.cast_column("picture", datasets.Image(decode=False))["picture"]]
    rows[2] = {"bytes": rows[2]["bytes"][:60], "path": None}
    spoilt = datasets.Dataset.from_dict({"picture": rows, "kind": labels}, features=train.features)
    with pytest.raises(DataError, match="the picture in row 2 cannot be read"):
        fs.load(save(tmp_path / "set", train=spoilt)).split("iid", clients=1)


def test_a_name_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be loaded"):
        fs.load("hf:nobody/nothing")
    with pytest.raises(ParameterError, match="needs the name"):
        fs.load("hf:")
