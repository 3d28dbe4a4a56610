"""pFedACnnL: personal layers against their minimiser, epsilon against explicit refits, groups against K-means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans

import fedsolve as fs
from fedsolve.families import layered as nets
from fedsolve.families.layered import layers, own
from fedsolve.families.ridge import choice
from fedsolve.rng import derive
from tests.conftest import relative
from tests.contexts import server, site
from tests.methods.test_fedacnnl import CLASSES, images


def skewed(clients: int = 8, seed: int = 3) -> fs.Federation:
    x, y = images(160, seed=seed)
    return fs.Table.make("images", x, y).split("dirichlet:0.3", clients=clients, seed=seed)


def features(model: Any, x: Any, depth: int) -> Any:
    """Inputs of a layer of a network of dense layers with relu, with a one."""
    values = (np.sign(x) * np.sqrt(np.abs(x))).reshape(len(x), -1)
    values = values / np.linalg.norm(values, axis=1, keepdims=True)
    for number in range(depth):
        width = (9, 8)[number]
        scores = np.column_stack([values, np.ones(len(x))]) @ nets.stacked(layers.layers(model)[number])
        values = np.maximum(scores @ nets.encoding(int(model["seeds"][0]), number, CLASSES, width), 0.0)
    return np.column_stack([values, np.ones(len(x))])


def group_model(state: Any, client: str) -> dict[str, Any]:
    return fs.PFedACnnL(groups=3).message(state, client, "update")  # type: ignore[return-value]


@pytest.mark.parametrize("epsilon", [0.05, 3.0])
def test_personal_layers_minimise_their_objective(epsilon: float) -> None:
    """(12), with the encoded labels and all, by least squares on stacked rows."""
    fed = skewed()
    result = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=3, epsilon=epsilon, gamma=0.5, block=7), fed)
    for name, client in fed.clients.items():
        model, group = result.models[name].arrays, layers.layers(group_model(result.state, name))
        y = np.eye(CLASSES)[client.train.labels]
        for number, meta in enumerate(group):
            f = features(model, client.train.inputs, number)
            last = number == 2
            q = np.eye(CLASSES) if last else nets.encoding(int(model["seeds"][0]), number, CLASSES, (9, 8)[number])
            root = np.sqrt(epsilon) * np.eye(f.shape[1])
            m = nets.stacked(meta) @ q
            wanted = np.linalg.lstsq(np.vstack([f, root]), np.vstack([y @ q, root @ m]), rcond=None)[0]
            found = nets.stacked(layers.layers(model)[number]) @ q
            assert relative(found, wanted) < 1e-8
            assert result.clients[name].chosen[f"layer/{number}/epsilon"] == epsilon


def test_a_group_is_a_federation_of_its_own() -> None:
    """The network of a group is FedACnnL over its members."""
    fed = skewed()
    result = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=3, personal=False, gamma=0.5, pull=0.0), fed)
    for number in range(3):
        members = [n for n in fed.clients if int(result.state[f"member/{n}"]) == number]
        assert members
        method = fs.FedACnnL(network="mlp:9,8", gamma=0.5)
        state: Any = {"seeds": result.state["seeds"][:1]}
        for _ in range(method.rounds):
            replies = [
                method.update({}, method.message(state, "", "update"), site(fed.task, fed.clients[n].train, derive(0)))[
                    1
                ]
                for n in members
            ]
            state = method.aggregate(
                state, {n: np.asarray(sum(r[n] for r in replies)) for n in replies[0]}, server(fed.task)
            )
        for name in members:
            for key in ("layer/0/weight", "layer/1/weight", "layer/2/weight"):
                assert relative(result.models[name].arrays[key], state[key]) < 1e-9


@pytest.mark.parametrize("network", ["mlp:9,8", "lr", "conv:3x3x6,leaky,avgpool:2,dense"])
def test_the_first_layer_of_a_group_is_drawn_towards_that_of_all(network: str) -> None:
    """Least |Z - X W|^2 + p |W - M|^2 over the members, with M the layer of everybody; later layers are their own."""
    fed = skewed()
    settings: dict[str, Any] = {"network": network, "groups": 3, "personal": False, "gamma": 0.5}
    drawn, free, tied = (fs.run(fs.PFedACnnL(**settings, pull=pull), fed).state for pull in (0.2, 0.0, 1e9))
    everybody = fs.run(fs.FedACnnL(network=network, gamma=0.5), fed).state
    m = nets.stacked(layers.layers(everybody)[0])
    one = fs.FedACnnL(network=network)
    message = {"seeds": drawn["seeds"]}
    for number in range(3):
        members = [n for n in fed.clients if int(drawn[f"member/{n}"]) == number]
        replies = [one.update({}, message, site(fed.task, fed.clients[n].train, derive(0)))[1] for n in members]
        total = fs.Moments.from_arrays({n: np.asarray(sum(r[n] for r in replies)) for n in replies[0]})
        p = 0.2 * np.trace(total.gram) / len(total.gram)
        wanted = np.linalg.solve(total.gram + p * np.eye(len(m)), total.cross + p * m)
        first, alone, same = (
            nets.stacked({key: state[f"model/{number}/layer/0/{key}"] for key in ("weight", "intercept")})
            for state in (drawn, free, tied)
        )
        assert relative(first, wanted) < 1e-9
        assert relative(alone, np.linalg.solve(total.gram + 0.5 * np.eye(len(m)), total.cross)) < 1e-9
        assert relative(same, m) < 1e-6


@pytest.mark.parametrize("network", ["mlp:9,8", "lr"])
@pytest.mark.parametrize("profile", ["labels", "features"])
def test_groups_are_those_of_k_means_on_the_profiles(network: str, profile: str) -> None:
    fed = skewed()
    result = fs.run(fs.PFedACnnL(network=network, groups=3, profile=profile, epsilon=1.0), fed)
    seed = result.state["seeds"]
    points = []
    for name in sorted(fed.clients):
        train = fed.clients[name].train
        if profile == "features":
            points.append(np.mean([features({}, each[None], 0)[0, :-1] for each in train.inputs], axis=0))
            continue
        shares = np.array([np.mean(train.labels == label) for label in range(CLASSES)])
        points.append(shares if network == "lr" else shares @ nets.encoding(int(seed[0]), 1, CLASSES, 8))  # (8): 8 < 9
    draw = int(derive(0, "aggregate", 1).integers(2**31))
    wanted = KMeans(3, n_init=10, random_state=draw).fit_predict(np.array(points))
    found = [int(result.state[f"member/{name}"]) for name in sorted(fed.clients)]
    assert len(set(found)) == 3
    assert len(set(zip(found, wanted.tolist(), strict=True))) == 3  # the same parts, whatever their numbers
    assert result.rounds == nets.parse(network).depth + 1


def test_the_server_can_read_label_shares_from_the_profile() -> None:
    """What docs say: the encoding hides nothing from whoever issued its seed."""
    fed = skewed()
    method = fs.PFedACnnL(network="mlp:9,8", groups=3)
    state = method.init_server(server(fed.task, derive(0, "server")))
    train = next(iter(fed.clients.values())).train
    profile = method.update({}, method.message(state, "", "update"), site(fed.task, train, derive(0)))[1]["profile"]
    encoding = nets.encoding(int(state["seeds"][0]), 1, CLASSES, 8)
    shares = np.linalg.lstsq(encoding.T, profile, rcond=None)[0]
    np.testing.assert_allclose(shares, np.bincount(train.labels, minlength=CLASSES) / len(train), atol=1e-12)


def test_auto_looks_at_exact_leave_one_out_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense layers: for every epsilon and sample, (13) refitted without the sample."""
    seen: list[tuple[list[float], list[Any]]] = []

    def best(candidates: Any, predictions: Any, labels: Any) -> float:
        seen.append((list(candidates), list(predictions)))
        return float(candidates[8])

    monkeypatch.setattr(choice, "best", best)
    monkeypatch.setattr(own, "EPSILONS", own.EPSILONS[:14])
    fed = skewed()
    method = fs.PFedACnnL(network="mlp:9,8", groups=3)
    state = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=3, personal=False), fed).state
    name = min(fed.clients, key=lambda n: abs(len(fed.clients[n].train) - 15))
    train = fed.clients[name].train
    model = method.personalize({}, method.message(state, name, "personalize"), site(fed.task, train)).model
    assert len(seen) == 3
    y = np.eye(CLASSES)[train.labels]
    for number, (candidates, predictions) in enumerate(seen):
        f, m = (
            features(model, train.inputs, number),
            nets.stacked(layers.layers(method.message(state, name, "update"))[number]),
        )
        for epsilon, found in list(zip(candidates, predictions, strict=True))[::3]:
            for left in range(len(train)):
                rest = np.arange(len(train)) != left
                gram = f[rest].T @ f[rest] + epsilon * np.eye(f.shape[1])
                weights = np.linalg.solve(gram, f[rest].T @ y[rest] + epsilon * m)
                np.testing.assert_allclose(found[left], f[left] @ weights, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("alike", [True, False])
def test_auto_of_convolutions_leaves_whole_images_out(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact where the patches of an image are alike; else between leaving nothing out and the exact refit."""
    rng = np.random.default_rng(0)
    n, places, features_, epsilon = 14, 5, 6, 2.0
    rows = rng.normal(size=(n, 1, features_)) + (0.0 if alike else 0.3) * rng.normal(size=(n, places, features_))
    rows = np.broadcast_to(rows, (n, places, features_)).copy()
    labels, m = rng.integers(3, size=n), rng.normal(size=(features_, 3))
    y = np.eye(3)[labels]
    every, targets = rows.reshape(-1, features_), np.repeat(y, places, axis=0)
    rest = fs.Moments.of(every, targets - every @ m)
    got: list[Any] = []

    def first(candidates: Any, predictions: Any, _: Any) -> Any:
        got.extend(zip(candidates, predictions, strict=True))
        return candidates[0]

    monkeypatch.setattr(choice, "best", first)
    monkeypatch.setattr(own, "EPSILONS", (epsilon / float(rest.diagonal().mean()),))
    own.choose_epsilon(rest, rows.mean(1), places, m, labels, 3.0)
    ((used, found),) = got
    assert used == pytest.approx(epsilon)

    def fit(keep: Any) -> Any:
        f, z = rows[keep].reshape(-1, features_), np.repeat(y[keep], places, axis=0)
        return np.linalg.solve(f.T @ f + epsilon * np.eye(features_), f.T @ z + epsilon * m)

    exact = np.array([rows[i].mean(0) @ fit(np.arange(n) != i) for i in range(n)])
    whole = np.array([rows[i].mean(0) @ fit(np.arange(n) >= 0) for i in range(n)])
    if alike:
        np.testing.assert_allclose(found, exact, atol=1e-10)
    assert np.square(found - exact).sum() < 0.1 * np.square(whole - exact).sum()


@pytest.mark.parametrize(
    ("target", "epsilon", "chosen"),
    [("shared", "auto", (0, 1)), ("place", "auto", (1,)), ("place", 2.0, (0, 1)), ("projection", 2.0, (0, 1))],
)
def test_conv_personal_layers_are_solved_and_saved(
    tmp_path: Any, target: str, epsilon: Any, chosen: tuple[int, ...]
) -> None:
    """What is chosen by leave-one-out are layers that are judged by labels; others stay the group's."""
    fed = skewed()
    method = fs.PFedACnnL(network="conv:3x3x6,leaky,avgpool:2,dense", groups=2, target=target, epsilon=epsilon)
    result = fs.run(method, fed)
    result.save(tmp_path / "out")
    name = next(iter(fed.clients))
    loaded = fs.load_model(tmp_path / "out" / "models" / f"{name}.safetensors")
    x = fed.clients[name].test.inputs
    np.testing.assert_array_equal(loaded.scores(x), result.models[name].scores(x))
    assert {"layer/0/weight", "layer/0/intercept", "layer/1/weight"} <= set(loaded.arrays)
    assert set(result.clients[name].chosen) == {f"layer/{number}/epsilon" for number in chosen}
    group = layers.layers(group_model(result.state, name))[0]["weight"]
    assert np.array_equal(loaded.arrays["layer/0/weight"], group) == (0 not in chosen)


def test_a_coded_personal_layer_is_ridge_towards_the_groups() -> None:
    """PFedACnnL (13) with targets at each place, patch by patch."""
    fed = skewed()
    method = fs.PFedACnnL(network="conv:3x3x6,leaky,avgpool:2,dense", groups=2, epsilon=2.0)
    result = fs.run(method, fed)
    for name, client in fed.clients.items():
        seed = int(result.state["seeds"][0])
        m = nets.stacked(layers.layers(group_model(result.state, name))[0])
        images = nets.prepare(client.train.inputs, "auto")
        rows = [
            [*image[i : i + 3, j : j + 3].ravel(), 1.0]
            for image in images
            for i in range(image.shape[0] - 2)
            for j in range(image.shape[1] - 2)
        ]
        f, places = np.array(rows), len(rows) // len(images)
        codes = nets.codes(seed, 0, CLASSES, places, 6)
        z = np.concatenate([codes[label] for label in client.train.labels])
        wanted = np.linalg.solve(f.T @ f + 2.0 * np.eye(f.shape[1]), f.T @ z + 2.0 * m)
        found = nets.stacked(layers.layers(result.models[name].arrays)[0])
        np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_variants() -> None:
    """Without clustering all share FedACnnL's network; without the personal solve each has its group's."""
    fed = skewed()
    whole = fs.run(fs.FedACnnL(network="mlp:9,8", gamma=1.0), fed)
    together = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=1), fed)
    assert together.rounds == 3
    assert together.shared is not None
    # The same seed of the encodings, since it is the first draw of the server.
    assert relative(together.shared.arrays["layer/2/weight"], whole.state["layer/2/weight"]) < 1e-9
    plain = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=1, personal=False), fed)
    assert plain.accuracy.pooled == whole.accuracy.pooled
    far = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=1, epsilon=1e12), fed)
    for name in fed.clients:
        assert relative(far.models[name].arrays["layer/2/weight"], whole.state["layer/2/weight"]) < 1e-6


