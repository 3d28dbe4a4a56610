"""Well-known image sets in their official files: idx (MNIST, Fashion-MNIST) and the CIFAR archives.

They are looked for in the folder that $FEDSOLVE_DATA names; nothing is downloaded. The CIFAR archives for Python hold
pickles, which run code where Python reads them; `pickled` reads them without.
"""

from __future__ import annotations

import gzip
import math
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.data.pickled import read_pickle
from fedsolve.errors import DataError, brief

Four: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]
IDX_SETS = {"mnist": "mnist", "fashion-mnist": "fashion_mnist"}
CIFAR_SETS = {"cifar10": "cifar-10-binary.tar.gz", "cifar100": "cifar-100-binary.tar.gz"}
PYTHON_SETS = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}  # of pickles
_PIXELS = 3 * 32 * 32  # of a CIFAR image
_LARGEST_FILE = 2**28  # bytes of one file, unpacked: the largest of these sets has 153 MB
DEBIAN = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}  # the package dataset-fashion-mnist


def folder() -> Path | None:
    """Where data sets are kept."""
    named = os.environ.get("FEDSOLVE_DATA")
    return Path(named) if named else None


def read(name: str) -> Four | Path:
    """Training images and labels, then test images and labels; or the .npz that holds them."""
    place = _place(name)
    if place is None:
        raise DataError(absent(name))
    if place.suffix == ".npz":
        return place
    return _idx_set(place) if name in IDX_SETS else read_archive(place)


def is_archive(path: Path) -> bool:
    """Whether a file is called as an official archive is."""
    return path.name in (*CIFAR_SETS.values(), *PYTHON_SETS.values())


def read_archive(path: Path) -> Four:
    """What an official CIFAR archive holds, which its name says the kind of."""
    fine = path.name in (CIFAR_SETS["cifar100"], PYTHON_SETS["cifar100"])
    return _python(path, fine=fine) if path.name in PYTHON_SETS.values() else _binary(path, fine=fine)


def absent(name: str) -> str:
    """What is missing where a set is not here, or nothing; without reading it."""
    if _place(name) is not None:
        return ""
    home = folder()
    files = (
        f"{IDX_SETS[name]}/ with the four idx files, gzipped or not,"
        if name in IDX_SETS
        else f"{CIFAR_SETS[name]} or {PYTHON_SETS[name]} (the official archives, as they are)"
    )
    where = f"{home} holds neither" if home else "FEDSOLVE_DATA is not set"
    return f"{name} is not here: put {files} or {name}.npz into a folder and set FEDSOLVE_DATA to it ({where})"


def _place(name: str) -> Path | None:
    """The .npz, the folder of idx files or the archive that holds a set."""
    home = folder()
    if home is not None and (home / f"{name}.npz").is_file():
        return home / f"{name}.npz"
    if name in CIFAR_SETS:
        files = [home / each[name] for each in (CIFAR_SETS, PYTHON_SETS)] if home else []
        return next((each for each in files if each.is_file()), None)  # the binary one where both are there
    folders = ([home / IDX_SETS[name]] if home else []) + ([DEBIAN[name]] if name in DEBIAN else [])
    return next((each for each in folders if each.is_dir()), None)


def _idx_set(place: Path) -> Four:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    x, y, x_test, y_test = (_idx(_find(place, stem)) for stem in stems)
    return x, y, x_test, y_test


def _find(place: Path, stem: str) -> Path:
    for ending in ("-ubyte.gz", "-ubyte", ".ubyte"):
        if (place / f"{stem}{ending}").is_file():
            return place / f"{stem}{ending}"
    raise DataError(f"{place} lacks {stem}-ubyte.gz")


