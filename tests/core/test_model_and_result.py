from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve import arrays, codec, disk, grouping
from fedsolve.data.federation import Federation
from fedsolve.data.task import Classes, Task
from fedsolve.errors import DataError
from fedsolve.result import ClientResult, Result, Spread, spreads
from tests.conftest import unsealed


def federation(seed: int = 0, *, test: bool = True, names: tuple[str, ...] = ("a", "b", "c")) -> Federation:
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(3, 5))
    clients = {}
    for name in names:
        y = rng.integers(3, size=24)
        x = centres[y] + rng.normal(size=(24, 5))
        clients[name] = {"train": (x[:16], y[:16])} | ({"test": (x[16:], y[16:])} if test else {})
    return Federation.from_arrays(clients, classes=3, class_names=("red", "green", "blue"))


@pytest.fixture(scope="module")
def result() -> Result:
    return fs.run(fs.FedHiP(beta=1.0, intercept=False), federation())


@pytest.fixture
def model(result: Result) -> fs.Model:
    return result.models["a"]


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- models ---


@pytest.mark.parametrize(
    "method",
    [
        fs.Local(intercept=False),
        fs.AFL(ridge=1.0, intercept=False),
        fs.FedHiP(beta=1.0, intercept=False),
        fs.FedHiP(alpha=2, intercept=True, beta=1.0),
    ],
)
def test_a_saved_model_gives_the_same_scores_bit_for_bit(tmp_path: Path, method: fs.Method) -> None:
    made = fs.run(method, federation()).models["b"]
    made.save(tmp_path / "m.safetensors")
    found = fs.load_model(tmp_path / "m.safetensors")
    x = np.random.default_rng(1).normal(size=(50, 5))
    assert found.scores(x).tobytes() == made.scores(x).tobytes()
    np.testing.assert_array_equal(found.predict(x), made.scores(x).argmax(1))
    assert found.method == method
    assert found.task == made.task
    assert found.owner == "b"
    assert arrays.same(found.arrays, made.arrays)


def test_a_model_file_holds_weight_and_all_it_takes_to_predict(tmp_path: Path, model: fs.Model) -> None:
    safetensors = pytest.importorskip("safetensors")
    model.save(tmp_path / "m.safetensors")
    with safetensors.safe_open(tmp_path / "m.safetensors", framework="numpy") as file:
        assert file.get_tensor("weight").shape == (5, 3)  # features x classes
        metadata = file.metadata()
    assert set(metadata) == {"fedsolve", "method", "settings", "owner", "task", "content-digest"}
    assert metadata["fedsolve"] == "2"
    assert metadata["method"] == "fedhip"
    assert json.loads(metadata["task"]) == {
        "target": {"kind": "classes", "count": 3, "names": ["red", "green", "blue"]},
        "inputs": [5],
        "feature_names": [],
        "features": "identity",
        "identity": "identity",
        "shape": [5],
    }


@pytest.mark.parametrize("shape", [(4, 4), (4, 6), (4, 1, 5), (4, 5, 1)])
def test_inputs_of_the_wrong_shape_are_refused(model: fs.Model, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError) as error:
        model.predict(np.zeros(shape))
    assert f"the model of 'a' takes inputs of shape (5,); got {shape[1:]}" in str(error.value)


def test_inputs_that_are_not_finite_numbers_are_refused(model: fs.Model) -> None:
    with pytest.raises(DataError, match="inputs must be finite; got nan in row 0, column 2"):
        model.predict([[0, 0, np.nan, 0, 0]])
    with pytest.raises(DataError, match="one row per sample"):
        model.predict(np.zeros(5))


def test_no_inputs_give_no_predictions(model: fs.Model) -> None:
    assert model.predict(np.zeros((0, 5))).shape == (0,)
    assert model.scores(np.zeros((0, 5))).shape == (0, 3)


def refused(path: Path, *wanted: str) -> None:
    """One sentence, in one line, that names the file."""
    with pytest.raises(DataError) as error:
        fs.load_model(path)
    text = str(error.value)
    assert str(path) in text
    assert "\n" not in text
    for part in wanted:
        assert part in text


