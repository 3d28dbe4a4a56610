"""Ditto: a global model by FedAvg, and beside it a personal one that is held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021: the personal model descends
on F_k(v) + lam/2 |v - w|^2, with w the global model that was received; it never leaves the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays, take
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Law, TrainsAlone
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class Ditto(Averaging, Method):
    """FedAvg's global model, and a personal one trained near it: training alone at lam = 0."""

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al., Ditto, ICML 2021"
    sends: ClassVar[str] = "its trained copy of the global model times its number of samples, and that number; its loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (TrainsAlone(lam=0.0),)

    lam: float = parameters.number(1.0, "strength of the pull of the personal model towards the global one", low=0)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Training of the personal model, which starts as the first global one, then of the global one."""
        from fedsolve.families.gradient import hooks, training

        shared = take("model", message)
        pull = hooks.towards(shared, self.lam, self.model, site.task)
        personal, _ = training.train(self, private or shared, site, hook=pull)
        trained, loss = training.train(self, shared, site)
        return personal, settings.weighted(trained, loss, len(site.train))

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The personal model; the global one for a client that never took part."""
        return Personal(private or take("model", message))
