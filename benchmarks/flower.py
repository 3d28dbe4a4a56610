"""A real federation on loopback, against a bare Flower app that moves the same bytes; and the memory of both ends."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.runtime.live import BIN, Live, descendants

import fedsolve as fs
from fedsolve.deploy.files import template, write
from fedsolve.deploy.run import LINK, search_path
from fedsolve.runtime.offline import SWITCHES

NODES, WIDTH, TURNS = 10, 2048, 2
BIG, BIG_NODES, BIG_RUNS = 4096, 4, 13  # thirteen runs of eight messages: 104
HUGE, HUGE_NODES = 8192, 2
BARE_SERVER = """
import time
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
import numpy as np

app = ServerApp()

@app.main()
def main(grid, context):
    up, down, nodes = (int(context.run_config[name]) for name in ("up", "down", "nodes"))
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(1)
    for size, kind in ((0, "query.up"), (down, "query.down")):
        body = ArrayRecord({"a": Array(np.zeros(size, np.uint8))})
        ask = [Message(RecordDict({"a": body}), node, kind) for node in grid.get_node_ids()]
        for reply in grid.send_and_receive(ask):
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
"""
BARE_CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query("up")
def up(message, context):
    body = np.random.default_rng(0).integers(0, 256, int(context.run_config["up"]), dtype=np.uint8)
    return Message(RecordDict({"a": ArrayRecord({"a": Array(body)})}), reply_to=message)

@app.query("down")
def down(message, context):
    message.content["a"]["a"].numpy()
    return Message(RecordDict({"a": ArrayRecord({"a": Array(np.zeros(100, np.uint8))})}), reply_to=message)
"""


def measure() -> list[dict[str, Any]]:
    """FedHiP over a bare app with the same nodes and bytes (bar 1.3); peak memory at m = 4096 (bars 1.5 GB, 6 Gram);
    a run at m = 8192."""
    return [*wall_time(), *memory(), *large()]


def wall_time(nodes: int = NODES, width: int = WIDTH, turns: int = TURNS) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        live = _federation(Path(folder), nodes, width)
        try:
            _start(live)
            first = live.run(fs.FedHiP(beta=1.0, intercept=False), Path(folder) / "warm", wait=600.0, timeout=1200.0)
            up, down = first.bytes_up // nodes, first.bytes_down // nodes
            app = _bare_app(live, up, down, nodes)
            times: dict[str, list[float]] = {"fedhip": [], "bare": []}
            for turn in range(turns):
                started = time.perf_counter()
                live.run(fs.FedHiP(beta=1.0, intercept=False), Path(folder) / f"out{turn}", wait=600.0, timeout=1200.0)
                times["fedhip"].append(time.perf_counter() - started)
                started = time.perf_counter()
                _run_bare(live, app)
                times["bare"].append(time.perf_counter() - started)
        finally:
            live.stop()
    ratio = float(np.median([a / b for a, b in zip(times["fedhip"], times["bare"], strict=True)]))
    what = f"{nodes} nodes, m = {width}, {up / 1e6:.1f} MB up and {down / 1e6:.1f} MB down a node"
    return [
        {"what": f"a bare Flower app: {what}", "value": float(np.median(times["bare"])), "unit": "s", "bar": ""},
        {"what": "FedHiP on the same nodes", "value": float(np.median(times["fedhip"])), "unit": "s", "bar": ""},
        {"what": "ratio, median of turns", "value": ratio, "unit": "", "bar": 1.3},
    ]


def memory(width: int = BIG, nodes: int = BIG_NODES, runs: int = BIG_RUNS) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        live = _federation(Path(folder), nodes, width)
        try:
            _start(live)
            watch = _Watch(live.processes["server"].pid)
            for number in range(runs):
                live.run(
                    fs.FedHiP(alpha=1.0, beta=1.0, intercept=False),
                    Path(folder) / f"out{number}",
                    [],
                    wait=900.0,
                    timeout=1800.0,
                )
            watch.stop()
        finally:
            live.stop()
    gram = width**2 * 8
    told = f"m = {width}, {2 * nodes * runs} messages over {nodes} nodes"
    return [
        {"what": f"SuperLink, {told}", "value": watch.peak["superlink"] / 1e9, "unit": "GB", "bar": 1.5},
        {"what": "server app", "value": watch.peak["serverapp"] / gram, "unit": "Gram matrices", "bar": 6},
    ]


