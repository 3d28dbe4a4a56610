"""A federation across machines: the files nobody should write by hand, what is wrong at a site, and a run.

Flower carries the messages; this package writes its configuration and calls its commands, and does not import it.
"""

from fedsolve.deploy.check import Inspection, check
from fedsolve.deploy.files import env_text, init, read_env
from fedsolve.deploy.run import make_server_app, register, run

__all__ = ["Inspection", "check", "env_text", "init", "make_server_app", "read_env", "register", "run"]
