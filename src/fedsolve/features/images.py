"""Preparing pictures for a network: resize, crop, scale. A value, since it decides what the features are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.errors import DataError, ParameterError, unknown

Picture: TypeAlias = NDArray[np.uint8]  # height, width, RGB
ANY_SIZE = (-1, -1, 3)  # the shape of pictures of which each has its own size
CONFIG = "preprocessor_config.json"  # where Hugging Face models say how their inputs are prepared
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers


@runtime_checkable
class Pictures(Protocol):
    """A sequence of pictures, each of its own size, read when they are asked for."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Picture]: ...

    def __getitem__(self, rows: slice) -> Pictures: ...

    def take(self, rows: NDArray[np.int64]) -> Pictures:
        """The pictures in these rows, in that order."""
        ...

    def digest(self) -> bytes:
        """A digest that is the same for the same content of all pictures."""
        ...

    def stacked(self) -> Picture:
        """All in one array, if they have one size."""
        ...


Inputs: TypeAlias = Array | Pictures


@dataclass(frozen=True)
class Preparation:
    """How a picture becomes the input of a network.

    Resized, cropped around its centre, then (value * scale - mean) / std, one mean and std per channel. Without mean
    and std the values stay whole numbers from 0 to 255.
    """

    size: tuple[int, ...] = ()  # (): as it is; one number: of the shorter side; two: height and width
    crop: tuple[int, ...] = ()  # height and width
    resample: str = "bilinear"
    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str = "nchw"  # or nhwc

    def __post_init__(self) -> None:
        if len(self.size) > 2 or any(side < 1 for side in self.size):
            raise ParameterError(f"size must be one or two sides of at least 1 pixel; got {self.size}")
        if len(self.crop) not in (0, 2) or any(side < 1 for side in self.crop):
            raise ParameterError(f"crop must be two sides of at least 1 pixel; got {self.crop}")
        if self.resample not in RESAMPLING:
            raise unknown("resampling", self.resample, RESAMPLING)
        if self.layout not in ("nchw", "nhwc"):
            raise unknown("layout", self.layout, ("nchw", "nhwc"))
        if (len(self.mean), len(self.std)) not in ((3, 3), (0, 0)):
            raise ParameterError(f"mean and std take three numbers each, or neither; got {self.mean} and {self.std}")
        if not (np.isfinite((*self.mean, *self.std, self.scale)).all() and all(s > 0 for s in (*self.std, self.scale))):
            raise ParameterError(f"mean, std and scale must be finite, std and scale above 0; got {self}")

    def __str__(self) -> str:
        parts = [f"size {_times(self.size) or 'as it is'}"]
        if self.crop:
            parts.append(f"crop {_times(self.crop)}")
        if self.size:
            parts.append(self.resample)
        if self.mean:
            parts += [f"scale {self.scale:.9g}", f"mean {_slashes(self.mean)}", f"std {_slashes(self.std)}"]
        return "; ".join([*parts, self.layout])

    def __call__(self, pictures: Inputs) -> list[Array]:
        """Pictures as inputs of the network, in batches of one size each, in order."""
        if isinstance(pictures, np.ndarray):
            whole = eight_bits(pictures)
            if not self.size and not self.crop:
                return [self._normalised(whole)] if len(whole) else []
            ready = [self._resized(picture) for picture in whole]
        else:
            ready = [self._resized(picture) for picture in pictures]
        ends = [i for i in range(1, len(ready)) if ready[i].shape != ready[i - 1].shape]
        return [
            self._normalised(np.stack(ready[start:end]))
            for start, end in zip([0, *ends], [*ends, len(ready)], strict=True)
            if end > start
        ]

    def _resized(self, picture: Picture) -> Picture:
        if self.size:
            picture = resized(picture, self.size, self.resample)
        return cropped(picture, self.crop) if self.crop else picture

    def _normalised(self, batch: NDArray[np.uint8]) -> Array:
        values: Array = batch
        if self.mean:
            std = np.array(self.std, dtype=np.float32)
            values = batch * (np.float32(self.scale) / std) - np.array(self.mean, dtype=np.float32) / std
        if self.layout == "nchw":
            values = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        return values

    @classmethod
    def from_options(cls, options: Mapping[str, str], base: Preparation) -> Preparation:
        """`base`, with what is written in options such as size=256, crop=224, mean=0.5/0.5/0.5."""
        values: dict[str, Any] = {}
        for name, text in options.items():
            try:
                if name == "size":
                    values[name] = tuple(int(side) for side in text.split("x"))
                elif name == "crop":
                    sides = [int(side) for side in text.split("x")]
                    values[name] = (sides[0], sides[-1])
                elif name in ("mean", "std"):
                    values[name] = tuple(float(number) for number in text.split("/"))
                else:
                    values[name] = float(text) if name == "scale" else text
            except ValueError:
                raise ParameterError(f"{name} is written {_FORMS[name]}; got {name}={text}") from None
        return cls(**{**base.__dict__, **values})

    @classmethod
    def from_config(cls, path: Path) -> Preparation:
        """What a Hugging Face model says of its inputs."""
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            size, crop = _sides(config, "size", "do_resize"), _sides(config, "crop_size", "do_center_crop")
            share = config.get("crop_pct")
            if share and len(size) == 1 and size[0] < 384:  # ConvNeXt and ResNet: enlarged by it, then cropped
                size, crop = (int(size[0] / share),), (size[0], size[0])
            elif share and len(size) == 1:
                size = (size[0], size[0])
            normal = config.get("do_normalize", True)
            return cls(
                size=size,
                crop=(crop[0], crop[-1]) if crop else (),
                resample={number: name for name, number in RESAMPLING.items()}[config.get("resample", 2)],
                scale=float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
                mean=tuple(config["image_mean"]) if normal else (0.0, 0.0, 0.0),
                std=tuple(config["image_std"]) if normal else (1.0, 1.0, 1.0),
            )
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path} does not say how pictures are prepared ({type(error).__name__}: {error})"
            ) from error


