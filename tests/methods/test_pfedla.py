"""pFedLA against its definition, training alone, and the plain mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import Arrays, same, take, under
from fedsolve.checks import sample_federation
from fedsolve.families.gradient.table import names_of
from fedsolve.method import Site
from fedsolve.methods.pfedla import PFedLA, layers
from tests.contexts import server, site
from tests.methods.beside_fedavg import SMALL, distance
from tests.methods.test_gradient import OWN

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from fedsolve.families.gradient import hyper, training  # noqa: E402

FEDERATION = sample_federation()
TASK = FEDERATION.task
FEW: dict[str, Any] = {**SMALL, "embed": 5, "hidden": 7}
MODULES = {"body.1": ("body.1.bias", "body.1.weight"), "head": ("head.bias", "head.weight")}  # of mlp:8


def collected(first: Arrays, clients: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Replies of clients with random models."""
    rng, replies = np.random.default_rng(seed), dict[str, np.ndarray]()
    for client in clients:
        model = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in first.items()}
        replies |= under(client, {**under("model", model), "loss": np.array(1.0), "count": np.array(3)})
    return replies


def known(method: PFedLA, clients: str) -> dict[str, np.ndarray]:
    """The state of a server that has models of these clients, and maps that have learnt something."""
    first = method.init_server(server(TASK))
    state = dict(method.aggregate(first, collected(take("first", first), clients), server(TASK)))
    rng = np.random.default_rng(9)
    for name in ("hyper/map/weight", "hyper/map/bias"):
        state[name] = rng.normal(size=state[name].shape).astype(np.float32)
    return state


def mixture(networks: dict[str, Any], models: dict[str, Any], i: int, own: float) -> dict[str, Any]:
    """What client i is sent, written out."""
    count = len(networks["vector"])
    z = networks["vector"][i]
    for number in range(3):
        z = torch.relu(networks[f"{number}/weight"][i] @ z + networks[f"{number}/bias"][i])
    sent = {}
    for layer, names in enumerate(MODULES.values()):
        powers = []
        for j in range(count):
            begin = (1 - own) / count + (own if i == j else 0.0)
            value = networks["map/weight"][i, layer, j] @ z + networks["map/bias"][i, layer, j]
            powers.append(begin * torch.exp(value))
        for name in names:
            sent[name] = sum(power * models[name][j] for j, power in enumerate(powers)) / sum(powers)
    return sent


def wide(arrays: Arrays) -> dict[str, Any]:
    return {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}


@pytest.mark.parametrize("own", [0.0, 0.3])
def test_what_is_sent_is_mixed_layer_by_layer(own: float) -> None:
    method = PFedLA(**FEW, own=own)
    state = known(method, "abc")
    for i, client in enumerate("abc"):
        sent = take("model", method.message(state, client, "update"))
        for name, tensor in mixture(wide(take("hyper", state)), wide(take("model", state)), i, own).items():
            np.testing.assert_allclose(sent[name], tensor, rtol=1e-4, atol=1e-5)


def test_weight_and_bias_are_one_layer() -> None:
    names = [name for group in MODULES.values() for name in group]
    assert layers(dict.fromkeys(names, np.zeros(0))) == {module: list(group) for module, group in MODULES.items()}


@pytest.mark.parametrize("own", [0.0, 0.3, 1.0])
def test_shares_are_on_the_simplex_and_begin_where_they_are_told_to(own: float) -> None:
    method = PFedLA(**FEW, own=own)
    state = known(method, "abcd")
    begin = own * np.eye(4) + (1 - own) / 4
    learnt = hyper.shares(take("hyper", state), begin)
    np.testing.assert_allclose(learnt.sum(2), 1.0, atol=1e-6)
    assert learnt.min() >= 0
    first = method.init_server(server(TASK))
    state = dict(method.aggregate(first, collected(take("first", first), "abcd"), server(TASK)))
    for layer in range(2):
        np.testing.assert_allclose(hyper.shares(take("hyper", state), begin)[:, layer], begin, atol=1e-7)


def test_even_first_shares_are_the_plain_mean() -> None:
    method = PFedLA(**FEW)
    first = method.init_server(server(TASK))
    state = method.aggregate(first, collected(take("first", first), "abcd"), server(TASK))
    for client in ("a", "c", "new"):
        for name, array in take("model", method.message(state, client, "update")).items():
            np.testing.assert_allclose(array, state[f"model/{name}"].mean(0), rtol=1e-5, atol=1e-6)


def check_learning(scaled: bool) -> None:
    """A step by autograd through the mixture of |m_i - w_i|^2 / 2, layer by layer, in double precision."""
    method = PFedLA(**FEW, server_lr=0.01, scaled=scaled, own=0.2)
    state = known(method, "abc")
    replies = collected(take("first", state), "ac", seed=1)
    after = method.aggregate(state, replies, server(TASK))
    networks = {name: tensor.requires_grad_() for name, tensor in wide(take("hyper", state)).items()}
    loss = torch.zeros((), dtype=torch.float64)
    for i, client in ((0, "a"), (2, "c")):
        sent, trained = mixture(networks, wide(take("model", state)), i, 0.2), wide(take(f"{client}/model", replies))
        for names in MODULES.values():
            half = sum(((sent[name] - trained[name]) ** 2).sum() for name in names) / 2
            loss = loss + half / (2 * half.detach() if scaled else 1.0)
    slopes = torch.autograd.grad(loss, list(networks.values()))
    for (name, tensor), slope in zip(networks.items(), slopes, strict=True):
        np.testing.assert_allclose(after[f"hyper/{name}"], (tensor - 0.01 * slope).detach(), rtol=1e-4, atol=2e-5)
        assert slope[[0, 2]].any()
        assert after[f"hyper/{name}"][1].tobytes() == state[f"hyper/{name}"][1].tobytes()  # who did not answer


