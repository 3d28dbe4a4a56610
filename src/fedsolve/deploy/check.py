"""What is missing or wrong at a site, in plain words, from the version of fedsolve to the folder for its model."""

from __future__ import annotations

import shutil
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http.client import HTTPException, HTTPSConnection
from importlib import metadata
from pathlib import Path

import numpy as np

from fedsolve import disk
from fedsolve.data import catalog
from fedsolve.data.large import Large, large
from fedsolve.data.parts import Parquet
from fedsolve.data.reading import Reading
from fedsolve.data.table import Table
from fedsolve.data.target import target_words
from fedsolve.deploy import certificates
from fedsolve.deploy.files import is_local, read_env, split_address
from fedsolve.deploy.run import search_path
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import fitting, maps
from fedsolve.privacy import credentials
from fedsolve.privacy.credentials import IDENTITY, PEERS
from fedsolve.privacy.policy import Policy, Refusal
from fedsolve.runtime.fitting import Fitting
from fedsolve.runtime.job import VERSION

CLOCKS = 5.0  # seconds by which a site's clock may differ from the server's


@dataclass(frozen=True, slots=True)
class Inspection:
    """One thing that was looked at: in order, or what to do about it."""

    what: str
    fine: bool
    words: str


def check(folder: Path, *, features: str = "") -> Iterator[Inspection]:
    r"""Look at everything a site needs, one after the other, and say in plain words what is missing or wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = Path(place, "site.env").write_text("NAME=ward-a\nSUPERLINK=fed.example.org:443\nPORT=9094\n")
    ...     for inspection in check(Path(place)):
    ...         print(inspection.fine, inspection.words.replace(place, "ward-a"))
    False ward-a/site.env does not set DATA, STATE
    """
    settings = read_env(folder / "site.env")
    missing = [name for name in ("NAME", "SUPERLINK", "DATA", "STATE") if not settings.get(name)]
    if missing:
        yield Inspection("settings", False, f"{folder / 'site.env'} does not set {', '.join(missing)}")
        return

    @cache
    def table() -> Table | Large:
        reading = Reading.of({name.lower(): value for name, value in settings.items()})
        reading = reading.for_features(features or settings.get("FEATURES", ""))
        data = str(folder / settings["DATA"])
        streamed = settings.get("STREAM", "").lower() == "yes"
        return large(Parquet.of(data), reading) if streamed else catalog.load(data, reading=reading)

    looks: list[tuple[str, Callable[[], str]]] = [
        ("version", lambda: _check_version(settings.get("VERSION", VERSION))),
        ("key", lambda: _check_key(folder)),
        ("peers", lambda: _check_peers(folder, settings)),
        ("certificate", lambda: _check_authority(folder / "ca.crt")),
        ("server", lambda: _check_server(settings["SUPERLINK"], folder / "ca.crt")),
        ("port", lambda: _check_port(settings.get("PORT", ""), folder)),
        ("data", lambda: _check_data(table())),
        ("rules", lambda: _check_rules(settings, table())),
        ("features", lambda: _check_features(features or settings.get("FEATURES", ""), table)),
        ("state", lambda: _check_state(folder / settings["STATE"])),
    ]
    for what, look in looks:
        try:
            yield Inspection(what, True, look())
        except (FedsolveError, OSError, ValueError) as error:
            yield Inspection(what, False, str(error))


def _check_version(server: str) -> str:
    try:
        flower = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise DataError("Flower is not installed: pip install 'fedsolve[flower]'") from None
    if server != VERSION:
        raise DataError(f"fedsolve {VERSION} is installed, the server has {server}: pip install fedsolve=={server}")
    if not (1, 41) <= tuple(int(part) for part in flower.split(".")[:2]) < (1, 43):
        raise DataError(f"Flower {flower} is installed; fedsolve is tested with 1.41 to 1.42")
    if shutil.which("flower-supernode", path=search_path()) is None:
        raise DataError("the command flower-supernode is not on the PATH: activate the environment of fedsolve")
    return f"fedsolve {VERSION}, Flower {flower}"


