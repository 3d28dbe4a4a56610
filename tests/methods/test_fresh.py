"""The protocol of `benchmarks/fresh.py`: its settings, its grids, and that the page says what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import fresh, fresh_grids, fresh_tables
from benchmarks.fresh_data import FIRST_SEED, SETTINGS, Setting

import fedsolve as fs
from fedsolve import methods
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "results.md"


@pytest.fixture(params=["classes", "numbers"])
def federation(request: pytest.FixtureRequest) -> fs.Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    x = rng.normal(size=(240, 7)) + rng.normal(size=(3, 7))[y]
    if request.param == "classes":
        return fs.Table.make("three classes", x, y).split(fs.dirichlet(0.5), clients=5, seed=2)
    numbers = (x[:, 0] + y + rng.normal(size=240))[:, None]
    return fs.Table.make("a number", x, numbers, target=fs.Numbers("y")).split("dirichlet:0.5", clients=5, seed=2)


def test_grids_are_what_whole_runs_give(federation: fs.Federation) -> None:
    def run(name: str, **settings: float) -> float:
        result = fs.run(fs.create(name, settings), federation, seed=9)
        if federation.task.classes:
            return float(result.accuracy.mean or 0.0)
        errors = [(client.metrics["rmse"], client.constant_metrics["rmse"]) for client in result.clients.values()]
        return float(np.divide(*np.mean(errors, axis=0)))

    grids = fresh_grids.linear_grids(federation)
    for alpha in (0.0, 5.0, 1000.0):
        assert grids["fedhip"][f"alpha={alpha:g}"] == pytest.approx(run("fedhip", alpha=alpha), abs=1e-9)
    for ridge in (0.0, 100.0):
        assert grids["afl"][f"ridge={ridge:g}"] == pytest.approx(run("afl", ridge=ridge), abs=1e-9)
    if federation.task.classes:
        point = {"gamma": 1.0, "beta": 10.0, "lam": 0.5}
        grid = fresh_grids.apfl_grid(federation, 9)
        assert grid["gamma=1 d_refine=1024 beta=10 lam=0.5"] == pytest.approx(run("apfl", **point))
    figure = fresh.one("fedhip", federation, 9)["figure"]
    assert figure == pytest.approx(run("fedhip"))


def test_settings_are_fresh_and_of_known_methods() -> None:
    names = [setting.name for setting in SETTINGS]
    assert len(set(names)) == len(names) >= 12
    assert not [name for name in names if any(used in name.lower() for used in fresh.USED)]
    assert {"classes", "numbers"} == {setting.kind for setting in SETTINGS}
    for setting in SETTINGS:
        assert min(setting.seeds) >= FIRST_SEED and setting.splits >= (5 if setting.is_table else 3)
        assert {*fresh.METHODS, *fresh.BESIDE[setting.kind]} <= set(methods.CATALOGUE)
    assert set(range(0, 65, 5)) <= set(fresh_grids.ALPHAS)  # those of FedHiP's table II


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_loads(setting: Setting) -> None:
    if setting.is_table:
        pytest.importorskip("statsmodels")
    if setting.source == "cifar10":
        pytest.skip("its features take minutes; `python -m benchmarks fresh` loads them")
    if not setting.present:
        pytest.skip(f"no {setting.file} below FEDSOLVE_DATA")
    federation = setting.federation(FIRST_SEED)
    assert federation.task.target.kind == setting.kind
    assert sum(len(client.test) > 0 for client in federation.clients.values()) >= 4
    assert sum(len(client.train) for client in federation.clients.values()) >= 100


def test_page_says_what_was_measured() -> None:
    """Every table of the page is that of the lines on disk: all settings, all splits, every run once."""
    found = fresh.lines()
    keys = [(line["setting"], line["seed"], line["run"]) for line in found]
    assert sorted(keys) == sorted((s.name, seed, run) for s in SETTINGS for seed in s.seeds for run in fresh.runs(s))
    page = PAGE.read_text()
    for name, table in fresh_tables.tables(found).items():
        assert table in page, f"run `python -m benchmarks.fresh_tables` and put the table {name!r} into {PAGE.name}"
