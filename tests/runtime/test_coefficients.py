"""Summaries of statistical models on the page of a report."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsolve as fs

pytest.importorskip("matplotlib")


def test_the_page_shows_what_a_summary_shows(tmp_path: Path) -> None:
    from fedsolve import report

    federation = fs.load("wards").split("by-client", test=0.5)
    result = fs.run(fs.GLM(), federation)
    result.save(tmp_path / "glm")
    fs.run(fs.AFL(), federation).save(tmp_path / "afl")
    page = report.write([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("Coefficients of") == 1
    summary = result.summary()
    for row in summary.rows:
        assert row.name in page
    line = next(line for line in str(summary).splitlines() if line.startswith("age"))
    assert line in page
