"""Features that take time are computed once: kept on disk under the content of the inputs and the map's identity.

In blocks of rows, so that a stopped extraction goes on where it was and added data alone are extracted. The folder is
$FEDSOLVE_CACHE, or fedsolve below $XDG_CACHE_HOME or ~/.cache; an empty FEDSOLVE_CACHE turns the cache off.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsolve import codec, disk
from fedsolve.arrays import Array
from fedsolve.errors import DataError
from fedsolve.features.backbone import Backbone
from fedsolve.features.cells import Cells
from fedsolve.features.columns import Columns
from fedsolve.features.images import Inputs
from fedsolve.features.maps import Chain, FeatureMap
from fedsolve.features.patches import Patches
from fedsolve.progress import Progress

ROWS = 1024  # of a block: some seconds of work


def folder() -> Path | None:
    """Where things that took time are kept; None: nowhere."""
    named = os.environ.get("FEDSOLVE_CACHE")
    if named is not None:
        return Path(named) if named else None
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fedsolve"


def extract(
    features: FeatureMap, inputs: Inputs | Cells, progress: Progress | None = None, *, keep: bool = True
) -> Array:
    """The features of inputs; those that take time from the cache, and into it, unless told not to `keep` them."""
    if isinstance(features, Chain):
        for each in features.maps:
            inputs = extract(each, inputs, progress, keep=keep)
        return np.asarray(inputs)
    if isinstance(inputs, Cells):
        if isinstance(features, Columns):
            return features(inputs)
        inputs = np.asarray(inputs)
    if not isinstance(features, Backbone | Patches):
        return features(np.asarray(inputs))
    home, total = folder() if keep else None, len(inputs)
    width = features.width if isinstance(features, Backbone) else features.recipe.size
    result = np.empty((total, width), features.precision(inputs) if isinstance(features, Patches) else np.float32)
    meter = _Meter(progress, total)
    for start in range(0, total, ROWS):
        part, block = inputs[start : start + ROWS], result[start : start + ROWS]
        path = home / "features" / f"{_key(features, part)}.safetensors" if home else None
        rows = None if path is None else _read(path, block)
        if rows is None:
            rows = features(part, meter.at(start))
            if path is not None:
                disk.private_folder(path.parent)
                codec.write_file(path, {"features": rows}, {"identity": features.identity})
        block[:] = rows
    return result


def _key(features: Backbone | Patches, inputs: Inputs) -> str:
    digest = hashlib.blake2b(features.identity.encode(), digest_size=20)
    if isinstance(inputs, np.ndarray):
        digest.update(f"{inputs.dtype} {inputs.shape}".encode())
        digest.update(np.ascontiguousarray(inputs).data)
    else:
        digest.update(inputs.digest())
    return digest.hexdigest()


def _read(path: Path, like: Array) -> Array | None:
    """The features in a file, if it is there and whole."""
    if not path.is_file():
        return None
    try:
        rows = codec.read_file(path)[0].get("features")
    except DataError:
        return None  # damaged: computed and written again
    return rows if rows is not None and (rows.shape, rows.dtype) == (like.shape, like.dtype) else None


class _Meter:
    """Tells how many pictures are done, and how many per second."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._worked, self._started = progress, total, 0, 0.0

    def at(self, start: int) -> Callable[[int], None]:
        """What to call with the number of pictures done behind `start`."""
        before, begun = self._worked, time.perf_counter()
        self._started = self._started or begun

        def tick(count: int) -> None:
            self._worked = before + count
            rate = self._worked / (time.perf_counter() - self._started)
            if self._progress:
                self._progress(f"features, {rate:.0f} images/s", start + count, self._total)

        return tick
