"""Networks whose first layer is one of patches: FedACnnL and pFedACnnL against the feature map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.features import fitting

NETWORK = "patches:3x3x6:steps=2:mirror=yes,dense"
SPEC = "patches:3x3x6,steps=2,mirror=yes"


def table(count: int = 240) -> fs.Table:
    """Three classes of pictures: stripes down, across and aslant, under noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=count)
    down, across = np.mgrid[:9, :9]
    ways = np.stack([1.5 * down, 1.5 * across, down + across])[labels] + rng.uniform(0, 6, (count, 1, 1))
    noise = rng.normal(size=(count, 9, 9, 3))
    return fs.Table.make(
        "stripes", np.clip(128 + 40 * np.sin(ways)[..., None] + 30 * noise, 0, 255).astype("u1"), labels
    )


@pytest.mark.parametrize(("how", "clients"), [("iid", 1), ("dirichlet:0.1", 6), ("classes:1", 5)])
def test_the_network_is_least_squares_on_the_fitted_features(how: str, clients: int) -> None:
    data = table()
    federation = data.split(how, clients=clients, test=0.0, min_samples=1)
    result = fs.run(fs.FedACnnL(network=NETWORK, gamma=2.0), federation)
    assert result.shared is not None and result.rounds == 5 + 1
    features = fitting.fit(SPEC, [np.asarray(data.inputs)])
    rows = np.column_stack([features(data.inputs).astype(np.float64), np.ones(240)])  # type: ignore[arg-type]
    wanted = np.linalg.solve(rows.T @ rows + 2.0 * np.eye(rows.shape[1]), rows.T @ np.eye(3)[data.labels])
    np.testing.assert_allclose(result.shared.scores(data.inputs), rows @ wanted, atol=1e-7)


def test_while_it_has_no_layer_with_labels_it_has_no_opinion() -> None:
    federation = table().split("iid", clients=3)
    history = fs.run(fs.FedACnnL(network=NETWORK), federation).history
    assert history[-1].accuracy is not None and history[0].accuracy is not None
    assert history[-1].accuracy > 0.9 > history[0].accuracy == history[4].accuracy


def test_more_layers_behind_it() -> None:
    data = table()
    result = fs.run(fs.FedACnnL(network="patches:3x3x6:steps=1,tanh,dense:20,relu,dense"), data.split("iid", clients=3))
    assert result.rounds == 4 + 2 and result.state["layer/1/weight"].shape == (60, 3)
    assert result.accuracy.pooled is not None and result.accuracy.pooled > 0.6


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("cache", [0.0, 128.0])
def test_groups_have_the_patches_in_common_and_clients_their_own_last_layer(groups: int, cache: float) -> None:
    data = table()
    federation = data.split("dirichlet:0.3", clients=6, test=0.0, min_samples=5)
    method = fs.PFedACnnL(network=NETWORK, groups=groups, gamma=2.0, epsilon=3.0, cache=cache, pull=0.0)
    result = fs.run(method, federation)
    assert result.rounds == 5 + 1 + (groups > 1)
    features = fitting.fit(SPEC, [client.train.inputs for client in federation.clients.values()])
    penalty = np.eye(61)

    def sums(names: Any) -> tuple[Any, Any]:
        parts = [federation.clients[name].train for name in names]
        x = np.concatenate([features(part.inputs) for part in parts]).astype(np.float64)
        y = np.eye(3)[np.concatenate([part.labels for part in parts])]
        rows = np.column_stack([x, np.ones(len(x))])
        return rows.T @ rows, rows.T @ y

    grouping = method.grouping(result.state, tuple(federation.clients))
    every = {name: group.members for name, group in grouping.items()} or {"0": tuple(federation.clients)}
    assert sum(map(len, every.values())) == 6
    for members in every.values():
        gram, cross = sums(members)
        m = np.linalg.solve(gram + 2.0 * penalty, cross)
        for name in members:  # PFedACnnL (13)
            gram, cross = sums([name])
            wanted = np.linalg.solve(gram + 3.0 * penalty, cross + 3.0 * m)
            x = federation.clients[name].train.inputs
            rows = np.column_stack([features(x).astype(np.float64), np.ones(len(x))])
            np.testing.assert_allclose(result.models[name].scores(x), rows @ wanted, atol=1e-7)
            assert set(result.clients[name].chosen) == {"layer/1/epsilon"}


def test_epsilon_is_chosen_for_the_last_layer(tmp_path: Any) -> None:
    federation = table(400).split("dirichlet:0.2", clients=5)
    result = fs.run(fs.PFedACnnL(network=NETWORK, groups=2), federation)
    assert result.accuracy.mean is not None and result.accuracy.mean > 0.9
    assert all(set(client.chosen) == {"layer/1/epsilon"} for client in result.clients.values())
    result.save(tmp_path / "out")
    loaded = fs.load_model(tmp_path / "out" / "models" / "client-01.safetensors")
    x = federation.clients["client-01"].test.inputs
    np.testing.assert_array_equal(loaded.scores(x), result.models["client-01"].scores(x))


def test_lost_memory_costs_time_and_nothing_else() -> None:
    """A client that forgot what it kept gets the same model."""
    federation = table().split("iid", clients=3)
    kept, lost = (fs.run(fs.PFedACnnL(network=NETWORK, groups=2, cache=cache), federation) for cache in (128.0, 0.0))
    for name in federation.clients:
        for key, array in kept.models[name].arrays.items():
            np.testing.assert_allclose(lost.models[name].arrays[key], array, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("dense:8,patches:3x3x4,dense", "patches are of the pictures themselves"),
        ("patches:3x3,dense", "patches is written"),
        ("patches:3x3x4:mirror=perhaps,dense", "must be yes or no"),
        ("patches:3x3x4", "the last item must be 'dense'"),
    ],
)
def test_such_networks_are_refused_at_their_place(network: str, words: str) -> None:
    with pytest.raises(fs.ParameterError, match=words):
        fs.FedACnnL(network=network)


def test_pictures_that_do_not_fit_are_refused_before_anything_is_computed() -> None:
    rows = fs.Federation.from_arrays({"a": {"train": (np.zeros((10, 5)), np.arange(10) % 2)}})
    with pytest.raises(fs.DataError, match="a layer of patches needs images"):
        fs.run(fs.FedACnnL(network="patches:3x3x4,dense"), rows)
    small = fs.Federation.from_arrays({"a": {"train": (np.zeros((10, 5, 5)), np.arange(10) % 2)}})
    with pytest.raises(fs.DataError, match="do not fit into pictures of 5 x 5"):
        fs.run(fs.FedACnnL(network="patches:6x6x4,dense"), small)
