"""FedACnnL against the same layer-wise training on the pooled data, derived a second time with explicit loops."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import Arrays
from fedsolve.data.partition import parse as partition
from fedsolve.families import layered as nets
from fedsolve.families.layered import forward as passes
from fedsolve.families.layered import layers
from fedsolve.rng import derive
from fedsolve.runtime import client
from tests.conftest import relative
from tests.contexts import server, site

CLASSES = 4
ACTIVATIONS: dict[str, Any] = {
    "relu": lambda z: z * (z > 0),
    "leaky": lambda z: z * np.where(z > 0, 1.0, 0.01),
    "tanh": np.tanh,
}


def images(count: int = 90, seed: int = 0, shape: tuple[int, ...] = (8, 7, 2)) -> tuple[Any, Any]:
    """Classes that differ in a pattern, under noise."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(CLASSES, *shape))
    y = rng.integers(CLASSES, size=count)
    return 0.5 * patterns[y] + rng.normal(size=(count, *shape)), y


def federation(x: Any, y: Any, how: str, clients: int) -> fs.Federation:
    return fs.Table.make("images", x, y).split(partition(how), clients=clients, test=0.0, min_samples=1)


def unit(image: Any) -> Any:
    """Square roots with their signs, then unit length: how images are scaled."""
    roots = np.sign(image) * np.abs(np.asarray(image, dtype=np.float64)) ** 0.5
    return roots / np.linalg.norm(roots)


def patches(image: Any, height: int, width: int, stride: int, pad: int) -> list[Any]:
    padded = np.zeros((image.shape[0] + 2 * pad, image.shape[1] + 2 * pad, image.shape[2]))
    padded[pad : pad + image.shape[0], pad : pad + image.shape[1]] = image
    found = []
    for i in range(0, padded.shape[0] - height + 1, stride):
        for j in range(0, padded.shape[1] - width + 1, stride):
            found.append(padded[i : i + height, j : j + width])
    return found


def drawn(seed: int, name: str, number: int, *shape: int) -> Any:
    return derive(seed, name, number, *shape).standard_normal(shape)


def slow_training(
    text: str, x: Any, y: Any, gamma: float, seed: int, target: str = "place", one: tuple[float, ...] = (1.0,)
) -> list[Any]:
    """Layer by layer on the pooled data, image by image, patch by patch; FedACnnL (1) as stacked least squares."""
    values = [unit(each) for each in x]
    layers: list[Any] = []
    for word in text.split(","):
        kind, *rest = word.split(":")
        if kind in ("dense", "conv"):
            stride = pad = 1
            if kind == "conv":
                height, width, out = map(int, rest[0].split("x"))
                options = dict(option.split("=") for option in rest[1:])
                stride, pad = int(options.get("stride", 1)), int(options.get("pad", 0))
                values = [each[..., None] if each.ndim == 2 else each for each in values]
                rows = [[p.ravel() for p in patches(each, height, width, stride, pad)] for each in values]
                tall = 1 + (values[0].shape[0] + 2 * pad - height) // stride
            else:
                out = int(rest[0]) if rest else CLASSES
                rows = [[each.ravel()] for each in values]
            number, places = len(layers), len(rows[0])
            encoding = drawn(seed, "label encoding", number, CLASSES, out) if rest else np.eye(CLASSES)
            codes = drawn(seed, "codes of places", number, CLASSES, places, out)
            f = np.array([[*row, *one] for own in rows for row in own])
            z = np.array([encoding[label] for own, label in zip(rows, y, strict=True) for _ in own])  # Y Q
            if target == "place" and kind == "conv":  # Y Q_p
                z = np.array([codes[label, place] for label in y for place in range(places)])
            if target == "projection" and rest:  # sign(X P) + sign(Y Q)
                z = np.sign(z) + np.sign(f @ drawn(seed, "input projection", number, f.shape[1], out))
            ridge = np.sqrt(gamma) * np.eye(f.shape[1])
            w = np.linalg.lstsq(np.vstack([f, ridge]), np.vstack([z, np.zeros((len(ridge), out))]), rcond=None)[0]
            layers.append(w)
            values = [np.array([[*row, *one] @ w for row in own]) for own in rows]
            values = [each.reshape(tall, -1, out) if kind == "conv" else each[0] for each in values]
        elif kind in ("avgpool", "maxpool"):
            size, fold = int(rest[0]), np.mean if kind == "avgpool" else np.max
            values = [
                np.array(
                    [
                        [
                            fold(v[i : i + size, j : j + size], axis=(0, 1))
                            for j in range(0, v.shape[1] - size + 1, size)
                        ]
                        for i in range(0, v.shape[0] - size + 1, size)
                    ]
                )
                for v in values
            ]
        else:
            values = [ACTIVATIONS[kind](each) for each in values]
    return layers


