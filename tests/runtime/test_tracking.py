"""Runs in MLflow, TensorBoard and Weights & Biases: what is read back by their own means is what the result says.

A tracker that fails takes nothing from the run, and nobody is called.
"""

from __future__ import annotations

import json
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedsolve as fs
from fedsolve.checks import sample_federation
from fedsolve.result import Round
from fedsolve.tracking import TRACKERS, Log, MLflow, TensorBoard, WandB, figures, parse
from fedsolve.tracking.log import End
from tests.runtime.test_cli import Command
from tests.runtime.test_done import Patient, plain

METHOD = Patient(enough=4)
CALLED: list[str] = []  # whom this process connects to while it is watched
WATCHING: list[bool] = []


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHING and event in ("socket.connect", "socket.getaddrinfo"):
        CALLED.append(str(arguments[1] if event == "socket.connect" else arguments[0]))


sys.addaudithook(_listen)


@pytest.fixture
def alone() -> Iterator[None]:
    """Nobody outside this machine is called."""
    CALLED.clear()
    WATCHING.append(True)
    yield
    WATCHING.clear()
    local = ("127.0.0.1", "localhost", "/")
    assert [place for place in CALLED if not any(name in place for name in local)] == []


class Notes:
    """A tracker and a run in one, which only remembers what it was told."""

    def __init__(self, fail_at: int = 0) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._fail_at = fail_at

    def open(self, name: str) -> Notes:
        self.said.append(("open", name))
        return self

    def settings(self, values: Mapping[str, Any]) -> None:
        self.said.append(("settings", dict(values)))

    def round(self, number: int, values: Mapping[str, float]) -> None:
        if number == self._fail_at:
            raise ConnectionError("the server is gone\nfor good")
        self.said.append(("round", number, dict(values)))

    def result(self, values: Mapping[str, float], place: str) -> None:
        self.said.append(("result", dict(values), place))

    def close(self, end: End) -> None:
        self.said.append(("close", end))


def tracked(*trackers: Any, out: Path, say: Callable[[str], None] | None = None) -> fs.Result:
    with Log(*trackers, name="patient", say=say) as log:
        result = fs.run(METHOD, sample_federation(), on_round=log)
        log.end(result, result.save(out))
    return result


def told(result: fs.Result) -> dict[int, dict[str, float]]:
    """What trackers must have of each round, by a second way: result.json."""
    found = {}
    for line in result.json()["history"]:
        each = {f"{name}/{kind}": value for name, two in line["metrics"].items() for kind, value in two.items()}
        each |= {name: float(line[name]) for name in ("bytes_up", "bytes_down", "seconds")}
        found[line["round"]] = {**each, "missing": float(len(line["missing"]))}
    return found


def final(result: fs.Result) -> dict[str, float]:
    content = result.json()
    found = {f"final/{name}/{kind}": v for name, each in content["metrics"].items() for kind, v in each.items()}
    found |= {"final/rounds": content["rounds"], "final/seconds": result.seconds.total}
    return found | {f"final/bytes_{way}": content["bytes"][way] for way in ("up", "down")}


# --- each tracker, read back ---


