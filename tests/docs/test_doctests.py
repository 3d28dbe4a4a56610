"""Every example in a docstring of the library is run; modules without examples are imported, so that all are seen."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import fedsolve as fs
from tests.conftest import ROOT

SOURCE = ROOT / "src"
OPTIONAL = {"torch", "flwr", "ray", "onnx", "onnxruntime", "transformers", "matplotlib", "cryptography", "PIL"}
# What an example needs, by the end of its name.
NEEDS = {
    ".add_cohort": "cryptography",
    ".from_frame": "polars",
    ".Secure": "cryptography",
    ".stream": "pyarrow",
    ".Workers": "pandas",
    ".to_frame": "pandas",
    ".to_onnx": "onnx",
}
FILES = sorted(
    path
    for path in (SOURCE / "fedsolve").rglob("*.py")
    if "templates" not in path.parts and path.name != "__main__.py"  # `deploy init` copies the templates
)
# What a user calls: each has an example of its own, or one on its class.
CALLED = [
    fs.load,
    fs.Federation,
    fs.Table.split,
    fs.by_client,
    fs.classes,
    fs.dirichlet,
    fs.iid,
    fs.neighbours,
    fs.power_law,
    fs.shards,
    fs.Moments.of,
    fs.solve,
    fs.run,
    fs.Secure,
    fs.create,
    fs.Result,
    fs.Model,
    fs.load_model,
    fs.check_method,
    fs.estimator,
    fs.to_onnx,
]


def module(name: str) -> ModuleType:
    """The module, or a skip where it needs a library that is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of third parties while they are imported: flwr, click
            return importlib.import_module(name)
    except (ModuleNotFoundError, fs.FedsolveError) as error:  # the latter says how to install what is missing
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        library = str(getattr(missing, "name", "")).partition(".")[0]
        if library in OPTIONAL:
            pytest.skip(f"{library} is not installed")
        raise


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_run(path: Path) -> None:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    tests = doctest.DocTestFinder(exclude_empty=True).find(module(name))
    written = len(re.findall(r"^\s*>>> ", path.read_text(), re.MULTILINE))
    assert sum(len(test.examples) for test in tests) == written, "an example is where nobody finds it"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests:
        if any(test.name.endswith(end) and importlib.util.find_spec(needs) is None for end, needs in NEEDS.items()):
            continue
        said: list[str] = []
        failed, _ = runner.run(test, out=said.append)
        assert not failed, "".join(said)


@pytest.mark.parametrize("called", CALLED, ids=lambda called: called.__qualname__)
def test_what_users_call_has_an_example(called: object) -> None:
    assert ">>>" in (inspect.getdoc(called) or "")