@given(cut=st.integers(0, 10_000))
def test_a_truncated_model_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    task = Task(Classes(2), (3,))
    whole = bytes(
        codec.encode(
            {"weight": np.ones((3, 2))}, fs.Model(fs.AFL(ridge=0.0, intercept=False), task, {}, "a").metadata()
        )
    )
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    path.write_bytes(whole)
    assert fs.load_model(path).predict(np.ones((1, 3))).tolist() == [0]
    path.write_bytes(whole[: cut % len(whole)])
    refused(path, "is damaged")


@pytest.mark.parametrize("bit", [1, 32])
def test_a_spoilt_model_is_refused_or_read_but_never_crashes(tmp_path: Path, bit: int) -> None:
    task, path = Task(Classes(2), (3,)), tmp_path / "spoilt.safetensors"
    whole = bytes(
        codec.encode(
            {"weight": np.ones((3, 2))}, fs.Model(fs.AFL(ridge=0.0, intercept=False), task, {}, "a").metadata()
        )
    )
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            found = fs.load_model(path)
        except DataError as error:
            assert str(path) in str(error)
        else:
            assert found.predict(np.ones((4, 3))).shape == (4,)


def format_1(model: fs.Model) -> dict[str, str]:
    """What version 0.1.0 wrote beside the arrays of a model."""
    return {
        "fedsolve": "1",
        "method": model.method.name,
        "settings": model.metadata()["settings"],
        "owner": model.owner,
        "classes": str(model.task.classes),
        "class_names": json.dumps(model.task.class_names),
        "feature_names": json.dumps(model.task.feature_names),
        "inputs": json.dumps(model.task.inputs),
        "features": str(model.task.features),
        "space": model.task.described,
    }


def test_a_model_of_format_1_still_loads(tmp_path: Path, model: fs.Model) -> None:
    codec.write_file(tmp_path / "m.safetensors", model.arrays, format_1(model))
    old = fs.load_model(tmp_path / "m.safetensors")
    assert (old.task, old.method, old.owner) == (model.task, model.method, model.owner)
    assert arrays.same(old.arrays, model.arrays)


def spoil(metadata: dict[str, str], key: str, value: str | None) -> dict[str, str]:
    return {k: v for k, v in (metadata | {key: value}).items() if v is not None}


ANY_FORMAT = [
    ("fedsolve", None, "is not a fedsolve model of format 1 or 2; it says 'none'"),
    ("fedsolve", "3", "is not a fedsolve model of format 1 or 2; it says '3'"),
    ("method", "magic", "unknown method 'magic'"),
    ("method", None, "damaged"),
    ("settings", '{"alpha": -1}', "parameter 'alpha' of FedHiP"),
    ("settings", '{"gamma": 1}', "'gamma'"),
    ("settings", "{", "damaged"),
    ("settings", "7", "m.safetensors"),
    ("owner", None, "damaged"),
]


