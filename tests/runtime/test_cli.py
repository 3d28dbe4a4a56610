from __future__ import annotations

import contextlib
import csv
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec, disk, methods, parameters, reproduce
from fedsolve.laws import OneModel
from fedsolve.study import compare, experiment

with warnings.catch_warnings():  # typer imports names that its own click calls deprecated: not ours to mend
    warnings.simplefilter("ignore", DeprecationWarning)
    from fedsolve import cli

FAST = ("run", "--no-alone", "--quiet")


def shell(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The real command, in a process of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "fedsolve", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


class Outcome:
    """What the command did, in this process."""

    def __init__(self, code: Any, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Command = Callable[..., Outcome]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The same without a new process: much faster. The working folder is tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedsolve", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        found = capsys.readouterr()
        return Outcome(stop.value.code or 0, found.out, found.err)

    return call


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


def samples(folder: Path, name: str = "d.npz", **changes: Any) -> Path:
    """A small table of three classes in five features, that a linear model tells apart, but not always."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=90)
    x = np.random.default_rng(1).normal(size=(3, 5))[y] + rng.normal(size=(90, 5))
    arrays = {"x": x, "y": y, "x_test": x[:20], "y_test": y[:20], **changes}
    np.savez(folder / name, **{key: value for key, value in arrays.items() if value is not None})
    return folder / name


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return dict(archive)


def figures(path: Path) -> dict[str, Any]:
    """A result without what differs from run to run: times."""
    found: dict[str, Any] = json.loads((path / "result.json").read_text())
    del found["seconds"]
    for entry in (*found["history"], *found["clients"].values()):
        entry.pop("seconds", None)
    return found


# --- the real command ---


def test_run_without_options_trains_on_digits_and_says_what_came_out(tmp_path: Path) -> None:
    done = shell(tmp_path, "run")
    assert (done.returncode, done.stderr) == (0, "")
    out = tmp_path / "runs" / "digits-fedprior-0"
    assert os.listdir(tmp_path) == ["runs"]
    assert sorted(os.listdir(out)) == ["models", "result.json", "state.safetensors"]
    names = [f"client-{number:02d}" for number in range(20)]
    assert sorted(os.listdir(out / "models")) == [f"{name}.safetensors" for name in [*names, "global"]]
    found = figures(out)
    assert found["settings"]["partition"] == "dirichlet:0.1"
    assert found["accuracy"]["mean"] > 0.9
    lines = done.stdout.strip().splitlines()
    assert lines[0] == "fedprior on digits predicts 10 classes: 20 clients, split dirichlet:0.1, seed 0"
    assert lines[1].split()[:4] == ["client", "train", "test", "accuracy"]
    rows = {line.split()[0]: line.split()[1:4] for line in lines if line.startswith("client-")}
    assert sorted(rows) == names
    assert list(rows) == sorted(rows, key=lambda name: found["clients"][name]["accuracy"])  # the worst first
    for name, (train, test, accuracy) in rows.items():
        client = found["clients"][name]
        assert (int(train), int(test)) == (client["train"], client["test"])
        assert float(accuracy) == pytest.approx(100 * client["accuracy"], abs=0.051)
    total = next(line for line in lines if line.startswith("fedprior  "))
    assert f"{100 * found['accuracy']['mean']:.1f} %" in total
    assert f"{100 * found['accuracy']['pooled']:.1f} %" in total
    assert any(line.startswith("training alone") for line in lines)
    assert f"{found['data']['moved']} samples were moved" in done.stdout
    assert "saved in runs/digits-fedprior-0" in done.stdout
    assert "try: fedsolve predict runs/digits-fedprior-0/models/client-00.safetensors" in done.stdout


def test_the_same_run_again_has_the_same_figures_and_models(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert shell(tmp_path, *FAST, "--out", name).returncode == 0
    assert figures(tmp_path / "one") == figures(tmp_path / "two")
    assert listing(tmp_path / "one" / "models") == listing(tmp_path / "two" / "models")


def test_a_mistake_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", "--method", "fedhipp")
    assert done.returncode == 2
    assert re.fullmatch(r"fedsolve: unknown method 'fedhipp'; did you mean 'fedhip'( or '\w+')*\?\n", done.stderr)
    assert listing(tmp_path) == {}


def test_nothing_is_printed_but_the_result(command: Command) -> None:
    assert command("run", "--method", "fedhipp").out == ""
    assert command("run", "--clients", "3").out.startswith("fedprior on digits")


def test_usage_errors_exit_with_two_as_well(tmp_path: Path) -> None:
    for arguments, text in (
        (("run", "--clients", "abc"), "'abc' is not a valid integer"),
        (("run", "--bogus"), "--bogus"),
        (("predict",), "MODEL"),
    ):
        done = shell(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    assert listing(tmp_path) == {}


def test_version_and_help(tmp_path: Path) -> None:
    done = shell(tmp_path, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fedsolve {fs.__version__}\n", "")
    done = shell(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("run", "methods", "predict"):
        assert f"  {name} " in done.stdout


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['fedsolve', '--help']\n"
        "from fedsolve.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('LOADED', sorted({'numpy', 'scipy', 'sklearn', 'torch', 'flwr'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"


SLOW = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

import fedsolve as fs


@dataclass(frozen=True)
class Slow(fs.Method):
    name: ClassVar[str] = "slow"
    paper: ClassVar[str] = "an example"
    sends: ClassVar[str] = "a number"
    laws: ClassVar[tuple] = ()

    def message(self, state, client, purpose):
        return {}

    def update(self, private, message, site):
        Path("started").touch()
        for _ in range(20):
            np.linalg.svd(site.rng.normal(size=(300, 300)))
        return {}, {"count": np.array(1)}

    def aggregate(self, state, replies, server):
        return {}

    def personalize(self, private, message, site):
        return fs.Personal({})

    def predict(self, model, inputs, task):
        return np.zeros((len(inputs), task.classes))
"""


def test_ctrl_c_is_one_line_exit_code_130_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsolve", "run", "--method", "slow:Slow", "--clients", "100", "--out", "out"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells let background jobs ignore it
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert time.monotonic() < until
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.02)
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "fedsolve: stopped; nothing was written\n"
    assert out.strip() == ""
    assert time.monotonic() - started < 20  # all hundred would take much longer
    assert sorted(os.listdir(tmp_path)) == ["slow.py", "started"]


# --- run ---


def test_quiet_prints_where_the_result_is_and_nothing_else(command: Command, tmp_path: Path) -> None:
    done = command("run", "--quiet", "--clients", "5")
    assert (done.code, done.out, done.err) == (0, "runs/digits-fedprior-0\n", "")
    assert len(figures(tmp_path / "runs" / "digits-fedprior-0")["clients"]) == 5


def test_out_names_the_place_and_an_earlier_result_is_replaced(command: Command, tmp_path: Path) -> None:
    assert command(*FAST, "--out", "a/b", "--clients", "4").out == "a/b\n"
    assert command(*FAST, "--out", "a/b", "--clients", "3").code == 0
    assert os.listdir(tmp_path / "a") == ["b"]
    assert sorted(figures(tmp_path / "a" / "b")["clients"]) == ["client-00", "client-01", "client-02"]


def test_out_may_be_the_empty_folder_one_is_in(command: Command, tmp_path: Path) -> None:
    done = command(*FAST, "--out", ".", "--clients", "3")
    assert done.code in (0, 2)
    if done.code:
        assert done.err.startswith("fedsolve: ") and done.err.count("\n") == 1
        assert listing(tmp_path) == {}
    else:
        assert sorted(os.listdir(tmp_path)) == ["models", "result.json", "state.safetensors"]


@pytest.mark.parametrize("method", ["local", "afl", "fedhip"])
def test_every_method_runs(command: Command, tmp_path: Path, method: str) -> None:
    done = command("run", "--method", method, "--out", "out", "--clients", "4", "--partition", "iid")
    assert (done.code, done.err) == (0, "")
    assert done.out.strip().startswith(f"{method} on digits predicts 10 classes: 4 clients, split iid, seed 0\n")
    found = figures(tmp_path / "out")
    assert found["method"] == method
    assert found["accuracy"]["mean"] > 0.85
    assert (tmp_path / "out" / "models" / "global.safetensors").exists() == (method != "local")
    assert all(("alone" in client) == (method != "local") for client in found["clients"].values())
    if method == "local":
        assert found["bytes"] == {"up": 0, "down": 0}


def test_set_changes_parameters_and_they_are_kept(command: Command, tmp_path: Path) -> None:
    assert command(*FAST, "--out", "out", "--method", "fedhip", "--set", "alpha=20", "--set", "intercept=yes").code == 0
    found = figures(tmp_path / "out")
    assert found["settings"]["set"] == {"alpha": 20.0, "beta": "auto", "intercept": True, "thin": False}
    assert {client["chosen"]["alpha"] for client in found["clients"].values()} == {20.0}
    assert command(*FAST, "--out", "auto", "--method", "fedhip", "--set", "alpha=auto").code == 0
    assert figures(tmp_path / "auto")["settings"]["set"]["alpha"] == "auto"


def test_the_command_does_what_the_library_does(command: Command, tmp_path: Path) -> None:
    options = ("--clients", "6", "--partition", "classes:3", "--seed", "5", "--test", "0.3", "--participation", "0.5")
    assert command(*FAST, "--out", "out", *options).code == 0
    found = figures(tmp_path / "out")
    federation = fs.load("digits").split(fs.classes(3), clients=6, seed=5, test=0.3)
    wanted = fs.run(fs.FedPrior(), federation, seed=5, participation=0.5)
    assert found["accuracy"]["mean"] == wanted.accuracy.mean
    assert found["data"]["fingerprint"] == federation.fingerprint
    assert len(found["history"][0]["missing"]) == 3


def test_a_toml_file_gives_settings_and_options_override_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'method = "fedhip"\nclients = 4\npartition = "iid"\nseed = 3\nalone = false\n[set]\nalpha = 2\nbeta = "0.5"\n'
    )
    assert command("run", "--quiet", "--config", "c.toml", "--out", "one").code == 0
    found = figures(tmp_path / "one")["settings"]
    assert (found["clients"], found["partition"], found["seed"], found["alone"]) == (4, "iid", 3, False)
    assert found["set"] == {"alpha": 2, "beta": 0.5, "intercept": True, "thin": False}
    options = ("--config", "c.toml", "--out", "two", "--clients", "5", "--set", "alpha=7")
    assert command("run", "--quiet", *options).code == 0
    found = figures(tmp_path / "two")["settings"]
    assert (found["clients"], found["seed"], found["set"]["alpha"], found["set"]["beta"]) == (5, 3, 7.0, 0.5)


