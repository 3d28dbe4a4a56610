"""A tiny ONNX network, and a tiny model whose classes and columns have names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs

FRUITS = ["pear", "quince", "apple"]  # not sorted, and not sorted by exchanging two of them
COLUMNS = ("sugar", "acid", "weight", "age")
NORMAL = "mean=0.5/0.5/0.5,std=0.5/0.5/0.5"


def write_onnx(
    path: Path,
    middle: str = "",
    *,
    shape: tuple[Any, ...] = ("n", 3, "h", "w"),
    seed: int = 0,
    bytes_in: bool = False,
    opset: int = 13,
) -> Path:
    """Average colour, then a fixed linear map; `middle` puts something unwanted in between."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = np.random.default_rng(seed).standard_normal((3, 5)).astype(np.float32)
    nodes = [helper.make_node("Cast", ["image"], ["values"], to=kinds.FLOAT)]
    axes = [1, 2] if bytes_in else [2, 3]
    nodes.append(helper.make_node("ReduceMean", ["values"], ["means"], axes=axes, keepdims=0))
    last = "means"
    if middle == "random":
        nodes += [
            helper.make_node("RandomNormalLike", ["means"], ["noise"]),
            helper.make_node("Add", ["means", "noise"], ["noisy"]),
        ]
        last = "noisy"
    elif middle == "batch":
        nodes += [
            helper.make_node("ReduceMean", ["means"], ["centre"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["means", "centre"], ["centred"]),
        ]
        last = "centred"
    nodes.append(helper.make_node("MatMul", [last, "weights"], ["feature"]))
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", kinds.UINT8 if bytes_in else kinds.FLOAT, shape)],
        [
            helper.make_tensor_value_info("feature", kinds.FLOAT, (shape[0], 5)),
            helper.make_tensor_value_info("means", kinds.FLOAT, (shape[0], 3)),
        ],
        [onnx.numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def fruits() -> tuple[fs.Model, np.ndarray, np.ndarray]:
    """A model that tells three fruits apart without error, samples, and the names of their true classes."""
    rng, y = np.random.default_rng(0), np.arange(120) % 3
    x = np.eye(4)[y] + rng.normal(scale=0.1, size=(120, 4))
    table = fs.Table.make("fruits", x, y, class_names=FRUITS, feature_names=COLUMNS)
    result = fs.run(fs.AFL(ridge=0.1, intercept=True), table.split("iid", clients=2, test=0))
    assert result.shared is not None
    return result.shared, x, np.array(FRUITS)[y]
