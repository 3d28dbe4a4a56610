"""FedAMP against its definition, training alone, and the plain mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import Arrays, take, under
from fedsolve.checks import sample_federation
from fedsolve.families.gradient.table import names_of, squared_distances
from fedsolve.method import Purpose
from fedsolve.methods.fedamp import FedAMP
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, distance
from tests.methods.test_gradient import OWN

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import hooks  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
WEAK: dict[str, Any] = {"alpha": 0.1, "sigma": 0.7}  # nothing is scaled down


def distances(rows: np.ndarray) -> np.ndarray:
    """Pair by pair."""
    wide = rows.astype(float)
    return np.array([[((one - two) ** 2).sum() for two in wide] for one in wide])


def collected(models: dict[str, Arrays], count: int = 5) -> dict[str, np.ndarray]:
    """Replies of clients with these models."""
    replies: dict[str, np.ndarray] = {}
    for client, model in models.items():
        reply = {**under("model", model), "loss": np.array(1.0), "count": np.array(count)}
        replies |= under(client, reply)
    return replies


def some_models(state: Arrays, names: str, seed: int = 0) -> dict[str, Arrays]:
    rng, start = np.random.default_rng(seed), take("start/model", state)
    return {c: {n: rng.normal(size=a.shape).astype(np.float32) for n, a in start.items()} for c in names}


def test_distances_of_rows_with_much_in_common_keep_their_digits() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 40_000)).astype(np.float32)
    np.testing.assert_allclose(squared_distances(rows), distances(rows), rtol=1e-10)
    alike = (100.0 + 1e-3 * rows).astype(np.float32)
    np.testing.assert_allclose(squared_distances(alike), distances(alike), rtol=1e-8)


def test_what_is_sent_is_the_mean_of_the_paper() -> None:
    """By the derivative of A, taken by differences, and sums written out."""
    method = FedAMP(**SMALL, **WEAK)
    first = method.init_server(server(TASK))
    models = some_models(first, "abcd")
    state = method.aggregate(first, collected(models), server(TASK))
    rows = {c: np.concatenate([model[n].ravel() for n in sorted(model)]).astype(float) for c, model in models.items()}
    pairs = [np.sum((rows[i] - rows[j]) ** 2) for i in rows for j in rows if i != j]
    unit = np.mean(pairs)

    def attention(x: float) -> float:
        return float(1.0 - np.exp(-x / WEAK["sigma"]))

    for i in rows:
        xi = {}
        for j in rows:
            x = float(np.sum((rows[i] - rows[j]) ** 2) / unit)
            xi[j] = WEAK["alpha"] * (attention(x + 1e-5) - attention(x - 1e-5)) / 2e-5
        wanted = rows[i] + sum(xi[j] * (rows[j] - rows[i]) for j in rows if j != i)
        sent = take("model", method.message(state, i, "update"))
        found = np.concatenate([sent[n].ravel() for n in sorted(sent)])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, WEAK, {"alpha": 9.0}, {"alpha": 1.0, "sigma": 0.01}, {"alpha": 0.0, "lam": 0.0}]
)
def test_weights_are_shares_and_the_own_one_is_at_least_even(settings: Any) -> None:
    apart = distances(np.random.default_rng(1).normal(size=(6, 9)))
    for given in (apart, np.zeros((6, 6)), np.zeros((1, 1))):
        weights = FedAMP(**settings).weights(given)
        np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-12)
        assert weights.min() >= 0
        assert np.diag(weights).min() >= 1 / len(given) - 1e-12


def test_far_reaching_attention_is_the_plain_mean() -> None:
    weights = FedAMP(sigma=1e6, alpha=1e6 / 6).weights(distances(np.random.default_rng(1).normal(size=(6, 9))))
    np.testing.assert_allclose(weights, 1 / 6, rtol=1e-4)


def test_near_models_weigh_more_and_the_unit_does_not_matter() -> None:
    rows = np.array([[0.0, 0.0], [0.1, 0.0], [3.0, 1.0], [3.0, 1.2]])
    method = FedAMP(alpha=1.0)
    weights = method.weights(distances(rows))
    assert weights[0, 1] > weights[0, 2]
    assert weights[2, 3] > weights[2, 1]
    np.testing.assert_allclose(method.weights(distances(1000 * rows)), weights, rtol=1e-9)


def test_other_names_of_clients_are_another_order_of_rows() -> None:
    method = FedAMP(**SMALL)
    first = method.init_server(server(TASK))
    models = some_models(first, "abcd")
    renamed = dict(zip("dbca", models.values(), strict=True))
    one, two = (method.aggregate(first, collected(m), server(TASK)) for m in (models, renamed))
    assert names_of(one["clients"]) == names_of(two["clients"]) == tuple("abcd")
    for old, new in zip("abcd", "dbca", strict=True):
        left, right = (method.message(s, c, "update") for s, c in ((one, old), (two, new)))
        assert distance(dict(left), dict(right)) < 1e-6


def test_who_does_not_answer_keeps_a_model_and_newcomers_start_at_the_first() -> None:
    method = FedAMP(**SMALL)
    first = method.init_server(server(TASK))
    models = some_models(first, "abc")
    state = method.aggregate(first, collected(models), server(TASK))
    later = some_models(first, "bd", seed=1)
    state = method.aggregate(state, collected(later), server(TASK))
    together = method.aggregate(first, collected({**models, **later}), server(TASK))
    assert state["means"].tobytes() == together["means"].tobytes()
    assert distance(take("model", method.message(state, "new", "update")), take("start/model", first)) == 0


def test_running_statistics_are_mixed_and_count_in_no_distance() -> None:
    method = FedAMP(**{**SMALL, "model": OWN})
    first = method.init_server(server(TASK))
    buffers = take("start/buffer", first)
    assert buffers
    base = some_models(first, "ab")

    def after(shift: float) -> Arrays:
        moved = {name: array + shift for name, array in buffers.items()}
        return method.aggregate(first, collected({c: {**m, **moved} for c, m in base.items()}), server(TASK))

    one, two = after(0.0), after(7.0)
    np.testing.assert_array_equal(one["weights"], two["weights"])
    for name, array in buffers.items():
        np.testing.assert_allclose(method.message(two, "a", "update")[f"model/{name}"], array + 7.0, rtol=1e-6)


# --- what a client does ---


def check_step() -> None:
    """Two full-batch steps on F(v) + lam/(2 alpha) |v - u|^2 from u, with autograd for all of it."""
    method = FedAMP(model="lr", epochs=2, batch=1000, lr=0.1, sgd_momentum=0.0, alpha=2.0, lam=3.0)
    train = FEDERATION.clients["site-0"].train
    sent = take("start/model", method.init_server(server(TASK)))
    private, reply = method.update({}, under("model", sent), site(TASK, train))
    x, y = torch.tensor(train.inputs, dtype=torch.float32), torch.tensor(train.labels)
    u = {name: torch.tensor(array) for name, array in sent.items()}
    v = {name: tensor.clone().requires_grad_() for name, tensor in u.items()}
    for _ in range(2):
        scores = x @ v["head.weight"].t() + v["head.bias"]
        loss = -torch.log_softmax(scores, 1)[torch.arange(len(y)), y].mean()
        loss = loss + 3.0 / (2 * 2.0) * sum(((v[name] - u[name]) ** 2).sum() for name in v)
        slopes = torch.autograd.grad(loss, list(v.values()))
        with torch.no_grad():
            for tensor, slope in zip(v.values(), slopes, strict=True):
                tensor -= 0.1 * slope
    for name, tensor in v.items():
        np.testing.assert_allclose(reply[f"model/{name}"], tensor.detach(), rtol=1e-3, atol=1e-6)
        assert private[name].tobytes() == reply[f"model/{name}"].tobytes()


def test_a_client_descends_on_the_loss_of_the_paper() -> None:
    check_step()


def test_a_term_without_gradient_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public implementation adds the distance of two copies that nobody descends on."""
    monkeypatch.setattr(hooks, "towards", lambda *_: None)
    with pytest.raises(AssertionError):
        check_step()


