"""APFL, the analytic one: two streams of least squares, one shared by all clients and one that refines it for each.

Fan et al., "APFL: Analytic Personalized Federated Learning via Dual-Stream Least Squares", 2025 (Adaptive Personalized
Federated Learning, of 2020, has the same initials). Phi and Psi are activated random projections of the features,

    G   = argmin |Y - Phi G|^2 + gamma |G|^2                 over everybody's data      (2)
    P_k = argmin |(Y_k - Phi_k G) - Psi_k P|^2 + beta |P|^2  over the client's own      (12)

and a client predicts Phi G + lam Psi P_k (14).

Two things bring `auto` near what is picked on a test set, less so on small tables. G has seen the client's samples, so
its scores there are better than on new ones: the server says how much of itself a sample is predicted by, on average,
and clients choose beta and lam with that taken out. And the gamma of least squared error is too much for the largest
score to be the right one: a tenth is better (docs/results.md). For numbers it is as found, with a free intercept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import digits, parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.ridge import calibration, choice, linear, refinement
from fedsolve.features.maps import ACTIVATIONS, RandomProjection, longest_projection
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant
from fedsolve.method import Method, Personal, Purpose, Rows, Server, Site
from fedsolve.moments import Moments
from fedsolve.solver import freedom

LESS = 0.1  # of the ridge of least squared error
MOST_KEPT = 2.0  # times the inputs: features of the shared stream that are no larger are kept, and computed once
MOST = 0.9  # cap of the mean leverage: beyond it, what is left over is mostly rounding
_WORDS = tuple(ACTIVATIONS)
_SHARED = ("seeds", "weight", "intercept", "sharpness")


@dataclass(frozen=True)
class APFL(Method):
    """Analytic: a shared model on one random projection, refined by each client on another; not APFL of 2020."""

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Fan et al., APFL (analytic, dual-stream), 2025"
    sends: ClassVar[str] = "Phi'Phi (one triangle) and Phi'Y of its training data, once"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OthersSplitInvariant(), OrderFree())

    d_primary: int = parameters.number(1024, "features of the shared stream", low=1, integer=True)
    act_primary: str = parameters.choice("relu", _WORDS, "activation of the shared stream")
    gamma: float | str = parameters.number(
        "auto",
        "ridge of the shared stream; auto: by cross-validation on the sums alone, for classes a tenth of the best",
        low=0,
        auto=True,
    )
    d_refine: int = parameters.number(1024, "features of the refinement", low=1, integer=True)
    act_refine: str = parameters.choice("relu", _WORDS, "activation of the refinement")
    beta: float | str = parameters.number(
        "auto", "ridge of the refinement; auto: each client's own, by leave-one-out", low=0, auto=True
    )
    lam: float | str = parameters.number(
        "auto", "weight of the refinement; auto: each client's own, by leave-one-out", low=0, auto=True
    )
    thin: bool = linear.thin_setting()

    def __post_init__(self) -> None:
        parameters.check(self)

    def init_server(self, server: Server) -> Arrays:
        """The seeds of the two projections; matrices are drawn where they are needed."""
        return {"seeds": server.rng.integers(2**31, size=2)}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seeds, and the shared stream once there is one, with the mean leverage of a sample in it."""
        return {name: state[name] for name in (*_SHARED, "leverage") if name in state}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """APFL (10): the shared stream from the sum over those that answered."""
        total = Moments.from_arrays(replies)
        numbers = total.squares is not None
        gamma = choice.server_ridge(self.gamma, total, intercept=numbers)
        if isinstance(self.gamma, str) and not numbers:
            gamma *= LESS
        leverage = np.array(freedom(total, gamma, intercept=numbers) / total.count)
        start = {"seeds": state["seeds"], "gamma": np.array(gamma), "leverage": leverage}
        return {**start, **linear.global_model(total, gamma, intercept=numbers)}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The ridge of the shared stream, a sample's mean leverage in it, and how far it can be trusted."""
        return linear.figures(state, "gamma", "leverage")

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Features of the shared stream whose digits were lost in the sums; random ones, so they have no names."""
        return digits.sentences(state["unsure"].tolist(), kind="shared feature") if "unsure" in state else ()

    def rows(self, message: Arrays, task: Task) -> Rows:
        """Random features of inputs of unit length, which the projection itself bounds."""
        return Rows(longest_projection(self._primary(message), task.width), task.target.kind == "numbers")

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The statistics of the shared stream; its features are kept for later, where they are not much to keep."""
        phi, numbers, train = self._primary(message), site.task.target.kind == "numbers", site.train
        if not train.in_memory or self.thin or 8 * len(train) * self.d_primary > MOST_KEPT * train.inputs.nbytes:
            return {}, linear.sent(site, intercept=numbers, features=phi, thin=self.thin)
        rows = phi(train.inputs)
        return {"phi": rows}, linear.moments_of(rows, site, intercept=numbers).arrays()

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """APFL (13): ridge on what the shared stream leaves over, in the space of the refinement."""
        train, wanted = site.train, site.task.target.rows(site.train.labels)
        prior = linear.scores(message, private["phi"] if "phi" in private else self._primary(message)(train.inputs))
        targets, rows = wanted - prior, self._refine(message)(train.inputs)
        # What the shared stream would say of each sample had it not seen it, were all leverages equal.
        leverage = min(MOST, float(message["leverage"])) if site.counted else 0.0
        unseen, sharpness = wanted - targets / (1.0 - leverage), float(message.get("sharpness", 0.0))
        found = refinement.refined(unseen, rows, targets, train.labels, sharpness, beta=self.beta, lam=self.lam)
        model = {name: message[name] for name in ("seeds", "weight", "intercept") if name in message}
        model |= {"refine": found.weights, "lam": np.array(found.lam)}
        model |= {"sharpness": np.array(found.sharpness)} if found.sharpness else {}
        return Personal(model, {"beta": found.beta, "lam": found.lam})

    def shared(self, message: Arrays) -> Arrays | None:
        """The shared stream, without the leverage that is sent beside it."""
        return {name: message[name] for name in _SHARED if name in message}

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """APFL (14): the scores of the shared stream, plus lam times those of the refinement where there is one."""
        for name, size in (("weight", self.d_primary), ("refine", self.d_refine)):
            if name in model and model[name].shape[:1] != (size,):  # before a matrix of that size is drawn
                raise DataError(f"{name!r} must have {size} rows, one per random feature; got {model[name].shape}")
        scores = linear.scores(model, self._primary(model)(inputs))
        if "refine" in model and float(model["lam"]) > 0:
            scores += float(model["lam"]) * (self._refine(model)(inputs) @ model["refine"])
        return scores

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times a sharpness, chosen on left-out predictions where beta or lam is."""
        return calibration.probabilities(model, scores)

    def _primary(self, arrays: Arrays) -> RandomProjection:
        return RandomProjection(self.d_primary, self.act_primary, int(arrays["seeds"][0]))

    def _refine(self, arrays: Arrays) -> RandomProjection:
        return RandomProjection(self.d_refine, self.act_refine, int(arrays["seeds"][1]))
