"""FedGen against its objectives written out, and FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take, under
from fedsolve.checks import sample_federation
from fedsolve.methods.fedgen import FADE, FedGen
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, check_not_switched_off, distance, shared

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import generator, losses, networks  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
FEW: dict[str, Any] = {**SMALL, "steps": 4, "hidden": 16, "noise": 4}


def plain(weights: Any, labels: np.ndarray, noise: np.ndarray, training: bool) -> np.ndarray:
    """The generator in NumPy."""
    values = np.hstack([np.eye(3)[labels], noise]) @ weights["below/weight"].T + weights["below/bias"]
    mean, variance = weights["norm/mean"], weights["norm/variance"]
    if training:
        mean, variance = values.mean(0), values.var(0)
    values = (values - mean) / np.sqrt(variance + 1e-5) * weights["norm/weight"] + weights["norm/bias"]
    return np.asarray(np.maximum(values, 0) @ weights["above/weight"].T + weights["above/bias"])


def made(seed: int = 0, features: int = 8) -> dict[str, np.ndarray]:
    weights = generator.first(4, 16, 3, features, derive(seed))
    rng = np.random.default_rng(seed)
    norm = {f"norm/{name}": rng.uniform(0.5, 1.5, 16).astype(np.float32) for name in ("mean", "variance", "weight")}
    return {**weights, **norm}


@pytest.mark.parametrize("training", [True, False])
def test_the_generator_is_two_dense_layers_with_batch_norm_between(training: bool) -> None:
    rng, weights = np.random.default_rng(1), made()
    labels, noise = rng.integers(3, size=20), rng.random((20, 4))
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    found = generator.generate(tensors, torch.tensor(labels), torch.tensor(noise, dtype=torch.float32), training)
    np.testing.assert_allclose(found, plain(weights, labels, noise, training), rtol=1e-3, atol=1e-4)
    moved = not torch.equal(tensors["norm/mean"], torch.tensor(weights["norm/mean"]))
    assert moved == training


def test_alike_features_of_unlike_noise_cost() -> None:
    noise, far = torch.rand(5, 3), torch.randn(5, 7) * 10
    pairs = [
        float(((noise[i] - noise[j]) ** 2).mean() * (far[i] - far[j]).abs().mean()) for i in range(5) for j in range(5)
    ]
    assert float(losses.alike(noise, far)) == pytest.approx(np.exp(-np.mean(pairs)), rel=1e-5)
    assert float(losses.alike(noise, torch.ones(5, 7))) == 1.0


def softmax(scores: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(scores) / np.exp(scores).sum(1, keepdims=True))


def objective(weights: Any, heads: Any, counts: np.ndarray, rng: np.random.Generator) -> float:
    """What the server minimises, at the batch that comes next."""
    labels = rng.choice(np.flatnonzero(counts.sum(0)), 10)
    noise = rng.random((10, 4), dtype=np.float32)
    features = plain(weights, labels, noise, True)
    total = 0.0
    for head, own in zip(heads, counts, strict=True):
        shares = softmax(features @ head["head.weight"].T + head["head.bias"])
        weight = own[labels] / counts.sum(0)[labels]
        total += float((-np.log(shares[np.arange(10), labels]) * weight).mean())
    apart = np.abs(features[:, None] - features[None]).mean(2) * ((noise[:, None] - noise[None]) ** 2).mean(2)
    return total + float(np.exp(-apart.mean()))


def check_lesson() -> None:
    """One step of the generator goes against the slope of the objective, by differences: Adam's first is its sign."""
    weights, rng = made(), np.random.default_rng(5)
    counts = np.array([[5, 0, 0], [1, 7, 0]])
    heads = [
        {"head.weight": rng.normal(size=(3, 8)).astype(np.float32), "head.bias": rng.normal(size=3).astype(np.float32)}
        for _ in counts
    ]
    lesson = generator.Lesson(steps=1, drawn=10, lr=0.01, decay=0.0)
    learnt, memory = generator.learn(weights, {}, heads, counts, lesson, "mlp:8", TASK, derive(9))
    assert int(memory["count"]) == 1
    for name, place in (("above/weight", (2, 3)), ("above/bias", (4,)), ("norm/weight", (6,)), ("below/bias", (1,))):
        ends = []
        for step in (1e-3, -1e-3):
            moved = {key: array.astype(float) for key, array in weights.items()}
            moved[name][place] += step
            ends.append(objective(moved, heads, counts, derive(9)))
        slope = (ends[0] - ends[1]) / 2e-3
        # A bias below batch norm has no slope; Adam's first moment is a tenth of the gradient.
        assert float(memory[f"first/{name}"][place]) == pytest.approx(slope / 10, abs=2e-5)
        if abs(slope) > 1e-4:
            change = float(learnt[name][place]) - float(weights[name][place])
            assert change == pytest.approx(-0.01 * np.sign(slope), rel=1e-2)


