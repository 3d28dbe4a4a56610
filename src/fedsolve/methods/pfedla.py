"""pFedLA: the server mixes a model for each client, layer by layer, in shares that a small network per client makes.

Ma et al., "Layer-Wised Model Aggregation for Personalized Federated Learning", CVPR 2022. Layer l of what client i is
sent is m_i^l = sum_j a_ij^l w_j^l, where the shares a_i are made by a network h_i from a vector, both the client's and
both on the server: dense layers with rectifiers, then for each l a map to one number per client, as shares. The client
trains m_i to w_i and sends that back, and h_i descends along J'(m_i - w_i), with J the Jacobian of m_i: the gradient of
|m_i - w_i|^2 / 2 where w_i is fixed. Public versions have w_i - m_i, and ascend. What is evaluated is w_i.

What is ours: numbers become shares by a softmax, since rectified ones can all be zero; it is taken of log b_i beside
the map, with maps that begin at zero, so that first shares are b_i: `own` on the client itself, the rest even over all.
`scaled` divides the gradient by |m_i^l - w_i^l|^2, so that `server_lr` has the same meaning for every layer, network
and round; plain steps of 0.005, as in public versions, leave shares where they begin. A layer is a module of the
network: its weight, bias and running statistics go together, and the last are not descended on. A newcomer begins with
the plain mean of all models. The variant that keeps layers from travelling (HeurpFedLA) is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, take, under
from fedsolve.families.gradient.table import Apart, answered, mean_loss, names_of, written
from fedsolve.laws import Law, OrderFree, TrainsAlone
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.rng import derive


@dataclass(frozen=True)
class PFedLA(Apart, Method):
    """A mixture of all models for each client, in shares per layer that the server learns; trained, it is its model."""

    name: ClassVar[str] = "pfedla"
    paper: ClassVar[str] = "Ma et al., pFedLA, CVPR 2022"
    sends: ClassVar[str] = "its trained model, its training loss and its number of samples"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OrderFree(), TrainsAlone(own=1.0), TrainsAlone(clients=1))

    own: float = parameters.number(0.0, "first share of the client's own layers, beside an even one", low=0, high=1)
    server_lr: float = parameters.number(0.5, "learning rate of the networks that make shares", low=0)
    scaled: bool = parameters.flag(True, "divide a layer's gradient by the squared length of its change")
    embed: int = parameters.number(100, "numbers that stand for a client", low=1, integer=True)
    hidden: int = parameters.number(100, "width of the networks that make shares", low=1, integer=True)
    evaluate: str = parameters.choice("trained", ("trained", "sent"), "the model as the client trained it, or as sent")

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first model; nobody has one yet."""
        from fedsolve.families.gradient import networks

        first = networks.initial(self.model, server.task, server.rng)
        return {**under("first", first), "clients": written([]), "seed": server.rng.integers(2**63, size=1)}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The client's mixture; to one that never answered the plain mean, or the first model."""
        from fedsolve.families.gradient import hyper

        names, models = names_of(state["clients"]), take("model", state)
        if not names:
            return under("model", take("first", state))
        if client not in names:
            return under("model", {name: array.mean(0) for name, array in models.items()})
        place = [names.index(client)]
        one = {name: array[place] for name, array in take("hyper", state).items()}
        return under("model", mixed(hyper.shares(one, self._begin(len(names))[place])[0], models))

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The shares of those that answered learn; then new models take the place of their last ones."""
        from fedsolve.families.gradient import hyper

        here, before = answered(replies), names_of(state["clients"])
        newcomers = [client for client in here if client not in before]
        names, first = (*before, *newcomers), take("first", state)
        hypers, models = take("hyper", state), {}
        if before and self.server_lr:
            slopes = self._slopes(state, replies, before, server)
            hypers = hyper.against(hypers, self._begin(len(before)), slopes, self.server_lr)
        if newcomers:
            seeds = [derive(int(state["seed"][0]), "shares", client) for client in newcomers]
            hypers = hyper.widened(hypers, seeds, len(layers(first)), self.embed, self.hidden)
        for name, array in first.items():
            models[name] = np.empty((len(names), *array.shape), array.dtype)
            if before:
                models[name][: len(before)] = state[f"model/{name}"]
            for client in here:
                models[name][names.index(client)] = replies[f"{client}/model/{name}"]
        return {
            **under("first", first), **under("hyper", hypers), **under("model", models),
            "clients": written(names), "seed": state["seed"], "loss": mean_loss(replies),
        }  # fmt: skip

    def _begin(self, count: int) -> Float:
        """The shares that clients begin with, by row."""
        return self.own * np.eye(count) + (1.0 - self.own) / count

    def _slopes(self, state: Arrays, replies: Arrays, before: Sequence[str], server: Server) -> Float:
        """The gradient of |m_i - w_i|^2 / 2 by the shares: <w_j^l, m_i^l - w_i^l>; zeros of those that did not answer.

        Newcomers were sent no mixture of theirs.
        """
        from fedsolve.families.gradient import networks

        trained, models = networks.parameter_names(self.model, server.task), take("model", state)
        groups, count = layers(models), len(before)
        found = np.zeros((count, len(groups), count))
        for client in (client for client in answered(replies) if client in before):
            sent = take("model", self.message(state, client, "update"))
            for number, group in enumerate(groups.values()):
                length = 0.0
                for name in (name for name in group if name in trained):
                    change = (sent[name].astype(np.float64) - replies[f"{client}/model/{name}"]).ravel()
                    found[before.index(client), number] += models[name].reshape(count, -1) @ change
                    length += float(change @ change)
                if self.scaled:
                    found[before.index(client), number] /= max(length, 1e-30)
        return found

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the mixture that was sent."""
        from fedsolve.families.gradient import training

        trained, loss = training.train(self, take("model", message), site)
        reply = {**under("model", trained), "loss": np.array(loss), "count": np.array(len(site.train))}
        return trained if self.evaluate == "trained" else {}, reply

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The model as the client trained it, or what was sent, as it is also for a client that never took part."""
        return Personal(private or take("model", message))


def layers(model: Arrays) -> dict[str, list[str]]:
    """The names of the tensors of each module, by the module's name: weight and bias of one are together."""
    found: dict[str, list[str]] = {}
    for name in sorted(model):
        found.setdefault(name.rpartition(".")[0], []).append(name)
    return found


def mixed(shares: Array, models: Arrays) -> dict[str, Array]:
    """One model of many, in shares by layer and owner."""
    return {
        name: np.tensordot(share.astype(models[name].dtype), models[name], axes=1)
        for share, group in zip(shares, layers(models).values(), strict=True)
        for name in group
    }
