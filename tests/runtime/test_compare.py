"""A comparison holds every closed-form method against training alone that differs from it in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedsolve as fs
from fedsolve.errors import DataError
from fedsolve.study import compare, experiment
from fedsolve.study.settings import Settings
from tests.runtime.test_cli import Command, figures

SMALL = Settings(data="digits", clients=6, partition="dirichlet:0.3")


def nothing(*_: Any) -> None:
    """Tells nobody."""


def alone(folder: Path, which: str = "alone") -> dict[str, float]:
    clients = figures(folder)["clients"]
    return {
        name: client[which] if which == "accuracy" else client[which]["accuracy"] for name, client in clients.items()
    }


def trained(intercept: bool, seed: int = 0) -> dict[str, float | None]:
    federation = fs.load("digits").split("dirichlet:0.3", clients=6, seed=seed)
    clients = fs.run(fs.Local(intercept=intercept), federation, seed=seed).clients
    return {name: client.accuracy for name, client in clients.items()}


def test_methods_with_and_without_an_intercept_have_baselines_of_their_own(tmp_path: Path) -> None:
    titles: list[tuple[str, int]] = []
    runs = compare.plan(SMALL, ["fedhip", "fedprior"], [0, 1], {})
    compare.compare(runs, tmp_path, lambda title, seed, *_: titles.append((title, seed)))
    names = ["local", "local-intercept", "fedhip", "fedprior"]
    assert titles == [(name, seed) for seed in (0, 1) for name in names]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}-{seed}" for name, seed in titles}
    for seed in (0, 1):
        plain, shifted = trained(False, seed), trained(True, seed)
        assert plain != shifted
        assert alone(tmp_path / f"fedhip-{seed}") == alone(tmp_path / f"local-{seed}", "accuracy") == plain
        assert alone(tmp_path / f"fedprior-{seed}") == shifted
        assert alone(tmp_path / f"local-intercept-{seed}", "accuracy") == shifted
    again: list[str] = []
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    compare.compare(runs, tmp_path, lambda title, *_: again.append(title))
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}  # nothing ran again


def test_the_figures_are_those_of_run(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    data = ("--clients", "6", "--partition", "dirichlet:0.3")
    assert command("compare", "--methods", "fedprior", "--out", "cmp", *data, "--quiet").code == 0
    assert command("run", "--method", "fedprior", "--out", "one", *data, "--quiet").code == 0
    several, single = figures(tmp_path / "cmp" / "fedprior-0"), figures(tmp_path / "one")
    assert several["clients"] == single["clients"]
    assert several["settings"] == single["settings"]


def plan(names: list[str], **assignments: str) -> list[tuple[str, Mapping[str, object], bool | None]]:
    given = {name.replace("__", "."): value for name, value in assignments.items()}
    return [(run.method, run.set, run.alone) for run in compare.plan(SMALL, names, [0], given)]


def test_there_is_one_baseline_for_each_kind_of_training_alone() -> None:
    assert plan(["afl", "fedhip"]) == [("local", {}, False), ("afl", {}, True), ("fedhip", {}, True)]
    assert plan(["fedhip"], intercept="true") == [
        ("local", {"intercept": "true"}, False), ("fedhip", {"intercept": "true"}, True)
    ]  # fmt: skip
    assert plan(["fedhip", "fedprior"], fedhip__intercept="true") == [
        ("local", {}, False), ("local", {"intercept": True}, False),
        ("fedhip", {"intercept": "true"}, True), ("fedprior", {}, True),
    ]  # fmt: skip


def test_what_local_was_given_holds_for_all_its_runs() -> None:
    runs = plan(["fedhip", "fedprior"], local__ridge="3")
    assert [values for name, values, _ in runs if name == "local"] == [
        {"ridge": "3"}, {"ridge": "3", "intercept": True}
    ]  # fmt: skip


def test_a_network_alone_is_no_baseline_of_a_closed_form_method_and_none_is_trained_for_gradient_methods() -> None:
    pytest.importorskip("torch")
    runs = plan(["fedhip", "fedavg"], model="mlp:8")
    assert runs == [
        ("local", {"model": "mlp:8"}, False), ("local", {"intercept": False}, False), ("fedhip", {}, True),
        ("fedavg", {"model": "mlp:8"}, False),
    ]  # fmt: skip


def test_a_baseline_that_fails_costs_nobody_else_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = experiment.execute

    def execute(settings: Settings, *rest: Any, **more: Any) -> Any:
        if settings.method == "local" and settings.set:
            raise DataError("the moon is in the wrong place")
        return true(settings, *rest, **more)

    monkeypatch.setattr(compare, "execute", execute)
    replies: dict[str, Any] = {}
    runs = compare.plan(SMALL, ["fedhip", "fedprior"], [0], {})
    compare.compare(runs, tmp_path, lambda title, seed, reply, *_: replies.update({title: reply}))
    assert replies["local-intercept"] == "the moon is in the wrong place"
    assert all("alone" not in client for client in replies["fedprior"]["clients"].values())
    monkeypatch.undo()
    compare.compare(runs, tmp_path, nothing)  # tried again, and so is what lacks it
    assert alone(tmp_path / "fedprior-0") == trained(True)


def test_training_alone_is_named_while_it_goes_on(tmp_path: Path) -> None:
    from fedsolve.study.experiment import execute

    said: list[tuple[str, int]] = []
    execute(SMALL, lambda what, done, total: said.append((what, done)))
    phases = list(dict.fromkeys(what for what, _ in said))
    assert phases == [
        "round 1: clients answering",
        "round 1: personal models",
        "training alone: round 1: clients answering",
        "training alone: round 1: personal models",
    ]
    for phase in phases:  # within a phase nothing goes back
        steps = [done for what, done in said if what == phase]
        assert steps == sorted(steps)
