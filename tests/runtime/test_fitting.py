"""Features that sites fit in a run: in rounds of their own, from sums, the same as in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays
from fedsolve.runtime.fitting import Fitting
from fedsolve.runtime.job import Job
from fedsolve.runtime.sites import FileSite
from tests.core.test_patches import pictures
from tests.runtime.test_cli import Command

SPEC = "patches:3x3x6,steps=2"
RULES: dict[str, Any] = {"wait": 5.0, "timeout": 20.0}


def wards(folder: Path, **features: str) -> dict[int, dict[str, str]]:
    """Pictures of three wards, and the configuration of their nodes, each with its own word on features."""
    nodes = {}
    for number, letter in enumerate("abc"):
        name = f"ward-{letter}"
        data = pictures(60, 9, 9, 3, seed=number)
        np.savez(folder / f"{name}.npz", x=data, y=(data[..., 0].mean((1, 2)) > 128).astype(int) + (number == 0))
        config = {"client": name, "data": str(folder / f"{name}.npz"), "state": str(folder / name)}
        nodes[1000 - number] = {**config, "features": features.get(letter, SPEC)}
    return nodes


def pooled(folder: Path, names: tuple[str, ...] = ("ward-a", "ward-b", "ward-c")) -> fs.Federation:
    parts = [np.load(folder / f"{name}.npz") for name in names]
    owner = np.repeat(names, [len(part["y"]) for part in parts])
    x, y = (np.concatenate([part[key] for part in parts]) for key in ("x", "y"))
    return fs.Table.make("all", x, y, client=owner).split("by-client")


def served(nodes: dict[int, dict[str, str]], method: fs.Method, features: str = SPEC, **rules: Any) -> Any:
    from fedsolve.runtime.flower.client import make_client_app
    from fedsolve.runtime.flower.server import serve
    from fedsolve.runtime.job import Rules
    from tests.runtime.grid import InProcessGrid

    said: list[str] = []
    job = Job(method.name, fs.parameters.values(method), features, seed=4)
    outcome = serve(InProcessGrid(make_client_app(), nodes), job, Rules(**{**RULES, **rules}), said.append)
    return (*outcome, said)


def test_sites_fit_what_one_process_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    nodes = wards(tmp_path)
    outcome, task, _, said = served(nodes, fs.FedHiP(beta=1.0, intercept=False))
    federation = pooled(tmp_path).fitted(SPEC)
    wanted = fs.run(fs.FedHiP(beta=1.0, intercept=False), federation, seed=4)
    assert str(task.features) == str(federation.task.features)
    assert arrays.same(outcome.state, wanted.state) and not outcome.failed
    assert any("5 rounds more fit patches:3x3x6" in line for line in said)
    found = fs.load_model(tmp_path / "ward-b" / "models" / "ward-b.safetensors")
    data = pictures(5, 9, 9, 3, seed=7)
    np.testing.assert_array_equal(found.scores(data), wanted.models["ward-b"].scores(data))
    lines = [json.loads(line) for line in (tmp_path / "ward-b" / "audit.jsonl").read_text().splitlines()]
    assert [line["method"] for line in lines].count("fit") == 6  # a description, and five rounds
    assert max(len(json.dumps(line)) for line in lines) < 2000


def test_a_site_fits_what_it_names_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    outcome, *_ = served(
        wards(tmp_path, c=""), fs.AFL(ridge=0.0, intercept=False), sites=("ward-a", "ward-b", "ward-c"), wait=1.0
    )
    wanted = fs.run(fs.AFL(ridge=0.0, intercept=False), pooled(tmp_path, ("ward-a", "ward-b")).fitted(SPEC), seed=4)
    assert arrays.same(outcome.state, wanted.state)
    assert "FEATURES=patches:3x3x6,steps=2; it names none" in outcome.failed["ward-c"]


def test_fitted_numbers_are_the_sites_own_word(tmp_path: Path) -> None:
    wards(tmp_path)
    fitted = str(pooled(tmp_path).fitted(SPEC).task.features)
    named, silent, other = (
        FileSite("ward-a", str(tmp_path / "ward-a.npz"), tmp_path / "ward-a", features)
        for features in (SPEC, "", "patches:3x3x7,steps=2")
    )
    job = Job("afl", features=fitted).identified()
    assert str(named.describe(job).task.features) == fitted
    with pytest.raises(fs.DataError, match=r"fitted numbers must be the site's own word"):
        silent.describe(job)
    assert other.describe(job).task.features.identity == "patches:3x3x7,steps=2"  # told, so that the server can say it
    rounds = Job("fit", {"features": SPEC})
    with pytest.raises(fs.DataError, match=r"it names 'patches:3x3x7,steps=2'"):
        other.describe(rounds)


@pytest.mark.parametrize("features", ["unit", "unit+patches", "patches+patches", "patches+standardise", "standardise"])
def test_sites_fit_one_map_that_stands_first(features: str) -> None:
    with pytest.raises(fs.ParameterError, match="sites fit one map in a run"):
        Fitting(features)


def test_on_the_command_line_with_a_ledger(command: Command, tmp_path: Path) -> None:
    wards(tmp_path)
    parts = [np.load(tmp_path / f"ward-{letter}.npz") for letter in "abc"]
    x, y = (np.concatenate([part[key] for part in parts]) for key in ("x", "y"))
    np.savez(tmp_path / "all.npz", x=x, y=y, client=np.repeat(["a", "b", "c"], 60))
    options = ["--data", "all.npz", "--partition", "by-client", "--features", f"{SPEC}+ones", "--method", "afl"]
    done = command("run", *options, "--set", "ridge=auto", "--out", "kept", "--ledger", "fed.db", "--no-alone")
    assert done.code == 0, done.err
    result = fs.Result.load(tmp_path / "kept")
    assert result.settings["features"] == f"{SPEC}+ones" and result.shared is not None
    with fs.Ledger(tmp_path / "fed.db") as ledger:
        assert str(ledger.terms.task.features) == str(result.shared.task.features)
        solved = ledger.solve()
        np.testing.assert_allclose(solved.state["weight"], result.state["weight"], rtol=1e-9)
    assert command("ledger", "invite", "fed.db", "--out", "invitation").code == 0
    late = command(
        "ledger", "contribute", "invitation", "--client", "d", "--data", "ward-a.npz", "--out", "d.part", "--anyway"
    )
    assert late.code == 0, late.err
    assert command("ledger", "add", "fed.db", "d.part").code == 0
    again = command("predict", "kept/models/global.safetensors", "--data", "all.npz")
    assert again.code == 0 and "accuracy" in again.err
    refused = command("run", *options[:4], "--features", "patches:3x3", "--out", "no")
    assert refused.code == 2 and "patches:HEIGHTxWIDTHxFILTERS" in refused.err
