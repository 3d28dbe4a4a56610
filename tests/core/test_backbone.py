"""Frozen networks as feature maps: real onnxruntime, torch and transformers, small weights."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.errors import DataError, FedsolveError, ParameterError, UnknownNameError
from fedsolve.features import backbone, cache, maps
from fedsolve.features.images import CONFIG, Preparation

from .tiny import NORMAL, write_onnx

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (7, 16, 16, 3), dtype=np.uint8)
SAID = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 16, "width": 16}, "resample": 2}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path / "cache"))


# --- ONNX ---


def tiny_features(images: np.ndarray, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).standard_normal((3, 5))
    return np.asarray((images.mean((1, 2)) / 255 - 0.5) / 0.5 @ weights)


def test_onnx_features(tmp_path: Path) -> None:
    network = maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx')},{NORMAL}")
    assert network.shape((16, 16, 3)) == (5,)
    np.testing.assert_allclose(network(IMAGES), tiny_features(IMAGES), atol=1e-5)


def test_onnx_that_takes_bytes_needs_no_options(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", shape=("n", "h", "w", 3), bytes_in=True)
    weights = np.random.default_rng(0).standard_normal((3, 5))
    np.testing.assert_allclose(maps.parse(f"onnx:{path}")(IMAGES), IMAGES.mean((1, 2)) @ weights, rtol=1e-5)


def test_onnx_with_a_fixed_batch(tmp_path: Path) -> None:
    network = maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx', shape=(3, 3, 16, 16))},{NORMAL}")  # also its size
    np.testing.assert_allclose(network(IMAGES), tiny_features(IMAGES), atol=1e-5)


def test_onnx_with_a_named_output(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx")
    network = maps.parse(f"onnx:{path},{NORMAL},output=means")
    np.testing.assert_allclose(network(IMAGES), IMAGES.mean((1, 2)) / 127.5 - 1, atol=1e-5)
    with pytest.raises(UnknownNameError, match="did you mean 'means'"):
        maps.parse(f"onnx:{path},{NORMAL},output=mean")


def test_the_configuration_beside_the_file_counts(tmp_path: Path) -> None:
    import json

    path = write_onnx(tmp_path / "m.onnx")
    with pytest.raises(ParameterError, match="does not say how its pictures are prepared"):
        maps.parse(f"onnx:{path}")
    (tmp_path / CONFIG).write_text(json.dumps(SAID))
    np.testing.assert_allclose(maps.parse(f"onnx:{path}")(IMAGES), tiny_features(IMAGES), atol=1e-5)


def test_a_network_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="other features for the same pictures each time"):
        maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx', 'random')},{NORMAL}")


def test_a_network_whose_samples_touch_each_other_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="alone than in a batch"):
        maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx', 'batch')},{NORMAL}")


def test_identity_is_of_weights_and_preparation_not_of_the_place(tmp_path: Path) -> None:
    one = maps.parse(f"onnx:{write_onnx(tmp_path / 'a.onnx')},{NORMAL}")
    shutil.copy(tmp_path / "a.onnx", tmp_path / "b.onnx")
    moved = maps.parse(f"onnx:{tmp_path / 'b.onnx'},{NORMAL}")
    other = maps.parse(f"onnx:{write_onnx(tmp_path / 'c.onnx', seed=1)},{NORMAL}")
    larger = maps.parse(f"onnx:{tmp_path / 'a.onnx'},{NORMAL},size=20")
    assert one.identity == moved.identity
    assert maps.space(one, (16, 16, 3)) == maps.space(moved, (16, 16, 3))
    spaces = {maps.space(each, (16, 16, 3)) for each in (one, other, larger)}
    assert len(spaces) == 3
    said = maps.difference(maps.described(one, (16, 16, 3)), maps.described(larger, (16, 16, 3)))
    assert said == "size as it is here, size 20, bilinear there"


def test_a_file_that_changes_is_another_network(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    before = maps.parse(f"onnx:{write_onnx(path)},{NORMAL}")
    after = maps.parse(f"onnx:{write_onnx(path, seed=1)},{NORMAL}")
    assert before.identity != after.identity
    np.testing.assert_allclose(after(IMAGES), tiny_features(IMAGES, seed=1), atol=1e-5)


def test_chains_and_plus_signs_in_paths(tmp_path: Path) -> None:
    folder = tmp_path / "a+b+c"
    folder.mkdir()
    text = f"onnx:{write_onnx(folder / 'm+unit.onnx')},{NORMAL}+unit+random:8"
    chain = maps.parse(text)
    assert str(chain) == f"onnx:{folder / 'm+unit.onnx'},{NORMAL}+unit+random:8,relu,0"
    assert chain.shape((16, 16, 3)) == (8,)
    wanted = maps.parse("random:8")(tiny_features(IMAGES))
    np.testing.assert_allclose(chain(IMAGES), wanted, atol=1e-5)
    np.testing.assert_allclose(cache.extract(chain, IMAGES), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("onnx", ParameterError, "onnx needs a file"),
        ("onnx:", ParameterError, "onnx needs a file"),
        ("hf:", ParameterError, "name or folder"),
        ("onnx:absent.onnx", DataError, r"there is no file absent\.onnx"),
        ("torch:absent.pt", DataError, r"there is no file absent\.pt"),
        ("efficientnet-lite0:x", ParameterError, "takes no file"),
        ("onnx:m.onnx,sizes=3", UnknownNameError, "unknown option of onnx: 'sizes'"),
        ("onnx:m.onnx,pool=middle", UnknownNameError, "unknown pool"),
    ],
)
def test_a_wrong_specification_says_what_is_wrong(text: str, kind: type[FedsolveError], said: str) -> None:
    if kind is DataError:
        pytest.importorskip({"onnx": "onnxruntime", "torch": "torch"}[text.partition(":")[0]])
    with pytest.raises(kind, match=said):
        maps.parse(text)


@pytest.mark.parametrize(
    ("kind", "name", "library"),
    [("onnx", "m.onnx", "onnxruntime"), ("torch", "m.pt", "torch"), ("torch", "m.pt2", "torch")],
)
def test_damaged_files_are_named(tmp_path: Path, kind: str, name: str, library: str) -> None:
    pytest.importorskip(library)
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(DataError, match=rf"{name}.* is damaged"):
        maps.parse(f"{kind}:{tmp_path / name},{NORMAL}")


def test_inputs_that_are_no_pictures_are_refused(tmp_path: Path) -> None:
    network = maps.parse(f"onnx:{write_onnx(tmp_path / 'm.onnx')},{NORMAL}")
    with pytest.raises(DataError, match=r"takes pictures.*shape \(64,\)"):
        fs.load("digits").with_features(network)
    with pytest.raises(DataError, match="does not take"):  # the probe: another size than the network was made for
        maps.parse(f"onnx:{write_onnx(tmp_path / 'fixed.onnx', shape=(2, 3, 8, 8))},{NORMAL},size=16x16")


# --- torch ---


def module(**extra: Any) -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), *extra.values(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    return layers.eval()


def scripted(path: Path, network: Any) -> Path:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(network).save(str(path))
    return path


def plain(network: Any, images: np.ndarray) -> np.ndarray:
    import torch

    values = torch.from_numpy(((images / 255.0 - 0.5) / 0.5).astype(np.float32)).permute(0, 3, 1, 2)
    with torch.no_grad():
        return np.asarray(network(values).numpy())


def test_torchscript_and_exported_programs(tmp_path: Path) -> None:
    network = module()
    import torch

    wanted = plain(network, IMAGES)
    found = maps.parse(f"torch:{scripted(tmp_path / 'm.pt', network)},{NORMAL}")
    np.testing.assert_allclose(found(IMAGES), wanted, atol=1e-6)
    side = torch.export.Dim.AUTO
    shapes = ({0: torch.export.Dim("n", min=1), 2: side, 3: side},)
    program = torch.export.export(network, (torch.zeros(2, 3, 16, 16),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "m.pt2")
    exported = maps.parse(f"torch:{tmp_path / 'm.pt2'},{NORMAL},size=16x16")
    np.testing.assert_allclose(exported(IMAGES), wanted, atol=1e-6)


def test_torch_in_training_mode_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dropped = module(drop=torch.nn.Dropout(0.5))
    coupled = module(norm=torch.nn.BatchNorm2d(4))
    for network, said in ((dropped, "each time"), (coupled, "alone than in a batch")):
        network.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frozen = torch.jit.trace(network, torch.zeros(2, 3, 16, 16), check_trace=False)
            frozen.save(str(tmp_path / "m.pt"))
        with pytest.raises(DataError, match=said):
            maps.parse(f"torch:{tmp_path / 'm.pt'},{NORMAL}")


# --- Hugging Face ---


def save_hf(folder: Path, model: Any, **said: Any) -> str:
    import json

    model.save_pretrained(folder)
    (folder / CONFIG).write_text(json.dumps(SAID | said))
    return f"hf:{folder}"


def small(kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    import torch

    torch.manual_seed(0)
    body = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    picture = {"image_size": 16, "patch_size": 8}
    if kind == "resnet":
        config = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_channels=3
        )
        return transformers.ResNetModel(config).eval()
    if kind == "clip":
        text = transformers.CLIPTextConfig(**body, vocab_size=50, projection_dim=8)
        vision = transformers.CLIPVisionConfig(**body, **picture, projection_dim=8)
        config = transformers.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8)
        return transformers.CLIPModel(config).eval()
    names = {"vit": "ViT", "mae": "ViTMAE", "dinov2": "Dinov2"}
    config = getattr(transformers, f"{names[kind]}Config")(**body, **picture)
    return getattr(transformers, f"{names[kind]}Model")(config).eval()


Read: Any = Callable[[Any, Any], Any]
ROWS: dict[str, Read] = {
    "vit": lambda model, x: model(x).last_hidden_state[:, 0],
    "dinov2": lambda model, x: model(x).last_hidden_state[:, 0],
    "clip": lambda model, x: model.vision_model(x).pooler_output,
    "resnet": lambda model, x: model(x).pooler_output.flatten(1),
}


@pytest.mark.parametrize("kind", ["vit", "dinov2", "clip", "resnet"])
def test_hugging_face_models(kind: str, tmp_path: Path) -> None:
    model = small(kind)
    import torch

    network = maps.parse(save_hf(tmp_path / "m", model))
    values = torch.from_numpy((IMAGES / 127.5 - 1).astype(np.float32)).permute(0, 3, 1, 2)
    with torch.no_grad():
        wanted = ROWS[kind](model, values).numpy()
    np.testing.assert_allclose(network(IMAGES), wanted, atol=1e-5)
    assert network.identity.startswith("hf; weights ")


def test_masked_autoencoders_see_every_patch(tmp_path: Path) -> None:
    """Their random mask is off: all patches are seen, whose order does not matter to the class token."""
    model = small("mae")
    import torch

    network = maps.parse(save_hf(tmp_path / "m", model))
    first, second = network(IMAGES), network(IMAGES)
    np.testing.assert_allclose(first, second, atol=1e-5)
    model.config.mask_ratio = model.embeddings.config.mask_ratio = 0.0
    values = torch.from_numpy((IMAGES / 127.5 - 1).astype(np.float32)).permute(0, 3, 1, 2)
    order = torch.arange(4.0).repeat(len(IMAGES), 1)  # a given order of the patches instead of a random one
    with torch.no_grad():
        wanted = model(values, noise=order).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(first, wanted, atol=1e-5)


def test_pooling_is_chosen_and_part_of_the_identity(tmp_path: Path) -> None:
    text = save_hf(tmp_path / "m", small("vit"))
    first, mean = maps.parse(text), maps.parse(f"{text},pool=mean")
    assert not np.allclose(first(IMAGES), mean(IMAGES))
    assert first.identity != mean.identity


def test_a_hugging_face_model_that_is_not_here_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"hf:nobody/nothing is no folder, and the hub did not give it"):
        maps.parse("hf:nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be loaded"):
        maps.parse(f"hf:{tmp_path / 'empty'}")


# --- the real ones ---


def test_efficientnet_from_its_package() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    network = maps.parse("efficientnet-lite0")
    assert network.shape((16, 16, 3)) == (1280,)
    features = network(IMAGES[:2])
    assert features.shape == (2, 1280)
    assert 0 <= features.min() < features.max() <= 6


def test_the_packaged_network_agrees_with_the_onnx_file(real_data: ModuleType) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    path = Path(real_data.__file__ or "").parent / "backbone" / "effnetlite0_224.onnx"
    pictures = np.random.default_rng(0).integers(0, 256, (3, 224, 224, 3), dtype=np.uint8)
    found = maps.parse(f"onnx:{path}")(pictures)
    np.testing.assert_allclose(found, maps.parse("efficientnet-lite0")(pictures), atol=1e-4)
    np.testing.assert_allclose(found, real_data.embed(pictures), atol=1e-5)


# --- the cache ---


class Counting:
    """The average of each picture, and how many were asked for."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        self.seen += len(batch)
        return np.asarray(batch.astype(np.float32).mean((2, 3)))


