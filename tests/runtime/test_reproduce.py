"""The papers' tables and figures as experiments."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsolve import parameters, reproduce
from fedsolve.errors import UnknownNameError
from fedsolve.methods import method_class
from fedsolve.reproduce.cells import ONNX, published
from fedsolve.reproduce.run import folder_name, seconds_left
from fedsolve.runtime import inprocess
from fedsolve.study.experiment import Settings, method_of

EVERY = [(name, scale) for name in reproduce.RECIPES for scale in reproduce.SCALES]


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_cell_can_be_run_or_says_why_not(name: str, scale: str) -> None:
    recipe = reproduce.create(name, scale)
    assert recipe.cells
    for cell in recipe.cells:
        assert cell.figure in reproduce.FIGURES
        assert (cell.settings is None) == bool(cell.why)
        if cell.settings is not None:
            method_of(cell.settings)  # its parameters exist and are in their domains
    assert len({(cell.row, cell.column) for cell in recipe.cells}) == len(recipe.cells)
    assert any(cell.settings is not None for cell in recipe.cells)


def test_every_results_table_of_every_paper_has_a_recipe() -> None:
    names = [
        (paper.lower(), name.rstrip("0123456789"), name[-1])
        for paper, each in published().items()
        for name in each
        if name != "protocol"
    ]
    expected = {f"{paper}-{number}" if kind == "table" else f"{paper}-{kind}-{number}" for paper, kind, number in names}
    assert {*expected, "fedacnnl-6"} == set(reproduce.RECIPES)  # what the text states of that figure, as a table


def test_figures_of_the_papers_are_where_they_stand_in_them() -> None:
    def paper(name: str, row: str, column: str) -> float | None:
        cells = {(cell.row, cell.column): cell.paper for cell in reproduce.create(name).cells}
        return cells[row, column]

    assert paper("afl-1", "CIFAR-10, alpha = 0.1", "AFL") == 80.75
    assert paper("afl-2", "FedAvg", "alpha = 0.005") == 24.74
    assert paper("afl-3", "K = 1000", "gamma = 100, without RI") == 49.62
    assert paper("fedhip-1", "FedHiP", "CIFAR-100, 100 clients, 1.0") == 60.08
    assert paper("fedhip-2", "Dirichlet 0.5", "alpha = 15") == 64.58
    assert paper("fedhip-3", "Dirichlet 0.1", "beta = 60") == 78.17
    assert paper("apfl-1", "APFL", "CIFAR-100, 50 clients, 0.1") == 80.72
    assert paper("apfl-2", "Dirichlet 0.1, dual", "CIFAR-100, lambda = 0.5") == 79.2
    assert paper("apfl-2", "Dirichlet 1.0, dual", "ImageNet-R, lambda = 0.9") == 19.91
    assert paper("fedapa-1", "FedAPA, 50 clients", "CIFAR-100 alpha=0.01") == 75.09
    assert paper("fedapa-2", "FedAvg", "minutes") == 42.0
    assert paper("fedapa-3", "w/o Clipping", "accuracy") == 83.27
    assert paper("fedapa-4", "FedAPA", "mu = 0.5") == 85.85
    assert paper("fedacnnl-2", "Synthetic-LR", "pFedACnnL") == 88.96
    assert paper("fedacnnl-6", "deep CNN", "FedACnnL") == 70.06


def test_taking_the_ridge_out_is_no_ridge() -> None:
    cells = {(cell.row, cell.column): cell for cell in reproduce.create("afl-3").cells}
    with_it, without = (cells["K = 500", f"gamma = 10, {way} RI"].settings for way in ("with", "without"))
    assert with_it is not None
    assert without is not None
    assert (with_it.set["ridge"], without.set["ridge"]) == (0.0, 5000.0)


def small(**more: Any) -> reproduce.Recipe:
    base = Settings(method="afl", data="digits", clients=4, partition="iid", alone=False)
    cells = (
        reproduce.Cell("AFL", "iid", 90.0, base, seeds=(0, 1)),
        reproduce.Cell("AFL", "pooled", 91.0, base, figure="pooled"),
        reproduce.Cell("FedHiP", "iid", 92.5, replace(base, method="fedhip", set={"alpha": 5.0})),
        reproduce.Cell("FedWho", "iid", 50.0, why="FedWho is not in the catalogue"),
    )
    return reproduce.Recipe("small", "A small table", "On digits.", cells, **more)


def test_a_table_is_run_once_and_written(tmp_path: Path) -> None:
    reported: list[str] = []
    table = reproduce.reproduce(small(), tmp_path, lambda method, *_: reported.append(method))
    assert sorted(reported) == ["afl", "afl", "fedhip"]  # the run that two cells share is one
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("result.json")]
    accuracy = {(each["method"], each["settings"]["seed"]): each["accuracy"] for each in results}
    mean = 50 * (accuracy["afl", 0]["mean"] + accuracy["afl", 1]["mean"])
    assert table.ours["AFL", "iid"] == pytest.approx(mean)
    assert table.ours["AFL", "pooled"] == pytest.approx(100 * accuracy["afl", 0]["pooled"])
    text = (tmp_path / "table.md").read_text()
    assert f"| AFL | 90.00 / {mean:.2f} | 91.00 / " in text
    assert "| FedWho | 50.00 / - |  |" in text
    assert "- not run: FedWho is not in the catalogue" in text
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    again = reproduce.reproduce(small(), tmp_path, lambda *_: None)
    assert again.ours == table.ours
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_a_run_that_fails_leaves_its_cell_empty_and_says_why(tmp_path: Path) -> None:
    broken = reproduce.Cell("X", "y", 1.0, Settings(method="afl", data="digits", clients=4, test="official"))
    recipe = replace(small(), cells=(*small().cells[1:2], broken))
    table = reproduce.reproduce(recipe, tmp_path, lambda *_: None)
    assert list(table.ours) == [("AFL", "pooled")]
    assert "- not run: X, y: digits has no official test set" in (tmp_path / "table.md").read_text()


def test_unknown_recipes_are_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown recipe 'fedhip-9'"):
        reproduce.create("fedhip-9")
    with pytest.raises(UnknownNameError, match="unknown scale"):
        reproduce.create("fedhip-2", "moon")


# --- at the scale `here` ---


@pytest.mark.parametrize("name", reproduce.RECIPES)
def test_what_differs_here_is_said_and_every_method_we_have_is_in_some_column(name: str) -> None:
    here, paper = reproduce.create(name), reproduce.create(name, "paper")
    assert [(cell.row, cell.column, cell.paper) for cell in here.cells] == [
        (cell.row, cell.column, cell.paper) for cell in paper.cells
    ]
    assert here.note != paper.note

    def methods(recipe: reproduce.Recipe) -> set[str]:
        return {run.method for cell in recipe.cells for run in cell.runs()}

    assert methods(here) == methods(paper)


TORCH = importlib.util.find_spec("torch") is not None


def write_data(folder: Path) -> None:
    """Very small sets under the names that recipes look for."""
    rng = np.random.default_rng(0)
    shapes = {"cifar10": (32, 32, 3), "fashion-mnist": (28, 28), "mnist": (28, 28)}
    for name, shape in shapes.items():
        x, x_test = (rng.integers(0, 256, (count, *shape), dtype=np.uint8) for count in (400, 50))
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(400) % 10, x_test=x_test, y_test=np.arange(50) % 10)
    for name, classes in (("cifar10-features", 10), ("cifar100-features", 100)):
        rows, more = rng.standard_normal((600, 16)), rng.standard_normal((100, 16))
        y, y_test = np.arange(600) % classes, np.arange(100) % classes
        np.savez(folder / f"{name}.npz", x=rows, y=y, x_test=more, y_test=y_test)


@cache
def table_methods() -> frozenset[str]:
    """The methods that some table has a run of."""
    tables = [recipe for recipe in reproduce.chosen("all") if recipe.drawing is None]
    return frozenset(run.method for recipe in tables for run in reproduce.distinct(recipe))


SMALLER = {"network": "dcnn:0.01", "model": "dcnn:4,4,4,4"}  # the deep network takes long on any data


@cache
def started_before() -> dict[str, frozenset[str]]:
    """By recipe, the methods that a table of the same paper before it has runs of already."""
    seen: dict[str, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for name in reproduce.RECIPES:
        recipe, paper = reproduce.create(name), name.partition("-")[0]
        found[name] = seen.get(paper, frozenset())
        if recipe.drawing is None:
            seen[paper] = found[name] | {run.method for run in reproduce.distinct(recipe)}
    return found


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", reproduce.RECIPES)
def test_every_recipe_starts(name: str, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell per method of the table, on very small data, one round of what takes several.

    Of a figure two methods that start with a table already are enough, and if it is not to be whole, of any recipe one
    that starts with a table of the same paper.
    """
    write_data(tmp_path)
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    monkeypatch.setattr(inprocess, "cores", lambda: 1)  # to fork takes longer than so little training
    recipe = reproduce.create(name)
    cells = {}
    for cell in recipe.cells:
        if cell.settings is None or not (TORCH or method_class(cell.settings.method, cell.settings.set).closed_form):
            continue
        if cell.settings.method not in cells:
            brief: dict[str, Any] = {"rounds": 1} if "rounds" in cell.settings.set else {}
            brief |= {"d_primary": 32, "d_refine": 32} if cell.settings.method == "apfl" else {}
            brief |= {name: text for name, text in SMALLER.items() if "dcnn" in str(cell.settings.set.get(name))}
            clients = cell.settings.clients if cell.settings.partition == "by-client" else 5
            settings = replace(cell.settings, clients=clients, set={**cell.settings.set, **brief}, eval_every=1)
            cells[settings.method] = replace(cell, settings=settings)
    if recipe.drawing is not None:
        before = [method for method in cells if method in table_methods()]
        cells = {method: cell for method, cell in cells.items() if method not in before[2:]}
    if not whole:
        before = [method for method in cells if method in started_before()[name]]
        cells = {method: cell for method, cell in cells.items() if method not in before[1:]}
    if not cells:
        pytest.skip("every method of this table needs torch: pip install 'fedsolve[torch]'")
    table = reproduce.reproduce(replace(recipe, cells=tuple(cells.values())), tmp_path / "out", lambda *_: None)
    assert table.failures == {}
    assert set(table.ours) == {(cell.row, cell.column) for cell in cells.values()}


