"""pFedHN: one network on the server makes everybody's weights, from a vector that stands for the client.

Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021. Client i is sent
theta_i = h(v_i; phi), trains it to theta'_i and sends that back; phi and v_i descend along J'(theta_i - theta'_i), with
J the Jacobian of theta_i (Algorithm 1): the gradient of |h(v_i; phi) - theta'_i|^2 / 2 where theta'_i is fixed. What is
evaluated is theta_i as it is sent, not as it was trained. With `share=body`, the authors' pFedHN-PC, h makes the body
and the head stays with the client.

h: dense layers of `hidden` units, one on v_i and three more with rectifiers between them, then a linear map.

The authors take one client a step. Here those that answer a round take their steps in turn, in an order that is drawn,
each on its square at phi as it is by then: later ones would overshoot with a difference from before phi moved. Steps in
turn on squares that have much in common may still grow without end, so the rate of a step is halved until it does not
go beyond the least of its square. A vector is drawn by the name of its client, since nobody knows how many will come;
it moves, and its momentum and decay act, in steps of its client alone. Running statistics stay with the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError
from fedsolve.families.gradient.table import Apart, Table, answered, flat, mean_loss, names_of, shaped, written
from fedsolve.laws import Law, OrderFree
from fedsolve.method import Method, Personal, Purpose, Server, Site
from fedsolve.rng import derive

DEPTH = 4  # layers of `hidden` units


@dataclass(frozen=True)
class PFedHN(Apart, Method):
    """Everybody's weights from one network on the server; a client's model is as it was sent, under its own head."""

    name: ClassVar[str] = "pfedhn"
    paper: ClassVar[str] = "Shamsian et al., pFedHN, ICML 2021"
    sends: ClassVar[str] = "the body of its trained model, or all of it; its training loss and its number of samples"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (OrderFree(),)

    share: str = parameters.choice("body", ("body", "all"), "what is made: the body (pFedHN-PC), or the whole network")
    embed: int = parameters.number(
        13, "numbers that stand for a client; the authors: 1 + clients / 4", low=1, integer=True
    )
    hidden: int = parameters.number(100, "width of the network on the server", low=1, integer=True)
    server_lr: float = parameters.number(0.01, "its learning rate", low=0)
    server_momentum: float = parameters.number(0.9, "its momentum", low=0, high=1)
    decay: float = parameters.number(0.001, "its weight decay", low=0)
    clip: float = parameters.number(50.0, "largest norm of its gradient; 0: any", low=0)

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The network that makes weights; and a model, for their shapes and for what is not made."""
        from fedsolve.families.gradient import hyper, networks

        start = networks.initial(self.model, server.task, server.rng)
        names = self._made(server.task)
        size = sum(start[name].size for name in names)
        parts = {f"{'made' if name in names else 'kept'}/{name}": array for name, array in start.items()}
        layers = hyper.first([self.embed, *[self.hidden] * DEPTH, size], server.rng)
        none = np.empty((0, self.embed), np.float32)
        return {
            **under("hyper", layers), **parts, "seed": server.rng.integers(2**63, size=1),
            "clients": written([]), "vectors": none, "speeds": none,
        }  # fmt: skip

    def _made(self, task: Task) -> frozenset[str]:
        """The names of what is made."""
        from fedsolve.families.gradient import networks

        names = networks.parameter_names(self.model, task)
        if self.share == "body":
            names &= networks.body(self.model, task)
        if not names:
            raise ParameterError(
                f"parameter 'model' of PFedHN: {self.model} is a head without a body; use share=all, or a network with "
                "a body"
            )
        return names

    def _vector(self, state: Arrays, client: str) -> Array:
        """What stands for a client: as it was learnt, or as it is first drawn."""
        drawn = derive(int(state["seed"][0]), "vector", client).standard_normal(self.embed, dtype=np.float32)
        return _table(state, "vectors").row(client, drawn)

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """The client's weights; to one that never answered also what is not made, to begin with."""
        from fedsolve.families.gradient import hyper

        like = take("made", state)
        weights = shaped(hyper.made(take("hyper", state), self._vector(state, client)), like, sorted(like))
        kept = {} if client in names_of(state["clients"]) else under("kept", take("kept", state))
        return {**under("model", weights), **kept}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """A step for each that answered, towards what it made of its weights."""
        from fedsolve.families.gradient import descent, hyper

        here, names = answered(replies), [f"model/{name}" for name in sorted(take("made", state))]
        layers = under("hyper", take("hyper", state))
        vectors = {f"vector/{client}": self._vector(state, client) for client in here}
        rest, speeds = np.zeros(self.embed, np.float32), _table(state, "speeds")
        memory = {**take("memory", state), **{f"vector/{client}": speeds.row(client, rest) for client in here}}
        turns = [here[place] for place in server.rng.permutation(len(here))]
        reached, memory = descent.in_turn(
            {**layers, **vectors},
            [hyper.half_square(f"vector/{client}", flat(replies, names, client)) for client in turns],
            lr=self.server_lr, momentum=self.server_momentum, decay=self.decay, clip=self.clip, falling=True,
            memory=memory,
        )  # fmt: skip
        vectors_now = _table(state, "vectors").having(take("vector", reached))
        return {
            **{name: reached[name] for name in layers},
            **under("memory", {name: memory[name] for name in layers}),
            **{name: array for name, array in state.items() if name.startswith(("made/", "kept/")) or name == "seed"},
            "clients": written(vectors_now.names),
            "vectors": vectors_now.rows,
            "speeds": speeds.having(take("vector", memory)).rows,
            "loss": mean_loss(replies),
        }

    # --- client half ---
    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """Local training from the weights that were sent, with what the client keeps."""
        from fedsolve.families.gradient import training

        made = take("model", message)
        trained, loss = training.train(self, _whole(private, message), site)
        reply = {**under("model", {name: trained[name] for name in made}), "loss": np.array(loss)}
        kept = {name: array for name, array in trained.items() if name not in made}
        return kept, {**reply, "count": np.array(len(site.train))}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The weights as they are sent, with what the client keeps."""
        return Personal(_whole(private, message))


def _whole(private: Arrays, message: Arrays) -> dict[str, Array]:
    """The model: what was made, and the client's own or first rest."""
    return {**take("kept", message), **private, **take("model", message)}


def _table(state: Arrays, what: str) -> Table:
    return Table(names_of(state["clients"]), state[what])
