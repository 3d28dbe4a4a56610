"""The real data of the accuracy tables."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def arrays(name: str) -> dict[str, NDArray[Any]]:
    """What $FEDSOLVE_DATA/NAME.npz holds: x and y; x_test and y_test, or the client of each row."""
    path = Path(os.environ.get("FEDSOLVE_DATA", ".")) / f"{name}.npz"
    if not path.is_file():
        sys.exit(f"no real data: set FEDSOLVE_DATA to a folder with {name}.npz (looked at {path.parent.absolute()})")
    with np.load(path) as found:
        return {key: found[key] for key in found.files}
