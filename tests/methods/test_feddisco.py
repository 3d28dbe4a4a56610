"""FedDisco's weights against their definition, and its model against FedAvg's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import take, under
from fedsolve.checks import sample_federation
from fedsolve.methods.feddisco import FedDisco, discrepancies
from fedsolve.rng import derive
from tests.contexts import server
from tests.methods.beside_fedavg import SMALL, check_not_switched_off, distance, shared

pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")

COUNTS = np.array([[10, 0, 0], [4, 3, 3], [2, 2, 2], [0, 1, 29]])


def slow_weights(counts: np.ndarray, a: float, b: float, measure: str) -> np.ndarray:
    """(8), client by client."""
    n, found = counts.sum(), []
    for own in counts:
        p, q = own / own.sum(), np.full(len(own), 1 / len(own))
        if measure == "kl":
            found.append(sum(s * math.log(s / t) for s, t in zip(p, q, strict=True) if s > 0))
        elif measure == "cosine":
            found.append(1 - p @ q / math.sqrt(p @ p) / math.sqrt(q @ q))
        else:
            found.append(sum(abs(p - q)) if measure == "l1" else math.sqrt(sum((p - q) ** 2)))
    d = np.array(found) / (sum(found) if measure == "kl" else 1.0)
    weights = np.array([max(0.0, own.sum() / n - a * far + b) for own, far in zip(counts, d, strict=True)])
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("measure", ["kl", "l1", "l2", "cosine"])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.1, 0.0), (0.0, 0.3)])
def test_weights_are_those_of_the_paper(measure: str, a: float, b: float) -> None:
    found = FedDisco(a=a, b=b, measure=measure).weights(COUNTS)
    np.testing.assert_allclose(found / found.sum(), slow_weights(COUNTS, a, b, measure), rtol=1e-10, atol=1e-14)


def test_weights_in_their_limits() -> None:
    np.testing.assert_array_equal(FedDisco(a=0.0, b=0.0).weights(COUNTS), [10, 10, 6, 30])
    many = FedDisco(b=1e9).weights(COUNTS)
    np.testing.assert_allclose(many / many.sum(), 0.25, rtol=1e-6)
    alike = FedDisco().weights(np.tile([3, 5, 1], (4, 1)))
    np.testing.assert_allclose(alike / alike.sum(), 0.25)
    even = np.full((3, 4), 0.25)
    assert not discrepancies(even, "kl").any()  # and no division by their sum


def unbound(counts: np.ndarray, a: float, b: float) -> Any:
    """The authors' function has a result only where some weight is positive."""
    far = discrepancies(counts / counts.sum(1, keepdims=True), "kl")
    weights = np.maximum(0.0, counts.sum(1) / counts.sum() - a * far + b)
    if weights.sum() > 0:
        normalised = weights / weights.sum()
    return normalised


def check_nobody_positive(weights: Any) -> None:
    counts = np.array([[10, 0, 0], [0, 10, 0]])
    found = weights(counts, 5.0, 0.0)
    np.testing.assert_allclose(np.asarray(found, float) / np.sum(found), [0.5, 0.5])


def test_where_nobody_has_a_positive_weight_samples_decide() -> None:
    check_nobody_positive(lambda counts, a, b: FedDisco(a=a, b=b).weights(counts))
    with pytest.raises(UnboundLocalError):
        check_nobody_positive(unbound)


def test_the_model_is_the_weighted_mean() -> None:
    task = sample_federation().task
    method, rng = FedDisco(**SMALL), np.random.default_rng(0)
    state = method.init_server(server(task, derive(0, "server")))
    models = [{name: rng.normal(size=array.shape).astype(np.float32) for name, array in state.items()} for _ in COUNTS]
    replies: dict[str, np.ndarray] = {}
    for number, (model, own) in enumerate(zip(models, COUNTS, strict=True)):
        replies |= under(f"c{number}", {**model, "labels": own, "loss": np.array(float(number))})
    following = method.aggregate(state, replies, server(task))
    weights = slow_weights(COUNTS, 0.5, 0.1, "kl")
    for name in state:
        wanted = sum(weight * model[name] for weight, model in zip(weights, models, strict=True))
        np.testing.assert_allclose(following[name], wanted, rtol=1e-4, atol=1e-5)
    assert float(following["loss"]) == pytest.approx((0 * 10 + 1 * 10 + 2 * 6 + 3 * 30) / 56)
    assert take("model", method.message(following, "", "update")).keys() == take("model", state).keys()


def test_no_default_switches_it_off() -> None:
    check_not_switched_off(FedDisco)
    assert distance(shared(FedDisco(**SMALL, a=0.0, b=0.0)), shared(fs.FedAvg(**SMALL))) == 0
