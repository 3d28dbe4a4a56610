"""The server app, as the library makes it."""

from fedsolve.deploy import make_server_app

app = make_server_app()
