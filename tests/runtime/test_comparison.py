"""A comparison from a file: the settings of a run, lists as sweeps, and methods by names of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsolve.errors import FedsolveError, ParameterError
from fedsolve.report import entries, sections
from fedsolve.study import compare, comparison, sweep
from fedsolve.study.compare import Entry
from fedsolve.study.settings import Settings
from tests.runtime.test_cli import Command, figures

STUDY = """
data = "digits"
clients = [4, 6]
partition = ["iid", "neighbours:3,uneven"]
seeds = [0, 1]
limit = 400
methods = ["afl", "fedhip"]
baselines = false

[set]
"fedhip.beta" = 1
fedhip.alpha = [1, 5]
"""


def written(folder: Path, text: str, name: str = "study.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(path: Path, **more: Any) -> comparison.Comparison:
    return comparison.read(path, more.get("given", {}), more.get("assigned", {}), more.get("methods", []))


def test_a_file_says_what_the_options_say(tmp_path: Path) -> None:
    asked = read(written(tmp_path, STUDY))
    assert asked.entries == (Entry("afl"), Entry("fedhip"))
    assert (asked.seeds, asked.baselines, asked.settings) == ((0, 1), False, {"data": "digits", "limit": 400})
    bases = sweep.bases(Settings(), *(asked.lists.get(name) for name in comparison.LISTS))
    by_options = sweep.bases(Settings(), "4,6", "iid; neighbours:3,uneven", None)
    assert bases == by_options
    names = [entry.method for entry in asked.entries]
    assert list(sweep.grid(asked.assignments, names)) == list(
        sweep.grid({"fedhip.beta": "1", "fedhip.alpha": "1,5"}, names)
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('method = "fedhip"\nseed = 3\n[set]\nalpha = 20', (["fedhip"], (3,), {"alpha": "20"})),  # a file of `run`
        ('methods = "afl, fedhip"', (["afl", "fedhip"], (0,), {})),
        ('methods = ["afl"]\n[set]\nintercept = [true, false]', (["afl"], (0,), {"intercept": "true;false;"})),
        ('methods = ["fedavg"]\n[set]\nmodel = ["mlp:8,4"]', (["fedavg"], (0,), {"model": "mlp:8,4;"})),
    ],
)
def test_values_and_lists(tmp_path: Path, text: str, wanted: Any) -> None:
    asked = read(written(tmp_path, text))
    assert ([entry.method for entry in asked.entries], asked.seeds, asked.assignments) == wanted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("colour = 3", "unknown setting in .*study.toml: 'colour'"),
        ('method = "afl"\nmethods = ["afl"]', "has method and methods"),
        ("seed = 1\nseeds = [1]", "has seed and seeds"),
        ("seeds = [0.5]", "seeds in .* must be an integer"),
        ("methods = 3", "must be names, or tables by name; got 3"),
        ("methods = [1]", "must be names, or tables by name"),
        ("[methods.weak]\nset.alpha = 1", r"\[methods.weak\] in .* must have a method"),
        ('[methods.weak]\nmethod = "fedhip"\nalpha = 1', "must have a method, and may have a table set"),
        ('[methods.weak]\nmethod = "fedhip"\nset.alpha = [1, 2]', "one value for each parameter"),
        ("set = 3", "must be a table of parameters; got 3"),
        ("[set]\nalpha = []", r"set.alpha in .* must be a value or a list of values; got \[\]"),
        ("[set]\nalpha = [[1]]", "must be a value or a list"),
        ('partition = ["iid;iid"]', "partition in .* must be a value or a list"),
        ("baselines = 1", "must be true or false"),
        ('methods = ["mine:Method"]', "names the method 'mine:Method'.*--methods mine:Method"),
        ('methods = ["fedavg"]\n[set]\nmodel = "mine:net"', "names 'mine:net'.*--set model=mine:net"),
        ('methods = ["fedavg"]\n[set]\nmodel = ["lr", "mine:net"]', "names 'mine:net'.*--set model=mine:net"),
        ('methods = ["fedhip"]\n[set]\nmodel = "mine:net"', "names 'mine:net'"),  # which `local` beside it would have
        ('methods = ["fedala"]\n[set]\nfedavg.model = "mine:net"', "names 'mine:net'"),  # a baseline's
        ('[methods.own]\nmethod = "fedavg"\nset.model = "mine:net"', "names 'mine:net'.*--set model=mine:net"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FedsolveError, match=told):
        read(written(tmp_path, text))


def test_a_module_that_is_given_here_may_be_named_by_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'methods = ["fedavg"]\n[set]\nmodel = "mine:net"')
    assert read(path, assigned={"model": "mine:net"}).assignments == {"model": "mine:net"}
    assert read(path, assigned={"model": "lr"}).assignments == {"model": "mine:net"}  # which is not used then
    with pytest.raises(ParameterError, match="names 'mine:net'"):
        read(path, assigned={"fedavg.lr": "0.1"})
    own = written(tmp_path, '[methods.own]\nmethod = "fedavg"\nset.model = "mine:net"')
    with pytest.raises(ParameterError, match="names 'mine:net'"):
        read(own, assigned={"model": "other:net"})  # which is another module, and not what the named method has
    assert read(own, assigned={"model": "mine:net"}).entries[0].name == "own"


NAMED = """
clients = 4
limit = 300
[methods.weak]
method = "fedhip"
set.alpha = 1
[methods.strong]
method = "fedhip"
set.alpha = 50
[methods.pooled]
method = "afl"
"""


def test_a_method_may_be_there_several_times_by_names_of_its_own(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written(tmp_path, NAMED)
    done = command("compare", "--config", "study.toml", "--out", "cmp")
    assert done.code == 0, done.err
    folders = {path.parent.name for path in (tmp_path / "cmp").rglob("result.json")}
    assert folders == {"local-0", "weak-0", "strong-0", "pooled-0"}
    weak, strong = (figures(tmp_path / "cmp" / f"{name}-0") for name in ("weak", "strong"))
    assert (weak["settings"]["set"]["alpha"], strong["settings"]["set"]["alpha"]) == (1.0, 50.0)
    assert weak["settings"]["name"] == "weak"
    assert [line.split()[3] for line in done.out.splitlines()[:4]] == ["local", "weak", "strong", "pooled"]
    (section,) = sections(entries([tmp_path / "cmp"]))
    assert {group.name for group in section.groups} == {"local", "weak", "strong", "pooled"}
    assert "strong" in (tmp_path / "cmp" / "report.html").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "cmp").rglob("result.json")}
    again = command("compare", "--config", "study.toml", "--methods", "weak,afl", "--out", "cmp", "--quiet")
    assert again.code == 0
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert (tmp_path / "cmp" / "afl-0").is_dir()  # a method of the catalogue beside names of the file


def test_options_count_before_the_file(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written(tmp_path, STUDY)
    words = ["--methods", "fedhip", "--clients", "5", "--partition", "iid", "--seeds", "2", "--set", "fedhip.alpha=7"]
    done = command("compare", "--config", "study.toml", *words, "--limit", "200", "--out", "cmp", "--quiet")
    assert done.code == 0, done.err
    ((found),) = [figures(path.parent) for path in (tmp_path / "cmp").rglob("result.json")]
    told = found["settings"]
    assert (told["clients"], told["partition"], told["seed"], told["limit"]) == (5, "iid", 2, 200)
    assert (told["set"]["alpha"], told["set"]["beta"]) == (7.0, 1.0)


def test_the_result_of_a_run_is_a_file_too(command: Command, tmp_path: Path) -> None:
    """The same data, split and seed; parameters of its method are that method's alone."""
    pytest.importorskip("matplotlib")
    one = ["--clients", "4", "--limit", "300", "--partition", "iid", "--seed", "3"]
    assert command("run", "--method", "fedhip", "--set", "alpha=7", *one, "--out", "one", "--quiet").code == 0
    done = command("compare", "--config", "one/result.json", "--out", "same", "--no-baselines", "--quiet")
    assert done.code == 0, done.err
    same, first = figures(tmp_path / "same" / "fedhip-3"), figures(tmp_path / "one")
    for name, entry in first["clients"].items():
        assert same["clients"][name]["metrics"] == entry["metrics"]
    assert same["settings"]["set"] == first["settings"]["set"]
    asked = read(tmp_path / "one" / "result.json", methods=["afl", "fedprior"])
    assert asked.entries == (Entry("afl"), Entry("fedprior"))
    assert asked.assignments == {}
    assert "rounds" not in asked.settings


