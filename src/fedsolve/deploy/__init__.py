"""A federation across machines: the files nobody should write by hand, what is wrong at a site, and a run.

Flower carries the messages; this package writes its configuration and calls its commands, and does not import it.
"""

from fedsolve.deploy.check import Inspection, check
from fedsolve.deploy.files import env_text, init, read_env
from fedsolve.deploy.join import CARD, Card, add, join, pin, remove, sites_of, trial
from fedsolve.deploy.run import make_server_app, register, run
from fedsolve.deploy.services import service

__all__ = [
    "CARD",
    "Card",
    "Inspection",
    "add",
    "check",
    "env_text",
    "init",
    "join",
    "make_server_app",
    "pin",
    "read_env",
    "register",
    "remove",
    "run",
    "service",
    "sites_of",
    "trial",
]
