"""Results that a stranger wrote: loading and reporting them gives a sentence that names the file, or a page."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec, report
from fedsolve.errors import DataError, brief, plain
from fedsolve.grouping import GroupResult
from fedsolve.result import Result
from fedsolve.resultfile import read_result
from fedsolve.study.compare import FAILURE
from tests.conftest import unsealed

DEEP = "[" * 20_000
STRANGE = ("ward $A_$", "x^{2", "\\frac{", "a_b_c", "{}", "$$", "<b>&", "100 %", "\\$", "$\\alpha$")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of three clients."""
    rng = np.random.default_rng(0)
    wards: dict[str, Any] = {
        name: {"train": (rng.normal(size=(9, 2)), np.arange(9) % 2), "test": (rng.normal(size=(4, 2)), [0, 1, 0, 1])}
        for name in ("a", "b", "c")
    }
    result = fs.run(fs.AFL(ridge=1.0, intercept=False), fs.Federation.from_arrays(wards))
    groups = {"0": GroupResult(("a", "c"), (0.5, -1.0)), "1": GroupResult(("b",), (2.0, 0.25))}
    return replace(result, groups=groups).save(tmp_path_factory.mktemp("saved") / "run")


def at(*path: Any) -> Callable[[Any, Any], Any]:
    """A function that puts a value at this place of a result."""

    def put(content: Any, value: Any) -> Any:
        place = content
        for key in path[:-1]:
            place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
        place[path[-1]] = value
        return content

    return put


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "everything": lambda content, value: value,
    "format": at("format"),
    "method": at("method"),
    "settings": at("settings"),
    "seed": at("settings", "seed"),
    "set": at("settings", "set"),
    "a parameter": at("settings", "set", "ridge"),
    "data named": at("settings", "data"),
    "clients": at("clients"),
    "a client": at("clients", "a"),
    "samples": at("clients", "a", "train"),
    "accuracy of a client": at("clients", "a", "accuracy"),
    "metrics of a client": at("clients", "a", "metrics"),
    "a metric of a client": at("clients", "a", "metrics", "auc"),
    "global": at("clients", "a", "global"),
    "alone": at("clients", "a", "alone"),
    "chosen": at("clients", "a", "chosen"),
    "seconds of a client": at("clients", "a", "seconds"),
    "seconds of work": at("clients", "a", "seconds", "compute"),
    "accuracy": at("accuracy"),
    "mean": at("accuracy", "mean"),
    "metrics": at("metrics"),
    "rounds": at("rounds"),
    "bytes": at("bytes"),
    "up": at("bytes", "up"),
    "seconds": at("seconds"),
    "total": at("seconds", "total"),
    "history": at("history"),
    "a round": at("history", 0),
    "number of a round": at("history", 0, "round"),
    "missing": at("history", 0, "missing"),
    "metrics of a round": at("history", 0, "metrics"),
    "server": at("server"),
    "data": at("data"),
    "split": at("data", "split"),
    "split of a client": at("data", "split", "a"),
    "confusion": at("confusion"),
    "baseline": at("baseline"),
    "pooled": at("pooled"),
    "a pooled figure": at("pooled", "global", "auc"),
    "constant": at("clients", "a", "constant"),
    "calibration": at("calibration"),
    "a bin of the calibration": at("calibration", 0),
    "task": at("task"),
    "kind of the task": at("task", "kind"),
    "names of the task": at("task", "names"),
    "metric": at("settings", "metric"),
    "means": at("data", "means"),
    "means of a client": at("data", "means", "a"),
    "groups": at("groups"),
    "a group": at("groups", "0"),
    "a group by another name": at("groups", ".."),
    "members": at("groups", "0", "members"),
    "a member": at("groups", "0", "members", 0),
    "centre": at("groups", "0", "centre"),
    "a number of a centre": at("groups", "0", "centre", 1),
}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1e300,
    "\x1b[31m",
    [],
    [[]],
    {},
    {"a": {"b": []}},
    {"../x": 1},
    [1, "a"],
)


@pytest.mark.parametrize("place", PLACES)
def test_any_value_in_any_place_is_refused_by_the_files_name_or_gathered(
    saved: Path, tmp_path: Path, place: str
) -> None:
    """In version 0.1.0, 14 of 21 hostile results ended `report` in a traceback."""
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    for value in VALUES:
        (folder / "result.json").write_text(json.dumps(PLACES[place](unsealed(saved / "result.json"), value)))
        for read in (Result.load, lambda folder: report.sections(report.entries([folder]))):
            try:
                outcome: Any = read(folder)
            except DataError as error:
                assert str(folder) in str(error)
                assert str(error).isprintable()
                assert len(str(error)) < 1500
            else:
                assert outcome or place == "clients"


