"""A federation across machines: the files nobody should write by hand, what is wrong at a site, and a run.

Flower carries the messages; this module writes its configuration and calls its commands, and does not import it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPException, HTTPSConnection
from importlib import metadata
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from fedsolve.data import catalog
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.features import maps
from fedsolve.runtime.offline import SWITCHES
from fedsolve.runtime.sites import VERSION, Job, Rules

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedsolve.runtime.flower import Keeping

LINK = "fedsolve"  # the name of the connection in Flower's configuration
TRIAL_DAYS = 90  # how long trial certificates hold
NODE_PORT = 9094  # of the first site's own node process, on localhost
GONE = 15.0  # seconds without a SuperLink before a run is given up
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
Say = Callable[[str], None]


# --- init ---


def init(folder: Path, sites: Sequence[str], address: str, *, inner: int = 8000) -> None:
    """Write all that a federation needs: a folder for the server, one for each site, trial certificates and keys.

    `address` is where sites reach the server. On another machine than localhost that is a proxy, and the SuperLink
    itself listens on port `inner` of localhost.
    """
    host, port = _split(address)
    for name in sites:
        if not NAME.fullmatch(name) or name == "global":
            raise ParameterError(f"sites are named by letters, digits, '.', '_' and '-'; got {name!r}")
    if len(set(sites)) != len(sites) or not sites:
        raise ParameterError(f"sites must have names, each its own; got {', '.join(sites) or 'none'}")
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; name a new folder")
    listen = port if _local(host) else inner
    ca_key, ca = _authority()
    server_key, server = _certificate(ca_key, ca, host)
    keys = {name: _key() for name in sites}
    _write(folder / "README.txt", README.format(sites=", ".join(sites), address=address, days=TRIAL_DAYS))
    _write(folder / "ca" / "ca.key", _pem(ca_key), secret=True)
    _write(folder / "ca" / "ca.crt", _crt(ca))
    top = folder / "server"
    _write(top / "ca.crt", _crt(ca))
    _write(top / "server.crt", _crt(server))
    _write(top / "server.key", _pem(server_key), secret=True)
    settings = {"LISTEN": "127.0.0.1", "PORT": str(listen), "ADDRESS": address, "SITES": ",".join(sites)}
    _write(top / "server.env", _env(settings))
    _write(top / "start.sh", SERVER_START.format(switches=_exports()), script=True)
    proxy_port = port if not _local(host) else 443
    _write(top / "nginx.conf", NGINX.format(port=proxy_port, inner=listen, folder=top.resolve()))
    for file, text in APP.items():
        _write(top / "app" / file, text)
    for number, name in enumerate(sites):
        _write(top / "keys" / f"{name}.pub", _ssh_public(keys[name]))
        site = folder / "sites" / name
        _write(site / "ca.crt", _crt(ca))
        _write(site / "node.key", _ssh_private(keys[name]), secret=True)
        _write(site / "node.pub", _ssh_public(keys[name]))
        given = {"NAME": name, "SUPERLINK": address, "DATA": "data.npz", "STATE": "state", "FEATURES": ""}
        given |= {"PORT": str(NODE_PORT + number), "VERSION": VERSION}
        _write(site / "site.env", _env(given))
        _write(site / "start.sh", SITE_START.format(switches=_exports()), script=True)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or set(host) & set("/ \"'"):
        raise ParameterError(f"an address is HOST:PORT, as in superlink.example.org:443; got {address!r}")
    return host, int(port)


def _local(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _write(path: Path, text: str, *, secret: bool = False, script: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if secret else 0o755 if script else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)


def _env(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def _exports() -> str:
    return "\n".join(f"export {name}={value}" for name, value in SWITCHES.items() if name.startswith("FLWR"))


def read_env(path: Path) -> dict[str, str]:
    """The settings in a file of lines NAME=VALUE."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            found[name.strip()] = "".join(shlex.split(value))
    return found


# --- keys and certificates, for a trial ---


def _key() -> ec.EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise DataError("deploying needs Flower: pip install 'fedsolve[flower]'") from error
    return ec.generate_private_key(ec.SECP384R1())


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key, name, now = _key(), _named("fedsolve trial authority"), datetime.now(UTC)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=TRIAL_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, built.sign(key, hashes.SHA384())


