"""pFedACnnL: clients with similar labels train a network together, and each derives its own from it, layer by layer.

Gu et al., "Analytic Personalized Federated Meta-Learning", 2025. Three stages:

1. Clients send a profile; K-means puts them into groups (8), (9).
2. Each group trains a network as FedACnnL does: a sum for each group and layer (11).
3. Each client solves every layer anew on its own data, drawn towards the group's layer M (13):

    W = argmin |Y - X W|^2 + epsilon |W - M|^2 = (X'X + epsilon I)^-1 (X'Y + epsilon M)

The profile of (9) reads Q y; Q is classes x width, so it is the row y Q here. With a linear model there is no hidden
layer and no Q: the profile is then the label shares themselves. A layer of patches needs no labels, so all clients fit
it together, before there are groups, and it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, accumulate, flat, take, under
from fedsolve.data.task import Task
from fedsolve.families import layered as nets
from fedsolve.families.layered import layers
from fedsolve.families.layered.settings import Layerwise, asked, first_state, layer_update, next_layer
from fedsolve.families.layered.stages import Stage
from fedsolve.families.ridge import calibration, choice, linear
from fedsolve.laws import Law, OrderFree
from fedsolve.method import Group, Method, Personal, Plan, Purpose, Server, Site
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out, solution_of

EPSILONS = (1e6, *(10.0 ** (power / 2) for power in range(8, -9, -1)))  # times the mean square: what auto chooses from
RESTARTS = 10  # of K-means


@dataclass(frozen=True)
class PFedACnnL(Layerwise, Method):
    """A network for each group of similar clients, and for each client its own, solved layer by layer.

    groups=1 is the paper's variant without clustering (WC), personal=false the one without the personal solve (WP),
    adaptive=false the one without adaptive blocks (WA).
    """

    name: ClassVar[str] = "pfedacnnl"
    paper: ClassVar[str] = "Gu et al., Analytic Personalized Federated Meta-Learning (pFedACnnL), 2025"
    sends: ClassVar[str] = (
        "its label shares, encoded (or its mean input); X'X (one triangle) and X'Z of each layer's inputs and targets"
    )
    laws: ClassVar[tuple[Law, ...]] = (OrderFree(),)

    groups: int = parameters.number(10, "groups of clients; 1: all together", low=1, integer=True)
    profile: str = parameters.choice(
        "labels", ("labels", "features"), "what clients are grouped by; labels show label shares"
    )
    personal: bool = parameters.flag(True, "each client solves every layer anew; without, it gets its group's network")
    epsilon: float | str = parameters.number(
        "auto",
        "pull towards the group's layer; auto: each client's and layer's own, by leave-one-out; hidden layers whose "
        "targets are not plain labels then stay the group's",
        low=0,
        auto=True,
    )
    pull: float = parameters.number(
        0.3,
        "of a group's first layer with labels towards that of all clients, times their mean square; 0: none",
        low=0,
    )
    gamma: float | str = parameters.number(
        1.0,
        "ridge of every layer, added once per group on the server; auto: of the last by cross-validation on the sums",
        low=0,
        auto=True,
    )

    @property
    def rounds(self) -> int:
        """As many as the network takes, and one for the profiles where there are groups."""
        return nets.parse(self.network).rounds + (self.groups > 1)

    # --- server half ---

    def init_server(self, server: Server) -> Arrays:
        """The seed of the label encodings. A network that does not fit the inputs is refused here."""
        state = first_state(self, server)
        return state if self.groups > 1 else {**state, "model/0/group": np.array(0)}

    def _in_common(self, state: Arrays) -> bool:
        """Whether a layer is fitted that all clients have in common."""
        return nets.parse(self.network).patches and not layers.layers(state)

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """First what all have in common, then every profile, then a sum for each group."""
        if self._in_common(state):
            return Plan(tuple(clients))
        if not _models(state):
            return Plan(tuple(clients), "collect")
        return Plan(tuple(clients), {client: str(_group(state, client)) for client in clients})

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seed, and once there are groups the number of the client's and its layers so far."""
        models = {} if self._in_common(state) else _models(state)
        network = models[_group(state, client)] if models else {}
        number = {"group": network["group"]} if network else {}
        common = asked(state) if purpose == "update" else layers.network_of(state)
        return {**common, **layers.network_of(network), **number}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """Groups from profiles; then (11): the next layer of each group from the sum over those that answered."""
        models, common = _models(state), layers.network_of(state)
        if self._in_common(state):
            return next_layer(self, state, replies, server.task)
        if not models:
            return {**state, **_grouped(replies, self.groups, server.rng)}
        answered = {number for number in models if f"{number}/count" in replies}
        following = _without(state, set(models) - answered, answered)
        sums = {number: take(str(number), replies) for number in sorted(answered)}
        depth = len(layers.layers(common))
        first = not any(layers.network_of(models[number]) for number in answered)  # inputs are the same for all groups
        everybody = self._everybody(common, sums.values(), server.task) if first else {}
        for number, total in sums.items():
            if everybody:
                own = under(f"layer/{depth}", layers.drawn_layer(Moments.from_arrays(total), everybody, self.pull))
            else:
                network = next_layer(self, {**common, **models[number]}, total, server.task)
                own = {name: array for name, array in network.items() if name not in common}
            following |= under(f"model/{number}", own)
        return following

    def _everybody(self, common: Arrays, sums: Iterable[Arrays], task: Task) -> Arrays:
        """The layer of all clients together that the groups' are drawn towards; none where nothing is drawn."""
        total: dict[str, Array] | None = None
        for part in sums if self.pull and self.groups > 1 else ():
            total = accumulate(total, part)
        return layers.layers(next_layer(self, common, total, task))[-1] if total else {}

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """How many groups there are."""
        return {"groups": len(_models(state))}

    def grouping(self, state: Arrays, clients: Sequence[str]) -> Mapping[str, Group]:
        """Who is in which group, once it has a layer; none where all are one group, whose network is the global one."""
        return {} if self.groups == 1 else _grouping(state, clients)

    # --- client half ---

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The profile; then the statistics of the next layer of the group's network."""
        if "group" in message:
            return layer_update(self, private, message, site, tag=int(message["group"]))
        if self._in_common(message):
            return layer_update(self, private, message, site, tag=0)
        return {}, {"profile": self._profile(message, site)}

    def _profile(self, message: Arrays, site: Site) -> Float:
        """PFedACnnL (9): label shares times the narrowest encoding; or the mean of the inputs."""
        task, train = site.task, site.train
        if self.profile == "features":
            parts = [
                flat(nets.prepare(train.inputs[rows], self.scale)).sum(0) for rows in _slices(len(train), self.block)
            ]
            mean: Float = np.sum(parts, axis=0) / len(train)
            return mean
        shares = np.bincount(train.labels, minlength=task.classes) / len(train)
        hidden = [stage for stage in self.reader().stages(task)[:-1] if stage.layer.recipe is None]
        if not hidden:  # (8) has no encoding to choose from
            return shares
        number = min(range(len(hidden)), key=lambda place: hidden[place].width)
        encoded: Float = shares @ nets.encoding(int(message["seeds"][0]), number, task.classes, hidden[number].width)
        return encoded

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """PFedACnnL (13), layer by layer, once the group's network is complete; until then, what there is of it."""
        group, reader, train = layers.layers(message), self.reader(), site.train
        common = int(reader.network.patches)
        if len(group) <= common:  # nothing is trained on labels so far: the client's own label shares for everybody
            return Personal({"shares": np.bincount(train.labels, minlength=site.task.classes) / len(train)})
        model: dict[str, Array] = {"seeds": message["seeds"]}
        stages = reader.stages(site.task)
        if not self.personal or len(group) < len(stages):
            return Personal(layers.network_of(message))
        # What is kept of the update is behind the group's layers: of use as long as these are the client's, too.
        source = layers.restore(private, train, int(message["group"]), common)
        chosen = {}
        for number, layer in enumerate(group):
            source = layers.moved(reader, stages, model, source, max(number, source.depth), self.budget)
            if self._stays(reader, stages[number]):
                model |= under(f"layer/{number}", layer)
                continue
            own_layer, epsilon = self._own_layer(reader, stages, model, source, layer, site)
            model |= under(f"layer/{number}", own_layer)
            chosen[f"layer/{number}/epsilon"] = epsilon
        return Personal(model, chosen)

    def _stays(self, reader: layers.Reader, stage: Stage) -> bool:
        """Whether a layer is the group's for every client.

        A code of its own at each place cannot be judged by left-out labels; and whoever moves a hidden layer moves the
        inputs that the group's next layer was fitted to.
        """
        return stage.layer.recipe is not None or (isinstance(self.epsilon, str) and reader.coded(stage))

    def _own_layer(
        self,
        reader: layers.Reader,
        stages: tuple[Stage, ...],
        model: Arrays,
        source: layers.Source,
        group: Arrays,
        site: Site,
    ) -> tuple[dict[str, Array], float]:
        """PFedACnnL (13) for one layer, from the group's, and the epsilon that was used."""
        depth, labels, prior = len(layers.layers(model)), site.train.labels, nets.stacked(group)
        own_moments = layers.statistics(reader, stages, model, source, labels, depth)
        # W = M + (X'X + epsilon I)^-1 X'(Y - X M)
        rest = Moments(own_moments.triangle, own_moments.cross - own_moments.gram @ prior, own_moments.samples)
        epsilon, sharpness = self.epsilon, float(group.get("sharpness", 1.0))
        if isinstance(epsilon, str):
            blocks = layers.blocks(reader, stages, model, source, depth)
            stage, constant = stages[depth], self.constant
            rows = np.concatenate([nets.mean_rows(stage, values, constant=constant) for _, values in blocks])
            epsilon, sharpness = choose_epsilon(rest, rows, stages[depth].positions, prior, labels, sharpness)
        layer = nets.unstacked(prior + solution_of(rest, epsilon, solver="auto").weights, constant=self.constant)
        return {**layer, **({"sharpness": np.array(sharpness)} if "sharpness" in group else {})}, epsilon

    def shared(self, message: Arrays) -> Arrays | None:
        """The network of all, where all are one group."""
        return layers.network_of(message) if self.groups == 1 else None

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the last layer there is."""
        if "shares" in model:
            return np.tile(model["shares"], (len(inputs), 1))
        return layers.scores(self.reader(), model, inputs, task.classes)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times a sharpness, chosen on left-out predictions where epsilon is."""
        if "shares" in model:
            return scores
        trained = layers.layers(model)
        return calibration.probabilities(trained[-1] if trained else {}, scores)