def test_without_methods_there_is_nothing_to_compare(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written(tmp_path, "clients = 4")
    for words in (["--config", "study.toml"], []):
        done = command("compare", *words, "--out", "cmp")
        assert done.code == 2
        assert "needs methods" in done.err
    absent = command("compare", "--config", "nowhere.toml", "--out", "cmp")
    assert (absent.code, "cannot read nowhere.toml" in absent.err) == (2, True)


def test_names_that_say_the_same_are_told_apart_by_what_differs() -> None:
    twice = [Entry("fedhip", "mine", {"alpha": "1"}), Entry("fedhip", "mine", {"alpha": "5"})]
    runs = compare.plan(Settings(clients=4), twice, [0], {}, baselines=False)
    assert [place for _, place in compare._named(runs, compare.place_of)] == ["mine-0", "mine-alpha=5.0-0"]
    with pytest.raises(ParameterError, match="at least one method"):
        compare.plan(Settings(), [], [0], {})


def test_a_run_has_a_name_where_it_is_given_one(command: Command, tmp_path: Path) -> None:
    for name, alpha in (("weak", "1"), ("strong", "9")):
        words = ["--method", "fedhip", "--set", f"alpha={alpha}", "--clients", "4", "--limit", "300"]
        assert command("run", *words, "--name", name, "--out", name, "--quiet").code == 0
    (section,) = sections(entries([tmp_path / "weak", tmp_path / "strong"]))
    assert {group.name for group in section.groups} == {"weak", "strong"}
    assert json.loads((tmp_path / "weak" / "result.json").read_text())["settings"]["name"] == "weak"