@pytest.mark.parametrize(
    "options",
    [
        ("--partition", "classes:2", "--seed", "7", "--clients", "6", "--set", "shrink=0.1"),
        ("--partition", "dirichlet:0.123456789", "--clients", "6"),
        ("--data", "synthetic:0.5,0.5", "--partition", "by-client", "--clients", "5"),
        ("--data", "d.npz", "--test", "official", "--clients", "5", "--method", "afl"),
    ],
)
def test_the_settings_of_a_result_give_the_same_figures_again(
    command: Command, tmp_path: Path, options: tuple[str, ...]
) -> None:
    samples(tmp_path)
    assert command("run", "--quiet", "--out", "one", *options).code == 0
    files = options[:2] if "d.npz" in options else ()  # what a result names is given again
    assert command("run", "--quiet", "--out", "two", "--config", "one/result.json", *files).code == 0
    assert figures(tmp_path / "one") == figures(tmp_path / "two")


def test_another_method_drops_the_parameters_of_the_file(command: Command, tmp_path: Path) -> None:
    assert command(*FAST, "--out", "one", "--clients", "4", "--set", "shrink=0.1").code == 0
    assert command(*FAST, "--out", "two", "--config", "one/result.json", "--method", "local").code == 0
    found = figures(tmp_path / "two")["settings"]
    assert (found["method"], found["clients"], found["set"]["ridge"]) == ("local", 4, "auto")
    assert "shrink" not in found["set"]


