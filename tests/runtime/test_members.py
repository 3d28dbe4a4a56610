"""Sites that come later, ports of nodes, certificates that are renewed, and logs without what is no news."""

from __future__ import annotations

import io
import json
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsolve.errors import DataError, FedsolveError, ParameterError

pytest.importorskip("cryptography", reason="pip install 'fedsolve[flower]'")

from fedsolve import deploy, logs
from fedsolve.cli import app
from fedsolve.deploy import certificates
from fedsolve.deploy.files import NODE_PORT
from fedsolve.deploy.invite import INVITATION, Invitation, place_port
from fedsolve.deploy.join import CARD
from fedsolve.privacy.credentials import PEERS, read_peers

SITES = ["ward-a", "ward-b", "ward-c"]


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    deploy.init(tmp_path / "fed", SITES, "127.0.0.1:18443", node_port=20001)
    deploy.trial(tmp_path / "fed")
    return tmp_path / "fed"


def called(*words: object) -> str:
    done = CliRunner().invoke(app, ["deploy", *map(str, words)])
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.output


# --- a site that comes later ---


def test_a_fourth_site_is_one_command_there_and_one_at_the_server(fed: Path, tmp_path: Path) -> None:
    server, site = fed / "server", tmp_path / "elsewhere" / "ward-d"
    said = called("join", site, "--invitation", server / INVITATION, "--name", "ward-d")
    called("add", server, site / CARD)
    assert deploy.sites_of(server) == (*SITES, "ward-d")
    assert read_peers(site / PEERS) == read_peers(server / PEERS)  # it pinned itself and all others at once
    for name in SITES:
        assert said.splitlines()[-2].split(":")[-1] in called("join", fed / "sites" / name, "--peers", server / PEERS)
    settings, others = (deploy.read_env(path / "site.env") for path in (site, fed / "sites" / "ward-a"))
    assert settings.keys() == others.keys()
    odd = {name for name in settings if settings[name] != others[name]}
    assert odd == {"NAME", "PORT"}
    assert (site / "start.sh").read_text() == (fed / "sites" / "ward-a" / "start.sh").read_text()
    assert (site / "ca.crt").read_text() == (server / "ca.crt").read_text()
    secrets = [path for path in site.iterdir() if path.suffix == ".key"]
    assert len(secrets) == 2 and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)


