"""The front door: raw tables in one command, broken ones refused in one message, sites that fit columns."""

from __future__ import annotations

import csv
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data.reading import Reading
from fedsolve.features.columns import Columns
from tests.runtime.test_cli import FAST, Command, listing
from tests.runtime.test_fitting import served

SEXES, PAINS = ("female", "male"), ("typical", "atypical", "other pain", "none")


def raw_heart(path: Path, root: str, *, separator: str = ";") -> Path:
    """The heart disease table as four hospitals might send it: words, holes, decimal commas."""
    data = np.load(Path(root) / "federated" / "heart_disease.npz")
    names = data["feature_names"].tolist()
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["patient", *names, "hospital", "disease"])
        for row, (values, owner, ill) in enumerate(zip(data["x"], data["client"], data["y"], strict=True)):
            cells = ["" if np.isnan(value) else f"{value:.4g}" for value in values]
            cells = [cell.replace(".", ",") for cell in cells] if separator != "," else cells
            cells[names.index("sex")] = SEXES[int(values[names.index("sex")])]
            cells[names.index("cp")] = PAINS[int(values[names.index("cp")]) - 1]
            hospital = data["client_names"][owner]
            writer.writerow([f"p{row:04}", *cells, hospital, "yes" if ill else "no"])
    return path


HEART = ("--label", "disease", "--client", "hospital", "--drop", "patient")


def test_the_raw_heart_table_runs_at_once(command: Command, tmp_path: Path, real_data: Any) -> None:
    raw_heart(tmp_path / "heart.csv", real_data.ROOT)
    done = command(*FAST, "--data", "heart.csv", *HEART, "--out", "out")
    assert (done.code, done.err) == (0, "")
    result = fs.Result.load(tmp_path / "out")
    assert sorted(result.clients) == ["cleveland", "hungarian", "switzerland", "va"]
    assert result.settings["partition"] == "by-client" and (result.accuracy.mean or 0.0) > 0.75
    model = fs.load_model(tmp_path / "out" / "models" / "va.safetensors")
    assert isinstance(model.task.features, Columns)
    assert {"age", "chol (empty)", "sex=female", "cp=typical"} <= set(model.task.columns)
    done = command(
        "predict", "out/models/va.safetensors", "--data", "heart.csv", "--label", "disease", "--out", "p.csv"
    )
    assert done.code == 0 and "accuracy" in done.out
    with (tmp_path / "p.csv").open(newline="") as file:
        head, first, *_ = csv.reader(file)
    assert head[:3] == ["patient", "hospital", "label"] and first[:2] == ["p0000", "cleveland"]


def test_a_ledger_of_a_table_as_it_is(command: Command, tmp_path: Path, real_data: Any) -> None:
    """Columns agreed in a run are words in the ledger's terms; every hospital contributes from its raw table."""
    raw_heart(tmp_path / "heart.csv", real_data.ROOT)
    names = ("--label", "disease", "--owner", "hospital", "--drop", "patient")
    assert command(*FAST, "--data", "heart.csv", *HEART, "--test", "0", "--out", "out").code == 0
    whole = fs.load_model(tmp_path / "out" / "models" / "global.safetensors")
    features = str(whole.task.features)
    assert command("ledger", "create", "fed.db", "--like", "heart.csv", *names, "--features", features).code == 0
    assert command("ledger", "invite", "fed.db", "--out", "invitation").code == 0
    hospitals = ("cleveland", "hungarian", "switzerland", "va")
    for name in hospitals:
        options = ("--data", "heart.csv", *names, "--client", name, "--out", name)
        refused = command("ledger", "contribute", "invitation", *options)
        assert refused.code == 2 and "fewer than 5 samples" in refused.err  # some columns are nearly full
        assert command("ledger", "contribute", "invitation", *options, "--anyway").code == 0
    assert command("ledger", "add", "fed.db", *hospitals).code == 0
    assert command("ledger", "solve", "fed.db", "--out", "solved").code == 0
    solved = fs.load_model(tmp_path / "solved" / "models" / "global.safetensors")
    for name, array in whole.arrays.items():
        np.testing.assert_allclose(solved.arrays[name], array, rtol=1e-9, atol=1e-9)
    message = ("solved/message.safetensors", "--data", "heart.csv", "--client", "va", "--out", "va.safetensors")
    assert "in the federation's sum" in command("ledger", "personal", *message, *names).out
    mine = fs.load_model(tmp_path / "va.safetensors")
    theirs = fs.load_model(tmp_path / "out" / "models" / "va.safetensors")
    np.testing.assert_allclose(mine.arrays["weight"], theirs.arrays["weight"], rtol=1e-6, atol=1e-9)