def test_files_go_to_a_folder_with_their_name(command: Command, tmp_path: Path) -> None:
    (tmp_path / "sub:1").mkdir()
    for where, place in ((tmp_path, "my.data-fedprior-0"), (tmp_path / "sub:1", "my.data-fedprior-0-2")):
        samples(where, "my.data.npz")
        done = command(*FAST, "--data", str(where / "my.data.npz"), "--clients", "4")
        assert (done.code, done.out) == (0, f"runs/{place}\n")
    assert command(*FAST, "--data", "synthetic:1,0.5", "--clients", "4").out == "runs/synthetic-1-0.5-fedprior-0\n"
    assert sorted(os.listdir(tmp_path)) == ["my.data.npz", "runs", "sub:1"]


def test_test_may_be_global(command: Command, tmp_path: Path) -> None:
    samples(tmp_path)
    assert command(*FAST, "--data", "d.npz", "--test", "global", "--clients", "4", "--out", "out").code == 0
    assert {client["test"] for client in figures(tmp_path / "out")["clients"].values()} == {20}


def test_without_test_data_accuracies_are_dashes_and_null(command: Command, tmp_path: Path) -> None:
    done = command("run", "--test", "0", "--clients", "4", "--out", "out")
    assert (done.code, done.err) == (0, "")
    assert figures(tmp_path / "out")["accuracy"] == {"mean": None, "pooled": None, "std": None, "worst_decile": None}
    assert done.out.strip().splitlines()[2].split()[3] == "-"


def test_many_clients_show_the_worst_and_the_best(command: Command) -> None:
    done = command("run", "--no-alone", "--clients", "50")
    assert sum(line.startswith("client-") for line in done.out.splitlines()) == cli.text.ROWS
    assert "(the 15 worst and best of 50 clients; all are in result.json)" in done.out