def _check_key(folder: Path) -> str:
    path, public = folder / "node.key", folder / "node.pub"
    if not path.is_file():
        raise DataError(f"{path} is missing: fedsolve deploy join {folder} makes it, and a card for the server")
    pem = certificates.public_half(path)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise DataError(f"others on this machine can read {path}: chmod 600 {path}")
    if public.is_file() and certificates.public_pem(public) != pem:
        raise DataError(f"{public} is not the public half of {path}; the server knows another key")
    digest = certificates.fingerprint(pem)
    return f"a private key that only its owner can read; its public half has the SHA-256 {digest}"


def _check_peers(folder: Path, settings: Mapping[str, str]) -> str:
    """The keys for secure sums, by fingerprints, to compare with other sites by telephone."""
    if not (folder / IDENTITY).exists() or not (folder / PEERS).exists():
        lacks = f"fedsolve deploy join {folder}" + " --peers FILE" * (folder / IDENTITY).exists()
        if Policy.of({name.lower(): value for name, value in settings.items()}).privacy == "plain":
            return f"no keys are pinned, so that it takes part in no secure sum: {lacks}"
        raise DataError(f"it answers in secure sums alone, and has no keys for them pinned: {lacks}")
    own, peers = credentials.read_identity(folder / IDENTITY).public, credentials.read_peers(folder / PEERS)
    name = settings["NAME"]
    if peers.get(name) != own:
        raise DataError(f"{folder / PEERS} has another key for this site than {folder / IDENTITY}; join and pin again")
    each = "; ".join(f"{other} {peer.fingerprint}" for other, peer in sorted(peers.items()))
    return f"{len(peers)} pinned; all sites must read the same: {credentials.roster_fingerprint(peers)} ({each})"


def _check_authority(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path} is missing: the certificate of the authority that signed the server's")
    found = certificates.read_all(path)
    subject, end = certificates.subject_and_end(path)
    if not end >= datetime.now(UTC):
        raise DataError(
            f"{path} expired on {end:%Y-%m-%d}; ask the server's operator for a new one, and take it in with "
            f"fedsolve deploy join {path.parent} --authority FILE"
        )
    several = f", the last of {len(found)}" * (len(found) > 1)
    return (
        f"authority {subject}{several}, valid until {end:%Y-%m-%d}, {certificates.days_left(end)} days; all sites must "
        f"read the same: {certificates.authority_fingerprint(found)}"
    )


def _check_server(address: str, authority: Path) -> str:
    host, port = split_address(address)
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise DataError(f"{authority} cannot be used: {error}") from error
    connection = HTTPSConnection(host.strip("[]"), port, timeout=10, context=context)
    try:
        asked = time.time()
        connection.request("GET", "/openapi.json")
        left = _days_shown(connection)
        response = connection.getresponse()
        status, date, now = response.status, response.headers.get("Date", ""), (asked + time.time()) / 2
    except ssl.SSLCertVerificationError as error:
        why = {
            10: "the server's certificate has expired",
            62: f"the server's certificate is not for the name {host}",
        }.get(error.verify_code, "the server's certificate is not signed by the authority in ca.crt")
        raise DataError(f"{address} answers, but {why} ({error.verify_message})") from error
    except ssl.SSLError as error:
        raise DataError(f"{address} answers, but not with TLS ({error.reason})") from error
    except socket.gaierror as error:
        raise DataError(f"nobody knows a machine called {host} ({error.strerror})") from error
    except (OSError, HTTPException) as error:
        why = "nothing listens there" if isinstance(error, ConnectionRefusedError) else str(error)
        raise DataError(f"{address} cannot be reached: {why}; is the server started, is the port open?") from error
    finally:
        connection.close()
    _check_clock(date, now)
    if status != 200:
        return f"{address} answers with a certificate of the authority{left}; only the fleet's paths are open"
    if is_local(host):
        open_here = "all paths are open, as on one machine they are"
        return f"{address} answers with a certificate of the authority{left}; {open_here}"
    raise DataError(
        f"{address} answers, but shows its control paths: whoever reaches it can run code at every site. "
        "Put the proxy of nginx.conf in front of it"
    )


