from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsolve.errors import ParameterError
from fedsolve.study.experiment import Settings, execute
from fedsolve.study.experiment import command as command_of
from tests.runtime.test_cli import Command


def test_noise_on_the_command_line(command: Command, tmp_path: Path) -> None:
    words = ("run", "--features", "unit", "--epsilon", "2", "--delta", "1e-6", "--noise", "server", "--clients", "5")
    answer = command(*words, "--out", "run")
    assert answer.code == 0, answer.err
    assert "noise: epsilon 2, delta 1e-06 for one record more or less, added by the server" in answer.out
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (content["privacy"]["epsilon"], content["privacy"]["delta"]) == (2.0, 1e-6)
    assert "split" not in content["data"]  # how many of each class every client has
    assert "--epsilon 2.0 --delta 1e-06 --noise server" in command_of(content["settings"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(noise="server"), "--noise is for runs with noise: say how much by --epsilon"),
        (Settings(target_bound=1.0), "--target-bound is for runs with noise"),
        (Settings(epsilon=-1.0), "epsilon must be a number above 0"),
        (Settings(epsilon=1.0, delta=2.0), "delta must be a probability"),
    ],
)
def test_what_is_refused_before_data_are_read(settings: Settings, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsolve.study.experiment.prepare", None)
    with pytest.raises(ParameterError, match=words):
        execute(settings)


def test_a_ledger_takes_no_noise(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="without --ledger"):
        execute(Settings(epsilon=1.0, features="unit"), ledger=tmp_path / "l.ledger")


def test_noise_that_clients_share_is_said(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    words = ("run", "--features", "unit", "--method", "afl", "--epsilon", "4", "--honest", "3", "--no-alone")
    answer = command(*words, "--secure", "--clients", "4", "--out", "run")
    assert "sites, who share it: in every sum at least 3 must tell nobody their part" in answer.out
    assert json.loads((tmp_path / "run" / "result.json").read_text())["privacy"]["honest"] == 3
    assert "hides nothing where the server sees" in command(*words).err
