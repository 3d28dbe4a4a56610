"""What methods by Moreau envelopes share: personal models near a global one, which follows them.

Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1. A client starts with
theta = w_k = w. For each batch it takes a few steps on F(theta) + lam/2 |theta - w_k|^2, and then its copy of the
global model follows, w_k <- w_k - eta lam (w_k - theta). The server takes w <- (1 - beta) w + beta mean w_k, where the
mean is over samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsolve import parameters
from fedsolve.arrays import Arrays, take, under
from fedsolve.errors import ParameterError
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.method import Personal, Server, Site

if TYPE_CHECKING:
    from fedsolve.families.gradient.training import Estimate


@dataclass(frozen=True)
class Envelope(Averaging):
    """The settings of these methods, and all that they do but how they find a gradient."""

    sgd_momentum: float = parameters.number(0.0, "momentum of SGD; the authors have none", low=0, high=1)
    lam: float = parameters.number(15.0, "strength of the pull of the personal model towards the global one", low=0)
    eta: float = parameters.number(0.005, "learning rate of the global model", low=0)
    inner: int = parameters.number(5, "steps of the personal model on each batch", low=1, integer=True)
    beta: float = parameters.number(1.0, "how far the server goes towards the mean; beyond it above 1", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eta * self.lam <= 1:
            raise ParameterError(
                f"parameters 'eta' and 'lam' of {type(self).__name__} must have a product of at most 1, the share of "
                f"the way to the personal model that the global one goes; got {self.eta:g} * {self.lam:g}; lower eta"
            )

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """`beta` of the way to the mean over those that answered."""
        mean = settings.average(replies)
        if self.beta == 1:
            return mean
        before = take("model", state)
        moved = {n: before[n] + a.dtype.type(self.beta) * (a - before[n]) for n, a in take("model", mean).items()}
        return {**mean, **under("model", moved)}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The personal model theta, not the copy of the global one; the global one where a client never took part."""
        return Personal(private or take("model", message))


def follow(method: Envelope, message: Arrays, site: Site, estimate: Estimate | None = None) -> tuple[Arrays, Arrays]:
    """The personal model, which stays with the client, and the reply: the client's copy of the global one.

    The pull towards that copy is added to the gradient of F as it is, whether that one is exact or estimated.
    """
    from fedsolve.families.gradient import hooks, networks, training

    shared = take("model", message)
    copy = networks.laid_out(shared, method.model, site.task)
    personal, loss = training.train(
        method, shared, site, hook=hooks.pulled(copy, method.lam), repeat=method.inner, estimate=estimate,
        after=hooks.following(copy, method.eta * method.lam),
    )  # fmt: skip
    sent = {**personal, **networks.unlaid(copy, method.model, site.task)}  # buffers are not pulled: they are averaged
    return personal, settings.weighted(sent, loss, len(site.train))
