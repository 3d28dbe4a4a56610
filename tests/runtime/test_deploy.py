"""`fedsolve deploy`: what init writes, what check finds, and a real federation with TLS and keys on loopback."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from email.utils import formatdate
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays
from fedsolve.methods import create
from tests.contract.test_catalogue import GRADIENT, SMALL

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from fedsolve import deploy
from fedsolve.data import catalog
from fedsolve.deploy import certificates, files
from fedsolve.deploy.node import foreign
from fedsolve.deploy.run import LINK, is_open, search_path
from fedsolve.privacy.policy import Policy
from fedsolve.runtime.job import Job, Rules
from fedsolve.runtime.offline import SWITCHES
from fedsolve.runtime.sites import FileSite
from tests.runtime.live import (
    BIN,
    ENVIRONMENT,
    Live,
    edit,
    end,
    free_ports,
    init_on_free_ports,
    kill,
    started_below,
    until,
)


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    init_on_free_ports(tmp_path / "trial", ["ward-a", "ward-b"])
    return tmp_path / "trial"


def inspections(site: Path, **options: Any) -> dict[str, deploy.Inspection]:
    return {inspection.what: inspection for inspection in deploy.check(site, **options)}


# --- init ---


def test_init_writes_secrets_that_only_their_owner_reads(trial: Path) -> None:
    secrets = [trial / "ca" / "ca.key", trial / "server" / "server.key", trial / "sites" / "ward-a" / "node.key"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    assert not list((trial / "server").rglob("node.key"))
    keys = {path.read_text() for path in (trial / "sites").rglob("node.key")}
    assert len(keys) == 2
    assert (trial / "sites" / "ward-a" / "node.pub").read_text() == (
        trial / "server" / "keys" / "ward-a.pub"
    ).read_text()


def test_the_superlink_listens_on_localhost_whatever_the_address(tmp_path: Path) -> None:
    deploy.init(tmp_path / "trial", ["ward-a"], "fed.example.org:443")
    settings = deploy.read_env(tmp_path / "trial" / "server" / "server.env")
    assert (settings["LISTEN"], settings["PORT"]) == ("127.0.0.1", "8000")
    proxy = (tmp_path / "trial" / "server" / "nginx.conf").read_text()
    assert "listen 443 ssl;" in proxy
    assert "proxy_pass https://127.0.0.1:8000;" in proxy
    text = (tmp_path / "trial" / "server" / "start.sh").read_text()
    for switch in ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "--enable-supernode-auth"):
        assert switch in text


def test_a_site_starts_with_the_careful_rules_and_its_node_is_told_them(trial: Path, tmp_path: Path) -> None:
    """What stands in site.env reaches the site through Flower's configuration of a node, as the script passes it."""
    from flwr.common.config import parse_config_args

    site = trial / "sites" / "ward-a"
    settings = deploy.read_env(site / "site.env")
    found = Policy.of({name.lower(): value for name, value in settings.items()})
    assert found == Policy()  # but for what `init_on_free_ports` says
    assert (settings["TEST"], settings["SPLIT_SEED"], settings["ALLOW_SPLITS"]) == ("0.2", "0", "no")
    edit(site / "site.env", TEST="0.25", MIN_CLASS="9", DEADLINE="")
    node = tmp_path / "bin" / "flower-supernode"  # in place of Flower's command: it says what it was told, once
    files.write(node, '#!/bin/sh\nprintf "%s\\n" "$@" > "$TOLD"\nkill $PPID\n', script=True)
    environment = {**os.environ, "PATH": f"{node.parent}:{os.environ['PATH']}", "TOLD": str(tmp_path / "told")}
    subprocess.run([str(site / "start.sh")], env=environment, check=False, timeout=60)
    words = (tmp_path / "told").read_text().splitlines()
    config = parse_config_args([words[words.index("--node-config") + 1]], flatten=True)
    assert FileSite.of(config).policy == Policy(test=0.25, min_class=9)


@pytest.mark.parametrize(
    ("sites", "address", "words"),
    [
        (["a b"], "h:1", "letters, digits"),
        (["a", "a"], "h:1", "each its own"),
        ([], "h:1", "each its own"),
        (["a"], "h", "HOST:PORT"),
        (["a"], "h:99999", "HOST:PORT"),
    ],
)
def test_init_refuses(tmp_path: Path, sites: list[str], address: str, words: str) -> None:
    with pytest.raises(fs.ParameterError, match=words):
        deploy.init(tmp_path / "trial", sites, address)
    assert not (tmp_path / "trial").exists()


def test_init_writes_over_nothing(trial: Path) -> None:
    with pytest.raises(fs.DataError, match="is not empty"):
        deploy.init(trial, ["ward-a"], "h:1")


