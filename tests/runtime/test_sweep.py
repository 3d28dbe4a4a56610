"""Lists of settings as a grid: what is a list and what a value with commas, which runs come of it, where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsolve as fs
from fedsolve.errors import ParameterError
from fedsolve.study import compare, sweep
from fedsolve.study.settings import Settings
from tests.runtime.test_cli import Command


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("alpha", "1,5,20", ["1", "5", "20"]),
        ("fedhip.alpha", "auto,20", ["auto", "20"]),
        ("alpha", "auto", ["auto"]),
        ("alpha", "1;5", ["1", "5"]),
        ("alpha", "1,1", ["1"]),
        ("intercept", "true,false", ["true", "false"]),
    ],
)
def test_what_is_a_list_of_values(key: str, text: str, wanted: list[str]) -> None:
    assert [each[key] for each in sweep.grid({key: text}, ["fedhip"])] == wanted


def test_networks_with_commas_are_values_and_lists_of_them_have_semicolons() -> None:
    pytest.importorskip("torch")
    assert list(sweep.grid({"model": "mlp:128,64"}, ["fedavg"])) == [{"model": "mlp:128,64"}]
    found = [each["model"] for each in sweep.grid({"model": "mlp:128,64; lr"}, ["fedavg"])]
    assert found == ["mlp:128,64", "lr"]


def test_splits_and_maps_with_commas() -> None:
    found = sweep.bases(Settings(), None, "neighbours:2,uneven", "random:8,relu")
    assert [(each.partition, each.features) for each in found] == [("neighbours:2,uneven", "random:8,relu")]
    found = sweep.bases(Settings(), None, "iid,neighbours:2", "unit; random:8,relu")
    assert [(each.partition, each.features) for each in found] == [
        ("iid", "unit"), ("iid", "random:8,relu"), ("neighbours:2", "unit"), ("neighbours:2", "random:8,relu"),
    ]  # fmt: skip


@pytest.mark.parametrize("clients", ["5,many", "", ","])
def test_wrong_lists_are_refused(clients: str) -> None:
    with pytest.raises(ParameterError):
        sweep.bases(Settings(), clients, None, None)


def test_no_run_comes_twice_and_each_has_a_folder_of_its_own() -> None:
    bases = sweep.bases(Settings(), "5,10", "iid,shards:2", None)
    grid = list(sweep.grid({"fedhip.alpha": "1,5,20"}, ["afl", "fedhip"]))
    runs = compare.plans(bases, ["afl", "fedhip"], [0, 1], grid)
    assert len(runs) == 4 * 2 * (1 + 1 + 3)  # local, afl and three of fedhip, for each base and seed
    places = [place for _, place in compare._named(runs, compare.place_of)]
    assert len(set(places)) == len(runs)


def test_a_sweep_goes_on_where_it_was_and_its_page_tells_values_apart(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'fedsolve[report]'")
    words = ("compare", "--methods", "fedhip", "--no-baselines", "--out", "sweep", "--clients", "4")
    answer = command(*words, "--set", "alpha=1,20")
    assert answer.code == 0, answer.err
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("sweep/*/result.json")}
    assert len(first) == 2 and "fedhip (alpha=" in answer.out
    answer = command(*words[:-1], "4,6", "--set", "alpha=1,20,50")
    assert answer.code == 0, answer.err
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("sweep/*/result.json")}
    assert len(after) == 6 and all(after[path] == stamp for path, stamp in first.items())
    settings = [fs.Result.load(path.parent).settings for path in after]
    assert {(each["clients"], each["set"]["alpha"]) for each in settings} == {
        (clients, alpha) for clients in (4, 6) for alpha in (1.0, 20.0, 50.0)
    }
