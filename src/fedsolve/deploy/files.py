"""What `fedsolve deploy init` writes: a folder for the server and one per site, from the files in `templates/`."""

from __future__ import annotations

import os
import re
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path

from fedsolve import disk
from fedsolve.deploy import certificates
from fedsolve.errors import DataError, ParameterError
from fedsolve.privacy.graph import LEAST
from fedsolve.privacy.policy import Policy
from fedsolve.runtime.job import VERSION
from fedsolve.runtime.offline import SWITCHES
from fedsolve.texts import read_env as read_env

DEPLOYED = Policy(max_parameters=0.33, max_leverage=0.9)  # where sums are seen as they are: as DataSHIELD has it
NODE_PORT = 9094  # the first that is tried for a site's own node process, on localhost
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
APP = ("pyproject.toml", "fedsolve_app/__init__.py", "fedsolve_app/server.py", "fedsolve_app/client.py")


def init(folder: Path, sites: Sequence[str], address: str, *, inner: int = 8000, node_port: int | None = None) -> None:
    """Write what a federation begins with: a folder for the server, one for each site, and trial certificates.

    `address` is where sites reach the server. On another machine than localhost that is a proxy, and the SuperLink
    itself listens on port `inner` of localhost. Keys of sites are made at the sites; see `join`. From three sites on
    they answer in secure sums alone, until their owners say otherwise. The port of a site's node is chosen when it
    joins, unless `node_port` is that of the first site; the next site has the next.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     init(Path(place) / "fed", ["ward-a", "ward-b"], "fed.example.org:443")
    ...     sorted(path.name for path in Path(place, "fed", "sites", "ward-a").iterdir())
    ['ca.crt', 'site.env', 'start.sh']
    """
    host, _ = split_address(address)
    for name in sites:
        if not NAME.fullmatch(name) or name == "global":
            raise ParameterError(f"sites are named by letters, digits, '.', '_' and '-'; got {name!r}")
    if len(set(sites)) != len(sites) or not sites:
        raise ParameterError(f"sites must have names, each its own; got {', '.join(sites) or 'none'}")
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; name a new folder")
    ca_key, ca = certificates.authority()
    authority = certificates.certificate_text(ca)
    days = str(certificates.DAYS)
    write(folder / "README.txt", template("README.txt", sites=", ".join(sites), address=address, days=days))
    write(folder / "ca" / "ca.key", certificates.key_text(ca_key), secret=True)
    write(folder / "ca" / "ca.crt", authority)
    server_key, server = certificates.server_certificate(ca_key, ca, host)
    write(folder / "server" / "ca.crt", authority)
    write(folder / "server" / "server.crt", certificates.certificate_text(server))
    write(folder / "server" / "server.key", certificates.key_text(server_key), secret=True)
    _write_server(folder / "server", sites, address, inner)
    for number, name in enumerate(sites):
        write(folder / "sites" / name / "ca.crt", authority)
        port = "" if node_port is None else str(node_port + number)
        write_site(folder / "sites" / name, name, address, len(sites), port)


def _write_server(folder: Path, sites: Sequence[str], address: str, inner: int) -> None:
    host, port = split_address(address)
    listen, proxy = (port, 443) if is_local(host) else (inner, port)
    settings = {"LISTEN": "127.0.0.1", "PORT": str(listen), "ADDRESS": address, "LOG": "text", "SITES": ",".join(sites)}
    write(folder / "server.env", env_text(settings))
    write(folder / "start.sh", template("server/start.sh", switches=_exports()), script=True)
    values = {"port": str(proxy), "inner": str(listen), "folder": str(folder.resolve())}
    write(folder / "nginx.conf", template("server/nginx.conf", **values))
    for file in APP:
        write(folder / "app" / file, template(f"app/{file}"))


def write_site(folder: Path, name: str, address: str, sites: int, port: str = "", *, version: str = VERSION) -> None:
    """The settings and the start script of a site, one of so many."""
    settings = {"NAME": name, "SUPERLINK": address, "DATA": "data.npz", "STATE": "state", "FEATURES": "", "MODEL": ""}
    table = dict.fromkeys(("LABEL", "DROP", "PERSON", "TASK", "DATE_AS", "ENCODING"), "")  # which column is what
    table["STREAM"] = "no"  # yes: DATA is Parquet that need not fit into memory
    policy = replace(DEPLOYED, privacy="secure" if sites >= LEAST else "plain")
    rules = {item.name.upper(): _setting(getattr(policy, item.name)) for item in fields(Policy)}
    write(
        folder / "site.env", env_text({**settings, **table, "PORT": port, "VERSION": version, "LOG": "text", **rules})
    )
    write(folder / "start.sh", template("site/start.sh", switches=_exports()), script=True)


def _setting(value: object) -> str:
    if value is None or isinstance(value, tuple):  # no limit, no list
        return ",".join(value or ())
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


class _Blanks(string.Template):
    """Text with blanks written @name, since `$` and braces belong to the shell and to nginx."""

    delimiter = "@"


def template(name: str, **values: str) -> str:
    """A file of `templates/` with its blanks filled in; each must have a value."""
    text = resources.files("fedsolve.deploy").joinpath(f"templates/{name}").read_text(encoding="utf-8")
    return _Blanks(text).substitute(values)


def write(path: Path, text: str, *, secret: bool = False, script: bool = False) -> None:
    """Write a file, and the folders above it. A secret is never readable by others, not even for a moment."""
    disk.private_folder(path.parent)
    mode = 0o600 if secret else 0o755 if script else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address.

    >>> split_address("superlink.example.org:443")
    ('superlink.example.org', 443)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or set(host) & set("/ \"'"):
        raise ParameterError(f"an address is HOST:PORT, as in superlink.example.org:443; got {address!r}")
    return host, int(port)


def is_local(host: str) -> bool:
    """Whether a host is this machine, by its name."""
    return host == "localhost" or host.startswith("127.")


def env_text(settings: Mapping[str, str]) -> str:
    r"""Settings as lines NAME=VALUE that a shell reads as they are.

    >>> env_text({"NAME": "ward-a", "DATA": "my data.npz"})
    "NAME=ward-a\nDATA='my data.npz'\n"
    """
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())


def _exports() -> str:
    return "\n".join(f"export {name}={value}" for name, value in SWITCHES.items() if name.startswith("FLWR"))