@pytest.mark.parametrize(("key", "value", "wanted"), [*ANY_FORMAT, ("task", None, "damaged"), ("task", "[", "damaged")])
def test_a_model_whose_metadata_lie_is_refused(
    tmp_path: Path, model: fs.Model, key: str, value: str | None, wanted: str
) -> None:
    codec.write_file(tmp_path / "m.safetensors", model.arrays, spoil(model.metadata(), key, value))
    refused(tmp_path / "m.safetensors", wanted)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        *ANY_FORMAT,
        ("classes", "4", "4 classes"),
        ("classes", "many", "damaged"),
        ("classes", None, "damaged"),
        ("inputs", "[6]", "the features here are not the federation's: (6,) here, (5,) there"),
        ("inputs", "[[5]]", "a side of its inputs must be an integer"),
        ("inputs", "5", "damaged"),
        ("features", "magic", "unknown feature map 'magic'"),
        ("space", "abc", "abc there"),
        ("space", None, "damaged"),
        ("class_names", '["red"]', "m.safetensors"),
        ("class_names", "7", "damaged"),
    ],
)
def test_a_model_of_format_1_whose_metadata_lie_is_refused(
    tmp_path: Path, model: fs.Model, key: str, value: str | None, wanted: str
) -> None:
    codec.write_file(tmp_path / "m.safetensors", model.arrays, spoil(format_1(model), key, value))
    refused(tmp_path / "m.safetensors", wanted)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"target": {"kind": "ranks", "count": 3, "names": []}}, "'ranks'; this version knows classes, numbers"),
        ({"target": {"kind": "classes", "count": 4, "names": []}}, "4 classes"),
        ({"target": {"kind": "classes", "count": 3, "names": ["red"]}}, "must name each of 3 classes; got 1"),
        ({"target": {"kind": "classes", "count": "3", "names": []}}, "classes must be an integer"),
        ({"target": {"kind": [], "count": 3, "names": []}}, "damaged"),
        ({"target": 7}, "damaged"),
        ({"inputs": [6]}, "the features here have the shape (6,), not the federation's (5,)"),
        ({"inputs": [[5]]}, "damaged"),
        ({"inputs": 5}, "damaged"),
        ({"feature_names": "abcde"}, "damaged"),
        ({"features": "magic"}, "unknown feature map 'magic'"),
        ({"features": "unit"}, "the features here are not the federation's: unit here, identity there"),
        ({"identity": "abc"}, "abc there"),
        ({"identity": None}, "damaged"),
        ({"shape": [4]}, "the features here have the shape (5,), not the federation's (4,)"),
    ],
)
def test_a_model_whose_task_lies_is_refused(
    tmp_path: Path, model: fs.Model, change: dict[str, Any], wanted: str
) -> None:
    metadata = model.metadata()
    metadata["task"] = json.dumps(json.loads(metadata["task"]) | change)
    codec.write_file(tmp_path / "m.safetensors", model.arrays, metadata)
    refused(tmp_path / "m.safetensors", wanted)


@pytest.mark.parametrize(
    "held",
    [{}, {"weight": np.zeros(5)}, {"weight": np.zeros((4, 3))}, {"weight": np.zeros((5, 2))}, {"weight": np.array(1.0)},
     {"weight": np.zeros((5, 3)), "intercept": np.zeros(2)}, {"weight": np.zeros((5, 3, 1))}],
)  # fmt: skip
def test_a_model_whose_arrays_do_not_fit_is_refused(
    tmp_path: Path, model: fs.Model, held: dict[str, np.ndarray]
) -> None:
    codec.write_file(tmp_path / "m.safetensors", held, model.metadata())
    refused(tmp_path / "m.safetensors")


def test_files_that_are_not_models_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.safetensors", "cannot read", "No such file")
    refused(tmp_path, "cannot read")
    (tmp_path / "text").write_text("hello, this is no model at all")
    refused(tmp_path / "text", "is damaged")
    codec.write_file(tmp_path / "other", {"weight": np.zeros((5, 3))})
    refused(tmp_path / "other", "is not a fedsolve model")


# --- accuracy ---


def tallies(*pairs: tuple[float | None, int]) -> dict[str, ClientResult]:
    shares = [({} if accuracy is None else {"accuracy": accuracy}, count) for accuracy, count in pairs]
    return {str(i): ClientResult(5, count, figures) for i, (figures, count) in enumerate(shares)}


def test_accuracy_by_hand() -> None:
    found = spreads(tallies((1.0, 1), (0.5, 4), (0.0, 5), (None, 0)))["accuracy"]
    assert found.mean == pytest.approx(0.5)  # (1 + 0.5 + 0) / 3
    assert found.pooled == pytest.approx(0.3)  # (1 + 2 + 0) / 10
    assert found.std == pytest.approx((1 / 6) ** 0.5)  # sqrt((0.25 + 0 + 0.25) / 3)
    assert found.worst_decile == 0.0


