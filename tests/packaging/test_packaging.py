"""What strangers install: wheel and source hold what they must, and everything that states a version agrees."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools import release

import fedsolve as fs
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
DATA = (
    "py.typed", "data/wards.csv", "report/page.html", "reproduce/papers.json", "deploy/templates/config.toml",
    "deploy/templates/README.txt", "deploy/templates/app/pyproject.toml", "deploy/templates/app/fedsolve_app/client.py",
    "deploy/templates/server/nginx.conf", "deploy/templates/server/start.sh", "deploy/templates/site/start.sh",
)  # fmt: skip


def loaded(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((ROOT / name).read_text())


def hatched(root: Path, out: Path, kind: str) -> Path:
    """A wheel or a source archive of a tree, by the build backend itself."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    out.mkdir(exist_ok=True)
    build = f"import hatchling.build as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=root, capture_output=True, text=True, check=True)
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The source archive, and the tree that is in it."""
    folder = tmp_path_factory.mktemp("source")
    archive = hatched(ROOT, folder, "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    yield archive, folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(source: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source archive."""
    return hatched(source[1], tmp_path_factory.mktemp("wheel"), "wheel")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_the_source_builds_the_wheel_of_the_tree(wheel: Path, tmp_path: Path) -> None:
    assert contents(wheel) == contents(hatched(ROOT, tmp_path / "tree", "wheel"))


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "src" / "fedsolve"
    wanted = {
        f"fedsolve/{path.relative_to(package)}": path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {f"fedsolve/{name}" for name in DATA} <= wanted.keys()
    found = {name: data for name, data in contents(wheel).items() if ".dist-info/" not in name}
    assert found == wanted


def test_the_wheel_says_what_the_project_says(wheel: Path) -> None:
    about = next(data.decode() for name, data in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {fs.__version__}\n" in about
    assert "\nLicense-Expression: Apache-2.0\n" in about
    assert set(re.findall(r"^Provides-Extra: (.+)$", about, re.MULTILINE)) == set(
        PROJECT["project"]["optional-dependencies"]
    )


# --- one version ---


def test_the_version_is_stated_once() -> None:
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert release.version() == fs.__version__


def test_what_the_version_says_of_itself_is_in_order() -> None:
    texts = [(ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff")]
    assert release.problems(fs.__version__, *texts) == []


@pytest.mark.parametrize(
    ("version", "heading", "wrong"),
    [
        ("0.3.0.dev0", "## Unreleased: 0.3.0", None),
        ("0.3.0", "## 0.3.0 (2026-12-01)", None),
        ("0.3.0", "## Unreleased: 0.3.0", "a release has its date"),
        ("0.3.0", "## 0.3.0", "a release has its date"),
        ("0.3.0", "## 0.3.01 (2026-12-01)", "has no section for 0.3.0"),
        ("0.3.0.dev0", "## 0.2.0", "has no section for 0.3.0"),
    ],
)
def test_a_version_without_its_section_is_refused(version: str, heading: str, wrong: str | None) -> None:
    found = release.problems(version, f"# Changelog\n\n{heading}\n", f"version: {version}\n")
    assert [wrong in each for each in found] == [True] if wrong else found == []
    assert "CITATION.cff must say version" in release.problems(version, f"{heading}\n", "version: 9\n")[-1]


def test_the_citation_is_one() -> None:
    content = loaded("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= content.keys()  # what its schema requires
    assert (content["cff-version"], content["type"]) == ("1.2.0", "software")
    assert content["version"] == fs.__version__
    assert content["license"] == PROJECT["project"]["license"]
    assert [each["name"] for each in content["authors"]] == [each["name"] for each in PROJECT["project"]["authors"]]


# --- what others' machines run ---


def test_the_workflow_runs_targets_that_exist_on_every_python_that_is_promised() -> None:
    content = loaded(".github/workflows/tests.yml")
    (job,) = content["jobs"].values()
    matrix = job["strategy"]["matrix"]
    promised = [each.split(" :: ")[-1] for each in PROJECT["project"]["classifiers"] if "Python :: 3" in each]
    assert matrix["python"] == promised
    targets = {*matrix["target"], *(each["target"] for each in matrix["include"])}
    assert targets == {"test", "test-bare", "test-oldest", "docs", "dist"} and targets <= TARGETS
    assert {each["python"] for each in matrix["include"]} <= set(promised)
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["make ${{ matrix.target }} PYTHON=python"]


def test_hooks_are_the_tools_that_lint_and_types_run() -> None:
    (repository,) = loaded(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text().replace("$(DEV)", ".venv-dev")
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"] in makefile


def test_templates_of_issues_are_forms() -> None:
    templates = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(templates) >= 2
    for path in templates:
        content = loaded(str(path.relative_to(ROOT)))
        assert {"name", "description", "body"} <= content.keys()
        assert all(each["type"] in ("markdown", "textarea", "input") for each in content["body"])


# --- installed ---


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_wheel_runs_in_a_new_environment_outside_the_repository(wheel: Path) -> None:
    assert "saved in runs/digits-fedprior-0" in release.tried(wheel)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_pipx_runs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    pipx = shutil.which("pipx")
    if pipx is None:
        pytest.skip("pipx is not installed")
    homes = {name: str(tmp_path / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR")}
    command = [pipx, "run", "--spec", str(wheel), "fedsolve", "methods"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **homes}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "fedhip" in done.stdout
