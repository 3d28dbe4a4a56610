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

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, take, under
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError
from fedsolve.families.gradient import listening, parts
from fedsolve.families.gradient.table import Apart, Table, answered, flat, shaped, table_of, written
from fedsolve.laws import Law, TrainsAlone
from fedsolve.method import Method, Personal, Purpose, Server, Site

BLOCK = 64  # clients whose changes are looked at together


@dataclass(frozen=True)
class FedAPA(Apart, Method):
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

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The client's mixture; for a client that never answered, the first model, with the head it starts from."""
        start = take("start", state)
        row = table_of(state, "mixed").row(client)
        return start if row is None else shaped(row, start, parts.order(start))

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The weights learn from what the clients made of their mixtures; then everybody is mixed anew."""
        start = take("start", state)
        shared, here = parts.order(start), answered(replies)
        before = table_of(state, "bodies")
        bodies = before.widened(here, flat(start, shared))
        names, even = bodies.names, self.start == "even"
        places, old = bodies.places(here), bodies.places(before.names)
        weights, speed = listening.first_weights(len(names), self.mu, even=even), np.zeros((len(names), len(names)))
        if before.names:
            weights = listening.widened(weights, state["weights"], old, even=even)
            if self.momentum:
                speed[np.ix_(old, old)] = state["speed"]
        speed[places] = self.momentum * speed[places] - self._gradients(state, replies, weights, bodies)
        if self.eta:
            moved, mu = weights[places] + self.eta * speed[places], self.mu if self.own else None
            weights[places] = listening.settled(moved, places, mu, clip=self.clip, normalise=self.normalise)
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

    def _gradients(self, state: Arrays, replies: Arrays, weights: Float, bodies: Table) -> NDArray[np.float64]:
        """The gradient of each row of those that answered. A block at a time: all networks at once fill the memory."""
        start = take("start", state)
        shared, size = parts.order(start), parts.parameters(start)
        first, mixtures, clients = flat(start, shared), table_of(state, "mixed"), answered(replies)
        fixed = self.own and self.normalise == "exact"
        gradients = np.empty((len(clients), len(bodies.names)))
        for begin in range(0, len(clients), BLOCK):
            rows, block = slice(begin, begin + BLOCK), clients[begin : begin + BLOCK]
            # Newcomers were sent the first model, whatever their row says: all columns were equal then.
            mixed = np.stack([mixtures.row(client, first)[:size] for client in block])
            trained = np.stack([flat(replies, shared, client)[:size] for client in block])
            places = bodies.places(block)
            gradients[rows] = listening.gradient(
                weights[places], places, bodies.rows[:, :size], mixed, trained,
                centred=self.centred, fixed=fixed, scaled=self.scaled,
            )  # fmt: skip
        return gradients

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Train the mixture under the client's own head."""
        from fedsolve.families.gradient import training

        trained, loss = training.train(self, parts.whole(private, message), site)
        every = self._parted(trained, site.task)
        body = {name: every[name] for name in every if name.partition("/")[0] in parts.MIXED}
        return trained, {**body, "loss": np.array(loss), "count": np.array(len(site.train))}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The model as the client trained it; the first one for a client that never took part."""
        return Personal(private or parts.whole(private, message))

    def _parted(self, model: Arrays, task: Task) -> dict[str, Array]:
        """A model as what is mixed ("model/", "buffer/") and the head ("head/")."""
        from fedsolve.families.gradient import networks

        trained = networks.parameter_names(self.model, task)
        mixed = networks.body(self.model, task) if self.share == "body" else frozenset(model)
        if not mixed & trained:
            way_out = "use share=all, or a network with a body"
            raise ParameterError(f"parameter 'model' of FedAPA: {self.model} is a head without a body; {way_out}")
        return parts.parted(model, mixed, trained)