@pytest.mark.parametrize(("count", "worst"), [(1, 0.0), (10, 0.0), (11, 0.5), (20, 0.5), (21, 1.0)])
def test_the_worst_decile_is_a_tenth_rounded_up(count: int, worst: float) -> None:
    found = spreads(tallies(*[(float(i), 1) for i in reversed(range(count))]))["accuracy"]
    assert found.worst_decile == worst


def test_accuracy_without_test_data_is_none() -> None:
    assert spreads(tallies((None, 0), (None, 0))) == spreads({}) == {}
    found = fs.run(fs.AFL(ridge=0.0, intercept=False), federation(test=False))
    assert found.accuracy == Spread(None, None, None, None)
    assert found.metrics == {}
    assert found.baseline == {}
    assert found.confusion == ()
    assert found.clients["a"].accuracy is None
    assert found.history[0].accuracy is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=25))
def test_the_bounds_of_accuracy(pairs: list[tuple[int, int]]) -> None:
    shares = [(min(right, count) / count, count) for right, count in pairs]
    found = spreads(tallies(*shares))["accuracy"]
    values = [share for share, _ in shares]
    assert found.mean is not None and found.pooled is not None and found.worst_decile is not None
    assert found.mean == pytest.approx(np.mean(values))
    assert found.pooled == pytest.approx(sum(s * n for s, n in shares) / sum(n for _, n in shares))
    assert min(values) <= found.worst_decile <= found.mean + 1e-12


def test_accuracies_are_those_of_the_models(result: Result) -> None:
    given_ = federation()
    for name, client in given_.clients.items():
        right = result.models[name].predict(client.test.inputs) == client.test.labels
        assert result.clients[name].accuracy == right.mean()
        assert result.shared is not None
        assert result.clients[name].shared == (result.shared.predict(client.test.inputs) == client.test.labels).mean()


def test_pooled_figures_are_those_of_all_samples_together(result: Result) -> None:
    """A second derivation: scikit-learn on the predictions of every client's own model, one after the other."""
    from sklearn import metrics as oracle

    clients = federation().clients
    truth = np.concatenate([client.test.labels for client in clients.values()])
    labels = np.concatenate([result.models[n].predict(c.test.inputs) for n, c in clients.items()])
    shares = np.concatenate([result.models[n].predict_proba(c.test.inputs) for n, c in clients.items()])
    wanted = {
        "accuracy": oracle.accuracy_score(truth, labels),
        "balanced_accuracy": oracle.balanced_accuracy_score(truth, labels),
        "macro_f1": oracle.f1_score(truth, labels, average="macro"),
        "log_loss": oracle.log_loss(truth, shares),
        "brier": np.square(shares - np.eye(3)[truth]).sum(1).mean(),
    }
    assert {name: result.metrics[name].pooled for name in wanted} == pytest.approx(wanted)
    area = oracle.roc_auc_score(truth, shares, multi_class="ovr")
    assert result.metrics["auc"].pooled == pytest.approx(area, abs=0.02)
    assert result.confusion == tuple(map(tuple, oracle.confusion_matrix(truth, labels).tolist()))
    common = [(np.bincount(c.train.labels, minlength=3).argmax() == c.test.labels).sum() for c in clients.values()]
    assert result.baseline["accuracy"] == pytest.approx(sum(common) / len(truth))
    for name, client in clients.items():
        proba, present = result.models[name].predict_proba(client.test.inputs), np.unique(client.test.labels)
        areas = [oracle.roc_auc_score(client.test.labels == label, proba[:, label]) for label in present]
        assert result.clients[name].metrics["auc"] == pytest.approx(np.mean(areas))


def test_probabilities_of_methods_sum_to_one_and_agree_with_the_answer(result: Result) -> None:
    x = federation().clients["a"].test.inputs
    for model in (*result.models.values(), result.shared):
        assert model is not None
        shares = model.predict_proba(x)
        np.testing.assert_allclose(shares.sum(1), 1.0)
        np.testing.assert_array_equal(shares.argmax(1), model.predict(x))


