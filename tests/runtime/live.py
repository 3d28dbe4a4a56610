"""A real federation on loopback for tests: SuperLink and SuperNodes as `fedsolve deploy init` starts them.

Every process is ended by its id, whatever happens.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedsolve as fs
from fedsolve import deploy, parameters
from fedsolve.deploy.run import is_open
from fedsolve.runtime.job import Job, Rules

BIN = str(Path(sys.executable).parent)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def edit(env: Path, **values: str) -> None:
    """Change settings in a file of them."""
    env.write_text(deploy.env_text({**deploy.read_env(env), **values}))


def init_on_free_ports(folder: Path, names: Sequence[str]) -> int:
    """What `fedsolve deploy init --trial` writes, with ports of this machine that nobody has; that of the server.

    Sites also answer in plain, and whatever their sums disclose: samples of tests are few.
    """
    server, *nodes = free_ports(1 + len(names))
    deploy.init(folder, names, f"127.0.0.1:{server}")
    deploy.trial(folder)
    for name, port in zip(names, nodes, strict=True):
        rules = {"PRIVACY": "plain", "MAX_PARAMETERS": "", "MAX_LEVERAGE": ""}
        edit(folder / "sites" / name / "site.env", PORT=str(port), **rules)
    return server


class Known(NamedTuple):
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    born: str


def descendants(pid: int) -> list[Known]:
    """Processes below a process, from /proc."""
    parents: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = (int(fields[1]), fields[19])
    below = [pid]
    for each in below:
        below += [child for child, (parent, _) in parents.items() if parent == each]
    return [Known(child, parents[child][1]) for child in below[1:]]


def started_below(folder: Path) -> list[Known]:
    """Processes of nodes and SuperLinks whose files lie below a folder, also those that lost their parents."""
    processes = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if f"FLWR_HOME={folder}".encode() in (path / "environ").read_bytes():
                born = (path / "stat").read_text().rpartition(")")[2].split()[19]
                processes.append(Known(int(path.name), born))
    return processes


def kill(process: Known) -> None:
    """End a process for good, if it is still the same one."""
    with suppress(OSError, IndexError):
        if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19] == process.born:
            os.kill(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[Any], patience: float = 20.0) -> None:
    """End a process and all below it, by id: politely, then not."""
    below = descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    process.kill()
    process.wait(10)
    for each in below:
        kill(each)


class Live:
    """A federation of so many wards with digits or other data, on free ports of localhost."""

    def __init__(self, folder: Path, wards: int, x: Any = None, y: Any = None) -> None:
        self.folder, self.names = folder, [f"ward-{letter}" for letter in "abcdefghijklmnop"[:wards]]
        self.port = init_on_free_ports(folder / "trial", self.names)
        if x is None:
            table = fs.load("digits")
            x, y = np.asarray(table.inputs), table.labels
        self.x, self.y = x, y
        self.owner = np.array(self.names)[np.random.default_rng(0).integers(wards, size=len(y))]
        for name in self.names:
            rows = self.owner == name
            np.savez(self.site(name) / "data.npz", x=self.x[rows], y=self.y[rows])
        self.processes: dict[str, subprocess.Popen[Any]] = {}

    @property
    def server(self) -> Path:
        return self.folder / "trial" / "server"

    def site(self, name: str) -> Path:
        return self.folder / "trial" / "sites" / name

    def edit(self, name: str, **values: str) -> None:
        edit(self.site(name) / "site.env", **values)

    def start(self, what: str, **environment: str) -> None:
        """The SuperLink ("server") or a site's node."""
        folder = self.server if what == "server" else self.site(what)
        path = os.pathsep.join([BIN, os.environ["PATH"]])
        with (self.folder / f"{what}.log").open("ab") as log:
            self.processes[what] = subprocess.Popen(
                [str(folder / "start.sh")],
                env={**os.environ, **ENVIRONMENT, "PATH": path, **environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        if what == "server":
            until(lambda: is_open("127.0.0.1", self.port), 120)

    def register(self) -> None:
        """Tell the SuperLink all keys, as the first run does."""
        deploy.register(self.server, self.names, lambda line: None)

    def stop(self) -> None:
        for name in [*self.names, "server"]:
            if name in self.processes:
                end(self.processes.pop(name))
        for process in started_below(self.folder):
            kill(process)

    def run(self, method: fs.Method, out: Path, said: list[str] | None = None, **rules: Any) -> fs.Result:
        job = Job(method.name, parameters.values(method), seed=2, quorum=rules.pop("quorum", 0))
        ledger = rules.pop("ledger", None)
        limits = Rules(**{"wait": 300.0, "timeout": 300.0, **rules})
        say = (said if said is not None else []).append
        return fs.Result.load(deploy.run(self.server, job, limits, out, say, ledger))

    def in_process(
        self, method: fs.Method, names: Mapping[str, Any] | list[str] | None = None, **options: Any
    ) -> fs.Result:
        """The same without Flower, on some of the wards."""
        rows = np.isin(self.owner, list(names or self.names))
        path = self.folder / "all.npz"
        np.savez(path, x=self.x[rows], y=self.y[rows], client=self.owner[rows])
        # Sites split by a seed of their own.
        return fs.run(method, fs.load(str(path)).split("by-client"), seed=2, **options)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))


def until(true: Callable[[], bool], seconds: float) -> None:
    """Wait for something, at most so long."""
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.3)