@pytest.mark.parametrize("scaled", [False, True])
def test_the_server_descends_on_half_the_squared_distance(scaled: bool) -> None:
    check_learning(scaled)


def test_a_step_brings_what_is_sent_nearer_to_what_was_made_of_it() -> None:
    method = PFedLA(**FEW, server_lr=0.01, scaled=False)
    state = known(method, "abc")
    replies = collected(take("first", state), "abc", seed=1)
    after = {**method.aggregate(state, replies, server(TASK)), **under("model", take("model", state))}

    def apart(of: Arrays, client: str) -> float:
        sent = take("model", method.message(of, client, "update"))
        return sum(float(((sent[n] - replies[f"{client}/model/{n}"]) ** 2).sum()) for n in sent)

    assert all(apart(after, client) < apart(state, client) for client in "abc")


AGAINST = hyper.against


@pytest.mark.parametrize("scaled", [False, True])
def test_ascent_is_caught(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both public implementations feed the change itself, and ascend."""
    monkeypatch.setattr(hyper, "against", lambda stacked, begin, slopes, lr: AGAINST(stacked, begin, -slopes, lr))
    with pytest.raises(AssertionError):
        check_learning(scaled)


# --- what a client does ---


def check_client(kind: type[PFedLA]) -> None:
    """In its second round a client sends what training makes of its mixture."""
    method = kind(**FEW)
    train = FEDERATION.clients["site-0"].train
    state = known(method, "abc")
    message = method.message(state, "b", "update")
    last = {name: array[1] for name, array in take("model", state).items()}
    private, reply = method.update(last, message, site(TASK, train))
    wanted, loss = training.train(method, take("model", message), site(TASK, train))
    assert same(take("model", reply), wanted)
    assert same(private, wanted)
    assert float(reply["loss"]) == loss


@dataclass(frozen=True)
class FromItsOwn(PFedLA):
    """The change is added to the client's last own model, not to what it was trained from."""

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        trained, reply = super().update(private, message, site)
        moved = {n: private[n] + trained[n] - message[f"model/{n}"] for n in trained}
        return moved, {**reply, **under("model", moved)}


def test_a_client_goes_on_from_its_mixture() -> None:
    check_client(PFedLA)
    with pytest.raises(AssertionError):
        check_client(FromItsOwn)


@pytest.mark.parametrize("evaluate", ["trained", "sent"])
def test_either_model_can_be_evaluated(evaluate: str) -> None:
    method = PFedLA(**FEW, evaluate=evaluate)
    result = fs.run(method, FEDERATION, workers=1, evaluate_every=100)
    place = names_of(result.state["clients"]).index("site-2")
    trained = {name: array[place] for name, array in take("model", result.state).items()}
    sent = take("model", method.message(result.state, "site-2", "personalize"))
    assert distance(sent, trained) > 1e-3
    assert distance(dict(result.models["site-2"].arrays), trained if evaluate == "trained" else sent) == 0


def test_newcomers_change_nothing_that_others_have_learnt() -> None:
    method = PFedLA(**FEW, server_lr=0.0)
    early = known(method, "bd")
    late = method.aggregate(early, collected(take("first", early), "ad", seed=1), server(TASK))
    assert names_of(late["clients"]) == ("b", "d", "a")
    old, new = (hyper.shares(take("hyper", s), np.full((n, n), 1 / n)) for s, n in ((early, 2), (late, 3)))
    # The ratio of two clients' shares is what it was, whoever came.
    np.testing.assert_allclose(new[:2, :, 0] / new[:2, :, 1], old[:, :, 0] / old[:, :, 1], rtol=1e-4)
    np.testing.assert_allclose(new[2], 1 / 3, rtol=1e-6)
    for name, array in take("model", early).items():
        assert late[f"model/{name}"][0].tobytes() == array[0].tobytes()
        assert late[f"model/{name}"][1].tobytes() != array[1].tobytes()


def test_running_statistics_go_with_their_layer_and_are_not_descended_on() -> None:
    method = PFedLA(**{**FEW, "model": OWN})
    first = method.init_server(server(TASK))
    model = take("first", first)
    buffers = [name for name in model if "running" in name]
    assert buffers
    state = method.aggregate(first, collected(model, "ab"), server(TASK))
    one, two = collected(model, "ab", seed=1), collected(model, "ab", seed=1)
    for client in "ab":
        for name in buffers:
            two[f"{client}/model/{name}"] = two[f"{client}/model/{name}"] + 5.0
    left, right = (take("hyper", method.aggregate(state, replies, server(TASK))) for replies in (one, two))
    assert same(left, right)
    for name in buffers:
        mean = state[f"model/{name}"].mean(0)
        np.testing.assert_allclose(method.message(state, "a", "update")[f"model/{name}"], mean, rtol=1e-4, atol=1e-6)


def test_no_default_switches_it_off() -> None:
    """Shares move away from even ones by their defaults; steps of 0.005 that are not scaled leave them there."""

    def moved(**settings: Any) -> float:
        state = fs.run(PFedLA(**SMALL, **settings), FEDERATION, workers=1, evaluate_every=100).state
        count = len(names_of(state["clients"]))
        shares = hyper.shares(take("hyper", state), np.full((count, count), 1 / count))
        return float(np.abs(shares - 1 / count).max())

    assert moved() > 0.02
    assert moved(server_lr=0.005, scaled=False) < 0.002
