"""The papers' figures: every one has a recipe, and what is drawn is what the runs and the papers say."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsolve import disk, reproduce
from fedsolve.methods import CATALOGUE
from fedsolve.report import charts
from fedsolve.report.charts import Bars, Curves
from fedsolve.reproduce.cells import published
from fedsolve.reproduce.drawing import Claim, Costs, Course, Drawing, Places, client_seconds, fill
from fedsolve.study import compare, experiment
from fedsolve.study.experiment import Settings

# How many figures each paper has, and those that show no results: diagrams of a design or of an idea.
FIGURES = {"afl": 3, "fedhip": 5, "apfl": 6, "fedapa": 2, "fedacnnl": 6}
SCHEMATIC = {
    "afl": {1: "overview of AFL"},
    "fedhip": {1: "data heterogeneity", 2: "gradients that point apart", 3: "the design of FedHiP"},
    "apfl": {1: "data heterogeneity", 2: "the design of APFL"},
    "fedapa": {1: "framework of FedAPA"},
    "fedacnnl": {1: "resampling of a convolution", 2: "workflow of ACnnL", 3: "overview of pFedACnnL"},
}
DRAWN = [name for name in reproduce.RECIPES if "figure" in name]


def test_every_results_figure_has_a_recipe_and_every_other_a_reason() -> None:
    results = {
        f"{paper}-figure-{number}"
        for paper, count in FIGURES.items()
        for number in range(1, count + 1)
        if number not in SCHEMATIC[paper]
    }
    assert results == set(DRAWN)
    assert all(max(SCHEMATIC[paper]) <= count and all(SCHEMATIC[paper].values()) for paper, count in FIGURES.items())


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("scale", reproduce.SCALES)
def test_panels_show_cells_that_there_are_and_claims_speak_of_their_rows(name: str, scale: str) -> None:
    recipe = reproduce.create(name, scale)
    assert recipe.drawing is not None
    for panel in recipe.drawing.panels:
        columns = panel.places.keys() if isinstance(panel, Places) else {panel.column}
        assert columns <= set(recipe.columns)
    for claim in recipe.drawing.claims:
        assert {claim.saver, *claim.rivals} <= set(recipe.rows)
        assert claim.rivals
        assert claim.saver not in claim.rivals
        assert 0 < claim.percent < 100
    assert recipe.drawing.where


@pytest.mark.parametrize("name", DRAWN)
def test_curves_have_more_than_one_point_wherever_a_method_takes_several_rounds(name: str) -> None:
    """At both scales: a method that is evaluated after its last round alone would be a dot."""
    for scale in reproduce.SCALES:
        recipe = reproduce.create(name, scale)
        assert recipe.drawing is not None
        shown = {panel.column for panel in recipe.drawing.panels if isinstance(panel, Course)}
        for cell in recipe.cells:
            if cell.settings is not None and cell.column in shown and "rounds" in cell.settings.set:
                rounds = cell.settings.set["rounds"]
                assert isinstance(rounds, int)
                assert rounds / cell.settings.eval_every >= 5


def test_a_figure_takes_few_runs_beside_those_of_the_tables() -> None:
    tables = {
        repr(run)
        for name in reproduce.RECIPES
        if name not in DRAWN
        for run in reproduce.distinct(reproduce.create(name))
    }
    further = {name: [r for r in reproduce.distinct(reproduce.create(name)) if repr(r) not in tables] for name in DRAWN}
    own = {name: len(runs) for name, runs in further.items()}
    assert own["afl-figure-3"] == own["fedapa-figure-2"] == own["fedhip-figure-4"] == own["apfl-figure-3"] == 0
    assert own["apfl-figure-5"] == 0
    assert own["afl-figure-2"] == 2  # FedAvg with 500 and 1000 clients
    assert own["fedacnnl-figure-6"] == 1  # FedACnnL-WA


def test_synthetic_clients_are_as_many_as_the_recipes_say() -> None:
    """They come with their samples, so that a limit on samples would leave fewer."""
    runs = [run for recipe in reproduce.chosen("all") for run in reproduce.distinct(recipe)]
    splits = {
        repr(split): split for run in runs if run.data.startswith("synthetic") for split in [compare.data_of(run)]
    }
    assert splits
    for split in splits.values():
        assert len(experiment.prepare(split).federation.clients) == split.clients == 100


def test_what_the_texts_state_is_in_the_recipes() -> None:
    def stated(name: str) -> dict[tuple[str, str], float | None]:
        return {(cell.row, cell.column): cell.paper for cell in reproduce.create(name).cells}

    assert stated("afl-figure-2")["FedAvg", "CIFAR-100, K = 1000"] == 41.01
    assert stated("afl-figure-2")["AFL", "Tiny-ImageNet, K = 500"] == 54.67
    assert stated("afl-figure-3")["AFL", "Tiny-ImageNet, seconds"] == 349.5
    assert stated("fedhip-figure-4")["FedHiP", "CIFAR-100"] == 78.68
    assert stated("apfl-figure-4")["APFL", "ImageNet-R"] == 49.92
    assert stated("fedapa-figure-2")["FedAPA", "CIFAR-10"] == 85.85
    assert stated("fedacnnl-figure-4")["BAFFLE", "Synthetic"] == 1.07
    assert stated("fedacnnl-figure-6")["pFedACnnL", "accuracy"] == 74.4
    drawing = reproduce.create("fedacnnl-figure-4").drawing
    assert drawing is not None
    assert [claim.percent for claim in drawing.claims] == [83.0, 98.0, 99.0, 97.0, 52.0, 40.0]


# --- what is drawn ---


def line(number: int, share: float, seconds: float = 2.0) -> dict[str, Any]:
    figures = {"accuracy": {"mean": share, "pooled": share / 2}}
    return {"round": number, "metrics": figures, "seconds": seconds, "bytes_up": 5, "bytes_down": 3, "missing": []}


def result(method: str, shares: Sequence[float], **more: Any) -> dict[str, Any]:
    history = [line(number, share) for number, share in enumerate(shares, 1)]
    clients = {"a": {"accuracy": 0.5}, "b": {"accuracy": 0.7}}
    seconds = {"total": 2.0 * len(shares), "clients": 1.5 * len(shares)}
    return {"method": method, "history": history, "rounds": len(shares), "clients": clients, "seconds": seconds, **more}


def cell(row: str, method: str, column: str = "digits", **more: Any) -> reproduce.Cell:
    settings = Settings(method=method, data="digits", clients=2)
    return reproduce.Cell(row, column, **{"paper": None, "settings": settings, "figure": "mean", **more})


def filled(
    panels: Sequence[Any],
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    cells: Sequence[reproduce.Cell],
    **more: Any,
) -> Any:
    return fill(Drawing(tuple(panels), "section 1", **more), cells, lambda each: results.get(each.row, ()))


def test_a_course_is_the_mean_over_seeds_against_what_all_rounds_so_far_took() -> None:
    cells = [cell("AFL", "afl", paper=88.0), cell("FedAvg", "fedavg"), cell("FedProx", "fedprox")]
    runs = {
        "AFL": [result("afl", [0.9])],
        "FedAvg": [result("fedavg", [0.2, 0.4, 0.5]), result("fedavg", [0.4, 0.6, 0.7])],
    }
    rounds, sent, pooled, ends = filled(
        [
            Course("", "digits"),
            Course("", "digits", "bytes"),
            Course("", "digits", "seconds", "pooled"),
            Course("", "digits", "seconds", ends=True),
        ],
        runs,
        cells,
    ).panels
    assert [line.name for line in rounds.lines] == ["AFL", "FedAvg"]  # what did not run is no line
    assert rounds.lines[1].x == (1.0, 2.0, 3.0)
    assert rounds.lines[1].y == pytest.approx((30.0, 50.0, 60.0))
    assert sent.lines[1].x == (8.0, 16.0, 24.0)
    assert pooled.lines[1].x == (2.0, 4.0, 6.0)
    assert pooled.lines[1].y == pytest.approx((15.0, 25.0, 30.0))
    assert (ends.lines[1].x, ends.lines[1].y) == ((6.0,), pytest.approx((60.0,)))
    assert [line.done for line in rounds.lines] == [True, False]  # a solution is the end of it, a descent is not
    assert [(mark.name, mark.y, mark.x) for mark in rounds.marks] == [("AFL", 88.0, None)]


def test_places_are_those_of_the_columns() -> None:
    cells = [cell("AFL", "afl", f"K = {k}", paper=k / 10) for k in (1000, 100)]
    panel = Places("", "clients", "accuracy", {"K = 1000": 1000, "K = 100": 100})
    shares = {"accuracy": {"mean": 0.5, "pooled": 0.4}}
    (drawn,) = filled([panel], {"AFL": [result("afl", [0.9], **shares)]}, cells).panels
    assert drawn.lines[0].x == (100, 1000)
    assert drawn.lines[0].y == (50.0, 50.0)
    assert {(mark.x, mark.y) for mark in drawn.marks} == {(100, 10.0), (1000, 100.0)}


def test_the_seconds_of_clients_are_those_of_the_result_or_else_a_share_of_all() -> None:
    parts = [{"compute": 1.0, "waiting": 3.0, "transfer": 0.5}, {"compute": 3.0, "waiting": 0.0, "transfer": 0.5}]
    told = {"clients": {name: {"seconds": each} for name, each in zip("ab", parts, strict=True)}}
    assert client_seconds(told) == {"compute": 2.0, "waiting": 1.5, "transfer": 0.5}
    cells = [cell("FedACnnL", "fedacnnl", paper=0.6), cell("FedAvg", "fedavg")]
    runs = {"FedACnnL": [result("fedacnnl", [0.5], **told)], "FedAvg": [result("fedavg", [0.5, 0.6])]}
    half = Claim("idle", 10.0, 0, "FedACnnL", ("FedAvg",), part="waiting")
    whole = replace(half, part="")
    found = filled([Costs("MNIST", "digits")], runs, cells, claims=(whole, half))
    assert found.panels[0].bars == {"FedACnnL": (2.0, 1.5, 0.5), "FedAvg": (1.5, 0.0, 0.0)}
    (_, saved), (_, idle) = found.claims
    assert saved == pytest.approx(100 * (1 - 4.0 / 1.5))  # none: it took longer
    assert idle is None  # the other does not tell how long it waited


def test_what_a_text_says_stands_beside_what_is_saved_here() -> None:
    cells = [cell("AFL", "afl"), cell("FedAvg", "fedavg"), cell("FedProx", "fedprox")]
    runs = {"AFL": [result("afl", [0.9])], "FedAvg": [result("", [0.1] * 4)], "FedProx": [result("", [0.1] * 10)]}
    base = Claim("seconds", 80.0, 0, "AFL", ("FedAvg", "FedProx"))
    claims = (base, replace(base, up_to=True), replace(base, at=2), replace(base, at=5), replace(base, panel=1))
    panels = (Course("", "digits", "seconds"), Course("", "digits", y="bytes"))
    found = filled(panels, runs, cells, claims=claims)
    assert [ours for _, ours in found.claims] == [75.0, 90.0, 50.0, None, 75.0]
    assert found.sentences()[:2] == [
        "AFL saves at least 80 % seconds; ours: 75.0 %",
        "AFL saves up to 80 % seconds; ours: 90.0 %",
    ]
    assert found.sentences()[3].endswith("ours: -")
    fewer = filled(panels, {"AFL": runs["AFL"], "FedProx": runs["FedProx"]}, cells, claims=claims)
    assert [ours for _, ours in fewer.claims] == [None] * 5  # one of those that it is to save against did not run


# --- files ---

matplotlib = pytest.importorskip("matplotlib")


def small() -> reproduce.Recipe:
    base = Settings(method="afl", data="digits", clients=4, partition="iid", alone=False)
    cells = (
        reproduce.Cell("AFL", "digits", 91.5, base),
        reproduce.Cell("AFL, other", "digits", 90.25, replace(base, set={"ridge": 5.0})),
        reproduce.Cell("DeepAFL", "digits", None, replace(base, method="deepafl", set={"blocks": 2, "width": 8})),
        reproduce.Cell("FedWho", "digits", 50.0, why="FedWho is not in the catalogue"),
    )
    panels = (Course("digits", "digits"), Course("", "digits", "bytes", "pooled"))
    return reproduce.Recipe("small", "A small figure", "On digits.", cells, Drawing(panels, "section 1", timed=True))


def test_a_figure_is_left_as_svg_pdf_and_values(tmp_path: Path) -> None:
    table = reproduce.reproduce(small(), tmp_path, lambda *_: None)
    assert table.failures == {}
    svg, pdf = (tmp_path / "figure.svg").read_text(), (tmp_path / "figure.pdf").read_bytes()
    # One line per series that ran and panel, and the paper's values, those of series that did not run as well.
    assert len(re.findall(r'<g id="line-0-', svg)) == len(re.findall(r'<g id="line-1-', svg)) == 3
    assert {name.rpartition("-")[2] for name in re.findall(r'<g id="(paper-0-[^"]*)', svg)} == {"91.5", "90.25", "50"}
    assert "http" not in re.sub(r'xmlns[:a-z]*="[^"]*"|<!DOCTYPE[^>]*>|<metadata>.*?</metadata>', "", svg, flags=re.S)
    assert "font-family" not in svg  # letters are outlines
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf  # TrueType, in the file
    assert b"/Type3" not in pdf
    content = json.loads((tmp_path / "table.json").read_text())
    runs = {
        json.loads(p.read_text())["method"]: json.loads(p.read_text()) for p in (tmp_path / "runs").rglob("result.json")
    }
    course = next(each for each in content["panels"][0]["lines"] if each["method"] == "deepafl")
    history = runs["deepafl"]["history"]
    assert len(history) > 2
    assert course["y"] == pytest.approx([100 * each["metrics"]["accuracy"]["mean"] for each in history])
    sent = next(each for each in content["panels"][1]["lines"] if each["method"] == "deepafl")["x"]
    assert sent[-1] == sum(each["bytes_up"] + each["bytes_down"] for each in history)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "figure.csv").read_text())))
    assert len([row for row in rows if row["whose"] == "ours"]) == 2 * (2 + len(history))
    assert {row["y"] for row in rows if row["whose"] == "paper"} == {"91.5", "90.25", "50.0"}
    assert content["where"] == "section 1"
    assert re.search(r"DeepAFL \([\d.e-]+ s\)", course["name"])  # the legend has the seconds


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    reproduce.reproduce(small(), tmp_path / "a", lambda *_: None, runs=tmp_path / "runs")
    reproduce.reproduce(small(), tmp_path / "b", lambda *_: None, runs=tmp_path / "runs")
    for name in ("figure.svg", "figure.pdf", "figure.csv", "table.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_nothing_is_written_of_a_figure_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both formats are made before one is written, and each is written whole."""
    panel = Curves("", "round", "accuracy", (charts.Line("a", "afl", (1.0, 2.0), (3.0, 4.0)),))
    written: list[Path] = []
    real = disk.write_bytes

    def watched(path: Path, *rest: Any, **more: Any) -> None:
        written.append(path)
        real(path, *rest, **more)

    monkeypatch.setattr(disk, "write_bytes", watched)
    charts.save([panel], tmp_path, "figure")
    assert [path.name for path in written] == ["figure.svg", "figure.pdf"]
    (tmp_path / "figure.svg").unlink()
    (tmp_path / "figure.pdf").unlink()
    from matplotlib.figure import Figure

    def stop(self: Any, buffer: Any, format: str, **_: Any) -> None:
        buffer.write(b"half of it")
        if format == "pdf":
            raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", stop)
    with pytest.raises(KeyboardInterrupt):
        charts.save([panel], tmp_path, "figure")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_values_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    reproduce.reproduce(small(), tmp_path, lambda *_: None)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"table.md", "table.json", "figure.csv", "runs"}


