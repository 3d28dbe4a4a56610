"""DeepAFL: features that grow deeper block by block, every block and every head solved from sums over clients.

Tang et al., "DeepAFL: Deep Analytic Federated Learning", ICLR 2026; its blocks are those of random feature boosting
(Zozoulenko et al., "Random Feature Representation Boosting", ICML 2025). A sample's state starts as X_0, its features
or a random layer of them. With W the head of ridge regression on the states X, b its intercept and R = Y - X W - 1 b'
what it leaves over, a block is

    F = act(Z A),                  Z: the states at mean 0 and deviation 1, and a constant; A random, drawn from a seed
    D = argmin |R - F D W|^2 + lam |D|^2
    X <- X + F D

after which the head is solved anew: 2 * blocks + 1 rounds of sums, F'F and F'R for a block, X'X and X'Y for a head, so
that everything is that of the pooled data, whatever the split. The gradient of the second line is zero where

    F'F D W W' + lam D = F'R W'.

The right side ends in W', and so does the solution: D = K W' with K (width x classes) from F'F K W'W + lam K = F'R. So
K is all that is sent of a block, and all that a sample's state is moved by are the columns of heads.

lam=auto needs a little more than these sums, and `families/ridge/steps.py` says why: clients send F'X u, too, for a few
vectors u that the server draws.

    >>> import fedsolve as fs
    >>> federation = fs.load("digits").split(fs.dirichlet(0.1), clients=5)
    >>> result = fs.run(fs.DeepAFL(width=64, blocks=2), federation)
    >>> len(result.history), result.accuracy.mean > 0.95
    (5, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import digits, parameters
from fedsolve.arrays import Array, Arrays, take
from fedsolve.data.task import Task
from fedsolve.families.layered import boosting, heads
from fedsolve.families.ridge import calibration, linear, personal
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant, SplitInvariant
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.moments import Moments


@dataclass(frozen=True)
class DeepAFL(boosting.Blockwise, Method):
    """Deep features in closed form, the same for everybody, and a head of each client's own between all and itself."""

    name: ClassVar[str] = "deepafl"
    paper: ClassVar[str] = "Tang et al., DeepAFL, ICLR 2026"
    sends: ClassVar[str] = (
        "X'X (one triangle) and X'Y of the states for each head; F'F and F'R of each block, and F'X u for 16 random u"
    )
    laws: ClassVar[tuple[Law, ...]] = (SplitInvariant(), OthersSplitInvariant(), OrderFree())

    ridge: float | str = parameters.number(
        "auto", "ridge of the heads, added once; auto: by cross-validation on the sums alone", low=0, auto=True
    )
    block_ridge: float | str = parameters.number(
        "auto",
        "ridge of the blocks, times the mean diagonals of F'F and W'W; auto: a third of the best by cross-validation "
        "on the sums alone",
        low=1e-9,
        auto=True,
    )
    alpha: float | str = parameters.number(
        "auto",
        "weight of the client's own data in its head; 0: one model for all; auto: each client's own, by leave-one-out",
        low=0,
        auto=True,
    )
    cache: float = parameters.number(128.0, "megabytes in which a client may keep its states for the next round", low=0)

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own on the features, with an intercept as every head has here."""
        return {"intercept": True}

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The seeds of the start and of each block; matrices are drawn where they are needed."""
        return {"seeds": server.rng.integers(2**31, size=self.blocks + 1)}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """What is solved so far: the blocks; before a block the head it is for; at the end the last head.

        Sums go with the last head where clients solve heads of their own.
        """
        if purpose == "personalize":
            return boosting.model_of(state) | (heads.sums_of(state) if self.alpha != 0 else {})
        return heads.asked(state)

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The next block, or the head behind it, from the sum over those that answered."""
        total = Moments.from_arrays(replies)
        if boosting.is_open(state):
            return heads.next_step(state, total, self.block_ridge)
        probing = server.rng if isinstance(self.block_ridge, str) else None
        return heads.next_head(self, state, total, self.ridge, probing)

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The ridges, the mean squared residual of the head, and how far it can be trusted."""
        loss = {"loss": max(float(np.trace(state["rest"])), 0.0)} if "rest" in state else {}
        return loss | linear.figures(state, "ridge", *sorted(name for name in state if name.endswith("/ridge")))

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Features that were taken for constant and are not, and states whose digits were lost in the sums."""
        raw, last = take("raw", state), state.get("unsure", np.zeros(0))
        lost = digits.sentences(raw["unsure"].tolist(), Moments.from_arrays(raw), names=task.columns) if raw else ()
        return (*lost, *digits.sentences(last.tolist(), kind="feature behind the blocks"))

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The sums of the next block or head; states are kept where there is room and somebody needs them again."""
        number, train = boosting.solved(message), site.train
        if number == 0 and self.start == "features" and not boosting.is_open(message):
            return {}, linear.moments(site, intercept=True).arrays()
        source = boosting.restored(private, message, train, number + 1)
        source = self.boosting().moved(message, source, number + 1, 1e6 * self.cache)
        total = self.boosting().sums(message, source, train.labels, site.task.classes)
        needed = number < self.blocks or self.alpha != 0
        return boosting.kept(source, message) if needed else {}, total.arrays()

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The model of all; with a head of the client's own, in which its samples weigh 1 + alpha, where that is asked.

        A head between the two is there once the last one is: before, there are no sums of the states to lean on.
        """
        model, labels = boosting.model_of(message), site.train.labels
        if self.alpha == 0 or "triangle" not in message:
            return Personal(model)
        rows = self.boosting().last_states(private, message, site.train)
        total, ridge, counted = Moments.from_arrays(message), float(message["ridge"]), site.counted
        head, alpha = personal.own_head(total, ridge, model, rows, labels, alpha=self.alpha, counted=counted)
        return Personal({**model, **head}, {"alpha": alpha})

    def shared(self, message: Arrays) -> Arrays | None:
        """The blocks and the head of all, without the sums that are sent beside them."""
        return boosting.model_of(message)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the last head there is, on the states behind all blocks there are."""
        return self.boosting().scores(model, inputs)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times a sharpness, chosen on left-out predictions where alpha is."""
        return calibration.probabilities(model, scores)
