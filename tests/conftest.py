"""Fixtures: small random federations, and the real data where it is there."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import fedsolve as fs
from fedsolve.features.cells import Cells

settings.register_profile("default", deadline=None, max_examples=40)
settings.load_profile("default")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def real_data() -> ModuleType:
    """The loaders of the real data, from the folder that $FEDSOLVE_DATA names."""
    folder = os.environ.get("FEDSOLVE_DATA")
    if not folder:
        pytest.skip("no real data: FEDSOLVE_DATA is not set to a folder with loaders.py")
    path = Path(folder) / "loaders.py"
    if not path.is_file():
        pytest.skip(f"no real data: FEDSOLVE_DATA names {folder}, which has no loaders.py")
    spec = importlib.util.spec_from_file_location("loaders", path)
    if spec is None or spec.loader is None:
        pytest.skip(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unsealed(path: Path) -> dict[str, Any]:
    """The content of a result.json without its digest, to be changed and written again as anybody might."""
    content: dict[str, Any] = json.loads(path.read_text())
    content.pop("digest", None)
    return content


def numbers(table: fs.Table) -> np.ndarray:
    """The inputs of a table that holds numbers and not pictures in files."""
    assert isinstance(table.inputs, np.ndarray | Cells)
    return np.asarray(table.inputs)


def pooled(federation: fs.Federation) -> tuple[Any, Any]:
    """All training data of a federation in one place, targets one-hot."""
    x = np.concatenate([c.train.inputs.reshape(len(c.train), -1) for c in federation.clients.values()])
    y = np.concatenate([c.train.labels for c in federation.clients.values()])
    return x.astype(np.float64), np.eye(federation.task.classes)[y]


def relative(found: Any, wanted: Any) -> float:
    """Relative distance of two matrices."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
