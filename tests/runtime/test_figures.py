"""What is printed and drawn of any metric: numbers as targets, the best constant answer, probabilities."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import report
from fedsolve.cli.show import below_constant, imbalance, show
from fedsolve.cli.text import run_line
from fedsolve.cli.waiting import _round_line as round_line
from fedsolve.errors import DataError, FedsolveError, UnknownNameError
from fedsolve.metrics import calibration
from fedsolve.report import answers, plots
from fedsolve.study import experiment
from fedsolve.study.experiment import Prepared, Settings
from tests.conftest import unsealed
from tests.runtime.test_cli import Command, figures
from tests.runtime.test_report_figures import read


def pressures(names: tuple[str, ...] = ("pressure",), seed: int = 0) -> fs.Federation:
    """Seven wards of different sizes and habits, with numbers far from zero to predict."""
    rng = np.random.default_rng(seed)
    slopes, parts = rng.normal(size=(3, len(names))), {}
    for number in range(7):
        x = rng.normal(size=(14 + 4 * number, 3))
        noise = rng.normal(size=(len(x), len(names)))
        y = 120 + 5 * rng.normal() + 8 * x @ (slopes + 0.3 * rng.normal(size=slopes.shape)) + 3 * noise
        half = len(x) // 2
        parts[f"ward-{number}"] = {"train": (x[:half], y[:half]), "test": (x[half:], y[half:])}
    return fs.Federation.from_arrays(parts, target=fs.Numbers(names))


def executed(federation: fs.Federation, **settings: Any) -> fs.Result:
    """A run as the command line makes it, of clients that are here."""
    chosen = Settings(**{"method": "fedhip", "set": {"intercept": True}, **settings})
    return experiment.execute(chosen, prepared=Prepared(federation, 0.0, experiment._labels(federation), "by-client"))


def errors(federation: fs.Federation, answers: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(answers[name]) - client.test.labels for name, client in federation.clients.items()}


def rmse(errors: np.ndarray) -> float:
    return float(np.sqrt(np.square(errors).mean(axis=0)).mean())


@pytest.fixture(scope="module")
def wards() -> fs.Federation:
    return pressures()


@pytest.fixture(scope="module")
def result(wards: fs.Federation) -> fs.Result:
    return executed(wards)


# --- figures of numbers ---


def test_pooled_figures_of_all_models_are_those_of_all_samples_together() -> None:
    """Also of several numbers, where the mean of roots does not follow from those of clients."""
    federation = pressures(("systolic", "diastolic"))
    found = executed(federation)
    alone = fs.run(fs.Local(intercept=True), federation)
    assert found.shared is not None
    inputs = {name: client.test.inputs for name, client in federation.clients.items()}
    every = {
        "personal": errors(federation, {name: found.models[name].predict(x) for name, x in inputs.items()}),
        "shared": errors(federation, {name: found.shared.predict(x) for name, x in inputs.items()}),
        "alone": errors(federation, {name: alone.models[name].predict(x) for name, x in inputs.items()}),
        "constant": errors(federation, {n: c.train.labels.mean(axis=0) for n, c in federation.clients.items()}),
    }
    for whose, parts in every.items():
        spread = found.spread(whose)  # type: ignore[arg-type]
        each = sorted(map(rmse, parts.values()))
        assert spread.pooled == pytest.approx(rmse(np.concatenate(list(parts.values()))))
        assert spread.mean == pytest.approx(np.mean(each))
        assert spread.worst_decile == pytest.approx(each[-1])  # one of seven, and the greatest
        for name, error in parts.items():
            assert found.clients[name].of(whose)["rmse"] == pytest.approx(rmse(error))  # type: ignore[arg-type]


def test_a_result_of_numbers_comes_back_from_disk(result: fs.Result, tmp_path: Path) -> None:
    loaded = fs.Result.load(result.save(tmp_path / "run"))
    assert loaded.main == result.main == "rmse"
    for whose in ("personal", "shared", "alone", "constant"):
        assert loaded.spread(whose) == result.spread(whose)
    assert loaded.clients == result.clients
    assert repr(loaded) == f"Result('fedhip', 7 clients, 1 rounds, mean rmse {result.metrics['rmse'].mean:.3f})"
    assert loaded.calibration == ()
    assert loaded.confusion == ()


def test_the_metric_asked_for_is_the_main_one(wards: fs.Federation) -> None:
    found = executed(wards, metric="r2")
    assert found.main == "r2"
    assert found.spread() == found.metrics["r2"]
    assert "mean R2 0." in repr(found)


def test_labels_of_numbers_are_told_by_their_means(wards: fs.Federation, result: fs.Result) -> None:
    for name, client in wards.clients.items():
        labels = np.concatenate([client.train.labels, client.test.labels])
        assert result.data["means"][name] == pytest.approx(labels.mean(axis=0))
    assert "split" not in result.data


# --- the terminal ---


def shown(result: fs.Result, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(result, Path("out"))
    return capsys.readouterr().out.strip().splitlines()


def test_a_run_on_numbers_is_printed(result: fs.Result, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(result, capsys)
    assert lines[0].startswith("fedhip on digits predicts numbers `pressure`: 7 clients")
    assert "%" not in "".join(lines)
    start = next(number for number, line in enumerate(lines) if line.startswith("ward-"))
    rows = [line.split() for line in lines[start : start + 7]]
    assert "under" in " ".join(lines[1:start])
    values = [float(row[3]) for row in rows]
    assert values == sorted(values, reverse=True)  # the worst first
    for row in rows:
        client = result.clients[row[0]]
        own, alone, shared = (each["rmse"] for each in (client.metrics, client.alone_metrics, client.shared_metrics))
        assert [float(cell) for cell in row[1:8]] == pytest.approx(
            [client.train, client.test, own, alone, alone - own, shared, shared - own], rel=5e-3
        )
    for title, whose in (("training alone", "alone"), ("best constant answer", "constant"), ("fedhip ", "personal")):
        line = next(line for line in lines if line.startswith(title) and "predicts" not in line)
        spread = result.spread(whose)  # type: ignore[arg-type]
        wanted = [spread.mean, spread.pooled, spread.worst_decile]
        assert [float(cell) for cell in line.split()[-3:]] == pytest.approx(wanted, rel=5e-4)
    assert "constant answer:" not in " ".join(lines)


def test_numbers_worse_than_the_mean_are_told_so(wards: fs.Federation, capsys: pytest.CaptureFixture[str]) -> None:
    found = executed(wards, method="afl", set={"intercept": False})
    said = f"afl is worse than the best constant answer: each client's mean gives rmse {found.baseline['rmse']:.2f}"
    assert said in " ".join(" ".join(shown(found, capsys)).split())


def test_a_line_of_a_comparison_and_of_a_round(result: fs.Result) -> None:
    over = result.metrics["rmse"]
    line = run_line("fedhip", 0, result.json(), 1, 2)
    assert f"rmse mean {over.mean:.3f}  pooled {over.pooled:.3f}  worst tenth {over.worst_decile:.3f}  " in line
    assert f"MAE mean {result.metrics['mae'].mean:.3f}".lower() in run_line("f", 0, result.json(), 1, 2, "mae")
    assert run_line("f", 0, result.json(), 1, 2, "accuracy") == run_line("f", 0, result.json(), 1, 2)
    assert round_line(result.history[0], 3, None).startswith(f"round 1 of 3: rmse {over.mean:.3f}, ")
    assert round_line(result.history[0], 3, "mae").startswith("round 1 of 3: mae ")
    assert round_line(replace(result.history[0], metrics={}), 3, None).startswith("round 1 of 3: 0.")


def test_run_shows_the_metric_asked_for(command: Command, tmp_path: Path) -> None:
    done = command("run", "--clients", "4", "--metric", "log_loss", "--out", "out")
    assert done.code == 0
    found = figures(tmp_path / "out")
    assert found["settings"]["metric"] == "log_loss"
    line = next(line for line in done.out.splitlines() if line.startswith("fedprior  "))
    assert float(line.split()[1]) == pytest.approx(found["metrics"]["log_loss"]["mean"], rel=5e-4)
    rows = [float(line.split()[3]) for line in done.out.splitlines() if line.startswith("client-")]
    assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rmse", "unknown metric of a target that is classes: 'rmse'; known: accuracy, auc, balanced_accuracy"),
        ("acuracy", "unknown metric 'acuracy'; did you mean 'accuracy'"),
    ],
)
@pytest.mark.parametrize("words", [("run",), ("compare", "--methods", "afl")])
def test_a_metric_that_is_not_there_is_refused(
    command: Command, tmp_path: Path, name: str, said: str, words: tuple[str, ...]
) -> None:
    if words[0] == "compare":
        pytest.importorskip("matplotlib", reason="compare needs it for its page")
    done = command(*words, "--clients", "3", "--metric", name, "--out", "out")
    assert done.code == 2
    assert said in done.err
    assert not list(tmp_path.rglob("*.json"))


def rare(command: Command, tmp_path: Path, share: int, *more: str) -> tuple[str, dict[str, Any]]:
    """A run on two classes, one of which has one in `share` samples; what it prints, and its result.json."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4)), (np.arange(300) % share == 0).astype(int)
    np.savez(tmp_path / "rare.npz", x=x + y[:, None], y=y)
    options = ("--data", "rare.npz", "--partition", "iid", "--clients", "3", "--out", "out", *more)
    done = command("run", *options)
    assert done.code == 0, done.err
    return " ".join(done.out.split()), figures(tmp_path / "out")


