"""Exported graphs predict as the models they come from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.errors import DataError
from fedsolve.features import maps

from .tiny import FRUITS, NORMAL, fruits, write_onnx

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


def run_onnx(path: Path, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    scores, label = session.run(["scores", "label"], {"x": inputs})
    return scores, label


def trained(features: str, method: fs.Method) -> tuple[fs.Model, np.ndarray]:
    federation = fs.load("digits").with_features(maps.parse(features)).split("dirichlet:0.5", clients=4)
    return fs.run(method, federation).models["client-01"], np.asarray(fs.load("digits").inputs)


ACTS = [f"random:40,{name},3" for name in maps.ACTIVATIONS]


CENTRED = f"standardise:{','.join(f'{place / 7!r}/{1.5 + place!r}' for place in range(64))}"


@pytest.mark.parametrize(
    "features",
    ["identity", "unit", "clip:20", "ones", "unit+ones", "unit+random:30,tanh+ones", CENTRED, f"{CENTRED}+unit", *ACTS],
)
def test_onnx_gives_the_same_scores(features: str, tmp_path: Path) -> None:
    model, x = trained(features, fs.FedHiP(intercept=features != "ones", beta=1.0))
    x = np.concatenate([x, np.zeros((1, 64))])
    scores, label = run_onnx(fs.to_onnx(model, tmp_path / "m.onnx"), x)
    np.testing.assert_allclose(
        scores, model.scores(x), rtol=1e-5 if "gelu" in features else 1e-9, atol=1e-6 if "gelu" in features else 1e-10
    )
    np.testing.assert_array_equal(label, model.predict(x))


@pytest.mark.parametrize(
    "method",
    [fs.Local(intercept=False), fs.AFL(ridge=0.0, intercept=False), fs.FedPrior()],
    ids=lambda method: method.name,
)
def test_every_linear_method(method: fs.Method, tmp_path: Path) -> None:
    model, x = trained("identity", method)
    scores, label = run_onnx(fs.to_onnx(model, tmp_path / "m.onnx"), x)
    np.testing.assert_allclose(scores, model.scores(x), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(label, model.predict(x))


def pictures(features: str) -> tuple[fs.Model, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 256, (30, 16, 16, 3), dtype=np.uint8)
    table = fs.Table.make("pictures", x, np.arange(30) % 3).with_features(maps.parse(features))
    result = fs.run(fs.AFL(ridge=1.0, intercept=True), table.split("iid", clients=2, test=0))
    assert result.shared is not None
    return result.shared, x


@pytest.mark.parametrize("behind", ["", "+unit", "+random:20,relu"])
def test_a_backbone_becomes_part_of_it(behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    network = write_onnx(tmp_path / "b.onnx", opset=17)
    model, x = pictures(f"onnx:{network},{NORMAL}{behind}")
    out = fs.to_onnx(model, tmp_path / "m.onnx")
    network.unlink()  # it is inside now
    scores, label = run_onnx(out, x)
    np.testing.assert_allclose(scores, model.scores(x), atol=1e-5)
    np.testing.assert_array_equal(label, model.predict(x))


def test_pictures_that_are_resized_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller resizes; the rest is in the graph."""
    from fedsolve.features.images import resized

    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    model, x = pictures(f"onnx:{write_onnx(tmp_path / 'b.onnx', opset=17)},{NORMAL},size=20x24")
    ready = np.stack([resized(picture, (20, 24), "bilinear") for picture in x])
    scores, _ = run_onnx(fs.to_onnx(model, tmp_path / "m.onnx"), ready)
    np.testing.assert_allclose(scores, model.scores(x), atol=1e-5)


def test_the_real_backbone(real_data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    model, x = pictures(f"onnx:{Path(real_data.__file__ or '').parent / 'backbone' / 'effnetlite0_224.onnx'}")
    scores, label = run_onnx(fs.to_onnx(model, tmp_path / "m.onnx"), x[:4])
    np.testing.assert_allclose(scores, model.scores(x[:4]), atol=1e-4)
    np.testing.assert_array_equal(label, model.predict(x[:4]))


def test_what_has_no_form_in_onnx_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    dual, _ = trained("identity", fs.APFL(d_primary=20, d_refine=20))
    with pytest.raises(DataError, match="is not one linear map"):
        fs.to_onnx(dual, tmp_path / "m.onnx")
    old, _ = pictures(f"onnx:{write_onnx(tmp_path / 'old.onnx')},{NORMAL}")
    with pytest.raises(DataError, match="opset 13"):
        fs.to_onnx(old, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_columns_and_labels_follow_the_model_whatever_the_names_of_its_classes(tmp_path: Path) -> None:
    model, x, truth = fruits()
    out = fs.to_onnx(model, tmp_path / "m.onnx")
    scores, label = run_onnx(out, x)
    metadata = ort.InferenceSession(str(out)).get_modelmeta().custom_metadata_map
    names = json.loads(metadata["class_names"])
    assert names == FRUITS
    np.testing.assert_array_equal(np.array(names)[label], truth)
    np.testing.assert_array_equal(np.array(names)[scores.argmax(axis=1)], truth)
    np.testing.assert_allclose(scores, model.scores(x), rtol=1e-9, atol=1e-9)


def test_the_command(tmp_path: Path) -> None:
    model, x = trained("unit", fs.FedHiP(beta=1.0, intercept=False))
    model.save(tmp_path / "m.safetensors")
    command = [sys.executable, "-m", "fedsolve", "export", "m.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "written m.onnx\n", done.stderr
    np.testing.assert_array_equal(run_onnx(tmp_path / "m.onnx", x)[1], model.predict(x))


def test_a_table_of_numbers_has_a_form_and_one_with_texts_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},7,{'xy'[row % 2]},{int(a > 0)}" for row, (a, b) in enumerate(rng.normal(size=(60, 2)))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,same,word,y", *lines]) + "\n")
    words, numbers = (
        fs.load(str(tmp_path / "t.csv"), reading=fs.Reading(drop=drop)) for drop in ((), ("word",))
    )  # fmt: skip
    model = fs.run(fs.FedHiP(), numbers.split("iid", clients=2)).models["client-00"]
    fs.to_onnx(model, tmp_path / "m.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "m.onnx"))
    rows = np.asarray(numbers.inputs)
    found = session.run(None, {session.get_inputs()[0].name: rows})
    scores = next(each for each in found if each.shape == (60, 2))
    np.testing.assert_allclose(scores, model.scores(rows), atol=1e-9)
    with pytest.raises(fs.DataError, match="texts or empty cells has no form in ONNX"):
        fs.to_onnx(fs.run(fs.FedHiP(), words.split("iid", clients=2)).models["client-00"], tmp_path / "m.onnx")
