"""A method is one file, one line of the catalogue and one typed name; none of them can be forgotten."""

from __future__ import annotations

import ast

import fedsolve as fs
from fedsolve.methods import homes
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "fedsolve"
LONGEST = 150  # lines of a method: what it is and its two halves; machinery belongs in families/


def typed() -> dict[str, str]:
    """The names that `fedsolve/__init__.py` imports for type checkers, with the module of each."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)  # "as" makes it public
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_typed_names_are_the_names_that_the_package_has() -> None:
    assert set(typed()) == set(dir(fs)) - {"__version__"}


def test_typed_names_are_imported_from_where_they_come() -> None:
    for name, module in typed().items():
        home = getattr(fs, name).__module__
        assert home == module or home.startswith(f"{module}."), f"{name} is of {home}, not of {module}"


def test_every_file_of_the_methods_is_in_the_catalogue() -> None:
    files = {f"fedsolve.methods.{path.stem}" for path in (PACKAGE / "methods").glob("*.py")} - {
        "fedsolve.methods.__init__"
    }
    modules = [module for module, _ in homes()]
    assert sorted(modules) == sorted(files)


def test_every_method_is_a_short_file() -> None:
    files = [path for path in (PACKAGE / "methods").glob("*.py") if path.stem != "__init__"]
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(lengths) == len(set(homes()))
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