def test_baselines_of_fedacnnl_descend_on_the_network_of_their_row() -> None:
    cells = [cell for cell in reproduce.create("fedacnnl-2").cells if cell.settings and "model" in cell.settings.set]
    assert {cell.settings.method for cell in cells if cell.settings} == {"pfedme", "pfedzo"}
    for cell in cells:
        assert cell.settings is not None
        assert cell.settings.set["model"] == ("lr" if cell.row.endswith("LR") else "mlp:128,64")
        assert cell.settings.set["rounds"] == cell.settings.eval_every == 10


def test_features_made_before_come_first_then_onnx_then_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sources() -> set[tuple[str, str]]:
        cells = reproduce.create("afl-4").cells
        return {(cell.settings.data, cell.settings.features) for cell in cells if cell.settings is not None}

    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    assert sources() == {("cifar10", "efficientnet-lite0"), ("cifar100", "efficientnet-lite0")}
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    (tmp_path / ONNX).touch()
    assert sources() == {(name, f"onnx:{tmp_path / ONNX}") for name in ("cifar10", "cifar100")}
    (tmp_path / "cifar100-features.npz").touch()
    assert ("cifar100-features", "identity") in sources()


# --- what is lacking, what is shared, what is left ---


def test_what_is_lacking_is_said_once_and_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    absent = Settings(method="afl", data="cifar10", clients=4, alone=False)
    more = [reproduce.Cell("AFL", column, 1.0, absent, seeds=(seed,)) for seed, column in enumerate("ab")]
    recipe = replace(small(), cells=(*small().cells, *more))
    ((reason, count),) = reproduce.lacking(recipe).items()
    assert count == 2
    assert reason.startswith("cifar10 is not here: put cifar-10-binary.tar.gz")
    assert "FEDSOLVE_DATA" in reason
    reported: list[str] = []
    table = reproduce.reproduce(recipe, tmp_path, lambda method, *_: reported.append(method))
    assert sorted(reported) == ["afl", "afl", "fedhip"]  # what cannot be is not tried
    assert table.markdown().count("cifar10 is not here") == 1
    assert reproduce.lacking(small()) == {}


