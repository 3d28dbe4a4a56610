"""The real data of the accuracy tables."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "shared" / "data"


def loaders() -> ModuleType:
    """The loaders of the real data, from $FEDSOLVE_DATA or ../shared/data beside the project."""
    path = Path(os.environ.get("FEDSOLVE_DATA", FOLDER)) / "loaders.py"
    if not path.is_file():
        sys.exit(f"no real data: set FEDSOLVE_DATA to a folder with loaders.py (looked at {path.parent})")
    spec = importlib.util.spec_from_file_location("loaders", path)
    if spec is None or spec.loader is None:
        sys.exit(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
