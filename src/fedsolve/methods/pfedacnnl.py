"""pFedACnnL: clients with similar labels train a network together, and each derives its own from it, layer by layer.

Gu et al., "Analytic Personalized Federated Meta-Learning", 2025. Three stages:

1. Clients send a profile; K-means puts them into groups (8), (9).
2. Each group trains a network as FedACnnL does: a sum for each group and layer (11).
3. Each client solves every layer anew on its own data, drawn towards the group's layer M (13):

    W = argmin |Y - X W|^2 + epsilon |W - M|^2 = (X'X + epsilon I)^-1 (X'Y + epsilon M)

The profile of (9) reads Q y; Q is classes x width, so it is the row y Q here. With a linear model there is no hidden
layer and no Q: the profile is then the label shares themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, flat, take, under
from fedsolve.data.federation import Samples, Task
from fedsolve.families import layered as nets
from fedsolve.families import ridge as _ridge
from fedsolve.families.layered import Stage
from fedsolve.families.layered import layers as _layers
from fedsolve.method import Method, Plan
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out, solve

EPSILONS = (1e6, *(10.0 ** (power / 2) for power in range(8, -9, -1)))  # times the mean square: what auto chooses from
RESTARTS = 10  # of K-means


@dataclass(frozen=True)
class PFedACnnL(Method):
    """A network for each group of similar clients, and for each client its own, solved layer by layer.

    groups=1 is the paper's variant without clustering (WC), personal=false the one without the personal solve (WP),
    adaptive=false the one without adaptive blocks (WA).
    """

    name: ClassVar[str] = "pfedacnnl"
    paper: ClassVar[str] = "Gu et al., Analytic Personalized Federated Meta-Learning (pFedACnnL), 2025"
    sends: ClassVar[str] = (
        "its label shares, encoded (or its mean input); X'X (one triangle) and X'Y of each layer's inputs"
    )
    laws: ClassVar[frozenset[str]] = frozenset({"order-free"})

    network: str = parameters.text(
        "mlp:128,64", "layers: lr, mlp:128,64, dcnn:0.125 or conv:3x3x32,relu,...,dense", nets.parse
    )
    groups: int = parameters.number(10, "groups of clients; 1: all together", low=1, integer=True)
    profile: str = parameters.choice(
        "labels", ("labels", "features"), "what clients are grouped by; labels show label shares"
    )
    personal: bool = parameters.flag(True, "each client solves every layer anew; without, it gets its group's network")
    epsilon: float | str = parameters.number(
        "auto",
        "pull towards the group's layer; auto: each client's and layer's own, by leave-one-out",
        low=0,
        auto=True,
    )
    gamma: float = parameters.number(1.0, "ridge of every layer, added once a group on the server", low=0)
    scale: str = parameters.choice(
        "auto", nets.SCALES, "of the inputs: unit length, or square roots first (power); auto: power for images"
    )
    block: int = parameters.number(
        4096, "rows a client works on at a time; of a convolution, patches", low=1, integer=True
    )
    adaptive: bool = parameters.flag(False, "slow clients are told to use larger blocks, up to limit")
    limit: int = parameters.number(32768, "rows in a block that a client has memory for", low=1, integer=True)
    cache: float = parameters.number(
        128.0, "megabytes in which a client may keep activations for the next layer", low=0
    )

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def rounds(self) -> int:
        """One a trained layer, and one for the profiles where there are groups."""
        return nets.parse(self.network).depth + (self.groups > 1)

    @property
    def paced(self) -> bool:
        """Whether blocks follow the time that clients take."""
        return self.adaptive

    # --- server half ---

    def init_server(self, task: Task, rng: np.random.Generator) -> Arrays:
        """The seeds of the label encodings and of K-means. A network that does not fit the inputs is refused here."""
        self._reader().stages(task)
        state = {"seeds": rng.integers(2**31, size=2)}
        return state if self.groups > 1 else {**state, "model/0/group": np.array([0])}

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """First every profile, then a sum for each group."""
        if not _models(state):
            return Plan(tuple(clients), "collect")
        return Plan(tuple(clients), {client: str(_group(state, client)) for client in clients})

    def message(self, state: Arrays, client: str) -> Arrays:
        """The seeds, and once there are groups the number of the client's and its layers so far."""
        models = _models(state)
        own = models[_group(state, client)] if models else {}
        return {"seeds": state["seeds"], **_layers.known(own), **({"group": own["group"]} if own else {})}

    def aggregate(self, state: Arrays, replies: Arrays) -> Arrays:
        """Groups from profiles; then (11): the next layer of each group from the sum over those that answered."""
        models = _models(state)
        if not models:
            return {**state, **_grouped(replies, self.groups, int(state["seeds"][1]))}
        answered = {number for number in models if f"{number}/count" in replies}
        kept = _without(state, set(models) - answered, answered)
        for number in sorted(answered):
            depth = len(_layers.layers(models[number]))
            solution = _layers.solved(Moments.from_arrays(take(str(number), replies)), self.gamma)
            layer = {**nets.unstacked(solution.weights), **_ridge.trust(solution)}
            kept |= under(f"model/{number}/layer/{depth}", layer)
        return kept

    # --- client half ---

    def update(
        self, private: Arrays, message: Arrays, task: Task, train: Samples, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """The profile; then the statistics of the next layer of the group's network."""
        if "group" not in message:
            return {}, {"profile": self._profile(message, task, train)}
        reader = self._reader(_layers.paced(self.block, self.limit, message))
        stages, depth, group = reader.stages(task), len(_layers.layers(message)), int(message["group"][0])
        source = _layers.restore(private, train, group, depth)
        if depth + 1 < len(stages):
            source = _layers.moved(reader, stages, message, source, depth, 1e6 * self.cache)
        own = _layers.statistics(reader, stages, message, source, train.labels, depth)
        return _layers.keep(source, group), own.arrays()

    def _profile(self, message: Arrays, task: Task, train: Samples) -> Float:
        """PFedACnnL (9): label shares times the narrowest encoding; or the mean of the inputs."""
        if self.profile == "features":
            parts = [
                flat(nets.prepare(train.inputs[rows], self.scale)).sum(0) for rows in _slices(len(train), self.block)
            ]
            mean: Float = np.sum(parts, axis=0) / len(train)
            return mean
        shares = np.bincount(train.labels, minlength=task.classes) / len(train)
        hidden = self._reader().stages(task)[:-1]
        if not hidden:  # (8) has no encoding to choose from
            return shares
        number = min(range(len(hidden)), key=lambda place: hidden[place].width)
        encoded: Float = shares @ nets.encoding(int(message["seeds"][0]), number, task.classes, hidden[number].width)
        return encoded

    def personalize(self, private: Arrays, message: Arrays, task: Task, train: Samples) -> Arrays:
        """PFedACnnL (13), layer by layer, once the group's network is complete; until then, what there is of it."""
        group, reader = _layers.layers(message), self._reader()
        if not group:  # only profiles so far: the client's own label shares for everybody
            return {"shares": np.bincount(train.labels, minlength=task.classes) / len(train)}
        model: dict[str, Array] = {"seeds": message["seeds"]}
        stages = reader.stages(task)
        if not self.personal or len(group) < len(stages):
            return _layers.known(message)
        source = _layers.Source(train.inputs)
        for number, layer in enumerate(group):
            source = _layers.moved(reader, stages, model, source, number, 1e6 * self.cache)
            own, epsilon = self._own_layer(reader, stages, model, source, nets.stacked(layer), train)
            model |= under(f"layer/{number}", {**nets.unstacked(own), "epsilon": np.array(epsilon)})
        return model

    def _own_layer(
        self,
        reader: _layers.Reader,
        stages: tuple[Stage, ...],
        model: Arrays,
        source: _layers.Source,
        prior: Float,
        train: Samples,
    ) -> tuple[Float, float]:
        """PFedACnnL (13) for one layer, and the epsilon that was used."""
        depth = len(_layers.layers(model))
        own = _layers.statistics(reader, stages, model, source, train.labels, depth)
        # W = M + (X'X + epsilon I)^-1 X'(Y - X M)
        rest = Moments(own.triangle, own.cross - own.gram @ prior, own.samples)
        epsilon = self.epsilon
        if isinstance(epsilon, str):
            blocks = _layers.blocks(reader, stages, model, source, depth)
            rows = np.concatenate([nets.mean_rows(stages[depth], values) for _, values in blocks])
            epsilon = choose_epsilon(rest, rows, stages[depth].positions, prior, train.labels)
        return prior + solve(rest, epsilon, solver="auto").weights, epsilon

    def shared(self, message: Arrays) -> Arrays | None:
        """The network of all, where all are one group."""
        return _layers.known(message) if self.groups == 1 else None

    def predict(self, model: Arrays, inputs: Array) -> Array:
        """Scores of the last layer there is."""
        if "shares" in model:
            return np.tile(model["shares"], (len(inputs), 1))
        return _layers.scores(self._reader(), model, inputs)

    def _reader(self, block: int | None = None) -> _layers.Reader:
        return _layers.Reader(nets.parse(self.network), self.scale, block or self.block)


def choose_epsilon(rest: Moments, rows: Float, places: int, prior: Float, labels: Array) -> float:
    """The epsilon with the best predictions for samples that are left out, from one decomposition.

    `rest` holds X'X and X'(Y - X M), `rows` the mean row of each sample. A dense layer has one row a sample, and
    leave-one-out is exact. An image has `places` rows that must be left out together: their part in the fit is taken
    as `places` times that of their mean, which is exact where the patches of an image are alike and else too small.
    """
    targets = _ridge.one_hot(labels, prior.shape[1])
    known = rows @ prior
    unit = float(rest.diagonal().mean()) or 1.0
    candidates: list[float] = [unit * factor for factor in EPSILONS]
    if places == 1:
        path = RidgePath.of(rows, targets - known)
    else:
        squares, vectors = np.linalg.eigh(rest.gram)
        kept = squares > np.finfo(np.float64).eps * max(len(squares), np.sqrt(rest.count)) * squares[-1]
        squares, vectors = squares[kept], vectors[:, kept] / np.sqrt(squares[kept])
        root = np.sqrt(places)
        path = RidgePath(root * (rows @ vectors), squares, root * (targets - known), vectors.T @ rest.cross, 0.0)

    def predicted(epsilon: float) -> Float:
        gain = path.ridge(epsilon)
        found: Float = known + left_out(path.targets, path.fitted(gain), path.leverage(gain)) / np.sqrt(places)
        return found

    return _ridge.best(candidates, map(predicted, candidates), labels)


# --- groups ---


def _models(state: Arrays) -> dict[int, dict[str, Array]]:
    """The networks of the groups, by number."""
    numbers = sorted({int(name.split("/")[1]) for name in state if name.startswith("model/")})
    return {number: take(f"model/{number}", state) for number in numbers}


def _group(state: Arrays, client: str) -> int:
    """The group of a client; the largest for one whose profile never arrived."""
    if f"member/{client}" in state:
        return int(state[f"member/{client}"])
    counts = np.bincount([int(group) for group in take("member", state).values()] or [0])
    return int(np.argmax(counts))


def _grouped(profiles: Arrays, groups: int, seed: int) -> dict[str, Array]:
    """Who is in which group, and the centres: K-means on the profiles, in the order of names.

    Groups are numbered by their first member, so that numbers mean nothing.
    """
    from sklearn.cluster import KMeans  # takes a second to import

    names = sorted(name.rpartition("/")[0] for name in profiles)
    points = np.stack([profiles[f"{name}/profile"] for name in names])
    count = min(groups, len(np.unique(points, axis=0)))
    found = KMeans(count, n_init=RESTARTS, random_state=seed).fit(points)
    order = list(dict.fromkeys(found.labels_.tolist()))
    members = {
        f"member/{name}": np.array(order.index(each)) for name, each in zip(names, found.labels_.tolist(), strict=True)
    }
    numbers = {f"model/{number}/group": np.array([number]) for number in range(len(order))}
    return {**members, **numbers, "centres": np.ascontiguousarray(found.cluster_centers_[order])}


def _without(state: Arrays, silent: set[int], answered: set[int]) -> dict[str, Array]:
    """The state without groups of which nobody answered: their members join the group with the nearest centre."""
    kept = {name: array for name, array in state.items() if not _belongs(name, silent)}
    for name in [name for name in kept if name.startswith("member/") and int(kept[name]) in silent]:
        centres = state["centres"]
        distances: Mapping[int, float] = {
            number: float(np.linalg.norm(centres[number] - centres[int(state[name])])) for number in sorted(answered)
        }
        kept[name] = np.array(min(distances, key=lambda number: distances[number]))
    return kept


def _belongs(name: str, groups: set[int]) -> bool:
    parts = name.split("/")
    return parts[0] == "model" and int(parts[1]) in groups


def _slices(count: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, count, step)]
