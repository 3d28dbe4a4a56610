"""Every code block of README and docs is executed, in order, in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    for code in blocks(page, "python"):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
