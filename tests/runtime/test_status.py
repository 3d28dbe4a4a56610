"""How a federation fares: runs on record, what the SuperLink knows, and the page that shows both, and no more."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedsolve as fs
from fedsolve import disk, parameters
from fedsolve.cli import app
from fedsolve.errors import DataError
from fedsolve.records import Round

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from flwr.app import Context, RecordDict

from fedsolve import deploy
from fedsolve.deploy import certificates, records
from fedsolve.deploy.page import Page
from fedsolve.deploy.records import DONE, FAILED, LOST, RUNNING, STOPPED, Record
from fedsolve.deploy.status import Status, status
from fedsolve.runtime import audit, live
from fedsolve.runtime.flower import make_client_app
from fedsolve.runtime.flower.control import Node
from fedsolve.runtime.flower.inline import RUN
from fedsolve.runtime.flower.server import deployed
from fedsolve.runtime.job import Description, Job, Rules
from tests.runtime.browser import browser as browser
from tests.runtime.browser import show
from tests.runtime.grid import InProcessGrid
from tests.runtime.live import init_on_free_ports
from tests.runtime.test_flower import wards

SITES = ("ward-a", "ward-b", "ward-c")
JOB = Job("afl", parameters.values(fs.AFL(ridge=1.0)))
STRANGE = "<img src=x onerror=\"document.title='seen'\"> <b>bold</b>"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    init_on_free_ports(tmp_path / "trial", SITES)
    return tmp_path / "trial" / "server"


def key_of(server: Path, name: str) -> str:
    return certificates.public_pem(server / "keys" / f"{name}.pub")


def nodes_of(server: Path, **states: str) -> list[Node]:
    """Nodes as a SuperLink knows them; online, unless said otherwise."""
    moment = live.now()
    return [Node(n, key_of(server, name), states.get(name[-1], "online"), moment) for n, name in enumerate(SITES)]


def ran(server: Path, folder: Path, within: Callable[[], None] = lambda: None, **changes: Any) -> Path:
    """A run by the two apps in one process, on record as `deploy run` has it."""
    folder.mkdir()
    out, scratch = folder / "out", folder / "scratch"
    scratch.mkdir()
    rules = Rules(SITES, wait=5.0, timeout=60.0)
    with records.under_way(server, JOB, rules, out, changes.get("ledger"), scratch):
        words = {"job": json.dumps(vars(JOB)), "rules": json.dumps(vars(rules)), "out": str(out)}
        config = {**words, "status": str(scratch / "status.json"), "ledger": str(changes.get("ledger", ""))}
        grid = InProcessGrid(make_client_app(), wards(folder), changes.get("spoil"))
        deployed(changes.get("keeps", lambda config, job: None), grid, Context(RUN, 0, {}, RecordDict(), dict(config)))
        within()
    return out


# --- records ---


def test_a_run_is_on_record_while_it_goes_on_and_when_it_is_over(server: Path, tmp_path: Path) -> None:
    seen: list[Record] = []
    ran(server, tmp_path / "one", lambda: seen.extend(records.read(server)))
    (during,), (after,) = seen, records.read(server)
    assert (during.outcome, after.outcome) == (RUNNING, DONE)
    assert during.told == after.told and after.ended > after.started
    for number, name in enumerate(SITES):
        lines, _ = audit.read(tmp_path / "one" / name / audit.FILE)
        told = after.told_of(name)
        assert told["up"] == sum(line.bytes for line in lines) > 0, number
        assert told["sent"] == told["came"] == 3 and not told["waiting"]
        assert told["told"]["samples"] == 60 and told["told"]["policy"] == "plain, test 0.2"
    assert after.told["up"] == sum(after.told_of(name)["up"] for name in SITES)
    assert (after.told["round"], after.told["rounds"], after.told["left"]) == (1, 1, 0.0)
    assert any("3 sites agree" in line for line in after.told["said"])
    folder = server / records.FOLDER
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.iterdir()))


@pytest.mark.parametrize(
    ("error", "outcome"), [(DataError("no disk"), FAILED), (KeyboardInterrupt(), STOPPED), (SystemExit(143), STOPPED)]
)
def test_how_a_run_ended_is_on_record(server: Path, tmp_path: Path, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)), records.under_way(server, JOB, Rules(SITES), tmp_path, None, tmp_path):
        raise error
    (record,) = records.read(server)
    assert record.outcome == outcome
    assert record.error == ("no disk" if outcome == FAILED else "")


def test_a_run_that_was_killed_is_seen_to_be_over(server: Path, tmp_path: Path) -> None:
    with records.under_way(server, JOB, Rules(SITES), tmp_path, None, tmp_path):
        (path,) = (server / records.FOLDER).glob("*.json")
        text = path.read_bytes()
        assert records.read(server)[0].outcome == RUNNING
    disk.write_bytes(path, text)  # as it was when the process ended
    assert records.read(server)[0].outcome == LOST
    path.write_bytes(text[:-5])
    assert records.read(server) == []


def test_old_records_go(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEPT", 2)
    for _ in range(3):
        with records.under_way(server, JOB, Rules(SITES), tmp_path, None, tmp_path):
            (newest,) = [record for record in records.read(server) if record.outcome == RUNNING]
    kept = records.read(server)
    assert len(kept) <= 2 and newest.id in [record.id for record in kept]


# --- the file of a run under way ---


def test_the_time_left_is_that_of_the_rounds_that_are_over(tmp_path: Path) -> None:
    clock = iter(range(100))
    file = live.Live(tmp_path / "live.json", "7", clock=lambda: next(clock))
    assert file.content()["left"] is None
    for number in (1, 2):
        file.round_over(Round(round=number, bytes_up=0, bytes_down=0, seconds=3.0), 10)
    assert json.loads((tmp_path / "live.json").read_text())["left"] == 24.0


def test_it_is_written_when_something_is_new_and_not_all_the_time(tmp_path: Path) -> None:
    moment = 0.0
    file, path = live.Live(tmp_path / "live.json", "7", clock=lambda: moment), tmp_path / "live.json"
    file.write()
    path.unlink()
    file.write()
    assert not path.exists()
    moment = live.OFTEN
    file.write()
    assert path.stat().st_mode & 0o077 == 0
    path.unlink()
    file.leave_out({"ward-a": "its process died"})
    assert json.loads(path.read_text())["sites"]["ward-a"]["left_out"] == "its process died"
    live.Live(tmp_path / "no" / "such", "7").leave_out({})  # a run does not end for it


def test_what_a_site_tells_of_itself_is_short_whatever_it_says() -> None:
    strange = Description("ward-a", "9" * 10_000, fs.Task(fs.Classes(2), (3,)), 5, policy="p\n" * 10_000)
    assert all(len(str(value)) <= 120 for value in live.described(strange).values())


# --- status ---


def found(server: Path, nodes: list[Node] | None) -> Status:
    return status(server, nodes)


def test_all_is_well(server: Path) -> None:
    seen = found(server, nodes_of(server))
    assert seen.fine and not seen.notes and seen.run is None
    assert [site.state for site in seen.sites] == ["online"] * 3
    assert {each.what: each.days for each in seen.certificates} == {
        "server": certificates.DAYS - 1,
        "authority": certificates.AUTHORITY_DAYS - 1,
    }
    assert seen.health() == {
        "ok": True, "superlink": True, "sites": {"expected": 3, "online": 3}, "running": False,
        "certificate_days": certificates.DAYS - 1, "wrong": [],
    }  # fmt: skip


def test_a_site_that_is_down_and_a_server_that_is_are_wrong(server: Path) -> None:
    down = found(server, nodes_of(server, b="offline"))
    assert [site.state for site in down.sites] == ["online", "offline", "online"]
    assert down.wrong == ("not connected: ward-b; there, `fedsolve deploy check` says why",)
    gone = found(server, None)
    assert not gone.superlink and "no SuperLink answers" in gone.wrong[0]
    assert {site.state for site in gone.sites} == {"unknown"}


def test_keys_outside_the_settings_and_settings_without_keys_are_said(server: Path) -> None:
    nodes = nodes_of(server)
    settings = deploy.read_env(server / "server.env")
    (server / "server.env").write_text(deploy.env_text({**settings, "SITES": "ward-a,ward-b,ward-x"}))
    seen = found(server, nodes)
    assert seen.notes[0].startswith("not asked: ward-c: ") and seen.notes[1].startswith("no key: ward-x: ")
    sites = {site.name: site for site in seen.sites}
    assert not sites["ward-c"].expected and sites["ward-x"].key == ""


def test_a_site_that_was_left_out_is_said_with_the_reason(server: Path, tmp_path: Path) -> None:
    out = ran(server, tmp_path / "one", spoil=lambda node, question, answer: None if node == 999 else answer)
    assert fs.Result.load(out).data["left_out"].keys() == {"ward-b"}
    sites = {site.name: site for site in found(server, nodes_of(server)).sites}
    assert "not there within 5 s" in sites["ward-b"].left_out
    assert sites["ward-a"].left_out == "" and sites["ward-a"].samples == 60


@pytest.mark.parametrize(("days", "words"), [(-0.02, "ended on"), (5, "ends in 5 days"), (certificates.SOON + 1, "")])
def test_certificates_are_renewed_before_they_end(
    server: Path, monkeypatch: pytest.MonkeyPatch, days: float, words: str
) -> None:
    monkeypatch.setattr(certificates, "DAYS", days + 0.01)
    deploy.rotate(server, server.parent / "ca")
    seen = found(server, nodes_of(server))
    said = " ".join((*seen.wrong, *seen.notes))
    assert words in said and ("deploy rotate" in said) == bool(words)
    assert seen.fine == (days >= 0)


def test_the_ledger_of_a_run_is_shown_and_not_touched(server: Path, tmp_path: Path) -> None:
    from fedsolve.deploy.run import _ledger

    path = tmp_path / "fed.db"
    ran(server, tmp_path / "one", ledger=path, keeps=_ledger)
    before = path.read_bytes()
    seen = found(server, nodes_of(server))
    assert sorted((line["event"], line["client"]) for line in seen.journal) == [
        ("added", "ward-a"), ("added", "ward-b"), ("added", "ward-c"), ("created", ""),
    ]  # fmt: skip
    assert path.read_bytes() == before


def test_status_on_the_command_line(server: Path, tmp_path: Path) -> None:
    ran(server, tmp_path / "one")
    shown = CliRunner().invoke(app, ["deploy", "status", str(server)])
    assert shown.exit_code == 1  # no SuperLink
    for words in ("ward-b", "does not answer", "afl, plain: done", "WRONG: no SuperLink answers"):
        assert words in shown.output
    words = json.loads(CliRunner().invoke(app, ["deploy", "status", str(server), "--json"]).output)
    assert words["superlink"] is False and [site["name"] for site in words["sites"]] == list(SITES)
    assert CliRunner().invoke(app, ["deploy", "status", str(tmp_path)]).exit_code != 0


# --- the page ---


@contextmanager
def serving(page: Page) -> Iterator[Page]:
    thread = threading.Thread(target=page.serve_forever, daemon=True)
    thread.start()
    try:
        yield page
    finally:
        page.shutdown()
        page.server_close()
        thread.join()


@pytest.fixture
def page(server: Path) -> Iterator[Page]:
    with serving(Page(server)) as each:
        yield each


def ask(page: Page, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", page.server_port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def test_the_page_can_be_read_and_nothing_else(page: Page, server: Path) -> None:
    before = {path: path.read_bytes() for path in server.rglob("*") if path.is_file()}
    for path in ("/", "/page.js", "/page.css", "/status.json"):
        response, body = ask(page, path)
        assert response.status == 200 and body
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        head, nothing = ask(page, path, "HEAD")
        assert head.status == 200 and nothing == b"" and int(head.headers["Content-Length"]) > 0
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            refused, _ = ask(page, path, method)
            assert refused.status == 405 and refused.headers["Allow"] == "GET, HEAD"
    assert {path: path.read_bytes() for path in server.rglob("*") if path.is_file()} == before
    assert b"http" not in b"".join(ask(page, path)[1] for path in ("/", "/page.js", "/page.css"))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "", "[::1]:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1:x"]
)
def test_a_name_from_elsewhere_is_refused(page: Page, host: str) -> None:
    """Else a page from elsewhere could have its name resolved to this machine, and read all."""
    for path in ("/", "/status.json", "/health"):
        response, body = ask(page, path, Host=host.format(port=page.server_port))
        assert response.status == 403 and b"ward" not in body
    for own in (f"localhost:{page.server_port}", "127.0.0.1:8080"):  # the second by way of a tunnel
        assert ask(page, "/", Host=own)[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../server.key", "/..%2fserver.key", "//etc/passwd", "/page.js/../../../server/start.sh", "/server.env",
        "/runs/../report", "/runs/%2e%2e/report", "/runs/20260101T000000-1/report", "/templates/page/page.html",
    ],
)  # fmt: skip
def test_no_address_is_the_name_of_a_file(page: Page, path: str) -> None:
    response, body = ask(page, path)
    assert response.status == 404 and len(body) < 200


def test_it_listens_on_this_machine_alone(page: Page) -> None:
    assert page.server_address[0] == "127.0.0.1"


def test_health_is_a_status_for_programs(page: Page, server: Path) -> None:
    response, body = ask(page, "/health")
    assert response.status == 503
    assert json.loads(body)["ok"] is False and "no SuperLink" in json.loads(body)["wrong"][0]


def test_the_report_of_a_past_run_is_there(server: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from fedsolve.cli.operator import _report

    ran(server, tmp_path / "one")
    with serving(Page(server, report=_report)) as page:
        (run,) = json.loads(ask(page, "/status.json")[1])["runs"]
        response, body = ask(page, f"/runs/{run['id']}/report")
        assert response.status == 200 and b"<svg" in body and b"afl" in body
        assert ask(page, f"/runs/{run['id']}/reports")[0].status == 404


def test_a_port_that_is_taken_is_said(page: Page, server: Path) -> None:
    with pytest.raises(DataError, match="cannot be used"):
        Page(server, page.server_port)


# --- in a browser ---


@pytest.mark.parametrize("width", [380, 1280])
def test_the_page_in_a_browser(browser: Any, server: Path, tmp_path: Path, width: int) -> None:
    """A run under way, one site that was left out with a reason that is markup, and no error on the console."""

    def look() -> None:
        with serving(Page(server)) as page:
            for kind in ("browser", "performance"):
                browser.get_log(kind)
            show(browser, page.address, width)
            wait_for(lambda: "ward-c" in browser.find_element("id", "sites").text)
            text = browser.find_element("tag name", "body").text
            for words in ("afl, plain", "ward-a: answered", "writing the result", "no SuperLink answers", STRANGE):
                assert words in text, words
            assert browser.title == "0 of 3 sites"
            assert browser.find_elements("css selector", "main img, main b") == []
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert browser.get_log("browser") == []
            asked = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
            urls = [line["params"]["request"]["url"] for line in asked if line["method"] == "Network.requestWillBeSent"]
            assert urls and all(url.startswith((page.address, "data:")) for url in urls)
        wait_for(lambda: "does not answer" in browser.find_element("id", "foot").text)

    def poison() -> None:
        path = tmp_path / "one" / "scratch" / live.FILE
        content = json.loads(path.read_text())
        content["sites"]["ward-c"]["left_out"] = STRANGE
        path.write_text(json.dumps(content))
        look()

    ran(server, tmp_path / "one", poison)


def wait_for(true: Callable[[], bool], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "not in time"
        time.sleep(0.1)