def test_a_result_of_format_1_still_loads(tmp_path: Path, result: Result) -> None:
    """As version 0.1 wrote it: accuracies as plain numbers, and nothing of what format 2 adds."""
    folder = result.save(tmp_path / "out")
    entry = unsealed(folder / "result.json")
    for name in ("task", "metrics", "baseline", "confusion", "privacy"):
        del entry[name]
    for client in entry["clients"].values():
        client["global"] = client["global"]["accuracy"]
        del client["metrics"]
    for line in entry["history"]:
        del line["metrics"]
    (folder / "result.json").write_text(json.dumps({**entry, "format": 1}))
    loaded = Result.load(folder)
    assert loaded.accuracy == result.accuracy
    assert {n: (c.accuracy, c.shared, c.chosen) for n, c in loaded.clients.items()} == {
        n: (c.accuracy, c.shared, c.chosen) for n, c in result.clients.items()
    }
    assert loaded.history[0].accuracy == result.history[0].accuracy
    assert loaded.save(tmp_path / "again").joinpath("result.json").is_file()


# --- results on disk ---


def test_result_json_has_the_fields_of_the_design(tmp_path: Path, result: Result) -> None:
    found = json.loads((result.save(tmp_path / "out") / "result.json").read_text())
    assert set(found) - {"server"} == {  # server: its figures, beyond the design
        "format", "method", "settings", "clients", "accuracy", "rounds", "bytes", "seconds", "history", "versions",
        "data", "task", "metrics", "baseline", "confusion", "privacy", "warnings",
        "digest", "pooled", "calibration",
    }  # fmt: skip
    assert found["format"] == 2
    assert found["task"] == {"kind": "classes", "count": 3, "names": ["red", "green", "blue"]}
    assert set(found["metrics"]) == {"accuracy", "balanced_accuracy", "log_loss", "brier", "macro_f1", "auc"}
    assert found["metrics"]["accuracy"] == found["accuracy"]
    for client in found["clients"].values():
        assert client["metrics"]["accuracy"] == client["accuracy"]
        assert set(client["global"]) <= set(found["metrics"])
    assert found["baseline"]["accuracy"] < found["accuracy"]["pooled"]
    assert found["privacy"]["secure"] is False
    assert found["method"] == found["settings"]["method"] == "fedhip"
    assert list(found["clients"]) == ["a", "b", "c"]
    for client in found["clients"].values():
        assert (client["train"], client["test"]) == (16, 8)
        assert 0 <= client["accuracy"] <= 1
    assert set(found["accuracy"]) == {"mean", "pooled", "std", "worst_decile"}
    assert found["accuracy"]["mean"] == pytest.approx(np.mean([c["accuracy"] for c in found["clients"].values()]))
    assert found["rounds"] == 1
    assert set(found["bytes"]) == {"up", "down"}
    assert set(found["seconds"]) == {"features", "clients", "server", "evaluate", "total"}
    assert len(found["history"]) == 1
    line = found["history"][0]
    assert set(line) == {"round", "accuracy", "bytes_up", "bytes_down", "seconds", "missing", "metrics"}
    assert line["metrics"]["auc"] == {which: found["metrics"]["auc"][which] for which in ("mean", "pooled")}
    assert (line["round"], line["missing"], line["accuracy"]) == (1, [], found["accuracy"]["mean"])
    assert (line["bytes_up"], line["bytes_down"]) == (found["bytes"]["up"], found["bytes"]["down"])
    assert found["bytes"]["up"] > 3 * 8 * (15 + 15)  # three clients, a triangle of 5 x 5 and 5 x 3 in float64
    assert {"name", "fingerprint"} <= set(found["data"])
    assert found["data"]["fingerprint"] == federation().fingerprint
    assert {"python", "fedsolve", "numpy"} <= set(found["versions"])


def test_a_saved_result_is_complete_and_nothing_else_is_left(tmp_path: Path, result: Result) -> None:
    assert result.save(tmp_path / "deep" / "out") == tmp_path / "deep" / "out"
    assert listing(tmp_path) == [
        "deep", "deep/out", "deep/out/models", "deep/out/models/a.safetensors", "deep/out/models/b.safetensors",
        "deep/out/models/c.safetensors", "deep/out/models/global.safetensors", "deep/out/result.json",
        "deep/out/state.safetensors",
    ]  # fmt: skip