def test_the_same_table_in_any_dialect_gives_the_same_result(command: Command, tmp_path: Path, real_data: Any) -> None:
    for name, separator in (("a.csv", ";"), ("b.csv", ","), ("c.csv", "\t")):
        raw_heart(tmp_path / name, real_data.ROOT, separator=separator)
        assert command(*FAST, "--data", name, *HEART, "--out", name[0]).code == 0
    first, *others = (fs.Result.load(tmp_path / name) for name in "abc")
    for other in others:
        assert other.data["fingerprint"] == first.data["fingerprint"] and other.accuracy == first.accuracy


def test_numbers_are_predicted_from_a_table(command: Command, tmp_path: Path, real_data: Any) -> None:
    raw_heart(tmp_path / "heart.csv", real_data.ROOT)
    options = ("--data", "heart.csv", "--label", "thalach", "--client", "hospital", "--drop", "patient,disease")
    refused = command(*FAST, *options)
    assert refused.code == 2 and "the label 'thalach' is empty and" in refused.err
    assert "whole numbers; say --task classes" in refused.err
    text = (tmp_path / "heart.csv").read_text(encoding="utf-8-sig").splitlines()
    rows = [line for line in text if line.split(";")[8]]
    (tmp_path / "heart.csv").write_text("\n".join(rows) + "\n")
    done = command(*FAST, *options, "--task", "numbers", "--method", "afl", "--set", "intercept=true", "--out", "out")
    assert (done.code, done.err) == (0, "")
    assert (fs.Result.load(tmp_path / "out").metrics["r2"].pooled or 0.0) > 0.1


# --- broken tables ---

GOOD = [["age", "sex", "weight", "ward", "y"]] + [
    [str(40 + row % 30), "fm"[row % 2], f"{60 + row % 17}.5", "ab"[row % 2], ("ill", "well")[row % 3 == 0]]
    for row in range(40)
]


def broken(seed: int) -> tuple[bytes, list[str]]:
    """A table with a fault or several, and the options it is run with."""
    rng = random.Random(seed)
    table = [list(row) for row in GOOD]
    options = ["--client", "ward"]
    encoding, separator = "utf-8", ","
    for _ in range(rng.randint(1, 3)):
        row, column = rng.randint(1, 40), rng.randint(0, 4)
        kind = rng.randrange(14)
        if kind == 0:
            table[0][column] = table[0][column - 1]
        elif kind == 1:
            table[row][4] = ""
        elif kind == 2:
            table[row][3] = " "
        elif kind == 3:
            table[row].append("more")
        elif kind == 4:
            del table[row][rng.randrange(len(table[row])) :]
            table[row] = table[row] or ["x"]
        elif kind == 5:
            table[row][rng.choice([0, 2])] = rng.choice(["n/a", "12;5", "1_0", "x", "1.2.3", "１"])
        elif kind == 6:
            table[row][rng.choice([0, 2])] = rng.choice(["inf", "-inf", "1e999"])
        elif kind == 7:
            table = [[*line[:1], f"2026-01-{1 + place % 28:02}" if place else "seen", *line[1:]]
                     for place, line in enumerate(table)]  # fmt: skip
            options += ["--label", "y"]
        elif kind == 8:
            options += ["--drop", "nobody"]
        elif kind == 9:
            options += ["--label", rng.choice(["why", "Y", "age,sex"])]
        elif kind == 10:
            encoding = rng.choice(["utf-16-le", "latin-1"])
            table[row][1] = "ü"
        elif kind == 11:
            for line in table[1:]:
                line[4:5] = ["ill"]
        elif kind == 12:
            table = rng.choice([[], table[:1], [[]], [[""] * 5, *table[1:]]])
            break
        else:
            for line in table[1:]:
                line[0] = "".join(rng.choices("abcdef", k=30))
            table[0] = [*table[0][:3], "ward", "label" if rng.random() < 0.5 else "target"]
            options += ["--task", rng.choice(["numbers", "regression"])]
    text = "\n".join(separator.join(line) for line in table)
    return text.encode(encoding, "replace"), options