def test_an_invitation_has_no_secret_and_is_written_anew(fed: Path) -> None:
    path = fed / "server" / INVITATION
    text = path.read_text()
    assert "PRIVATE" not in text
    assert set(Invitation.from_text(text, "it").peers) == set(SITES)
    called("remove", fed / "server", "ward-b")
    assert set(Invitation.from_text(path.read_text(), "it").peers) == {"ward-a", "ward-c"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 9}, "not an invitation"),
        ({"address": "x"}, "HOST:PORT"),
        ({"authority": "x"}, "holds no certificate"),
        ({"peers": {"ward-a": {}}}, "two public keys"),
        ({"peers": {"../x": {}}}, "no name of a site"),
        ({"version": 1}, "not an invitation"),
    ],
)
def test_an_invitation_of_a_stranger_is_refused(
    fed: Path, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = tmp_path / "strange.json"
    path.write_text(json.dumps({**json.loads((fed / "server" / INVITATION).read_text()), **change}))
    with pytest.raises(FedsolveError, match=words):
        deploy.accept(tmp_path / "ward-d", path, "ward-d")
    assert not (tmp_path / "ward-d").exists()


def test_names_and_folders_that_are_taken_are_refused(fed: Path, tmp_path: Path) -> None:
    path = fed / "server" / INVITATION
    with pytest.raises(DataError, match="already"):
        deploy.accept(tmp_path / "new", path, "ward-a")
    with pytest.raises(DataError, match="not empty"):
        deploy.accept(fed / "sites" / "ward-a", path, "ward-d")
    with pytest.raises(ParameterError, match="sites are named by"):
        deploy.accept(tmp_path / "new", path, "../d")
    done = CliRunner().invoke(app, ["deploy", "join", str(tmp_path / "new"), "--invitation", str(path)])
    assert done.exit_code != 0 and not (tmp_path / "new").exists()


def test_settings_are_put_in_when_a_site_joins_or_nothing_is_made(fed: Path, tmp_path: Path) -> None:
    path, site = fed / "server" / INVITATION, tmp_path / "ward-d"
    for wrong, words in (("TEST=2", "TEST must be"), ("PRIVATE=no", "unknown setting"), ("NAME=x", "unknown setting")):
        done = CliRunner().invoke(
            app, ["deploy", "join", str(site), "--invitation", str(path), "--name", "ward-d", "--set", wrong]
        )
        assert words in str(done.exception) and not site.exists()
    called("join", site, "--invitation", path, "--name", "ward-d", "--set", "DATA=/srv/d.csv", "--set", "PRIVACY=plain")
    settings = deploy.read_env(site / "site.env")
    assert (settings["DATA"], settings["PRIVACY"]) == ("/srv/d.csv", "plain")
    called("join", site, "--set", "TEST=0.3")
    assert deploy.read_env(site / "site.env") == {**settings, "TEST": "0.3"}


# --- ports ---


def test_ports_are_chosen_where_the_site_is_or_given(tmp_path: Path) -> None:
    deploy.init(tmp_path / "fed", SITES, "127.0.0.1:18443")
    folders = [tmp_path / "fed" / "sites" / name for name in SITES]
    assert all(deploy.read_env(folder / "site.env")["PORT"] == "" for folder in folders)
    (missing,) = [each for each in deploy.check(folders[0]) if each.what == "port"]
    assert not missing.fine and "deploy join" in missing.words
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for folder in folders:
            deploy.join(folder)
    ports = [int(deploy.read_env(folder / "site.env")["PORT"]) for folder in folders]
    assert len(set(ports)) == 3 and min(ports) >= NODE_PORT
    deploy.join(folders[0])
    assert deploy.read_env(folders[0] / "site.env")["PORT"] == str(ports[0])  # it stays
    deploy.join(folders[0], port=23456)
    assert deploy.read_env(folders[0] / "site.env")["PORT"] == "23456"


def test_a_port_that_somebody_listens_on_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy.init(tmp_path / "fed", SITES[:1], "127.0.0.1:18443")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        monkeypatch.setattr("fedsolve.deploy.invite.NODE_PORT", first)
        assert place_port(tmp_path / "fed" / "sites" / "ward-a") > first


# --- certificates ---


@contextmanager
def shown_by(server: Path) -> Iterator[int]:
    """A port with the certificate in a server's folder, for one handshake after the other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    with connection, context.wrap_socket(connection, server_side=True) as inner:
                        inner.recv(1)
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def trusts(site: Path, server: Path) -> bool:
    """Whether a site's ca.crt makes it take the server for the server."""
    context = ssl.create_default_context(cafile=str(site / "ca.crt"))
    with shown_by(server) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1"):
                return True
        except ssl.SSLCertVerificationError:
            return False


def test_a_new_certificate_of_the_server_needs_nothing_at_the_sites(fed: Path) -> None:
    server, site = fed / "server", fed / "sites" / "ward-a"
    before = (server / "server.crt").read_bytes(), (server / "server.key").read_bytes(), (site / "ca.crt").read_bytes()
    said = called("rotate", server)
    assert f"for {certificates.DAYS - 1} days" in said and "started again" in said
    after = (server / "server.crt").read_bytes(), (server / "server.key").read_bytes(), (site / "ca.crt").read_bytes()
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]
    assert stat.S_IMODE((server / "server.key").stat().st_mode) == 0o600
    assert trusts(site, server)


def test_a_new_authority_is_known_to_the_sites_before_it_signs(fed: Path) -> None:
    server, first, second = fed / "server", fed / "sites" / "ward-a", fed / "sites" / "ward-b"
    old = (server / "server.crt").read_bytes()
    said = called("rotate", server, "--authority")
    assert "join DIR --authority" in said
    assert (server / "server.crt").read_bytes() == old and trusts(first, server)
    told = called("join", first, "--authority", server / "ca.crt")
    (look,) = [each for each in deploy.check(first) if each.what == "certificate"]
    assert told.splitlines()[0].split(": ")[-1] in look.words
    assert trusts(first, server)
    called("rotate", server, "--authority")
    assert (server / "server.crt").read_bytes() != old
    assert trusts(first, server) and not trusts(second, server)
    called("join", second, "--authority", server / "ca.crt")
    assert trusts(second, server)
    called("rotate", server)  # under the new one
    assert trusts(first, server)


def test_an_authority_that_no_site_knows_is_not_taken(fed: Path, tmp_path: Path) -> None:
    deploy.init(tmp_path / "other", SITES, "127.0.0.1:18443")
    with pytest.raises(DataError, match="no authority that this site knows"):
        deploy.take(fed / "sites" / "ward-a", tmp_path / "other" / "server" / "ca.crt")
    with pytest.raises(DataError, match="not the authority that sites know"):
        deploy.rotate(fed / "server", tmp_path / "other" / "ca")


