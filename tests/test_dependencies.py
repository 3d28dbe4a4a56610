"""What the library imports is what it declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHERWISE_CALLED = {"PIL": "pillow"}  # where it is not installed, nobody else says so
COMES_WITH = {"huggingface-hub": "transformers", "mlflow": "mlflow-skinny"}  # which asks for the version that fits it


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    return {normal(re.match(r"[\w.-]+", text)[0]) for text in requirements}  # type: ignore[index]


@cache
def imported() -> dict[str, str]:
    """The distributions that the library imports from, each with a file that does."""
    distributions = metadata.packages_distributions()
    files: dict[str, str] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for top in {name.partition(".")[0] for name in names} - {"fedsolve", *sys.stdlib_module_names}:
                for distribution in distributions.get(top, [OTHERWISE_CALLED.get(top, top)]):
                    files[normal(distribution)] = path.name
    return files


def test_every_import_is_declared_outside_dev() -> None:
    extras = PROJECT["optional-dependencies"]
    known = declared(PROJECT["dependencies"])
    known = known.union(*(declared(requirements) for extra, requirements in extras.items() if extra != "dev"))
    missing = {name: file for name, file in imported().items() if COMES_WITH.get(name, name) not in known}
    assert not missing


def test_every_dependency_without_an_extra_is_imported() -> None:
    assert declared(PROJECT["dependencies"]) <= imported().keys()


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds() -> None:
    bounds = dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(PROJECT["dependencies"])))
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    assert {name: version.removesuffix(".0") for name, version in tested.items()} == bounds
