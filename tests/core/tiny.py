"""A tiny ONNX network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