def test_a_certificate_of_ones_own_authority_is_looked_at_before_it_is_used(fed: Path, tmp_path: Path) -> None:
    server = fed / "server"
    key, ca = certificates.read_authority(fed / "ca" / "ca.key", fed / "ca" / "ca.crt")

    def made(host: str, by: tuple[object, object] = (key, ca)) -> tuple[Path, Path]:
        secret, certificate = certificates.server_certificate(*by, host)  # type: ignore[arg-type]
        paths = tmp_path / "own.crt", tmp_path / "own.key"
        paths[0].write_text(certificates.certificate_text(certificate))
        paths[1].write_text(certificates.key_text(secret))
        return paths

    before = (server / "server.crt").read_bytes()
    with pytest.raises(DataError, match="not signed by an authority"):
        deploy.install(server, *made("127.0.0.1", certificates.authority()))
    path, _ = made("127.0.0.1")
    with pytest.raises(DataError, match="not the key of the certificate"):
        deploy.install(server, path, server / "server.key")
    settings = deploy.read_env(server / "server.env")
    (server / "server.env").write_text(deploy.env_text({**settings, "ADDRESS": "fed.example.org:443"}))
    with pytest.raises(DataError, match=r"sites reach the server as fed\.example\.org"):
        deploy.install(server, *made("127.0.0.1"))
    assert (server / "server.crt").read_bytes() == before
    deploy.install(server, *made("fed.example.org"))
    assert (server / "server.crt").read_bytes() == (tmp_path / "own.crt").read_bytes()


def test_a_certificate_of_the_server_does_not_outlive_its_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 10)
    _, certificate = certificates.server_certificate(*(pair := certificates.authority()), "localhost")
    assert certificate.not_valid_after_utc == pair[1].not_valid_after_utc < datetime.now(UTC) + timedelta(days=11)


# --- logs ---

NODE = """\
\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode
\x1b[93mWARNING \x1b[0m:   EXPERIMENTAL: SuperExec authentication is experimental and may change in future releases.
INFO:     Started server process [11787]
\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2004] Failed to activate SuperNode.
The SuperNode could not establish a connection to the SuperLink.

For more information, visit: <https://flower.ai/docs/framework/1.41/en/ref-exit-codes/305.html>
INFO:     Shutting down
the node of ward-a ended; next try in 5 s
"""
IN = "\x1b[92mINFO \x1b[0m:      SuperNode ID: 17642493096523347495\n"
ASKS = (
    "\x1b[91mERROR \x1b[0m:     [/v1/fleet/activate-node][ApiError:2004] Attempted to register SuperNode with public "
    "key: b'-----BEGIN PUBLIC KEY-----\\nMHYw\\n-----END PUBLIC KEY-----\\n', exception: No SuperNode found with the "
    "given public key.\n"
)


def passed(text: str, form: str = "text") -> list[str]:
    out = io.StringIO()
    logs.pass_on("ward-a", form, io.StringIO(text), out)
    return out.getvalue().splitlines()


def test_expected_refusals_are_said_once_until_the_site_is_let_in() -> None:
    lines = passed(NODE * 4 + IN + NODE)
    assert [line.split(": ", 1)[1][:40] for line in lines] == [
        "the server does not let this site in: it",
        "connected to the server, as node 1764249",
        "the server does not let this site in: it",
    ]


def test_a_server_that_is_not_there_yet_is_said_once() -> None:
    away = "\x1b[93mWARNING \x1b[0m:   Connection attempt failed, retrying in 0.79 seconds\n"
    given_up = "\x1b[93mWARNING \x1b[0m:   Giving up reconnection after 1.21 seconds and 3 tries.\n"
    assert len(passed((away * 3 + given_up) * 2)) == 1
    assert len(passed(away + IN + away)) == 3


def test_who_asks_to_be_let_in_is_named_once_by_the_key_that_its_site_reads(fed: Path) -> None:
    pem = certificates.public_pem(fed / "server" / "keys" / "ward-a.pub")
    line = ASKS.replace("-----BEGIN PUBLIC KEY-----\\nMHYw\\n-----END PUBLIC KEY-----\\n", pem.replace("\n", "\\n"))
    (said,) = passed(line * 3)
    assert certificates.fingerprint(pem) in said and "deploy add" in said
    assert len(passed(line + ASKS)) == 2


def test_trouble_passes() -> None:
    trouble = (
        "\x1b[91mERROR \x1b[0m:     Exit Code: 303\nTraceback (most recent call last):\n  File x\nOSError: no disk\n"
        "2026-11-18T15:28:36.696Z ERROR [uvicorn.error] Exception in ASGI application\n"
        "the node of ward-a ended; next try in 5 s\n"
    )
    assert len(passed(trouble)) == 6
    assert len(passed(trouble, "all")) == 6


def test_lines_of_json_are_one_object_each() -> None:
    for line in passed(NODE + IN + "OSError: \x1b[31mno\tdisk\n", "json"):
        assert json.loads(line).keys() == {"time", "who", "level", "message"}
    assert passed(NODE, "all") == NODE.splitlines()
    with pytest.raises(ParameterError, match="LOG must be text, json or all"):
        passed(NODE, "xml")