_FORMS = {
    "size": "size=256 (the shorter side) or size=224x224",
    "crop": "crop=224 or crop=224x224",
    "mean": "mean=0.485/0.456/0.406",
    "std": "std=0.229/0.224/0.225",
    "scale": "scale=0.00392157",
    "resample": "resample=bicubic",
    "layout": "layout=nchw",
}
OPTIONS = tuple(_FORMS)


def _sides(config: Mapping[str, Any], name: str, switch: str) -> tuple[int, ...]:
    """One side or two, in any of the forms that configurations have."""
    value = config.get(name)
    if not config.get(switch, value is not None) or value is None:
        return ()
    if isinstance(value, Mapping):
        return (value["shortest_edge"],) if "shortest_edge" in value else (value["height"], value["width"])
    return (value, value) if name == "crop_size" or config.get("crop_pct") is None else (value,)


def _times(sides: tuple[int, ...]) -> str:
    return "x".join(map(str, sides))


def _slashes(numbers: tuple[float, ...]) -> str:
    return "/".join(f"{number:.9g}" for number in numbers)


def eight_bits(images: Array) -> NDArray[np.uint8]:
    """A batch of pictures as bytes with three channels: of bytes, or of numbers from 0 to 1; grey or RGB."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise DataError(f"pictures are (n, height, width) or (n, height, width, 3); got shape {images.shape}")
    if images.dtype != np.uint8:
        if images.size and not (images.min() >= 0 and images.max() <= 1):
            raise DataError(
                f"pictures are bytes, or numbers from 0 to 1; got {images.dtype} from {images.min()} to {images.max()}"
            )
        images = np.rint(images * 255.0).astype(np.uint8)
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images


def resized(picture: Picture, size: tuple[int, ...], resample: str) -> Picture:
    """A picture of another size: of the shorter side, or of both."""
    height, width = picture.shape[:2]
    if len(size) == 1:
        short, long = min(height, width), max(height, width)
        longer = int(size[0] * long / short)
        height, width = (size[0], longer) if height <= width else (longer, size[0])
    else:
        height, width = size
    if (height, width) == picture.shape[:2]:
        return picture
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((width, height), resample=RESAMPLING[resample]))


def cropped(picture: Picture, crop: tuple[int, ...]) -> Picture:
    """The middle of a picture; where it is smaller, black is put around it."""
    for axis, side in enumerate(crop):
        have = picture.shape[axis]
        if have < side:
            before = (side - have + 1) // 2
            widths = [(0, 0)] * 3
            widths[axis] = (before, side - have - before)
            picture = np.pad(picture, widths)
        start = max(0, (have - side) // 2)
        picture = picture[:, start : start + side] if axis else picture[start : start + side]
    return picture