def choose_epsilon(
    rest: Moments, rows: Float, places: int, prior: Float, labels: Array, sharpness: float
) -> tuple[float, float]:
    """The epsilon with the best predictions for samples that are left out, from one decomposition; their sharpness.

    `rest` holds X'X and X'(Y - X M), `rows` the mean row of each sample. A dense layer has one row per sample, and
    leave-one-out is exact. An image has `places` rows that must be left out together: their part in the fit is taken
    as `places` times that of their mean, which is exact where the patches of an image are alike and else too small.
    """
    targets = linear.one_hot(labels, prior.shape[1])
    start = rows @ prior
    unit = float(rest.diagonal().mean()) or 1.0
    candidates: list[float] = [unit * factor for factor in EPSILONS]
    if places == 1:
        path = RidgePath.of(rows, targets - start)
    else:
        squares, vectors = np.linalg.eigh(rest.gram)
        nonzero = squares > np.finfo(np.float64).eps * max(len(squares), np.sqrt(rest.count)) * squares[-1]
        squares, vectors = squares[nonzero], vectors[:, nonzero] / np.sqrt(squares[nonzero])
        root = np.sqrt(places)
        path = RidgePath(root * (rows @ vectors), squares, root * (targets - start), vectors.T @ rest.cross, 0.0)

    def predicted(epsilon: float) -> Float:
        gain = path.ridge(epsilon)
        scores: Float = start + left_out(path.targets, path.fitted(gain), path.leverage(gain)) / np.sqrt(places)
        return scores

    epsilon = choice.best(candidates, map(predicted, candidates), labels)
    return epsilon, calibration.sharpness(predicted(epsilon), labels, sharpness)


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