@cache
def wanted_layers(
    text: str, shape: tuple[int, ...], seed: int, target: str = "place", constant: bool = True
) -> list[Any]:
    """`slow_training` on `images` of a shape, once for all the ways in which clients may hold them."""
    return slow_training(text, *images(shape=shape), 0.3, seed, target, (1.0,) if constant else ())


def full(text: str, model: Any, target: str = "place") -> list[Any]:
    """The matrices of a model's layers, encodings multiplied out, intercepts last."""
    found, result = layers.layers(model), []
    items = [item for item in nets.parse(text).items if item.kind in ("dense", "conv")]
    for number, (layer, item) in enumerate(zip(found, items, strict=True)):
        scores = nets.stacked(layer)
        coded = target == "projection" or (target == "place" and item.kind == "conv")
        if item.width and not coded:
            scores = scores @ nets.encoding(int(model["seeds"][0]), number, CLASSES, item.width)
        result.append(scores)
    return result


NETWORKS = [
    "dense",
    "dense:12,relu,dense:7,tanh,dense",
    "conv:3x3x6,leaky,avgpool:2,conv:2x2x5:stride=2:pad=1,relu,dense",
    "conv:2x3x5,maxpool:2,tanh,dense:6,relu,dense",
]


@pytest.mark.parametrize("text", NETWORKS)
@pytest.mark.parametrize(("how", "clients"), [("iid", 1), ("dirichlet:0.1", 7), ("classes:1", 5), ("iid", 90)])
@pytest.mark.parametrize("block", [1, 13, 4096])
def test_every_layer_is_that_of_pooled_training(text: str, how: str, clients: int, block: int) -> None:
    x, y = images()
    method = fs.FedACnnL(network=text, gamma=0.3, block=block, cache=0.0 if block == 13 else 1.0)
    result = fs.run(method, federation(x, y, how, clients))
    assert result.shared is not None
    model = result.shared.arrays
    wanted = wanted_layers(text, x.shape[1:], int(model["seeds"][0]))
    found = full(text, model)
    assert len(found) == len(wanted) == method.rounds == result.rounds
    for mine, theirs in zip(found, wanted, strict=True):
        assert relative(mine, theirs) < 1e-7


@pytest.mark.parametrize("text", NETWORKS[1:])
@pytest.mark.parametrize("target", ["place", "shared", "projection"])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("how", "clients", "block"), [("iid", 1, 4096), ("dirichlet:0.01", 9, 5), ("iid", 90, 64)])
def test_every_target_gives_the_layers_of_pooled_training(
    text: str, target: str, constant: bool, how: str, clients: int, block: int
) -> None:
    x, y = images(shape=(7, 6))
    method = fs.FedACnnL(network=text, gamma=0.3, block=block, target=target, constant=constant)
    result = fs.run(method, federation(x, y, how, clients))
    assert result.shared is not None
    model = result.shared.arrays
    wanted = wanted_layers(text, x.shape[1:], int(model["seeds"][0]), target, constant)
    for mine, theirs in zip(full(text, model, target), wanted, strict=True):
        assert mine.shape == theirs.shape and relative(mine, theirs) < 1e-7


@pytest.mark.parametrize("target", ["place", "shared"])
def test_a_code_at_each_place_lets_a_convolution_have_more_than_one_column_per_class(target: str) -> None:
    x, y = images(200)
    text = "conv:3x3x15,dense"
    result = fs.run(fs.FedACnnL(network=text, gamma=1e-6, target=target, constant=False), federation(x, y, "iid", 3))
    assert result.shared is not None
    rank = np.linalg.matrix_rank(full(text, result.shared.arrays, target)[0])
    assert rank == (15 if target == "place" else CLASSES)


def test_ridges_are_chosen_on_the_sums() -> None:
    x, y = images(200)
    method = fs.FedACnnL(network="conv:3x3x6,relu,avgpool:2,dense", gamma="auto")
    states = [fs.run(method, federation(x, y, how, 5)).state for how in ("iid", "classes:1")]
    for state in states:
        assert state["layer/0/ridge"] == pytest.approx(states[0]["layer/0/ridge"], rel=1e-9)
        assert state["layer/1/ridge"] == pytest.approx(states[0]["layer/1/ridge"], rel=1e-9)
    given = fs.FedACnnL(network=method.network, gamma=float(states[0]["layer/0/ridge"]))
    first = fs.run(given, federation(x, y, "iid", 5)).state["layer/0/weight"]
    assert relative(first, states[0]["layer/0/weight"]) < 1e-9
    rows = np.array([[*p.ravel(), 1.0] for image in x for p in patches(unit(image), 3, 3, 1, 0)])
    assert states[0]["layer/0/ridge"] == pytest.approx(0.01 * (rows**2).sum() / rows.shape[1], rel=1e-9)