@pytest.mark.usefixtures("alone")
def test_mlflow_has_the_figures_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'fedsolve[mlflow]'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    result = tracked(MLflow(), out=tmp_path / "out")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedsolve")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("patient", "FINISHED")
    assert run.data.params == {name: str(value) for name, value in figures.of_settings(result.settings).items()}
    assert run.data.tags["fedsolve.result"] == str(tmp_path / "out")
    for name in told(result)[1]:
        history = {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
        assert history == {number: values[name] for number, values in told(result).items()}, name
    assert {name: run.data.metrics[name] for name in final(result)} == final(result)


@pytest.mark.usefixtures("alone")
def test_tensorboard_has_the_figures_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'fedsolve[tensorboard]'")
    result = tracked(TensorBoard(str(tmp_path / "logs")), out=tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own libraries
        from tensorboard import context
        from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
        from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
        from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data
    shown = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "logs"))
    shown.Reload()
    provider = MultiplexerDataProvider(shown, str(tmp_path / "logs"))  # what its web page asks
    scalars = provider.read_scalars(
        context.RequestContext(), experiment_id="", plugin_name="scalars", downsample=1000
    )["patient"]  # fmt: skip
    for name in told(result)[1]:
        assert {point.step: point.value for point in scalars[name]} == {n: v[name] for n, v in told(result).items()}
    assert {name: scalars[name][0].value for name in final(result)} == final(result)
    start = shown.SummaryMetadata("patient", SESSION_START_INFO_TAG).plugin_data.content
    kept = parse_session_start_info_plugin_data(start).hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in kept.items()}
    assert values == figures.of_settings(result.settings)
    (place,) = shown.Tensors("patient", "result")
    assert place.tensor_proto.string_val == [str(tmp_path / "out").encode()]


@pytest.mark.usefixtures("alone")
def test_weights_and_biases_has_the_figures_of_the_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'fedsolve[wandb]'")
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    result = tracked(WandB(str(tmp_path)), out=tmp_path / "out")
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rounds: dict[int, dict[str, Any]] = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    code = -1
    for record in ended(path):
        if record.HasField("history"):
            rounds[record.history.step.num] = _items(record.history.item)
        elif record.HasField("config"):
            config |= _items(record.config.update)
        elif record.HasField("summary"):
            summary |= _items(record.summary.update)
        elif record.HasField("run"):
            assert (record.run.display_name, record.run.project) == ("patient", "fedsolve")
        elif record.HasField("exit"):
            code = record.exit.exit_code
    expected = told(result)
    assert {n: {name: values[name] for name in expected[n]} for n, values in rounds.items()} == expected
    assert {name: config[name] for name in config if name != "_wandb"} == figures.of_settings(result.settings)
    assert {name: summary[name] for name in final(result)} == final(result)
    assert summary["result"] == str(tmp_path / "out")
    assert code == 0


def ended(path: Path) -> list[Any]:
    """The records of a run that is over: the library's own process may still write the last ones."""
    deadline = time.monotonic() + 60
    while not (found := list(records(path.read_bytes()))) or not any(each.HasField("exit") for each in found):
        assert time.monotonic() < deadline, "the run was never ended"
        time.sleep(0.02)
    return found


def records(data: bytes) -> Iterator[Any]:
    """The records in a file of Weights & Biases: a log in blocks of 32 KB, as LevelDB writes them, of its messages."""
    from wandb.proto import wandb_internal_pb2

    assert data[:4] == b":W&B"
    place, parts, block = 7, b"", 32768
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        if place + 7 + size > len(data):
            return  # not all of it is written yet
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


# --- a tracker that fails ---


def test_a_tracker_that_fails_is_said_once_and_takes_nothing_from_the_run(tmp_path: Path) -> None:
    broken, other = Notes(fail_at=2), Notes()
    with pytest.warns(fs.TrackingWarning) as said:
        result = tracked(broken, other, out=tmp_path / "out")
    assert [str(each.message) for each in said] == [
        "Notes failed and is told no more of this run, which goes on: ConnectionError: the server is gone for good"
    ]
    assert plain(result) == plain(fs.run(METHOD, sample_federation()))
    assert [each[:2] for each in broken.said if each[0] in ("open", "round", "close")][-1][1] == 1
    assert [each[0] for each in other.said] == ["open", *["round"] * 4, "settings", "result", "close"]
    assert {each[1]: each[2] for each in other.said if each[0] == "round"} == told(result)


def test_no_client_is_named_and_no_client_has_a_figure(tmp_path: Path) -> None:
    notes = Notes()
    result = tracked(notes, out=tmp_path / "out")
    text = repr(notes.said)
    assert result.clients
    assert not [name for name in result.clients if name in text]
    assert {name.count("/") for each in notes.said if each[0] == "round" for name in each[2]} <= {0, 1}


