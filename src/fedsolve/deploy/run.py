"""A run on the sites of a deployment: keys are registered, Flower's command is called, its lines are passed on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedsolve import disk
from fedsolve.deploy import records
from fedsolve.deploy.certificates import public_pem
from fedsolve.deploy.files import read_env, template, write
from fedsolve.deploy.invite import known_peers
from fedsolve.deploy.join import sites_of
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import fitting
from fedsolve.privacy.credentials import PEERS
from fedsolve.runtime.job import Job, Rules
from fedsolve.runtime.offline import SWITCHES

if TYPE_CHECKING:
    from fedsolve.runtime.flower import Keeping
    from fedsolve.runtime.flower.control import Control

LINK = "fedsolve"  # the name of the connection in Flower's configuration
GONE = 15.0  # seconds without a SuperLink before a run is given up
STOPPING = 15.0  # seconds that a command has to tell what it did, or to end, when a run is stopped
Say = Callable[[str], None]


def make_server_app() -> object:
    """The server app of a deployment; with a ledger in the run's configuration, replies or their sum go there, too."""
    from fedsolve.runtime import flower

    return flower.make_server_app(partial(flower.deployed, _ledger))


def _ledger(config: Mapping[str, Any], job: Job) -> Keeping | None:
    from fedsolve.ledger.store import Ledger

    path = str(config.get("ledger", ""))
    return (lambda method, task: Ledger.join(path, method, task, seed=job.seed)) if path else None


def run(folder: Path, job: Job, rules: Rules, out: Path, say: Say, ledger: Path | None = None) -> Path:
    """Run a method on the sites of a deployment, from the server's folder; the result lies in `out` after.

    With a `ledger`, every site's reply becomes a contribution in it, or, of a secure sum, the sum one of all sites; the
    file is made where there is none.

    Expects the sites that the folder names, with the keys it holds, unless the rules name some; says which sites
    have a key there but are not named. Registers the keys at the SuperLink where it does not know them, and passes
    on what the server app says.
    """
    job.create()  # refuses what can be refused before anybody is asked
    fitting.check(job.features)
    if job.noise and ledger:
        raise ParameterError("--epsilon is without --ledger: a ledger takes sums over samples, and no noise")
    here = folder.resolve()
    if not rules.sites:
        for sentence in unlike(folder):
            say(sentence)
    rules = replace(rules, sites=rules.sites or sites_of(folder))  # refuses to leave out whom nobody knows
    if job.quorum:
        _check_peers(folder, rules.expected)
    host, port = link_of(folder)
    started = time.monotonic()
    while not is_open(host, port):
        if time.monotonic() - started >= rules.wait:
            raise DataError(f"no SuperLink listens on {host}:{port}; start it with {folder / 'start.sh'}")
        time.sleep(min(1.0, rules.wait))
    out = out.resolve()
    disk.private_folder(out.parent)
    environment = _environment(here)
    # What is under way lies in one folder, also at the server app, so that it is gone whatever ends the run.
    scratch_folder = partial(tempfile.TemporaryDirectory, prefix=".fedsolve-", dir=out.parent)
    with (
        _ended_by_sigterm(),
        scratch_folder(ignore_cleanup_errors=True) as scratch,
        records.under_way(here, job, rules, out, ledger and ledger.resolve(), Path(scratch)),
    ):
        keys = register(here, rules.expected, say)
        status = Path(scratch) / "status.json"
        config = Path(scratch) / "run.toml"
        rules_text = json.dumps(asdict(replace(rules, keys=keys)))
        values = {"job": json.dumps(asdict(job)), "rules": rules_text, "out": str(out), "status": str(status)}
        if ledger:
            values["ledger"] = str(ledger.resolve())
        if job.quorum:
            values["peers"] = str(here / PEERS)
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
        command = ["flwr", "run", str(here / "app"), LINK, "--stream", "--run-config", str(config)]
        _stream(command, environment, (host, port), say)
        if not status.is_file():
            raise DataError("the run ended without a result; the SuperLink's log says more. Running again is safe")
        outcome = json.loads(status.read_text())
        if "error" in outcome:
            raise DataError(outcome["error"])
    return out


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Inside, SIGTERM ends the program as Ctrl-C does, by way of all that cleans up, with the shell's status for it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_peers(folder: Path, sites: Sequence[str]) -> None:
    """Refuse a secure sum with a site whose keys for it the server does not have."""
    known = known_peers(folder)
    missing = [name for name in sites if name not in known]
    if missing:
        raise DataError(
            f"the keys for secure sums of {', '.join(missing)} are not in {folder / PEERS}: each site makes them with "
            "`fedsolve deploy join`, and `fedsolve deploy add` takes its card in; or ask for sums as they are, --plain"
        )


def unlike(folder: Path) -> list[str]:
    """Sentences about names and keys in a server's folder that do not belong together; none where all do."""
    sites, keys = sites_of(folder), {path.stem for path in (folder / "keys").glob("*.pub")}
    unnamed, keyless = sorted(keys - set(sites)), [name for name in sites if name not in keys]
    sentences = []
    if unnamed:
        sentences.append(
            f"not asked: {', '.join(unnamed)}: {folder / 'keys'} has the key, but SITES in {folder / 'server.env'} "
            "does not have the name; `fedsolve deploy add` with the site's card lets it take part, or add its name "
            "there; `fedsolve deploy remove` takes the key away"
        )
    if keyless:
        sentences.append(
            f"no key: {', '.join(keyless)}: the site's card is wanted, which `fedsolve deploy join` makes there, for "
            "`fedsolve deploy add`"
        )
    return sentences


