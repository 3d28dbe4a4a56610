"""BAFFLE: training by forward passes alone; the server needs nothing of a client but how its loss changes.

Feng et al., "Does Federated Learning Really Need Backpropagation?", ECCV 2024. By Stein's identity the gradient of the
loss, smoothed, is the mean of (dL_k / sigma) u_k over standard normal directions u_k, with dL_k the forward difference
L(w + sigma u_k) - L(w) or the centred one, (L(w + sigma u_k) - L(w - sigma u_k)) / 2. Two ways to federate it:

- `exchange=losses`, as in the paper: the server sends w and a seed, clients answer with K numbers, and the server draws
  the same directions again and takes one step of Adam per round. The estimate is linear in the numbers, so their mean
  over samples gives the mean of the clients' estimates. Here the loss is that of all of a client's samples, so that a
  round does not depend on how the same samples are spread. One step per round takes many rounds.
- `exchange=models`, as in the authors' code: local steps of Adam by such gradients, then the mean of the models.

The authors evaluate a moving average of w that keeps 0.995 of itself per epoch: after twenty epochs nine tenths of it
are the first model. Here it is w itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Arrays, take, under
from fedsolve.errors import DataError
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Law, OneModel, StaysAtStart
from fedsolve.method import Method, Personal, Purpose, Server, Site

SECOND = 0.99  # of Adam's second moments, the authors' choice


@dataclass(frozen=True)
class BAFFLE(Averaging, Method):
    """One global model without backpropagation: from changes of the loss along random directions."""

    name: ClassVar[str] = "baffle"
    paper: ClassVar[str] = "Feng et al., BAFFLE, ECCV 2024"
    sends: ClassVar[str] = "as fedavg; or, with exchange=losses, changes of its loss along directions, and its samples"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OneModel(), StaysAtStart(lr=0.0))

    lr: float = parameters.number(0.01, "learning rate of Adam", low=0)
    sgd_momentum: float = parameters.number(0.9, "how much of its first moments Adam keeps", low=0, high=0.999)
    exchange: str = parameters.choice(
        "models",
        ("models", "losses"),
        "local steps and the mean of models; or changes of the loss, and a step per round",
    )
    directions: int = parameters.number(50, "directions that a gradient is found from", low=1, integer=True)
    sigma: float = parameters.number(1e-4, "how far along a direction the loss is looked at", low=1e-6)
    centred: bool = parameters.flag(True, "look both ways along a direction")
    clip: float = parameters.number(0.3, "largest number in a gradient, to which all of it is scaled; 0: any", low=0)
    decay: float = parameters.number(5e-4, "weight decay", low=0)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first model; and the seed of the first directions, where the server draws them too."""
        from fedsolve.families.gradient import networks

        model = under("model", networks.initial(self.model, server.task, server.rng))
        return {**model, **self._seed(server)}

    def _seed(self, server: Server) -> Arrays:
        return {"seed": server.rng.integers(2**62, size=())} if self.exchange == "losses" else {}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The global model; and the seed of the directions to try."""
        seed = {"seed": state["seed"]} if "seed" in state and purpose == "update" else {}
        return {**settings.sent(state), **seed}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean of the models; or a step of Adam against the gradient that the changes give."""
        if self.exchange == "models":
            return settings.average(replies)
        from fedsolve.families.gradient import descent, networks, zeroth

        count = int(replies["count"])
        if count < 1:
            raise DataError(f"replies must come from at least one sample; got {count}")
        model, draw = take("model", state), zeroth.agreed(int(state["seed"]))
        gradient = zeroth.combined(replies["changes"] / count, self.sigma, draw, model, self.model, server.task)
        largest = max(float(np.abs(slope).max(initial=0.0)) for slope in gradient.values())
        scale = np.float32(self.clip / largest if 0 < self.clip < largest else 1.0)
        moved, memory = descent.along(
            {name: model[name] for name in networks.parameter_names(self.model, server.task)},
            {name: slope * scale for name, slope in gradient.items()},
            lr=self.lr, memory=take("memory", state), betas=(self.sgd_momentum, SECOND), decay=self.decay,
        )  # fmt: skip
        loss = np.array(float(replies["loss"]) / count)
        return {**under("model", {**model, **moved}), **under("memory", memory), **self._seed(server), "loss": loss}

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training by trying directions; or how the loss changes along those that were sent."""
        from fedsolve.families.gradient import hooks, optimisers, training, zeroth

        model, count = take("model", message), len(site.train)
        if self.exchange == "losses":
            draw = zeroth.agreed(int(message["seed"]))
            loss, found = zeroth.changes(self, model, site, draw, self.directions, self.sigma, self.centred)
            return {}, {"changes": found * count, "loss": np.array(loss * count), "count": np.array(count)}
        aside = site.rng.spawn(1)[0]
        trained, loss = training.train(
            self, model, site, hook=hooks.clipped(self.clip, np.inf),
            estimate=zeroth.gaussian(self.directions, self.sigma, self.centred, aside),
            optimiser=optimisers.adam(self.lr, (self.sgd_momentum, SECOND), self.decay),
        )  # fmt: skip
        return {}, settings.weighted(trained, loss, count)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))
