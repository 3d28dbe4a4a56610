"""The operator's page: a small server on localhost that shows how a federation fares. It can be read, and nothing else.

Only GET and HEAD of a few fixed addresses are answered, and only to who asks for this machine by its own name: a page
from elsewhere that had its name resolved to 127.0.0.1 is refused. No address is ever taken for the name of a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from fedsolve.deploy.status import Status, Watch
from fedsolve.errors import DataError, FedsolveError

HOST = "127.0.0.1"
_NAMES = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?")  # to be asked for by; a tunnel may have another port
_REPORT = re.compile(r"/runs/([0-9T-]{1,40})/report")
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
_INLINE = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"  # reports are one file each
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Report = Callable[[Path], str]  # the page of a result


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: HTTPStatus
    kind: str
    body: bytes
    policy: str = _STRICT

    @classmethod
    def json(cls, content: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Answer:
        """Plain values."""
        return cls(status, "application/json", json.dumps(content).encode())

    @classmethod
    def refusal(cls, status: HTTPStatus, words: str) -> Answer:
        """Why nothing is shown."""
        return cls(status, "text/plain", f"{words}\n".encode())


def answer(path: str, look: Callable[[], Status], report: Report) -> Answer:
    """What stands at an address; nothing at all but a few."""
    path = path.partition("?")[0]
    if path in _FILES:
        file, kind = _FILES[path]
        text = resources.files("fedsolve.deploy").joinpath(f"templates/page/{file}").read_bytes()
        return Answer(HTTPStatus.OK, kind, text)
    if path == "/status.json":
        return Answer.json(look().words())
    if path == "/health":
        status = look()
        code = HTTPStatus.OK if status.fine else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer.json(status.health(), code)
    if asked := _REPORT.fullmatch(path):
        return _report_of(asked[1], look(), report)
    return Answer.refusal(HTTPStatus.NOT_FOUND, "there is nothing here; the page is at /")


def _report_of(identity: str, status: Status, report: Report) -> Answer:
    """The report of a past run, from the folder that its own record names."""
    out = next((Path(record.out) for record in status.runs if record.id == identity), None)
    if out is None:
        return Answer.refusal(HTTPStatus.NOT_FOUND, "no such run is shown here")
    try:
        return Answer(HTTPStatus.OK, "text/html", report(out).encode(), _INLINE)
    except FedsolveError as error:
        return Answer.refusal(HTTPStatus.NOT_FOUND, str(error))


class _Handler(BaseHTTPRequestHandler):
    """One request. `server` is a `Page`."""

    server: Page
    timeout = 10  # seconds that a request may take to arrive
    server_version, sys_version = "fedsolve", ""

    def do_GET(self) -> None:
        """Answer with what stands there."""
        self._send(self._found())

    def do_HEAD(self) -> None:
        """The same without the content."""
        self._send(self._found())

    def refuse(self) -> None:
        """Whatever would change something."""
        self._send(Answer.refusal(HTTPStatus.METHOD_NOT_ALLOWED, "this page can be read, and nothing else"))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_CONNECT = do_TRACE = refuse

    def _found(self) -> Answer:
        if not _NAMES.fullmatch(self.headers.get("Host", "")):
            return Answer.refusal(HTTPStatus.FORBIDDEN, f"ask for {self.server.address}")
        try:
            return answer(self.path, self.server.look, self.server.report)
        except (FedsolveError, OSError) as error:
            return Answer.refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def _send(self, found: Answer) -> None:
        self.send_response(found.status)
        headers = {"Content-Type": f"{found.kind}; charset=utf-8", "Content-Length": str(len(found.body)), **_HEADERS}
        policy = f"{found.policy}; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        allowed = {"Allow": "GET, HEAD"} if found.status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        for name, value in {**headers, "Content-Security-Policy": policy, **allowed}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    def log_message(self, form: str, *words: Any) -> None:
        """Nothing: a page that asks every two seconds is no news."""


class Page(ThreadingHTTPServer):
    """The page of a server's folder, on a port of localhost; 0 is one that is free.

    >>> import tempfile
    >>> from fedsolve import deploy
    >>> with tempfile.TemporaryDirectory() as place:
    ...     deploy.init(Path(place) / "fed", ["ward-a", "ward-b"], "127.0.0.1:18443")
    ...     with Page(Path(place) / "fed" / "server") as page:
    ...         page.address.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, report: Report | None = None) -> None:
        self._watch = Watch(folder)
        self.look, self.report = self._watch.look, report or _no_report
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise DataError(f"port {port} of localhost cannot be used: {error}; name another with --port") from error

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{HOST}:{self.server_port}/"

    def server_close(self) -> None:
        """Close it, and the connection to the SuperLink."""
        super().server_close()
        self._watch.close()


def _no_report(out: Path) -> str:
    raise DataError(f"see {out}; `fedsolve report {out}` makes a page of it")
