"""A bit that flips in a result on disk is found when the result is loaded, or changes nothing but its times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays
from fedsolve.result import Seconds


def told(folder: Path) -> tuple[object, ...]:
    """Every number and word that a result gives but for its times, also through its models."""
    result = fs.Result.load(folder)
    history = tuple(replace(line, seconds=0.0) for line in result.history)
    clients = {name: replace(client, seconds=None) for name, client in result.clients.items()}
    result = replace(result, seconds=Seconds(), history=history, clients=clients)
    every = {**result.models, **({"global": result.shared} if result.shared else {})}
    every |= {f"groups/{name}": model for name, model in result.group_models.items()}
    models = {name: (model.owner, model.method, model.task, dict(model.arrays)) for name, model in every.items()}
    return json.dumps(result.json(), sort_keys=True), dict(result.state), models


def same(first: object, second: object) -> bool:
    """Whether two such answers are equal, arrays by their bits."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return arrays.same({"": first}, {"": second})
    return bool(first == second)


METHODS = (fs.FedHiP(intercept=True, beta=1.0), fs.PFedACnnL(network="mlp:4", groups=2))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("flips", [200, pytest.param(2_000, marks=pytest.mark.long)])
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path: Path, flips: int, method: fs.Method) -> None:
    """0.1.0 loaded such models and results as they were."""
    federation = fs.load("wards").split("by-client", test=0.5)
    folder = fs.run(method, federation).save(tmp_path / "run")
    before = told(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    places = np.cumsum([0, *(path.stat().st_size for path in files)])
    found = 0
    for bit in np.random.default_rng(flips).integers(8 * places[-1], size=flips).tolist():
        place = int(np.searchsorted(places, bit // 8, side="right")) - 1
        path, offset = files[place], bit // 8 - int(places[place])
        whole = path.read_bytes()
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1 << bit % 8]) + whole[offset + 1 :])
        try:
            after = told(folder)
        except fs.FedsolveError:
            found += 1
        else:
            assert same(after, before), (path.name, offset, bit % 8)
        path.write_bytes(whole)
    assert found > 0.9 * flips  # the rest are times, blanks and the names of digests


def test_a_result_that_was_changed_on_purpose_loads_without_its_digest(tmp_path: Path) -> None:
    federation = fs.load("wards").split("by-client", test=0.5)
    folder = fs.run(fs.AFL(ridge=0.0, intercept=False), federation).save(tmp_path / "run")
    content = json.loads((folder / "result.json").read_text())
    content["settings"]["note"] = "mine"
    (folder / "result.json").write_text(json.dumps(content))
    with pytest.raises(fs.DataError, match='take its entry "digest" out'):
        fs.Result.load(folder)
    del content["digest"]
    (folder / "result.json").write_text(json.dumps(content))
    assert fs.Result.load(folder).settings["note"] == "mine"