def test_shell_settings_survive_strange_texts(tmp_path: Path) -> None:
    values = {"DATA": 'it\'s a $folder/with `odd` "names".npz', "FEATURES": ""}
    (tmp_path / "x.env").write_text(deploy.env_text(values))
    assert deploy.read_env(tmp_path / "x.env") == values
    shown = subprocess.run(
        ["sh", "-c", '. ./x.env; printf %s "$DATA"'], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout == values["DATA"]


# --- check ---


@pytest.fixture
def answering(trial: Path) -> Iterator[Path]:
    """A TLS server with the trial's certificate that answers 403; a file beside it sets its clock."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trial / "server" / "server.crt", trial / "server" / "server.key")
    listener = socket.create_server(("127.0.0.1", int(deploy.read_env(trial / "server" / "server.env")["PORT"])))
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
                with context.wrap_socket(connection, server_side=True) as safe:
                    safe.recv(4096)
                    fast = float((trial / "clock").read_text()) if (trial / "clock").exists() else 0.0
                    date = formatdate(time.time() + fast, usegmt=True) if fast < 1e6 else "soon"
                    head = f"HTTP/1.1 403 Forbidden\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n"
                    safe.sendall(head.encode())
            except OSError:
                continue

    threading.Thread(target=serve, daemon=True).start()
    yield trial
    over.set()
    listener.close()


def test_check_finds_everything_in_order(answering: Path) -> None:
    site = answering / "sites" / "ward-a"
    np.savez(site / "data.npz", x=np.random.default_rng(0).normal(size=(60, 4)), y=np.arange(60) % 3)
    looks = inspections(site, features="random:7,relu,0")
    assert all(look.fine for look in looks.values()), looks
    assert looks["data"].words == "60 samples of 4, 3 classes"
    assert looks["rules"].words == "it trains on 48 samples (TEST=0.2 SPLIT_SEED=0), 5 or more of each class it has"
    assert "only the fleet's paths are open" in looks["server"].words
    assert looks["features"].words == "random:7,relu,0 of (4,), 7 numbers a sample"
    assert (site / "state").is_dir()


@pytest.mark.parametrize(("server", "words"), [(-8, "ahead of"), (8, "behind"), (4000, "behind")])
def test_check_compares_the_clock_with_the_servers(answering: Path, server: float, words: str) -> None:
    """A node whose clock is 8 s fast never got in, and in 0.1.0 `deploy check` said that all was well."""
    (answering / "clock").write_text(str(server))
    look = inspections(answering / "sites" / "ward-a")["server"]
    assert not look.fine
    told = re.search(r"this machine's clock is (\d+) s (ahead of|behind) the server's", look.words)
    assert told and abs(int(told[1]) - abs(server)) <= 1 and told[2] == words
    assert "NTP" in look.words


@pytest.mark.parametrize("server", [-3, 0, 3, 1e9])
def test_a_clock_that_is_about_right_or_not_told_is_no_fault(answering: Path, server: float) -> None:
    (answering / "clock").write_text(str(server))
    assert inspections(answering / "sites" / "ward-a")["server"].fine


def spoil(site: Path, what: str) -> None:
    other = site.parent / "ward-b"
    if what == "no data":
        (site / "data.npz").unlink()
    elif what == "no key":
        (site / "node.key").unlink()
    elif what == "key that the group reads":
        (site / "node.key").chmod(0o640)
    elif what == "key that others read":
        (site / "node.key").chmod(0o604)
    elif what == "key with a password":
        if shutil.which("ssh-keygen") is None:
            pytest.skip("ssh-keygen is not installed: apt-get install openssh-client")
        command = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(site / "node.key")]
        subprocess.run(command, check=True, capture_output=True)
    elif what == "another's key":
        shutil.copy(other / "node.key", site / "node.key")
    elif what == "key of another kind":
        (site / "node.key").write_text("-----BEGIN NONSENSE-----\n")
    elif what == "wrong authority":
        (site / "ca.crt").write_text(certificates.certificate_text(certificates.authority()[1]))
    elif what == "no authority":
        (site / "ca.crt").unlink()
    elif what == "version":
        edit(site / "site.env", VERSION="9.0")
    elif what == "class of two":
        np.savez(site / "data.npz", x=np.ones((40, 2)), y=[1, 1] + [0] * 38)
        edit(site / "site.env", TEST="0")
    elif what == "rules":
        edit(site / "site.env", TEST="2")
    elif what == "state":
        (site / "state").write_text("a file")


WRONG = {
    "no data": ("data", "there is no file"),
    "no key": ("key", "node.key is missing"),
    "key that the group reads": ("key", "chmod 600"),
    "key that others read": ("key", "chmod 600"),
    "key with a password": ("key", "is not a private key in OpenSSH format without a password"),
    "another's key": ("key", "is not the public half"),
    "key of another kind": ("key", "is not a private key in OpenSSH format"),
    "wrong authority": ("server", "not signed by the authority in ca.crt"),
    "no authority": ("certificate", "is missing"),
    "version": ("version", "the server has 9."),
    "class of two": ("rules", "classes with few training samples: 1 (2); MIN_CLASS in site.env is 5"),
    "rules": ("rules", "TEST must be a share"),
    "state": ("state", "cannot write to"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_check_names_what_is_wrong(answering: Path, what: str) -> None:
    site = answering / "sites" / "ward-a"
    np.savez(site / "data.npz", x=np.ones((40, 2)), y=np.arange(40) % 2)
    spoil(site, what)
    where, words = WRONG[what]
    looks = inspections(site)
    assert not looks[where].fine
    assert words in looks[where].words
    if what not in ("no authority", "no data"):  # without these others cannot be checked
        assert [name for name, look in looks.items() if not look.fine] == [where]


def test_check_knows_a_server_without_tls_or_without_anybody(trial: Path) -> None:
    site = trial / "sites" / "ward-a"
    assert "nothing listens there" in inspections(site)["server"].words
    with socket.create_server(("127.0.0.1", int(deploy.read_env(trial / "server" / "server.env")["PORT"]))) as plain:

        def answer() -> None:
            connection, _ = plain.accept()
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert "but not with TLS" in inspections(site)["server"].words


def test_check_on_the_command_line(trial: Path) -> None:
    command = [sys.executable, "-m", "fedsolve", "deploy", "check", str(trial / "sites" / "ward-a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "WRONG data: there is no file" in done.stdout
    assert "ok    key: " in done.stdout


def test_check_reads_the_data_once(answering: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, names, load = answering / "sites" / "ward-a", [], catalog.load
    np.savez(site / "data.npz", x=np.ones((40, 2)), y=np.arange(40) % 2)

    def counted(name: str, **options: Any) -> fs.Table:
        names.append(name)
        return load(name, **options)

    monkeypatch.setattr(catalog, "load", counted)
    assert all(look.fine for look in inspections(site, features="unit").values())
    assert names == [str(site / "data.npz")]


@pytest.mark.parametrize("command", ["init trial --sites a --address h:1", "check .", "run . --out out"])
def test_without_the_extra_one_sentence_says_what_to_install(tmp_path: Path, command: str) -> None:
    code = "import sys; sys.modules['cryptography'] = None; from fedsolve.cli import main; main()"
    words = [sys.executable, "-c", code, "deploy", *command.split()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'fedsolve[flower]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


# --- run ---


def test_only_a_site_of_the_federation_can_be_left_out_on_purpose(trial: Path, tmp_path: Path) -> None:
    with pytest.raises(fs.FedsolveError, match="unknown site 'ward-y'"):
        deploy.run(trial / "server", Job("afl"), Rules(wait=0.0, exclude=("ward-y",)), tmp_path / "out", print)
    with pytest.raises(fs.FedsolveError, match="no SuperLink listens"):
        deploy.run(trial / "server", Job("afl"), Rules(wait=0.0, exclude=("ward-b",)), tmp_path / "out", print)


def test_run_says_that_no_superlink_is_there(trial: Path, tmp_path: Path) -> None:
    with pytest.raises(fs.DataError, match=r"no SuperLink listens on 127.0.0.1:\d+; start it with"):
        deploy.run(trial / "server", Job("afl"), Rules(wait=0.1), tmp_path / "out", print)


FLWR = """#!/bin/sh
echo "$*" >> "$PLACE/calls"
case "$1 $2" in
  run*) until [ -e "$PLACE/go" ]; do sleep 0.1; done
        echo "Successfully started run 42"
        touch "$PLACE/told"
        exec sleep 600 ;;