def test_more_groups_than_different_profiles() -> None:
    x, _ = images(40)
    clients = {f"c{i}": {"train": (x[i::4], np.full(10, i % 2))} for i in range(4)}
    result = fs.run(fs.PFedACnnL(network="lr", groups=10), fs.Federation.from_arrays(clients, classes=CLASSES))
    assert [int(result.state[f"member/c{i}"]) for i in range(4)] == [0, 1, 0, 1]


def test_a_group_of_which_nobody_answers_joins_the_nearest() -> None:
    """And a client whose profile never came is in the largest group."""
    method = fs.PFedACnnL(network="lr", groups=3)
    profiles = {"a": [1.0, 0], "b": [0.9, 0.1], "c": [0, 1.0], "d": [0.3, 0.7]}
    task = fs.Task(fs.Classes(2), (3,))
    state = method.init_server(server(task, derive(0, "server")))
    assert method.plan(state, list(profiles)).fold == "collect"
    state = method.aggregate(state, {f"{n}/profile": np.array(p) for n, p in profiles.items()}, server(task))
    assert [int(state[f"member/{n}"]) for n in "abcd"] == [0, 0, 1, 2]
    assert method.plan(state, ["a", "d", "z"]).fold == {"a": "0", "d": "2", "z": "0"}
    rng = np.random.default_rng(0)
    replies = {
        f"{group}/{name}": array
        for group in (0, 1)
        for name, array in fs.Moments.of(rng.normal(size=(9, 4)), rng.integers(2, size=9), classes=2).arrays().items()
    }
    after = method.aggregate(state, replies, server(task))
    assert [int(after[f"member/{n}"]) for n in "abcd"] == [0, 0, 1, 1]
    assert not any(name.startswith("model/2/") for name in after)
    np.testing.assert_array_equal(
        method.message(after, "d", "update")["layer/0/weight"], after["model/1/layer/0/weight"]
    )


