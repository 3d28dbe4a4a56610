"""FedAS against its definition, written out, and against a body that is averaged plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays as named
from fedsolve.arrays import take
from fedsolve.checks import sample_federation
from fedsolve.checks.contract import writes_to_nothing
from fedsolve.checks.probes import CheckError
from fedsolve.methods.fedas import LEAST, FedAS
from fedsolve.rng import derive
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import losses, networks, training  # noqa: E402

FEDERATION = sample_federation()
TASK, TRAIN = FEDERATION.task, FEDERATION.clients["site-0"].train
FEW = fs.Samples(TRAIN.inputs[:14], TRAIN.labels[:14])  # one batch of the alignment
BODY, HEAD = ("body.1.bias", "body.1.weight"), ("head.bias", "head.weight")
FULL: dict[str, Any] = {"model": "mlp:8", "epochs": 3, "batch": 100, "lr": 0.1, "sgd_momentum": 0.0, "align_lr": 0.3}


def tensors(model: Any) -> dict[str, Any]:
    return {name: torch.tensor(array, dtype=torch.float32) for name, array in model.items()}


def hidden(weights: Any, train: fs.Samples) -> Any:
    x = torch.tensor(train.inputs, dtype=torch.float32)
    return torch.relu(x @ weights["body.1.weight"].t() + weights["body.1.bias"])


def entropy(weights: Any, train: fs.Samples) -> Any:
    scores = hidden(weights, train) @ weights["head.weight"].t() + weights["head.bias"]
    return -torch.log_softmax(scores, 1)[torch.arange(len(train)), torch.tensor(train.labels)].mean()


def slopes(weights: Any, loss: Any, names: Any) -> tuple[dict[str, Any], Any]:
    here = {name: tensor.detach().requires_grad_(name in names) for name, tensor in weights.items()}
    found = torch.autograd.grad(loss(here), [here[name] for name in names])
    return here, dict(zip(names, found, strict=True))


def stepped(weights: Any, loss: Any, names: Any, lr: float) -> dict[str, Any]:
    here, found = slopes(weights, loss, names)
    return {name: (t - lr * found[name] if name in found else t).detach() for name, t in here.items()}


# --- a client's round ---


def written_out(old: Any, received: Any, train: fs.Samples, method: FedAS) -> tuple[dict[str, Any], float]:
    """The network after alignment and training, all in full batches, and its trace."""
    labels, before = torch.tensor(train.labels), hidden(tensors(old), train)
    means = {int(c): before[labels == c].mean(0) for c in labels.unique()}

    def apart(weights: Any) -> Any:
        z = hidden(weights, train)
        return sum(torch.nn.functional.mse_loss(z[labels == c], m.expand_as(z[labels == c])) for c, m in means.items())

    here = tensors({**old, **received})
    for _ in range(method.align):
        here = stepped(here, apart, BODY, method.align_lr)
    for _ in range(method.epochs):
        here = stepped(here, lambda weights: entropy(weights, train), (*BODY, *HEAD), method.lr)
    _, found = slopes(here, lambda weights: entropy(weights, train), (*BODY, *HEAD))
    trace = sum(float((slope.double() ** 2).sum()) for slope in found.values())
    return {name: tensor.numpy() for name, tensor in here.items()}, trace


def check_round(method: FedAS) -> None:
    old = networks.initial("mlp:8", TASK, derive(5))
    message = method.message(method.init_server(server(TASK)), "", "update")
    private, reply = method.update(old, message, site(TASK, FEW))
    model, trace = written_out(old, take("model", message), FEW, method)
    assert float(reply["trace"]) == pytest.approx(trace, rel=1e-3)
    for name, array in model.items():
        np.testing.assert_allclose(private[name], array, atol=1e-5)
    assert sorted(take("model", reply)) == sorted(BODY)  # heads stay
    for name in BODY:
        np.testing.assert_allclose(reply[f"model/{name}"], model[name] * trace, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("align", [0, 1, 3])
def test_a_client_does_what_the_paper_says(align: int) -> None:
    check_round(FedAS(**FULL, align=align))


def of_samples(batch: Any) -> Any:
    """A mean over samples, in which large classes count more."""
    return (batch.features - batch.beside["mean"]).square().mean()


def test_an_alignment_that_counts_samples_and_not_classes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "near_classes", of_samples)
    with pytest.raises(AssertionError):
        check_round(FedAS(**FULL))


def test_an_alignment_with_the_received_body_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedAS(**FULL)
    received = take("model", method.init_server(server(TASK)))
    exact = networks.class_means
    monkeypatch.setattr(networks, "class_means", lambda m, old, *rest: exact(m, {**old, **received}, *rest))
    with pytest.raises(AssertionError):
        check_round(method)


class InPlace(FedAS):
    """The authors' code: the body that everybody is sent is itself aligned, client after client."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        aligned = self._aligned(private, message, site)
        for name, array in take("model", message).items():
            array[...] = aligned[name]
        return super().update(private, message, site)