def test_what_cannot_begin_is_refused_before_the_run(tmp_path: Path) -> None:
    class Full(Notes):
        def open(self, name: str) -> Notes:
            raise OSError("no space left")

    first = Notes()
    with pytest.raises(fs.StorageError, match="Full cannot begin a run: OSError: no space left"), Log(first, Full()):
        raise AssertionError("nobody comes here")
    assert first.said == [("open", "run"), ("close", "failed")]


@pytest.mark.parametrize("library", TRACKERS)
def test_a_library_that_is_not_there_is_named_with_the_way_to_get_it(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(fs.ParameterError, match=rf"pip install 'fedsolve\[{library}\]'"), Log(parse(library)):
        pass


@pytest.mark.parametrize(("error", "end"), [(ValueError, "failed"), (KeyboardInterrupt, "stopped")])
def test_a_run_that_did_not_end_is_said_so(error: type[BaseException], end: End) -> None:
    notes = Notes()
    with pytest.raises(error), Log(notes) as log:
        log.start({"method": "patient"})
        raise error
    assert notes.said == [("open", "run"), ("settings", {"method": "patient"}), ("close", end)]


def test_a_loss_is_told_where_there_is_one() -> None:
    assert figures.of_round(Round(1, 0, 0, 0.0, loss=0.5))["loss"] == 0.5
    assert "loss" not in figures.of_round(Round(1, 0, 0, 0.0))


def test_settings_are_told_once() -> None:
    notes = Notes()
    with Log(notes) as log:
        log.start({"a": 1})
        log.start({"a": 2})
    assert notes.said[1:-1] == [("settings", {"a": 1})]


# --- the command line ---


def test_the_command_keeps_the_settings_and_the_place_of_its_result(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'fedsolve[tensorboard]'")
    for out in ("one", "two"):
        line = ("run", "--data", "wards", "--method", "afl", "--quiet", "--track", "tensorboard:logs")
        assert command(*line, "--out", f"{out}/run").code == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["run", "run-2"]
    for folder, out in (("run", "one"), ("run-2", "two")):
        events = EventAccumulator(str(tmp_path / "logs" / folder)).Reload()
        (place,) = events.Tensors("result")
        assert place.tensor_proto.string_val == [str(tmp_path / out / "run").encode()]
        content = json.loads((tmp_path / out / "run" / "result.json").read_text())
        start = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
        kept = parse_session_start_info_plugin_data(start).hparams
        values = {name: getattr(value, value.WhichOneof("kind")) for name, value in kept.items()}
        assert values == figures.of_settings(content["settings"])
        (mean,) = events.Tensors("accuracy/mean")
        assert mean.tensor_proto.double_val == [content["accuracy"]["mean"]]


def test_every_run_of_a_comparison_is_one_of_the_tracker(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'fedsolve[tensorboard]'")
    pytest.importorskip("matplotlib")
    line = ("compare", "--data", "wards", "--methods", "afl", "--seeds", "0,1", "--out", "cmp", "--quiet")
    assert command(*line, "--track", "tensorboard:logs").code == 0
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["afl-0", "afl-1", "local-0", "local-1"]


def test_trackers_by_name() -> None:
    assert parse("mlflow:http://127.0.0.1:5000") == MLflow("http://127.0.0.1:5000")
    assert replace(parse("wandb:runs")) == WandB("runs")
    with pytest.raises(fs.FedsolveError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        parse("tensorbord:logs")
    with pytest.raises(fs.ParameterError, match=r"NAME or NAME:WHERE, as in mlflow:folder; got 'mlflow:'"):
        parse("mlflow:")


def test_an_unknown_tracker_is_refused_before_anything_is_computed(command: Command, tmp_path: Path) -> None:
    found = command("run", "--track", "comet")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "known: mlflow, tensorboard, wandb" in found.err
    assert not list(tmp_path.iterdir())
