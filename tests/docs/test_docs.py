"""Every code block of README and docs is executed, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsolve.result import Result
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DEPLOY = ROOT / "docs" / "deploy.md"  # starts processes, so it is run as a whole
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text()) if found == language]


def files_that_pages_mention(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), rng.integers(2, size=60)
    rows = [
        ",".join(map(str, [*row, label, f"ward-{'ab'[i % 2]}"]))
        for i, (row, label) in enumerate(zip(x, y, strict=True))
    ]
    (folder / "wards.csv").write_text("age,pulse,weight,label,client\n" + "\n".join(rows) + "\n")
    for number in range(16):
        for kind, colour in (("cat", (200, 120, 40)), ("fish", (20, 60, 200))):
            path = folder / "pictures" / kind / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.array(colour) + rng.integers(-20, 20, (20 + number, 24, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    (folder / "new-patients.csv").write_text("age,pulse,weight\n1,2,3\n4,5,6\n")


@pytest.mark.parametrize("page", [page for page in PAGES if page != DEPLOY], ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    for code in blocks(page, "python"):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != DEPLOY], ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    files_that_pages_mention(tmp_path)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in "".join(blocks(page, "bash")).splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "fedsolve":
            command = [sys.executable, "-m", *words]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
        elif words[0] == "make":
            assert words[1] in targets
        else:
            assert words[:2] == ["pip", "install"], f"a command that nobody tries: {line}"


def test_settings_files_run(tmp_path: Path) -> None:
    files_that_pages_mention(tmp_path)
    for code in blocks(ROOT / "README.md", "toml"):
        (tmp_path / "settings.toml").write_text(code)
        command = [sys.executable, "-m", "fedsolve", "run", "--config", "settings.toml", "--out", "out"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    first = blocks(ROOT / "README.md", "bash")[0]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make demo", "make test"]


def test_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in (ROOT / "src" / "fedsolve").rglob("*.py"):
        if not path.name.startswith("__") and "methods" not in path.parts:
            assert path.name in text, f"docs/architecture.md does not name {path.name}"


@pytest.mark.timeout(900)
def test_the_deployment_page_runs_word_for_word(tmp_path: Path) -> None:
    """One shell, an empty folder, every block in order; only installing is left out, and ports are free ones."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")
    from tests.runtime.live import Known, descendants, free_ports, kill, started_below

    script = ["set -e"]
    for language, code in BLOCK.findall(DEPLOY.read_text()):
        if language == "python":
            script.append(f"{shlex.quote(sys.executable)} - <<'END'\n{code}END")
        elif language == "bash":
            script += [line for line in code.splitlines() if not line.startswith("pip install")]
    first = next(i for i, line in enumerate(script) if line.startswith("fedsolve deploy init")) + 1
    link, *nodes = free_ports(4)
    script[first - 1] = script[first - 1].replace("18443", str(link))
    for name, port in zip(("ward-a", "ward-b", "ward-c"), nodes, strict=True):  # others may use the default ports
        script.insert(first, f"sed -i 's/^PORT=.*/PORT={port}/' trial/sites/{name}/site.env")
    command = tmp_path / "bin" / "fedsolve"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fedsolve "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    with (tmp_path / "output").open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-m", "-c", "\n".join(script)],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
        )
        started: set[Known] = set()
        try:
            while shell.poll() is None:
                started |= set(descendants(shell.pid))
                time.sleep(1)
        finally:
            shell.kill()
            shell.wait()
            for process in [*started, *started_below(tmp_path)]:
                kill(process)
    said = (tmp_path / "output").read_text()
    assert shell.returncode == 0, said + "".join(p.read_text()[-2000:] for p in tmp_path.glob("*.log"))
    assert "each site's model is at the site" in said
    assert "left out" not in said
    result = Result.load(tmp_path / "results")
    assert set(result.clients) == {"ward-a", "ward-b", "ward-c"}
    assert not list((tmp_path / "results" / "models").glob("ward-*"))
