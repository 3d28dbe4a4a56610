"""APFL, the analytic one: two streams of least squares, one shared by all clients and one that refines it for each.

Fan et al., "APFL: Analytic Personalized Federated Learning via Dual-Stream Least Squares", 2025 (an unrelated method of
2020, Adaptive Personalized Federated Learning, has the same initials). With Phi and Psi two random projections of the
features, each followed by an activation,

    G   = argmin |Y - Phi G|^2 + gamma |G|^2                 over everybody's data      (2)
    P_k = argmin |(Y_k - Phi_k G) - Psi_k P|^2 + beta |P|^2  over the client's own      (12)

and a client predicts Phi G + lam Psi P_k (14).

Two things make `auto` as good as what is picked on a test set. G has seen the client's samples, so its scores there are
better than on new ones, the more so the wider Phi is: the server says how much of itself a sample is predicted by, on
average, and clients choose beta and lam with that taken out. And the gamma of least squared error is too much for the
largest score to be the right one: a tenth of it is better (docs/results.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.federation import Samples, Task
from fedsolve.families import ridge as _ridge
from fedsolve.features.maps import ACTIVATIONS, RandomProjection
from fedsolve.method import Method
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, freedom, left_out, solve

LESS = 0.1  # of the ridge of least squared error
MOST = 0.9  # a mean leverage beyond this is taken for this: what is left over is then mostly rounding
LAMBDAS = tuple(step / 10 for step in range(1, 11))  # what lam=auto chooses from, beside 0
_WORDS = tuple(ACTIVATIONS)


@dataclass(frozen=True)
class APFL(Method):
    """Analytic, dual-stream: a shared model on one random projection, refined by each client on another.

    Not the adaptive mixture of 2020 that shares its initials.
    """

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Fan et al., APFL (analytic, dual-stream), 2025"
    sends: ClassVar[str] = "Phi'Phi (one triangle) and Phi'Y of its training data, once"
    laws: ClassVar[frozenset[str]] = frozenset({"others-split-invariant", "order-free"})

    d_primary: int = parameters.number(1024, "features of the shared stream", low=1, integer=True)
    act_primary: str = parameters.choice("relu", _WORDS, "activation of the shared stream")
    gamma: float | str = parameters.number(
        "auto",
        "ridge of the shared stream; auto: a tenth of the best by cross-validation on the sums alone",
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

    def __post_init__(self) -> None:
        parameters.check(self)

    def init_server(self, task: Task, rng: np.random.Generator) -> Arrays:
        """The seeds of the two projections; matrices are drawn where they are needed."""
        return {"seeds": rng.integers(2**31, size=2)}

    def message(self, state: Arrays, client: str) -> Arrays:
        """The seeds, and the shared stream once there is one, with the mean leverage of a sample in it."""
        return {name: state[name] for name in ("seeds", "weight", "leverage") if name in state}

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """APFL (10): the shared stream from the sum over those that answered."""
        total = Moments.from_arrays(replies)
        gamma = LESS * _ridge.server_ridge("auto", total) if isinstance(self.gamma, str) else self.gamma
        solution = solve(total, gamma, solver="auto")
        leverage = np.array(freedom(total, gamma) / total.count)
        known = {"seeds": state["seeds"], "gamma": np.array(gamma), "leverage": leverage}
        return {**known, **total.arrays(), **_ridge.linear_model(solution), **_ridge.trust(solution)}

    def init_client(self, task: Task, train: Samples, rng: np.random.Generator) -> Arrays:
        """Not part of the shared stream yet."""
        return {"counted": np.array(False)}

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """The statistics of the shared stream."""
        return {"counted": np.array(True)}, _ridge.moments(task, train, features=self._primary(message)).arrays()

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """APFL (13): ridge on what the shared stream leaves over, in the space of the refinement."""
        prior = self.predict(message, train.inputs)
        classes = _ridge.one_hot(train.labels, task.classes)
        targets, rows = classes - prior, self._refine(message)(train.inputs)
        # What the shared stream would say of each sample had it not seen it, were all leverages equal.
        leverage = min(MOST, float(message["leverage"])) if bool(private["counted"]) else 0.0
        beta, lam = self._choose(classes - targets / (1.0 - leverage), rows, targets, train)
        solution = solve(Moments.of(rows, targets), beta, solver="auto")
        known = {name: message[name] for name in ("seeds", "weight")}
        return {**known, "refine": solution.weights, "beta": np.array(beta), "lam": np.array(lam)}

    def _choose(self, prior: Float, rows: Float, targets: Float, train: Samples) -> tuple[float, float]:
        """Beta and lam together, by leave-one-out; of equals the first, which is lam = 0: the shared stream.

        `prior` are scores of the shared stream without the samples, `targets` what it left over with them.
        """
        unit = float(np.square(rows).sum()) / rows.shape[1] or 1.0
        betas = [unit * factor for factor in _ridge.RIDGES] if isinstance(self.beta, str) else [self.beta]
        lams = [0.0, *LAMBDAS] if isinstance(self.lam, str) else [self.lam]
        pairs = [(beta, lam) for lam in lams for beta in betas]
        if len(pairs) == 1:
            return pairs[0]
        path = RidgePath.of(rows, targets)
        refined = {}
        for beta in betas:
            gain = path.ridge(beta)
            refined[beta] = left_out(targets, path.fitted(gain), path.leverage(gain))
        return _ridge.best(pairs, (prior + lam * refined[beta] for beta, lam in pairs), train.labels)

    def shared(self, message: Arrays) -> Arrays | None:
        """The shared stream."""
        return {name: message[name] for name in ("seeds", "weight") if name in message}

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """APFL (14)."""
        scores = _ridge.scores(model, self._primary(model)(inputs))
        if "refine" in model and float(model["lam"]) > 0:
            scores += float(model["lam"]) * (self._refine(model)(inputs) @ model["refine"])
        return scores

    def _primary(self, known: Arrays) -> RandomProjection:
        return RandomProjection(self.d_primary, self.act_primary, int(known["seeds"][0]))

    def _refine(self, known: Arrays) -> RandomProjection:
        return RandomProjection(self.d_refine, self.act_refine, int(known["seeds"][1]))