NONSENSE: dict[str, tuple[Any, str]] = {
    "no groups by name": ([["a"]], "groups must be values by name"),
    "nothing": (None, "groups must be values by name"),
    "a list for a group": ({"0": ["a"]}, "groups, '0', must be values by name"),
    "no members": ({"0": {}}, "groups, '0', lacks 'members'"),
    "nobody": ({"0": {"members": []}}, "members must name a client; got none"),
    "a text for members": ({"0": {"members": "a"}}, "members must be a list; got 'a'"),
    "a number for a member": ({"0": {"members": [1]}}, "must be a text"),
    "a list for a member": ({"0": {"members": [["a"]]}}, "must be a text"),
    "a stranger": ({"0": {"members": ["a", "nobody"]}}, "has 'nobody', who is no client of the run"),
    "a member twice": ({"0": {"members": ["a", "a"]}}, "'a', who is in another group or there twice"),
    "a member of two": ({"0": {"members": ["a"]}, "1": {"members": ["b", "a"]}}, "groups, '1', members has 'a'"),
    "a name that climbs": ({"../../x": {"members": ["a"]}}, "a group must have a name that a client could have"),
    "a name of a terminal": ({"\x1b[2J": {"members": ["a"]}}, "a group must have a name that a client could have"),
    "a centre without numbers": ({"0": {"members": ["a"], "centre": ["x"]}}, "must be a number; got 'x'"),
    "a centre in rows": ({"0": {"members": ["a"], "centre": [[1.0]]}}, "must be a number"),
    "a centre that is true": ({"0": {"members": ["a"], "centre": [True]}}, "must be a number; got True"),
    "a centre too large": ({"0": {"members": ["a"], "centre": [1e300]}}, "must be a number; got 1e"),
    "one centre": ({"0": {"members": ["a"], "centre": [1]}, "1": {"members": ["b"]}}, "centres of one length"),
    "two lengths": (
        {"0": {"members": ["a"], "centre": [1]}, "1": {"members": ["b"], "centre": [1, 2]}},
        "centres of one length",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "said"), NONSENSE.values(), ids=NONSENSE)
