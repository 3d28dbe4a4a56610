"""Training alone: SGD on a network of the client's own. What every federation of networks has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsolve.arrays import Array, Arrays
from fedsolve.data.task import Task
from fedsolve.families.gradient import settings
from fedsolve.laws import Law, SendsNothing
from fedsolve.method import Method, Personal, Purpose, Server, Site


@dataclass(frozen=True)
class LocalNetwork(settings.Training, Method):
    """Each client alone, by SGD on a network that it starts itself. Nothing is sent."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "a network trained on the client's own data"
    sends: ClassVar[str] = "nothing"
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")
    laws: ClassVar[tuple[Law, ...]] = (SendsNothing(),)

    @property
    def alone(self) -> Mapping[str, object] | None:
        """None: this is training alone itself."""
        return None

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """Empty: no client learns from another."""
        return {}

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """Empty: the server learns nothing."""
        return {}

    def init_server(self, server: Server) -> Arrays:
        """Nothing; but torch is loaded here, before clients get processes of their own."""
        from fedsolve.families.gradient import networks

        networks.initial(self.model, server.task, server.rng)
        return {}

    def init_client(self, site: Site) -> Arrays:
        """The first network of the client's own."""
        from fedsolve.families.gradient import networks

        return networks.initial(self.model, site.task, site.rng)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """The network trains on; nothing is replied."""
        from fedsolve.families.gradient import training

        return training.train(self, private, site)[0], {}

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The network as the client has trained it."""
        return Personal(private)

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """The scores of the network, one row per sample."""
        from fedsolve.families.gradient import networks

        return networks.predictions(self.model, model, inputs, task)
