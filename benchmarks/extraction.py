"""How fast pictures become features, against the bare loop over the network that no implementation can avoid."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.features import backbone, cache, maps

from .timing import ratios

COUNT = 192
ONNX = Path(os.environ.get("FEDSOLVE_DATA", "../shared/data")) / "backbone" / "effnetlite0_224.onnx"


def measure() -> list[dict[str, Any]]:
    """`extract`, without the cache, over a bare loop of batches through onnxruntime or torch; then with the cache."""
    pictures = np.random.default_rng(0).integers(0, 256, (COUNT, 32, 32, 3), dtype=np.uint8)
    rows = []
    texts = [f"onnx:{ONNX}"] * ONNX.is_file() + ["efficientnet-lite0"]
    for text in texts:
        features = maps.parse(text)
        bare = _bare(text, pictures)
        calls: dict[str, Callable[[], object]] = {
            "extract": lambda features=features: cache.extract(features, pictures, keep=False),  # type: ignore[misc]
            "a second run": lambda features=features: cache.extract(features, pictures),  # type: ignore[misc]
        }
        found = ratios(bare, calls, repeats=7)
        name = text.partition(":")[0]
        rows += [
            {
                "what": f"{name}: {'bare loop' if what == 'base' else what}",
                "images/s": COUNT / row["seconds"],
                "share of the bare loop": 1 / row["ratio"],
                "bar": 0.9 if what == "extract" else "",
            }
            for what, row in found.items()
        ]
    return rows


def _bare(text: str, pictures: np.ndarray) -> Callable[[], object]:
    """The network alone, on inputs that are ready: what a script of ten lines would do."""
    batches = range(0, len(pictures), backbone.BATCH)
    if text.startswith("onnx:"):
        import onnxruntime

        session = onnxruntime.InferenceSession(text.partition(":")[2], providers=["CPUExecutionProvider"])
        return lambda: [session.run(None, {"image": pictures[i : i + backbone.BATCH]})[0] for i in batches]
    import torch

    features: Any = maps.parse(text)
    model = features.network.__closure__[0].cell_contents
    values = torch.from_numpy(np.concatenate(features.prepare(pictures)))

    def loop() -> object:
        with torch.inference_mode():
            return [model.extract_features(values[i : i + backbone.BATCH]).mean((2, 3)) for i in batches]

    return loop