# --- the defect that is training alone ---


def check_not_alone(method: fs.Method) -> None:
    """What is evaluated must differ from training alone from the same start, with the same draws."""
    result = fs.run(method, FEDERATION, workers=1, evaluate_every=100)
    first = method.init_server(server(TASK, derive(0, "server")))
    for name, client in FEDERATION.clients.items():
        model = method.personalize({}, method.message(first, name, "personalize"), site(TASK, client.train)).model
        for number in range(1, method.rounds + 1):
            here = site(TASK, client.train, derive(0, "update", name, number), number=number)
            model = take("model", FedAMP(**SMALL, alpha=0.0, lam=0.0).update({}, under("model", model), here)[1])
        assert distance(dict(result.models[name].arrays), dict(model)) > 1e-3


@dataclass(frozen=True)
class NeverLoaded(FedAMP):
    """The mean is computed, and no client goes on from it."""

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        return super().message({**state, "means": state["models"]} if "models" in state else state, client, purpose)


def test_a_mean_that_nobody_loads_is_training_alone_and_is_caught() -> None:
    check_not_alone(FedAMP(**SMALL, alpha=0.01))
    check_not_alone(FedAMP(**SMALL, alpha=0.01, lam=0.0))
    with pytest.raises(AssertionError):
        check_not_alone(NeverLoaded(**SMALL, alpha=0.01, lam=0.0))


def test_a_pull_without_a_step_towards_others_is_refused() -> None:
    with pytest.raises(fs.ParameterError, match=r"'alpha' of FedAMP must be above 0 where lam=0.5"):
        FedAMP(alpha=0.0, lam=0.5)
