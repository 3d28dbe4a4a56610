"""Pictures in folders."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data import catalog, folders
from fedsolve.errors import DataError
from fedsolve.features import maps
from fedsolve.features.images import Pictures

from .tiny import NORMAL, write_onnx

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path / "cache"))


def paint(path: Path, size: tuple[int, int] = (12, 10), colour: tuple[int, int, int] = (200, 30, 10)) -> np.ndarray:
    """A noisy picture of one colour: width, height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(f"{path.name} {size}".encode()))
    noise = rng.integers(-9, 10, (size[1], size[0], 3))
    pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def two_classes(root: Path, count: int = 12) -> Path:
    for number in range(count):
        ending = ("png", "jpg")[number % 2]
        paint(root / "red" / f"{number}.{ending}", (10 + number, 9), (220, 20, 20))
        paint(root / "blue" / f"{number}.{ending}", (9, 10 + number), (20, 20, 220))
    return root


def test_classes_are_folders_in_the_order_of_their_names(tmp_path: Path) -> None:
    two_classes(tmp_path / "set")
    table = fs.load(str(tmp_path / "set"))
    assert table.class_names == ("blue", "red")
    assert table.labels.tolist() == [0] * 12 + [1] * 12
    assert len(table.inputs) == 24


def test_a_network_learns_from_pictures_of_any_size(tmp_path: Path) -> None:
    features = maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx')},{NORMAL}")
    table = fs.load(str(two_classes(tmp_path / "set"))).with_features(features)
    result = fs.run(fs.AFL(ridge=0.01, intercept=True), table.split("iid", clients=2, test=0.25))
    assert result.accuracy.mean == 1.0
    assert result.shared is not None
    fresh = folders.read(two_classes(tmp_path / "fresh", 3)).images
    assert result.shared.predict(fresh).tolist() == [0, 0, 0, 1, 1, 1]
    reds = np.full((2, 30, 40, 3), (220, 20, 20), dtype=np.uint8)
    assert result.shared.predict(reds).tolist() == [1, 1]


def test_pictures_of_one_size_need_no_network(tmp_path: Path) -> None:
    for number in range(6):
        paint(tmp_path / "set" / "red" / f"{number}.png", colour=(220, 20, 20))
        paint(tmp_path / "set" / "blue" / f"{number}.png", colour=(20, 20, 220))
    federation = fs.load(str(tmp_path / "set")).split("iid", clients=2)
    assert federation.task.inputs == (10, 12, 3)
    assert fs.run(fs.AFL(ridge=1.0, intercept=False), federation).accuracy.mean == 1.0


def test_a_sample_of_pictures_keeps_each_with_its_class(tmp_path: Path) -> None:
    table = fs.load(str(two_classes(tmp_path / "set")))
    part = table.sample(7, 3)
    assert isinstance(table.inputs, Pictures) and isinstance(part.inputs, Pictures)
    whole = {picture.tobytes(): label for picture, label in zip(table.inputs, table.labels, strict=True)}
    assert len(part.inputs) == len(part.labels) == 7
    assert [whole[picture.tobytes()] for picture in part.inputs] == part.labels.tolist()


