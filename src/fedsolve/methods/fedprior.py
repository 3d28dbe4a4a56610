"""fedprior, our own: the federation is the prior, and each client moves away from it as far as its data justify.

All from the sums of F'F and F'Y over a feature space with a column of ones (so that F'Y also holds the class means and
counts, and F'F the means). A client fits three times, from three starts:

- *discriminant* and *least squares*: what everybody else knows, from the sums without the client's own part (they
  subtract exactly), so that the client judges it on data it has never seen;
- *own*: nothing of the federation but its class shares.

Each fit has two steps. First, how frequent classes are here, against the federation, as an offset of the scores, with
a scale for the scores. Then what is left over: ridge on the residuals of the resulting probabilities, of some strength
and length. At last the three are mixed. Nothing is picked: candidates are averaged, each weighing by the cross-entropy
of its left-out predictions on the client's own training data. Averages of linear models are linear models,
so the result is one. A client whose data cannot tell candidates apart keeps the first: the federation's discriminant.

Where targets are numbers, there are no shares and no discriminant: a client's model is least squares, drawn towards
that of everybody else by two strengths, one for its slopes and one for its intercept (`families/ridge/towards.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.data.task import Task
from fedsolve.families.ridge import linear, towards
from fedsolve.families.ridge.fits import Fitting, losses_of_powers, weights_of
from fedsolve.families.ridge.knowledge import Knowledge, class_shares, lost_features, whitened
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant
from fedsolve.method import Method, Personal, Purpose, Rows, Server, Site
from fedsolve.moments import Moments

SCALES = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)  # of the discriminant; the first is the theory's
STEEPER = (4.0, 8.0, 16.0, 32.0, 2.0)  # of least squares, whose scores are shares, not logarithms
PARTS = 8  # mixtures of the three fits are in steps of an eighth
MIXTURES = tuple(parts for parts in product(range(PARTS, -1, -1), repeat=3) if sum(parts) == PARTS)
_SENT = ("factor", "cross", "weight", "intercept")
_SENT_FOR_NUMBERS = ("triangle", "cross", "count", "squares", "weight", "intercept")


@dataclass(frozen=True)
class FedPrior(Method):
    """The federation's discriminant as a prior, moved to the client's class shares and residuals by leave-one-out.

    For numbers, the least squares of the others, moved to the client's own intercept and slopes.
    """

    name: ClassVar[str] = "fedprior"
    paper: ClassVar[str] = "fedsolve's own"
    sends: ClassVar[str] = "F'F (one triangle) and F'Y of its training data, with a column of ones, once"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OthersSplitInvariant(), OrderFree())

    shrink: float = parameters.number(
        0.02,
        "share of the mean variance that is added to each variance within classes; of no effect on numbers",
        low=1e-6,
        high=1e6,
    )
    thin: bool = linear.thin_setting()

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def alone(self) -> Mapping[str, object]:
        """Ridge of each client's own, with an intercept as here."""
        return {"intercept": True}

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """What is known about classes, or the sums themselves, and the global model, once there is something."""
        names = _SENT_FOR_NUMBERS if "squares" in state else _SENT
        return {name: state[name] for name in names if name in state}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The global model: the discriminant of all, with everybody's class shares, or the least squares of all."""
        total = Moments.from_arrays(replies)
        if total.squares is not None:
            return {**total.arrays(), **towards.global_state(total)}
        knowledge = Knowledge.of(total, self.shrink)
        weight, offset = knowledge.whitened().everybody().discriminant()
        shared = {"weight": weight, "intercept": offset + np.log(class_shares(knowledge.counts))}
        lost = {"unsure": np.flatnonzero(lost_features(total, self.shrink))}
        return {**total.arrays(), **knowledge.arrays(), **shared, **lost}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """How many samples the sums hold, and for numbers the ridge."""
        return {name: state[name].item() for name in ("count", "ridge") if name in state}

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """Features whose digits were lost in the scatter within classes, or that only look constant."""
        return linear.warnings(state, task, intercept=True)

    def rows(self, message: Arrays, task: Task) -> Rows:
        """The task's features, with a column of ones."""
        return linear.bounded(task, intercept=True)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The statistics of the client's data, with a column of ones."""
        return {}, linear.sent(site, intercept=True, thin=self.thin)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """A mixture of fits, weighed by their left-out predictions on the client's own training data."""
        train = site.train
        if site.task.target.kind == "numbers":
            total, features = Moments.from_arrays(message), linear.design(train, intercept=False)
            line, moved = towards.own_line(total, features, train.labels, counted=site.counted)
            return Personal(line._asdict(), moved)
        known = site.once(whitened, message)
        rows = linear.design(train, intercept=False)
        others = known.without(rows, train.labels) if site.counted else known.everybody()
        weight, offset = others.discriminant()
        scores, turn = rows @ weight, others.turn(weight)
        straight = -(others.centre @ weight) @ turn
        fitting = Fitting.of(rows, train.labels, known.known)
        found = [
            fitting.fit(scores + offset, SCALES),
            fitting.fit(scores @ turn + straight, STEEPER),
            fitting.fit(np.zeros_like(scores), (1.0,)),
        ]
        losses = losses_of_powers([fit.left_out / PARTS for fit in found], MIXTURES, train.labels)
        mixture = weights_of(losses, len(rows)) @ np.array(MIXTURES) / PARTS

        def mixed(name: str) -> Float:
            return np.asarray(sum(w * getattr(fit, name) for w, fit in zip(mixture, found, strict=True)))

        # All weights are the discriminant's, turned, and a correction: a product each, whatever the mixture.
        first, second, _ = (w * fit.scale for w, fit in zip(mixture, found, strict=True))
        correction, shift = fitting.behind(mixed("along"))
        own = weight @ (first * np.eye(len(turn)) + second * turn)
        own += correction
        intercept = first * offset + second * straight + mixed("offset") + shift
        chosen = dict(zip(("discriminant", "least_squares", "own"), mixture.tolist(), strict=True))
        chosen |= {name: float(mixed(name)) for name in ("pseudocount", "step")}
        return Personal({"weight": own, "intercept": intercept}, chosen)

    def shared(self, message: Arrays) -> Arrays | None:
        """The global model, without what is sent beside it."""
        return {name: message[name] for name in ("weight", "intercept") if name in message}

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the linear model: logarithms of class shares, up to a constant per sample; or the numbers."""
        return linear.scores(model, inputs)