def test_classes_far_from_equal_are_told_with_other_figures(command: Command, tmp_path: Path) -> None:
    words, found = rare(command, tmp_path, 10)
    auc, balanced = (found["metrics"][name]["mean"] for name in ("auc", "balanced_accuracy"))
    wanted = f"class 0, so accuracy says little: AUC {auc:#.4g}, balanced accuracy {100 * balanced:.1f} % (mean over"
    assert wanted in words
    assert words.startswith("fedprior on rare.npz predicts 2 classes: 3 clients")
    assert "best constant answer" in words


def test_other_figures_and_other_classes_are_no_reason_to_say_so(command: Command, tmp_path: Path) -> None:
    assert "accuracy says little" not in rare(command, tmp_path, 10, "--metric", "auc")[0]
    assert "accuracy says little" not in rare(command, tmp_path, 3)[0]


def test_sentences_need_figures(result: fs.Result) -> None:
    bare = replace(result, baseline={}, metrics={}, confusion=())
    assert below_constant(bare) == imbalance(bare) == ""


def test_another_metric_is_shown_of_the_same_runs(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="compare needs it for its page")
    words = ("compare", "--methods", "afl", "--clients", "3", "--out", "cmp")
    assert "most accurate" in (command(*words), (tmp_path / "cmp" / "report.html").read_text())[1]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    done = command(*words, "--metric", "brier")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == before
    mean = figures(tmp_path / "cmp" / "afl-0")["metrics"]["brier"]["mean"]
    assert f"Brier score mean {mean:#.4g}" in done.out
    assert "has the least Brier score" in (tmp_path / "cmp" / "report.html").read_text()
    assert command("report", "cmp", "--metric", "macro_f1", "--out", "f1.html").code == 0
    assert "has the greatest macro F1" in (tmp_path / "f1.html").read_text()


