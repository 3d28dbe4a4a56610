"""Methods of a user's own on the command line, as package.module:Class; a file never makes one be imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from tests.conftest import unsealed
from tests.runtime.test_cli import Command, figures

OWN = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedsolve as fs
from fedsolve import parameters
from fedsolve.laws import OneModel
from helpers import NAME


@dataclass(frozen=True)
class NearestMean(fs.Method):
    """The class whose mean over all clients is nearest."""

    name: ClassVar[str] = NAME
    paper: ClassVar[str] = "an example"
    sends: ClassVar[str] = "sums and counts"
    laws: ClassVar[tuple] = (OneModel(),)

    prior: float = parameters.number(1e-9, "weight of a sample at zero in each class", low=1e-12)

    def __post_init__(self):
        parameters.check(self)

    def message(self, state, client, purpose):
        return {"means": state["means"]} if state else {}

    def update(self, private, message, site):
        own = fs.Moments.of(site.train.inputs, site.train.labels, classes=site.task.classes)
        return {}, {"sums": own.cross.T.copy(), "counts": np.bincount(site.train.labels, minlength=site.task.classes)}

    def aggregate(self, state, replies, server):
        return {"means": replies["sums"] / (replies["counts"][:, None] + self.prior)}

    def personalize(self, private, message, site):
        return fs.Personal(message)

    def shared(self, message):
        return message

    def predict(self, model, inputs, task):
        return inputs @ model["means"].T - 0.5 * (model["means"] ** 2).sum(1)


@dataclass(frozen=True)
class Thief(NearestMean):
    name: ClassVar[str] = "fedhip"


@dataclass(frozen=True)
class Half:
    name: ClassVar[str] = "half"


class Plain:
    pass


number = 3
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A method in the current folder, that imports what lies beside it. Each test has a module of its own."""
    module = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / "helpers.py").write_text('NAME = "nearest-mean"\n')
    (tmp_path / f"{module}.py").write_text(OWN)
    sys.modules.pop("helpers", None)
    return f"{module}:NearestMean"


DATA = ("--clients", "5", "--partition", "iid")


def test_a_method_of_ones_own_is_run_and_predicted_with(command: Command, tmp_path: Path, own: str) -> None:
    done = command("run", "--method", own, *DATA, "--out", "out", "--set", "prior=0.5")
    assert (done.code, done.err) == (0, "")
    stored = figures(tmp_path / "out")
    assert (stored["method"], stored["settings"]["method"], stored["settings"]["set"]) == (
        "nearest-mean", own, {"prior": 0.5}
    )  # fmt: skip
    assert stored["accuracy"]["mean"] > 0.8
    assert "over alone" in done.out
    assert "over global" not in done.out  # it has one model for all
    table = fs.load("digits")
    np.savez(tmp_path / "d.npz", x=np.asarray(table.inputs), y=table.labels)
    model = "out/models/client-00.safetensors"
    done = command("predict", model, "--data", "d.npz", "--method", own, "--out", "p.npz")
    assert (done.code, done.out.splitlines()[0]) == (0, f"{len(table.labels)} predictions in p.npz")
    done = command("predict", model, "--data", "d.npz")
    assert done.code == 2
    assert "unknown method 'nearest-mean'" in done.err
    assert "--method package.module:Class" in done.err
    done = command("predict", model, "--data", "d.npz", "--method", "fedhip")
    assert done.code == 2


def test_without_a_place_the_folder_is_named_after_it(command: Command, own: str) -> None:
    done = command("run", "--quiet", "--method", own, *DATA)
    assert done.out == f"runs/digits-{own.replace(':', '-')}-0\n"


def test_compare_takes_methods_of_ones_own(command: Command, tmp_path: Path, own: str) -> None:
    pytest.importorskip("matplotlib")
    done = command("compare", "--methods", f"afl,{own}", "--out", "cmp", *DATA, "--set", f"{own}.prior=0.5", "--quiet")
    assert (done.code, done.err) == (0, "")
    stored = figures(tmp_path / "cmp" / f"{own.replace(':', '-')}-0")
    assert stored["settings"]["set"] == {"prior": 0.5}
    assert all("alone" in client for client in stored["clients"].values())
    page = (tmp_path / "cmp" / "report.html").read_text()
    assert "nearest-mean" in page


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no_such_module:Method", "there is no module 'no_such_module', neither installed nor in the current folder"),
        ("{module}:Nobody", "has no 'Nobody'"),
        ("{module}:Plain", "must be a dataclass that is a fedsolve.Method; got a class that is no dataclass"),
        ("{module}:number", "must be a dataclass that is a fedsolve.Method; got a int"),
        ("{module}:Half", "lacks paper, sends, laws"),
        ("{module}:Thief", "is called 'fedhip' as one of the catalogue; give it another name"),
        (":", "method"),
        ("{module}:", "method"),
    ],
)
def test_what_is_no_method_is_refused_with_the_way_out(command: Command, own: str, spec: str, words: str) -> None:
    pytest.importorskip("matplotlib")
    for arguments in (
        ("run", "--method"),
        ("compare", "--out", "cmp", "--methods"),
        ("predict", "m", "--data", "d", "--method"),
    ):
        done = command(*arguments, spec.format(module=own.partition(":")[0]))
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1
        assert words in done.err


def test_a_method_that_only_a_file_names_is_not_imported(command: Command, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "c.toml").write_text('method = "evil:Method"\n')
    done = command("run", "--config", "c.toml")
    assert done.code == 2
    assert "c.toml names the method 'evil:Method'" in done.err
    assert "--method evil:Method" in done.err
    # Neither by a saved model, nor by a report over saved results.
    result = fs.run(fs.AFL(ridge=0.0, intercept=False), fs.load("digits").split("iid", clients=3))
    result.save(tmp_path / "out")
    path = tmp_path / "out" / "result.json"
    stored = unsealed(path)
    stored["settings"] |= {"method": "evil:Method", "data": "digits"}
    path.write_text(json.dumps(stored))
    pytest.importorskip("matplotlib")
    assert command("report", "out").code == 0


def test_a_file_and_the_command_line_together_name_it(command: Command, tmp_path: Path, own: str) -> None:
    assert command("run", "--quiet", "--method", own, *DATA, "--set", "prior=0.5", "--out", "one").code == 0
    assert command("run", "--quiet", "--config", "one/result.json", "--method", own, "--out", "two").code == 0
    assert figures(tmp_path / "one") == figures(tmp_path / "two")


@pytest.mark.parametrize("option", [("--runtime", "flower"), ("--ledger", "l.db")])
def test_it_stays_in_this_process(command: Command, own: str, option: tuple[str, str]) -> None:
    done = command("run", "--method", own, *DATA, *option)
    assert done.code == 2
    assert "is not of the catalogue" in done.err
