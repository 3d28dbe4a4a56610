"""A run that was stopped goes on bit for bit, or is refused with what differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedsolve as fs
from fedsolve import codec
from fedsolve.checks import sample_federation
from fedsolve.result import CHECKPOINT, Result, Round
from fedsolve.runtime.checkpoint import Checkpoint

pytest.importorskip("torch")
SMALL: dict[str, Any] = {"model": "mlp:8", "rounds": 5, "epochs": 1, "batch": 16, "lr": 0.05}


class Stop(Exception):
    """What a user's Ctrl-C stands for here."""


def stop_after(number: int) -> Any:
    def report(line: Round, rounds: int) -> None:
        if line.round == number:
            raise Stop

    return report


def without_seconds(result: Result) -> list[Round]:
    return [replace(line, seconds=0.0) for line in result.history]


def rest(*methods: fs.Method) -> list[Any]:
    return [pytest.param(method, marks=pytest.mark.long) for method in methods]


@pytest.mark.parametrize(
    "method",  # at first those that keep unlike things from round to round
    [
        fs.FedAvgFT(**SMALL),
        fs.Ditto(**SMALL),
        fs.FedAPA(**SMALL, momentum=0.5),
        fs.LocalNetwork(**SMALL),
        fs.FedDyn(**SMALL),
        fs.BAFFLE(**SMALL, exchange="losses", directions=3),
        fs.FedPAC(**SMALL),
        fs.PFedHN(**SMALL),
        *rest(
            fs.FedALA(**SMALL),
            fs.MOON(**SMALL),
            fs.FedGen(**SMALL, steps=3),
            fs.PFedMe(**SMALL),
            fs.FedProto(**SMALL),
            fs.FedGH(**SMALL),
            fs.FedPCL(**SMALL),
            fs.FedDBE(**SMALL),
            fs.FedPHP(**SMALL),
            fs.FedSelect(**SMALL, every=1),
            fs.FedAS(**SMALL),
            fs.FedAMP(**SMALL),
            fs.APPLE(**SMALL),
            fs.PFedLA(**SMALL),
        ),
    ],
)
@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.long), 0.5])
def test_goes_on_bit_for_bit(method: fs.Method, participation: float, tmp_path: Path) -> None:
    federation = sample_federation()
    whole = fs.run(method, federation, seed=3, participation=participation)
    with pytest.raises(Stop):
        fs.run(
            method, federation, seed=3, participation=participation, workers=1, on_round=stop_after(4),
            checkpoint=Checkpoint(tmp_path, every=3),
        )  # fmt: skip
    rounds: list[int] = []
    found = fs.run(
        method, federation, seed=3, participation=participation, workers=1,
        on_round=lambda line, n: rounds.append(line.round), checkpoint=Checkpoint(tmp_path, resume=True),
    )  # fmt: skip
    assert rounds == [4, 5]
    assert without_seconds(found) == without_seconds(whole)
    assert (found.bytes_up, found.bytes_down) == (whole.bytes_up, whole.bytes_down)
    assert found.clients == whole.clients
    assert found.state.keys() == whole.state.keys()
    assert all(found.state[name].tobytes() == array.tobytes() for name, array in whole.state.items())
    for client, model in whole.models.items():
        for name, array in model.arrays.items():
            assert found.models[client].arrays[name].tobytes() == array.tobytes()


def stopped(folder: Path, method: fs.Method, **settings: Any) -> None:
    with pytest.raises(Stop):
        fs.run(method, sample_federation(), on_round=stop_after(2), checkpoint=Checkpoint(folder, every=1), **settings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": fs.FedAvg(**{**SMALL, "lr": 0.1})}, "set lr was 0.05 and is 0.1"),
        ({"method": fs.FedProx(**SMALL)}, "method was 'fedavg' and is 'fedprox'"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"participation": 0.5}, "participation was 1.0 and is 0.5"),
        ({"absent": ["site-1"]}, "absent was"),
        ({"federation": sample_federation(1)}, "data was"),
    ],
)
def test_another_run_is_refused_with_what_differs(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    stopped(tmp_path, fs.FedAvg(**SMALL))
    given = {"method": fs.FedAvg(**SMALL), "federation": sample_federation(), **change}
    with pytest.raises(fs.DataError, match=words):
        fs.run(**given, checkpoint=Checkpoint(tmp_path, resume=True))


def test_nothing_to_resume_and_damage_are_said(tmp_path: Path) -> None:
    with pytest.raises(fs.DataError, match="nothing to resume"):
        Checkpoint(tmp_path, resume=True)
    with pytest.raises(fs.ParameterError, match="checkpoint must be an integer of at least 0; got -1"):
        Checkpoint(tmp_path, every=-1)
    stopped(tmp_path, fs.FedAvg(**SMALL))
    path = tmp_path / CHECKPOINT
    arrays, head = codec.read_file(path)
    for broken, words in (({**head, "history": "[{}]"}, "damaged"), ({"a": "b"}, "not a checkpoint")):
        codec.write_file(path, arrays, broken)
        with pytest.raises(fs.DataError, match=words):
            fs.run(fs.FedAvg(**SMALL), sample_federation(), checkpoint=Checkpoint(tmp_path, resume=True))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(fs.DataError, match="damaged"):
        fs.run(fs.FedAvg(**SMALL), sample_federation(), checkpoint=Checkpoint(tmp_path, resume=True))


def test_the_result_takes_the_place_of_the_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    result = fs.run(fs.FedAvg(**SMALL), sample_federation(), checkpoint=Checkpoint(out, every=2))
    assert {path.name for path in out.iterdir()} == {CHECKPOINT}
    assert codec.read_file(out / CHECKPOINT)[1]["round"] == "4"
    result.save(out)
    assert {path.name for path in out.iterdir()} == {"result.json", "state.safetensors", "models"}
    found = json.loads((out / "result.json").read_text())
    assert [line["loss"] is not None for line in found["history"]] == [True] * 5
    assert found["versions"]["torch"]


def test_evaluating_less_often_changes_nothing_else() -> None:
    often, seldom = (fs.run(fs.FedAPA(**SMALL), sample_federation(), evaluate_every=every) for every in (1, 2))
    assert [line.accuracy is not None for line in seldom.history] == [False, True, False, True, True]
    assert often.clients == seldom.clients
    assert often.state["weights"].tobytes() == seldom.state["weights"].tobytes()
    with pytest.raises(fs.ParameterError, match="eval-every must be an integer of at least 1; got 0"):
        fs.run(fs.FedAvg(**SMALL), sample_federation(), evaluate_every=0)
