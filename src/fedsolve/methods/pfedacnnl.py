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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.families import layered as nets
from fedsolve.families.layered import groups, layers
from fedsolve.families.layered.own import own_network
from fedsolve.families.layered.settings import Layerwise, asked, first_state, layer_update, next_layer
from fedsolve.laws import Law, OrderFree
from fedsolve.method import Group, Method, Personal, Plan, Purpose, Server, Site


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
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
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
        if not groups.models(state):
            return Plan(tuple(clients), "collect")
        return Plan(tuple(clients), {client: str(groups.group_of(state, client)) for client in clients})

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The seed, and once there are groups the number of the client's and its layers so far."""
        common = asked(state) if purpose == "update" else layers.network_of(state)
        return common if self._in_common(state) else {**common, **groups.sent(state, client)}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """Groups from profiles; then (11): the next layer of each group from the sum over those that answered."""
        if self._in_common(state):
            return next_layer(self, state, replies, server.task)
        if not groups.models(state):
            return {**state, **groups.grouped(replies, self.groups, server.rng)}
        return groups.next_layers(self, state, replies, server.task, pull=self.pull if self.groups > 1 else 0.0)

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """How many groups there are."""
        return {"groups": len(groups.models(state))}

    def grouping(self, state: Arrays, clients: Sequence[str]) -> Mapping[str, Group]:
        """Who is in which group, once it has a layer; none where all are one group, whose network is the global one."""
        return {} if self.groups == 1 else groups.grouping(state, clients)

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The profile; then the statistics of the next layer of the group's network."""
        if "group" in message or self._in_common(message):
            return layer_update(self, private, message, site, tag=int(message.get("group", 0)))
        return {}, {"profile": groups.profile(self.reader(), message, site, by=self.profile)}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """PFedACnnL (13), layer by layer, once the group's network is complete; until then, what there is of it."""
        trained, reader = len(layers.layers(message)), self.reader()
        if trained <= int(reader.network.patches):  # nothing on labels so far: the client's own means for everybody
            return Personal({"shares": groups.constant_answer(site.train.labels, site.task.outputs)})
        if not self.personal or trained < len(reader.stages(site.task)):
            return Personal(layers.network_of(message))
        return Personal(*own_network(reader, private, message, site, epsilon=self.epsilon, budget=self.budget))

    def shared(self, message: Arrays) -> Arrays | None:
        """The network of all, where all are one group."""
        return layers.network_of(message) if self.groups == 1 else None

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores of the last layer there is."""
        if "shares" in model:
            return np.tile(model["shares"], (len(inputs), 1))
        return layers.scores(self.reader(), model, inputs, task.target)

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """Softmax of the scores times a sharpness, chosen on left-out predictions where epsilon is."""
        if "shares" in model:
            return scores
        return layers.probabilities(model, scores)
