"""What a page makes of result.json: which runs are seeds of one another, what is held against what, both formats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedsolve as fs
from fedsolve import report
from fedsolve.cli import app
from fedsolve.errors import DataError, ParameterError
from fedsolve.report import plots
from fedsolve.study import experiment
from fedsolve.study.experiment import Settings
from tests.conftest import unsealed

pytest.importorskip("matplotlib")

SETTINGS: dict[str, Any] = {
    "method": "afl", "set": {"intercept": False}, "data": "digits", "limit": None, "clients": 2,
    "partition": "dirichlet:0.1", "test": 0.2, "min_samples": 2, "features": "identity", "skip_broken": False,
    "seed": 0, "rounds": 1, "participation": 1.0, "runtime": "local", "alone": False, "eval_every": 1,
}  # fmt: skip


def put(folder: Path, accuracies: Mapping[str, float], **changes: Any) -> Path:
    """Write a result.json of format 1 by hand: clients with these accuracies, and settings with these changes."""
    settings = {**SETTINGS, **changes}
    mean = sum(accuracies.values()) / len(accuracies)
    content = {
        "format": 1,
        "method": settings["method"],
        "settings": settings,
        "clients": {name: {"train": 8, "test": 2, "accuracy": value} for name, value in accuracies.items()},
        "accuracy": {"mean": mean, "pooled": mean, "std": 0.0, "worst_decile": min(accuracies.values())},
        "rounds": 1,
        "bytes": {"up": 100, "down": 50},
        "seconds": {"total": 0.5},
        "history": [{"round": 1, "accuracy": mean, "missing": []}],
        "data": {"name": settings["data"], "fingerprint": ""},
    }
    return write(folder, content)


def write(folder: Path, content: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(content))
    return folder


def change(folder: Path, **top: Any) -> None:
    path = folder / "result.json"
    path.write_text(json.dumps({**unsealed(path), **top}))


def read(folder: Path) -> tuple[str, str]:
    """The page of a folder, and the words on it."""
    page = report.write([folder], folder / "page.html").read_text()
    body = page[page.index("<body>") : page.index("<script>")]
    return page, re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


# --- which runs are seeds of one another ---


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("data", "mnist", "mnist"),
        ("clients", 50, "clients=50"),
        ("partition", "iid", "partition=iid"),
        ("features", "unit", "features=unit"),
        ("test", 0.5, "test=0.5"),
        ("limit", 100, "limit=100"),
        ("min_samples", 9, "min_samples=9"),
        ("participation", 0.5, "participation=0.5"),
        ("rounds", 7, "rounds=7"),
        ("runtime", "flower", "runtime=flower"),
        ("set", {"intercept": True}, "intercept=True"),
        ("skip_broken", True, "skip_broken=True"),
        ("something_new", 3, "something_new=3"),
    ],
)
def test_only_seeds_are_averaged_and_names_say_what_differs(tmp_path: Path, name: str, value: Any, words: str) -> None:
    put(tmp_path / "a", {"x": 0.5, "y": 0.5})
    put(tmp_path / "b", {"x": 0.7, "y": 0.7}, seed=1)
    put(tmp_path / "c", {"x": 0.9, "y": 0.9}, seed=2, **{name: value})
    groups = report.groups(report.entries([tmp_path]))
    assert [[run.seed for run in group.runs] for group in groups] == [[2], [0, 1]]
    assert [group.figure() for group in groups] == pytest.approx([0.9, 0.6])
    assert groups[0].name == f"afl ({words})"
    assert groups[1].name != "afl"


def test_the_seed_and_what_stands_beside_the_figures_make_no_groups(tmp_path: Path) -> None:
    put(tmp_path / "a", {"x": 0.5}, participation=1)
    put(tmp_path / "b", {"x": 0.7}, seed=1, alone=True, participation=1.0)
    (group,) = report.groups(report.entries([tmp_path]))
    assert group.name == "afl"
    assert group.figure() == pytest.approx(0.6)


def test_a_result_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    put(tmp_path / "a", {"x": 0.5})
    put(tmp_path / "b", {"x": 0.5}, alone=True)
    put(tmp_path / "c", {"x": 0.9}, seed=1)
    (group,) = report.groups(report.entries([tmp_path]))
    assert group.figure() == pytest.approx(0.7)
    assert "from 3 runs (1 of them a copy, not counted twice)" in read(tmp_path)[1]


def test_runs_from_python_are_told_apart_by_their_data(tmp_path: Path) -> None:
    def federation(shift: float) -> fs.Federation:
        rows = [[shift, 1.0], [1.0, shift], [0.5, 2.0], [2.0, 0.5]]
        return fs.Federation.from_arrays({name: {"train": (rows, [0, 1, 0, 1])} for name in ("a", "b")})

    for shift in (0.0, 0.25):
        for seed in (0, 1):
            fs.run(fs.AFL(ridge=0.0, intercept=False), federation(shift), seed=seed).save(tmp_path / f"{shift}-{seed}")
    groups = report.groups(report.entries([tmp_path]))
    assert sorted([run.seed for run in group.runs] for group in groups) == [[0, 1], [0, 1]]
    assert all("fingerprint=" in group.name for group in groups)
    assert len(report.sections(report.entries([tmp_path]))) == 2


def test_clients_that_a_limit_left_are_an_outcome_of_the_seed(tmp_path: Path) -> None:
    common: dict[str, Any] = {"data": "wards.csv", "partition": "by-client", "limit": 50}
    put(tmp_path / "a", {"x": 0.5}, clients=7, **common)
    put(tmp_path / "b", {"x": 0.7}, clients=8, seed=1, **common)
    assert len(report.groups(report.entries([tmp_path]))) == 1


# --- what is held against what ---


@pytest.mark.parametrize(
    "other",
    [
        {"data": "mnist"},
        {"partition": "iid"},
        {"clients": 3},
        {"test": 0.5},
        {"limit": 9},
        {"features": "unit"},
        {"seed": 1},
    ],
)
def test_no_gain_against_training_alone_on_other_samples(tmp_path: Path, other: dict[str, Any]) -> None:
    put(tmp_path / "afl", {"x": 0.9, "y": 0.5})
    put(tmp_path / "elsewhere", {"x": 0.1, "y": 0.1}, **{"method": "local", **other})
    runs = report.entries([tmp_path])
    afl = next(group for group in report.groups(runs) if group.method == "afl")
    assert report.gains(afl, runs) == {}
    assert "against training alone" not in read(tmp_path)[1]
    put(tmp_path / "here", {"x": 0.6, "y": 0.6}, method="local")
    runs = report.entries([tmp_path])
    assert report.gains(afl, runs) == pytest.approx({"x": 30.0, "y": -10.0})


def test_no_gain_against_data_of_another_fingerprint(tmp_path: Path) -> None:
    put(tmp_path / "afl", {"x": 0.9})
    put(tmp_path / "local", {"x": 0.1}, method="local")
    for name in ("afl", "local"):
        change(tmp_path / name, data={"name": "digits", "fingerprint": name})
    runs = report.entries([tmp_path])
    assert report.gains(next(g for g in report.groups(runs) if g.method == "afl"), runs) == {}


def test_training_alone_has_the_settings_of_the_method_beside_it(tmp_path: Path) -> None:
    put(tmp_path / "afl", {"x": 0.9}, set={"intercept": True})
    put(tmp_path / "local-a", {"x": 0.1}, method="local", set={"intercept": False})
    put(tmp_path / "local-b", {"x": 0.8}, method="local", set={"intercept": True})
    put(tmp_path / "local-c", {"x": 0.2}, method="local", set={"intercept": False, "ridge": 3.0})
    runs = report.entries([tmp_path])
    afl = next(group for group in report.groups(runs) if group.method == "afl")
    assert report.gains(afl, runs) == pytest.approx({"x": 10.0})


def test_data_sets_have_sections_of_their_own(tmp_path: Path) -> None:
    for data, best in (("digits", 0.9), ("mnist", 0.4)):
        put(tmp_path / data / "afl", {"x": best, "y": best}, data=data)
        put(tmp_path / data / "fedhip", {"x": best - 0.1, "y": best - 0.1}, data=data, method="fedhip")
        put(tmp_path / data / "local", {"x": best - 0.2, "y": best - 0.2}, data=data, method="local")
    digits, mnist = report.sections(report.entries([tmp_path]))
    assert (digits.name, mnist.name) == ("digits", "mnist")
    assert [group.name for group in mnist.groups] == ["afl", "fedhip", "local"]
    assert [plots.colour(group) for group in digits.groups] == [plots.colour(group) for group in mnist.groups]
    page, words = read(tmp_path)
    assert "6 runs on 2 data sets or splits" in words
    assert page.count('<section class="split">') == 2
    assert "afl is the most accurate: 90.0 %" in words
    assert "afl is the most accurate: 40.0 %" in words
    assert "afl 90.0 40.0 fedhip 80.0 30.0 local 70.0 20.0" in words
    assert "65.0" not in words  # the mean over both


def test_splits_of_one_data_set_have_sections_named_by_what_differs(tmp_path: Path) -> None:
    for clients in (10, 100):
        put(tmp_path / str(clients), {"x": 0.5}, clients=clients)
    names = [section.name for section in report.sections(report.entries([tmp_path]))]
    assert sorted(names) == ["digits, clients 10", "digits, clients 100"]


# --- one run ---


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single") / "run"
    settings = Settings(method="fedhip", data="digits", clients=6, partition="dirichlet:0.3")
    experiment.execute(settings).save(folder)
    return folder


def test_one_run_is_said_plainly(single: Path) -> None:
    content = json.loads((single / "result.json").read_text())
    words = read(single)[1]
    assert "most accurate" not in words
    assert f"fedhip : {100 * content['accuracy']['mean']:.1f} % accuracy on average over 6 clients" in words
    assert "in 1 round and" in words
    assert "from 1 run;" in words
    assert " seed 0 " in words
    assert "whiskers" not in words
    assert not re.search(r"\b1 (runs|seeds|rounds|clients)\b", words)


def test_one_run_shows_training_alone_and_the_global_model(single: Path) -> None:
    clients = json.loads((single / "result.json").read_text())["clients"]
    page, words = read(single)
    for name, whose in (("training alone", "alone"), ("the global model", "global")):
        mean = 100 * sum(client[whose]["accuracy"] for client in clients.values()) / len(clients)
        assert f"{name} {mean:.1f} %" in words
        assert f">{mean:.2f}</td>" in page
        for client, figures in clients.items():
            assert f"<title>{client}: {100 * figures[whose]['accuracy']:.1f} %</title>" in page
    (group,) = report.groups(report.entries([single]))
    assert [row.name for row in plots.client_rows([group])] == ["fedhip", "fedhip: global model", "training alone"]


def test_rows_beside_a_method_say_nothing_twice(tmp_path: Path) -> None:
    for number, name in enumerate(("afl", "fedhip")):
        put(tmp_path / name, {"x": 0.8 + number / 10}, method=name)
        change(tmp_path / name, clients={"x": {"accuracy": 0.8 + number / 10, "global": 0.8, "alone": 0.3}})
    rows = plots.client_rows(report.groups(report.entries([tmp_path])))
    assert [(row.name, row.clients["x"]) for row in rows] == [
        ("fedhip", 0.9), ("fedhip: global model", 0.8), ("afl", 0.8), ("training alone", 0.3),
    ]  # fmt: skip
    put(tmp_path / "local", {"x": 0.3}, method="local")
    rows = plots.client_rows(report.groups(report.entries([tmp_path])))
    assert [row.name for row in rows] == ["fedhip", "fedhip: global model", "afl", "local"]


def test_figures_of_some_seeds_do_not_stand_beside_those_of_all(tmp_path: Path) -> None:
    put(tmp_path / "a", {"x": 0.5})
    put(tmp_path / "b", {"x": 0.7}, seed=1)
    change(tmp_path / "a", clients={"x": {"accuracy": 0.5, "alone": 0.4}})
    rows = plots.client_rows(report.groups(report.entries([tmp_path])))
    assert [row.name for row in rows] == ["afl"]


def test_methods_that_are_level_share_the_first_place(tmp_path: Path) -> None:
    for name in ("afl", "fedhip", "local"):
        put(tmp_path / name, {"x": 0.5 if name == "local" else 0.75}, method=name)
    assert "afl and fedhip are the most accurate: 75.0 %" in read(tmp_path)[1]


# --- format 2 ---


def second_format(accuracy: float | None, **further: float) -> dict[str, Any]:
    """A result of format 2 with two clients; `further` are metrics beside the accuracy."""
    metrics = further if accuracy is None else {"accuracy": accuracy, **further}
    plain = {} if accuracy is None else {"accuracy": accuracy}
    client = {
        "train": 8, "test": 2, **plain, "metrics": metrics,
        "global": {name: value / 2 for name, value in metrics.items()},
        "alone": {name: value / 4 for name, value in metrics.items()},
    }  # fmt: skip
    over = {name: {"mean": v, "pooled": v, "std": 0.0, "worst_decile": v} for name, v in metrics.items()}
    lines = [
        {"round": n, "metrics": {name: {"mean": v / 3 * n, "pooled": v} for name, v in metrics.items()}}
        for n in (1, 2, 3)
    ]
    return {
        "format": 2, "method": "afl", "settings": SETTINGS, "clients": {"x": client, "y": client},
        **({} if accuracy is None else {"accuracy": over["accuracy"]}), "metrics": over, "rounds": 3,
        "bytes": {"up": 1, "down": 1}, "seconds": {"total": 0.1}, "history": lines,
        "data": {"name": "digits", "fingerprint": ""},
    }  # fmt: skip


def test_both_formats_give_the_same_figures(tmp_path: Path) -> None:
    write(tmp_path / "new", second_format(0.8, auc=0.9))
    plain = {"train": 8, "test": 2, "accuracy": 0.8, "global": 0.4, "alone": 0.2}
    put(tmp_path / "old", {"x": 0.8, "y": 0.8})
    change(tmp_path / "old", clients={"x": plain, "y": plain})
    new, old = report.entries([tmp_path / "new"])[0], report.entries([tmp_path / "old"])[0]
    for whose, value in (("own", 0.8), ("global", 0.4), ("alone", 0.2)):
        assert new.figures(whose) == old.figures(whose) == {"x": value, "y": value}  # type: ignore[arg-type]
        assert new.mean(whose) == pytest.approx(old.mean(whose))  # type: ignore[arg-type]
    assert new.summary("worst_decile") == old.summary("worst_decile") == 0.8
    assert new.history() == pytest.approx({1: 0.8 / 3, 2: 1.6 / 3, 3: 0.8})
    (group,) = report.groups([new])
    assert report.gains(group, [new]) == pytest.approx({"x": 60.0, "y": 60.0})


def test_further_metrics_are_a_table(tmp_path: Path) -> None:
    write(tmp_path / "a", second_format(0.8, auc=0.9, log_loss=0.44))
    write(tmp_path / "b", {**second_format(0.6, auc=0.7), "settings": {**SETTINGS, "seed": 1}})
    page, words = read(tmp_path)
    table = words[words.index("Further metrics") : words.index("Every run")]
    assert "method auc log_loss afl 0.8 0.44 afl: global model 0.4 0.22 afl: training alone 0.2 0.11" in table
    assert "accuracy" not in table
    assert "Round by round" in words
    assert page.count("<title>x: 70.0 %</title>") == 1


def test_format_1_has_no_table_of_further_metrics(tmp_path: Path) -> None:
    put(tmp_path / "a", {"x": 0.5})
    assert "Further metrics" not in read(tmp_path)[1]


def test_runs_without_an_accuracy_have_a_page(tmp_path: Path) -> None:
    content = second_format(None, rmse=2.0, r2=0.5)
    content["metrics"]["r2"]["mean"] = None  # a client without spread has none
    write(tmp_path / "a", content)
    words = read(tmp_path)[1]
    assert "These runs have no accuracy; their metrics are in a table below." in words
    assert "method rmse r2 afl 2 0.5 " in words


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", {**second_format(0.5), "format": 3})
    with pytest.raises(DataError, match="format 3; this version reads 1 and 2"):
        report.entries([tmp_path])


# --- the file ---


@pytest.mark.parametrize("name", ["x.csv", "x", "x.pdf", "x.html.gz", "html"])
def test_a_page_goes_only_into_a_file_for_pages(tmp_path: Path, name: str) -> None:
    put(tmp_path / "run", {"x": 0.5})
    with pytest.raises(ParameterError, match=r"must end in \.html"):
        report.write([tmp_path / "run"], tmp_path / name)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--out", str(tmp_path / name)])
    assert done.exit_code != 0
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["x.html", "x.htm", "X.HTML"])
def test_pages_are_html_or_htm(tmp_path: Path, name: str) -> None:
    put(tmp_path / "run", {"x": 0.5})
    assert report.write([tmp_path / "run"], tmp_path / name).read_text().startswith("<!doctype html>")


def test_costs_have_numbers_on_their_axis(tmp_path: Path) -> None:
    for name, seconds in (("afl", 0.021), ("fedhip", 0.022)):
        put(tmp_path / name, {"x": 0.5}, method=name)
        change(tmp_path / name, seconds={"total": seconds})
    page, _ = read(tmp_path)
    plot = page[page.index("How long it takes") :]
    plot = plot[: plot.index("</figure>")]
    assert len(re.findall(r">[\d.]+ s</text>", plot)) >= 2


def test_a_method_that_was_evaluated_once_is_no_line(tmp_path: Path) -> None:
    """After its last round alone: a point beside lines of others, and no figure of its own."""
    last = put(tmp_path / "last", {"a": 0.5, "b": 0.7}, method="fedavg", rounds=9)
    change(last, rounds=9, history=[{"round": 9, "accuracy": 0.6, "missing": []}])
    _, words = read(last)
    assert "Round by round" not in words
    course = put(tmp_path / "course", {"a": 0.5, "b": 0.7}, method="fedprox", rounds=9)
    history = [{"round": number, "accuracy": 0.05 * number, "missing": []} for number in range(1, 10)]
    change(course, rounds=9, history=history)
    _, words = read(tmp_path)
    assert "Round by round" in words and "fedavg, after round 9" in words and "1 round " not in words
