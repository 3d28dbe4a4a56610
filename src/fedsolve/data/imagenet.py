"""Tiny-ImageNet as it is published: train/WNID/images, and val/images with a file of annotations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsolve.data.folders import ENDINGS, Images, look
from fedsolve.errors import DataError, plain
from fedsolve.progress import Progress

ANNOTATIONS = "val/val_annotations.txt"
CLASSES = "wnids.txt"
_LARGEST_LIST = 2**24  # bytes of a file of names: the official one has 0.4 MB


@dataclass(frozen=True, eq=False)
class TinyImageNet:
    """The pictures for training and for the test, each with the number of its class."""

    classes: tuple[str, ...]  # WNIDs, in their order
    train: Images
    labels: tuple[int, ...]
    test: Images
    test_labels: tuple[int, ...]
    skipped: tuple[str, ...]  # broken files and what is wrong with them

    def __repr__(self) -> str:
        return f"TinyImageNet({len(self.train)} + {len(self.test)} pictures, {len(self.classes)} classes)"


def is_tiny(root: Path) -> bool:
    """Whether a folder is laid out so."""
    return (root / ANNOTATIONS).is_file() and any(root.glob("train/*/images"))


def read(root: Path, *, skip_broken: bool = False, progress: Progress | None = None) -> TinyImageNet:
    """The pictures of both halves, looked at once and read when they are needed."""
    train = _pictures(root, "train/*/images/*")
    classes = _classes(root, sorted({_wnid(root, path) for path in train}))
    numbers = {wnid: number for number, wnid in enumerate(classes)}
    test = _pictures(root, "val/images/*")
    noted = _annotations(root, numbers)
    missing = sorted({path.name for path in test} ^ set(noted))
    if missing:
        what = "has no line for" if missing[0] not in noted else "has a line for a picture that is not there,"
        raise DataError(f"{root / ANNOTATIONS} {what} {plain(missing[0], 80)!r} ({len(missing)} in all); mend the copy")
    kept, skipped = look(root, train, skip_broken=skip_broken, progress=progress)
    tested, left = look(root, test, skip_broken=skip_broken, progress=progress)
    return TinyImageNet(
        classes,
        kept,
        tuple(numbers[_wnid(root, path)] for path in kept.files),
        tested,
        tuple(noted[path.name] for path in tested.files),
        skipped + left,
    )


def _pictures(root: Path, pattern: str) -> list[Path]:
    files = sorted(path for path in root.glob(pattern) if path.suffix.lower() in ENDINGS and path.is_file())
    if not files:
        raise DataError(f"{root} holds no pictures {pattern}; wanted the official layout of Tiny-ImageNet")
    return files


def _wnid(root: Path, path: Path) -> str:
    return path.relative_to(root).parts[1]


def _classes(root: Path, seen: list[str]) -> tuple[str, ...]:
    """The classes of wnids.txt where it is there, which must be those that are seen."""
    if not (root / CLASSES).is_file():
        return tuple(seen)
    told = {line.strip() for _, line in _lines(root / CLASSES)}
    odd = sorted(told ^ set(seen))
    if odd:
        what = (
            "names the class {}, of which train holds no picture" if odd[0] in told else "lacks the class {} of train"
        )
        raise DataError(f"{root / CLASSES} {what.format(repr(plain(odd[0], 80)))}; mend the copy")
    return tuple(seen)


def _annotations(root: Path, numbers: dict[str, int]) -> dict[str, int]:
    """The class of each picture of the test: lines of file, WNID and the four sides of a box, between tabs."""
    path, noted = root / ANNOTATIONS, dict[str, int]()
    for number, line in _lines(path):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(
                f"{path}, line {number}: wanted FILE, WNID and a box, between tabs; got {plain(line, 80)!r}"
            )
        file, wnid = fields[0].strip(), fields[1].strip()
        if wnid not in numbers:
            raise DataError(f"{path}, line {number}: unknown class {plain(wnid, 80)!r}; train has no folder of it")
        if file in noted:
            raise DataError(f"{path}, line {number}: {plain(file, 80)!r} stands there twice")
        noted[file] = numbers[wnid]
    return noted


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_LIST + 1)
        if len(data) > _LARGEST_LIST:
            raise DataError(f"{path} has more than {_LARGEST_LIST} bytes; wanted a list of names")
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise DataError(f"{path} is not a text in UTF-8") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line