def test_a_method_without_a_global_model_saves_none(tmp_path: Path) -> None:
    fs.run(fs.Local(intercept=False), federation()).save(tmp_path / "out")
    assert not (tmp_path / "out" / "models" / "global.safetensors").exists()
    assert Result.load(tmp_path / "out").shared is None


def test_a_loaded_result_is_the_saved_one(tmp_path: Path, result: Result) -> None:
    full = result.with_alone(fs.run(fs.Local(intercept=False), federation()))
    found = Result.load(full.save(tmp_path / "out"))
    wanted = full.json()
    assert json.loads(json.dumps(found.json())) == json.loads(json.dumps(wanted))
    assert found.accuracy == full.accuracy
    assert found.clients == full.clients
    assert found.history == full.history
    assert arrays.same(found.state, full.state)
    assert sorted(found.models) == ["a", "b", "c"]
    assert len(found.models) == 3
    x = np.random.default_rng(1).normal(size=(9, 5))
    assert found.models["b"].scores(x).tobytes() == full.models["b"].scores(x).tobytes()
    assert found.shared is not None and full.shared is not None
    assert found.shared.scores(x).tobytes() == full.shared.scores(x).tobytes()
    with pytest.raises(KeyError):
        found.models["nobody"]


@pytest.fixture(scope="module")
def grouped() -> Result:
    """Two groups; clients are called as files of groups and of the global model might be."""
    return fs.run(fs.PFedACnnL(network="mlp:4", groups=2), federation(names=("0", "1", "group-0", "globe")))


def test_groups_of_a_loaded_result_are_those_of_the_saved_one(tmp_path: Path, grouped: Result) -> None:
    folder = grouped.save(tmp_path / "out")
    found = Result.load(folder)
    assert sorted(grouped.groups) == sorted(found.group_models) == ["0", "1"]
    assert found.groups == grouped.groups
    assert json.loads(json.dumps(found.json())) == json.loads(json.dumps(grouped.json()))
    assert sorted(os.listdir(folder / "groups")) == ["0.safetensors", "1.safetensors"]
    assert sorted(os.listdir(folder / "models")) == [f"{name}.safetensors" for name in ("0", "1", "globe", "group-0")]
    x = np.random.default_rng(1).normal(size=(9, 5))
    for name, model in grouped.group_models.items():
        loaded = fs.load_model(folder / "groups" / f"{name}.safetensors")
        assert loaded.owner == f"group {name}"
        assert loaded.scores(x).tobytes() == found.group_models[name].scores(x).tobytes() == model.scores(x).tobytes()
        assert loaded.scores(x).tobytes() != grouped.models[grouped.groups[name].members[0]].scores(x).tobytes()


def test_a_result_with_groups_can_be_replaced_and_leaves_none_behind(
    tmp_path: Path, grouped: Result, result: Result
) -> None:
    grouped.save(tmp_path / "out")
    Result.load(tmp_path / "out").save(tmp_path / "out")
    assert Result.load(tmp_path / "out").groups == grouped.groups
    result.save(tmp_path / "out")
    assert not (tmp_path / "out" / "groups").exists()
    assert "groups" not in json.loads((tmp_path / "out" / "result.json").read_text())
    assert Result.load(tmp_path / "out").groups == {}
    assert dict(Result.load(tmp_path / "out").group_models) == {}


def test_a_folder_of_groups_with_something_else_is_left_alone(tmp_path: Path, grouped: Result) -> None:
    (grouped.save(tmp_path / "out") / "groups" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="is not a result of fedsolve"):
        grouped.save(tmp_path / "out")
    assert (tmp_path / "out" / "groups" / "notes.txt").read_text() == "mine"


def test_the_digest_covers_groups(tmp_path: Path, grouped: Result) -> None:
    path = grouped.save(tmp_path / "out") / "result.json"
    entry = json.loads(path.read_text())
    entry["groups"]["0"]["centre"][0] += 1.0
    path.write_text(json.dumps(entry))
    with pytest.raises(DataError, match="its content is not what was written"):
        Result.load(tmp_path / "out")


