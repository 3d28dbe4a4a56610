"""The notebooks in examples/ run from top to bottom, and print what is stored in them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def texts(notebook: Any) -> list[str]:
    """What each cell prints and answers, as text, in however many pieces; figures are known by their size alone."""
    outputs = [cell.get("outputs", []) for cell in notebook.cells]
    return [
        "".join(each["text"] if "text" in each else each["data"]["text/plain"] for each in cell) for cell in outputs
    ]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_method", "personal_models"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored_in_it(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(needed, exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that talk to the kernel; those of ours are in the outputs
        nbformat = pytest.importorskip("nbformat")
        from nbclient import NotebookClient

        stored = nbformat.read(path, as_version=4)
        notebook = nbformat.read(path, as_version=4)
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
        for folder in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # nothing is left in the home folder
            monkeypatch.setenv(folder, str(tmp_path / folder))
        NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert texts(notebook) == texts(stored)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert not any(cell.metadata for cell in notebook.cells)
    assert path.stat().st_size < 60_000