def test_pictures_of_different_sizes_say_what_they_need(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0\.jpg 9 x 10, .*need a feature map|0\.png 9 x 10, .*need a feature map"):
        fs.load(str(two_classes(tmp_path / "set"))).split("iid", clients=2)


def test_a_folder_a_client_is_a_natural_split(tmp_path: Path) -> None:
    for site in ("north", "south"):
        for kind in ("cat", "dog"):
            for number in range(3):
                paint(tmp_path / "set" / site / kind / f"{number}.png")
    table = fs.load(str(tmp_path / "set"))
    assert table.class_names == ("cat", "dog")
    federation = table.split("by-client", test=0)
    assert sorted(federation.clients) == ["north", "south"]
    assert [len(client.train) for client in federation.clients.values()] == [6, 6]


def test_a_folder_below_the_classes_is_not_taken_for_the_class(tmp_path: Path) -> None:
    """The official layout of Tiny-ImageNet, where each class has a folder called images."""
    for wnid in ("n01443537", "n01629819"):
        for number in range(3):
            paint(tmp_path / "train" / wnid / "images" / f"{wnid}_{number}.JPEG")
    table = fs.load(str(tmp_path / "train"))
    wanted = (
        r"all labels are equal \('images', 6 samples\).*read as CLIENT/CLASS/FILE, so "
        r"n01443537/images/n01443537_0\.JPEG is of class 'images'; if 'n01443537' is a class, move its pictures up"
    )
    with pytest.raises(DataError, match=wanted):
        table.split("by-client")
    network = f"onnx:{write_onnx(tmp_path / 'm.onnx')},{NORMAL}"
    done = shell(tmp_path, "run", "--data", "train", "--partition", "by-client", "--features", network, "--quiet")
    assert done.returncode == 2 and "CLIENT/CLASS/FILE" in done.stderr
    assert not (tmp_path / "cache" / "features").exists()  # refused before features that take time


def test_one_folder_is_one_class(tmp_path: Path) -> None:
    paint(tmp_path / "set" / "red" / "0.png")
    paint(tmp_path / "set" / "red" / "1.png")
    with pytest.raises(
        DataError, match=r"read as CLASS/FILE, so red/0\.png is of class 'red'; give each class a folder"
    ):
        fs.load(str(tmp_path / "set")).split("iid", clients=1)


def test_a_folder_is_found_where_data_sets_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    with pytest.raises(fs.FedsolveError, match=r"NAME for NAME\.npz or a folder NAME of pictures in \$FEDSOLVE_DATA"):
        fs.load("my-pictures")
    said = catalog.absent("imagenet-r")
    assert "imagenet-r.npz" in said and "a folder imagenet-r of pictures" in said and "holds neither" in said
    with pytest.raises(DataError, match="imagenet-r is not here: put a folder imagenet-r"):
        fs.load("imagenet-r")
    (tmp_path / "imagenet-r").mkdir()
    assert catalog.absent("imagenet-r")  # empty
    two_classes(tmp_path / "imagenet-r", 2)
    assert catalog.absent("imagenet-r") == ""
    table = fs.load("imagenet-r")
    assert (table.name, table.class_names, len(table.labels)) == ("imagenet-r", ("blue", "red"), 4)
    with pytest.raises(fs.FedsolveError, match="did you mean 'imagenet-r'"):
        fs.load("imagenet-s")
    np.savez(tmp_path / "imagenet-r.npz", x=np.ones((2, 1)), y=np.arange(2))
    assert len(fs.load("imagenet-r").labels) == 2  # the file comes first


def test_a_folder_of_thousands_is_shown_short(tmp_path: Path) -> None:
    table = fs.load(str(two_classes(tmp_path / "set")))
    for each in (table, table.inputs, folders.read(tmp_path / "set")):
        assert len(repr(each)) < 500 and ".png" not in repr(each)


def test_pixels_are_those_of_the_files(tmp_path: Path) -> None:
    pixels = paint(tmp_path / "set" / "a" / "0.png", (7, 5))
    (found,) = folders.read(tmp_path / "set").images
    np.testing.assert_array_equal(found, pixels)


def test_other_kinds_of_pictures(tmp_path: Path) -> None:
    """Turned by its EXIF entry, grey, with a palette, with 16 bits."""
    folder = tmp_path / "set" / "a"
    pixels = paint(folder / "0.png", (7, 5))
    picture = Image.fromarray(pixels)
    exif = picture.getexif()
    exif[0x0112] = 6  # turned by a quarter
    picture.save(folder / "1.png", exif=exif)
    picture.convert("L").save(folder / "2.png")
    picture.convert("P").save(folder / "3.gif")
    deep = (np.arange(35, dtype=np.uint16) * 1800).reshape(5, 7)
    Image.fromarray(deep).save(folder / "4.png")
    found = list(folders.read(tmp_path / "set").images)
    np.testing.assert_array_equal(found[1], np.rot90(pixels, -1))
    assert [each.shape for each in found[2:]] == [(5, 7, 3)] * 3
    np.testing.assert_array_equal(found[2][..., 0], np.asarray(picture.convert("L")))
    np.testing.assert_array_equal(found[4][..., 2], (deep / 257).astype(np.uint8))


def spoil(root: Path) -> list[str]:
    """Three broken pictures: cut off, no picture at all, and empty."""
    cut = root / "red" / "1.jpg"
    cut.write_bytes(cut.read_bytes()[:400])
    (root / "blue" / "text.png").write_text("not a picture")
    (root / "blue" / "empty.jpeg").touch()
    return ["red/1.jpg", "blue/text.png", "blue/empty.jpeg"]


def test_broken_pictures_are_named_or_skipped(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "set")
    names = spoil(root)
    with pytest.raises(DataError, match="3 of 26 pictures") as error:
        fs.load(str(root))
    for name in names:
        assert name in str(error.value)
    table = fs.load(str(root), skip_broken=True)
    assert len(table.labels) == 23
    assert [skipped.split(" ")[0] for skipped in table.skipped] == sorted(names)


def test_a_folder_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = two_classes(tmp_path / "set", 2)
    looked: list[Path] = []
    real = folders._look

    def look(path: Path) -> Any:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(folders, "_look", look)
    folders.read(root)
    folders.read(root)
    assert len(looked) == 4
    paint(root / "red" / "0.png", (50, 50))
    folders.read(root)
    assert len(looked) == 8


def test_a_picture_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "set", 1)
    found = folders.read(root).images
    paint(root / "red" / "0.png", (50, 50))
    with pytest.raises(DataError, match=r"red.0\.png was changed while it was used"):
        list(found)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "holds no pictures"),
        (["notes.txt"], "holds no pictures"),
        (["0.png"], "lie 0 folders deep"),
        (["a/0.png", "a/b/c/0.png"], "lie 1 and 3 folders deep"),
    ],
)
def test_other_folders_say_what_was_wanted(files: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in files:
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    with pytest.raises(DataError, match=said):
        fs.load(str(tmp_path / "set"))


def shell(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedsolve", *arguments],
        cwd=folder, env=os.environ | {"COLUMNS": "100"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_command_line_from_pictures_to_predictions(tmp_path: Path) -> None:
    spoil(two_classes(tmp_path / "set"))
    write_onnx(tmp_path / "m.onnx")
    train = [
        "run",
        "--method",
        "afl",
        "--set",
        "intercept=true",
        "--data",
        "set",
        "--features",
        f"onnx:m.onnx,{NORMAL}",
    ]
    train += ["--clients", "2", "--partition", "iid", "--out", "out"]
    refused = shell(tmp_path, *train)
    assert refused.returncode == 2
    assert "--skip-broken" in refused.stderr
    done = shell(tmp_path, *train, "--skip-broken")
    assert done.returncode == 0, done.stderr
    assert "3 pictures that cannot be read were left out" in done.stdout
    for number in range(2):
        paint(tmp_path / "new" / f"{number}.png", (30, 20), ((220, 20, 20), (20, 20, 220))[number])
    model = "out/models/global.safetensors"
    network = ("--features", f"onnx:m.onnx,{NORMAL}")
    found = shell(tmp_path, "predict", model, "--data", "new", "--out", "p.csv", *network)
    assert "2 predictions in p.csv" in found.stdout
    with (tmp_path / "p.csv").open() as file:
        assert [row[:2] for row in csv.reader(file)] == [["file", "label"], ["0.png", "red"], ["1.png", "blue"]]
    compared = shell(tmp_path, "predict", model, "--data", "set", "--skip-broken", *network)
    assert "red/0.png: red" in compared.stdout
    assert "accuracy 1.0000 on 23 samples" in compared.stderr


@pytest.mark.long
def test_ten_thousand_pictures_three_broken(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(10_000):
        size = tuple(rng.integers(8, 60, 2).tolist())
        paint(
            tmp_path / "set" / f"c{number % 10}" / f"{number}.{('jpg', 'png')[number % 2]}",
            size,
            (9 * (number % 10),) * 3,
        )
    broken = [tmp_path / "set" / f"c{n % 10}" / f"{n}.{('jpg', 'png')[n % 2]}" for n in (17, 4444, 9998)]
    for path in broken:
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match="3 of 10000 pictures") as error:
        fs.load(str(tmp_path / "set"))
    for path in broken:
        assert str(path.relative_to(tmp_path / "set")) in str(error.value)
    table = fs.load(str(tmp_path / "set"), skip_broken=True)
    features = maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx')},{NORMAL}")
    federation = table.with_features(features).split("dirichlet:0.5", clients=20)
    assert sum(len(client.train) + len(client.test) for client in federation.clients.values()) == 9997
    mean = fs.run(fs.FedHiP(beta=1.0, intercept=False), federation).accuracy.mean
    assert mean is not None and mean > 0.2