def test_names_with_brackets_are_shown_as_they_are(command: Command, tmp_path: Path) -> None:
    samples(tmp_path, "[bold]d.npz", client=np.array(["[red]", "[ward 1]", "c"])[np.arange(90) % 3])
    done = command("run", "--data", "[bold]d.npz", "--partition", "by-client", "--out", "out[x]")
    assert (done.code, done.err) == (0, "")
    assert [line.split("  ")[0] for line in done.out.strip().splitlines()[2:5]] == ["[red]", "[ward 1]", "c"]
    assert done.out.strip().startswith("fedprior on [bold]d.npz predicts 3 classes: ")
    assert "saved in out[x]: " in done.out
    done = command("run", "--out", "a[/b]", "--clients", "3")  # a folder "a[" with a folder "b]"
    assert done.code == 0
    assert "saved in a[/b]: " in done.out


def test_a_full_disk_is_a_sentence(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "create", full)
    done = command(*FAST, "--clients", "3", "--out", "out")
    assert done.code == 2
    assert done.err.startswith("fedsolve: cannot write to out")
    assert done.err.count("\n") == 1
    assert listing(tmp_path) == {}


# --- methods ---


def test_methods_lists_every_method(command: Command) -> None:
    done = command("methods")
    assert (done.code, done.err) == (0, "")
    firsts = [line.split()[0] for line in done.out.splitlines() if line[:1].strip()]
    assert firsts[:4] == ["method", "local", "afl", "fedhip"]
    assert "fedsolve methods NAME" in done.out


def test_methods_shows_one_with_its_parameters(command: Command) -> None:
    done = command("methods", "fedhip")
    assert done.code == 0
    assert done.out.startswith("fedhip: A global model, and a personal one per client")
    rows = {line.split()[0]: line.split()[1] for line in done.out.splitlines() if line[:1].strip()}
    assert (rows["rounds"], rows["alpha"], rows["beta"], rows["intercept"]) == ("1", "auto", "auto", "true")
    assert "Tang et al." in done.out
    assert done.out.count("weight of the client's own data") == 1


@pytest.mark.parametrize("name", methods.CATALOGUE)
def test_methods_says_of_each_what_is_sent_and_what_is_evaluated(command: Command, name: str) -> None:
    done = command("methods", name)
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    for cls in methods.classes(name):
        assert f"sends {cls.sends} evaluated " in text
        assert f"laws {', '.join(map(str, cls.laws))}" in text
        one = any(isinstance(law, OneModel) for law in cls.laws)
        assert ("evaluated the one global model" in text) == one
        assert ("evaluated each client's personal model" in text) != one
        for parameter, _, domain in parameters.declared(cls):
            assert f" {parameter} " in text
            assert domain.doc.split()[0] in text


@pytest.mark.parametrize("cls", [cls for name in methods.CATALOGUE for cls in methods.classes(name)])
def test_help_of_a_method_has_the_meaning_of_each_parameter(cls: type[fs.Method]) -> None:
    doc = inspect.getdoc(cls) or ""
    summary, _, section = doc.partition("\n\nParameters\n----------\n")
    assert summary == parameters.summary(cls)
    declared = list(parameters.declared(cls))
    lines = section.splitlines()
    assert lines[0::2] == [f"{name} : {domain.describe()}, default {default!r}" for name, default, domain in declared]
    assert lines[1::2] == [f"    {domain.doc}" for _, _, domain in declared]


def test_methods_refuses_an_unknown_one(command: Command) -> None:
    done = command("methods", "fedhipp")
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"fedsolve: unknown method 'fedhipp'; did you mean 'fedhip'( or '\w+')*\?\n", done.err)


# --- predict ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the samples, and one with named classes beside it."""
    folder = tmp_path_factory.mktemp("trained")
    table = fs.load(str(samples(folder)))
    fs.run(fs.FedHiP(beta=1.0, intercept=False), table.split(fs.iid(), clients=4)).models["client-00"].save(
        folder / "m.safetensors"
    )
    named = samples(folder, "n.npz", y=np.array(["red", "blue", "green"])[table.labels], x_test=None, y_test=None)
    fs.run(fs.AFL(ridge=0.0, intercept=False), fs.load(str(named)).split(fs.iid(), clients=4)).models["client-00"].save(
        folder / "n.safetensors"
    )
    return folder


def test_predict_prints_a_class_a_line_and_the_accuracy_aside(command: Command, trained: Path) -> None:
    done = command("predict", str(trained / "m.safetensors"), "--data", str(trained / "d.npz"))
    x, y = (arrays(trained / "d.npz")[key] for key in ("x", "y"))
    wanted = fs.load_model(trained / "m.safetensors").predict(x)
    assert done.code == 0
    assert done.out.split() == [str(label) for label in wanted]
    assert done.err == f"accuracy {(wanted == y).mean():.4f} on 90 samples\n"
    assert 0.6 < (wanted == y).mean() < 1


def test_predict_without_labels_says_nothing_of_accuracy(command: Command, trained: Path, tmp_path: Path) -> None:
    samples(tmp_path, y=None)
    done = command("predict", str(trained / "m.safetensors"), "--data", "d.npz")
    assert (done.code, done.err, len(done.out.split())) == (0, "", 90)


