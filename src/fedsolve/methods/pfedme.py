"""pFedMe: a personal model near the global one, which descends on how well personal models near it can do.

Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020; the algorithm is in
`families/gradient/envelope.py`. What is evaluated is theta. The authors' code evaluates the client's copy of the global
model in its place, and has a weight decay of 0.001 on theta, which the paper has not. lam, eta, inner and beta are
the authors' for MNIST. Their lr of 0.1 is for pictures that are scaled otherwise: where bytes are brought to -1 ... 1,
as here, it makes theta swing. lr should stay below 1 / lam, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (StaysAtStart(lam=0.0), StaysAtStart(beta=0.0))

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The personal model from the global one, and the copy of the global one after it."""
        return follow(self, message, site)