def counting(identity: str = "one") -> tuple[backbone.Backbone, Counting]:
    network = Counting()
    return backbone.Backbone("counting", identity, 3, Preparation(), network), network


MANY = np.random.default_rng(1).integers(0, 256, (2500, 2, 2, 3), dtype=np.uint8)


def test_the_second_time_nothing_is_computed() -> None:
    features, network = counting()
    first = cache.extract(features, MANY)
    np.testing.assert_allclose(first, MANY.mean((1, 2)), rtol=1e-6)
    assert network.seen == len(MANY)
    np.testing.assert_array_equal(cache.extract(features, MANY), first)
    assert network.seen == len(MANY)


def test_other_weights_and_other_data_are_computed() -> None:
    features, network = counting()
    cache.extract(features, MANY)
    other, again = counting("two")
    cache.extract(other, MANY)
    assert again.seen == len(MANY)
    changed = MANY.copy()
    changed[2100] += 1
    cache.extract(features, changed)
    assert network.seen == len(MANY) + len(MANY) % cache.ROWS  # its block alone


def test_a_stopped_extraction_goes_on_where_it_was() -> None:
    features, network = counting()

    def stop(what: str, done: int, total: int) -> None:
        if done > 1500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.extract(features, MANY, stop)
    before = network.seen
    cache.extract(features, MANY)
    assert network.seen - before == len(MANY) - cache.ROWS


