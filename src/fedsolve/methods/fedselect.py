"""FedSelect: each client picks, number by number, what of the network it keeps to itself: what moved most.

Tamirisa et al., "FedSelect: Personalized Federated Learning with Customized Selection of Parameters for Fine-Tuning",
CVPR 2024. A mask of the client's own says which numbers are personal; none are at first. An epoch is a pass that moves
the personal ones, and then a pass that moves the others. The server takes the plain mean of each number over those who
share it. Every `every` rounds, of each weight of which no more than `limit` is personal, the `rate` of the shared
numbers that moved most since the last time become personal: before the client's rounds 2 + every, 2 + 2 every, ... As
in the authors' code they begin from the mean that was sent, not from what the client had made of them.

Only matrices and kernels have personal numbers: biases, scales of norms and running statistics are shared by all. Each
pass begins with no momentum, so that none of it moves what the pass should leave alone; the authors have none at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import EqualsAmongEquals, Law
from fedsolve.method import Method, Personal, Server, Site

COUNTS = np.uint16  # how many share a number: half as many bytes as the number itself
MOST = int(np.iinfo(COUNTS).max)


@dataclass(frozen=True)
class FedSelect(Averaging, Method):
    """A network of each client's own, in which the numbers that it does not keep to itself are everybody's means.

    What is evaluated is the network as the client has trained it.
    """

    name: ClassVar[str] = "fedselect"
    paper: ClassVar[str] = "Tamirisa et al., FedSelect, CVPR 2024"
    sends: ClassVar[str] = "the numbers of its trained model that it shares, and which those are; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (EqualsAmongEquals("fedavg", rate=0.0, epochs=1),)

    rate: float = parameters.number(0.25, "share of the shared numbers that become personal at a time", low=0, high=1)
    every: int = parameters.number(3, "rounds of the client from one time to the next", low=1, integer=True)
    limit: float = parameters.number(0.8, "personal share of a weight above which it stays as it is", low=0, high=1)

    # --- server half ---
    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean of each number over those who share it; where nobody does, it stays."""
        here = int(replies["here"])
        if not 1 <= here <= MOST:
            raise DataError(f"replies must come from 1 to {MOST} clients; got {here}")
        before, sums, sharing = take("model", state), take("model", replies), take("sharing", replies)
        model = {
            name: np.where(sharing[name] > 0, total / np.maximum(sharing[name], 1), before[name])
            if name in sharing
            else total / total.dtype.type(here)
            for name, total in sums.items()
        }
        return {**under("model", model), "loss": np.array(float(replies["loss"]) / here)}

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Perhaps more becomes personal; then passes in turn over personal and shared numbers."""
        from fedsolve.families.gradient import hooks, training

        model = self._begun(private, message)
        done, mask, since = self._memory(private, model, site.task)
        if done > 1 and (done - 1) % self.every == 0:
            last = take("model", private)
            mask = {name: self.wider(mask[name], np.abs(last[name] - since[name])) for name in mask}
            since = {name: last[name] for name in mask}
        personal = any(own.any() for own in mask.values())
        loss = 0.0
        turns = [mask, {name: ~own for name, own in mask.items()}] if personal else [None]
        for _ in range(self.epochs):
            for moving in turns:
                only = None if moving is None else hooks.only(moving, self.model, site.task)
                model, loss = training.train(self, model, site, epochs=1, hook=only)
        sent = {n: np.where(mask[n], a.dtype.type(0), a) if n in mask else a for n, a in model.items()}
        sharing = {name: (~own).astype(COUNTS) for name, own in mask.items()}
        kept = {**under("model", model), **under("mask", mask), **under("since", since), "done": np.array(done + 1)}
        reply = {**under("model", sent), **under("sharing", sharing), "here": np.array(1), "loss": np.array(loss)}
        return kept, reply

    def _begun(self, private: Arrays, message: Arrays) -> dict[str, Array]:
        """What was sent, with the client's own numbers in their places."""
        sent, own, mask = take("model", message), take("model", private), take("mask", private)
        return {**sent, **{name: np.where(mask[name], own[name], sent[name]) for name in mask}}

    def _memory(self, private: Arrays, start: Arrays, task: Task) -> tuple[int, dict[str, Array], dict[str, Array]]:
        """How often the client took part, what is personal, and the parameters as they were when it was chosen."""
        from fedsolve.families.gradient import networks

        if private:
            return int(private["done"]), take("mask", private), take("since", private)
        names = sorted(networks.parameter_names(self.model, task))
        return 0, {n: np.zeros(start[n].shape, bool) for n in names}, {n: start[n] for n in names}

    def wider(self, mask: Array, moved: Array) -> Array:
        """A weight's mask with the shared numbers that moved most in it, too; exactly as many as `rate` asks for."""
        if mask.ndim < 2 or not mask.mean() <= self.limit:
            return mask
        free = np.flatnonzero(~mask)
        most = np.argsort(-moved.ravel()[free], kind="stable")[: round(self.rate * len(free))]
        wider = mask.copy().ravel()
        wider[free[most]] = True
        return wider.reshape(mask.shape)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The network as the client trained it; the global one for a client that never took part."""
        return Personal(take("model", private) or take("model", message))
