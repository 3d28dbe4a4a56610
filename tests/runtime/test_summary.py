"""What `fedsolve summary` and `result.summary()` say of runs and models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.summary import Summary
from tests.runtime.test_cli import Command


def numbers(targets: int = 1, count: int = 300) -> tuple[fs.Federation, Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 3)) * [1.0, 10.0, 0.1] + [0.0, 40.0, 1.0]
    y = x @ rng.normal(size=(3, targets)) + 5.0 + rng.normal(size=(count, targets))
    parts = {f"c{k}": {"train": (x[k::4], y[k::4])} for k in range(4)}
    target = fs.Numbers(("pressure", "pulse")[:targets])
    found = fs.Federation.from_arrays(parts, target=target)
    task = dataclasses.replace(found.task, feature_names=("age", "weight", "dose"))
    return dataclasses.replace(found, task=task), x, y


@pytest.mark.parametrize("method", [fs.AFL(ridge=0.0, intercept=True), fs.FedHiP(beta=0.0, intercept=True)])
@pytest.mark.parametrize("targets", [1, 2])
def test_least_squares_of_numbers_has_errors(method: fs.Method, targets: int) -> None:
    sm = pytest.importorskip("statsmodels.api")
    federation, x, y = numbers(targets)
    summary = fs.run(method, federation).summary()
    columns = summary.columns()
    for place in range(targets):
        wanted = sm.OLS(y[:, place], np.column_stack([x, np.ones(len(x))])).fit()
        part = slice(4 * place, 4 * place + 4)
        np.testing.assert_allclose(columns["value"][part], wanted.params, rtol=1e-9)
        np.testing.assert_allclose(columns["error"][part], wanted.bse, rtol=1e-9)
        np.testing.assert_allclose(columns["p_value"][part], wanted.pvalues, rtol=1e-7, atol=1e-300)
        name = " of " + ("pressure", "pulse")[place] if targets > 1 else ""
        assert summary.figures[f"R2{name}"] == pytest.approx(wanted.rsquared, rel=1e-9)
        assert summary.figures[f"AIC{name}"] == pytest.approx(wanted.aic, rel=1e-9)


def test_a_ridge_has_coefficients_and_a_sentence() -> None:
    federation, _, _ = numbers()
    summary = fs.run(fs.AFL(ridge=2.0, intercept=True), federation).summary()
    assert [row.error for row in summary.rows] == [None] * 4
    assert "a ridge of 2 draws the coefficients towards zero" in str(summary)
    classes = fs.run(fs.AFL(), fs.load("wards").split("by-client")).summary()
    assert all(row.error is None for row in classes.rows)
    assert "glm has errors" in str(classes)


def test_columns_that_repeat_others_are_said() -> None:
    federation, _, _ = numbers()
    clients = {
        name: fs.Client(
            name, fs.Samples(np.column_stack([c.train.inputs, c.train.inputs[:, 0]]), c.train.labels), c.test
        )
        for name, c in federation.clients.items()
    }
    task = dataclasses.replace(federation.task, inputs=(4,), feature_names=("age", "weight", "dose", "again"))
    tests = {name: fs.Samples(np.zeros((0, 4)), c.test.labels) for name, c in federation.clients.items()}
    clients = {name: dataclasses.replace(c, test=tests[name]) for name, c in clients.items()}
    summary = fs.run(
        fs.AFL(ridge=0.0, intercept=True), dataclasses.replace(federation, task=task, clients=clients)
    ).summary()
    assert summary.rows[0].error is None
    assert "columns 3 are constant or repeat" in str(summary)


def test_methods_without_coefficients_say_so() -> None:
    federation = fs.load("digits").split("iid", clients=3)
    result = fs.run(fs.create("apfl", {"d_primary": 20, "d_refine": 10}), federation)
    with pytest.raises(fs.DataError, match="has no global coefficients to show; glm"):
        result.summary()
    with pytest.raises(fs.DataError, match="has no coefficients to show"):
        result.models["client-00"].summary()


def test_the_command_shows_runs_and_models(command: Command, tmp_path: Path) -> None:
    assert command("run", "--data", "wards", "--partition", "by-client", "--method", "glm", "--out", "out").code == 0
    done = command("summary", "out", "--csv", "table.csv")
    assert done.code == 0
    assert "glm, multinomial logistic" in done.out
    assert "[0.025" in done.out
    assert "sites alike" in done.out
    result = fs.Result.load(tmp_path / "out")
    assert str(result.summary()) == done.out.strip("\n")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0].endswith("name,value,error,statistic,p_value,low,high")
    assert len(lines) == 1 + len(result.summary().rows)
    one = command("summary", "out/models/surgery.safetensors")
    assert one.code == 0
    assert "age" in one.out
    for wrong in ("nowhere", "out/result.json"):
        refused = command("summary", wrong)
        assert refused.code == 2
        assert refused.err.count("\n") == 1


def test_personal_models_of_mixed_have_intervals() -> None:
    federation, _, _ = numbers()
    result = fs.run(fs.Mixed(), federation)
    for summary in (result.summary(), result.models["c0"].summary()):
        assert all(row.low is not None and row.value is not None and row.low < row.value for row in summary.rows)
        assert [row.name for row in summary.rows] == ["age", "weight", "dose", "intercept"]
    assert "var error" in result.summary().components


def test_a_frame_where_pandas_is_there_and_columns_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, _, _ = numbers()
    summary: Summary = fs.run(fs.GLM(), federation).summary()
    pytest.importorskip("pandas")
    assert list(summary.to_frame()["name"]) == ["age", "weight", "dose", "intercept"]
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    assert summary.to_frame() == summary.columns()
    assert summary.json()["coefficients"][0]["name"] == "age"
    assert summary._repr_html_().startswith("<pre>glm, least squares of pressure")
