"""The client app, as the library makes it."""

from fedsolve.runtime.flower import make_client_app

app = make_client_app()