@pytest.mark.parametrize("network", ["lr", "mlp:9,8", "conv:3x3x6,leaky,avgpool:2,dense"])
def test_the_model_of_a_group_is_what_its_members_get_without_the_personal_solve(network: str, tmp_path: Any) -> None:
    fed = skewed()
    folder = fs.run(fs.PFedACnnL(network=network, groups=3), fed).save(tmp_path / "out")
    plain = fs.run(fs.PFedACnnL(network=network, groups=3, personal=False), fed)
    groups = fs.Result.load(folder).groups
    assert groups == plain.groups
    assert sorted(member for group in groups.values() for member in group.members) == sorted(fed.clients)
    for number, group in groups.items():
        model = fs.load_model(folder / "groups" / f"{number}.safetensors")
        for name in group.members:
            x = fed.clients[name].test.inputs
            np.testing.assert_array_equal(model.scores(x), plain.models[name].scores(x))
            np.testing.assert_array_equal(model.predict_proba(x), plain.models[name].predict_proba(x))


def test_centres_are_the_mean_profiles_of_members() -> None:
    fed = skewed()
    result = fs.run(fs.PFedACnnL(network="lr", groups=3), fed)  # without a hidden layer, profiles are label shares
    for group in result.groups.values():
        labels = [fed.clients[name].train.labels for name in group.members]
        shares = [np.bincount(each, minlength=CLASSES) / len(each) for each in labels]
        np.testing.assert_allclose(group.centre, np.mean(shares, axis=0), atol=1e-12)


