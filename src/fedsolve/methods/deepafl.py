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

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import count
from operator import add
from typing import ClassVar

import numpy as np

from fedsolve import digits, parameters
from fedsolve.arrays import Array, Arrays, Float, flat, take, under
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.families.layered import layers
from fedsolve.families.ridge import calibration, choice, linear, personal, standard, steps
from fedsolve.features.maps import ACTIVATIONS, RandomProjection, projection
from fedsolve.laws import Law, OrderFree, OthersSplitInvariant, SplitInvariant
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.moments import Moments
from fedsolve.solver import freedom, solution_of

ROWS = 2048  # samples that are computed with at a time
BIAS = 0.5  # deviation of the constant part before an activation, where that of the rest is 1
LESS = 0.3  # of the ridge of least squared error, which is too much for the largest score to be the right one
_HEAD = ("weight", "intercept", "sharpness")
_SUMS = ("triangle", "cross", "count", "ridge")
_BLOCK = ("weight", "origin", "scale", "step")
_LASTING = ("start/", "block/")


@dataclass(frozen=True)
class DeepAFL(Method):
    """Deep features in closed form, the same for everybody, and a head of each client's own between all and itself."""

    name: ClassVar[str] = "deepafl"
    paper: ClassVar[str] = "Tang et al., DeepAFL, ICLR 2026"
    sends: ClassVar[str] = (
        "X'X (one triangle) and X'Y of the states for each head; F'F and F'R of each block, and F'X u for 16 random u"
    )
    laws: ClassVar[tuple[Law, ...]] = (SplitInvariant(), OthersSplitInvariant(), OrderFree())

    blocks: int = parameters.number(4, "blocks; each takes two rounds", low=1, integer=True)
    width: int = parameters.number(256, "random features of a block, and of a random start", low=1, integer=True)
    activation: str = parameters.choice("gelu", tuple(ACTIVATIONS), "activation of the random features")
    start: str = parameters.choice(
        "features",
        ("features", "random"),
        "first state: all features at mean 0 and deviation 1, or random features of the inputs at unit length",
    )
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

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def rounds(self) -> int:
        """One for the first head, and for each block one for itself and one for the head behind it."""
        return 2 * self.blocks + 1

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
            return _model(state) | {name: state[name] for name in _SUMS if name in state and self.alpha != 0}
        extra = ("probes", "intercept") if _open(state) else ()  # the head's weight is the open block's
        return {name: state[name] for name in state if name in ("seeds", *extra) or name.startswith(_LASTING)}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The next block, or the head behind it, from the sum over those that answered."""
        total = Moments.from_arrays(replies)
        return self._stepped(state, total) if _open(state) else self._headed(state, total, server)

    def _headed(self, state: Arrays, total: Moments, server: Server) -> dict[str, Array]:
        """The head of the states so far, and what the next block starts from."""
        number = _steps(state)
        following = {name: state[name] for name in state if name == "seeds" or name.startswith((*_LASTING, "raw/"))}
        if number == 0 and self.start == "features":
            start, total = _start(total)
            following |= start
        ridge = choice.server_ridge(self.ridge, total, intercept=True)
        head = linear.global_model(total, ridge, intercept=True)
        following |= {**head, "ridge": np.array(ridge), "rest": _rest(total, head, ridge)}
        if number == self.blocks:
            return following
        origin, scale = standard.origin_and_scale(total)
        live = max(1, int(np.count_nonzero(scale)))  # so that a random combination has deviation 1
        block = {"weight": head["weight"], "origin": origin, "scale": scale / np.sqrt(live)}
        following |= under(f"block/{number}", block)
        if isinstance(self.block_ridge, str):
            following["freedom"] = np.array(freedom(total, ridge, intercept=True))
            following["probes"] = steps.probes(total, ridge, server.rng)
        return following

    def _stepped(self, state: Arrays, total: Moments) -> dict[str, Array]:
        """The step of the open block. The head stays: it is what the step is for, and good until there is a new one."""
        weight, number = state["weight"], _steps(state)
        classes = weight.shape[1]
        path = steps.StepPath.of(total.gram, total.cross[:, :classes], weight)
        share = self.block_ridge
        if isinstance(share, str):
            probed, used = total.cross[:, classes:], float(state["freedom"])
            share = LESS * path.cross_validated(total.count, state["rest"], used, probed)
        gone = {*_SUMS, "rest", "freedom", "probes"}  # of states that samples are no longer in
        following = {name: array for name, array in state.items() if name not in gone}
        return following | under(f"block/{number}", {"step": path.step(share), "ridge": np.array(share)})

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
        number, train, classes = _steps(message), site.train, site.task.classes
        if number == 0 and self.start == "features" and not _open(message):
            return {}, linear.moments(site, intercept=True).arrays()
        source = self._moved(message, _restored(private, message, train, number + 1), number + 1)
        states = self._states(message, source, number + 1)
        if _open(message):
            parts = (self._block_sums(message, state, train.labels[rows], number) for rows, state in states)
        else:
            parts = (Moments.of(state, train.labels[rows], classes=classes, intercept=True) for rows, state in states)
        total: Moments = reduce(add, parts)
        needed = number < self.blocks or self.alpha != 0
        return layers.keep(source, _tag(message, source.depth)) if needed else {}, total.arrays()

    def _block_sums(self, message: Arrays, state: Float, labels: Array, number: int) -> Moments:
        """F'F, and F' times what the head leaves over; behind it F'X u for the probes u, where there are some."""
        head, intercept = message[f"block/{number}/weight"], message["intercept"]
        targets = linear.one_hot(labels, len(intercept)) - state @ head - intercept
        if "probes" in message:
            targets = np.column_stack([targets, state @ message["probes"][:-1] + message["probes"][-1]])
        return Moments.of(self._features(message, number, state), targets)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The model of all; with a head of the client's own, in which its samples weigh 1 + alpha, where that is asked.

        A head between the two is there once the last one is: before, there are no sums of the states to lean on.
        """
        model, train, alpha = _model(message), site.train, self.alpha
        if alpha == 0 or "triangle" not in message:
            return Personal(model)
        depth = _steps(message) + 1
        source = _restored(private, message, train, depth)
        rows = np.concatenate([state for _, state in self._states(message, source, depth)])
        rows = np.column_stack([rows, np.ones(len(rows))])
        total, ridge, sharpness = Moments.from_arrays(message), float(message["ridge"]), float(model["sharpness"])
        if isinstance(alpha, str):
            prior = rows @ np.vstack([model["weight"], model["intercept"]])
            alpha, sharpness = personal.choose_alpha(
                total, ridge, rows, prior, train.labels, sharpness, counted=site.counted, intercept=True
            )
        own_moments = Moments.of(rows, train.labels, classes=site.task.classes)
        solution = solution_of(total + own_moments.scaled(alpha), ridge, intercept=True, solver="auto")
        head = {**linear.linear_model(solution), "sharpness": np.array(sharpness)}
        return Personal({**model, **head}, {"alpha": alpha})

    def shared(self, message: Arrays) -> Arrays | None:
        """The blocks and the head of all, without the sums that are sent beside them."""
        return _model(message)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the last head there is, on the states behind all blocks there are."""
        self._check(model, flat(inputs).shape[1])
        result = np.empty((len(inputs), model["weight"].shape[1]))
        for rows, state in self._states(model, layers.Source(inputs), _steps(model) + 1):
            result[rows] = state @ model["weight"] + model["intercept"]
        return result

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times a sharpness, chosen on left-out predictions where alpha is."""
        return calibration.probabilities(model, scores)

    # --- states of samples ---

    def _states(self, arrays: Arrays, source: layers.Source, depth: int) -> Iterator[tuple[slice, Float]]:
        """A few samples at a time, at `depth`: 0 are raw inputs, 1 is the start, and each block is one more."""
        blocks = [take(f"block/{number}", arrays) for number in range(depth - 1)]
        for start in range(0, len(source.inputs), ROWS):
            rows = slice(start, start + ROWS)
            state = source.inputs[rows] if source.depth else self._first(arrays, source.inputs[rows])
            for number in range(max(source.depth - 1, 0), depth - 1):
                along = self._features(arrays, number, state) @ blocks[number]["step"]
                state = state + along @ blocks[number]["weight"].T  # X + F D with D = K W'
            yield rows, state

    def _moved(self, arrays: Arrays, source: layers.Source, depth: int) -> layers.Source:
        """The samples at `depth` where that fits into the cache, else the source as it is."""
        size = flat(source.inputs).shape[1] if self.start == "features" else self.width
        if source.depth == depth or 8.0 * len(source.inputs) * size > 1e6 * self.cache:
            return source
        kept = np.empty((len(source.inputs), size))
        for rows, state in self._states(arrays, source, depth):
            kept[rows] = state
        return layers.Source(kept, depth)

    def _first(self, arrays: Arrays, inputs: Array) -> Float:
        """X_0 of a few samples."""
        if self.start == "random":
            return RandomProjection(self.width, self.activation, int(arrays["seeds"][0]))(inputs)
        first: Float = (flat(inputs) - arrays["start/origin"]) * arrays["start/scale"]
        return first

    def _features(self, arrays: Arrays, number: int, state: Float) -> Float:
        """F of a block: before the activation N(0, 1), whatever the size and number of the states."""
        origin, scale = arrays[f"block/{number}/origin"], arrays[f"block/{number}/scale"]
        unit = 1.0 / np.sqrt(1.0 + BIAS**2)
        rows = np.full((len(state), state.shape[1] + 1), unit * BIAS)
        rows[:, :-1] = (state - origin) * (unit * scale)
        random = RandomProjection(self.width, self.activation, int(arrays["seeds"][number + 1]))
        return ACTIVATIONS[self.activation](rows @ projection(random, rows.shape[1]))

    def _check(self, model: Arrays, inputs: int) -> None:
        """Refuse a model whose arrays do not fit together, before matrices of any size are drawn."""
        size = inputs if self.start == "features" else self.width
        classes = model["weight"].shape[-1]
        wanted: dict[str, tuple[int, ...]] = {"seeds": (self.blocks + 1,), "weight": (size, classes)}
        wanted |= {"start/origin": (size,), "start/scale": (size,)} if self.start == "features" else {}
        shapes = ((size, classes), (size,), (size,), (self.width, classes))
        for number in range(_steps(model)):
            wanted |= {f"block/{number}/{name}": shape for name, shape in zip(_BLOCK, shapes, strict=True)}
        for name, shape in wanted.items():
            if model[name].shape != shape:
                raise DataError(f"{name!r} must have the shape {shape} for these settings; got {model[name].shape}")


# --- what is solved, and what is sent of it ---


def _rest(total: Moments, head: Arrays, ridge: float) -> Float:
    """What a head leaves over, R'R over the samples: Y'Y - W'X'Y - ridge W'W, where Y'Y are the counts of classes."""
    stacked, weight = np.vstack([head["weight"], head["intercept"]]), head["weight"]
    rest = np.diag(total.cross[-1]) - stacked.T @ total.cross - ridge * (weight.T @ weight)
    return np.asarray(rest / total.count)


def _start(total: Moments) -> tuple[dict[str, Array], Moments]:
    """Where all samples are moved to, at mean 0 and deviation 1, and their moments there: no round is needed for it.

    A feature that looks constant and is not is told of, with the sums that tell.
    """
    origin, scale = standard.origin_and_scale(total)
    start = under("start", {"origin": origin, "scale": scale})
    constant = np.flatnonzero(scale == 0)
    unsure = np.intersect1d(solution_of(total, intercept=True, solver="auto").unsure, constant) if len(constant) else ()
    if len(unsure):
        start |= under("raw", {**total.arrays(), "unsure": np.asarray(unsure, dtype=np.int64)})
    return start, standard.standardised(total, origin, scale)


def _steps(arrays: Arrays) -> int:
    """How many blocks are solved."""
    return next(number for number in count() if f"block/{number}/step" not in arrays)


def _open(arrays: Arrays) -> bool:
    """Whether a block waits for its step; else a head is next."""
    return f"block/{_steps(arrays)}/weight" in arrays


def _restored(private: Arrays, message: Arrays, train: Samples, depth: int) -> layers.Source:
    """The states that a client kept, where they were made with what the message has; else its raw inputs."""
    return layers.restore(private, train, _tag(message, min(int(private.get("depth", 0)), depth)), depth)


def _tag(arrays: Arrays, depth: int) -> int:
    """What states at a depth were made with, as a number: a step depends on all that was before it."""
    made = ("seeds", "start/origin") if depth < 2 else (f"block/{depth - 2}/step",)
    return zlib.crc32(b"".join(arrays[name].tobytes() for name in made if name in arrays))


def _model(arrays: Arrays) -> dict[str, Array]:
    """The seeds, the start, the blocks that are solved and the head: all that predicting takes."""
    blocks = (f"block/{number}/{part}" for number in range(_steps(arrays)) for part in _BLOCK)
    return {name: arrays[name] for name in ("seeds", "start/origin", "start/scale", *_HEAD, *blocks) if name in arrays}
