"""README and docs are true: every block is executed, in order, page by page, in an empty folder.

- `python` blocks of a page share their names, as in one session;
- `bash` lines are commands of fedsolve, and are run; targets of make must exist; `pip install` is not tried;
- a block with a title (```csv title="new.csv") is written to the file of that name, for the blocks after it;
- lines of a `text` block that comes right after one of these are lines of what that block printed.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsolve import methods
from fedsolve.result import Result
from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
DEPLOY = DOCS / "deploy.md"  # starts processes, so it is run as a whole
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
UNTRIED = {"", "text", "json", "mermaid"}  # languages that nothing is done with, unless a block has a title
NEEDS = {
    "disclosure.md": ["matplotlib"],
    "large.md": ["pyarrow", "pandas"],
    "ledger.md": ["cryptography"],
    "methods.md": ["matplotlib"],
    "networks.md": ["torch", "matplotlib"],
    "operations.md": ["cryptography"],
    "pictures.md": ["PIL", "efficientnet_lite_pytorch"],
    "privacy.md": ["cryptography"],
    "tables.md": ["polars"],
    "tracking.md": ["mlflow", "tensorboard", "wandb"],
    "tutorial.md": ["matplotlib"],
}
SECONDS = re.compile(r"\b\d+\.\d+ s\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str  # the file it stands for, if any
    code: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match[2])
        yield Block(match[1], title[1] if title else "", match[3], text.count("\n", 0, match.start()) + 1)


def make_pictures(folder: Path) -> None:
    """Small pictures of two kinds, for the page on pictures."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(8):
        for kind, colour in (("cat", (200, 120, 40)), ("fish", (20, 60, 200))):
            path = folder / "pictures" / kind / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.array(colour) + rng.integers(-20, 20, (20 + number, 24, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The exit code and all that a command prints."""
    from fedsolve import cli

    output = io.StringIO()
    monkeypatch.setattr(sys, "argv", words)
    with redirect_stdout(output), redirect_stderr(output):
        try:
            cli.main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
    return code or 0, output.getvalue()


def run_line(line: str, where: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Do what a line of a `bash` block says; what it prints."""
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    if words[0] == "make":
        assert words[1] in targets(), f"{where}: there is no target {words[1]} in the Makefile"
        return ""
    if words[0] != "fedsolve":
        assert words[:2] == ["pip", "install"], f"{where}: a command that nobody tries: {line}"
        return ""
    code, output = run_command(words, monkeypatch)
    assert code == 0, f"{where}: {line}\n{output}"
    return output


def run_python(code: str, page: Path, names: dict[str, Any]) -> str:
    """Execute a block among the names of those before it; what it prints."""
    output = io.StringIO()
    with redirect_stdout(output):
        exec(compile(code, str(page), "exec"), names)
    return output.getvalue()


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def squeezed(text: str) -> list[str]:
    """Lines without what may differ: the width of gaps, and seconds."""
    return [" ".join(SECONDS.sub("... s", line).split()) for line in text.splitlines()]


@pytest.fixture
def forgotten(tmp_path: Path) -> Iterator[None]:
    """Modules that a page writes and imports are not there for other tests, which may have some of the same name."""
    yield
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.usefixtures("forgotten")
@pytest.mark.filterwarnings("default::DeprecationWarning")  # typer's own, of click
@pytest.mark.parametrize("page", [page for page in PAGES if page != DEPLOY], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in NEEDS.get(page.name, ()):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path / "cache"))
    if page.name == "pictures.md":
        make_pictures(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.title:
            (tmp_path / block.title).write_text(block.code)
        elif block.language == "python":
            printed = run_python("\n" * block.line + block.code, page, names)
            continue
        elif block.language == "bash":
            printed = "".join(run_line(line, where, monkeypatch) for line in block.code.splitlines())
            continue
        elif block.language == "text" and printed:
            absent = [line for line in squeezed(block.code) if line not in squeezed(printed)]
            assert not absent, f"{where}: nothing prints {absent[0]!r}; the block before it prints\n{printed}"
        else:
            assert block.language in UNTRIED, f"{where}: a block that nobody tries: {block.language}"
        printed = ""


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MkDocs make it."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^):]+)\)", FENCE.sub("", page.read_text())):
            file, _, anchor = target.partition("#")
            place = page.parent / file if file else page
            assert place.exists(), f"{page.name} links to {target}"
            if anchor:
                anchors = {slug(heading) for heading in re.findall(r"^#+ (.+)$", place.read_text(), re.MULTILINE)}
                assert anchor in anchors, f"{page.name} links to {target}, which has no such heading"


def test_the_readme_begins_with_two_commands_and_is_short() -> None:
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "bash")
    assert [line.split("#")[0].strip() for line in first.code.splitlines()] == ["make demo", "make test"]
    assert len((ROOT / "README.md").read_text().split()) <= 600