def _days_shown(connection: HTTPSConnection) -> str:
    """For how long the certificate holds that the server shows, in words."""
    shown = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
    until = shown.get("notAfter") if shown else None
    if not isinstance(until, str):
        return ""
    days = certificates.days_left(datetime.fromtimestamp(ssl.cert_time_to_seconds(until), UTC))
    soon = "; its operator must renew it: fedsolve deploy rotate" * (days <= certificates.SOON)
    return f" for {days} days more{soon}"


def _check_clock(date: str, now: float) -> None:
    """Refuse a clock that is not the server's: Flower takes no signature from more than a few seconds ahead."""
    try:
        server = parsedate_to_datetime(date).timestamp() + 0.5  # told in whole seconds, cut off
    except (ValueError, OverflowError):
        return  # it does not say
    ahead = now - server
    if not abs(ahead) <= CLOCKS:
        side = "ahead of" if ahead > 0 else "behind"
        raise DataError(
            f"this machine's clock is {abs(ahead):.0f} s {side} the server's, more than the {CLOCKS:g} s that a node "
            "is let in with: set both by NTP (timedatectl set-ntp true)"
        )


def _check_port(text: str, folder: Path) -> str:
    if not text:
        raise DataError(f"no PORT is chosen for the node: fedsolve deploy join {folder} does that")
    port = int(text)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise DataError(
                f"port {port} of this machine is taken, by this site's own node or by another program; "
                "in the second case set another PORT in site.env"
            ) from None
    return f"port {port} of localhost is free for the node"


def _check_data(table: Table | Large) -> str:
    task = table.task
    classes = target_words(task.target) + (f" ({', '.join(task.class_names[:5])})" if task.class_names else "")
    shape = "x".join(map(str, task.inputs)) if min(task.inputs) > 0 else "pictures"
    if isinstance(table, Large):
        return f"{table.rows} samples of {shape}, {classes}, read in blocks"
    return f"{len(table.labels)} samples of {shape}, {classes}"


def _check_rules(settings: Mapping[str, str], table: Table | Large) -> str:
    """The site's own rules, and whether its data are such that it will answer; here it may be told which are not."""
    policy = Policy.of({name.lower(): value for name, value in settings.items()})
    if isinstance(table, Table):
        table = replace(table, inputs=np.zeros((len(table.labels), 1)), test=None)
    share = 0.0 if isinstance(policy.test, str) and isinstance(table, Table) else policy.test
    client = table.client_of(settings["NAME"], seed=policy.split_seed, test=share)
    try:
        policy.check_counts(client.train, table.task.target)
    except Refusal as error:
        raise DataError(f"{error}: {error.details}") from error
    return (
        f"it trains on {len(client.train)} samples (TEST={policy.test} SPLIT_SEED={policy.split_seed}), "
        f"{policy.min_class} or more of each class it has"
    )


def _check_features(spec: str, table: Callable[[], Table | Large]) -> str:
    if not spec:
        return "as the server says, if they take no network; one for pictures is named by FEATURES in site.env"
    shape = table().task.inputs
    if fitting.unfitted(spec):
        Fitting(spec).check(shape)
        return f"{spec} of {shape}: the numbers in it are fitted in the run, from sums over all sites"
    features = maps.parse(spec)
    return f"{maps.described(features, shape)}, {int(features.shape(shape)[0])} numbers a sample"


def _check_state(folder: Path) -> str:
    disk.check_writable(disk.private_folder(folder) / "models")
    return f"{folder} can be written to; the site's model will be in {folder / 'models'}"
