"""How far the best method is ahead: on the page, in the terminal, as CSV and LaTeX, from the figures on disk."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'fedsolve[report]'")

from fedsolve import report
from fedsolve.report import differences
from fedsolve.study.paired import difference
from tests.runtime.test_cli import Command


def results(folder: Path, data: str = "wards", metric: str = "accuracy", shift: float = 0.0) -> None:
    """Runs of three methods with two seeds, as small files: b is a little behind a, c far behind."""
    for method, lag in (("afl", 0.0), ("fedhip", 0.004), ("local", 0.2)):
        for seed in (0, 1):
            values = {f"c{i}": 0.9 - lag * (1 + (i % 3 - 1) * 5) + 0.002 * i + shift * seed for i in range(9)}
            clients = {
                name: {"train": 9, "test": 9, "accuracy": value, "metrics": {metric: value}}
                for name, value in values.items()
            }
            content = {
                "format": 2,
                "method": method,
                "task": {"kind": "classes" if metric == "accuracy" else "numbers"},
                "settings": {"method": method, "set": {}, "seed": seed, "data": data, "clients": 9, "metric": metric},
                "clients": clients,
                "data": {"name": data, "fingerprint": data},
            }
            place = folder / f"{data}-{method}-{seed}"
            place.mkdir(parents=True)
            (place / "result.json").write_text(json.dumps(content))


def figures(folder: Path, method: str, sign: float = 1.0) -> dict[int, dict[str, float]]:
    found = {}
    for path in sorted(folder.glob(f"*-{method}-*/result.json")):
        content = json.loads(path.read_text())
        found[content["settings"]["seed"]] = {n: sign * 100 * c["accuracy"] for n, c in content["clients"].items()}
    return found


def test_leads_are_paired_differences_of_the_figures_on_disk(tmp_path: Path) -> None:
    results(tmp_path)
    (lead,) = differences.leads(report.sections(report.entries([tmp_path])))
    assert lead.best.name == "afl" and list(lead.over) == ["fedhip", "local"]
    for name, found in lead.over.items():
        wanted = difference(figures(tmp_path, "afl"), figures(tmp_path, name))
        assert (found.mean, found.low, found.high, found.p, found.pairs) == pytest.approx(
            (wanted.mean, wanted.low, wanted.high, wanted.p, 18)
        )
        assert found.adjusted >= found.p
    assert lead.over["fedhip"].mean == pytest.approx(0.4) and lead.over["local"].mean == pytest.approx(20.0)


def test_of_metrics_where_less_is_better_the_least_is_ahead(tmp_path: Path) -> None:
    results(tmp_path, metric="rmse")
    (lead,) = differences.leads(report.sections(report.entries([tmp_path]), "rmse"))
    assert lead.best.name == "local"
    assert all(each.mean > 0 for each in lead.over.values())


def test_tables_for_papers(tmp_path: Path, command: Command) -> None:
    results(tmp_path / "runs")
    results(tmp_path / "runs", "schools_2")
    answer = command("report", str(tmp_path / "runs"), "--csv", "t.csv", "--latex", "t.tex", "--out", "page.html")
    assert answer.code == 0, answer.err
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["data"], row["method"]) for row in rows][:3] == [
        ("schools_2", "afl"), ("schools_2", "fedhip"), ("schools_2", "local"),
    ]  # fmt: skip
    assert rows[0]["best"] == "" and float(rows[2]["behind"]) == pytest.approx(20.0)
    assert float(rows[1]["low"]) <= 0.4 <= float(rows[1]["high"])
    text = (tmp_path / "t.tex").read_text()
    assert text.count(r"\textbf") == 2 and r"schools\_2" in text and text.count(r"\midrule") == 2
    page = (tmp_path / "page.html").read_text()
    assert "Which differences are real" in page and "Ranks over data sets" in page
    assert "1 is best, over 2 data sets or splits" in page


def test_a_comparison_says_how_far_the_best_is_ahead(command: Command) -> None:
    answer = command("compare", "--methods", "afl,fedhip", "--clients", "5", "--seeds", "0,1", "--out", "cmp")
    assert answer.code == 0, answer.err
    lines = [line for line in answer.out.splitlines() if " is ahead of " in line]
    assert len(lines) == 2 and all("points" in line and "10 pairs" in line for line in lines)


def test_one_method_alone_has_no_differences(tmp_path: Path) -> None:
    results(tmp_path)
    runs = [run for run in report.entries([tmp_path]) if run.method == "afl"]
    parts = report.sections(runs)
    assert differences.tables(parts) == "" and differences.sentences(parts) == []
    assert differences.ranked(parts) is None