def search_path() -> str:
    """The search path, with the commands of this environment first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def is_open(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), timeout=5):
            return True
    except OSError:
        return False


def _environment(here: Path) -> dict[str, str]:
    """For Flower's commands at the server, after writing where the SuperLink is."""
    home, (host, port) = here / "home", link_of(here)
    address = f"{host}:{port}"
    authority = json.dumps(str(here / "ca.crt"))
    write(home / "config.toml", template("config.toml", link=LINK, address=address, ca=authority))
    return {**os.environ, **SWITCHES, "FLWR_HOME": str(home), "PATH": search_path()}


def register(folder: Path, sites: Sequence[str], say: Say) -> dict[str, str]:
    """Tell the SuperLink which keys to let in, where it does not know them: it forgets them when it stops.

    The public keys, by site.
    """
    here = folder.resolve()
    keys = {name: public_pem(here / "keys" / f"{name}.pub") for name in sites}
    # One at a time: the server's start script, `deploy add` and a run may all come at once.
    with disk.alone(disk.private_folder(here / "home") / "registering"), connect(here) as link:
        known = {node.key.strip(): node for node in link.nodes()}
        for name, key in keys.items():
            node = known.get(key.strip())
            if node is None:
                link.register(key)
                say(f"registered the key of {name}")
            elif node.status == "unregistered":
                raise DataError(
                    f"the SuperLink remembers the key of {name} as one that was removed, and lets it in again when it "
                    f"was stopped and started: {folder / 'start.sh'}"
                )
    return keys


def keyed_sites(folder: Path) -> tuple[str, ...]:
    """The sites that a server's folder names, and whose keys it has."""
    return tuple(name for name in sites_of(folder) if (folder / "keys" / f"{name}.pub").is_file())


def unregister(folder: Path, key: str) -> bool:
    """Have the SuperLink let a key in no longer, and say whether it did before; it must run."""
    with connect(folder.resolve()) as link:
        nodes = [node for node in link.nodes() if node.key.strip() == key.strip() and node.status != "unregistered"]
        for node in nodes:
            link.unregister(node.id)
    return bool(nodes)


def connect(folder: Path) -> Control:
    """A connection to the control paths of the SuperLink of a server's folder."""
    from fedsolve.runtime.flower.control import Control

    host, port = link_of(folder)
    return Control(f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}", folder / "ca.crt")


def link_of(folder: Path) -> tuple[str, int]:
    """Where the SuperLink of a server's folder listens."""
    settings = read_env(folder / "server.env")
    try:
        return settings.get("LISTEN", "127.0.0.1"), int(settings.get("PORT", "8000"))
    except ValueError as error:
        raise DataError(f"PORT in {folder / 'server.env'} must be a number; got {settings.get('PORT')!r}") from error


def _stream(command: Sequence[str], environment: Mapping[str, str], link: tuple[str, int], say: Say) -> None:
    """Run a command and pass on its lines; give up when the SuperLink is gone."""
    lines: Queue[str | None] = Queue()
    started: Future[subprocess.Popen[str]] = Future()

    def read() -> None:
        try:
            # A process group of its own: Ctrl-C reaches this program alone, which then asks for the run's number.
            process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", process_group=0,
            )  # fmt: skip
        except OSError as error:
            started.set_exception(DataError(f"cannot start {command[0]}: {error.strerror or error}"))
        else:
            started.set_result(process)
            with process.stdout or nullcontext(()) as output:
                for line in output:
                    lines.put(line)
        lines.put(None)

    # Signals are raised in the main thread only: no moment in which there is a process that nobody would stop.
    reader = threading.Thread(target=read, daemon=True)
    gone = f"the SuperLink at {link[0]}:{link[1]} is gone, and the run with it. Start it, and run again"
    seen, run_id = time.monotonic(), ""
    try:
        reader.start()
        while True:
            try:
                line = lines.get(timeout=2.0)
            except Empty:
                if is_open(*link):
                    seen = time.monotonic()
                elif time.monotonic() - seen > GONE:
                    raise DataError(gone) from None
                continue
            if line is None:
                break
            text = _plain(line)
            run_id = _run_id(text) or run_id
            if text:
                say(text)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            _stop(run_id or _late_run_id(lines), environment)
        started.result(STOPPING).terminate()
        raise
    finally:
        process = started.result(STOPPING)
        try:
            process.wait(STOPPING)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        reader.join()
    if process.returncode:
        raise DataError("Flower could not run the app; what it said stands above" if is_open(*link) else gone)


def _run_id(text: str) -> str:
    told = re.search(r"started run (\d+)", text)
    return told[1] if told else ""


def _late_run_id(lines: Queue[str | None]) -> str:
    """The number of a run that is being handed over; none, if it is not told within some seconds."""
    last = time.monotonic() + STOPPING
    while (left := last - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except Empty:
            return ""
        if line is None:
            return ""
        if run_id := _run_id(_plain(line)):
            return run_id
    return ""


def _stop(run_id: str, environment: Mapping[str, str]) -> None:
    """End a run at the SuperLink; else it would go on without anybody to take its result."""
    if run_id:
        command = ["flwr", "stop", run_id, LINK]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=dict(environment), capture_output=True, check=False, timeout=4 * STOPPING)


def _plain(line: str) -> str:
    """A line of a log without colours and levels."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
    return re.sub(r"^(INFO|WARNING|ERROR|DEBUG)\s*:\s*", "", text)
