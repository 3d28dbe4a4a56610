"""pFedMe: a personal model near the global one, which descends on how well personal models near it can do.

Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020; the algorithm is in
`families/gradient/envelope.py`. What is evaluated is theta. The authors' code evaluates the client's copy of the global
model in its place, and has a weight decay of 0.001 on theta, which the paper has not. lr is the authors' for softmax
regression on MNIST, halved, so that lr lam stays below 1 and theta does not swing about the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays
from fedsolve.families.gradient.envelope import Envelope, follow
from fedsolve.laws import Law, StaysAtStart
from fedsolve.method import Method, Site


@dataclass(frozen=True)
class PFedMe(Envelope, Method):
    """A personal model per client, held near a global one by a Moreau envelope, on which that one descends."""

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "Dinh et al., pFedMe, NeurIPS 2020"
    sends: ClassVar[str] = "its copy of the global model times its number of samples, and that number; its loss"
    laws: ClassVar[tuple[Law, ...]] = (StaysAtStart(lam=0.0), StaysAtStart(beta=0.0))

    lr: float = parameters.number(0.05, "learning rate of the personal model", low=0)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The personal model from the global one, and the copy of the global one after it."""
        return follow(self, message, site)
