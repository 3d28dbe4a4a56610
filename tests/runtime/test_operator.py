"""An operator's day on real processes: a site comes, one goes, a certificate is renewed, and the page sees it all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from fedsolve import deploy
from fedsolve.deploy import records
from fedsolve.deploy.certificates import public_pem
from fedsolve.deploy.page import Page
from fedsolve.deploy.run import connect, is_open
from fedsolve.runtime import audit
from tests.runtime.browser import browser as browser
from tests.runtime.browser import show
from tests.runtime.live import BIN, ENVIRONMENT, descendants, end, free_ports, kill, started_below, until

LAG = 10.0  # seconds within which the page must show what the SuperLink knows
WARDS = ("ward-a", "ward-b", "ward-c", "ward-d")
PLAIN = ("--set", "PRIVACY=plain", "--set", "MAX_PARAMETERS=", "--set", "MAX_LEVERAGE=")


class Operator:
    """Four wards and a server, run by commands alone; every process is ended by its id."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fed = folder, folder / "fed"
        self.server = self.fed / "server"
        self.port, *self.ports = free_ports(5)
        self.commands = 0
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        rng = np.random.default_rng(3)
        self.data = {}
        for number, name in enumerate(WARDS):
            x = rng.normal(size=(80 + 10 * number, 6)) + number
            y = np.argmax(x[:, :3] + rng.normal(size=(len(x), 3)), axis=1)
            self.data[name] = (x, y)
            np.savez(folder / f"{name}.npz", x=x, y=y)

    def site(self, name: str) -> Path:
        return self.fed / "sites" / name

    def call(self, *words: object, fine: tuple[int, ...] = (0,)) -> str:
        """One command, as somebody types it."""
        self.commands += 1
        environment = {**os.environ, **ENVIRONMENT}
        command = [sys.executable, "-m", "fedsolve", "deploy", *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode in fine, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        script = (self.server if name == "server" else self.site(name)) / "start.sh"
        path = os.pathsep.join([BIN, os.environ["PATH"]])
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(script)], env={**os.environ, **ENVIRONMENT, "PATH": path}, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if name == "server":
            until(lambda: is_open("127.0.0.1", self.port), 120)

    def stop(self, *names: str) -> None:
        for name in names or tuple(self.processes):
            if name in self.processes:
                end(self.processes.pop(name))
        if not names:
            for process in started_below(self.folder):
                kill(process)

    def status(self) -> dict[str, Any]:
        words: dict[str, Any] = json.loads(self.call("status", self.server, "--json", fine=(0, 1)))
        return words

    def online(self) -> set[str]:
        return {site["name"] for site in self.status()["sites"] if site["state"] == "online"}

    def run(self, out: str, names: tuple[str, ...]) -> None:
        """A run on these wards, whose state is that of one process with their data, and whose bytes are on record."""
        method = fs.AFL(ridge=1.0)
        said = self.call(
            "run", self.server, "--method", "afl", "--set", "ridge=1.0", "--plain", "--out", self.folder / out,
            "--wait", 200,
        )  # fmt: skip
        assert "left out" not in said, said
        result = fs.Result.load(self.folder / out)
        assert set(result.clients) == set(names)
        owner = np.repeat(names, [len(self.data[name][1]) for name in names])
        x, y = (np.concatenate([self.data[name][part] for name in names]) for part in (0, 1))
        np.savez(self.folder / "all.npz", x=x, y=y, client=owner)
        wanted = fs.run(method, fs.load(str(self.folder / "all.npz")).split("by-client"))
        assert all(np.array_equal(result.state[part], array) for part, array in wanted.state.items())
        self.check_bytes(names)

    def check_bytes(self, names: tuple[str, ...]) -> None:
        """All that the server's transport counted from a site stands in that site's own record."""
        last = records.read(self.server)[0]
        assert last.outcome == records.DONE
        for name in names:
            lines, damaged = audit.read(self.site(name) / "state" / audit.FILE)
            counted = sum(line.bytes for line in lines if line.run == last.told["run"])
            assert counted == last.told_of(name)["up"] > 1000 and not damaged


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    operator = Operator(tmp_path_factory.mktemp("day"))
    try:
        operator.call("init", operator.fed, "--sites", ",".join(WARDS[:3]), "--address", f"127.0.0.1:{operator.port}")
        for name, port in zip(WARDS[:3], operator.ports, strict=False):
            data = operator.folder / f"{name}.npz"
            operator.call("join", operator.site(name), "--port", port, "--set", f"DATA={data}", *PLAIN)
        operator.call("add", operator.server, *(operator.site(name) / deploy.CARD for name in WARDS[:3]))
        yield operator
    finally:
        operator.stop()