@pytest.mark.parametrize("tables", [65, pytest.param(260, marks=pytest.mark.long)])
def test_broken_tables_are_refused_in_one_message_and_leave_nothing(
    command: Command, tmp_path: Path, tables: int
) -> None:
    refused = 0
    for seed in range(tables):
        data, options = broken(seed)
        (tmp_path / "t.csv").write_bytes(data)
        before = listing(tmp_path)
        done = command(*FAST, "--data", "t.csv", *options, "--out", "out")
        if done.code == 0:  # two faults may mend each other, or one is none: a cell in a column that has become texts
            assert sorted(listing(tmp_path))[0] == "out", seed
            shutil.rmtree(tmp_path / "out")
            continue
        refused += 1
        assert done.code == 2 and done.out == "", (seed, done.err)
        assert done.err.startswith("fedsolve: ") and done.err.count("fedsolve: ") == 1, (seed, done.err)
        assert "Traceback" not in done.err and all(line.startswith("- ") for line in done.err.splitlines()[1:])
        assert listing(tmp_path) == before, seed
    assert refused >= tables * 200 / 260


# --- sites ---


def wards(folder: Path, features: str = "columns", **settings: str) -> dict[int, dict[str, Any]]:
    """Tables of three wards, with the same columns in other orders, and the configuration of their nodes."""
    rng, nodes = np.random.default_rng(0), dict[int, dict[str, Any]]()
    for number, letter in enumerate("abc"):
        names = ["age", "sex", "pulse", "disease"]
        order = [names[(place + number) % 4] for place in range(4)]
        lines = [",".join(order)]
        for row in range(80):
            age, sex = rng.normal(60, 10), "fm"[int(rng.integers(2))]
            ill = "yes" if age + 4 * (sex == "m") + rng.normal() > 62 else "no"
            cells = {"age": f"{age:.2f}" if row % 9 else "", "sex": sex, "pulse": str(50 + row % 40), "disease": ill}
            lines.append(",".join(cells[name] for name in order))
        name = f"ward-{letter}"
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        config = {"client": name, "data": str(folder / f"{name}.csv"), "state": str(folder / name), "label": "disease"}
        nodes[1000 - number] = {**config, "features": features, **settings}
    return nodes


def test_sites_fit_the_columns_that_one_process_fits(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    nodes = wards(tmp_path)
    method = fs.FedHiP(intercept=True)
    outcome, task, _, said = served(nodes, method, "columns")
    assert isinstance(task.features, Columns) and any("2 rounds more fit columns" in line for line in said)
    assert not outcome.failed and len(outcome.clients) == 3
    tables = []
    for letter in "abc":
        with (tmp_path / f"ward-{letter}.csv").open(newline="") as file:
            tables += [{**row, "client": f"ward-{letter}"} for row in csv.DictReader(file)]
    with (tmp_path / "all.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["age", "sex", "pulse", "client", "disease"])
        writer.writeheader()
        writer.writerows(tables)
    pooled = fs.load(str(tmp_path / "all.csv"), reading=Reading(label=("disease",)))
    federation = pooled.split("by-client")
    wanted = {part.name: part for part in federation.task.features.parts}  # type: ignore[attr-defined]
    assert {part.name: part for part in task.features.parts} == wanted
    assert outcome.clients["ward-a"].metrics == fs.run(method, federation, seed=4).clients["ward-a"].metrics


def test_a_site_names_no_level_that_few_rows_have(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    nodes = wards(tmp_path, min_cell="200")
    outcome, task, *_ = served(nodes, fs.FedHiP(), "columns")
    assert task.columns == ("age", "age (empty)", "pulse") and not outcome.failed


def test_a_site_that_does_not_name_columns_fits_none(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    nodes = wards(tmp_path)
    nodes[999] = {**nodes[999], "features": "patches:3x3x6"}
    outcome, *_ = served(nodes, fs.FedHiP(), "columns", sites=("ward-a", "ward-b", "ward-c"), min_clients=2, wait=1.0)
    assert "FEATURES=columns; it names 'patches:3x3x6'" in outcome.failed["ward-b"] and len(outcome.clients) == 2
