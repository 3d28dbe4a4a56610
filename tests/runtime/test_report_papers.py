"""Figures for papers from results on disk, one look per method, and what stands at the head of a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsolve import report
from fedsolve.cli import app
from fedsolve.methods import CATALOGUE
from fedsolve.report import charts, figures, looks, plots
from tests.runtime.test_report_figures import change, put, read

matplotlib = pytest.importorskip("matplotlib")

# --- looks ---


def test_no_two_methods_of_the_catalogue_look_alike() -> None:
    every = [looks.look(name) for name in CATALOGUE]
    assert len({(each.colour, each.marker) for each in every}) == len(CATALOGUE)
    assert {name for row in looks.PLACES for name in row} - {""} <= set(CATALOGUE)
    assert all(len(row) == len(looks.COLOURS) for row in looks.PLACES)
    assert len(looks.PLACES) == len(looks.MARKERS) == len(looks.DASHES)


def test_the_look_of_a_method_is_its_own_whatever_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new method, in the catalogue or on a page, moves no other."""
    before = {name: looks.look(name) for name in CATALOGUE}
    monkeypatch.setattr("fedsolve.methods.CATALOGUE", {"aaa": "x:Y", **CATALOGUE})
    assert {name: looks.look(name) for name in CATALOGUE} == before
    assert looks.look("aaa") == looks.look("aaa")
    assert looks.look("package.module:Own").colour in looks.COLOURS


def test_colours_of_a_page_stay_when_methods_are_added(tmp_path: Path) -> None:
    def drawn() -> dict[str, tuple[str, str]]:
        parts = report.sections(report.entries([tmp_path]))
        return {group.name: (plots.colour(group), plots.marker(group)) for part in parts for group in part.groups}

    put(tmp_path / "fedhip", {"x": 0.8}, method="fedhip")
    put(tmp_path / "local", {"x": 0.5}, method="local")
    first = drawn()
    for number, name in enumerate(("afl", "apfl", "fedavg", "zzz")):
        put(tmp_path / name, {"x": 0.9 - number / 5}, method=name)
    put(tmp_path / "elsewhere", {"x": 0.9}, method="ditto", data="mnist")
    second = drawn()
    assert {name: second[name] for name in first} == first
    assert len(set(second.values())) == len(second)


def test_variants_of_a_method_have_its_colour_and_markers_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / str(number), {"x": 0.5 + number / 10}, method="fedhip", set={"alpha": float(number)})
    groups = report.groups(report.entries([tmp_path]))
    assert {plots.colour(group) for group in groups} == {looks.look("fedhip").colour}
    assert len({plots.marker(group) for group in groups}) == 3


# --- files ---


def course(folder: Path, shares: list[float], **settings: Any) -> Path:
    """A run that was evaluated after each round."""
    put(folder, {"x": shares[-1], "y": shares[-1] / 2}, **settings)
    history = [
        {"round": n, "accuracy": share, "missing": [], "seconds": 2.0, "bytes_up": 5, "bytes_down": 3}
        for n, share in enumerate(shares, 1)
    ]
    change(folder, history=history, rounds=len(shares))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for seed in (0, 1):
        course(folder / f"avg{seed}", [0.2, 0.4, 0.5], method="fedavg", seed=seed, set={"model": "cnn"}, limit=500)
        course(folder / f"afl{seed}", [0.8], method="afl", seed=seed, limit=500)
    return folder


def test_plots_are_written_as_svg_and_pdf(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "figures"
    done = CliRunner().invoke(app, ["report", str(runs), "--figures", str(out)])
    assert done.exit_code == 0, done.output
    names = {"accuracy", "rounds", "seconds", "bytes", "differences"}
    assert {path.name for path in out.iterdir()} == {f"{name}.{end}" for name in names for end in ("svg", "pdf")}
    assert "wrote 10 files" in done.output
    for name in names:
        svg, pdf = (out / f"{name}.svg").read_text(), (out / f"{name}.pdf").read_bytes()
        assert svg.count("</svg>") == 1
        assert "font-family" not in svg  # letters are outlines
        assert pdf.startswith(b"%PDF")
        assert pdf.rstrip().endswith(b"%%EOF")
        assert b"/FontFile2" in pdf
        width = re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)
        assert width is not None
        assert float(width[1]) == pytest.approx(72 * 3.4)  # a column
        shown = {"differences": ["row-fedavg"], "accuracy": ["row-fedavg", "row-afl"]}
        for mark in shown.get(name, ["line-0-fedavg", "line-0-afl-1-round"]):
            assert f'<g id="{mark}">' in svg
            assert looks.look(mark.split("-")[2 if "line" in mark else 1]).colour.lower() in svg


