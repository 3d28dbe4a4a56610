"""Saved models for programs without fedsolve: one ONNX graph from raw inputs to scores and label."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve import disk
from fedsolve.arrays import Array
from fedsolve.errors import DataError
from fedsolve.features import maps
from fedsolve.features.backbone import Backbone
from fedsolve.features.columns import Columns, Number
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.features.standard import Standardise
from fedsolve.model import Model, load_model
from fedsolve.study.linear import linear_map

OPSET, IR = 17, 8  # read by every onnxruntime since 1.12


def to_onnx(model: Model | str | Path, out: str | Path, *, features: str = "") -> Path:
    """Write a linear model with its feature map as one ONNX file: from raw inputs to "scores" and "label".

    Scores have one column per class in the model's order, and a label is the number of such a column; the names are in
    the file's metadata. A backbone that is an ONNX file itself becomes part of it; for the file of a model, `features`
    says what it is here. Resizing and cropping stay with the caller: a backbone whose pictures are resized first takes
    pictures that are.

    >>> import tempfile
    >>> import fedsolve as fs
    >>> result = fs.run(fs.FedHiP(), fs.load("digits").split("iid", clients=4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fs.to_onnx(result.models["client-00"], Path(folder) / "model.onnx").name
    'model.onnx'
    """
    try:
        import onnx
    except ImportError as error:
        raise DataError("writing ONNX needs onnx: pip install 'fedsolve[export]'") from error
    disk.check_file(Path(out))
    trained = model if isinstance(model, Model) else load_model(model, features=features)
    if isinstance(trained.task.features, Elsewhere):
        raise DataError(f"the model of {trained.owner!r} cannot be written: {trained.task.features.refusal()}")
    weights, intercept = linear_map(trained)
    graph, task = _Graph(onnx), trained.task
    chain = task.features.maps if isinstance(task.features, maps.Chain) else (task.features,)
    last, shape = graph.start(task.inputs, chain[0])
    for each in chain:
        last, shape = graph.add_map(each, last, shape)
    product = graph.node("MatMul", last, graph.constant(weights))
    scores = graph.node("Add", product, graph.constant(intercept), name="scores")
    graph.node("ArgMax", scores, name="label", axis=1, keepdims=0)
    kinds = onnx.TensorProto
    file = graph.model({"scores": (kinds.DOUBLE, ["n", len(intercept)]), "label": (kinds.INT64, ["n"])})
    # Beside what fedsolve itself reads: the names where other programs look for them.
    names = {"class_names": task.class_names, "feature_names": task.feature_names}
    for name, value in (trained.metadata() | {key: json.dumps(texts) for key, texts in names.items()}).items():
        entry = file.metadata_props.add()
        entry.key, entry.value = name, value
    onnx.checker.check_model(file)
    disk.write_bytes(Path(out), file.SerializeToString(), public=True)  # made to be handed on
    return Path(out)


class _Graph:
    """Nodes of an ONNX graph, one after the other. Numbers are double, as they were in training."""

    def __init__(self, onnx: Any) -> None:
        self._onnx, self._count = onnx, 0
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._backbone: Any = None
        self._entry: Any = None

    def start(self, inputs: tuple[int, ...], first: maps.FeatureMap) -> tuple[str, tuple[int, ...]]:
        """The input of the graph: numbers, or pictures as bytes."""
        kinds, sides = self._onnx.TensorProto, [side if side >= 0 else f"side{i}" for i, side in enumerate(inputs)]
        if isinstance(first, Backbone):
            prepared = first.prepare.crop or (first.prepare.size if len(first.prepare.size) == 2 else ())
            sides = [*(prepared or ("height", "width")), 3]
        kind = kinds.UINT8 if isinstance(first, Backbone) else kinds.DOUBLE
        self._entry = self._onnx.helper.make_tensor_value_info("x", kind, ["n", *sides])
        return "x", inputs

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """One operation; the name of what comes out."""
        self._count += 1
        output = name or f"v{self._count}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Array) -> str:
        """An array that is part of the graph."""
        self._count += 1
        self._constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(value), f"c{self._count}"))
        return f"c{self._count}"

    def number(self, value: float) -> str:
        """A double that is part of the graph."""
        return self.constant(np.array(value, dtype=np.float64))

    def _columns(self, each: Columns, last: str) -> str:
        """Columns of numbers about their means; texts and empty cells have no form in an array of numbers."""
        parts = [part for part in each.parts if isinstance(part, Number) and not part.holes]
        if len(parts) != len(each.parts):
            raise DataError("a model of a table with texts or empty cells has no form in ONNX; predict with fedsolve")
        kept = np.array([place for place, part in enumerate(parts) if part.scale > 0])
        used = [parts[place] for place in kept]
        last = self.node("Gather", last, self.constant(kept), axis=1)
        centred = self.node("Sub", last, self.constant(np.array([part.origin for part in used])))
        return self.node("Div", centred, self.constant(np.array([part.scale for part in used])))

    def add_map(self, each: maps.FeatureMap, last: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """A feature map behind what is there."""
        if isinstance(each, Backbone):
            return self._add_backbone(each, last), (each.width,)
        if len(shape) > 1 or isinstance(each, maps.Identity):
            last = self.node("Reshape", last, self.constant(np.array([0, int(np.prod(shape))])))
        if isinstance(each, maps.UnitLength):
            last = self._unit(last)
        elif isinstance(each, maps.Clip):
            over = self.node("Div", self._length(last), self.number(each.longest))
            last = self.node("Div", last, self.node("Max", over, self.number(1.0)))
        elif isinstance(each, maps.Ones):
            ones = self.node(
                "Add",
                self.node("ReduceSum", self.node("Mul", last, self.number(0.0)), self.constant(np.array([1]))),
                self.number(1.0),
            )
            last = self.node("Concat", last, ones, axis=1)
        elif isinstance(each, maps.RandomProjection):
            matrix = maps.projection(each, int(np.prod(shape)))
            last = ACTIVATIONS[each.activation](self, self.node("MatMul", self._unit(last), self.constant(matrix)))
        elif isinstance(each, Columns):
            last = self._columns(each, last)
        elif isinstance(each, Standardise):
            centred = self.node("Sub", last, self.constant(np.array(each.origin)))
            last = self.node("Div", centred, self.constant(np.array(each.scale)))
        elif not isinstance(each, maps.Identity):
            raise DataError(f"the feature map {str(each)[:80]} has no form in ONNX")
        return last, each.shape(shape)

    def _unit(self, last: str) -> str:
        """Rows of length one; zero rows stay zero."""
        for reduce in (lambda rows: self.node("ReduceMax", self.node("Abs", rows), axes=[1]), self._length):
            size = reduce(last)
            zero = self.node("Equal", size, self.number(0.0))
            last = self.node("Div", last, self.node("Where", zero, self.number(1.0), size))
        return last

    def _length(self, rows: str) -> str:
        return self.node("Sqrt", self.node("ReduceSum", self.node("Mul", rows, rows), self.constant(np.array([1]))))

    def _add_backbone(self, each: Backbone, last: str) -> str:
        kind, _, where = each.text.partition(",")[0].partition(":")
        if kind != "onnx":
            raise DataError(f"{each.text} is not an ONNX file: export its features' head, or the network as ONNX first")
        prepare, kinds = each.prepare, self._onnx.TensorProto
        if prepare.mean:
            std = np.array(prepare.std, dtype=np.float32)
            scaled = self.node(
                "Mul", self.node("Cast", last, to=kinds.FLOAT), self.constant(np.float32(prepare.scale) / std)
            )
            last = self.node("Sub", scaled, self.constant(np.array(prepare.mean, dtype=np.float32) / std))
        if prepare.layout == "nchw":
            last = self.node("Transpose", last, perm=[0, 3, 1, 2])
        network = self._onnx.compose.add_prefix(self._onnx.load(where), "backbone/")
        self._backbone = network
        entry, output = network.graph.input[0].name, network.graph.output[0].name
        options = dict(option.split("=", 1) for option in each.text.split(",")[1:] if "=" in option)
        if "output" in options:
            output = f"backbone/{options['output']}"
        self._nodes.append(self._onnx.helper.make_node("Identity", [last], [entry]))
        self._nodes += network.graph.node
        self._constants += network.graph.initializer
        return self.node("Cast", output, to=kinds.DOUBLE)

    def model(self, outputs: dict[str, tuple[int, list[Any]]]) -> Any:
        """The graph as an ONNX model with these outputs: by name, their kind and shape."""
        helper = self._onnx.helper
        exits = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()]
        graph = helper.make_graph(self._nodes, "fedsolve", [self._entry], exits, self._constants)
        versions = [helper.make_opsetid("", OPSET)]
        if self._backbone is not None:
            opsets = {each.domain: each.version for each in self._backbone.opset_import}
            if opsets.get("", opsets.get("ai.onnx")) != OPSET:
                way_out = "convert it with onnx.version_converter"
                raise DataError(f"the backbone is of opset {opsets.get('', 0)}, the head of {OPSET}: {way_out}")
            versions += [helper.make_opsetid(name, number) for name, number in opsets.items() if name]
        return helper.make_model(graph, opset_imports=versions, ir_version=IR, producer_name="fedsolve")


def _gelu(graph: _Graph, z: str) -> str:
    kinds = graph._onnx.TensorProto
    single = graph.node("Cast", graph.node("Mul", z, graph.number(0.5**0.5)), to=kinds.FLOAT)  # as runtimes have erf
    share = graph.node("Cast", graph.node("Erf", single), to=kinds.DOUBLE)
    return graph.node("Mul", graph.node("Mul", z, graph.number(0.5)), graph.node("Add", share, graph.number(1.0)))


def _hardswish(graph: _Graph, z: str) -> str:
    moved = graph.node("Add", graph.node("Mul", z, graph.number(1 / 6)), graph.number(0.5))
    return graph.node("Mul", z, graph.node("Min", graph.node("Max", moved, graph.number(0.0)), graph.number(1.0)))


def _softplus(graph: _Graph, z: str) -> str:
    """max(z, 0) + log(1 + exp(-|z|)), which does not overflow."""
    small = graph.node("Exp", graph.node("Neg", graph.node("Abs", z)))
    return graph.node(
        "Add", graph.node("Max", z, graph.number(0.0)), graph.node("Log", graph.node("Add", small, graph.number(1.0)))
    )


ACTIVATIONS: dict[str, Callable[[_Graph, str], str]] = {
    "relu": lambda graph, z: graph.node("Max", z, graph.number(0.0)),
    "leaky": lambda graph, z: graph.node("Max", z, graph.node("Mul", z, graph.number(0.01))),
    "gelu": _gelu,
    "tanh": lambda graph, z: graph.node("Tanh", z),
    "sigmoid": lambda graph, z: graph.node("Sigmoid", z),
    "hardswish": _hardswish,
    "softplus": _softplus,
    "none": lambda graph, z: z,
}