def test_predict_writes_npz(command: Command, trained: Path, tmp_path: Path) -> None:
    done = command("predict", str(trained / "m.safetensors"), "--data", str(trained / "d.npz"), "--out", "p.npz")
    assert done.code == 0
    assert done.out.splitlines()[0] == "90 predictions in p.npz"
    assert done.out.splitlines()[1].startswith("accuracy 0.")
    found, x = arrays(tmp_path / "p.npz"), arrays(trained / "d.npz")["x"]
    assert sorted(found) == ["label", "probabilities", "scores"]
    model = fs.load_model(trained / "m.safetensors")
    np.testing.assert_array_equal(found["scores"], model.scores(x))
    np.testing.assert_array_equal(found["probabilities"], model.predict_proba(x))
    np.testing.assert_array_equal(found["label"], found["scores"].argmax(1))
    assert os.listdir(tmp_path) == ["p.npz"]


def test_predict_writes_csv_with_the_names_of_classes(command: Command, trained: Path, tmp_path: Path) -> None:
    done = command("predict", str(trained / "n.safetensors"), "--data", str(trained / "n.npz"), "--out", "p.csv")
    assert (done.code, done.err) == (0, "")
    with (tmp_path / "p.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    names = ["blue", "green", "red"]
    assert head == ["label", *(f"score_{name}" for name in names), *(f"probability_{name}" for name in names)]
    x, y = (arrays(trained / "n.npz")[key] for key in ("x", "y"))
    scores, probabilities = np.split(np.array([row[1:] for row in rows], dtype=float), 2, axis=1)
    model = fs.load_model(trained / "n.safetensors")
    np.testing.assert_array_equal(scores, model.scores(x))
    np.testing.assert_array_equal(probabilities, model.predict_proba(x))
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    labels = [row[0] for row in rows]
    assert labels == [("blue", "green", "red")[i] for i in scores.argmax(1)]
    assert f"accuracy {np.mean(np.array(labels) == y):.4f} on 90 samples\n" in done.out


def test_predict_from_a_csv_file_is_the_same(command: Command, trained: Path, tmp_path: Path) -> None:
    x, y = (arrays(trained / "d.npz")[key] for key in ("x", "y"))
    lines = [",".join(map(repr, [*row, label])) for row, label in zip(x.tolist(), y.tolist(), strict=True)]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,c,d,e,y", *lines]))
    one = command("predict", str(trained / "m.safetensors"), "--data", "d.csv")
    two = command("predict", str(trained / "m.safetensors"), "--data", str(trained / "d.npz"))
    assert (one.out, one.err) == (two.out, two.err)


# --- mistakes ---


def mistake(done: Outcome, before: dict[str, bytes], folder: Path, *wanted: str) -> None:
    """Exit code 2, one line that names the thing, and everything as it was."""
    assert done.code == 2
    assert done.out.strip() == ""
    assert done.err.startswith("fedsolve: ")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    for part in wanted:
        assert part in done.err
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("--method fedhipp", "unknown method 'fedhipp'; did you mean 'fedhip'"),
        (
            "--method nothing-like-it",
            "known: afl, apfl, apple, baffle, deepafl, ditto, fedacnnl, fedala, fedamp, fedapa",
        ),
        ("--set gamma=1", "'gamma'"),
        ("--method fedhip --set alhpa=1", "did you mean 'alpha'"),
        (
            "--method fedhip --set alpha=-1",
            "parameter 'alpha' of FedHiP must be a finite number of at least 0 or 'auto'; got -1.0",
        ),
        ("--method fedhip --set alpha=nan", "got nan"),
        ("--method fedhip --set alpha=inf", "got inf"),
        ("--method fedhip --set alpha=abc", "got 'abc'"),
        ("--method fedhip --set alpha=", "parameter 'alpha'"),
        ("--method fedhip --set intercept=maybe", "parameter 'intercept' of FedHiP must be true or false; got 'maybe'"),
        ("--set alpha", "--set takes NAME=VALUE"),
        ("--set =3", "--set takes NAME=VALUE"),
        ("--partition dirichlett:1", "unknown partition 'dirichlett'; did you mean 'dirichlet'"),
        ("--partition dirichlet:-1", "got -1.0"),
        ("--partition dirichlet:x", "'dirichlet:x'"),
        ("--partition classes:0", "got 0"),
        ("--partition iid:4", "'iid:4'"),
        ("--partition by-client", "digits has no column 'client'"),
        ("--data digit", "unknown data set 'digit'; did you mean 'digits'"),
        ("--data digits:3", "'digits:3'"),
        ("--data synthetic:x", "'synthetic:x"),
        ("--data missing.npz", "missing.npz"),
        ("--data missing.csv", "missing.csv"),
        ("--data nan.npz", "nan.npz: inputs must be finite; got nan in row 3, column 1"),
        ("--data half.npz --task classes", "half.npz: labels must be integers; got 0.5"),
        ("--data negative.npz", "negative.npz: labels must be integers from 0 on; got -1"),
        ("--data short.npz", "short.npz: 90 inputs but 50 labels"),
        ("--data text.npz", "text.npz is damaged or not an .npz file"),
        ("--data notes.txt", "notes.txt"),
        ("--data empty.csv", "empty.csv"),
        ("--data head.csv", "head.csv"),
        ("--clients 0", "clients must be an integer of at least 1; got 0"),
        ("--clients -4", "got -4"),
        ("--clients 5000", "5000 clients are more than the 1797 samples of digits"),
        ("--clients 1000", "1000 clients"),
        ("--test 1.5", "test must be a share from 0 up to but not including 1; got 1.5"),
        ("--test -0.1", "got -0.1"),
        ("--test nan", "got nan"),
        ("--test nonsense", "'nonsense'"),
        ("--test global", "digits has no official test set"),
        ("--test official", "digits has no official test set"),
        ("--participation 0", "participation must be a share above 0 and at most 1, or two as in 0.6-1"),
        ("--participation 2", "got 2.0"),
        ("--participation nan", "got nan"),
        ("--method afl --rounds 7", "afl takes exactly 1 round; got rounds=7"),
        ("--rounds 0", "fedprior takes exactly 1 round; got rounds=0"),
        ("--seed -1", "seed must be an integer of at least 0; got -1"),
        ("--min-samples 0", "min-samples must be an integer of at least 1; got 0"),
        ("--min-samples 200", "20 clients with at least 200 samples each need 4000"),
        ("--features nonsense", "unknown feature map 'nonsense'"),
        ("--runtime nonsense", "unknown runtime 'nonsense'"),
        ("--out full", "full exists and is not a result of fedsolve"),
        ("--out notes.txt", "notes.txt exists and is not a result of fedsolve"),
        ("--out notes.txt/below", "cannot write to notes.txt/below"),
        ("--out " + "x" * 300, "File name too long"),
        ("--config missing.toml", "cannot read missing.toml"),
        ("--config full", "cannot read full"),
        ("--config bad.toml", "bad.toml is not a TOML file of settings"),
        ("--config bad.json", "bad.json is not a TOML file of settings, nor the result.json of a run"),
        ("--config key.toml", "setting in key.toml: 'cleints'; did you mean 'clients'"),
    ],
)
def test_a_mistake_in_run_is_one_line_and_leaves_nothing(
    command: Command, tmp_path: Path, arguments: str, wanted: str
) -> None:
    if "--data" in arguments:
        whole = arrays(samples(tmp_path, "whole.npz"))
        spoilt = whole["x"].copy()
        spoilt[3, 1] = np.nan
        samples(tmp_path, "nan.npz", x=spoilt)
        samples(tmp_path, "half.npz", y=whole["y"] / 2)
        samples(tmp_path, "negative.npz", y=whole["y"] - 1)
        samples(tmp_path, "short.npz", y=whole["y"][:50])
        (tmp_path / "text.npz").write_text("no zip")
        (tmp_path / "empty.csv").write_text("")
        (tmp_path / "head.csv").write_text("a,b,y\n")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "bad.toml").write_text("method = \n")
    (tmp_path / "bad.json").write_text('{"format": 1}')
    (tmp_path / "key.toml").write_text("cleints = 4\n")
    before = listing(tmp_path)
    mistake(command("run", *arguments.split()), before, tmp_path, wanted)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("method = 3", "method"),
        ("data = 5", "data"),
        ('clients = "four"', "clients"),
        ("clients = 2.5", "clients"),
        ("partition = 3", "partition"),
        ("test = [1]", "test"),
        ("test = true", "test"),
        ('min_samples = "2"', "min-samples"),
        ("features = 1", "feature"),
        ('seed = "x"', "seed"),
        ("seed = 1.5", "seed"),
        ('participation = "all"', "participation"),
        ("runtime = 1", "runtime"),
        ('rounds = "1"', "rounds"),
        ('alone = "no"', "alone"),
        ("set = 3", "set"),
        ('set = "alpha=3"', "set"),
        ("set = {alpha = [1]}", "alpha"),
        ("set = {intercept = 1}", "intercept"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(command: Command, tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / "c.toml").write_text(line + "\n")
    mistake(command("run", "--config", "c.toml"), listing(tmp_path), tmp_path, name)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("missing.safetensors --data d.npz", "cannot read missing.safetensors"),
        ("cut.safetensors --data d.npz", "cut.safetensors is damaged"),
        ("d.npz --data d.npz", "d.npz is damaged or not a safetensors file"),
        ("other.safetensors --data d.npz", "other.safetensors is not a fedsolve model"),
        ("m.safetensors --data missing.npz", "missing.npz"),
        ("m.safetensors --data wide.npz", "wide.npz: inputs have shape (10,); wanted shape (5,)"),
        ("m.safetensors --data bare.npz", "bare.npz needs an array 'x'"),
        ("m.safetensors --data nan.npz", "nan.npz: inputs must be finite; got nan"),
        ("m.safetensors --data short.npz", "short.npz: 90 inputs but 50 labels"),
        (
            "m.safetensors --data words.npz",
            "words.npz: labels must be integers from 0 to 2, since the classes have no names; got 'c'",
        ),
        ("m.safetensors --data notes.txt", "notes.txt: wanted a file that ends in .npz, .csv, .parquet"),
        ("m.safetensors --data d.npz --out missing/p.csv", "there is no folder missing"),
        ("m.safetensors --data d.npz --out p.txt", ".csv or .npz; got p.txt"),
        ("m.safetensors --data d.npz --out p", ".csv or .npz; got p"),
        ("m.safetensors --data d.npz --out folder.csv", "folder.csv"),
    ],
)
def test_a_mistake_in_predict_is_one_line_and_leaves_nothing(
    command: Command, tmp_path: Path, trained: Path, arguments: str, wanted: str
) -> None:
    whole = arrays(samples(tmp_path))
    samples(tmp_path, "wide.npz", x=np.hstack([whole["x"], whole["x"]]))
    samples(tmp_path, "bare.npz", x=None)
    samples(tmp_path, "nan.npz", x=np.where(whole["x"] > 0, np.nan, whole["x"]))
    samples(tmp_path, "short.npz", y=whole["y"][:50])
    samples(tmp_path, "words.npz", y=np.array(["a", "b", "c"])[whole["y"]])
    content = (trained / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(content)
    (tmp_path / "cut.safetensors").write_bytes(content[:-5])
    codec.write_file(tmp_path / "other.safetensors", {"weight": np.zeros((5, 3))})
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    before = listing(tmp_path)
    mistake(command("predict", *arguments.split()), before, tmp_path, wanted)


def test_another_experiment_does_not_replace_the_first_and_the_same_one_does(command: Command, tmp_path: Path) -> None:
    places = [
        command(*FAST, *more).out.strip()
        for more in ([], ["--set", "shrink=0.1"], ["--clients", "5"], [], ["--clients", "5"])
    ]
    assert places == [f"runs/digits-fedprior-0{end}" for end in ("", "-2", "-3", "", "-3")]


def test_columns_are_found_by_name_when_predicting(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)) * [1.0, 10.0, 100.0]
    y = np.where(x[:, 2] > 0, "yes", "no")
    lines = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(x, y, strict=True)]
    (tmp_path / "train.csv").write_text("a,b,c,label\n" + "\n".join(lines) + "\n")
    assert command(*FAST, "--data", "train.csv", "--clients", "2", "--out", "out", "--method", "afl").code == 0
    turned = [f"{c},{label},{a},{b}" for (a, b, c), label in zip(x, y, strict=True)]
    (tmp_path / "turned.csv").write_text("c,label,a,b\n" + "\n".join(turned) + "\n")
    model = "out/models/global.safetensors"
    one, two = (command("predict", model, "--data", name) for name in ("train.csv", "turned.csv"))
    assert one.out == two.out
    assert set(one.out.split()) <= {"yes", "no"}
    (tmp_path / "short.csv").write_text("a,b,other\n1,2,3\n")
    done = command("predict", model, "--data", "short.csv")
    assert done.code == 2
    assert "short.csv: it lacks c and has other besides; the model takes the columns a, b, c" in done.err