def test_predictions_are_those_of_the_network() -> None:
    x, y = images()
    text = "conv:3x3x6,leaky,avgpool:2,dense"
    result = fs.run(fs.FedACnnL(network=text, gamma=0.3, block=11), federation(x, y, "iid", 3))
    assert result.shared is not None
    conv, dense = full(text, result.shared.arrays)
    for image, scores in zip(x[:9], result.shared.scores(x[:9]), strict=True):
        values = np.array([[*p.ravel(), 1.0] @ conv for p in patches(unit(image), 3, 3, 1, 0)]).reshape(6, 5, 6)
        values = ACTIVATIONS["leaky"](values)
        pooled = [values[i : i + 2, j : j + 2].mean((0, 1)) for i in (0, 2, 4) for j in (0, 2)]
        np.testing.assert_allclose(scores, [*np.concatenate(pooled), 1.0] @ dense, atol=1e-9)


@pytest.mark.parametrize("target", ["place", "shared", "projection"])
def test_a_layer_on_its_own_is_a_classifier(target: str) -> None:
    """After each round the model predicts with the layers there are, a convolution by the mean over its places."""
    x, y = images()
    method = fs.FedACnnL(network="conv:3x3x6,relu,dense", target=target)
    fed = federation(x, y, "iid", 4)
    state = method.init_server(server(fed.task, derive(0, "server")))
    replies = [
        method.update({}, method.message(state, "", "update"), site(fed.task, c.train, derive(0)))[1]
        for c in fed.clients.values()
    ]
    state = method.aggregate(state, {n: np.asarray(sum(r[n] for r in replies)) for n in replies[0]}, server(fed.task))
    model = method.message(state, "", "update")
    weights = np.vstack([model["layer/0/weight"], model["layer/0/intercept"]])
    given = np.array([[*p.ravel(), 1.0] @ weights for p in patches(unit(x[0]), 3, 3, 1, 0)])
    seed = int(model["seeds"][0])
    codes = drawn(seed, "codes of places", 0, CLASSES, 30, 6) if target == "place" else None
    if target == "projection":
        codes = np.repeat(np.sign(drawn(seed, "label encoding", 0, CLASSES, 6))[:, None], 30, axis=1)
    wanted = given.mean(0) if codes is None else [(given * codes[label]).sum() / 180 for label in range(CLASSES)]
    np.testing.assert_allclose(method.predict(model, x[:1], fed.task)[0], wanted, atol=1e-12)
    history = fs.run(
        fs.FedACnnL(network="mlp:30", target=target), fs.Table.make("images", x, y).split("iid", clients=3)
    ).history
    assert all(entry.accuracy is not None and entry.accuracy > 0.5 for entry in history)


def test_encodings_are_seeds_never_matrices() -> None:
    """What is sent for a layer is one column a class, however wide the layer."""
    x, y = images()
    narrow, wide = (fs.run(fs.FedACnnL(network=f"mlp:{width}"), federation(x, y, "iid", 3)) for width in (8, 500))
    assert narrow.state["layer/0/weight"].shape == wide.state["layer/0/weight"].shape == (112, CLASSES)
    np.testing.assert_array_equal(narrow.state["layer/0/weight"], wide.state["layer/0/weight"])
    one, other = (fs.run(fs.FedACnnL(network="mlp:8"), federation(x, y, "iid", 3), seed=seed) for seed in (0, 1))
    assert one.state["seeds"] != other.state["seeds"]


