"""Services of systemd, and the containers of a trial: looked at by the tools that read them, and run as they say."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedsolve as fs
from tests.conftest import ROOT

pytest.importorskip("cryptography", reason="pip install 'fedsolve[flower]'")

from fedsolve import deploy
from fedsolve.deploy import services
from tests.runtime import live

DOCKER = ROOT / "docker"
KEPT = "/var/lib/fedsolve"  # in the containers, and nowhere else


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation") / "fed"
    deploy.init(folder, ["ward-a", "ward-b", "ward-c"], "fed.example.org:443")
    return folder


def read(unit: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=True, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    return {name: dict(parser[name]) for name in parser.sections()}


@pytest.mark.parametrize("kind", ["server", "sites/ward-a"])
def test_a_unit_runs_the_start_script_of_its_folder_and_writes_to_two_folders(federation: Path, kind: str) -> None:
    folder = federation / kind
    content = read(deploy.service(folder, "fedward"))["Service"]
    assert content["User"] == content["Group"] == "fedward"
    assert Path(shlex.split(content["ExecStart"])[0]) == folder / "start.sh"
    written = "results" if kind == "server" else "state"
    assert content["ReadWritePaths"].split() == [str(folder / "home"), str(folder / written)]
    assert (folder / "home").stat().st_mode & 0o777 == 0o700
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices"):
        assert content[name] == "yes"
    assert content["ProtectSystem"] == "strict" and content["CapabilityBoundingSet"] == ""
    assert live.BIN in content["Environment"]
    assert ("IPAddressDeny" in content) == (kind == "server")


def test_below_var_lib_systemd_makes_the_folders(federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "LIBRARY", federation)
    content = read(deploy.service(federation / "sites" / "ward-b"))["Service"]
    assert content["StateDirectory"] == "sites/ward-b/home sites/ward-b/state"
    assert content["StateDirectoryMode"] == "0700" and "ReadWritePaths" not in content


@pytest.mark.parametrize("setting", ["DATA", "STATE"])
def test_homes_are_out_of_reach_unless_something_lies_there(
    federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    home = tmp_path / "home"
    monkeypatch.setattr(services, "HOMES", (home,))
    site = tmp_path / "ward-a"
    shutil.copytree(federation / "sites" / "ward-a", site)
    assert read(deploy.service(site))["Service"]["ProtectHome"] == "yes"
    live.edit(site / "site.env", **{setting: str(home / "anna" / "place")})
    assert read(deploy.service(site))["Service"]["ProtectHome"] == "read-only"


def test_what_cannot_be_a_service_is_refused(federation: Path, tmp_path: Path) -> None:
    for user in ("root", "Anna B", "", "a" * 40):
        with pytest.raises(fs.ParameterError, match="never as root"):
            deploy.service(federation / "server", user)
    with pytest.raises(fs.DataError, match=r"no start\.sh beside"):
        deploy.service(tmp_path)
    blank = tmp_path / "my folder"
    shutil.copytree(federation / "server", blank)
    with pytest.raises(fs.DataError, match="blanks or signs"):
        deploy.service(blank)


@pytest.mark.parametrize("kind", ["server", "sites/ward-c"])
def test_systemd_finds_nothing_wrong_and_little_exposed(federation: Path, kind: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    unit = deploy.service(federation / kind)
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and unit.name not in done.stderr, done.stderr
    words = [analyze, "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout  # an exposure of 2.0 of 10 at most


# --- containers ---


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_image_copies_what_is_there_and_installs_what_is_pinned() -> None:
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), rest
    installed = next(rest for word, rest in instructions() if word == "RUN" and "pip install" in rest)
    assert "-c constraints.txt" in installed
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r"\[([\w,-]+)\]", installed)
    assert asked and set(asked[1].split(",")) <= set(extras)


def test_the_image_runs_under_a_user_of_its_own_and_tells_its_health() -> None:
    words = [word for word, _ in instructions()]
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users[-1] == "fedsolve" and words.index("USER") > words.index("RUN")
    health = next(rest for word, rest in instructions() if word == "HEALTHCHECK")
    assert "health.sh" in health and os.access(DOCKER / "health.sh", os.X_OK)
    assert not {"ADD", "EXPOSE"} & set(words)


def compose() -> Any:
    return pytest.importorskip("yaml").safe_load((DOCKER / "compose.yaml").read_text())


def test_containers_of_the_trial_have_no_rights_and_no_open_port() -> None:
    content = compose()
    assert set(content["services"]) == {"init", "server", "ward-a", "ward-b", "ward-c", "run"}
    for name, each in content["services"].items():
        assert each["read_only"] and each["cap_drop"] == ["ALL"] and "ports" not in each, name
        assert each["security_opt"] == ["no-new-privileges:true"]
        for word in each.get("depends_on", ()):
            assert word in content["services"]
        assert (ROOT / "docker" / each["build"]["context"] / each["build"]["dockerfile"]).is_file()


def here(words: str, folder: Path, port: int) -> str:
    return words.replace(KEPT, str(folder)).replace("127.0.0.1:18443", f"127.0.0.1:{port}")


def unchanged(folder: Path) -> dict[str, bytes]:
    """What no service may write to: all files of server and sites but those in the folders that are theirs to write."""
    files = [path for part in ("server", "sites") for path in (folder / "fed" / part).rglob("*") if path.is_file()]
    own = {"home", "state", "results", "__pycache__"}
    return {str(path): path.read_bytes() for path in files if not own & set(path.relative_to(folder).parts)}


@pytest.mark.long
@pytest.mark.timeout(1800)  # a new process for each of 21 messages: a minute where nobody else computes
def test_the_commands_of_the_trial_make_a_federation_that_runs(tmp_path: Path) -> None:
    """Everything that the containers do, in a shell of this machine, with a folder in place of their volume."""
    pytest.importorskip("flwr")
    parts = compose()["services"]
    port, *nodes = live.free_ports(4)
    path = os.pathsep.join([live.BIN, str(DOCKER), os.environ["PATH"]])
    environment = {**os.environ, **live.ENVIRONMENT, "PATH": path}

    def command(name: str) -> list[str]:
        return [here(word, tmp_path, port) for word in parts[name]["command"]]

    subprocess.run(command("init"), env=environment, check=True, timeout=300)
    subprocess.run(command("init"), env=environment, check=True, timeout=300)  # a second start changes nothing
    wards = [name for name in parts if name.startswith("ward")]
    for name, node in zip(wards, nodes, strict=True):
        live.edit(tmp_path / "fed" / "sites" / name / "site.env", PORT=str(node))
    before = unchanged(tmp_path)
    with_health = ["server", *wards]
    running = []
    try:
        for name in with_health:
            with (tmp_path / f"{name}.log").open("w") as log:
                running.append(subprocess.Popen(command(name), env=environment, stdout=log, stderr=log))
        for name in with_health:
            folder = here(parts[name]["environment"]["FEDSOLVE_FOLDER"], tmp_path, port)
            healthy({**environment, "FEDSOLVE_FOLDER": folder})
        done = subprocess.run(
            command("run"), env=environment, capture_output=True, text=True, check=False, timeout=1500
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for process in running:
            live.end(process)
        for each in live.started_below(tmp_path):
            live.kill(each)
    result = fs.Result.load(tmp_path / "results")
    assert result.metrics["accuracy"].pooled is not None and result.metrics["accuracy"].pooled > 0.8
    assert unchanged(tmp_path) == before
    stopped = {**environment, "FEDSOLVE_FOLDER": str(tmp_path / "fed" / "server")}
    assert subprocess.run([DOCKER / "health.sh"], env=stopped, check=False, capture_output=True).returncode != 0


def healthy(environment: dict[str, str], patience: float = 300.0) -> None:
    last = time.monotonic() + patience
    for pause in pauses():
        if subprocess.run([DOCKER / "health.sh"], env=environment, check=False, capture_output=True).returncode == 0:
            return
        assert time.monotonic() < last, f"{environment['FEDSOLVE_FOLDER']} does not answer"
        time.sleep(pause)


def pauses() -> Iterator[float]:
    while True:
        yield 0.2