def test_centres_that_would_be_a_large_file_are_left_out(monkeypatch: pytest.MonkeyPatch, grouped: Result) -> None:
    count = sum(len(group.centre) for group in grouped.groups.values())
    assert count == 2 * 4  # two profiles, as wide as the hidden layer
    for largest, shown in ((count, True), (count - 1, False)):
        monkeypatch.setattr(grouping, "LARGEST_CENTRES", largest)
        groups, models = grouping.groups_of(
            next(iter(grouped.models.values())).method, federation().task, grouped.state, tuple(grouped.clients)
        )
        assert {name: group.members for name, group in groups.items()} == {
            name: group.members for name, group in grouped.groups.items()
        }
        assert all(bool(group.centre) is shown for group in groups.values())
        assert models.keys() == groups.keys()


def test_a_loaded_result_can_be_saved_again_even_over_itself(tmp_path: Path, result: Result) -> None:
    result.save(tmp_path / "out")
    Result.load(tmp_path / "out").save(tmp_path / "copy")
    assert listing(tmp_path / "copy") == listing(tmp_path / "out")
    Result.load(tmp_path / "out").save(tmp_path / "out")
    assert (tmp_path / "out" / "result.json").read_bytes() == (tmp_path / "copy" / "result.json").read_bytes()


def test_saving_replaces_an_earlier_result_whole(tmp_path: Path, result: Result) -> None:
    fs.run(fs.Local(intercept=False), federation(names=("x", "y"))).save(tmp_path / "out")
    result.save(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert sorted(os.listdir(tmp_path / "out" / "models")) == [f"{n}.safetensors" for n in ("a", "b", "c", "global")]
    assert json.loads((tmp_path / "out" / "result.json").read_text())["method"] == "fedhip"


def test_an_empty_folder_is_filled(tmp_path: Path, result: Result) -> None:
    (tmp_path / "out").mkdir()
    result.save(tmp_path / "out")
    assert (tmp_path / "out" / "result.json").is_file()


@pytest.mark.parametrize(
    "content",
    [
        {"thesis.tex": "mine"},
        {"result.json": '{"score": 3}', "thesis.tex": "mine"},  # somebody else's result.json
        {"result.json": "no json at all"},
    ],
)
def test_a_folder_with_other_content_is_refused_and_left_alone(
    tmp_path: Path, result: Result, content: dict[str, str]
) -> None:
    (tmp_path / "out").mkdir()
    for name, text in content.items():
        (tmp_path / "out" / name).write_text(text)
    with pytest.raises(DataError) as error:
        result.save(tmp_path / "out")
    assert str(tmp_path / "out") in str(error.value)
    assert os.listdir(tmp_path) == ["out"]
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == content


def test_a_stranger_in_the_folder_of_an_earlier_result_survives(tmp_path: Path, result: Result) -> None:
    result.save(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    try:
        result.save(tmp_path / "out")
    except DataError as error:
        assert str(tmp_path / "out") in str(error)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_file_is_not_a_place_for_a_result(tmp_path: Path, result: Result) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DataError, match="out exists and is not a result"):
        result.save(tmp_path / "out")
    with pytest.raises(DataError, match="cannot write to"):
        result.save(tmp_path / "out" / "below")
    assert listing(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "mine"


def nth(real: Callable[..., Any], number: int) -> Callable[..., Any]:
    """`real`, but its call of this number fails as a full disk does."""
    calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    return call


@pytest.mark.parametrize("number", [1, 3, 5, 6])  # a model, another, the state, result.json
@pytest.mark.parametrize("earlier", [False, True])
def test_writing_that_fails_midway_leaves_what_was_there(
    tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch, number: int, earlier: bool
) -> None:
    if earlier:
        fs.run(fs.Local(intercept=False), federation()).save(tmp_path / "out")
    before = {path: (tmp_path / path).is_file() and (tmp_path / path).read_bytes() for path in listing(tmp_path)}
    monkeypatch.setattr(disk, "create", nth(disk.create, number))
    with pytest.raises((DataError, OSError), match="No space left on device"):
        result.save(tmp_path / "out")
    after = {path: (tmp_path / path).is_file() and (tmp_path / path).read_bytes() for path in listing(tmp_path)}
    assert after == before


def test_writing_that_fails_midway_is_a_sentence_that_names_the_place(
    tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "create", nth(disk.create, 3))
    with pytest.raises(DataError, match=r"cannot write to .*out.*No space left on device"):
        result.save(tmp_path / "out")


@pytest.mark.parametrize("number", [1, 2])
def test_a_rename_that_fails_leaves_the_earlier_result_in_its_place(
    tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Where the file system cannot exchange two folders, it takes two renames."""
    fs.run(fs.Local(intercept=False), federation()).save(tmp_path / "out")
    monkeypatch.setattr(disk, "_swap", lambda *_: False)
    monkeypatch.setattr(os, "rename", nth(os.rename, number))
    with pytest.raises((DataError, OSError)):
        result.save(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert Result.load(tmp_path / "out").method == "local"


def test_every_name_that_a_federation_accepts_can_be_saved(tmp_path: Path) -> None:
    try:
        given_ = federation(names=("日" * 100, "x" * 100, "a b", "ü:*?"))
    except DataError:
        given_ = federation(names=("日" * 50, "x" * 100, "a b", "ü:*?"))
    fs.run(fs.AFL(ridge=0.0, intercept=False), given_).save(tmp_path / "out")
    assert sorted(Result.load(tmp_path / "out").models) == sorted(given_.clients)
    assert all(Result.load(tmp_path / "out").models[name].owner == name for name in given_.clients)


def test_figures_that_json_cannot_hold_are_refused_and_leave_nothing(tmp_path: Path, result: Result) -> None:
    with pytest.raises(ValueError, match="JSON"):
        replace(result, data={"name": float("nan")}).save(tmp_path / "out")
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, "holds no result"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        ('{"format": 3}', "format 3; this version reads 1 and 2"),
        ('{"format": 1, "clients": []}', "damaged"),
        ('{"format": 1, "clients": {"a": {}}}', "damaged"),
        ('{"format": 1, "clients": {"a": 7}}', "damaged"),
        ('{"format": 1, "clients": {}, "history": [{"round": 1}]}', "damaged"),
    ],
)
def test_a_damaged_result_is_refused(tmp_path: Path, result: Result, text: str | None, wanted: str) -> None:
    result.save(tmp_path / "out")
    path = tmp_path / "out" / "result.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(DataError) as error:
        Result.load(tmp_path / "out")
    assert str(tmp_path / "out") in str(error.value)
    assert wanted in str(error.value)


def test_a_missing_model_of_a_result_is_named(tmp_path: Path, result: Result) -> None:
    result.save(tmp_path / "out")
    (tmp_path / "out" / "models" / "b.safetensors").unlink()
    found = Result.load(tmp_path / "out")
    with pytest.raises(DataError, match=r"b\.safetensors"):
        found.models["b"]


def test_a_notebook_shows_figures_and_no_rows(result: Result) -> None:
    table = result._repr_html_()
    assert all(f"<td>{name}</td>" in table for name in result.clients)
    assert f"{100 * (result.accuracy.mean or 0):.1f} %" in table
    assert "<th>global</th>" in table and "<th>alone</th>" not in table
    odd = replace(result, clients={f"<b>{i}": client for i, client in enumerate([*result.clients.values()] * 20)})
    assert "<b>0" not in odd._repr_html_() and "and 30 more" in odd._repr_html_()


def test_a_result_with_a_report_beside_it_can_be_replaced(tmp_path: Path, result: Result) -> None:
    folder = result.save(tmp_path / "out")
    (folder / "report.html").write_text("a page")
    result.save(folder)
    assert not (folder / "report.html").exists()
    (folder / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match="is not a result of fedsolve"):
        result.save(folder)
