"""The papers' tables as experiments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsolve import recipes
from fedsolve.errors import UnknownNameError
from fedsolve.experiment import Settings, method_of

EVERY = [(name, scale) for name in recipes.RECIPES for scale in recipes.SCALES]


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_cell_can_be_run_or_says_why_not(name: str, scale: str) -> None:
    recipe = recipes.create(name, scale)
    assert recipe.cells
    for cell in recipe.cells:
        assert cell.figure in recipes.FIGURES
        assert (cell.settings is None) == bool(cell.why)
        if cell.settings is not None:
            method_of(cell.settings)  # its parameters exist and are in their domains
    assert len({(cell.row, cell.column) for cell in recipe.cells}) == len(recipe.cells)
    assert any(cell.settings is not None for cell in recipe.cells)


def test_every_results_table_of_every_paper_has_a_recipe() -> None:
    tables = {f"{paper.lower()}-{table[5:]}" for paper, found in recipes._papers().items() for table in found}
    assert tables == set(recipes.RECIPES)


def test_figures_of_the_papers_are_where_they_stand_in_them() -> None:
    def paper(name: str, row: str, column: str) -> float | None:
        cells = {(cell.row, cell.column): cell.paper for cell in recipes.create(name).cells}
        return cells[row, column]

    assert paper("afl-1", "CIFAR-10, alpha = 0.1", "AFL") == 80.75
    assert paper("afl-2", "FedAvg", "alpha = 0.005") == 24.74
    assert paper("afl-3", "K = 1000", "gamma = 100, without RI") == 49.62
    assert paper("fedhip-1", "FedHiP", "CIFAR-100, 100 clients, 1.0") == 60.08
    assert paper("fedhip-2", "Dirichlet 0.5", "alpha = 15") == 64.58
    assert paper("fedhip-3", "Dirichlet 0.1", "beta = 60") == 78.17
    assert paper("apfl-1", "APFL", "CIFAR-100, 50 clients, 0.1") == 80.72
    assert paper("apfl-2", "Dirichlet 0.1, dual", "lambda = 0.5") == 79.2
    assert paper("fedapa-1", "FedAPA, 50 clients", "CIFAR-100 alpha=0.01") == 75.09
    assert paper("fedapa-2", "FedAvg", "minutes") == 42.0
    assert paper("fedapa-3", "w/o Clipping", "accuracy") == 83.27
    assert paper("fedapa-4", "FedAPA", "mu = 0.5") == 85.85
    assert paper("fedacnnl-2", "Synthetic-LR", "pFedACnnL") == 88.96


def test_taking_the_ridge_out_is_no_ridge() -> None:
    cells = {(cell.row, cell.column): cell for cell in recipes.create("afl-3").cells}
    with_it, without = (cells["K = 500", f"gamma = 10, {way} RI"].settings for way in ("with", "without"))
    assert with_it is not None
    assert without is not None
    assert (with_it.set["ridge"], without.set["ridge"]) == (0.0, 5000.0)


def small(**more: Any) -> recipes.Recipe:
    base = Settings(method="afl", data="digits", clients=4, partition="iid", alone=False)
    cells = (
        recipes.Cell("AFL", "iid", 90.0, base, seeds=(0, 1)),
        recipes.Cell("AFL", "pooled", 91.0, base, figure="pooled"),
        recipes.Cell("FedHiP", "iid", 92.5, replace(base, method="fedhip", set={"alpha": 5.0})),
        recipes.Cell("FedWho", "iid", 50.0, why="FedWho is not in the catalogue"),
    )
    return recipes.Recipe("small", "A small table", "On digits.", cells, **more)


def test_a_table_is_run_once_and_written(tmp_path: Path) -> None:
    told: list[str] = []
    outcome = recipes.reproduce(small(), tmp_path, lambda method, *_: told.append(method))
    assert sorted(told) == ["afl", "afl", "fedhip"]  # the run that two cells share is one
    found = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("result.json")]
    own = {(each["method"], each["settings"]["seed"]): each for each in found}
    wanted = 50 * (own["afl", 0]["accuracy"]["mean"] + own["afl", 1]["accuracy"]["mean"])
    assert outcome.ours["AFL", "iid"] == pytest.approx(wanted)
    assert outcome.ours["AFL", "pooled"] == pytest.approx(100 * own["afl", 0]["accuracy"]["pooled"])
    text = (tmp_path / "table.md").read_text()
    assert f"| AFL | 90.00 / {wanted:.2f} | 91.00 / " in text
    assert "| FedWho | 50.00 / - |  |" in text
    assert "- not run: FedWho is not in the catalogue" in text
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    again = recipes.reproduce(small(), tmp_path, lambda *_: None)
    assert again.ours == outcome.ours
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_a_run_that_fails_leaves_its_cell_empty_and_says_why(tmp_path: Path) -> None:
    broken = recipes.Cell("X", "y", 1.0, Settings(method="afl", data="digits", clients=4, test="official"))
    recipe = replace(small(), cells=(*small().cells[1:2], broken))
    outcome = recipes.reproduce(recipe, tmp_path, lambda *_: None)
    assert list(outcome.ours) == [("AFL", "pooled")]
    assert "- not run: X, y: digits has no official test set" in (tmp_path / "table.md").read_text()


def test_unknown_recipes_are_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown recipe 'fedhip-9'"):
        recipes.create("fedhip-9")
    with pytest.raises(UnknownNameError, match="unknown scale"):
        recipes.create("fedhip-2", "moon")
