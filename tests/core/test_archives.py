from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data import archives
from fedsolve.errors import DataError, ParameterError
from tests.conftest import numbers

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    monkeypatch.setattr(archives, "DEBIAN", {})
    return tmp_path


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(int(side).to_bytes(4, "big") for side in values.shape)
    return head + values.astype(np.uint8).tobytes()


def four(train: int = 12, test: int = 5) -> dict[str, np.ndarray]:
    return {
        "train-images-idx3": RNG.integers(256, size=(train, 28, 28)),
        "train-labels-idx1": np.arange(train) % 10,
        "t10k-images-idx3": RNG.integers(256, size=(test, 28, 28)),
        "t10k-labels-idx1": np.arange(test) % 10,
    }


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_gzipped_or_not(home: Path, name: str, packed: bool) -> None:
    place = home / name.replace("-", "_")
    place.mkdir()
    parts = four()
    for stem, values in parts.items():
        data = idx(values)
        (place / f"{stem}-ubyte{'.gz' * packed}").write_bytes(gzip.compress(data) if packed else data)
    table = fs.load(name)
    np.testing.assert_array_equal(table.inputs, parts["train-images-idx3"])
    np.testing.assert_array_equal(table.labels, parts["train-labels-idx1"])
    assert table.test is not None
    np.testing.assert_array_equal(table.test.inputs, parts["t10k-images-idx3"])
    np.testing.assert_array_equal(table.test.labels, parts["t10k-labels-idx1"])


@pytest.mark.parametrize(
    ("name", "head", "member"), [("cifar10", 1, "data_batch_{}.bin"), ("cifar100", 2, "train{}.bin")]
)
def test_binary_cifar_archives(home: Path, name: str, head: int, member: str) -> None:
    images = RNG.integers(256, size=(9, 32, 32, 3)).astype(np.uint8)
    labels = np.arange(9, dtype=np.uint8)
    coarse = np.full((9, head - 1), 7, np.uint8)
    records = np.column_stack([coarse, labels, images.transpose(0, 3, 1, 2).reshape(9, -1)])
    assert records.shape[1] == head + 3072
    with tarfile.open(home / archives.CIFAR_SETS[name], "w:gz") as tar:
        for title, rows in (
            (member.format(1), records[:6]),
            ("test_batch.bin", records[6:]),
            ("readme.html", records[:1]),
        ):
            info = tarfile.TarInfo(f"folder/{title}")
            info.size = rows.nbytes
            tar.addfile(info, io.BytesIO(rows.tobytes()))
    table = fs.load(name)
    np.testing.assert_array_equal(table.inputs, images[:6])
    np.testing.assert_array_equal(table.labels, labels[:6])
    assert table.test is not None
    np.testing.assert_array_equal(table.test.inputs, images[6:])
    np.testing.assert_array_equal(table.test.labels, labels[6:])


def test_an_npz_of_that_name_is_taken(home: Path) -> None:
    np.savez(home / "cifar10.npz", x=np.zeros((4, 3, 3), np.uint8), y=[0, 1, 2, 1])
    assert fs.load("cifar10").classes == 3


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_an_absent_set_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=f"{name} is not here: put .* set FEDSOLVE_DATA"):
        fs.load(name)
    monkeypatch.delenv("FEDSOLVE_DATA")
    with pytest.raises(DataError, match="FEDSOLVE_DATA is not set"):
        fs.load(name)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "begin like an idx file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", "begin like an idx file"),
        (idx(np.zeros((3, 28, 28)))[:-1], "announces 2352 values and holds 2351"),
    ],
)
def test_a_damaged_idx_file_is_named(home: Path, data: bytes, words: str) -> None:
    (home / "mnist").mkdir()
    for stem, values in four().items():
        (home / "mnist" / f"{stem}-ubyte").write_bytes(idx(values))
    (home / "mnist" / "train-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte is damaged.*{words}"):
        fs.load("mnist")


def test_a_missing_part_a_cut_gzip_and_a_damaged_archive_are_named(home: Path) -> None:
    (home / "mnist").mkdir()
    with pytest.raises(DataError, match="lacks train-images"):
        fs.load("mnist")
    for stem, values in four().items():
        (home / "mnist" / f"{stem}-ubyte.gz").write_bytes(gzip.compress(idx(values))[:40])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        fs.load("mnist")
    (home / archives.CIFAR_SETS["cifar10"]).write_bytes(b"not an archive")
    with pytest.raises(DataError, match="is damaged or not an archive"):
        fs.load("cifar10")
    with pytest.raises(ParameterError, match="takes no argument"):
        fs.load("mnist:3")


def test_the_real_fashion_mnist(real_data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_DATA", real_data.ROOT)
    table = fs.load("fashion-mnist")
    assert numbers(table).shape == (60_000, 28, 28)
    assert isinstance(table.test, fs.Samples)
    assert len(table.test) == 10_000
    assert np.bincount(table.labels).tolist() == [6000] * 10
    result = fs.run(fs.AFL(ridge=0.0, intercept=False), table.split(fs.classes(2), clients=50, test="global"))
    assert result.accuracy.mean == pytest.approx(0.81, abs=0.01)  # ridge on pixels: 81.1 %