def test_a_damaged_block_is_computed_again() -> None:
    features, network = counting()
    wanted = cache.extract(features, MANY)
    home = cache.folder()
    assert home is not None
    blocks = sorted((home / "features").iterdir())
    assert len(blocks) == 3
    blocks[0].write_bytes(b"nonsense")
    np.testing.assert_array_equal(cache.extract(features, MANY), wanted)
    assert len(MANY) < network.seen < 2 * len(MANY)


def test_the_cache_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    features, network = counting()
    cache.extract(features, MANY)
    cache.extract(features, MANY)
    assert network.seen == 2 * len(MANY)
    monkeypatch.delenv("FEDSOLVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "fedsolve"


def test_progress_tells_pictures_and_pace() -> None:
    told: list[tuple[str, int, int]] = []
    cache.extract(counting()[0], MANY, lambda *line: told.append(line))
    assert told[-1][1:] == (2500, 2500)
    assert "images/s" in told[-1][0]
    done = [line[1] for line in told]
    assert done == sorted(done)


def test_features_that_are_not_finite_are_refused() -> None:
    broken = backbone.Backbone("broken", "broken", 3, Preparation(), lambda batch: np.full((len(batch), 3), np.nan))
    with pytest.raises(DataError, match="not finite"):
        broken(IMAGES)


# --- in a federation ---


def test_clients_with_another_network_refuse_by_name(tmp_path: Path) -> None:
    """Before anything is computed, and saying what differs."""
    from dataclasses import replace

    from fedsolve.runtime.client import Request, handle

    mine = maps.parse(f"onnx:{write_onnx(tmp_path / 'a.onnx')},{NORMAL}")
    others = {
        "weights": maps.parse(f"onnx:{write_onnx(tmp_path / 'b.onnx', seed=1)},{NORMAL}"),
        "size 20": maps.parse(f"onnx:{tmp_path / 'a.onnx'},{NORMAL},size=20"),
        "random:8,relu,1": maps.parse(f"onnx:{tmp_path / 'a.onnx'},{NORMAL}+random:8,relu,1"),
    }
    table = fs.Table.make("pictures", IMAGES, np.arange(7) % 2)
    federation = table.with_features(mine).split("iid", clients=1, test=0)
    client = federation.clients["client-00"]
    for word, other in others.items():
        theirs = replace(federation.task, features=other)
        request = Request("update", 1, 0, theirs.described, {})
        with pytest.raises(DataError, match=rf"its features are not the server's: .*{word}.* there; nothing was"):
            handle(fs.AFL(ridge=0.0, intercept=False), federation.task, client, None, request)


def test_a_model_finds_its_network_elsewhere(tmp_path: Path) -> None:
    table = fs.Table.make("pictures", IMAGES, np.arange(7) % 2)
    features = maps.parse(f"onnx:{write_onnx(tmp_path / 'a.onnx')},{NORMAL}")
    result = fs.run(fs.AFL(ridge=1.0, intercept=False), table.with_features(features).split("iid", clients=1, test=0))
    assert result.shared is not None
    wanted = result.shared.scores(IMAGES)
    result.shared.save(tmp_path / "m.safetensors")
    shutil.move(tmp_path / "a.onnx", tmp_path / "b.onnx")
    with pytest.raises(DataError, match="is not opened because a file or a message names it; say what it is here"):
        fs.load_model(tmp_path / "m.safetensors").scores(IMAGES)
    moved = fs.load_model(tmp_path / "m.safetensors", features=f"onnx:{tmp_path / 'b.onnx'},{NORMAL}")
    np.testing.assert_array_equal(moved.scores(IMAGES), wanted)
    write_onnx(tmp_path / "b.onnx", seed=1)
    with pytest.raises(
        DataError, match=r"the features here are not the federation's: weights \w+ here, weights \w+ there"
    ):
        fs.load_model(tmp_path / "m.safetensors", features=f"onnx:{tmp_path / 'b.onnx'},{NORMAL}")


def test_a_missing_package_is_told_without_opening_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone, "find_spec", lambda name: None if name == "onnxruntime" else object())
    said = "onnx needs onnxruntime: pip install 'fedsolve[onnx]'"
    assert maps.absent("onnx:nowhere.onnx,size=8") == said
    assert maps.absent("unit+onnx:nowhere.onnx+random:8,relu") == said
    assert maps.absent("efficientnet-lite0") == maps.absent("random:8,relu") == maps.absent("identity") == ""


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed, so nothing is missing")
def test_a_folder_of_timm_says_that_timm_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {"architecture": "resnet18", "model_type": "timm_wrapper", "num_classes": 2, "num_features": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        DataError, match=r"needs a package that is not installed: .* requires the timm library"
    ) as error:
        maps.parse(f"hf:{tmp_path}")
    assert "None" not in str(error.value) and "pip install timm" in str(error.value)