def test_groups_that_are_none_of_its_clients_are_refused(saved: Path, tmp_path: Path, groups: Any, said: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    (folder / "result.json").write_text(json.dumps(unsealed(saved / "result.json") | {"groups": groups}))
    for read in (Result.load, lambda folder: report.entries([folder])):
        with pytest.raises(DataError) as error:
            read(folder)
        assert str(folder) in str(error.value)
        assert str(error.value).isprintable()
        assert said in str(error.value)


def test_a_result_from_before_there_were_groups_loads(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    content = unsealed(saved / "result.json")
    assert content["format"] == 2
    assert content.pop("groups")["0"] == {"members": ["a", "c"], "centre": [0.5, -1.0]}
    (folder / "result.json").write_text(json.dumps(content))
    assert Result.load(folder).groups == {}


TEXTS: dict[str, str] = {
    "deep": DEEP,
    "deep inside": '{"format": 2, "method": "afl", "settings": {"set": ' + DEEP,
    "not a number": '{"format": 2, "method": "afl", "settings": {}, "accuracy": {"mean": NaN}}',
    "endless": '{"format": 2, "method": "afl", "settings": {}, "accuracy": {"mean": 1e999}}',
    "digits": '{"format": 2, "method": "afl", "settings": {"seed": ' + "9" * 5000 + "}}",
    "twice": '{"format": 2, "format": 1, "method": "afl", "settings": {}}',
    "half a character": '{"format": 2, "method": "\\ud800", "settings": {}}',
    "empty": "",
    "a list": "[]",
    "another format": '{"format": 99}',
    "a format that is true": '{"format": true, "method": "afl", "settings": {}}',
    "no method": '{"format": 2, "settings": {}}',
    "a client outside": '{"format": 2, "method": "afl", "settings": {}, "clients": {"../../x": {}}}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_damaged_files_are_named_in_a_sentence(tmp_path: Path, text: str) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(text)
    with pytest.raises(DataError, match=str(tmp_path / "run")):
        report.write([tmp_path], tmp_path / "page.html")
    with pytest.raises(DataError, match=str(tmp_path / "run")):
        Result.load(tmp_path / "run")


@pytest.mark.parametrize(
    "text", [DEEP, "", "[]", '{"method": 1, "seed": 0, "reason": ""}', '{"method": "afl"}', '{"seed": "a"}']
)
def test_damaged_notes_of_failures_are_named_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / FAILURE).write_text(text)
    with pytest.raises(DataError, match=FAILURE):
        report.entries([tmp_path])


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(DataError, match="not text in UTF-8"):
        read_result(tmp_path / "result.json")


def test_extreme_but_proper_figures_still_make_a_page(saved: Path, tmp_path: Path) -> None:
    """What passes the checks can be drawn, tabled and averaged."""
    pytest.importorskip("matplotlib")
    for number, value in enumerate((1e100, -1e100, 0)):
        content = unsealed(saved / "result.json")
        for client in content["clients"].values():
            client |= {"accuracy": value, "metrics": {"accuracy": value, "auc": value}, "alone": {"accuracy": -value}}
        content["accuracy"] = dict.fromkeys(content["accuracy"], value)
        content["seconds"]["total"] = value
        content["bytes"] = {"up": 2**63 - 1, "down": 0}
        content["history"][0] |= {"round": 2**63 - 1, "accuracy": value}
        content["settings"] |= {"seed": number, "data": "<script>", "set": {"ridge": [1, "a"]}}
        content["data"]["split"] = {name: [2**62, 0] for name in content["clients"]}
        content["data"]["split"]["a"] = [0, 0]
        content["groups"] = {"0": {"members": ["a"], "centre": [value]}, "<b>": {"members": ["c"], "centre": [-value]}}
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        (folder / "result.json").write_text(json.dumps(content))
    page = report.write([tmp_path], tmp_path / "page.html").read_text()
    assert page.count("<script>") == 1  # the page's own


@pytest.mark.parametrize("weights", [np.zeros(3), np.array([[np.nan]]), np.zeros((0, 2)), np.zeros((2, 2, 2))])
def test_weights_that_are_no_matrix_are_damage(saved: Path, tmp_path: Path, weights: np.ndarray) -> None:
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    content = unsealed(saved / "result.json") | {"method": "fedapa"}
    (folder / "result.json").write_text(json.dumps(content))
    codec.write_file(folder / "state.safetensors", {"weights": weights})
    with pytest.raises(DataError, match="its weights must be a matrix"):
        report.entries([folder])


# --- names ---


def test_plots_show_names_as_they_are(tmp_path: Path) -> None:
    """A dollar sign began a formula, and `ward $A_$` ended the page in a traceback."""
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    names = [name for name in STRANGE if "\\" not in name and name != "100 %"] + ["100 %"]
    wards: dict[str, Any] = {
        name: {"train": (rng.normal(size=(9, 2)), np.arange(9) % 2), "test": (rng.normal(size=(4, 2)), [0, 1, 0, 1])}
        for name in names
    }
    federation = fs.Federation.from_arrays(wards)
    for number, data in enumerate(STRANGE):
        place = fs.run(fs.AFL(ridge=1.0, intercept=False), federation).save(tmp_path / str(number))
        content = unsealed(place / "result.json")
        content["settings"] |= {"data": "one", "features": data}
        content["data"]["split"] = {name: [1, 2] for name in names}
        (place / "result.json").write_text(json.dumps(content))
    page = report.write([tmp_path], tmp_path / "page.html").read_text()
    figures = html.unescape(page[page.index("<svg") : page.rindex("</svg>")])
    for name in names:
        assert f">{name}</text>" in figures  # the split, by client
    for data in STRANGE:
        assert f"features={data}" in figures.replace("\n", "")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("as it is, with ä, 数 and 🙂", "as it is, with ä, 数 and 🙂"),
        ("\x1b[2J\x1b]0;title\x07gone", "[2J]0;titlegone"),
        ("two\r\nlines\tand\x85more\u2028still", "two lines and more still"),
        ("\x9b31m c1 \x7f", "31m c1 "),
        ("left\u202eright\u2066", "leftright"),
        ("half \ud800", "half "),
    ],
)
def test_texts_of_strangers_are_shown_without_what_a_terminal_obeys(text: str, wanted: str) -> None:
    assert plain(text) == wanted
    assert plain(plain(text)) == plain(text)


def test_texts_and_values_of_strangers_are_shown_shortly() -> None:
    assert len(plain("x" * 10**6)) == 500
    nested: Any = 1
    for _ in range(10_000):
        nested = [nested]
    for value in (nested, "x" * 10**6, 10**5000, [10**9] * 10**5, {"a" * 10**5: "b" * 10**5}, b"\xff" * 10**5):
        assert len(brief(value)) < 3000