def _grouped(profiles: Arrays, groups: int, rng: np.random.Generator) -> dict[str, Array]:
    """Who is in which group, and the centres: K-means on the profiles, in the order of names.

    Groups are numbered by their first member, so that numbers mean nothing.
    """
    from sklearn.cluster import KMeans  # takes a second to import

    names = sorted(name.rpartition("/")[0] for name in profiles)
    points = np.stack([profiles[f"{name}/profile"] for name in names])
    count = min(groups, len(np.unique(points, axis=0)))
    clustering = KMeans(count, n_init=RESTARTS, random_state=int(rng.integers(2**31))).fit(points)
    clusters = clustering.labels_.tolist()
    order = list(dict.fromkeys(clusters))
    members = {f"member/{name}": np.array(order.index(each)) for name, each in zip(names, clusters, strict=True)}
    numbers = {f"model/{number}/group": np.array(number) for number in range(len(order))}
    return {**members, **numbers, "centres": np.ascontiguousarray(clustering.cluster_centers_[order])}


def _without(state: Arrays, silent: set[int], answered: set[int]) -> dict[str, Array]:
    """The state without groups of which nobody answered: their members join the group with the nearest centre."""
    remaining = {name: array for name, array in state.items() if not _belongs(name, silent)}
    for name in [name for name in remaining if name.startswith("member/") and int(remaining[name]) in silent]:
        centres = state["centres"]
        distances: Mapping[int, float] = {
            number: float(np.linalg.norm(centres[number] - centres[int(state[name])])) for number in sorted(answered)
        }
        remaining[name] = np.array(min(distances, key=lambda number: distances[number]))
    return remaining


def _belongs(name: str, groups: set[int]) -> bool:
    parts = name.split("/")
    return parts[0] == "model" and int(parts[1]) in groups


def _slices(count: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, count, step)]


def _grouping(state: Arrays, clients: Sequence[str]) -> dict[str, Group]:
    """The groups of these clients that have a layer, each with its network and the centre of its profiles."""
    members: dict[int, list[str]] = {}
    for client in clients:
        members.setdefault(_group(state, client), []).append(client)
    models = {number: layers.network_of({**state, **model}) for number, model in _models(state).items()}
    return {
        str(number): Group(tuple(members[number]), model, state["centres"][number])
        for number, model in models.items()
        if number in members and any(name.endswith("/weight") for name in model)
    }
