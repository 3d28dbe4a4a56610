"""Folders as they are published: Tiny-ImageNet, ImageNet-R, FEMNIST and Shakespeare; or one folder per class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedsolve.data import archives, folders, imagenet, leaf
from fedsolve.data.labels import named_classes
from fedsolve.data.table import Table
from fedsolve.errors import ParameterError
from fedsolve.progress import Progress

MOST_COLUMNS = 2**16


@dataclass(frozen=True, slots=True)
class Official:
    """A data set that is known by name: the folders that it may be in, and what is to lie there, in words."""

    folders: tuple[str, ...]
    wanted: str


_LEAF = "with train/*.json and test/*.json, as LEAF's preprocess.sh writes them,"
OFFICIAL: Mapping[str, Official] = MappingProxyType(
    {
        "tiny-imagenet": Official(
            ("tiny-imagenet-200", "tiny-imagenet"),
            "with train/WNID/images, val/images and val/val_annotations.txt, as tiny-imagenet-200.zip holds them,",
        ),
        "imagenet-r": Official(("imagenet-r",), "of pictures (WNID/FILE), as imagenet-r.tar holds them,"),
        "femnist": Official(("femnist",), _LEAF),
        "shakespeare": Official(("shakespeare",), _LEAF),
    }
)


def folders_of(name: str) -> tuple[str, ...]:
    """The folders that a data set of this name may be in."""
    return OFFICIAL[name].folders if name in OFFICIAL else (name,)


def absent(name: str) -> str:
    """What is missing for an official data set that is not here."""
    home, known = archives.folder(), OFFICIAL[name]
    where = f"{home} holds neither" if home else "FEDSOLVE_DATA is not set"
    return (
        f"{name} is not here: put a folder {known.folders[0]} {known.wanted} or {name}.npz (x, y, x_test, y_test) into "
        f"a folder and set FEDSOLVE_DATA to it ({where})"
    )


def columns(kind: str, name: str, argument: str) -> int:
    """How many columns texts are hashed to: `shakespeare:COLUMNS`.

    >>> columns("shakespeare", "shakespeare:256", "256"), columns("shakespeare", "shakespeare", "")
    (256, 1024)
    """
    if kind not in OFFICIAL or not argument:
        return leaf.COLUMNS
    if kind != "shakespeare":
        raise ParameterError(f"data set {kind!r} takes no argument; got {name!r}")
    if not (argument.isascii() and argument.isdecimal() and len(argument) < 10 and 0 < int(argument) <= MOST_COLUMNS):
        raise ParameterError(
            f"data set 'shakespeare' is written shakespeare:COLUMNS, with 1 to {MOST_COLUMNS} columns; got {name!r}"
        )
    return int(argument)


def read(
    root: Path,
    name: str,
    columns: int = leaf.COLUMNS,
    *,
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> Table:
    """The table of a folder, by how it is laid out."""
    if imagenet.is_tiny(root) or name == "tiny-imagenet":
        return _tiny(root, name, skip_broken, progress)
    named = name.partition(":")[0] in ("femnist", "shakespeare")
    if named or (leaf.files(root) and not folders.has_pictures(root)):  # pictures may have notes in JSON beside them
        return _leaf(root, name, columns)
    folder = folders.read(root, skip_broken=skip_broken, progress=progress)
    labels, class_names = named_classes(np.array(folder.classes))
    return Table.make(
        name,
        folder.images,
        labels,
        client=np.array(folder.clients) if folder.clients else None,
        class_names=class_names,
        skipped=folder.skipped,
        layout=folder.layout,
    )


def _tiny(root: Path, name: str, skip_broken: bool, progress: Progress | None) -> Table:
    """Tiny-ImageNet: val is the official test set, since nobody publishes the labels of test."""
    held = imagenet.read(root, skip_broken=skip_broken, progress=progress)
    return Table.make(
        name,
        held.train,
        held.labels,
        test=(held.test, held.test_labels),
        class_names=held.classes,
        skipped=held.skipped,
    )


def _leaf(root: Path, name: str, columns: int) -> Table:
    """A data set of LEAF, whose users are the clients."""
    held = leaf.read(root, columns, texts={"femnist": False, "shakespeare": True}.get(name.partition(":")[0]))
    return Table.make(name, held.inputs, held.labels, client=held.users, class_names=held.classes)
