"""Services of systemd: a unit for a server's or a site's folder, under a user of its own, with the system read-only."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from fedsolve import disk
from fedsolve.deploy.files import is_local, read_env, template, write
from fedsolve.errors import DataError, ParameterError

RESULTS = "results"  # in a server's folder: where runs of a server that is a service write to
LIBRARY = Path("/var/lib")  # where systemd keeps what services write
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
LOCAL = """
# It listens on localhost alone; sites come by way of the proxy.
IPAddressAllow=localhost
IPAddressDeny=any
"""
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PLAIN = re.compile(r"[\w./+@:,=-]+")  # no blank, quote, % or $: systemd has meanings for them


def service(folder: Path, user: str = "fedsolve") -> Path:
    """Write the unit of a folder beside its start script: of a server, with server.env, or of a site, with site.env.

    Paths in it are those of this machine: the folder's, and the environment's that runs this. Nothing is installed.

    >>> import tempfile
    >>> from fedsolve.deploy.files import init
    >>> with tempfile.TemporaryDirectory() as place:
    ...     init(Path(place, "fed"), ["ward-a", "ward-b"], "fed.example.org:443")
    ...     [service(Path(place, "fed", kind)).name for kind in ("server", "sites/ward-a")]
    ['fedsolve-server.service', 'fedsolve-ward-a.service']
    """
    if not _USER.fullmatch(user) or user == "root":
        raise ParameterError(f"a service runs under a user of its own, as in fedsolve, and never as root; got {user!r}")
    here = folder.resolve()
    kind = next((kind for kind in ("server", "site") if (here / f"{kind}.env").is_file()), "")
    if not kind or not (here / "start.sh").is_file():
        raise DataError(f"{folder} has no start.sh beside a server.env or site.env; `fedsolve deploy init` writes them")
    settings = read_env(here / f"{kind}.env")
    name = "server" if kind == "server" else settings.get("NAME", "")
    written = [here / "home", here / (settings.get("STATE", "state") if kind == "site" else RESULTS)]
    read = [here, *([here / settings.get("DATA", "")] if kind == "site" else [])]
    environment = Path(sys.executable).parent
    for path in (here, environment, *written):
        if not _PLAIN.fullmatch(str(path)):
            raise DataError(f"{path} has blanks or signs that systemd would take for its own; move it")
    for path in written:
        disk.private_folder(path)
    local = kind == "server" and is_local(settings.get("LISTEN", ""))
    unit = f"fedsolve-{name}.service"
    values = {
        "unit": unit,
        "what": "server, the SuperLink" if kind == "server" else f"site {name}",
        "user": user,
        "group": user,
        "folder": str(here),
        "path": os.pathsep.join([str(environment), "/usr/local/bin", "/usr/bin", "/bin"]),
        "writable": _writable(written),
        "home": "read-only" if any(_below(path, HOMES) for path in (environment, *read, *written)) else "yes",
        "network": LOCAL if local else "",
    }
    write(here / unit, template("services/unit.service", **values))
    return here / unit


def _writable(folders: list[Path]) -> str:
    """Which folders a service writes to; below /var/lib systemd makes them, and gives them to its user."""
    if all(_below(path, (LIBRARY,)) for path in folders):
        names = " ".join(str(path.relative_to(LIBRARY)) for path in folders)
        return f"StateDirectory={names}\nStateDirectoryMode=0700"
    return f"ReadWritePaths={' '.join(map(str, folders))}"


def _below(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