@pytest.mark.parametrize("kind", ["none", "bars", "no bars", "rows"])
def test_every_kind_of_panel_is_drawn(kind: str) -> None:
    rows = tuple(charts.Row(f"a method with a rather long name {n}", "afl", n, n - 0.5, n + 0.5, n) for n in range(3))
    panels: dict[str, charts.Panel] = {
        "none": Curves("Tiny-ImageNet", "round", "accuracy", ()),
        "bars": Bars(
            "MNIST", "seconds", ("compute", "waiting"), {"A": (1.0, 2.0), "B": (3.0, 0.0)}, {"A": "paper: 4 s"}
        ),
        "no bars": Bars("Synthetic", "seconds", ("compute",), {}, {"A": "paper: 4 s"}),
        "rows": charts.Rows("digits", "accuracy", rows),
    }
    svg = charts.render([panels[kind]])["svg"].decode()
    expected = {"none": "not run", "no bars": "not run", "bars": "paper: 4 s", "rows": "name 2"}
    assert f"{expected[kind]} -->" in svg
    if kind == "bars":
        assert len(re.findall(r'<g id="bar-', svg)) == 4
    if kind == "rows":
        assert len(re.findall(r'<g id="row-', svg)) == 3


def test_published_figures_have_a_place_in_the_paper() -> None:
    entries = {(p, name): entry for p, each in published().items() for name, entry in each.items() if "figure" in name}
    assert all(entry["where"] and entry["caption"] for entry in entries.values())
    named = {claim["saver"] for entry in entries.values() for claim in entry.get("claims", ())}
    assert {name.lower() for name in named} <= set(CATALOGUE)