def test_groups_are_told_of_those_who_are_asked_about() -> None:
    """Of clients whose profile never came too, and of no group before it has a layer or where all are one."""
    fed = skewed()
    method = fs.PFedACnnL(network="lr", groups=3)
    state = fs.run(method, fed).state
    whole = method.grouping(state, list(fed.clients))
    largest = max(whole, key=lambda number: len(whole[number].members))
    assert method.grouping(state, ["stranger"])[largest].members == ("stranger",)
    assert method.grouping(state, []) == {}
    assert method.grouping({n: a for n, a in state.items() if "/layer/" not in n}, list(fed.clients)) == {}
    together = fs.run(fs.PFedACnnL(network="lr", groups=1), fed)
    assert together.groups == {}
    assert together.group_models == {}
    assert together.shared is not None


def test_members_of_a_group_that_fell_silent_are_told_where_they_went() -> None:
    """Half of the clients in each round: every client is in the group whose network it was given."""
    fed = skewed()
    method = fs.PFedACnnL(network="mlp:9,8", groups=4, personal=False)
    result = fs.run(method, fed, participation=0.4)
    assert 1 < len(result.groups) < len(result.state["centres"])  # nobody answered for one of them
    assert sorted(member for group in result.groups.values() for member in group.members) == sorted(fed.clients)
    for number, group in result.groups.items():
        for name in group.members:
            x = fed.clients[name].test.inputs
            np.testing.assert_array_equal(result.group_models[number].scores(x), result.models[name].scores(x))


