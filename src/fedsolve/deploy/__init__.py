"""A federation across machines: files nobody should write by hand, who takes part, what is wrong, runs, how it fares.

Flower carries the messages; this package writes its configuration, calls its commands and asks its SuperLink.
"""

from fedsolve.deploy.check import Inspection, check
from fedsolve.deploy.files import env_text, init, read_env
from fedsolve.deploy.join import CARD, Card, accept, add, join, pin, remove, sites_of, trial
from fedsolve.deploy.rotate import install, next_authority, rotate, take
from fedsolve.deploy.run import keyed_sites, make_server_app, register, run, unregister
from fedsolve.deploy.services import service

__all__ = [
    "CARD",
    "Card",
    "Inspection",
    "accept",
    "add",
    "check",
    "env_text",
    "init",
    "install",
    "join",
    "keyed_sites",
    "make_server_app",
    "next_authority",
    "pin",
    "read_env",
    "register",
    "remove",
    "rotate",
    "run",
    "service",
    "sites_of",
    "take",
    "trial",
    "unregister",
]
