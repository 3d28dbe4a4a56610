"""Files that version 0.1 wrote still load and predict the same; format1/ holds them, with what they predicted then."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.result import Result

HERE = Path(__file__).parent / "format1"
MODELS = sorted(path.stem for path in HERE.glob("*.safetensors"))
NETWORKS = ("fedavg", "fedapa", "local-network")


@pytest.mark.parametrize("name", MODELS)
def test_models_of_version_0_1_load_and_predict_the_same(name: str) -> None:
    if name in NETWORKS:
        pytest.importorskip("torch")
    recorded = json.loads((HERE / "scores.json").read_text())
    model = fs.load_model(HERE / f"{name}.safetensors")
    probe = np.array(recorded["probe"])
    np.testing.assert_allclose(model.scores(probe), recorded["scores"][name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(probe).sum(1), 1.0)
    assert model.task.class_names == ("red", "green", "blue")


def test_a_model_of_version_0_1_is_written_in_the_new_format(tmp_path: Path) -> None:
    model = fs.load_model(HERE / "fedhip.safetensors")
    model.save(tmp_path / "again.safetensors")
    again = fs.load_model(tmp_path / "again.safetensors")
    assert again.task == model.task
    assert again.metadata()["fedsolve"] == "2"


def test_a_result_of_version_0_1_loads() -> None:
    result = Result.load(HERE / "result")
    entry = json.loads((HERE / "result" / "result.json").read_text())
    assert entry["format"] == 1
    assert result.accuracy.mean == entry["accuracy"]["mean"]
    for name, client in entry["clients"].items():
        figures = result.clients[name]
        assert (figures.accuracy, figures.shared) == (client["accuracy"], client["global"])
        assert figures.chosen == client["chosen"]
        assert result.models[name].owner == name
    assert len(result.history) == 1
