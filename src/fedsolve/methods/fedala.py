"""FedALA: each client blends the global model into its own, element by element, before it trains.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023. With w_k the client's
model and w the global one, training starts at v = w_k + (w - w_k) W in the top layers and at w below them. The weights
W start at one, stay between 0 and 1 and descend on the loss at v, on a share of the client's data: until the loss has
settled when they are first learnt, then one pass per round. In a client's first round there is nothing to blend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Arrays, take, under
from fedsolve.data.samples import Samples
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Law, SharesWith
from fedsolve.method import Method, Personal, Site

SETTLED = 0.1  # standard deviation of the last ten losses, as in the paper
MOST_PASSES = 50  # where the loss does not settle


@dataclass(frozen=True)
class FedALA(Averaging, Method):
    """FedAvg whose clients start from a learnt blend of the global model and their own; the trained model is theirs."""

    name: ClassVar[str] = "fedala"
    paper: ClassVar[str] = "Zhang et al., FedALA, AAAI 2023"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (SharesWith("fedavg", eta=0.0),)

    eta: float = parameters.number(1.0, "learning rate of the blend; 0: it stays the global model, as FedAvg", low=0)
    layers: int = parameters.number(1, "how many layers are blended, from the top", low=1, integer=True)
    sample: float = parameters.number(0.8, "share of the client's data that the blend is learnt on", low=0.01, high=1)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Learn the blend, then train from it."""
        from fedsolve.families.gradient import networks, training
        from fedsolve.families.gradient.blend import learn_blend

        aside = site.rng.spawn(1)[0]  # so that training draws as FedAvg's does
        shared = take("model", message)
        own_model, weights = take("model", private), take("blend", private)
        begin = shared
        if own_model:
            first = not weights
            if first:
                top = networks.top_layers(self.model, site.task, self.layers)
                weights = {name: np.ones_like(shared[name]) for name in sorted(top)}
            weights, begin = learn_blend(
                self, own_model, shared, weights, site.task, self._some(site.train, aside), aside,
                eta=self.eta, passes=MOST_PASSES if first else 1, settled=SETTLED,
            )  # fmt: skip
        trained, loss = training.train(self, begin, site)
        return {**under("model", trained), **under("blend", weights)}, settings.weighted(trained, loss, len(site.train))

    def _some(self, train: Samples, rng: np.random.Generator) -> Samples:
        count = max(1, round(self.sample * len(train)))
        rows = np.sort(rng.choice(len(train), count, replace=False))
        return Samples(train.inputs[rows], train.labels[rows])

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The client's trained model; the global one for a client that never took part."""
        return Personal(take("model", private) or take("model", message))