esac
"""


@contextmanager
def stand_in(server: Path) -> Iterator[None]:
    """Something with the server's certificate that answers every question with an empty protobuf: nobody is known."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    port = int(deploy.read_env(server / "server.env")["PORT"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as link:
        link.socket = context.wrap_socket(link.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=link.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            link.shutdown()
            thread.join()


@pytest.mark.parametrize("moment", ["while it runs", "while it is handed over"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_run_and_leaves_nothing_behind(
    trial: Path, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    """In 0.1.0 the run went on after SIGTERM, and folders stayed. With stand-ins for Flower's command and SuperLink."""
    place = tmp_path / "place"
    files.write(place / "bin" / "flwr", FLWR, script=True)
    files.write(place / "out" / "kept", "")
    code = f"import sys; sys.executable = {str(place / 'bin' / 'python')!r}; from fedsolve.cli import main; main()"
    command = [sys.executable, "-c", code, "deploy", "run", str(trial / "server"), "--out", str(place / "out" / "run")]
    environment = {**os.environ, "PLACE": str(place), "TMPDIR": str(place / "out")}
    with stand_in(trial / "server"), (place / "said").open("w+") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        try:
            until(lambda: "run " in (place / "calls").read_text() if (place / "calls").exists() else False, 60)
            if moment == "while it runs":
                (place / "go").touch()
                until(lambda: "started run 42" in (place / "said").read_text(), 60)
            process.send_signal(number)
            (place / "go").touch()
            assert process.wait(60) == 128 + number, (place / "said").read_text()
        finally:
            end(process)
    assert (place / "calls").read_text().splitlines()[-1] == f"stop 42 {LINK}"
    assert [path.name for path in (place / "out").iterdir()] == ["kept"]
    assert "fedsolve: stopped" in (place / "said").read_text()
    assert "Traceback" not in (place / "said").read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_run_is_stopped_by_sigterm(live: Live, tmp_path: Path) -> None:
    out, said = tmp_path / "outs", tmp_path / "said"
    out.mkdir()
    words = ["deploy", "run", str(live.server), "--out", str(out / "run"), "--method", "fedprior", "--timeout", "600"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": "1"}
    with said.open("w") as file:
        command = [sys.executable, "-m", "fedsolve", *words]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            until(lambda: "sites" in said.read_text(), 300)
            process.terminate()
            assert process.wait(120) == 143, said.read_text()
        finally:
            end(process)
    until(lambda: not any(out.iterdir()), 60)
    home = {**environment, **SWITCHES, "FLWR_HOME": str(live.server / "home")}
    shown = subprocess.run(
        [str(Path(BIN) / "flwr"), "ls", LINK, "--format", "json"], env=home, capture_output=True, text=True, check=True
    )
    assert '"status": "running"' not in shown.stdout and "finished:stopped" in shown.stdout, shown.stdout
    assert set(live.run(fs.AFL(ridge=0.0, intercept=False), tmp_path / "next").clients) == set(live.names)
    assert not any(out.iterdir())


def lines_before_the_start(server: Path, **rules: Any) -> list[str]:
    """What `run` says before it looks for a SuperLink, which is not there."""
    said: list[str] = []
    with pytest.raises(fs.DataError, match="no SuperLink listens"):
        deploy.run(server, Job("afl"), Rules(wait=0.0, **rules), server.parent / "out", said.append)
    return said


def test_run_names_the_sites_that_have_a_key_but_are_not_in_the_settings(trial: Path) -> None:
    server = trial / "server"
    assert lines_before_the_start(server) == []
    for name in ("ward-d", "ward.c"):
        shutil.copy(server / "keys" / "ward-a.pub", server / "keys" / f"{name}.pub")
    (line,) = lines_before_the_start(server)
    assert line.startswith("not asked: ward-d, ward.c: ")
    assert f"SITES in {server / 'server.env'}" in line
    assert "add its name" in line
    edit(server / "server.env", SITES="ward-a,ward-b,ward-d,ward.c")
    assert lines_before_the_start(server) == []


def test_run_says_nothing_of_sites_that_the_caller_did_not_choose(trial: Path) -> None:
    assert lines_before_the_start(trial / "server", sites=("ward-a",)) == []


# --- real processes ---


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    federation = Live(tmp_path_factory.mktemp("live"), 3)
    try:
        federation.start("server")
        federation.register()  # first, or nodes are refused and try again for a while
        for name in federation.names:
            federation.start(name)
        yield federation
    finally:
        federation.stop()


def same_models(live: Live, method: fs.Method, out: Path) -> None:
    result, reference = live.run(method, out), live.in_process(method)
    gradient = getattr(method, "processes", False)
    bound = 1e-6 if gradient else 1e-12
    pairs = [(result.state, reference.state)]
    for name in live.names:
        model = fs.load_model(live.site(name) / "state" / "models" / f"{name}.safetensors")
        pairs.append((model.arrays, reference.models[name].arrays))
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        for name, array in theirs.items():
            scale = max(1.0, float(np.abs(array).max(initial=0.0)))
            np.testing.assert_allclose(mine[name], array, rtol=0, atol=bound * scale)
    assert {n: c.accuracy for n, c in result.clients.items()} == {n: c.accuracy for n, c in reference.clients.items()}
    assert not list((out / "models").glob("ward-*"))


# Rounds cost seconds each, torch more: as few as show that what a round leaves behind is found by the next.
REAL: dict[str, dict[str, object]] = {
    "fedhip": {},
    "afl": {},
    "apfl": SMALL["apfl"],
    "pfedacnnl": {"network": "mlp:8", "groups": 2},
    "fedavg": {**SMALL["fedavg"], "epochs": 2},
    "fedapa": {**SMALL["fedapa"], "epochs": 2},
}


# One is always run, with processes at every site: of one round, since Flower starts a process for each message.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name != "afl")) for name in REAL])
def test_a_real_federation_gives_the_models_of_one_process(live: Live, tmp_path: Path, name: str) -> None:
    if name in GRADIENT:
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fedsolve[torch]'")
    same_models(live, create(name, REAL[name]), tmp_path / "out")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_federation_in_secure_sums(live: Live, tmp_path: Path) -> None:
    """Real processes at every site give the bits of a secure run in one process, and the server no figure of a site."""
    method = fs.FedHiP(beta=1.0)
    result = live.run(method, tmp_path / "out", quorum=3, ledger=tmp_path / "fed.db")
    reference = live.in_process(method, secure=fs.Secure())
    assert arrays.same(result.state, reference.state)
    with fs.Ledger(tmp_path / "fed.db") as ledger:
        assert arrays.same(ledger.solve().state, reference.state)
        assert [member.cohort for member in ledger.members()] == [len(live.names)]
        assert {ledger.cohort_of(name) for name in live.names} == {"cohort-1"}
    for name in live.names:
        model = fs.load_model(live.site(name) / "state" / "models" / f"{name}.safetensors")
        assert arrays.same(model.arrays, reference.models[name].arrays)
        audit = (live.site(name) / "state" / "audit.jsonl").read_text()
        assert all(f'"what": "{kind}"' in audit for kind in ("open", "mask", "unmask"))
    assert result.privacy["secure"] and result.accuracy.mean is None
    assert result.accuracy.pooled == reference.accuracy.pooled


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_superlink_that_dies_ends_the_run_and_the_next_run_works(live: Live, tmp_path: Path) -> None:
    said: list[str] = []
    killed = threading.Event()

    def kill() -> None:
        until(lambda: any("sites" in line for line in said), 300)
        live.processes["server"].kill()
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(fs.DataError, match=r"the SuperLink at .* is gone, and the run with it"):
        live.run(fs.AFL(ridge=0.0, intercept=False), tmp_path / "out", said)
    assert killed.is_set()
    assert not (tmp_path / "out").exists()
    end(live.processes.pop("server"))
    live.start("server")
    assert set(live.run(fs.AFL(ridge=0.0, intercept=False), tmp_path / "out").clients) == set(live.names)


# --- a server with other code ---


@pytest.mark.timeout(900)
def test_a_server_that_ships_other_code_is_refused_and_nothing_of_it_runs(live: Live, tmp_path: Path) -> None:
    """The operator changes the app that Flower sends to the sites: they look at it, and answer by their own code."""
    client, trace = live.server / "app" / "fedsolve_app" / "client.py", tmp_path / "it-ran"
    honest = client.read_text()
    client.write_text(f"open({str(trace)!r}, 'w').close()\n{honest}")
    method = fs.AFL(ridge=0.0, intercept=False)
    try:
        with pytest.raises(fs.DataError, match="it runs its own code only, and the server ships another bundle"):
            live.run(method, tmp_path / "out", wait=10.0)
    finally:
        client.write_text(honest)
    assert not trace.exists() and not (tmp_path / "out").exists()
    for name in live.names:
        last = [json.loads(line) for line in (live.site(name) / "state" / "audit.jsonl").read_text().splitlines()][-1]
        assert last["what"] == "bundle" and "fedsolve_app/client.py is not that of the installed" in last["refused"]
        assert not list((live.site(name) / "home" / "apps").glob("*"))  # nothing was unpacked, at no time


def bundle(change: Callable[[dict[str, bytes]], None] | None = None) -> bytes:
    """The bundle of a deployment's app, as Flower packs it, with a change to its files."""
    contents = {name: files.template(f"app/{name}").encode() for name in files.APP} | {".info/CONTENT": b"hashes"}
    if change:
        change(contents)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda made: made.update({"pyproject.toml": b"[project]\nversion = '2'"}), ""),
        (lambda made: made.update({"fedsolve_app/client.py": b"import os"}), "its fedsolve_app/client.py is not"),
        (lambda made: made.update({"fedsolve/__init__.py": b""}), "its fedsolve/__init__.py is not"),
        (lambda made: made.update({"../sitecustomize.py": b""}), "its ../sitecustomize.py is not"),
        (lambda made: made.pop("fedsolve_app/__init__.py"), "it lacks fedsolve_app/__init__.py"),
        (lambda made: made.update({"pyproject.toml": bytes(2**21)}), "more than"),
    ],
)
def test_a_bundle_is_the_installed_one_or_named(change: Callable[[dict[str, bytes]], None], words: str) -> None:
    found = foreign(bundle(change))
    assert found.startswith(words) or words in found
    assert bool(found) == bool(words)
    assert not foreign(bundle()) and foreign(bundle()[:-20]) == "it is no bundle of Flower"


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_damaged_bundle_is_named_whatever_its_packing(kind: int) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", kind) as file:
        for name in files.APP:
            file.writestr(name, files.template(f"app/{name}"))
    whole = packed.getvalue()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        assert isinstance(foreign(bytes(damaged)), str)
    assert bool(foreign(whole)) == (kind not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))


# --- intruders ---


def node(live: Live, folder: Path, *arguments: str, address: str = "") -> tuple[int, str]:
    """Try to join the federation with a node; its exit code and what it said."""
    (port,) = free_ports(1)
    command = [
        str(Path(BIN) / "flower-supernode"),
        *("--superlink", address or f"127.0.0.1:{live.port}"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-retries", "2", "--max-wait-time", "20"),
        *("--node-config", 'client="ward-a" data="x" state="y"'),
        *arguments,
    ]
    # The node starts commands by name: they must be found although this environment may not be activated.
    environment = {**os.environ, **ENVIRONMENT, **SWITCHES, "FLWR_HOME": str(folder / "home"), "PATH": search_path()}
    with (folder / "intruder.log").open("w") as log:  # not a pipe: processes below it would keep that open
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            process.wait(240)
        finally:
            end(process)
            for each in started_below(folder):
                kill(each)
    return process.returncode, (folder / "intruder.log").read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["unknown key", "no key", "wrong authority", "no TLS"])
def test_an_intruder_is_refused(live: Live, tmp_path: Path, kind: str) -> None:
    stranger = tmp_path / "node.key"
    files.write(stranger, certificates.node_pair()[0], secret=True)
    wrong = tmp_path / "ca.crt"
    wrong.write_text(certificates.certificate_text(certificates.authority()[1]))
    authority, own = str(live.site("ward-a") / "ca.crt"), str(live.site("ward-a") / "node.key")
    arguments = {
        "unknown key": ["--root-certificates", authority, "--auth-supernode-private-key", str(stranger)],
        "no key": ["--root-certificates", authority],
        "wrong authority": ["--root-certificates", str(wrong), "--auth-supernode-private-key", own],
        "no TLS": ["--insecure"],
    }
    code, said = node(live, tmp_path, *arguments[kind])
    assert code != 0, said
    assert "exit-codes/305" in said, said  # no connection to the SuperLink, and not some other mishap


@contextmanager
def nginx_before(server: Path, folder: Path) -> Iterator[int]:
    """The proxy with the configuration that init wrote, on a free port of localhost."""
    command, (port,) = nginx_command(server, folder), free_ports(1)
    path = folder / "nginx.conf"
    path.write_text(path.read_text().replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"))
    with (folder / "nginx.log").open("w") as log:
        process = subprocess.Popen([*command, "-g", "daemon off;"], stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or is_open("127.0.0.1", port), 30)
        assert process.poll() is None, (folder / "nginx.log").read_text()
        yield port
    finally:
        end(process)


def nginx_command(server: Path, folder: Path) -> list[str]:
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed: apt-get install nginx")
    text = (server / "nginx.conf").read_text()
    (folder / "nginx.conf").write_text(text.replace(f"pid {server.resolve()}", f"pid {folder}"))
    return [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")]


@pytest.fixture
def proxy(live: Live, tmp_path: Path) -> Iterator[int]:
    """nginx with the configuration that init writes, in front of the SuperLink."""
    with nginx_before(live.server, tmp_path) as port:
        yield port


def test_nginx_takes_the_configuration_of_the_proxy(trial: Path, tmp_path: Path) -> None:
    command, (port,) = nginx_command(trial / "server", tmp_path), free_ports(1)
    path = tmp_path / "nginx.conf"
    path.write_text(path.read_text().replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"))
    done = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr.replace('"user" directive', ""), done.stderr


class Backend:
    """A TLS server in the place of the SuperLink that counts requests and their bytes."""

    def __init__(self, server: Path) -> None:
        self.requests, self.bytes, counting = 0, 0, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:
                size = len(handler.rfile.read(int(handler.headers.get("Content-Length", "0"))))
                with counting:
                    self.requests, self.bytes = self.requests + 1, self.bytes + size
                handler.send_response(200)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(handler, *_: object) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server / "server.crt", server / "server.key")
        self.http = ThreadingHTTPServer(("127.0.0.1", int(deploy.read_env(server / "server.env")["PORT"])), Handler)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


class Proxied(NamedTuple):
    backend: Backend
    port: int
    authority: Path

    def connect(self) -> HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority))
        return HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)

    def post(self, body: bytes | Iterator[bytes], path: str = "/v1/fleet/push-object") -> int:
        """The status of one request; 413 where the proxy closes before it has read all."""
        connection = self.connect()
        try:
            connection.request("POST", path, body=body, encode_chunked=not isinstance(body, bytes))
            return connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            return 413
        finally:
            connection.close()


