"""FedDyn: local losses that change from round to round, until their minima agree with that of all of them.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021. Client k descends from w on
F_k(v) - <g_k, v> + alpha/2 |v - w|^2 to w_k, and then takes g_k <- g_k - alpha (w_k - w). Here d_k = -g_k / alpha is
kept, the sum of the client's changes w_k - w: the two terms together pull towards w - d_k, and the server's
w <- mean w_k + mean d_k, with plain means, the first over those that answered and the second over all that ever did.
It has D = sum d_k without being told any: D <- D + sum (w_k - w). So alpha drops out of the server's rule, and at
alpha -> 0 this is not FedAvg: the first step is twice as long.

At rest the gradient of F_k is -alpha d_k, and the d_k sum to zero: w is the minimum of the mean of F_k over clients.
With alpha_k = alpha / (n_k / mean n), as in the authors' code (`by_samples`), it is that of the mean over samples; the
server learns the mean n in the first round, in which alpha_k is alpha. The model that is evaluated is the mean of the
trained ones, also as in that code: what is sent out overshoots it. Running statistics are averaged, never corrected.
The weight decay of that code (1e-3 on pictures) is left out: local SGD has none here, whatever the method, and it would
move the minimum that all are led to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.gradient import settings
from fedsolve.laws import Law, OneModel
from fedsolve.method import Method, Personal, Purpose, Server, Site


@dataclass(frozen=True)
class FedDyn(settings.Training, Method):
    """One global model, with terms in the local losses that grow until all local minima agree."""

    name: ClassVar[str] = "feddyn"
    paper: ClassVar[str] = "Acar et al., FedDyn, ICLR 2021"
    sends: ClassVar[str] = "its trained model, its number of samples, its training loss, and whether it is its first"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OneModel(),)

    lr: float = parameters.number(0.1, "learning rate", low=0)
    sgd_momentum: float = parameters.number(0.0, "momentum of SGD; the paper has none", low=0, high=1)
    alpha: float = parameters.number(0.01, "strength of the terms", low=1e-6)
    by_samples: bool = parameters.flag(True, "minimise the mean loss over samples; false: over clients")
    clip: float = parameters.number(10.0, "largest norm of a gradient; 0: any", low=0)
    evaluate: str = parameters.choice("mean", ("mean", "sent"), "the mean of the trained models, or what is sent out")

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first model; nobody has moved it."""
        from fedsolve.families.gradient import networks

        first = networks.initial(self.model, server.task, server.rng)
        drift = {name: np.zeros_like(first[name]) for name in sorted(networks.parameter_names(self.model, server.task))}
        return {
            **under("model", first), **under("mean", first), **under("drift", drift),
            "clients": np.array(0), "samples": np.array(0),
        }  # fmt: skip

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The server's model, and how many samples a client has on average, where that is known."""
        if purpose == "personalize":
            return under("model", take("mean" if self.evaluate == "mean" else "model", state))
        known = int(state["clients"])
        return {**settings.sent(state), "size": np.array(int(state["samples"]) / known if known else 0.0)}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The mean of the trained models, plus the mean over all clients of what each has drifted so far."""
        here = int(replies["here"])
        if here < 1:
            raise DataError(f"replies must come from at least one client; got {here}")
        clients, samples = (int(state[name]) + int(replies[f"new_{name}"]) for name in ("clients", "samples"))
        sent = take("model", state)
        mean = {name: array / array.dtype.type(here) for name, array in take("model", replies).items()}
        drift = {
            name: before + before.dtype.type(here) * (mean[name] - sent[name])
            for name, before in take("drift", state).items()
        }
        model = {
            name: array + drift[name] / array.dtype.type(clients) if name in drift else array
            for name, array in mean.items()
        }
        return {
            **under("model", model), **under("mean", mean), **under("drift", drift),
            "clients": np.array(clients), "samples": np.array(samples),
            "loss": np.array(float(replies["loss"]) / int(replies["count"])),
        }  # fmt: skip

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over samples, once clients have trained."""
        return settings.mean_loss(state)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training with both terms; then the drift takes the change in."""
        from fedsolve.families.gradient import hooks, networks, training

        shared, count = take("model", message), len(site.train)
        names = sorted(networks.parameter_names(self.model, site.task))
        anchor = {name: shared[name] - private[name] if private else shared[name] for name in names}
        size = float(message["size"])
        alpha = self.alpha * size / count if self.by_samples and size else self.alpha
        pull = hooks.towards(anchor, alpha, self.model, site.task)
        trained, loss = training.train(self, shared, site, hook=hooks.chain(pull, hooks.clipped(self.clip)))
        new = not site.counted
        reply = {
            **under("model", trained), "here": np.array(1), "count": np.array(count), "loss": np.array(loss * count),
            "new_clients": np.array(int(new)), "new_samples": np.array(count if new else 0),
        }  # fmt: skip
        return {name: trained[name] - anchor[name] for name in names}, reply

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model, as it was sent."""
        return take("model", message)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.predictions(self.model, model, inputs, task)
