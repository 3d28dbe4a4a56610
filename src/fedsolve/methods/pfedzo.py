"""pFedZO: pFedMe without backpropagation.

Chen et al., pFedZO, ICPP 2024, as FedACnnL describes it: the gradient of F in pFedMe's steps is estimated from values
of the loss along random directions, as in FedZO; the pull towards the global model is exact. The authors' constants are
not known: lr is small, since the noise of an estimate grows with the number of parameters over that of directions.
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
class PFedZO(Envelope, Method):
    """pFedMe with gradients from differences of the loss along random directions: forward passes only."""

    name: ClassVar[str] = "pfedzo"
    paper: ClassVar[str] = "Chen et al., pFedZO, ICPP 2024"
    sends: ClassVar[str] = "its copy of the global model times its number of samples, and that number; its loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (StaysAtStart(lam=0.0), StaysAtStart(beta=0.0))

    lr: float = parameters.number(0.005, "learning rate of the personal model", low=0)
    directions: int = parameters.number(20, "directions that a gradient is found from", low=1, integer=True)
    distance: float = parameters.number(0.001, "how far along a direction the loss is looked at", low=1e-6)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The personal model from the global one, by trying directions, and the copy of the global one after it."""
        from fedsolve.families.gradient import zeroth

        aside = site.rng.spawn(1)[0]  # so that batches are drawn as pFedMe's are
        return follow(self, message, site, zeroth.on_sphere(self.directions, self.distance, aside))