@pytest.fixture
def proxied(trial: Path, tmp_path: Path) -> Iterator[Proxied]:
    backend = Backend(trial / "server")
    try:
        with nginx_before(trial / "server", tmp_path) as port:
            yield Proxied(backend, port, trial / "sites" / "ward-a" / "ca.crt")
    finally:
        backend.close()


def test_a_huge_body_does_not_reach_the_superlink(proxied: Proxied) -> None:
    """In 0.1.0 400 MB of anybody made the SuperLink grow by 780 MB, before it looked at a key."""
    assert proxied.post(bytes(9_000_000)) == 413
    head = b"POST /v1/fleet/x HTTP/1.1\r\nHost: x\r\nContent-Length: 400000000\r\n\r\n"
    with closing(proxied.connect()) as announced:
        announced.connect()
        announced.sock.sendall(head)
        assert announced.sock.recv(64).startswith(b"HTTP/1.1 413")
    assert proxied.post(b"x" * 10, "/v1/control/start-run") == 403
    assert proxied.backend.requests == 0


def test_a_body_without_a_length_does_not_reach_the_superlink_either(proxied: Proxied) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield f"{1_000_000:x}\r\n".encode() + bytes(1_000_000) + b"\r\n"

    connection = proxied.connect()
    connection.putrequest("POST", "/v1/fleet/x")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    try:
        for piece in pieces():
            connection.send(piece)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
        pass  # closed before all was sent
    finally:
        connection.close()
    assert proxied.backend.requests == 0


