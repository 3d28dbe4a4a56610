"""FedPHP: each client inherits a personal model from round to round, which teaches the one that it trains for all.

Li et al., "FedPHP: Federated Personalization with Inherited Private Models", ECML-PKDD 2021. From the global model a
client descends on (1 - lam) CE + lam R to w_k, which is averaged as in FedAvg. R holds what the network makes of a
batch near what the inherited model h_k makes of it, which is fixed: the squared maximum mean discrepancy of features,
under Gaussian kernels of five widths, or the distillation of scores at temperature 4. Then h_k <- m h_k + (1 - m) w_k,
and h_k is the client's model. m grows from 0 to mu.

The authors let m = mu (earlier rounds of the client) / (participation T). A client does not know how often it will be
asked, so that here m = mu (rounds that are over) / T, the same where everybody takes part and on average; 0 in a
client's first round, in which R is taken to the model that it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Law, SharesWith
from fedsolve.method import Method, Personal, Site

if TYPE_CHECKING:
    from fedsolve.families.gradient.training import Loss

TEMPERATURE = 4.0  # of the inherited model's scores; those of the network in training have none


@dataclass(frozen=True)
class FedPHP(Averaging, Method):
    """FedAvg taught by a personal model, a moving average of the client's trained ones, which is what is evaluated."""

    name: ClassVar[str] = "fedphp"
    paper: ClassVar[str] = "Li et al., FedPHP, ECML-PKDD 2021"
    sends: ClassVar[str] = (
        "its trained model times its number of samples, and that number; its loss; not what it inherits"
    )
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (SharesWith("fedavg", lam=0.0, clip=0.0),)

    lam: float = parameters.number(0.05, "share of the inherited model's teaching in the loss", low=0, high=0.99)
    mu: float = parameters.number(0.9, "what the inherited model's share in the next one grows to", low=0, high=1)
    match: str = parameters.choice("features", ("features", "scores"), "what the inherited model teaches")
    clip: float = parameters.number(100.0, "largest norm of a gradient; 0: any", low=0)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, with the inherited one beside it; then that one follows."""
        from fedsolve.families.gradient import hooks, training

        shared, loss, beside = take("model", message), None, dict[str, Array]()
        if self.lam:
            # Once per round: the inherited model is fixed, so that it makes the same of a sample in every pass.
            loss, beside = self._taught(), {"inherited": self._made(private or shared, site)}
        trained, value = training.train(self, shared, site, loss=loss, beside=beside, hook=hooks.clipped(self.clip))
        return self.inherited(private, trained, site.round), settings.weighted(trained, value, len(site.train))

    def inherited(self, before: Arrays, trained: Arrays, number: int) -> Arrays:
        """The personal model after round `number`: m of what it was, and the rest of what was trained."""
        share = self.mu * min(1.0, (number - 1) / self.rounds) if before else 0.0
        if share == 0:
            return trained
        return {n: a.dtype.type(share) * before[n] + a.dtype.type(1 - share) * a for n, a in trained.items()}

    def _made(self, model: Arrays, site: Site) -> Array:
        from fedsolve.families.gradient import networks

        made = networks.features if self.match == "features" else networks.scores
        return made(self.model, model, site.train.inputs, site.task)

    def _taught(self) -> Loss:
        from fedsolve.families.gradient import losses

        terms: dict[str, Loss] = {
            "features": lambda batch: losses.discrepancy(batch.features, batch.beside["inherited"]),
            "scores": lambda batch: losses.imitated(batch, batch.beside["inherited"], TEMPERATURE),
        }
        return losses.summed(1 - self.lam, losses.own, self.lam, terms[self.match])

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The inherited model; the global one for a client that never took part."""
        return Personal(private or take("model", message))