def test_the_server_descends_on_the_objective() -> None:
    check_lesson()


def blind(scores: Any, labels: Any, weights: Any) -> Any:
    """Every client weighs the same in every class."""
    return torch.nn.functional.cross_entropy(scores, labels) / 2


@pytest.mark.parametrize(("name", "defect"), [("weighted_entropy", blind), ("alike", lambda noise, made: 0.0)])
def test_no_label_weights_and_no_diversity_are_caught(name: str, defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a public implementation leaves out of the objective."""
    monkeypatch.setattr(losses, name, defect)
    with pytest.raises(AssertionError):
        check_lesson()


def test_a_client_adds_both_terms() -> None:
    """The loss of one full batch, written out, with the same draws."""
    train = FEDERATION.clients["site-0"].train
    method = FedGen(**{**FEW, "batch": 100, "epochs": 1, "model": "lr"}, drawn=7, alpha=3.0, beta=2.0)
    model = take("model", method.init_server(server(TASK)))
    weights = made(features=6)
    message = {**under("model", model), **under("generator", weights), "labels": np.array([0, 2])}
    _, reply = method.update({}, message, site(TASK, train, derive(1), number=4))
    rng = derive(1)
    aside = rng.spawn(1)[0]
    rng.integers(2**63)
    order = rng.permutation(len(train))
    x, y = train.inputs[order], train.labels[order]
    wanted = aside.choice([0, 2], 7)

    def head(features: np.ndarray) -> np.ndarray:
        return softmax(features @ model["head.weight"].T.astype(float) + model["head.bias"])

    first = head(plain(weights, wanted, aside.random((7, 4), dtype=np.float32), False))
    fixed = head(plain(weights, y, aside.random((len(y), 4), dtype=np.float32), False))
    scores = head(x)
    entropy = -np.log(scores[np.arange(len(y)), y]).mean()
    learnt = -np.log(first[np.arange(7), wanted]).mean()
    kept = (fixed * np.log(fixed / scores)).sum(1).mean()
    loss = entropy + FADE**3 * (3.0 * learnt + 2.0 * kept)
    assert float(reply["loss"]) / len(y) == pytest.approx(float(loss), rel=1e-4)


def test_generated_features_draw_from_a_generator_of_their_own() -> None:
    """With terms that weigh next to nothing it is FedAvg up to rounding: the order of samples is the same."""
    assert distance(shared(FedGen(**FEW, alpha=1e-9, beta=1e-9)), shared(fs.FedAvg(**SMALL))) < 1e-5
    check_not_switched_off(FedGen, lr=0.01)


def test_the_first_round_is_fedavg_and_nothing_is_generated_yet() -> None:
    one = {**FEW, "rounds": 1}
    method = FedGen(**one)
    state = method.init_server(server(TASK))
    assert not any(name.startswith("generator") for name in method.message(state, "", "update"))
    assert distance(shared(method), shared(fs.FedAvg(**{**SMALL, "rounds": 1}))) == 0


def test_adams_memory_and_running_statistics_are_in_the_state() -> None:
    state = fs.run(FedGen(**FEW), FEDERATION, workers=1, evaluate_every=100).state
    assert int(state["memory/count"]) == 4 * 3
    assert state["generator/norm/mean"].any()
    assert {name for name in state if name.startswith("memory/first/norm")} == {
        "memory/first/norm/weight",
        "memory/first/norm/bias",
    }
    assert networks.feature_size("mlp:8", TASK) == len(state["generator/above/bias"])


def test_generated_features_of_a_class_are_taken_for_it() -> None:
    """After enough lessons the global head knows what was made for it."""
    method = FedGen(**{**SMALL, "lr": 0.02, "rounds": 6}, steps=60, generator_lr=0.01, alpha=1.0, beta=1.0)
    state = fs.run(method, FEDERATION, workers=1, evaluate_every=100).state
    rng, labels = np.random.default_rng(0), np.arange(3).repeat(20)
    features = plain(take("generator", state), labels, rng.random((60, 32)), False)
    scores = features @ state["model/head.weight"].T + state["model/head.bias"]
    assert (scores.argmax(1) == labels).mean() > 0.9
