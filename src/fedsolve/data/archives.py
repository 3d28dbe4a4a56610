"""Well-known image sets in their official files: idx (MNIST, Fashion-MNIST) and the binary CIFAR archives.

They are looked for in the folder that $FEDSOLVE_DATA names; nothing is downloaded. The pickled CIFAR archives are not
read: a pickle runs code.
"""

from __future__ import annotations

import gzip
import math
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.errors import DataError

Four: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]
IDX_SETS = {"mnist": "mnist", "fashion-mnist": "fashion_mnist"}
CIFAR_SETS = {"cifar10": "cifar-10-binary.tar.gz", "cifar100": "cifar-100-binary.tar.gz"}
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
    return _idx_set(place) if name in IDX_SETS else _cifar(place, fine=name == "cifar100")


def absent(name: str) -> str:
    """What is missing where a set is not here, or nothing; without reading it."""
    if _place(name) is not None:
        return ""
    home = folder()
    files = (
        f"{IDX_SETS[name]}/ with the four idx files, gzipped or not,"
        if name in IDX_SETS
        else f"{CIFAR_SETS[name]} (the binary version of the official archive)"
    )
    where = f"{home} holds neither" if home else "FEDSOLVE_DATA is not set"
    return f"{name} is not here: put {files} or {name}.npz into a folder and set FEDSOLVE_DATA to it ({where})"


def _place(name: str) -> Path | None:
    """The .npz, the folder of idx files or the archive that holds a set."""
    home = folder()
    if home is not None and (home / f"{name}.npz").is_file():
        return home / f"{name}.npz"
    if name in CIFAR_SETS:
        archive = home / CIFAR_SETS[name] if home else None
        return archive if archive is not None and archive.is_file() else None
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


def _cifar(archive: Path, *, fine: bool) -> Four:
    """Records of one label (CIFAR-100: coarse, then fine) and 3 x 32 x 32 bytes, channels first."""
    head = 2 if fine else 1
    parts: dict[bool, list[NDArray[np.uint8]]] = {True: [], False: []}
    for name, data in _members(archive):
        records = np.frombuffer(data, np.uint8)
        if len(records) % (head + 3072):
            raise DataError(f"{archive} is damaged: {name} is not made of records of {head + 3072} bytes")
        parts["test" in name].append(records.reshape(-1, head + 3072))
    if not parts[True] or not parts[False]:
        raise DataError(f"{archive} holds no training or no test records; wanted the binary version")
    train, test = np.concatenate(parts[False]), np.concatenate(parts[True])

    def images(records: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(records[:, head:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))

    return images(train), train[:, head - 1], images(test), test[:, head - 1]


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(archive) as tar:
            for member in sorted(tar.getmembers(), key=lambda each: each.name):
                file = tar.extractfile(member) if member.name.endswith(".bin") else None
                if member.size > _LARGEST_FILE:
                    raise ValueError(f"one of its files announces {member.size} bytes")
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
