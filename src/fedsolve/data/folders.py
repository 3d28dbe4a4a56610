"""Pictures in folders, one folder per class: listed, looked at once, and read when they are needed."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsolve import disk
from fedsolve.errors import DataError
from fedsolve.features import cache
from fedsolve.features.images import Picture
from fedsolve.progress import Progress

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SHOWN = 10  # broken files named in a message


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures in files. A file that changes after it was looked at is refused when it is read."""

    files: tuple[Path, ...]
    digests: tuple[str, ...]  # of their content

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"Images({len(self)} pictures)"

    def __iter__(self) -> Iterator[Picture]:
        for path, digest in zip(self.files, self.digests, strict=True):
            try:
                data = path.read_bytes()
                picture = decode(data)
            except (BrokenImage, OSError) as error:
                raise DataError(f"{path} cannot be read: {error}") from error
            if hashlib.sha256(data).hexdigest() != digest:
                raise DataError(f"{path} was changed while it was used; run again")
            yield picture

    def __getitem__(self, rows: slice) -> Images:
        return Images(self.files[rows], self.digests[rows])

    def take(self, rows: NDArray[np.int64]) -> Images:
        """The pictures in these rows."""
        return Images(tuple(self.files[row] for row in rows), tuple(self.digests[row] for row in rows))

    def digest(self) -> bytes:
        """The digest of the content of all pictures."""
        return hashlib.sha256("".join(self.digests).encode()).digest()

    def stacked(self) -> Picture:
        """All in one array, if they have one size."""
        return stacked([str(path) for path in self.files], self)


@dataclass(frozen=True, eq=False)
class Folder:
    """What a folder of pictures holds."""

    images: Images
    classes: tuple[str, ...]  # of each picture
    clients: tuple[str, ...]  # of each picture, where there is one folder per client
    skipped: tuple[str, ...]  # broken files and what is wrong with them
    layout: str  # how classes were read from folders, in words

    def __repr__(self) -> str:
        return f"Folder({len(self.images)} pictures, {len(set(self.classes))} classes, {len(self.skipped)} skipped)"


def has_pictures(root: Path) -> bool:
    """Whether there is a folder with a picture somewhere in it."""
    return any(path.suffix.lower() in ENDINGS for path in root.rglob("*"))


def find(root: Path) -> list[Path]:
    """All pictures below a folder, in the order of their names."""
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not files:
        raise DataError(f"{root} holds no pictures ({', '.join(ENDINGS)})")
    return files


def read(root: Path, *, skip_broken: bool = False, progress: Progress | None = None) -> Folder:
    """The pictures below a folder: CLASS/FILE, or CLIENT/CLASS/FILE for natural clients."""
    files = find(root)
    depths = {len(path.relative_to(root).parts) for path in files}
    if depths not in ({2}, {3}):
        levels = " and ".join(str(depth - 1) for depth in sorted(depths))
        raise DataError(
            f"{root} must hold one folder per class with pictures in it, or one folder per client with such folders; "
            f"its pictures lie {levels} folders deep"
        )
    images, skipped = look(root, files, skip_broken=skip_broken, progress=progress)
    places = [path.relative_to(root).parts for path in images.files]
    return Folder(
        images,
        classes=tuple(parts[-2] for parts in places),
        clients=tuple(parts[0] for parts in places) if depths == {3} else (),
        skipped=skipped,
        layout=_layout(places[0]),
    )


def _layout(place: tuple[str, ...]) -> str:
    """How the class of a picture at this place was read, and how to mend a folder that is laid out otherwise."""
    pattern, way = "CLASS/FILE", "give each class a folder of its own"
    if len(place) == 3:
        pattern, way = "CLIENT/CLASS/FILE", f"if {place[0]!r} is a class, move its pictures up to {place[0]}/FILE"
    return f"folders of pictures are read as {pattern}, so {'/'.join(place)} is of class {place[-2]!r}; {way}"


