"""FedZO: FedAvg whose clients find gradients by trying directions, without backpropagation.

Fang et al., "Communication-Efficient Stochastic Zeroth-Order Optimization for Federated Learning", IEEE Transactions on
Signal Processing 2022 (3): with b directions v_i uniform on the unit sphere of all D parameters and the same batch,
g = D/(b mu) sum_i [F(w + mu v_i) - F(w)] v_i. Its mean over directions is the gradient of F smoothed over a ball, its
noise grows with D/b: steps must be small where networks are large. b and mu are the authors', for attacks on images of
at most 3072 numbers; lr is that of the other methods, which suits softmax regression on pictures. Models are averaged
by samples, as in FedAvg; in the paper clients have equally many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsolve import parameters
from fedsolve.arrays import Arrays, take
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.averaging import Averaging
from fedsolve.laws import Law, OneModel, StaysAtStart
from fedsolve.method import Method, Personal, Site


@dataclass(frozen=True)
class FedZO(Averaging, Method):
    """FedAvg with gradients from differences of the loss along random directions: forward passes only."""

    name: ClassVar[str] = "fedzo"
    paper: ClassVar[str] = "Fang et al., FedZO, IEEE TSP 2022"
    sends: ClassVar[str] = "its trained model times its number of samples, and that number; its training loss"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OneModel(), StaysAtStart(lr=0.0))

    sgd_momentum: float = parameters.number(0.0, "momentum of SGD; the authors have none", low=0, high=1)
    directions: int = parameters.number(20, "directions that a gradient is found from", low=1, integer=True)
    distance: float = parameters.number(0.001, "how far along a direction the loss is looked at", low=1e-6)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the global model, by trying directions."""
        from fedsolve.families.gradient import training, zeroth

        aside = site.rng.spawn(1)[0]  # so that batches are drawn as FedAvg's are
        estimate = zeroth.on_sphere(self.directions, self.distance, aside)
        trained, loss = training.train(self, take("model", message), site, estimate=estimate)
        return {}, settings.weighted(trained, loss, len(site.train))

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The global model that was received, as it is."""
        return Personal(take("model", message))