def test_the_pieces_of_a_large_message_pass(proxied: Proxied) -> None:
    """As a node sends them: on two connections at a time, each piece a request."""
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

    piece, pieces = bytes(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 4096), 12
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda _: proxied.post(piece), range(pieces))) == {200}
    assert (proxied.backend.requests, proxied.backend.bytes) == (pieces, pieces * len(piece))


def test_a_burst_of_requests_is_cut_off_before_the_superlink(proxied: Proxied) -> None:
    def many(count: int) -> list[int]:
        connection = proxied.connect()
        statuses = []
        for _ in range(count):
            connection.request("POST", "/v1/fleet/x", body=b"x")
            with connection.getresponse() as response:
                response.read()
                statuses.append(response.status)
        connection.close()
        return statuses

    started = time.monotonic()
    with ThreadPoolExecutor(64) as pool:  # twice the connections of an address
        statuses = [status for each in pool.map(many, [4] * 64) for status in each]
    seconds = time.monotonic() - started
    assert set(statuses) == {200, 503}
    assert proxied.backend.requests == statuses.count(200) <= 51 + 50 * seconds


@pytest.mark.long
@pytest.mark.timeout(900)
def test_behind_the_proxy_sites_work_and_control_paths_are_closed(live: Live, proxy: int, tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = files.template("config.toml", link="p", address=f"127.0.0.1:{proxy}", ca=f'"{live.server / "ca.crt"}"')
    files.write(home / "config.toml", text)
    environment = {**os.environ, **SWITCHES, "FLWR_HOME": str(home)}
    for words in (
        ["ls"],
        ["run", str(live.server / "app")],
        ["supernode", "register", str(live.server / "keys" / "ward-a.pub")],
    ):
        command = [str(Path(BIN) / "flwr"), *words, "p"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode != 0, done.stdout
        assert "Successfully" not in done.stdout
    for path in (
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/openapi.json",
        "/docs",
        "/v1/fleet/../control/x",
    ):
        shown = subprocess.run(
            [
                "curl",
                "-sk",
                "--path-as-is",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                f"https://127.0.0.1:{proxy}{path}",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout == "403", (path, shown.stdout)
    end(live.processes.pop("ward-a"))
    live.edit("ward-a", SUPERLINK=f"127.0.0.1:{proxy}")
    try:
        assert "only the fleet's paths are open" in inspections(live.site("ward-a"))["server"].words
        live.start("ward-a")
        same_models(live, fs.FedHiP(beta=1.0, intercept=False), tmp_path / "out")
    finally:
        end(live.processes.pop("ward-a"))
        live.edit("ward-a", SUPERLINK=f"127.0.0.1:{live.port}")
        live.start("ward-a")


# --- faults ---

FAULTY = """
import os, signal, sys, time
path = os.environ.get("TEST_FAULT")
if path and "fedsolve.deploy.node" in sys.orig_argv and os.path.exists(path):
    kind = open(path).read()
    import numpy as np
    from fedsolve.methods import afl
    update = afl.AFL.update
    def spoilt(self, private, message, site):
        private, reply = update(self, private, message, site)
        if kind == "raise":
            raise RuntimeError("a disk is full")
        if kind == "hang":
            time.sleep(3600)
        while kind == "deaf":
            try:
                time.sleep(3600)
            except Exception:
                pass
        if kind == "kill":
            runner = os.getppid()  # `fedsolve deploy answer`, started by the script that started the node
            with open(f"/proc/{runner}/stat") as file:
                script = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{script}/task/{script}/children") as file:
                for node in set(map(int, file.read().split())) - {runner}:
                    os.kill(node, signal.SIGKILL)
            time.sleep(3600)
        if kind == "nan":
            return private, {**reply, "cross": reply["cross"] * np.nan}
        if kind == "indefinite":
            return private, {**reply, "triangle": reply["triangle"] - 1.0}
        gram = np.arange(float(site.task.width ** 2)).reshape(site.task.width, site.task.width)
        return private, {"gram": gram, **{n: a for n, a in reply.items() if n != "triangle"}}
    afl.AFL.update = spoilt
"""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["hang", "deaf"])
def test_a_site_that_hung_takes_part_again_without_a_restart(tmp_path: Path, kind: str) -> None:
    """In 0.1.0 the hung process kept its node from every later run."""
    live = Live(tmp_path, 3)
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "sitecustomize.py").write_text(textwrap.dedent(FAULTY))
    fault = live.site("ward-b") / "fault"
    fault.write_text(kind)
    live.edit("ward-b", DEADLINE="10")
    python_path = os.pathsep.join([str(tmp_path / "faults"), os.environ.get("PYTHONPATH", "")])
    try:
        live.start("server")
        for name in live.names:
            live.start(name, TEST_FAULT=str(live.site(name) / "fault"), PYTHONPATH=python_path)
        result = live.run(fs.AFL(ridge=0.0, intercept=False), tmp_path / "first")
        assert set(result.data["left_out"]) == {"ward-b"}, (result.data["left_out"], live.logs())
        words = "longer than 10 s, its own limit" if kind == "hang" else "process died|no answer|went away|raised"
        assert re.search(words, result.data["left_out"]["ward-b"]), (result.data["left_out"], live.logs())
        assert "longer than 10 s" in (live.site("ward-b") / "state" / "audit.jsonl").read_text()
        fault.unlink()
        result = live.run(fs.AFL(ridge=0.0, intercept=False), tmp_path / "second")
        assert set(result.clients) == set(live.names), (result.data, live.logs())
    finally:
        live.stop()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_six_faults_on_a_live_federation_of_five(tmp_path: Path) -> None:
    """Each offender is named, the model is exactly that of the rest, and all take part again afterwards."""
    live = Live(tmp_path, 5)
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "sitecustomize.py").write_text(textwrap.dedent(FAULTY))
    python_path = os.pathsep.join([str(tmp_path / "faults"), os.environ.get("PYTHONPATH", "")])

    def plant(**faults: str) -> None:
        for letter, kind in faults.items():
            (live.site(f"ward-{letter}") / "fault").write_text(kind)

    def heal() -> None:
        for name in live.names:
            (live.site(name) / "fault").unlink(missing_ok=True)

    def exact(out: str, missing: dict[str, str], **rules: Any) -> None:
        said: list[str] = []
        result = live.run(fs.AFL(ridge=0.0, intercept=False), tmp_path / out, said, **rules)
        left_out = result.data["left_out"]
        assert set(left_out) == set(missing), (left_out, live.logs())
        for name, words in missing.items():
            assert re.search(words, left_out[name]), left_out
            assert any(line.startswith(f"left out: {name}: ") for line in said), said
        assert set(result.history[0].missing) == set(missing)
        rest = [name for name in live.names if name not in missing]
        assert arrays.same(result.state, live.in_process(fs.AFL(ridge=0.0, intercept=False), rest).state)

    try:
        live.start("server")
        for name in live.names:
            live.start(name, TEST_FAULT=str(live.site(name) / "fault"), PYTHONPATH=python_path)
        plant(b="raise", c="nan", e="asymmetric")
        wrong = {
            "ward-b": "it raised RuntimeError; its audit.jsonl says more",
            "ward-c": "not finite",
            "ward-e": r"gram <f8\[64, 64\].* where",
        }
        exact("first", wrong)
        heal()
        plant(a="kill", b="indefinite", d="hang")
        wrong = {
            "ward-a": "went away|no answer|not connected",
            "ward-b": r"the squares of feature \d+ sum to -|not positive semi-definite",
            "ward-d": "no answer within 120 s",
        }
        exact("second", wrong, timeout=120.0)
        heal()
        end(live.processes.pop("ward-d"))  # the hung process is still there
        live.start("ward-d")
        exact("third", {})
    finally:
        live.stop()
