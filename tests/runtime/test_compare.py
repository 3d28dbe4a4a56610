"""A comparison holds every method against training alone that differs in nothing else, and networks against FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedsolve as fs
from fedsolve.errors import DataError, FedsolveError
from fedsolve.report import gather
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
    runs = compare.plan(SMALL, ["fedhip", "fedprior"], [0, 1], {"intercept": "false"})
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
    assert plan(["fedhip", "fedprior"], fedhip__intercept="false") == [
        ("local", {}, False), ("local", {"intercept": False}, False),
        ("fedhip", {"intercept": "false"}, True), ("fedprior", {}, True),
    ]  # fmt: skip


def test_what_local_was_given_holds_for_all_its_runs() -> None:
    runs = plan(["fedhip", "fedprior"], local__ridge="3", fedhip__intercept="false")
    assert [values for name, values, _ in runs if name == "local"] == [
        {"ridge": "3"}, {"ridge": "3", "intercept": False}
    ]  # fmt: skip


TRAINING = {"rounds": 50, "epochs": 2, "batch": 64, "lr": 0.01, "sgd_momentum": 0.9}


def test_a_network_alone_is_no_baseline_of_a_closed_form_method_and_ridge_none_of_a_network() -> None:
    assert plan(["fedhip", "fedavg"], model="mlp:8") == [
        ("local", {"intercept": True}, False), ("local", {"model": "mlp:8", **TRAINING}, False),
        ("fedavg-ft", {"model": "mlp:8"}, False), ("fedhip", {}, True), ("fedavg", {"model": "mlp:8"}, False),
    ]  # fmt: skip


def test_methods_that_train_a_network_stand_beside_local_and_fedavg_with_the_same_network() -> None:
    assert plan(["fedala", "ditto"]) == [
        ("local", {"model": "mlp:64", **TRAINING}, False), ("fedavg", {"model": "mlp:64"}, False),
        ("fedavg-ft", {"model": "mlp:64"}, False), ("fedala", {}, False), ("ditto", {}, False),
    ]  # fmt: skip
    runs = plan(["fedala"], model="cnn", lr="0.5", fedavg__epochs="3", local__batch="7")
    assert runs[:3] == [
        ("local", {"model": "cnn", **TRAINING, "lr": "0.5", "batch": "7"}, False),
        ("fedavg", {"model": "cnn", "lr": "0.5", "epochs": "3"}, False),
        ("fedavg-ft", {"model": "cnn", "lr": "0.5"}, False),
    ]  # fmt: skip


def test_training_alone_has_what_all_methods_share_and_averaging_what_is_given_for_all() -> None:
    runs = {name: values for name, values, _ in plan(["feddyn"], epochs="1")}
    assert runs["local"] == {
        "model": "mlp:64",
        "rounds": 50,
        "epochs": "1",
        "batch": 64,
        "lr": 0.1,
        "sgd_momentum": 0.0,
    }
    assert runs["fedavg"] == {"model": "mlp:64", "epochs": "1"}
    runs = {name: values for name, values, _ in plan(["feddyn", "fedala"])}
    assert runs["local"] == {"model": "mlp:64", "rounds": 50, "epochs": 2, "batch": 64}  # its own where they differ


def test_every_network_has_baselines_of_its_own_unless_they_are_named() -> None:
    runs = plan(["fedala", "ditto"], ditto__model="mlp:8")
    assert [(name, values.get("model")) for name, values, _ in runs] == [
        ("local", "mlp:64"), ("local", "mlp:8"), ("fedavg", "mlp:64"), ("fedavg", "mlp:8"),
        ("fedavg-ft", "mlp:64"), ("fedavg-ft", "mlp:8"), ("fedala", None), ("ditto", "mlp:8"),
    ]  # fmt: skip
    assert [name for name, _, _ in plan(["fedavg-ft", "fedavg"])] == ["local", "fedavg-ft", "fedavg"]
    own = plan(["fedala"], local__model="lr", fedavg__model="mlp:4")
    assert [(name, values.get("model")) for name, values, _ in own] == [
        ("local", "lr"), ("fedavg", "mlp:4"), ("fedavg-ft", "mlp:64"), ("fedala", None),
    ]  # fmt: skip


def test_values_for_all_reach_ridge_and_networks_each_what_it_takes() -> None:
    runs = plan(["fedhip", "fedala"], intercept="true", model="mlp:8", lr="0.1")
    assert [(name, values) for name, values, _ in runs] == [
        ("local", {"intercept": True}), ("local", {**TRAINING, "model": "mlp:8", "lr": "0.1"}),
        ("fedavg", {"model": "mlp:8", "lr": "0.1"}), ("fedavg-ft", {"model": "mlp:8", "lr": "0.1"}),
        ("fedhip", {"intercept": "true"}), ("fedala", {"model": "mlp:8", "lr": "0.1"}),
    ]  # fmt: skip


def test_without_baselines_nothing_else_runs() -> None:
    def methods(names: list[str], **given: str) -> list[tuple[str, Mapping[str, object], bool | None]]:
        return [(run.method, run.set, run.alone) for run in compare.plan(SMALL, names, [0], given, baselines=False)]

    assert methods(["fedala", "fedhip"]) == [("fedala", {}, False), ("fedhip", {}, True)]  # which trains alone itself
    assert methods(["fedala", "local"]) == [("local", {}, False), ("fedala", {}, False)]
    assert methods(["fedala", "local"], model="lr") == [
        ("local", {"model": "lr"}, False), ("fedala", {"model": "lr"}, False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "baselines", "words"),
    [
        ({"local.ridge": "3"}, True, "no run of local here has a parameter 'ridge'"),
        ({"local.nonsense": "3"}, True, "nonsense"),
        ({"ridge": "3"}, True, "none of local, fedavg, fedavg-ft, fedala has a parameter 'ridge'"),
        ({"fedavg.lr": "3"}, False, "unknown method in --set: 'fedavg'"),
        ({"fedavg.lr": "-3"}, True, "lr"),
    ],
)
def test_what_no_baseline_takes_is_refused(given: dict[str, str], baselines: bool, words: str) -> None:
    with pytest.raises(FedsolveError, match=words):
        compare.plan(SMALL, ["fedala"], [0], given, baselines=baselines)


def test_a_comparison_of_networks_has_a_page_and_goes_on_with_more_methods(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    words = ("--out", "cmp", "--clients", "4", "--rounds", "1", "--set", "model=mlp:4", "--set", "epochs=1")
    done = command("compare", "--methods", "fedala", *words)
    assert done.code == 0, done.err
    started = {f"{name}-0" for name in ("local-model=mlp-4", "fedavg", "fedavg-ft", "fedala")}
    assert {path.parent.name for path in (tmp_path / "cmp").rglob("result.json")} == started
    assert [line.split()[3] for line in done.out.splitlines()[:4]] == [
        "local-model=mlp:4", "fedavg", "fedavg-ft", "fedala",
    ]  # fmt: skip
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cmp").rglob("result.json")}
    done = command("compare", "--methods", "ditto,afl,fedala", *words, "--quiet")
    assert done.code == 0, done.err
    assert {path.parent.name for path in (tmp_path / "cmp").rglob("result.json")} == started | {
        "local-0", "ditto-0", "afl-0",
    }  # fmt: skip
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())  # nothing of it ran again
    runs = gather.entries([tmp_path / "cmp"])
    network = next(run for run in runs if run.place.name == "local-model=mlp-4-0")
    for name in ("fedala", "ditto", "fedavg"):
        run = next(run for run in runs if run.method == name)
        assert gather.alone(run, runs) == network.figures()  # the network, not the ridge beside it
    ridge, trained = (
        "local (ridge=auto, intercept=True)",
        "local (model=mlp:4, epochs=1, batch=64, lr=0.01, sgd_momentum=0.9)",
    )
    names = {"afl", "fedavg", "fedavg-ft", "fedala", "ditto", ridge, trained}
    assert {group.name for group in gather.groups(runs)} == names  # no word of what a method does not have
    page = (tmp_path / "cmp" / "report.html").read_text()
    assert all(name in page for name in names)
    done = command("compare", "--methods", "ditto", *words, "--out", "few", "--no-baselines", "--quiet")
    assert done.code == 0, done.err
    assert {path.parent.name for path in (tmp_path / "few").rglob("result.json")} == {"ditto-0"}


def test_a_baseline_that_fails_costs_nobody_else_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = experiment.execute

    def execute(settings: Settings, *rest: Any, **more: Any) -> Any:
        if settings.method == "local" and settings.set.get("intercept") is True:
            raise DataError("the moon is in the wrong place")
        return true(settings, *rest, **more)

    monkeypatch.setattr(compare, "execute", execute)
    replies: dict[str, Any] = {}
    runs = compare.plan(SMALL, ["fedhip", "fedprior"], [0], {"intercept": "false"})
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
