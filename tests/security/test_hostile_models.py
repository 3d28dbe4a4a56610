"""Models that a stranger wrote: what a file announces costs no more than the file itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec
from fedsolve.model import load_model
from tests.security.test_hostile_headers import frugal


def saved(method: fs.Method, path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    rng = np.random.default_rng(0)
    wards = {name: {"train": (rng.normal(size=(9, 3)), np.arange(9) % 2)} for name in ("a", "b")}
    fs.run(method, fs.Federation.from_arrays(wards)).models["a"].save(path)
    return codec.read_file(path)


@pytest.mark.parametrize("count", [10**6, 10**8, 2**31 - 1, 10**30])
@pytest.mark.parametrize("part", ["inputs", "classes", "random features"])
def test_a_task_that_is_larger_than_the_model_is_refused(tmp_path: Path, part: str, count: int) -> None:
    """An input of nothing is tried on a model when it is read: 10^8 features took 800 MB for a file of 700 bytes."""
    path = tmp_path / "model.safetensors"
    arrays, texts = saved(fs.AFL(ridge=0.0, intercept=False), path)
    task = json.loads(texts["task"])
    if part == "inputs":
        task |= {"inputs": [count], "shape": [count]}
    elif part == "classes":
        task["target"] = {"kind": "classes", "count": count, "names": []}
    else:
        name = f"random:{count},relu,1"
        task |= {"features": name, "identity": name, "shape": [count]}
    codec.write_file(path, arrays, texts | {"task": json.dumps(task)})
    assert str(path) in str(frugal(lambda: load_model(path)))


@pytest.mark.parametrize(("name", "value"), [("d_primary", 10**9), ("d_refine", 10**8), ("d_primary", 9)])
def test_random_features_are_as_many_as_the_model_has_weights_for(tmp_path: Path, name: str, value: int) -> None:
    path = tmp_path / "model.safetensors"
    arrays, texts = saved(fs.APFL(d_primary=8, d_refine=8, beta=1.0, lam=0.5), path)
    settings = json.loads(texts["settings"]) | {name: value}
    codec.write_file(path, arrays, texts | {"settings": json.dumps(settings)})
    assert "one per random feature" in str(frugal(lambda: load_model(path)))


@pytest.mark.parametrize(
    "network", ["mlp:30000,30000", "mlp:1000000000", "mlp:5", "cnn", "lenet5", "vgg11", "lr", f"mlp:{10**30}"]
)
def test_a_network_is_compared_with_the_arrays_before_it_is_made(tmp_path: Path, network: str) -> None:
    """A name of a few letters made version 0.1.0 allocate a network of any size."""
    pytest.importorskip("torch")
    path = tmp_path / "model.safetensors"
    arrays, texts = saved(fs.FedAvg(rounds=1, model="mlp:4"), path)
    settings = json.loads(texts["settings"]) | {"model": network}
    codec.write_file(path, arrays, texts | {"settings": json.dumps(settings)})
    assert str(path) in str(frugal(lambda: load_model(path)))


@pytest.mark.parametrize("network", ["vgg11", "resnet18", "resnet18-gn"])
def test_a_deep_network_of_a_small_file_takes_no_memory(tmp_path: Path, network: str) -> None:
    """VGG-11 for pictures of 224 x 224 is half a gigabyte, and its name has five letters."""
    pytest.importorskip("torch")
    path = tmp_path / "model.safetensors"
    arrays, texts = saved(fs.FedAvg(rounds=1, model="mlp:4"), path)
    settings = json.loads(texts["settings"]) | {"model": network}
    task = json.loads(texts["task"]) | {"inputs": [224, 224, 3], "shape": [224, 224, 3]}
    codec.write_file(path, arrays, texts | {"settings": json.dumps(settings), "task": json.dumps(task)})
    assert "are on one side only" in str(frugal(lambda: load_model(path)))


@pytest.mark.parametrize(
    "text", ["[" * 20_000, '{"alpha": %s}' % ("9" * 400), '{"alpha": [[[[]]]]}', '{"alpha": NaN}', "1"]
)
def test_settings_of_another_form_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors"
    arrays, texts = saved(fs.FedHiP(beta=1.0, intercept=False), path)
    codec.write_file(path, arrays, texts | {"settings": text})
    error = frugal(lambda: load_model(path))
    assert str(path) in str(error)
    assert len(str(error)) < 1500