def large(width: int = HUGE, nodes: int = HUGE_NODES) -> list[dict[str, Any]]:
    """One run in which a Gram matrix goes up from, and down to, every node: its time, and the peaks of processes."""
    with tempfile.TemporaryDirectory() as folder:
        live = _federation(Path(folder), nodes, width)
        try:
            _start(live)
            watch = _Watch(live.processes["server"].pid, live.processes["ward-a"].pid)
            started = time.perf_counter()
            method = fs.FedHiP(alpha=1.0, beta=1.0, intercept=False)
            result = live.run(method, Path(folder) / "out", [], wait=900.0, timeout=1800.0)
            seconds = time.perf_counter() - started
            watch.stop()
        finally:
            live.stop()
    if result.data["left_out"]:
        raise RuntimeError(str(result.data["left_out"]))
    told = f"m = {width}, {nodes} nodes, {result.bytes_up / nodes / 1e6:.0f} MB a node each way"
    peaks = [
        {"what": f"peak of a {what}, {told}", "value": size / 1e9, "unit": "GB", "bar": ""}
        for what, size in watch.peak.items()
    ]
    return [{"what": f"FedHiP, {told}", "value": seconds, "unit": "s", "bar": ""}, *peaks]


class _Watch:
    """Peak resident memory of the SuperLink and of server apps below it, and of a site's processes, from /proc."""

    def __init__(self, pid: int, site: int | None = None) -> None:
        self.peak = {"superlink": 0, "serverapp": 0, **({"supernode": 0, "clientapp": 0} if site else {})}
        self._pid, self._site, self._over = pid, site, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            self._note("superlink", self._pid)
            for each in descendants(self._pid):
                self._note("serverapp", each.pid, needle=b"flwr-serverapp")
            for each in descendants(self._site) if self._site else ():
                self._note("supernode", each.pid, needle=b"flower-supernode")
                self._note("clientapp", each.pid, needle=b"flwr-clientapp")

    def _note(self, what: str, pid: int, needle: bytes = b"") -> None:
        try:
            if needle not in Path(f"/proc/{pid}/cmdline").read_bytes():
                return
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak[what] = max(self.peak[what], int(line.split()[1]) * 1024)
        except OSError:
            return


def _federation(folder: Path, nodes: int, width: int) -> Live:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200 * nodes, width))
    y = np.argmax(x[:, :10] + rng.normal(size=(len(x), 10)), axis=1)
    return Live(folder, nodes, x, y)


def _start(live: Live) -> None:
    """Keys first: a node that is refused tries again, and ten of them would keep two cores busy with that."""
    live.start("server")
    live.register()
    for name in live.names:
        live.start(name, OPENBLAS_NUM_THREADS="1")  # threads of ten sites on two cores only wait for each other


def _bare_app(live: Live, up: int, down: int, nodes: int) -> Path:
    folder = live.folder / "bare"
    text = template("app/pyproject.toml").replace("fedsolve-app", "bare-app").replace("fedsolve_app", "bare_app")
    text = text.partition("[tool.flwr.app.config]")[0]
    write(folder / "pyproject.toml", f"{text}[tool.flwr.app.config]\nup = {up}\ndown = {down}\nnodes = {nodes}\n")
    for name, code in (("__init__", ""), ("server", BARE_SERVER), ("client", BARE_CLIENT)):
        write(folder / "bare_app" / f"{name}.py", code)
    return folder


def _run_bare(live: Live, app: Path) -> None:
    """The app is run and its log followed to the end."""
    home = live.server / "home"
    environment = {**os.environ, **SWITCHES, "FLWR_HOME": str(home), "PATH": search_path()}
    flwr = str(Path(BIN) / "flwr")
    command = [flwr, "run", str(app), LINK, "--stream"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if "Error" in done.stdout:
        raise RuntimeError(done.stdout[-2000:])


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