def test_a_result_made_in_python_cannot_be_a_config(command: Command, tmp_path: Path) -> None:
    fs.run(fs.AFL(ridge=0.0, intercept=False), fs.load("digits").split("iid", clients=3)).save(tmp_path / "mine")
    done = command("run", "--config", "mine/result.json")
    assert done.code == 2
    assert "mine/result.json comes from fs.run" in done.err


def test_feature_maps_from_the_command_line(command: Command, tmp_path: Path) -> None:
    assert command(*FAST, "--features", "random:80,tanh,3", "--out", "out").code == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["settings"]["features"] == "random:80,tanh,3"
    assert found["seconds"]["features"] > 0
    model = fs.load_model(tmp_path / "out" / "models" / "global.safetensors")
    assert model.arrays["weight"].shape == (80, 10)
    assert model.predict(np.zeros((2, 64))).shape == (2,)


# --- gradient methods ---

NETWORK = ("--clients", "4", "--method", "fedavg", "--set", "model=mlp:8", "--set", "epochs=1", "--rounds", "4")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--checkpoint", "2"), "need --out"),
        (("--resume",), "need --out"),
        (("--resume", "--out", "nowhere"), "nothing to resume in nowhere"),
        (("--checkpoint", "0", "--out", "x"), "at least 1; got 0"),
        (("--eval-every", "0"), "eval-every must be an integer of at least 1"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(command: Command, options: tuple[str, ...], words: str) -> None:
    found = command("run", "--quiet", "--clients", "3", *options)
    assert found.code == 2
    assert words in found.err


def test_a_line_for_each_round(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(cli.waiting, "PATIENCE", 0.0)
    found = command("run", *NETWORK, "--alone", "--eval-every", "2", "--out", "out")
    assert found.code == 0
    lines = [line for line in found.err.splitlines() if " of 4: " in line]
    assert lines[0].startswith("round 1 of 4: loss ")
    assert lines[1].startswith("round 2 of 4: accuracy ")
    assert "up" in lines[1]
    assert "left" in lines[1]
    assert "alone" in found.out


def test_without_torch_the_way_out_is_said_and_methods_are_listed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from fedsolve.cli import main\n"
        "sys.argv = ['fedsolve', *sys.argv[1:]]\n"
        "main()"
    )

    def shell_without_torch(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    listed = shell_without_torch("methods", "fedapa")
    assert listed.returncode == 0, listed.stderr
    refused = shell_without_torch("run", "--method", "fedavg", "--clients", "3")
    assert refused.returncode == 2
    assert "pip install 'fedsolve[torch]'" in refused.stderr


# --- part of the data ---


def test_a_limit_takes_so_many_samples_and_can_be_run_again(command: Command, tmp_path: Path) -> None:
    assert command(*FAST, "--limit", "300", "--clients", "3", "--out", "out").code == 0
    found = figures(tmp_path / "out")
    assert sum(client["train"] + client["test"] for client in found["clients"].values()) == 300
    assert "--limit 300" in experiment.command(found["settings"])
    assert command(*FAST, "--config", "out/result.json", "--out", "again").code == 0
    assert figures(tmp_path / "again")["clients"] == found["clients"]


def test_a_limit_of_nothing_is_refused(command: Command) -> None:
    done = command(*FAST, "--limit", "0")
    assert (done.code, done.err) == (2, "fedsolve: limit must be an integer of at least 1; got 0\n")


# --- reproduce ---


def test_reproduce_says_first_what_is_missing_and_runs_the_rest(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    base = experiment.Settings(method="afl", data="digits", clients=3, alone=False)
    cells = [reproduce.Cell("AFL", str(seed), 90.0, base, seeds=(seed,)) for seed in range(2)]
    cells.append(reproduce.Cell("AFL", "there", 80.0, replace(base, data="cifar10")))
    made = {"tiny-1": cells[:2], "tiny-2": cells}

    def create(name: str, scale: str) -> reproduce.Recipe:
        return reproduce.Recipe(name, f"{name}, a table", f"At the scale {scale}.", tuple(made[name]))

    monkeypatch.setattr(reproduce, "RECIPES", {name: create for name in made})
    done = command("reproduce", "all", "--out", "out")
    assert done.code == 0
    lines = done.err.splitlines()
    assert lines[0].startswith("cifar10 is not here: put cifar-10-binary.tar.gz")
    assert lines[0].endswith("1 of 5 runs need it and are left out.")
    assert lines[1] == "table 1 of 2: tiny-1"
    assert lines[2].startswith("1 of 2  afl")
    assert lines[2].endswith("s left")
    assert not lines[3].endswith("left")
    assert "### tiny-1, a table" in done.out
    assert "At the scale here." in done.out
    assert (tmp_path / "out" / "tiny-2" / "table.md").is_file()
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2  # those of both tables, once


def test_a_stopped_reproduce_says_how_to_go_on_and_does(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    base = experiment.Settings(method="afl", data="digits", clients=3, alone=False)
    cells = tuple(reproduce.Cell("AFL", str(seed), 90.0, base, seeds=(seed,)) for seed in range(3))
    monkeypatch.setattr(reproduce, "RECIPES", {"tiny": lambda name, _: reproduce.Recipe(name, "A table", "", cells)})
    true, executed = experiment.execute, list[object]()

    def execute(settings: Any, *rest: Any, **more: Any) -> Any:
        if settings.seed == 2 and len(executed) < 3:
            executed.append("stopped")
            raise KeyboardInterrupt
        executed.append(settings.seed)
        return true(settings, *rest, **more)

    monkeypatch.setattr(compare, "execute", execute)
    done = command("reproduce", "tiny", "--out", "out")
    assert done.code == 130
    assert done.err.endswith("fedsolve: stopped; the same command goes on with the run that was stopped\n")
    assert command("reproduce", "tiny", "--out", "out").code == 0
    assert executed == [0, 1, "stopped", 2]
