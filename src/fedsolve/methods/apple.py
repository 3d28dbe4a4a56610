"""APPLE: every client downloads everybody's core model, and learns how much of each it wants.

Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning", IJCAI 2022. The personal
model of client i is v_i = sum_j p_ij w_j, with w_j the cores that all clients share. Client i descends on

    F_i(v_i) + fade mu/2 |p_i - p0|^2,  p0_j = n_j / n,

by its own core, whose gradient is p_ii g, and by its shares, whose gradient is <g, w_j> + fade mu (p_ij - p0_j), with g
that of F_i at v_i. It sends its core; its shares, which begin at p0 and are free of any bounds, stay with it. `fade` is
0.001^(r / (until T)) in round r of T, counted from 0, and 0 from round `until` T on. What is evaluated is v_i as it was
trained: the others' cores are those that were downloaded.

What is ours: all cores begin as one model, where the authors' begin as different ones, whose mixture is no model yet.
A client's first round is training alone, since nobody has a core before. A newcomer begins with the cores mixed by p0,
and the others make room for it: their shares are scaled by what p0 has of the cores they know. With `full`, steps move
a core by g and not by p_ii g, which is about g over the number of clients at first, and slow. Running statistics stay
with the client: shares need not sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.families.gradient.table import Apart, answered, mean_loss, names_of, written
from fedsolve.laws import Law, OrderFree, TrainsAlone
from fedsolve.method import Method, Personal, Purpose, Server, Site

LAST = 0.001  # of the pull, at the end of its fading


@dataclass(frozen=True)
class APPLE(Apart, Method):
    """Everybody's core models, mixed by each client in shares that it learns; its model is that mixture, trained."""

    name: ClassVar[str] = "apple"
    paper: ClassVar[str] = "Luo and Wu, APPLE, IJCAI 2022"
    sends: ClassVar[str] = "its core model, its training loss and its number of samples; every core goes to all clients"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (
        OrderFree(),
        TrainsAlone(share_lr=0.0, start="self"),
        TrainsAlone(clients=1, share_lr=0.0),
    )

    share_lr: float = parameters.number(0.001, "learning rate of the shares", low=0)
    mu: float = parameters.number(0.1, "strength of the pull of the shares towards the first ones", low=0)
    until: float = parameters.number(0.1, "part of the rounds in which that pull fades", low=0, high=1)
    start: str = parameters.choice("samples", ("samples", "self"), "first shares: by samples, or all on oneself")
    full: bool = parameters.flag(False, "steps of the core as long as alone; false: times its own share, as the paper")

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The model that cores begin as; nobody has one."""
        from fedsolve.families.gradient import networks

        model = networks.initial(self.model, server.task, server.rng)
        trained = networks.parameter_names(self.model, server.task)
        buffers = {name: array for name, array in model.items() if name not in trained}
        first = {name: array for name, array in model.items() if name in trained}
        return {**under("first", first), **under("buffer", buffers), "clients": written([])}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """All cores, in the order in which their clients came, and the client's number; to newcomers one model."""
        names, buffers = names_of(state["clients"]), under("buffer", take("buffer", state))
        if purpose == "update" and client in names:
            own = np.array(names.index(client))
            return {**under("core", take("core", state)), **buffers, "shares": _shares(state), "own": own}
        cores = take("core", state)
        mixed = {name: np.tensordot(_shares(state).astype(array.dtype), array, axes=1) for name, array in cores.items()}
        return {**under("model", mixed or take("first", state)), **buffers}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The cores of those that answered take the place of their last ones; newcomers' come behind."""
        here, before = answered(replies), names_of(state["clients"])
        names = (*before, *(client for client in here if client not in before))
        places = [names.index(client) for client in here]
        first, counts = take("first", state), np.zeros(len(names), np.int64)
        counts[: len(before)] = state["counts"] if before else 0
        counts[places] = [int(replies[f"{client}/count"]) for client in here]
        cores = {}
        for name, array in first.items():
            cores[name] = np.empty((len(names), *array.shape), array.dtype)
            if before:
                cores[name][: len(before)] = state[f"core/{name}"]
            for place, client in zip(places, here, strict=True):
                cores[name][place] = replies[f"{client}/core/{name}"]
        return {
            **under("first", first), **under("buffer", take("buffer", state)), **under("core", cores),
            "clients": written(names), "counts": counts, "loss": mean_loss(replies),
        }  # fmt: skip

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Training of the mixture: of one's own core, and of the shares."""
        from fedsolve.families.gradient import training
        from fedsolve.families.gradient.cores import learn_mixture

        shares: dict[str, Array] = {}
        if "own" in message:
            own = int(message["own"])
            first = message["shares"] if self.start == "samples" else np.eye(len(message["shares"]))[own]
            known = take("model", private)
            cores, buffers = take("core", message), take("buffer", message)
            model, core, learnt, loss = learn_mixture(
                self, cores, own, _widened(private.get("shares"), first), first,
                {name: known.get(name, array) for name, array in buffers.items()}, site,
                pull=self.mu * self.fade(site.round - 1), share_lr=self.share_lr, full=self.full,
            )  # fmt: skip
            shares = {"shares": learnt}
        else:
            begin = {**take("model", message), **take("buffer", message)}
            model, loss = training.train(self, begin, site)
            core = {name: model[name] for name in take("model", message)}
        reply = {**under("core", core), "loss": np.array(loss), "count": np.array(len(site.train))}
        return {**under("model", model), **shares}, reply

    def fade(self, number: int) -> float:
        """How much of the pull there is in a round, counted from 0."""
        last = self.until * self.rounds
        return LAST ** (number / last) if number < last else 0.0

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The mixture as the client trained it; that of a newcomer for a client that never took part."""
        return Personal(take("model", private) or {**take("model", message), **take("buffer", message)})


def _shares(state: Arrays) -> Array:
    """The cores' shares of all samples."""
    counts = state.get("counts", np.zeros(0, np.int64))
    return np.asarray(counts / max(1, counts.sum()))


def _widened(learnt: Array | None, first: Array) -> Array:
    """What was learnt, scaled by what the first shares had of the cores that it is of; the first of all others."""
    if learnt is None:
        return first
    known = len(learnt)
    if known == len(first):
        return learnt
    return np.concatenate([learnt * first[:known].sum(), first[known:]])
