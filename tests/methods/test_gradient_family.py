"""What gradient methods share: networks taken apart, the loop with any loss, optimisers, descent, tables of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.checks import sample_federation
from fedsolve.families.gradient.settings import Training
from fedsolve.families.gradient.table import Table, answered, flat, names_of, shaped, written
from fedsolve.rng import derive

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from torch import nn  # noqa: E402

from fedsolve.families.gradient import descent, hooks, networks, optimisers, training  # noqa: E402
from tests.contexts import site  # noqa: E402
from tests.methods.test_gradient import OWN, images  # noqa: E402

TASK = fs.Task(fs.Classes(3), (6,))
CLIENT = sample_federation().clients["site-0"].train


class Ending(nn.Module):  # type: ignore[misc]
    """Does something behind its head."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(width, 5), nn.Linear(5, classes)

    def forward(self, inputs: Any) -> Any:
        return torch.tanh(self.head(torch.relu(self.first(inputs))))


class Headless(nn.Module):  # type: ignore[misc]
    """Uses the weights of its head without calling it."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: Any) -> Any:
        return inputs @ self.head.weight.t()


def ending(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Ending(shape[0], classes)


def headless(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Headless(shape[0], classes)


ENDING, HEADLESS = f"{__name__}:ending", f"{__name__}:headless"


# --- networks taken apart ---


@pytest.mark.parametrize("model", ["lr", "mlp:8,5", OWN])
def test_scores_are_what_the_head_makes_of_the_features(model: str) -> None:
    weights = networks.initial(model, TASK, derive(0))
    seen = networks.features(model, weights, CLIENT.inputs, TASK)
    assert seen.shape == (len(CLIENT), networks.feature_size(model, TASK))
    head = {name: weights[name] for name in networks.head(model, TASK)}
    assert head.keys() | networks.body(model, TASK) == weights.keys()
    made = networks.as_function(model, head, TASK)(torch.tensor(seen))
    np.testing.assert_array_equal(made.numpy(), networks.scores(model, weights, CLIENT.inputs, TASK))


def test_features_of_an_own_network_are_what_its_head_sees() -> None:
    weights = networks.initial(ENDING, TASK, derive(0))
    seen = networks.features(ENDING, weights, CLIENT.inputs, TASK)
    hidden = np.maximum(CLIENT.inputs @ weights["first.weight"].T + weights["first.bias"], 0.0)
    np.testing.assert_allclose(seen, hidden, rtol=1e-5, atol=1e-6)


def test_a_network_that_never_calls_its_head_is_refused_where_features_are_needed() -> None:
    with pytest.raises(fs.ParameterError, match="never calls 'head'"):
        networks.feature_size(HEADLESS, TASK)
    fs.run(fs.FedAvg(model=HEADLESS, rounds=1), sample_federation())  # and where they are not, it trains


def test_class_means_and_the_nearest_of_them() -> None:
    weights = networks.initial("mlp:8", TASK, derive(0))
    few = fs.Samples(CLIENT.inputs[CLIENT.labels != 1], CLIENT.labels[CLIENT.labels != 1])
    means, counts = networks.class_means("mlp:8", weights, few, TASK)
    seen = networks.features("mlp:8", weights, few.inputs, TASK)
    np.testing.assert_array_equal(counts, [np.sum(few.labels == c) for c in range(3)])
    for c in (0, 2):
        np.testing.assert_allclose(means[c], seen[few.labels == c].mean(0), rtol=1e-5, atol=1e-6)
    assert not means[1].any()
    scores = networks.nearest(seen, means, counts)
    wanted = [min((0, 2), key=lambda c: float(np.linalg.norm(row - means[c]))) for row in seen]
    np.testing.assert_array_equal(scores.argmax(1), wanted)
    assert np.isfinite(scores).all()
    shifted = networks.nearest(seen + 100.0, means + 100.0, counts)
    np.testing.assert_allclose(shifted[:, [0, 2]], scores[:, [0, 2]], rtol=1e-3, atol=1e-3)


# --- the loop ---


@pytest.mark.parametrize("model", ["lr", "mlp:8", "lenet5", OWN, ENDING])
def test_cross_entropy_of_a_batch_trains_bit_for_bit_as_without_a_loss(model: str) -> None:
    x, y = images(40) if model == "lenet5" else (CLIENT.inputs, CLIENT.labels)
    task = fs.Task(fs.Classes(3), x.shape[1:])
    start, settings = networks.initial(model, task, derive(0)), Training(model=model, batch=16)
    (one, _), (two, _) = (
        training.train(settings, start, site(task, fs.Samples(x, y), derive(1)), loss=loss)
        for loss in (None, lambda batch: batch.misfit)
    )
    assert all(one[name].tobytes() == two[name].tobytes() for name in start)
    assert any(one[name].tobytes() != start[name].tobytes() for name in networks.head(model, task))


def test_rows_beside_the_samples_stay_with_them() -> None:
    seen: list[int] = []

    def loss(batch: training.Batch) -> Any:
        np.testing.assert_array_equal(batch.beside["inputs"], batch.inputs.double())
        np.testing.assert_array_equal(batch.beside["labels"], batch.labels)
        seen.extend(batch.beside["number"].tolist())
        return batch.misfit

    inputs = CLIENT.inputs.astype(np.float32)
    beside = {"inputs": inputs.astype(np.float64), "labels": CLIENT.labels, "number": np.arange(len(CLIENT))}
    start, here = networks.initial("lr", TASK, derive(0)), fs.Samples(inputs, CLIENT.labels)
    training.train(Training(model="lr", epochs=1, batch=7), start, site(TASK, here), loss=loss, beside=beside)
    assert sorted(seen) == list(range(len(CLIENT)))
    assert seen != sorted(seen)


def test_extra_arrays_are_trained_with_the_network_and_returned_beside_it() -> None:
    start, settings = networks.initial("mlp:8", TASK, derive(0)), Training(model="mlp:8", batch=16)
    extra = {"aim": np.array([1.0, -2.0], np.float32)}
    given = extra["aim"].copy()

    def loss(batch: training.Batch) -> Any:
        return batch.misfit + batch.extra["aim"].square().sum()

    found, _ = training.train(settings, start, site(TASK, CLIENT, derive(1)), loss=loss, extra=extra)
    plain, _ = training.train(settings, start, site(TASK, CLIENT, derive(1)), loss=lambda batch: batch.misfit)
    aim, speed = given.astype(float), np.zeros(2)
    for _ in range(settings.epochs * -(-len(CLIENT) // 16)):
        speed = settings.sgd_momentum * speed + 2 * aim
        aim = aim - settings.lr * speed
    np.testing.assert_allclose(found.pop("extra/aim"), aim, rtol=1e-4)
    assert all(found[name].tobytes() == plain[name].tobytes() for name in start)
    np.testing.assert_array_equal(extra["aim"], given)  # what was given is not written to


def test_a_loss_need_not_look_at_every_parameter() -> None:
    start = networks.initial("mlp:8", TASK, derive(0))
    settings = Training(model="mlp:8", epochs=1)
    found, _ = training.train(settings, start, site(TASK, CLIENT), loss=lambda batch: batch.features.square().mean())
    for name in start:
        assert (found[name].tobytes() == start[name].tobytes()) == (name in networks.head("mlp:8", TASK))


def test_a_batch_is_used_as_often_as_asked_for() -> None:
    start, calls = networks.initial("lr", TASK, derive(0)), list[int]()
    settings = Training(model="lr", epochs=3, batch=len(CLIENT), sgd_momentum=0.5)
    often, _ = training.train(
        settings, start, site(TASK, CLIENT), epochs=1, repeat=3, after=lambda parameters: calls.append(len(parameters))
    )
    passes, _ = training.train(settings, start, site(TASK, CLIENT))
    assert calls == [2]
    np.testing.assert_allclose(often["head.weight"], passes["head.weight"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", [2.0, float("inf")])
def test_clipped_gradients_keep_their_direction_and_are_no_longer_than_allowed(norm: float) -> None:
    given = [torch.randn(4, 3), torch.randn(5)]
    row = torch.cat([part.reshape(-1) for part in given])
    for most in (0.01, 1e6):
        changed = [part.clone() for part in given]
        hook = hooks.clipped(most, norm)
        assert hook is not None
        hook([], changed)
        wanted = row * min(1.0, most / float(torch.linalg.vector_norm(row, norm)))
        torch.testing.assert_close(torch.cat([part.reshape(-1) for part in changed]), wanted)
    assert hooks.chain(None, hooks.clipped(0.0)) is None


def test_a_pull_follows_an_anchor_that_moves() -> None:
    anchor, here = [torch.zeros(3)], [torch.ones(3)]
    hook = hooks.pulled(anchor, 2.0)
    for place in (0.0, 4.0):
        anchor[0].fill_(place)
        gradients = [torch.zeros(3)]
        hook(here, gradients)
        torch.testing.assert_close(gradients[0], torch.full((3,), 2.0 * (1.0 - place)))


def test_an_anchor_that_is_no_model_of_the_network_is_refused() -> None:
    start = networks.initial("mlp:8", TASK, derive(0))
    wrong = {**start, "head.bias": np.zeros(1, np.float32)}
    missing = {name: array for name, array in start.items() if name != "head.bias"}
    for anchor, got in ((wrong, r"\(1,\)"), (missing, "None")):
        with pytest.raises(fs.DataError, match=rf"'head.bias' must have shape \(3,\); got {got}"):
            hooks.towards(anchor, 1.0, "mlp:8", TASK)
    back = networks.unlaid(networks.laid_out(start, "mlp:8", TASK), "mlp:8", TASK)
    assert all(back[name].tobytes() == start[name].tobytes() for name in start)


# --- optimisers, and descent on the server ---


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_that_of_torch(decay: float) -> None:
    start = [torch.randn(4, 3), torch.randn(2)]
    ours, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(2))
    step = optimisers.adam(0.05, (0.8, 0.99), decay)(ours)
    other = torch.optim.Adam(theirs, lr=0.05, betas=(0.8, 0.99), weight_decay=decay)
    for _ in range(7):
        gradients = [torch.randn_like(tensor) for tensor in start]
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = gradient.clone()
        kept = [gradient.clone() for gradient in gradients]
        with torch.no_grad():
            step(gradients)
        other.step()
        assert all(torch.equal(one, two) for one, two in zip(gradients, kept, strict=True))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)


def test_descent_that_hands_its_memory_on_is_one_descent() -> None:
    start = {"a": np.array([3.0, -2.0], np.float32), "b": np.array([1.0], np.float32), "seen": np.zeros(1, np.float32)}

    def objective(tensors: dict[str, Any]) -> Any:
        tensors["seen"] += 1
        return (tensors["a"] ** 2).sum() + tensors["b"].cosh().sum()

    settings: Any = {"lr": 0.1, "decay": 0.01, "buffers": frozenset({"seen"})}
    whole, memory = descent.descend(start, objective, 9, memory={}, **settings)
    half, between = descent.descend(start, objective, 4, memory={}, **settings)
    rest, last = descent.descend(half, objective, 5, memory=between, **settings)
    assert float(whole["seen"][0]) == 9
    assert start["seen"][0] == 0  # what was given is not written to
    for one, two in ((whole, rest), (memory, last)):
        assert one.keys() == two.keys()
        for name in one:
            assert one[name].tobytes() == two[name].tobytes()
    forgetful, _ = descent.descend(half, objective, 5, memory={}, **settings)
    assert forgetful["a"].tobytes() != whole["a"].tobytes()
    assert abs(whole["a"]).sum() < abs(start["a"]).sum()


def test_a_server_that_diverges_says_so() -> None:
    start = {"a": np.array([1.0], np.float32)}
    with pytest.raises(fs.DataError, match="learning rate, which is 1e"):
        descent.descend(start, lambda tensors: -tensors["a"].exp().sum(), 3, lr=1e30, memory={})


def test_steps_in_turn_are_torchs_and_what_is_not_looked_at_rests() -> None:
    start = {"a": np.array([3.0, -2.0], np.float32), "b": np.array([1.0], np.float32), "c": np.ones(1, np.float32)}
    objectives: Any = [lambda t: (t["a"] ** 4).sum() + t["b"].sum(), lambda t: (t["a"] * t["b"]).sum()] * 2
    settings: Any = {"lr": 0.01, "momentum": 0.9, "decay": 0.1, "clip": 5.0}
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    other = torch.optim.SGD(list(theirs.values()), lr=0.01, momentum=0.9, weight_decay=0.1)
    for objective in objectives:
        other.zero_grad()
        objective(theirs).backward()
        torch.nn.utils.clip_grad_norm_([t for t in theirs.values() if t.grad is not None], 5.0)
        other.step()
    whole, memory = descent.in_turn(start, objectives, memory={}, **settings)
    half, between = descent.in_turn(start, objectives[:2], memory={}, **settings)
    rest, last = descent.in_turn(half, objectives[2:], memory=between, **settings)
    for name, tensor in theirs.items():
        np.testing.assert_allclose(whole[name], tensor.detach(), rtol=1e-5)
        assert whole[name].tobytes() == rest[name].tobytes()
        assert memory[name].tobytes() == last[name].tobytes()
    assert whole["c"].tobytes() == start["c"].tobytes()
    assert memory["a"].any()
    with pytest.raises(fs.DataError, match="learning rate, which is 1e"):
        descent.in_turn(start, objectives * 3, memory={}, lr=1e30, momentum=0.0)


def test_steps_that_must_fall_do_not_swing_beyond_the_least() -> None:
    """Squares whose curvature is beyond the rate: velocities grow without end, unless the rate is halved."""
    start, curvature = {"a": np.array([1.0, -3.0], np.float32)}, torch.tensor([420.0, 100.0])
    square: Any = [lambda t: (curvature * t["a"].square()).sum() / 2] * 150
    settings: Any = {"lr": 0.01, "momentum": 0.9, "memory": {}}
    with pytest.raises(fs.DataError, match="diverged"):
        descent.in_turn(start, square, **settings)
    held = descent.in_turn(start, square, falling=True, **settings)[0]["a"]
    assert np.abs(held).max() < 1e-2
    gentle, same_gentle = (
        descent.in_turn(start, [lambda t: t["a"].square().sum()], falling=falling, **settings)[0]["a"]
        for falling in (False, True)
    )
    assert gentle.tobytes() == same_gentle.tobytes()


def test_dense_layers_start_as_torch_starts_them() -> None:
    made = descent.dense(400, 300, derive(0))
    layer = nn.Linear(400, 300)
    for name, array in made.items():
        theirs = layer.state_dict()[name].numpy()
        assert array.shape == theirs.shape
        assert array.dtype == theirs.dtype
        assert abs(array).max() <= abs(theirs).max() * 1.05
        assert array.std() == pytest.approx(theirs.std(), rel=0.15)


# --- tables ---


def test_tables_keep_rows_by_name_and_write_to_nothing() -> None:
    first = Table().having({"b": np.array([1.0, 2.0], np.float32), "d": np.array([3.0, 4.0], np.float32)})
    kept = first.rows.copy()
    second = first.having({"a": np.array([5.0, 6.0], np.float32), "d": np.array([7.0, 8.0], np.float32)})
    assert second.names == ("a", "b", "d")
    np.testing.assert_array_equal(second.rows, [[5, 6], [1, 2], [7, 8]])
    np.testing.assert_array_equal(first.rows, kept)
    wider = second.widened(["c", "b"], np.array([9.0, 9.0], np.float32))
    np.testing.assert_array_equal(wider.rows, [[5, 6], [1, 2], [9, 9], [7, 8]])
    np.testing.assert_array_equal(wider.places(["d", "a"]), [3, 0])
    assert second.having({}) is second


def test_rows_and_names_come_back_as_they_went() -> None:
    arrays = {"x/w": np.arange(6.0).reshape(2, 3), "x/b": np.array(7.0), "y/w": np.zeros(1)}
    row = flat(arrays, ["w", "b"], "x")
    np.testing.assert_array_equal(row, [0, 1, 2, 3, 4, 5, 7])
    back = shaped(row, {"w": arrays["x/w"], "b": arrays["x/b"]}, ["w", "b"])
    np.testing.assert_array_equal(back["w"], arrays["x/w"])
    assert back["b"].shape == ()
    assert answered(arrays) == ["x", "y"]
    for names in ((), ("one",), ("one", "zwei, ü", "3")):
        assert names_of(written(names)) == names