def test_figures_hold_means_with_intervals_and_courses_of_sums(runs: Path) -> None:
    panels = figures.panels(report.sections(report.entries([runs])))
    rows = {row.name: row for row in panels["accuracy"].rows}  # type: ignore[union-attr]
    assert rows["afl"].value == pytest.approx(60.0)  # of 80 and 40
    assert rows["afl"].low < 60.0 < rows["afl"].high
    lines = {line.method: line for line in panels["bytes"].lines}  # type: ignore[union-attr]
    assert lines["fedavg"].x == (8.0, 16.0, 24.0)
    assert lines["fedavg"].y == pytest.approx((20.0, 40.0, 50.0))
    assert lines["afl"].done
    (behind,) = panels["differences"].rows  # type: ignore[union-attr]
    assert (behind.name, behind.value) == ("fedavg", pytest.approx(-22.5))


def test_where_clients_tell_nothing_courses_are_of_all_samples(runs: Path) -> None:
    """As under secure sums, where figures are pooled alone."""
    for folder in runs.iterdir():
        history = [
            {"round": n, "metrics": {"accuracy": {"mean": None, "pooled": n / 10}}, "seconds": 1.0} for n in (1, 2, 3)
        ]
        change(folder, history=history, format=2)
    panel = figures.panels(report.sections(report.entries([runs])))["seconds"]
    assert isinstance(panel, charts.Curves)
    assert panel.y == "pooled accuracy, %"
    assert panel.lines[0].y == pytest.approx((10.0, 20.0, 30.0))


def test_less_is_better_stays_the_right_way_round(tmp_path: Path) -> None:
    for name, errors in (("afl", (2.0, 4.0)), ("local", (3.0, 6.0))):
        put(tmp_path / name, {"x": 0.5, "y": 0.5}, method=name)
        clients = {client: {"metrics": {"rmse": error}} for client, error in zip("xy", errors, strict=True)}
        spread = {"mean": sum(errors) / 2, "pooled": 1.0, "std": 0.0, "worst_decile": 0.0}
        change(
            tmp_path / name,
            clients=clients,
            task={"kind": "numbers", "names": ["y"]},
            metrics={"rmse": spread},
            format=2,
        )
    panels = figures.panels(report.sections(report.entries([tmp_path])))
    rows = {row.name: row for row in panels["rmse"].rows}  # type: ignore[union-attr]
    assert rows["afl"].value == pytest.approx(3.0)
    assert rows["afl"].low <= 3.0 <= rows["afl"].high
    assert panels["differences"].x.endswith("behind afl")


def test_sections_have_files_of_their_own(tmp_path: Path) -> None:
    for data in ("digits", "mnist"):
        put(tmp_path / data, {"x": 0.5, "y": 0.6}, data=data)
    names = set(figures.panels(report.sections(report.entries([tmp_path]))))
    assert names == {"digits-accuracy", "mnist-accuracy"}


def test_nothing_is_written_unless_all_can_be_drawn(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = charts.render

    def spoilt(panels: Any) -> Any:
        if isinstance(panels[0], charts.Curves):
            raise KeyboardInterrupt
        return real(panels)

    monkeypatch.setattr(charts, "render", spoilt)
    with pytest.raises(KeyboardInterrupt):
        figures.save(report.sections(report.entries([runs])), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the head of a page ---


def test_the_head_tells_limits_rounds_and_networks(runs: Path) -> None:
    _, words = read(runs)
    head = words[: words.index("Methods")]
    assert "limit 500" in head
    assert "rounds 1 and 3" in head
    assert "network cnn" in head
    assert "seeds 0, 1" in head


def test_methods_are_a_table_over_seeds(runs: Path) -> None:
    change(runs / "avg1", accuracy={"mean": 0.7, "pooled": 0.6, "std": 0.0, "worst_decile": 0.1})
    page, words = read(runs)
    table = words[words.index("Methods") : words.index("A dot is a client")]
    # means of 37.5 and 70, of pooled 37.5 and 60, of the worst 25 and 10; bytes are those of the result
    assert "fedavg 2 53.75 22.98 48.75 17.50 3 150 bytes 0.5 s" in table
    assert "± over seeds" in table
    assert page.count('id="overview"') == 1
    for title in ("Round by round", "Byte by byte", "Second by second"):
        assert words.count(title) == 1


def test_a_single_run_has_no_table_of_methods(tmp_path: Path) -> None:
    put(tmp_path / "a", {"x": 0.5})
    assert 'id="overview"' not in read(tmp_path)[0]


def test_classes_have_their_names_in_both_matrices(tmp_path: Path) -> None:
    put(tmp_path / "a", {"x": 0.5, "y": 0.5})
    names = ["healthy", "very seriously ill"]
    data = {"name": "wards", "fingerprint": "", "split": {"x": [3, 1], "y": [2, 2]}}
    change(tmp_path / "a", task={"kind": "classes", "count": 2, "names": names}, confusion=[[3, 1], [0, 2]], data=data)
    page = read(tmp_path)[0]
    for title in ("Answers, class by class", "How the data are split"):
        plot = page[page.index(title) :].partition("</figure>")[0]
        assert ">healthy<" in plot
        assert ">very seriou…<" in plot
