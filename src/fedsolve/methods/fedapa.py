"""FedAPA: the server learns whom each client listens to, and mixes a body for each of them.

Sun et al., "FedAPA: Server-side Gradient-Based Adaptive Personalized Aggregation for Federated Learning on
Heterogeneous Data", IJCAI 2025. Client i is sent the mixture m_i = sum_j a_ij theta_j (5), trains it to theta_i
together with a head of its own, which never leaves it, and sends theta_i back. With D_i = theta_i - m_i (6) the row a_i
descends on |D_i|^2 / 2,

    a_i <- a_i + eta Theta' D_i,

where (7) as printed has a minus and ascends. Then (1) weights are clipped to [0, 1], (2) the client's own weight is set
to mu, (3) the row is normalised to sum to one. Rounds are synchronous: everybody is mixed from the same models.

What is ours: the paper divides the whole row by its sum, so that a client's own weight ends as mu / (mu + others),
anywhere between 0 and 1. `normalise=exact` scales the others to 1 - mu, so that it is mu. A row with no others is the
client alone in both. `centred` takes the gradient through that normalisation, Theta' D_i with the mean of what the
client listens to taken off every theta_j; as printed, what all models have in common decides.
`scaled` divides it by |D_i|^2, so that eta has the same meaning for every network and every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, take, under
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError
from fedsolve.families.gradient import settings
from fedsolve.families.gradient.table import Table, answered, flat, names_of, shaped, written
from fedsolve.laws import Law, TrainsAlone
from fedsolve.method import Method, Personal, Plan, Purpose, Server, Site

BLOCK = 64  # clients whose changes are looked at together
_PARTS = ("model", "buffer")  # a reply: parameters, and buffers, which are mixed but not descended on


@dataclass(frozen=True)
class FedAPA(settings.Training, Method):
    """A body for each client, mixed from everybody's with weights that the server learns; heads stay with clients."""

    name: ClassVar[str] = "fedapa"
    paper: ClassVar[str] = "Sun et al., FedAPA, IJCAI 2025"
    sends: ClassVar[str] = "the body of its trained model, its training loss and its number of samples"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (TrainsAlone(eta=0.0, start="self"), TrainsAlone(clients=1))

    eta: float = parameters.number(0.01, "learning rate of the weights", low=0)
    mu: float = parameters.number(0.5, "weight of the client's own model in its mixture", low=0, high=1)
    start: str = parameters.choice("even", ("even", "self"), "first weights: mu and the rest even, or all on oneself")
    own: bool = parameters.flag(True, "set the client's own weight to mu; false: learn it like the others")
    centred: bool = parameters.flag(True, "descend through the normalisation; false: on the bare sum, as the paper")
    scaled: bool = parameters.flag(True, "divide the gradient by the squared length of the client's change")
    momentum: float = parameters.number(0.0, "momentum of the weights; the official code: 0.9", low=0, high=1)
    clip: bool = parameters.flag(True, "keep weights between 0 and 1")
    normalise: str = parameters.choice(
        "exact", ("exact", "paper", "none"), "others sum to 1 - mu; or the row is divided by its sum; or nothing"
    )
    share: str = parameters.choice("body", ("body", "all"), "what is mixed: the body of the network, or all of it")

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The first model, and nobody in the matrix of weights."""
        from fedsolve.families.gradient import networks

        model = networks.initial(self.model, server.task, server.rng)
        return {**under("start", self._parted(model, server.task)), "clients": written([]), "weights": np.empty((0, 0))}

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Everybody, and the server keeps a body for each."""
        return Plan(tuple(clients), "collect")

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The client's mixture; for a client that never answered, the first model, with the head it starts from."""
        start = take("start", state)
        row = _table(state, "mixed").row(client)
        return start if row is None else shaped(row, start, _shared(start))

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The weights learn from what the clients made of their mixtures; then everybody is mixed anew."""
        start = take("start", state)
        shared, here = _shared(start), answered(replies)
        before = _table(state, "bodies")
        bodies = before.widened(here, flat(start, shared))
        names = bodies.names
        places, old = bodies.places(here), bodies.places(before.names)
        weights, speed = self._first_weights(len(names)), np.zeros((len(names), len(names)))
        if before.names:
            weights = self._widened(weights, state["weights"], old)
            if self.momentum:
                speed[np.ix_(old, old)] = state["speed"]
        speed[places] = self.momentum * speed[places] - self._gradients(state, replies, weights, bodies)
        if self.eta:
            weights[places] = self._settled(weights[places] + self.eta * speed[places], places)
        for place, client in zip(places, here, strict=True):
            bodies.rows[place] = flat(replies, shared, client)
        counts = np.array([int(replies[f"{client}/count"]) for client in here])
        losses = np.array([float(replies[f"{client}/loss"]) for client in here])
        return {
            **under("start", start),
            "clients": written(names),
            "weights": weights,
            "bodies": bodies.rows,
            "mixed": weights.astype(np.float32) @ bodies.rows,
            "loss": np.array(float(counts @ losses) / float(counts.sum())),
            **({"speed": speed} if self.momentum else {}),
        }

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """The mean training loss over the samples of those that answered."""
        return settings.mean_loss(state)

    def _first_weights(self, count: int) -> Float:
        if self.start == "self" or count == 1:
            return np.eye(count)
        return np.where(np.eye(count) > 0, self.mu, (1.0 - self.mu) / (count - 1))

    def _widened(self, weights: Float, earlier: Float, old: NDArray[Any]) -> Float:
        """First weights, with the rows of those that were there before; newcomers get the share they start with."""
        count, before = len(weights), len(earlier)
        if before == 1:
            return weights  # a client alone had nobody to weigh
        share = (before - 1) / (count - 1) if self.start == "even" else 1.0
        diagonal = np.diag(np.diag(earlier))
        others = (earlier - diagonal).sum(1)
        weights = weights.copy()
        weights[old] = (others * (1.0 - share) / max(1, count - before))[:, None]
        weights[np.ix_(old, old)] = diagonal + share * (earlier - diagonal)
        return weights

    def _gradients(self, state: Arrays, replies: Arrays, weights: Float, bodies: Table) -> NDArray[np.float64]:
        """The gradient of each row of those that answered. A block at a time: all networks at once fill the memory."""
        start = take("start", state)
        shared, size = _shared(start), _parameters(start)
        first, mixtures, clients = flat(start, shared), _table(state, "mixed"), answered(replies)
        gradients = np.empty((len(clients), len(bodies.names)))
        for begin in range(0, len(clients), BLOCK):
            rows, block = slice(begin, begin + BLOCK), clients[begin : begin + BLOCK]
            # Newcomers were sent the first model, whatever their row says: all columns were equal then.
            mixed = np.stack([mixtures.row(client, first)[:size] for client in block])
            trained = np.stack([flat(replies, shared, client)[:size] for client in block])
            places = bodies.places(block)
            gradients[rows] = self._gradient(weights[places], places, bodies.rows[:, :size], mixed, trained)
        return gradients

    def _gradient(
        self, weights: Float, places: NDArray[Any], bodies: Array, mixed: Array, trained: Array
    ) -> NDArray[np.float64]:
        """Of |D_i|^2 / 2 with respect to the row of each client i that answered: -Theta' D_i."""
        change = trained - mixed
        inner = (change @ bodies.T).astype(np.float64)
        if self.centred:
            # d/da_j of sum_j a_j theta_j / sum_j a_j is theta_j minus that mean, which is over the others where the
            # client's own weight is fixed. For a client that listens to nobody the mean is its own body.
            listened = weights.copy()
            if self.own and self.normalise == "exact":
                listened[np.arange(len(places)), places] = 0.0
            total = listened.sum(1, keepdims=True)
            alone = ~(total > 0)
            mean = np.where(alone, inner[np.arange(len(places)), places][:, None], 0.0)
            inner -= np.where(alone, mean, (listened * inner).sum(1, keepdims=True) / np.where(alone, 1.0, total))
        if self.scaled:
            inner /= np.maximum(np.einsum("ij,ij->i", change, change, dtype=np.float64), 1e-30)[:, None]
        return -inner

    def _settled(self, rows: Float, places: NDArray[Any]) -> Float:
        """Clipping, own weight, normalisation, as in Algorithm 1."""
        rows = np.clip(rows, 0.0, 1.0) if self.clip else rows.copy()
        itself = (np.arange(len(places)), places)
        if self.own:
            rows[itself] = self.mu
        if self.normalise == "none":
            return rows
        alone = np.zeros_like(rows)
        alone[itself] = 1.0
        if self.own and self.normalise == "exact":
            others = rows * (1.0 - alone)
            total = others.sum(1, keepdims=True)
            scaled = others * ((1.0 - self.mu) / np.where(total > 0, total, 1.0)) + self.mu * alone
            return np.where(total > 0, scaled, alone)
        total = rows.sum(1, keepdims=True)
        return np.where(total > 0, rows / np.where(total > 0, total, 1.0), alone)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Train the mixture under the client's own head."""
        from fedsolve.families.gradient import training

        trained, loss = training.train(self, self._whole(private, message), site)
        parts = self._parted(trained, site.task)
        body = {name: array for name, array in parts.items() if name.partition("/")[0] in _PARTS}
        return trained, {**body, "loss": np.array(loss), "count": np.array(len(site.train))}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The model as the client trained it; the first one for a client that never took part."""
        return Personal(private or self._whole(private, message))

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.predictions(self.model, model, inputs, task)

    def _parted(self, model: Arrays, task: Task) -> dict[str, Array]:
        """A model as what is mixed ("model/", "buffer/") and the head ("head/")."""
        from fedsolve.families.gradient import networks

        trained = networks.parameter_names(self.model, task)
        mixed = networks.body(self.model, task) if self.share == "body" else frozenset(model)
        if not mixed & trained:
            raise _nothing_to_share(self.model)
        parts: dict[str, Array] = {}
        for name in model:
            part = "head" if name not in mixed else "model" if name in trained else "buffer"
            parts[f"{part}/{name}"] = model[name]
        return parts

    def _whole(self, private: Arrays, message: Arrays) -> dict[str, Array]:
        """What was sent, completed by the client's own head, or by the one of the first message."""
        whole = dict(private)
        for part in ("model", "buffer", *(() if private else ("head",))):
            whole |= take(part, message)
        return whole


def _nothing_to_share(model: str) -> ParameterError:
    return ParameterError(
        f"parameter 'model' of FedAPA: {model} is a head without a body; use share=all, or a network with a body"
    )


# --- a mixed model as a row: parameters first, then buffers, each in sorted order ---


def _shared(start: Arrays) -> list[str]:
    return [name for part in _PARTS for name in sorted(start) if name.startswith(f"{part}/")]


def _parameters(start: Arrays) -> int:
    return sum(array.size for name, array in start.items() if name.startswith("model/"))


def _table(state: Arrays, what: str) -> Table:
    """The bodies or the mixtures of a state, one row per client; before the first round there are none."""
    return Table(names_of(state["clients"]), state[what]) if what in state else Table()