@contextmanager
def shown(operator: Operator) -> Iterator[Page]:
    page = Page(operator.server)
    thread = threading.Thread(target=page.serve_forever, daemon=True)
    thread.start()
    try:
        yield page
    finally:
        page.shutdown()
        page.server_close()
        thread.join()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_site_comes_one_goes_the_server_restarts_and_its_certificate_is_renewed(day: Operator) -> None:
    """No file is edited by hand, each step is one command, and every run is exact."""
    day.start("server")
    for name in WARDS[:3]:
        day.start(name)
    until(lambda: day.online() == set(WARDS[:3]), 200)  # keys are registered when the server starts, before any run
    day.run("first", WARDS[:3])

    # A fourth site: one command there, one at the server, while the SuperLink runs.
    before = day.commands
    data = day.folder / "ward-d.npz"
    words = ("--invitation", day.server / "invitation.json", "--name", "ward-d", "--port", day.ports[3])
    day.call("join", day.site("ward-d"), *words, "--set", f"DATA={data}", *PLAIN)
    day.call("add", day.server, day.site("ward-d") / deploy.CARD)
    assert day.commands - before == 2
    day.start("ward-d")
    until(lambda: day.online() == set(WARDS), 200)
    day.run("second", WARDS)

    # One goes: one command. Its node still runs, and is let in no longer.
    day.call("remove", day.server, "ward-b")
    assert "ward-b" not in {site["name"] for site in day.status()["sites"]}

    # The certificate: one command; the SuperLink shows it when it is started again.
    old = (day.server / "server.crt").read_bytes()
    day.call("rotate", day.server)
    assert (day.server / "server.crt").read_bytes() != old
    assert any("old certificate" in note for note in day.status()["notes"])
    day.stop("server")
    day.start("server")
    left = {"ward-a", "ward-c", "ward-d"}
    until(lambda: day.online() == left, 300)  # nobody touched the sites
    assert not day.status()["notes"]
    day.run("third", ("ward-a", "ward-c", "ward-d"))
    log = (day.folder / "ward-b.log").read_text()
    assert log.count("does not let this site in") <= 3 and "Exit Code: 305" not in log


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_page_shows_a_site_that_goes_down(day: Operator, browser: Any, how: str) -> None:
    """Within seconds of the SuperLink's own notice, by the word of the node or by its silence; /health says so, too."""
    names = set(deploy.sites_of(day.server))
    for name in ("server", *sorted(names)):
        if name not in day.processes:
            day.start(name)
    until(lambda: names <= day.online(), 300)
    key = public_pem(day.server / "keys" / "ward-c.pub").strip()

    def state_on_page() -> str:
        script = (
            "const card = [...document.querySelectorAll('#sites article')].find(a => a.innerText.includes('ward-c'));"
            "return card ? card.querySelector('.pill').textContent : ''"
        )
        return str(browser.execute_script(script))

    with shown(day) as page, connect(day.server) as link:
        browser.get_log("browser")
        show(browser, page.address, 380)
        until(lambda: state_on_page() == "online", 60)
        process = day.processes.pop("ward-c")
        if how == "killed":
            for each in descendants(process.pid):
                kill(each)
            process.kill()
        else:
            process.terminate()
        until(lambda: state_on_page() == "offline", 120)
        seen = datetime.now(UTC)
        (noticed,) = [node.since for node in link.nodes() if node.key.strip() == key]
        lag = (seen - datetime.fromisoformat(noticed)).total_seconds()
        print(f"{how}: the page showed it {lag:.1f} s after the SuperLink's notice")
        assert lag <= LAG
        assert "not connected: ward-c" in browser.find_element("id", "findings").text
        assert browser.get_log("browser") == []
        assert page.look().health()["ok"] is False
        end(process)
        day.start("ward-c")
        until(lambda: state_on_page() == "online", 200)
        assert page.look().health()["ok"] is True
