"""A stopped run goes on from its folder alone: the checkpoint knows what it was asked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import fedsolve as fs
from fedsolve import cli, codec
from fedsolve.result import CHECKPOINT
from tests.runtime.test_cli import NETWORK, Command, figures

pytest.importorskip("torch")


class Stop(Exception):
    """What ends the process."""


def stop_behind(number: int, kind: type[BaseException], *words: str) -> BaseException:
    """Run the command and stop it behind a round."""
    whole = fs.run

    def stopped(*arguments: Any, **settings: Any) -> Any:
        def report(line: Any, rounds: int) -> None:
            if line.round == number:
                raise kind

        return whole(*arguments, **{**settings, "on_round": report})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsolve.study.experiment.run", stopped)
        patch.setattr(sys, "argv", ["fedsolve", *words])
        with pytest.raises((Stop, SystemExit)) as end:
            cli.main()
    return end.value


@pytest.fixture
def stopped(command: Command, tmp_path: Path) -> Path:
    """A run that is stopped behind its third round leaves what it wrote at the second."""
    stop_behind(3, Stop, "run", "--quiet", *NETWORK, "--out", "out", "--checkpoint", "2")
    assert os.listdir(tmp_path / "out") == [CHECKPOINT]
    return tmp_path / "out"


@pytest.mark.parametrize("words", [(), NETWORK, ("--clients", "4", "--set", "lr=0.01", "--rounds", "4")])
def test_it_goes_on_from_the_folder_alone_or_with_what_agrees(
    command: Command, tmp_path: Path, stopped: Path, words: tuple[str, ...]
) -> None:
    assert command("run", "--quiet", *NETWORK, "--out", "whole").code == 0
    done = command("run", "--quiet", "--resume", "--out", "out", *words)
    assert (done.code, done.err) == (0, "")
    one, two = figures(tmp_path / "whole"), figures(stopped)
    assert (one["clients"], one["settings"]) == (two["clients"], two["settings"])
    assert (tmp_path / "whole/state.safetensors").read_bytes() == (stopped / "state.safetensors").read_bytes()
    assert not (stopped / CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("words", "differs"),
    [
        (("--set", "lr=0.5"), "set lr was 0.01 and is 0.5"),
        (("--clients", "5"), "clients was 4 and is 5"),
        (("--rounds", "9"), "rounds was 4 and is 9"),
        (("--method", "fedprox"), "method was 'fedavg' and is 'fedprox'"),
        (("--seed", "1"), "seed was 0 and is 1"),
        (("--alone",), "alone was None and is True"),
        (("--config", "c.toml"), "partition was 'auto' and is 'iid'"),
    ],
)
def test_what_differs_is_refused_by_name(
    command: Command, tmp_path: Path, stopped: Path, words: tuple[str, ...], differs: str
) -> None:
    (tmp_path / "c.toml").write_text('partition = "iid"\n')
    before = (stopped / CHECKPOINT).read_bytes()
    done = command("run", "--quiet", "--resume", "--out", "out", *words)
    assert (done.code, done.out) == (2, "")
    assert differs in done.err
    assert "without --resume" in done.err
    assert (stopped / CHECKPOINT).read_bytes() == before


def test_it_writes_checkpoints_as_often_as_before(command: Command, tmp_path: Path) -> None:
    stop_behind(2, Stop, "run", "--quiet", *NETWORK, "--out", "out", "--checkpoint", "1")
    assert codec.read_file(tmp_path / "out" / CHECKPOINT)[1]["round"] == "1"
    stop_behind(4, Stop, "run", "--quiet", "--resume", "--out", "out")
    assert codec.read_file(tmp_path / "out" / CHECKPOINT)[1]["round"] == "3"


def test_ctrl_c_says_the_command_that_goes_on(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", "--quiet", *NETWORK, "--out", "my out", "--checkpoint", "1")
    end = stop_behind(3, KeyboardInterrupt, *words)
    assert isinstance(end, SystemExit)
    assert end.code == 130
    assert capsys.readouterr().err == "fedsolve: stopped; fedsolve run --resume --out 'my out' goes on\n"
    assert command("run", "--quiet", "--resume", "--out", "my out").code == 0


def test_a_checkpoint_without_settings_takes_the_whole_command(command: Command, stopped: Path) -> None:
    path = stopped / CHECKPOINT
    arrays, head = codec.read_file(path)
    codec.write_file(path, arrays, {name: text for name, text in head.items() if name not in ("settings", "every")})
    done = command("run", "--quiet", "--resume", "--out", "out")
    assert done.code == 2
    assert "belongs to another run" in done.err
    assert command("run", "--quiet", *NETWORK, "--resume", "--out", "out").code == 0


@pytest.mark.parametrize("text", ["[1", '{"method": "evil:Method"}', '{"clinets": 4}'])
def test_a_damaged_or_foreign_checkpoint_is_refused_in_one_line(command: Command, stopped: Path, text: str) -> None:
    path = stopped / CHECKPOINT
    (stopped.parent / "evil.py").write_text("raise SystemExit('imported')\n")
    arrays, head = codec.read_file(path)
    codec.write_file(path, arrays, {**head, "settings": text})
    done = command("run", "--quiet", "--resume", "--out", "out")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert CHECKPOINT in done.err


OWN = """
import torch


def net(shape, classes):
    return torch.nn.Linear(shape[-1], classes)
"""


def test_files_and_modules_are_given_again(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a checkpoint names is not opened on its word; the command that Ctrl-C prints gives all of it."""
    (tmp_path / "my data.csv").write_text("a,b,label\n" + "".join(f"{n},{n % 3},{n % 2}\n" for n in range(24)))
    (tmp_path / "resumednet.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    places = ("--data", "my data.csv", "--set", "model=resumednet:net")
    whole = ("run", "--quiet", "--method", "fedavg", "--clients", "2", "--rounds", "3", *places)
    assert isinstance(stop_behind(2, KeyboardInterrupt, *whole, "--out", "out", "--checkpoint", "1"), SystemExit)
    goes_on = "fedsolve run --resume --out out --data 'my data.csv' --set model=resumednet:net"
    assert capsys.readouterr().err == f"fedsolve: stopped; {goes_on} goes on\n"
    refused = command("run", "--quiet", "--resume", "--out", "out")
    assert refused.code == 2
    assert "give it here as well: --data 'my data.csv' --set model=resumednet:net\n" in refused.err
    assert command("run", "--quiet", "--resume", "--out", "out", *places[:2]).code == 2
    assert command("run", "--quiet", "--resume", "--out", "out", *places).code == 0
    assert command(*whole, "--out", "whole").code == 0
    assert (tmp_path / "whole/state.safetensors").read_bytes() == (tmp_path / "out/state.safetensors").read_bytes()
    again = ("run", "--quiet", "--config", "out/result.json", "--out", "again")
    assert "give it here as well: --data 'my data.csv' --set model=resumednet:net\n" in command(*again).err
    assert command(*again, *places).code == 0
    (tmp_path / "c.toml").write_text('data = "my data.csv"\nclients = 2\nmethod = "afl"\n')
    assert (
        command("run", "--quiet", "--config", "c.toml", "--out", "toml").code == 0
    )  # written by the user, like a command
    (tmp_path / "c.toml").write_text('data = "my data.csv"\nmethod = "fedavg"\nset = {model = "resumednet:net"}\n')
    assert "give it here as well: --set model=resumednet:net\n" in command("run", "--config", "c.toml").err
    sys.modules.pop("resumednet", None)