def test_the_readme_leads_to_every_page() -> None:
    pages = set(re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text()))
    written = {"tutorial.md", "methods.md", "networks.md", "pictures.md", "ledger.md", "deploy.md", "privacy.md"}
    assert written | {"glossary.md", "results.md", "architecture.md"} <= pages


def test_the_table_of_methods_is_the_catalogue() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|(.+)\|$", (DOCS / "methods.md").read_text(), re.MULTILINE)
    rounds = {name: int(re.findall(r"\d+", cells.split("|")[1])[0]) for name, cells in rows}
    assert rounds == {name: methods.create(name).rounds for name in methods.CATALOGUE}


def test_every_method_says_what_others_learn() -> None:
    text = (DOCS / "privacy.md").read_text()
    missing = [name for name in methods.CATALOGUE if f"`{name}`" not in text]
    assert not missing, f"docs/privacy.md does not say what others learn from {', '.join(missing)}"


def test_the_wards_are_what_their_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import make_wards, sys; sys.stdout.write(make_wards.text())"],
        cwd=ROOT / "examples",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (ROOT / "src" / "fedsolve" / "data" / "wards.csv").read_text()


def test_architecture_names_every_room() -> None:
    text = (DOCS / "architecture.md").read_text()
    for path in (ROOT / "src" / "fedsolve").rglob("*.py"):
        if not path.name.startswith("__") and "methods" not in path.parts:
            assert path.name in text, f"docs/architecture.md does not name {path.name}"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_deployment_page_runs_word_for_word(tmp_path: Path) -> None:
    """One shell, an empty folder, every block in order; only installing is left out, and ports are free ones."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")
    from tests.runtime.live import Known, descendants, free_ports, kill, started_below

    first = next(block.code for block in blocks(DEPLOY) if "trial/start.sh" in block.code)
    typed = ["init", "python", *first.splitlines()]  # what a person types after installing, on one machine
    assert len(typed) <= 8

    script = ["set -e"]
    for block in blocks(DEPLOY):
        if block.language == "python":
            script.append(f"{shlex.quote(sys.executable)} - <<'END'\n{block.code}END")
        elif block.language == "bash":
            script += [line for line in block.code.splitlines() if not line.startswith("pip install")]
    (link,) = free_ports(1)  # others may use the one on the page; those of nodes are chosen
    script = [line.replace("18443", str(link)) for line in script]
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
        deadline = time.monotonic() + 1700
        try:
            while not _ended(shell) and time.monotonic() < deadline:
                started |= set(descendants(shell.pid))  # they are looked for all the time, to be ended if it fails
        finally:
            shell.kill()
            shell.wait()
            for process in [*started, *started_below(tmp_path)]:
                kill(process)
    printed = (tmp_path / "output").read_text()
    assert shell.returncode == 0, printed + "".join(p.read_text()[-2000:] for p in tmp_path.glob("*.log"))
    assert "each site's model is at the site" in printed
    assert "left out" not in printed
    result = Result.load(tmp_path / "results")
    assert set(result.clients) == {"ward-a", "ward-b", "ward-c"}
    assert not list((tmp_path / "results" / "models").glob("ward-*"))


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process ends within half a second."""
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True