def _certificate(
    ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, host: str
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The server's, for the host that sites know it by and for localhost."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    names: list[x509.GeneralName] = []
    for known in dict.fromkeys((host, "localhost", "127.0.0.1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(known.strip("[]"))))
        except ValueError:
            names.append(x509.DNSName(known))
    key, now = _key(), datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(_named(host))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=TRIAL_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    return key, built.sign(ca_key, hashes.SHA384())


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization as s

    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()).decode()


def _crt(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization as s

    return certificate.public_bytes(s.Encoding.PEM).decode()


def _ssh_private(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization as s

    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()).decode()


def _ssh_public(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization as s

    return key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode() + "\n"


def public_pem(path: Path) -> str:
    """A public key as Flower knows it."""
    from cryptography.hazmat.primitives import serialization as s

    try:
        key = s.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a public key: {error}") from error
    return key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo).decode()


# --- check ---


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: in order, or what to do about it."""

    what: str
    fine: bool
    words: str


def check(folder: Path, *, features: str = "") -> Iterator[Finding]:
    """Look at everything a site needs, one after the other, and say in plain words what is missing or wrong."""
    given = read_env(folder / "site.env")
    lacking = [name for name in ("NAME", "SUPERLINK", "DATA", "STATE", "PORT") if not given.get(name)]
    if lacking:
        yield Finding("settings", False, f"{folder / 'site.env'} does not set {', '.join(lacking)}")
        return
    looks: list[tuple[str, Callable[[], str]]] = [
        ("version", lambda: _check_version(given.get("VERSION", VERSION))),
        ("key", lambda: _check_key(folder)),
        ("certificate", lambda: _check_authority(folder / "ca.crt")),
        ("server", lambda: _check_server(given["SUPERLINK"], folder / "ca.crt")),
        ("port", lambda: _check_port(int(given["PORT"]))),
        ("data", lambda: _check_data(str(folder / given["DATA"]))),
        ("features", lambda: _check_features(features or given.get("FEATURES", ""), str(folder / given["DATA"]))),
        ("state", lambda: _check_state(folder / given["STATE"])),
    ]
    for what, look in looks:
        try:
            yield Finding(what, True, look())
        except (FedsolveError, OSError, ValueError) as error:
            yield Finding(what, False, str(error))


def _check_version(wanted: str) -> str:
    try:
        flower = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise DataError("Flower is not installed: pip install 'fedsolve[flower]'") from None
    if wanted != VERSION:
        raise DataError(f"fedsolve {VERSION} is installed, the server has {wanted}: pip install fedsolve=={wanted}")
    if not (1, 41) <= tuple(int(part) for part in flower.split(".")[:2]) < (1, 43):
        raise DataError(f"Flower {flower} is installed; fedsolve is tested with 1.41 to 1.42")
    if shutil.which("flower-supernode", path=_path()) is None:
        raise DataError("the command flower-supernode is not on the PATH: activate the environment of fedsolve")
    return f"fedsolve {VERSION}, Flower {flower}"


def _check_key(folder: Path) -> str:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    path = folder / "node.key"
    if not path.is_file():
        raise DataError(f"{path} is missing; whoever ran `fedsolve deploy init` has it, or make a new pair")
    try:
        key = s.load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a private key in OpenSSH format without a password ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} must be an ECDSA key on a NIST curve: ssh-keygen -t ecdsa -b 384")
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise DataError(f"others on this machine can read {path}: chmod 600 {path}")
    known = folder / "node.pub"
    if known.is_file() and public_pem(known).split() != _spki(key).split():
        raise DataError(f"{known} is not the public half of {path}; the server knows another key")
    digest = hashlib.sha256(_spki(key).encode()).hexdigest()
    return f"a private key that only its owner can read; its public half has the SHA-256 {digest[:16]}"


def _spki(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization as s

    return key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo).decode()


def _check_authority(path: Path) -> str:
    from cryptography import x509

    if not path.is_file():
        raise DataError(f"{path} is missing: the certificate of the authority that signed the server's")
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not a certificate ({error})") from error
    if found.not_valid_after_utc < datetime.now(UTC):
        raise DataError(
            f"{path} expired on {found.not_valid_after_utc:%Y-%m-%d}; ask the server's operator for a new one"
        )
    return f"authority {found.subject.rfc4514_string()}, valid until {found.not_valid_after_utc:%Y-%m-%d}"


def _check_server(address: str, authority: Path) -> str:
    host, port = _split(address)
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise DataError(f"{authority} cannot be used: {error}") from error
    connection = HTTPSConnection(host.strip("[]"), port, timeout=10, context=context)
    try:
        connection.request("GET", "/openapi.json")
        reply = connection.getresponse().status
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
    if reply != 200:
        return f"{address} answers with a certificate of the authority; only the fleet's paths are open"
    if _local(host):
        return f"{address} answers with a certificate of the authority; all paths are open, as on one machine they are"
    raise DataError(
        f"{address} answers, but shows its control paths: whoever reaches it can run code at every site. "
        "Put the proxy of nginx.conf in front of it"
    )


def _check_port(port: int) -> str:
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


def _check_data(name: str) -> str:
    table = catalog.load(name)
    classes = f"{table.classes} classes" + (f" ({', '.join(table.class_names[:5])})" if table.class_names else "")
    shape = "x".join(map(str, table.raw)) if min(table.raw) > 0 else "pictures"
    return f"{len(table.labels)} samples of {shape}, {classes}"


def _check_features(spec: str, data: str) -> str:
    if not spec:
        return "as the server says"
    features, table = maps.parse(spec), catalog.load(data)
    return f"{maps.described(features, table.raw)}, {int(features.shape(table.raw)[0])} numbers a sample"


def _check_state(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror or error}") from error
    return f"{folder} can be written to; the site's model will be in {folder / 'models'}"


# --- run ---


def make_server_app() -> object:
    """The server app of a deployment; with a ledger in the run's configuration, replies go there, too."""
    from fedsolve.runtime import flower

    return flower.make_server_app(partial(flower.deployed, _ledger))


def _ledger(config: Mapping[str, Any], job: Job) -> Keeping | None:
    from fedsolve.ledger.store import Ledger

    path = str(config.get("ledger", ""))
    return (lambda method, task: Ledger.keeping(path, method, task, seed=job.seed)) if path else None


def run(folder: Path, job: Job, rules: Rules, out: Path, say: Say, ledger: Path | None = None) -> Path:
    """Run a method on the sites of a deployment, from the server's folder; the result lies in `out` after.

    With a `ledger`, every site's reply becomes a contribution in it; the file is made where there is none.

    Expects the sites that the folder names, with the keys it holds, unless the rules name some. Registers
    these keys at the SuperLink where it does not know them, and passes on what the server app says.
    """
    job.create()  # refuses what can be refused before anybody is asked
    maps.parse(job.features)
    given, here = read_env(folder / "server.env"), folder.resolve()
    sites = rules.sites or tuple(name for name in given.get("SITES", "").split(",") if name)
    host, port = given.get("LISTEN", "127.0.0.1"), int(given.get("PORT", "8000"))
    started = time.monotonic()
    while not _open(host, port):
        if time.monotonic() - started >= rules.wait:
            raise DataError(f"no SuperLink listens on {host}:{port}; start it with {folder / 'start.sh'}")
        time.sleep(min(1.0, rules.wait))
    out = out.resolve()
    environment = _environment(here)
    keys = register(here, sites, say)
    with tempfile.TemporaryDirectory(prefix="fedsolve-") as scratch:
        status = Path(scratch) / "status.json"
        config = Path(scratch) / "run.toml"
        wanted = asdict(replace(rules, sites=sites, keys=keys))
        values = {"job": json.dumps(asdict(job)), "rules": json.dumps(wanted), "out": str(out), "status": str(status)}
        if ledger:
            values["ledger"] = str(ledger.resolve())
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
        command = ["flwr", "run", str(here / "app"), LINK, "--stream", "--run-config", str(config)]
        _stream(command, environment, (host, port), say)
        if not status.is_file():
            raise DataError("the run ended without a result; the SuperLink's log says more. Running again is safe")
        told = json.loads(status.read_text())
    if "error" in told:
        raise DataError(told["error"])
    return out


def _path() -> str:
    """The search path, with the commands of this environment first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _open(host: str, port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), timeout=5):
            return True
    except OSError:
        return False


def _environment(here: Path) -> dict[str, str]:
    """For Flower's commands at the server, after writing where the SuperLink is."""
    given, home = read_env(here / "server.env"), here / "home"
    address = f"{given.get('LISTEN', '127.0.0.1')}:{given.get('PORT', '8000')}"
    _write(home / "config.toml", CONFIG.format(link=LINK, address=address, ca=json.dumps(str(here / "ca.crt"))))
    return {**os.environ, **SWITCHES, "FLWR_HOME": str(home), "PATH": _path()}


def register(folder: Path, sites: Sequence[str], say: Say) -> dict[str, str]:
    """Tell the SuperLink which keys to let in, where it does not know them: it forgets them when it stops.

    The public keys, by site.
    """
    here = folder.resolve()
    environment = _environment(here)
    keys = {name: public_pem(here / "keys" / f"{name}.pub") for name in sites}

    def flwr(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["flwr", "supernode", *words, "--format", "json"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)

    memory = here / "home" / "registered.json"
    before = _read_json(memory)  # the node that each key was
    there = {node["node-id"] for node in _last_json(flwr("list", LINK).stdout).get("nodes", [])}
    known = {name: node for name, node in before.items() if node[0] in there and node[1] == keys.get(name)}
    for name in sites:
        if name in known:
            continue
        done = flwr("register", str(here / "keys" / f"{name}.pub"), LINK)
        told = done.stdout + done.stderr
        found = _last_json(done.stdout)
        if found.get("success"):
            say(f"registered the key of {name}")
            known[name] = (str(found["node-id"]), keys[name])
        elif "already" not in told.lower():
            raise DataError(f"the SuperLink refused the key of {name}: {' '.join(told.split())[-300:]}")
    _write(memory, json.dumps(known))
    return keys


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _last_json(text: str) -> dict[str, Any]:
    """The JSON object in what a command printed."""
    start = text.find("{")
    try:
        return dict(json.loads(text[start:])) if start >= 0 else {}
    except ValueError:
        return {}


def _stream(command: Sequence[str], environment: Mapping[str, str], link: tuple[str, int], say: Say) -> None:
    """Run a command and pass on its lines; give up when the SuperLink is gone."""
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    lines: Queue[str | None] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    seen, run = time.monotonic(), ""
    try:
        while True:
            try:
                line = lines.get(timeout=2.0)
            except Empty:
                if _open(*link):
                    seen = time.monotonic()
                elif time.monotonic() - seen > GONE:
                    raise DataError(
                        f"the SuperLink at {link[0]}:{link[1]} is gone, and the run with it. Start it, and run again"
                    ) from None
                continue
            if line is None:
                break
            text = _plain(line)
            run = (re.findall(r"started run (\d+)", text) or [run])[0]
            if text:
                say(text)
    except BaseException as error:
        process.terminate()
        if isinstance(error, KeyboardInterrupt) and run:
            subprocess.run(["flwr", "stop", run, LINK], env=dict(environment), capture_output=True, check=False)
        raise
    finally:
        process.wait()
        reader.join()
        if process.stdout:
            process.stdout.close()
    if process.returncode:
        if not _open(*link):
            raise DataError(
                f"the SuperLink at {link[0]}:{link[1]} is gone, and the run with it. Start it, and run again"
            )
        raise DataError("Flower could not run the app; what it said stands above")


def _plain(line: str) -> str:
    """A line of a log without colours and levels."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
    return re.sub(r"^(INFO|WARNING|ERROR|DEBUG)\s*:\s*", "", text)


# --- texts ---

APP = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedsolve-app"
version = "1.0.0"
description = "fedsolve on Flower: the library is installed at every site, this only names its two apps."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedsolve"

[tool.flwr.app.components]
serverapp = "fedsolve_app.server:app"
clientapp = "fedsolve_app.client:app"

[tool.flwr.app.config]
job = ""
rules = ""
out = ""
status = ""
ledger = ""
""",
    "fedsolve_app/__init__.py": "",
    "fedsolve_app/server.py": "from fedsolve.deploy import make_server_app\napp = make_server_app()\n",
    "fedsolve_app/client.py": "from fedsolve.runtime.flower import make_client_app\napp = make_client_app()\n",
}

CONFIG = """\
[superlink]
default = "{link}"

[superlink.{link}]
address = "{address}"
root-certificates = {ca}
"""

SERVER_START = """\
#!/bin/sh
# Starts the SuperLink, which carries the messages; Ctrl-C or kill stops it. It keeps nothing on disk.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/server.env"
{switches}
export FLWR_HOME="$here/home"
exec flower-superlink --host "$LISTEN" --port "$PORT" \\
  --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key" \\
  --enable-supernode-auth --disable-runtime-dependency-installation
"""

SITE_START = """\
#!/bin/sh
# Starts this site's node, and again when it ends: a node whose key is not registered yet, or that was cut off a moment
# ago, is refused at first. Ctrl-C or kill stops it.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/site.env"
{switches}
export FLWR_HOME="$here/home"
case $DATA in /*) ;; *) DATA=$here/$DATA ;; esac
case $STATE in /*) ;; *) STATE=$here/$STATE ;; esac
trap 'kill "$child" 2>/dev/null; wait; exit 0' INT TERM
while :; do
  flower-supernode --superlink "$SUPERLINK" --root-certificates "$here/ca.crt" \\
    --auth-supernode-private-key "$here/node.key" --host 127.0.0.1 --port "$PORT" \\
    --node-config "client=\\"$NAME\\" data=\\"$DATA\\" state=\\"$STATE\\" features=\\"$FEATURES\\"" &
  child=$!
  wait "$child"
  echo "the node of $NAME ended; next try in 5 s" >&2
  sleep 5 &
  child=$!
  wait "$child"
done
"""

NGINX = """\
# Lets sites reach the fleet's part of the SuperLink and nothing else: the control and runtime parts have no user
# authentication, so they stay on localhost. Start it with: nginx -c {folder}/nginx.conf
events {{}}
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
http {{
  access_log off;
  client_max_body_size 0;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  server {{
    listen {port} ssl;
    ssl_certificate {folder}/server.crt;
    ssl_certificate_key {folder}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    location /v1/fleet/ {{
      proxy_pass https://127.0.0.1:{inner};
      proxy_http_version 1.1;
      proxy_ssl_verify on;
      proxy_ssl_trusted_certificate {folder}/ca.crt;
      proxy_ssl_name localhost;
      proxy_request_buffering off;
      proxy_buffering off;
      proxy_read_timeout 300s;
      proxy_send_timeout 300s;
    }}
    location / {{ return 403; }}
  }}
}}
"""

README = """\
A federation of {sites}, reached at {address}.

server/   stays with whoever runs the server: start.sh starts the SuperLink, `fedsolve deploy run server` runs a method.
sites/    one folder a site: give each to its site over a safe channel and remove it here. At the site, set DATA in
          site.env (.npz, .csv, .parquet or a folder of pictures), then `fedsolve deploy check FOLDER`, FOLDER/start.sh.
ca/       the authority that signed the server's certificate.

Made for a trial. For production, replace:
- ca/, server/server.crt and server.key: by a certificate of your own authority for the name in the address, and every
  ca.crt by that authority's certificate. The trial certificates end after {days} days. Keep ca/ca.key off the server.
- sites/*/node.key: let each site make its own pair (ssh-keygen -t ecdsa -b 384 -N "" -f node.key) and send you
  node.key.pub alone; put it at server/keys/SITE.pub.
- nginx.conf: it shows what must be open (/v1/fleet/) and what must not (all else). The open SuperLink has no user
  authentication: whoever reaches its other paths can run code at every site. So it listens on localhost alone.
- start.sh: by a service of your system that starts it at boot, under a user of its own.
"""