def _idx(path: Path) -> NDArray[np.uint8]:
    """An idx file: two zeros, a type, the number of dimensions, their sizes as big-endian 32-bit integers, the data."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise ValueError(f"it holds more than {_LARGEST_FILE} bytes")
        if data[:3] != b"\x00\x00\x08" or len(data) < 4 * (1 + data[3]):
            raise ValueError("it does not begin like an idx file of bytes")
        shape = tuple(np.frombuffer(data, ">u4", data[3], 4).tolist())
        start = 4 * (1 + data[3])
        if len(data) - start != math.prod(shape):
            raise ValueError(f"it announces {math.prod(shape)} values and holds {len(data) - start}")
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DataError(f"{path} is damaged or not an idx file ({error})") from error


def _binary(archive: Path, *, fine: bool) -> Four:
    """Records of one label (CIFAR-100: coarse, then fine) and 3 x 32 x 32 bytes, channels first."""
    head = 2 if fine else 1
    parts: dict[bool, list[NDArray[np.uint8]]] = {True: [], False: []}
    for name, data in _members(archive, ".bin"):
        records = np.frombuffer(data, np.uint8)
        if len(records) % (head + _PIXELS):
            raise DataError(f"{archive} is damaged: {name} is not made of records of {head + _PIXELS} bytes")
        parts["test" in name].append(records.reshape(-1, head + _PIXELS)[:, head - 1 :])
    return _four(archive, parts, "the binary version")


def _python(archive: Path, *, fine: bool) -> Four:
    """Dictionaries with one row of 3 x 32 x 32 bytes per image, channels first, and a list of labels."""
    parts: dict[bool, list[NDArray[np.uint8]]] = {True: [], False: []}
    for name, data in _members(archive, ""):
        if name.startswith("data_batch_") or name in ("train", "test", "test_batch"):
            held = read_pickle(data, f"{archive}: {name}")
            parts["test" in name].append(_records(held, f"{archive}: {name}", fine=fine))
    return _four(archive, parts, "the version for Python")


def _records(held: Mapping[str, Any], source: str, *, fine: bool) -> NDArray[np.uint8]:
    """Label and pixels of each image, side by side."""
    key, classes = ("fine_labels", 100) if fine else ("labels", 10)
    pixels, labels = held.get("data"), held.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DataError(f"{source} must hold an array 'data' of rows of {_PIXELS} bytes; it holds {brief(list(held))}")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        got = f"{len(labels)} labels" if isinstance(labels, list) else brief(labels)
        raise DataError(f"{source} must hold a list {key!r}, one label for each of {len(pixels)} images; got {got}")
    odd = next((each for each in labels if type(each) is not int or not 0 <= each < classes), None)
    if odd is not None or None in labels:
        raise DataError(f"{source}: labels must be integers from 0 to {classes - 1}; got {brief(odd)}")
    return np.column_stack([np.array(labels, np.uint8), pixels])


def _four(archive: Path, parts: Mapping[bool, list[NDArray[np.uint8]]], wanted: str) -> Four:
    """Images with their channels last, and labels, for training and for the test."""
    if not parts[True] or not parts[False]:
        raise DataError(f"{archive} holds no training or no test records; wanted {wanted}")
    train, test = np.concatenate(parts[False]), np.concatenate(parts[True])

    def images(records: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))

    return images(train), train[:, 0], images(test), test[:, 0]


def _members(archive: Path, ending: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files of an archive whose names end so."""
    try:
        with tarfile.open(archive) as tar:
            members = sorted(tar.getmembers(), key=lambda each: each.name)
            largest, total = max((each.size for each in members), default=0), sum(each.size for each in members)
            if largest > _LARGEST_FILE or total > 2 * _LARGEST_FILE:
                raise ValueError(f"its files announce {total} bytes, one of them {largest}")
            for member in members:
                file = tar.extractfile(member) if member.name.endswith(ending) and member.isfile() else None
                if file is not None:
                    yield Path(member.name).name, file.read()
    except (
        tarfile.TarError,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        OverflowError,
        RecursionError,
        zlib.error,
    ) as error:
        raise DataError(f"{archive} is damaged or not an archive ({error})") from error