def test_activations_of_another_group_are_not_used() -> None:
    fed = skewed()
    method = fs.PFedACnnL(network="mlp:9,8", groups=3)
    state = fs.run(method, fed).state
    name = next(iter(fed.clients))
    train = fed.clients[name].train

    def asked(group: int) -> dict[str, Any]:
        own = {n.removeprefix(f"model/{group}/"): a for n, a in state.items() if n.startswith(f"model/{group}/")}
        layer = {n: a for n, a in own.items() if n in ("layer/0/weight", "layer/0/intercept", "group")}
        return {"seeds": state["seeds"], **layer}

    private, _ = method.update({}, asked(0), site(fed.task, train, derive(0)))
    assert "activations" in private
    moved = method.update(private, asked(1), site(fed.task, train, derive(0)))[1]
    fresh = method.update({}, asked(1), site(fed.task, train, derive(0)))[1]
    np.testing.assert_array_equal(moved["triangle"], fresh["triangle"])


def test_half_the_clients_a_round() -> None:
    result = fs.run(fs.PFedACnnL(network="mlp:9,8", groups=3), skewed(), participation=0.4)
    assert result.accuracy.mean is not None
    assert np.isfinite(result.accuracy.mean)


def test_personal_networks_beat_the_one_for_all_where_clients_differ() -> None:
    fed = fs.load("synthetic:0.5,0.5,20").split("by-client")
    one = fs.run(fs.FedACnnL(network="mlp:32,16"), fed).accuracy.pooled
    own = fs.run(fs.PFedACnnL(network="mlp:32,16", groups=4), fed).accuracy.pooled
    assert own is not None
    assert one is not None
    assert own > one + 0.03