def test_recipes_that_share_a_folder_share_their_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = reproduce.reproduce(small(), tmp_path / "one", lambda *_: None, runs=runs)
    stamps = {path: path.stat().st_mtime_ns for path in runs.rglob("result.json")}
    again = reproduce.reproduce(replace(small(), name="other"), tmp_path / "two", lambda *_: None, runs=runs)
    assert again.ours == first.ours
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("result.json")} == stamps
    assert (tmp_path / "two" / "table.md").is_file()
    assert not (tmp_path / "two" / "runs").exists()


def test_all_is_every_recipe() -> None:
    assert [recipe.name for recipe in reproduce.chosen("all")] == list(reproduce.RECIPES)
    assert [recipe.name for recipe in reproduce.chosen("afl-2", "paper")] == ["afl-2"]


def test_the_time_left_is_that_of_the_runs_of_the_same_method() -> None:
    runs = [Settings(method="afl"), Settings(method="fedavg"), Settings(method="fedapa")]
    assert seconds_left(runs, {"afl": [1.0, 3.0], "fedavg": [20.0]}) == pytest.approx(2 + 20 + 8)
    assert seconds_left(runs[:0], {"afl": [1.0]}) == 0.0


def test_runs_that_differ_in_anything_have_places_of_their_own() -> None:
    base = Settings(method="afl", data="digits", clients=4)
    others: list[dict[str, Any]] = [
        {"limit": 5},
        {"test": "global"},
        {"seed": 1},
        {"set": {"ridge": 2.0}},
        {"features": "unit"},
    ]
    places = {folder_name(base), *(folder_name(replace(base, **other)) for other in others)}
    assert len(places) == 1 + len(others)


