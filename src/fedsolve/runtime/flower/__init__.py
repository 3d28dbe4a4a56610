"""The round loop over Flower: a transport on a `Grid`, the two apps, and both on one machine. Only this imports flwr.

Two kinds of message: "query.hello", to which a site answers with its name and what its data look like, and
"query.request", which carries a `client.Request` and the task that all sites agreed on. Nothing else is kept between
messages, since in a deployment Flower starts a new process for each.
"""

from __future__ import annotations

from fedsolve.runtime.flower.client import make_client_app
from fedsolve.runtime.flower.meeting import Opening, Present, Say, meet
from fedsolve.runtime.flower.server import Keeping, deployed, make_server_app, serve
from fedsolve.runtime.flower.simulation import simulate, split_site
from fedsolve.runtime.flower.transport import Early, FlowerTransport
from fedsolve.runtime.job import Rules

__all__ = [
    "Early",
    "FlowerTransport",
    "Keeping",
    "Opening",
    "Present",
    "Rules",
    "Say",
    "deployed",
    "make_client_app",
    "make_server_app",
    "meet",
    "serve",
    "simulate",
    "split_site",
]
