"""Saved models for other programs: an ONNX graph from raw inputs to scores, or a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from fedsolve.arrays import Array
from fedsolve.codec import write_bytes
from fedsolve.errors import DataError
from fedsolve.features import maps
from fedsolve.features.backbone import Backbone
from fedsolve.model import Model, load_model

OPSET, IR = 17, 8  # read by every onnxruntime since 1.12


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A trained model as a scikit-learn classifier: in pipelines, scorers, calibration and plots.

    It is trained already; `fit` is there for scikit-learn and refuses. Labels are class names where the model has them.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, sorted as scikit-learn wants them: the order of the columns of `decision_function`."""
        return np.asarray(self._names[self._order])

    @property
    def _names(self) -> NDArray[Any]:
        task = self.model.task
        return np.array(task.class_names) if task.class_names else np.arange(task.classes)

    @property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self._names)

    @property
    def n_features_in_(self) -> int:
        """How many numbers an input has."""
        return int(np.prod(self.model.task.inputs))

    @property
    def coef_(self) -> Array:
        """Weights, classes x features, of a linear model."""
        return np.ascontiguousarray(_linear(self.model)[0].T[self._order])

    @property
    def intercept_(self) -> Array:
        """A number a class."""
        return np.asarray(_linear(self.model)[1][self._order])

    def fit(self, X: ArrayLike, y: ArrayLike) -> Classifier:
        """Refuse: the federation has trained it."""
        raise DataError("this classifier is trained already; wrap it in sklearn.frozen.FrozenEstimator to keep it so")

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores; of two classes, as scikit-learn has it, the second's lead over the first."""
        scores = self.model.scores(self._shaped(X))[:, self._order]
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The label of each sample."""
        return np.asarray(self._names[self.model.predict(self._shaped(X))])

    def _shaped(self, inputs: ArrayLike) -> Array:
        """Rows as scikit-learn has them, in the shape the model takes."""
        x = np.asarray(inputs)
        return x.reshape(len(x), *self.model.task.inputs) if x.ndim == 2 and -1 not in self.model.task.inputs else x


def estimator(model: Model | str | Path) -> Classifier:
    """A scikit-learn classifier from a model, or from the file of one."""
    return Classifier(model if isinstance(model, Model) else load_model(model))


def to_onnx(model: Model | str | Path, out: str | Path) -> Path:
    """Write a linear model with its feature map as one ONNX file: from raw inputs to "scores" and "label".

    A backbone that is an ONNX file itself becomes part of it. Resizing and cropping stay with the caller: a backbone
    whose pictures are resized first takes pictures that are.
    """
    try:
        import onnx
    except ImportError as error:
        raise DataError("writing ONNX needs onnx: pip install 'fedsolve[export]'") from error
    known = model if isinstance(model, Model) else load_model(model)
    weights, intercept = _linear(known)
    graph = _Graph(onnx)
    chain = known.task.features.maps if isinstance(known.task.features, maps.Chain) else (known.task.features,)
    last, shape = graph.start(known.task.inputs, chain[0])
    for each in chain:
        last, shape = graph.add_map(each, last, shape)
    scores = graph.node(
        "Add", graph.node("MatMul", last, graph.constant(weights)), graph.constant(intercept), name="scores"
    )
    graph.node("ArgMax", scores, name="label", axis=1, keepdims=0)
    built = graph.model(
        {"scores": (onnx.TensorProto.DOUBLE, ["n", len(intercept)]), "label": (onnx.TensorProto.INT64, ["n"])}
    )
    for name, value in known.metadata().items():
        entry = built.metadata_props.add()
        entry.key, entry.value = name, value
    onnx.checker.check_model(built)
    write_bytes(Path(out), built.SerializeToString())
    return Path(out)


def _linear(model: Model) -> tuple[Array, Array]:
    """Weights and intercept of a model that is nothing but them."""
    arrays = {name: array for name, array in model.arrays.items() if array.ndim > 0}
    weights = arrays.get("weight")
    if weights is None or not arrays.keys() <= {"weight", "intercept"} or weights.ndim != 2:
        raise DataError(
            f"the model of {model.owner!r} ({model.method.name}) is not one linear map; export takes those of local, "
            "afl, fedhip and fedprior"
        )
    return weights, arrays.get("intercept", np.zeros(weights.shape[1]))


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
        made = name or f"v{self._count}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [made], **attributes))
        return made

    def constant(self, value: Array) -> str:
        """An array that is part of the graph."""
        self._count += 1
        self._constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(value), f"c{self._count}"))
        return f"c{self._count}"

    def number(self, value: float) -> str:
        """A constant number."""
        return self.constant(np.array(value, dtype=np.float64))

    def add_map(self, each: maps.FeatureMap, last: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """A feature map behind what is there."""
        if isinstance(each, Backbone):
            return self._add_backbone(each, last), (each.width,)
        if len(shape) > 1 or isinstance(each, maps.Identity):
            last = self.node("Reshape", last, self.constant(np.array([0, int(np.prod(shape))])))
        if isinstance(each, maps.UnitLength):
            last = self._unit(last)
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
        elif not isinstance(each, maps.Identity):
            raise DataError(f"the feature map {each} has no form in ONNX")
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
        """The whole."""
        helper = self._onnx.helper
        made = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()]
        graph = helper.make_graph(self._nodes, "fedsolve", [self._entry], made, self._constants)
        versions = [helper.make_opsetid("", OPSET)]
        if self._backbone is not None:
            found = {each.domain: each.version for each in self._backbone.opset_import}
            if found.get("", found.get("ai.onnx")) != OPSET:
                converted = "convert it with onnx.version_converter"
                raise DataError(f"the backbone is of opset {found.get('', 0)}, the head of {OPSET}: {converted}")
            versions += [helper.make_opsetid(name, number) for name, number in found.items() if name]
        return helper.make_model(graph, opset_imports=versions, ir_version=IR, producer_name="fedsolve")


def _gelu(graph: _Graph, z: str) -> str:
    kinds = graph._onnx.TensorProto
    single = graph.node(
        "Cast", graph.node("Mul", z, graph.number(0.5**0.5)), to=kinds.FLOAT
    )  # runtimes have erf in single
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