def look(
    root: Path, files: Sequence[Path], *, skip_broken: bool = False, progress: Progress | None = None
) -> tuple[Images, tuple[str, ...]]:
    """The pictures that can be read, and the names of those that cannot, with what is wrong.

    Each is decoded once for that; it is remembered until a file changes.
    """
    outcome = list(zip(files, _looked_at(root, files, progress), strict=True))
    skipped = tuple(f"{path.relative_to(root)} ({said})" for path, (digest, said) in outcome if not digest)
    if len(skipped) == len(files) or (skipped and not skip_broken):
        more = f" and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
        raise DataError(
            f"{len(skipped)} of {len(files)} pictures in {root} cannot be read: {', '.join(skipped[:SHOWN])}{more}; "
            "mend or remove them, or leave them out with --skip-broken"
        )
    good = [(path, digest) for path, (digest, _) in outcome if digest]
    return Images(tuple(path for path, _ in good), tuple(digest for _, digest in good)), skipped


def stacked(names: Sequence[str], pictures: Iterable[Picture]) -> Picture:
    """Pictures of one size in one array."""
    rows: list[Picture] = []
    for name, picture in zip(names, pictures, strict=True):
        if rows and picture.shape != rows[0].shape:
            (h, w), (high, wide) = rows[0].shape[:2], picture.shape[:2]
            raise DataError(
                f"pictures of different sizes ({names[0]} {w} x {h}, {name} {wide} x {high}) need a feature map that "
                "takes them, as in --features onnx:FILE or --features efficientnet-lite0"
            )
        rows.append(picture)
    return np.stack(rows)


class BrokenImage(Exception):
    """A picture that cannot be decoded."""


def decode(data: bytes) -> Picture:
    """The picture in the bytes of a file: upright, with three channels of bytes; 16-bit ones are brought to 8."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise DataError("reading pictures needs Pillow: pip install 'fedsolve[images]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # larger than a picture should be
            with Image.open(io.BytesIO(data)) as picture:
                upright = ImageOps.exif_transpose(picture)
        if upright.mode.startswith("I"):  # 16 or 32 bits of grey, as scanners write them
            values = np.asarray(upright).astype(np.float64)
            grey = (values / (257.0 if values.max(initial=0) > 255 else 1.0)).clip(0, 255).astype(np.uint8)
            return np.repeat(grey[..., None], 3, axis=2)
        return np.asarray(upright.convert("RGB"))
    except UnidentifiedImageError as error:
        raise BrokenImage("not a picture" if data else "empty") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, Image.DecompressionBombError) as error:
        raise BrokenImage(" ".join(str(error).split())[:100] or type(error).__name__) from error
    except Image.DecompressionBombWarning as error:
        raise BrokenImage("more pixels than a picture should have") from error


def _looked_at(root: Path, files: Sequence[Path], progress: Progress | None) -> list[tuple[str, str]]:
    """For each file the digest of its content, or what is wrong with it."""
    stamps = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(json.dumps([str(root.resolve()), stamps]).encode()).hexdigest()[:40]
    home = cache.folder()
    notes = home / "folders" / f"{key}.json" if home else None
    if notes is not None and notes.is_file():
        try:
            outcomes = [(str(digest), str(fault)) for digest, fault in json.loads(notes.read_text())]
            if len(outcomes) == len(files):
                return outcomes
        except (ValueError, TypeError):
            pass  # damaged: looked at again
    outcomes = []
    with ThreadPoolExecutor() as pool:
        for done, outcome in enumerate(pool.map(_look, files), 1):
            outcomes.append(outcome)
            if progress and (done % 100 == 0 or done == len(files)):
                progress("looking at pictures", done, len(files))
    if notes is not None:
        disk.private_folder(notes.parent)
        disk.write_bytes(notes, json.dumps(outcomes).encode())
    return outcomes


def _look(path: Path) -> tuple[str, str]:
    try:
        data = path.read_bytes()
        decode(data)
        return hashlib.sha256(data).hexdigest(), ""
    except BrokenImage as error:
        return "", str(error)