class Counting:
    """Counts how many layers are applied in forward passes of training."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        forward = passes.forward

        def counted(*arguments: Any) -> Any:
            self.calls += 1
            return forward(*arguments)

        monkeypatch.setattr(passes, "forward", counted)


@pytest.mark.parametrize(("cache", "passes"), [(1.0, 4), (0.0, 10)])
def test_activations_are_kept_so_that_layers_do_not_cost_their_square(
    cache: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = images()
    method = fs.FedACnnL(network="mlp:9,8,7,6", cache=cache)
    fed = federation(x, y, "iid", 1)
    train, state = fed.clients["client-00"].train, method.init_server(server(fed.task, derive(0, "server")))
    private: Arrays = {}
    counting = Counting(monkeypatch)
    for _ in range(method.rounds):
        private, reply = method.update(private, method.message(state, "", "update"), site(fed.task, train, derive(0)))
        state = method.aggregate(state, reply, server(fed.task))
        assert sum(array.nbytes for array in private.values()) <= 1e6 * cache
    assert counting.calls == passes


def test_a_client_that_missed_a_round_goes_on_from_where_it_is() -> None:
    x, y = images()
    method = fs.FedACnnL(network="mlp:9,8,7")
    fed = federation(x, y, "iid", 2)
    names = list(fed.clients)
    whole = fs.run(method, fed)
    message = {name: array for name, array in whole.state.items() if name in method.message(whole.state, "", "update")}
    train = fed.clients[names[0]].train

    def upto(depth: int) -> dict[str, Any]:
        return {n: a for n, a in message.items() if n == "seeds" or int(n.split("/")[1]) < depth}

    private, _ = method.update({}, upto(1), site(fed.task, train, derive(0)))
    assert int(private["depth"]) == 1
    _, late = method.update(private, upto(3), site(fed.task, train, derive(0)))
    _, fresh = method.update({}, upto(3), site(fed.task, train, derive(0)))
    for name in late:
        np.testing.assert_allclose(late[name], fresh[name], rtol=1e-9, atol=1e-9)


def test_slow_clients_get_larger_blocks_and_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sees who is slow; blocks grow, up to the limit; weights are the same to rounding."""
    x, y = images(200)
    fed = federation(x, y, "iid", 4)
    seen: dict[int, list[int]] = {}
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(client, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    statistics = layers.statistics

    def slow(reader: Any, stages: Any, model: Any, source: Any, labels: Any, depth: int) -> Any:
        blocks = -(-len(labels) // reader.block)
        seen.setdefault(labels.ctypes.data, []).append(reader.block)
        clock.now += 0.1
        if labels is fed.clients["client-02"].train.labels:
            clock.now += float(blocks)
        return statistics(reader, stages, model, source, labels, depth)

    monkeypatch.setattr(layers, "statistics", slow)
    settings: dict[str, Any] = {"network": "mlp:9,8,7,6", "block": 4, "limit": 20}
    paced, plain = (fs.run(fs.FedACnnL(**settings, adaptive=on), fed, workers=1) for on in (True, False))
    sizes = seen[fed.clients["client-02"].train.labels.ctypes.data][: paced.rounds]
    assert sizes[0] == 4
    assert sizes == sorted(sizes)
    assert sizes[-1] == 20
    assert paced.state.keys() == plain.state.keys()
    for name in plain.state:
        if name.endswith("weight"):
            assert relative(paced.state[name], plain.state[name]) < 1e-9


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"network": "mlp:12,x"}, "parameter 'network' of FedACnnL: 'x' at character 8"),
        ({"network": 3}, "parameter 'network' of FedACnnL must be a text; got 3"),
        ({"scale": "half"}, "one of auto, power, unit, none"),
        ({"gamma": -1.0}, "'gamma'"),
        ({"block": 0}, "'block'"),
    ],
)
def test_wrong_parameters_are_refused_by_name(settings: dict[str, Any], wanted: str) -> None:
    with pytest.raises(fs.ParameterError) as error:
        fs.FedACnnL(**settings)
    assert wanted in str(error.value)


def test_a_network_that_does_not_fit_is_refused_before_anything_is_computed() -> None:
    rows, y = np.zeros((10, 5)), np.arange(10) % 2
    fed = fs.Federation.from_arrays({"a": {"train": (rows, y)}})
    with pytest.raises(fs.DataError, match="needs images"):
        fs.run(fs.FedACnnL(network="conv:3x3x8,relu,dense"), fed)


def test_bytes_and_grey_images(tmp_path: Any) -> None:
    """uint8 images without channels; saved and loaded; the same images as floats give the same scores."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=60)
    x = np.clip(rng.normal(60 + 60 * y[:, None, None], 30, size=(60, 6, 6)), 0, 255).astype(np.uint8)
    fed = fs.Table.make("grey", x, y).split("iid", clients=3)
    result = fs.run(fs.FedACnnL(network="conv:3x3x6,relu,maxpool:2,dense", scale="none", gamma=0.1), fed)
    assert result.accuracy.mean is not None
    assert result.accuracy.mean > 0.8
    result.save(tmp_path / "out")
    loaded = fs.load_model(tmp_path / "out" / "models" / "client-01.safetensors")
    np.testing.assert_array_equal(loaded.scores(x), result.models["client-01"].scores(x))
    scaled = fs.run(fs.FedACnnL(network="conv:3x3x6,relu,maxpool:2,dense"), fed)
    assert scaled.shared is not None
    np.testing.assert_allclose(scaled.shared.scores(x), scaled.shared.scores(x.astype(np.float64)), atol=1e-10)