def applies(entry: Mapping[str, Any], name: str, cell: reproduce.Cell) -> bool:
    """Whether a line of a paper's protocol is about a cell of a recipe."""
    assert cell.settings is not None
    closed = method_class(cell.settings.method, cell.settings.set).closed_form
    about = (None, cell.settings.method, "solved" if closed else "trained")
    return name in entry.get("recipes", [name]) and entry.get("methods") in about


def otherwise(name: str, recipe: reproduce.Recipe) -> list[str]:
    """What a recipe does otherwise than its paper's protocol without saying so, or says and does not do."""
    paper = next(each for each in published() if each.lower() == name.partition("-")[0])
    faults = []
    for entry in published()[paper]["protocol"]["stated"]:
        assert entry["where"]
        cells = [cell for cell in recipe.cells if applies(entry, name, cell)]
        differing = []
        for cell in cells:
            assert cell.settings is not None
            around = {**vars(cell.settings), **parameters.values(method_of(cell.settings))}
            told = {**around, "seeds": len(cell.seeds), "figure": cell.figure}
            if told.get(entry["setting"]) not in entry["values"]:
                differing.append(f"{cell.row}, {cell.column}: {entry['setting']} is {told.get(entry['setting'])!r}")
        sentence = entry.get("differs", {}).get(name, "")
        if sentence and (sentence not in recipe.note or not differing):
            faults.append(f"told and not so, or the other way round: {sentence}")
        faults += [] if sentence else differing
    return faults + [each for each in published()[paper]["protocol"]["unstated"] if each not in recipe.note]


@pytest.mark.parametrize("name", list(reproduce.RECIPES))
def test_a_recipe_keeps_the_protocol_of_its_paper_or_its_note_says_what_differs(name: str) -> None:
    assert otherwise(name, reproduce.create(name, "paper")) == []


def test_every_line_of_a_protocol_is_about_some_cell() -> None:
    for paper in published():
        cells = [
            (name, cell)
            for name in reproduce.RECIPES
            if name.startswith(f"{paper.lower()}-")
            for cell in reproduce.create(name, "paper").cells
        ]
        for entry in published()[paper]["protocol"]["stated"]:
            assert any(applies(entry, name, cell) for name, cell in cells), entry
            assert set(entry.get("differs", {})) <= set(entry.get("recipes", reproduce.RECIPES))


@pytest.mark.parametrize(
    ("name", "defect"),
    [
        ("afl-1", lambda cell: replace(cell, seeds=(0,))),
        ("afl-2", lambda cell: replace(cell, figure="mean")),
        ("afl-3", lambda cell: replace(cell, seeds=(0, 1, 2))),
        ("fedhip-1", lambda cell: replace(cell, settings=replace(cell.settings, test="official"))),
        ("apfl-1", lambda cell: replace(cell, settings=replace(cell.settings, clients=20))),
        ("apfl-2", lambda cell: replace(cell, settings=replace(cell.settings, features="efficientnet-lite0"))),
        ("fedapa-1", lambda cell: replace(cell, settings=replace(cell.settings, participation="1"))),
        ("fedapa-2", lambda cell: replace(cell, seeds=(0,))),
        ("fedacnnl-2", lambda cell: replace(cell, settings=replace(cell.settings, clients=20))),
    ],
)
def test_a_recipe_that_leaves_its_protocol_is_found(name: str, defect: Any) -> None:
    recipe = reproduce.create(name, "paper")
    assert otherwise(name, replace(recipe, cells=tuple(map(defect, recipe.cells)))) != []
    assert otherwise(name, replace(recipe, note="")) != []


@pytest.mark.parametrize("name", list(reproduce.RECIPES))
def test_every_cell_of_every_table_has_a_run_at_the_papers_scale(name: str) -> None:
    assert [cell.why for cell in reproduce.create(name, "paper").cells if cell.settings is None] == []


def test_figures_of_a_result() -> None:
    """Bytes of a round are those of a client that takes part, without the last download; the best round is pooled."""
    line = {"bytes_up": 8 * 1024, "bytes_down": 8 * 1024, "missing": ["d"], "metrics": {"accuracy": {"pooled": 0.9}}}
    last = {**line, "bytes_down": 80 * 1024, "metrics": {"accuracy": {"pooled": 0.8}}}
    result = {"history": [line, line, last], "clients": dict.fromkeys("abcd"), "rounds": 3}
    assert reproduce.FIGURES["KB a round and client"](result) == pytest.approx(16 / 3)
    assert reproduce.FIGURES["best round"](result) == pytest.approx(90.0)