def check_all_are_sent_the_same(method: FedAS) -> None:
    state = method.init_server(server(TASK))
    kept = {name: array.copy() for name, array in state.items()}
    for client in ("site-0", "site-2"):
        old, train = networks.initial("mlp:8", TASK, derive(6)), FEDERATION.clients[client].train
        message = method.message(state, client, "update")
        assert named.same(take("model", message), take("model", kept))
        method.update(old, message, site(TASK, train))


def test_everybody_is_sent_the_same_body() -> None:
    check_all_are_sent_the_same(FedAS(**FULL))
    with pytest.raises(AssertionError):
        check_all_are_sent_the_same(InPlace(**FULL))
    with pytest.raises(CheckError, match="writes to what it was given"):
        writes_to_nothing(InPlace(**FULL, rounds=2))


# --- weights ---


def test_the_trace_is_the_sum_over_batches_of_squared_gradients() -> None:
    model = networks.initial("mlp:8", TASK, derive(1))
    found = training.squared_slopes(FedAS(model="mlp:8", batch=7), model, site(TASK, TRAIN, derive(3)))
    order, wanted = derive(3).permutation(len(TRAIN)), 0.0
    for rows in (order[i : i + 7] for i in range(0, len(TRAIN), 7)):
        part = fs.Samples(TRAIN.inputs[rows], TRAIN.labels[rows])
        _, gradient = slopes(tensors(model), lambda weights, part=part: entropy(weights, part), (*BODY, *HEAD))
        wanted += sum(float((slope.double() ** 2).sum()) for slope in gradient.values())
    assert found == pytest.approx(wanted, rel=1e-4)
    larger = training.squared_slopes(FedAS(model="mlp:8", batch=100), model, site(TASK, TRAIN, derive(3)))
    assert larger < found / 2  # it depends on the batches


def folded(method: FedAS, state: Any, privates: Any, number: int = 1) -> tuple[list[Any], dict[str, Any]]:
    replies: dict[str, Any] = {}
    kept = []
    for client, old in zip(("site-0", "site-2", "site-5"), privates, strict=True):
        here = site(TASK, FEDERATION.clients[client].train, derive(number, client), number=number)
        private, reply = method.update(old, method.message(state, client, "update"), here)
        kept.append(private)
        replies = {name: replies.get(name, 0) + array for name, array in reply.items()}
    return kept, replies


def test_only_the_proportions_of_traces_matter() -> None:
    method = FedAS(**FULL)
    state = method.init_server(server(TASK))
    _, replies = folded(method, state, [{}, {}, {}])
    scaled = {
        name: array * array.dtype.type(8) if name == "trace" or name.startswith("model/") else array
        for name, array in replies.items()
    }
    one, two = (method.aggregate(state, given, server(TASK)) for given in (replies, scaled))
    assert named.same(one, two)


@pytest.mark.parametrize("trace", [3.0, 0.0])
def test_without_alignment_and_with_equal_traces_bodies_are_averaged_plainly(
    trace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of heads of one's own over a plain mean body; also where all traces vanish."""
    monkeypatch.setattr(training, "squared_slopes", lambda *_: trace)
    method = FedAS(**FULL, align=0)
    state = method.init_server(server(TASK))
    first = networks.initial("mlp:8", TASK, derive(int(state["seed"])))
    privates: list[Any] = [{}, {}, {}]
    heads = [first] * 3
    body = {name: first[name] for name in BODY}
    for number in (1, 2):
        privates, replies = folded(method, state, privates, number)
        assert float(replies["trace"]) == pytest.approx(3 * max(trace, LEAST))
        state = method.aggregate(state, replies, server(TASK))
        trained = []
        for client, head in zip(("site-0", "site-2", "site-5"), heads, strict=True):
            train = FEDERATION.clients[client].train
            trained.append(written_out({**head, **body}, body, train, method)[0])
        heads = trained
        body = {name: np.mean([model[name] for model in trained], axis=0) for name in BODY}
        for name in BODY:
            np.testing.assert_allclose(state[f"model/{name}"], body[name], atol=1e-5)
    for private, model in zip(privates, heads, strict=True):
        personal = method.personalize(private, method.message(state, "", "personalize"), site(TASK, TRAIN)).model
        for name, array in model.items():
            np.testing.assert_allclose(personal[name], array, atol=1e-5)


# --- defaults ---


def test_defaults_align_and_weigh() -> None:
    result = fs.run(FedAS(**SMALL), FEDERATION, workers=1, evaluate_every=100)
    other = fs.run(FedAS(**SMALL, align=0), FEDERATION, workers=1, evaluate_every=100)
    one, two = (take("model", run.state) for run in (result, other))
    assert max(float(np.abs(one[name] - two[name]).max()) for name in BODY) > 1e-4
    assert result.shared is None


def test_newcomers_start_from_the_head_of_the_first_network() -> None:
    method = FedAS(**FULL)
    state = method.init_server(server(TASK))
    message = method.message(state, "", "personalize")
    first = method.personalize({}, message, site(TASK, TRAIN)).model
    assert named.same(first, networks.initial("mlp:8", TASK, derive(int(state["seed"]))))
    assert sorted(take("model", message)) == sorted(BODY)