# --- notebooks and data frames ---


def test_a_notebook_shows_numbers(result: fs.Result) -> None:
    table = result._repr_html_()
    assert "<th>rmse</th><th>alone</th><th>global</th>" in table
    assert "%" not in table
    names = re.findall(r"<td>(ward-\d)</td>", table)
    assert names == sorted(result.clients, key=lambda name: -result.clients[name].metrics["rmse"])
    assert f"best constant answer {result.spread('constant').mean:.3f}" in table


def test_a_data_frame_has_one_row_per_client(result: fs.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = result.to_frame()
    assert list(frame.index) == list(result.clients)
    assert list(frame.columns[:5]) == ["train", "test", "rmse", "mae", "r2"]
    for name, client in result.clients.items():
        assert frame.loc[name, "rmse"] == client.metrics["rmse"]
        assert frame.loc[name, "alone_r2"] == client.alone_metrics["r2"]
        assert frame.loc[name, "global_mae"] == client.shared_metrics["mae"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedsolveError, match="needs pandas: pip install pandas"):
        result.to_frame()


# --- calibration ---


def test_calibration_is_that_of_the_probabilities_of_personal_models(tmp_path: Path) -> None:
    federation = fs.load("wards").split("by-client", test=0.5)
    result = fs.run(fs.FedHiP(intercept=True), federation)
    clients = federation.clients

    def probabilities(model: fs.Model, features: np.ndarray) -> np.ndarray:
        scores = model.method.predict(model.arrays, features, model.task)
        return model.method.probabilities(model.arrays, scores)

    shares = np.concatenate([probabilities(result.models[n], c.test.inputs) for n, c in clients.items()]).ravel()
    right = np.concatenate([np.eye(3)[c.test.labels] for c in clients.values()]).ravel()
    assert sum(each.count for each in result.calibration) == len(shares)
    for each in result.calibration:  # samples within a bin, but for those within the width of a tally's bin of its ends
        low, high = each.place / 20, (each.place + 1) / 20
        inner, outer = ((shares >= low + slack) & (shares < high - slack) for slack in (0.015, -0.015))
        assert inner.sum() <= each.count <= outer.sum()
        assert right[inner].sum() - 1e-9 <= each.count * each.share <= right[outer].sum() + 1e-9
    loaded = fs.Result.load(result.save(tmp_path / "run"))
    assert loaded.calibration == result.calibration
    assert len(unsealed(tmp_path / "run" / "result.json")["calibration"]) <= calibration.BINS


@pytest.mark.parametrize("value", [None, [1], [{"count": 1, "probability": 2, "share": 0}], {"a": 1}])
def test_a_result_with_another_calibration_is_refused(result: fs.Result, tmp_path: Path, value: Any) -> None:
    path = result.save(tmp_path / "run") / "result.json"
    path.write_text(json.dumps({**unsealed(path), "calibration": value}))
    with pytest.raises(DataError, match=r"result\.json is damaged: calibration must"):
        fs.Result.load(tmp_path / "run")


# --- the page ---


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, wards: fs.Federation) -> Path:
    """Three methods on numbers, and two on classes."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("both")
    for name, method in (
        ("fedhip", fs.FedHiP(intercept=True)),
        ("afl", fs.AFL(ridge=0.0, intercept=False)),
        ("local", fs.Local()),
    ):
        fs.run(method, wards).save(folder / "numbers" / name)
    for name in ("afl", "fedhip"):
        settings = Settings(method=name, data="wards", partition="by-client", test=0.5, set={"intercept": True})
        experiment.execute(settings).save(folder / "classes" / name)
    return folder


def test_a_page_of_numbers(compared: Path, wards: fs.Federation) -> None:
    page, words = read(compared / "numbers")
    runs = report.entries([compared / "numbers"])
    (part,) = report.sections(runs)
    assert part.metric == "rmse"
    means = [group.figure() for group in part.groups]
    assert means == sorted(means, key=lambda value: value or 0.0)
    best = part.groups[0]
    assert f"{best.name} has the least rmse: {best.figure():.3f} on average over clients" in words
    constant = errors(wards, {name: client.train.labels.mean(axis=0) for name, client in wards.clients.items()})
    value = np.mean([rmse(error) for error in constant.values()])
    assert part.constant() == pytest.approx(value)
    assert f"afl is worse than the best constant answer, rmse {value:.3f}" in words
    for text in ("RMSE", "rmse on own test data (less is better)", "rmse under training alone", "constant answer"):
        assert text in words
    assert "accuracy" not in words and "Calibration" not in words and "class by class" not in words
    assert "method mae r2 " in words and " mean pooled std worst tenth " in words
    fedhip, local = (next(run for run in runs if run.method == name).figures() for name in ("fedhip", "local"))
    found = report.gains(next(group for group in part.groups if group.method == "fedhip"), runs)
    assert found == pytest.approx({name: local[name] - fedhip[name] for name in local})
    for name, gain in found.items():
        assert f"<title>{name}: {gain:+#.3g}</title>" in page


def test_a_page_of_both_kinds(compared: Path) -> None:
    _, words = read(compared)
    classes, numbers = report.sections(report.entries([compared]))
    assert (classes.name, classes.metric, numbers.name, numbers.metric) == ("wards", "accuracy", "arrays", "rmse")
    assert "method wards: accuracy, % arrays: rmse " in words
    fedhip = [next(g.figure() for g in part.groups if g.method == "fedhip") for part in (classes, numbers)]
    assert f" fedhip {100 * (fedhip[0] or 0):.1f} " in words
    assert f"best constant answer {100 * (classes.constant() or 0):.1f} {numbers.constant():.3f}" in words
    assert "is the most accurate" in words and "has the least rmse" in words
    assert re.search(r"arrays 0 rmse \d\.\d+", words) and re.search(r"wards 0 accuracy \d\d\.\d\d %", words)


def test_a_page_by_another_metric(compared: Path) -> None:
    page = report.write([compared], compared / "auc.html", "auc").read_text()
    assert "has the greatest AUC: 0." in page and "has the least rmse" in page
    assert [part.metric for part in report.sections(report.entries([compared]), "auc")] == ["auc", "rmse"]
    with pytest.raises(UnknownNameError, match="unknown metric 'rsme'; did you mean 'rmse'"):
        report.write([compared], compared / "x.html", "rsme")
    with pytest.raises(UnknownNameError, match="known: mae, r2, rmse"):
        report.write([compared / "numbers"], compared / "x.html", "auc")
    assert not (compared / "x.html").exists()


def test_runs_that_ask_for_a_metric_are_shown_by_it(wards: fs.Federation, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for seed in (0, 1):
        executed(wards, metric="mae", seed=seed).save(tmp_path / str(seed))
    (part,) = report.sections(report.entries([tmp_path]))
    assert part.metric == "mae"
    executed(wards, metric="r2", seed=2).save(tmp_path / "2")
    (part,) = report.sections(report.entries([tmp_path]))
    assert (part.metric, len(part.groups)) == ("rmse", 1)  # they are seeds of one another, and do not agree
    assert "mean pressure" in read(tmp_path)[1]  # how the data are split


def test_probabilities_and_answers_are_drawn(compared: Path) -> None:
    page, words = read(compared / "classes")
    runs = report.entries([compared / "classes"])
    (part,) = report.sections(runs)
    assert "Calibration" in words and "of all classes, each against the rest" in words
    for number, group in enumerate(part.groups):
        for each in answers.curve_of(group.runs[0]):
            line = f"{group.name}: {100 * each.share:.1f} % of {each.count} with {100 * each.probability:.1f} %"
            assert f"<title>{line}</title>" in page, number
    figure = page[page.index("Answers, class by class") :].partition("</figure>")[0]
    written = re.findall(r"<text[^>]*>([^<]*)</text>", figure)
    assert {"home", "intensive", "rehab"} <= set(written)
    counts = part.groups[0].runs[0].result["confusion"]
    assert {str(value) for row in counts for value in row} <= set(written)


@pytest.mark.parametrize("table", [[], [[1]], [[1, 2]], [[1, 2], [3]], [[0, 0], [0, 0]], [[1] * 21] * 21])
def test_tables_that_are_no_confusion_of_few_classes_are_not_drawn(table: list[list[int]]) -> None:
    assert answers.square(table) == []


def test_a_constant_answer_far_away_is_no_line() -> None:
    row = plots.Row("afl", "red", {"a": 0.9, "b": 0.95}, [0.925])
    assert plots.near(0.86, [row]) and plots.near(0.99, [row])
    assert not plots.near(0.5, [row])
